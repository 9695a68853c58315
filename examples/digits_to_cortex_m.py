"""Train in integers, compile to C, run it on an emulated Cortex-M3: the codes of PyTorch.

Shows:  a convolutional network that was never in floating point, from training to a board.
Needs:  the extra `demo`, a C compiler, and for the board arm-none-eabi-gcc and qemu-system-arm
        (`make demo` installs them where it may).
Run:    python examples/digits_to_cortex_m.py
Prints: what every machine prints: the hash of the parameters and the codes are the same

    342 of 359 test digits right; parameters 5c6d492f850018c1
    C: 25,262 bytes of constants, 1,280 bytes of RAM
    10 digits on training, torch, c; same bits: True
    a digit in PyTorch:    840 -10635   -428  -8622  26455  -3912   7710    989   -389  -4599
    and on a Cortex-M3:    840 -10635   -428  -8622  26455  -3912   7710    989   -389  -4599
    10 digits on cortex-m3; same bits: True
"""

import shutil
from pathlib import Path

import samebits as sb
from samebits.data import load
from samebits.errors import SamebitsError

OUT = Path("build/examples/digits_to_cortex_m")


def main() -> None:
    """From handwritten digits to a microcontroller without a floating-point unit."""
    shutil.rmtree(OUT, ignore_errors=True)  # what an earlier run left
    run = sb.fit("digits", "cnn", OUT / "run", sb.Training(epochs=2))
    right, total = run.result.correct, run.result.test_count
    print(f"{right} of {total} test digits right; parameters {run.sha256[:16]}")

    net = sb.load(run.folder)  # integers already: nothing is left to quantize
    memory = net.compile(OUT / "c", sb.Packaging(cpu="cortex-m3")).memory
    print(f"C: {memory.constants:,} bytes of constants, {memory.arena:,} bytes of RAM")

    digits = load("digits")
    images = digits.values(digits.test_images[:10])
    compare(net, images, ["training", "torch", "c"])
    for where, backend in (("a digit in PyTorch", "torch"), ("and on a Cortex-M3", "cortex-m3")):
        (codes,) = net.run(images[:1], backend, codes=True).values()
        print(f"{where}:", " ".join(f"{code:6}" for code in codes[0]))
    compare(net, images, ["cortex-m3"])


def compare(net, images, backends):
    """The codes of each of the backends with those of the definition."""
    checked = net.verify(images, backends)
    names = ", ".join(verdict.backend for verdict in checked.verdicts)
    print(f"{checked.samples} digits on {names}; same bits: {checked.same_bits}")


if __name__ == "__main__":
    try:
        main()
    except SamebitsError as error:  # what is missing here: a sentence, and no traceback
        raise SystemExit(str(error)) from None
