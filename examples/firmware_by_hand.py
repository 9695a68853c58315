"""A program of a neural processor, written by hand: simulated, translated to PyTorch, equal bits.

Shows:  what the machine computes instruction by instruction, and the same bits from PyTorch, fast
        enough for whole validation sets.
Needs:  samebits alone.
Run:    python examples/firmware_by_hand.py [PROGRAM.nnp]
        (examples/firmware has an LSTM, a GRU, convolutions, pooling, a residual block, an MLP)
Prints: the hash of the outputs is the same on every machine

    gru.nnp: 46 instructions, blocks of 16 numbers with 15 bits and one exponent
    the simulator, 4 samples: 2.055 s, sha256 2c3917137c1ec76f
    as PyTorch, 4 samples: 0.010 s, sha256 2c3917137c1ec76f
    800 outputs, of which differ: 0
"""

import hashlib
import sys
import time
from pathlib import Path

import numpy as np

import samebits as sb
from samebits.errors import SamebitsError

OUT = Path("build/examples/firmware_by_hand")
PROGRAM = Path(__file__).parent / "firmware" / "gru.nnp"


def main(path: Path) -> None:
    """Execute a program twice: as it is, and as the software that it is translated to."""
    firmware = sb.load(path)
    program = firmware.model.program
    print(
        f"{path.name}: {len(program.instructions)} instructions, blocks of {program.native} ",
        end="",
    )
    print(f"numbers with {program.mantissa} bits and one exponent")
    rng = np.random.default_rng(0)
    inputs = {
        port.name: (rng.integers(-2048, 2049, (4, *port.shape[1:])) / 1024).astype(np.float16)
        for port in firmware.inputs
    }

    start = time.perf_counter()
    simulated = sb.simulate(firmware, inputs).outputs
    tell("the simulator", simulated, time.perf_counter() - start)
    OUT.mkdir(parents=True, exist_ok=True)
    software = sb.concord(firmware, to="torch", out=OUT / "concordant.py").function
    start = time.perf_counter()
    translated = software(inputs)
    tell("as PyTorch", translated, time.perf_counter() - start)

    pairs = [(simulated[name], translated[name]) for name in simulated]
    differing = sum((a.view(np.uint16) != b.view(np.uint16)).sum() for a, b in pairs)
    print(f"{sum(a.size for a, _ in pairs):,} outputs, of which differ: {differing}")


def tell(who: str, outputs: dict[str, np.ndarray], seconds: float) -> None:
    """How long it took, and the hash of what came out."""
    sha256 = hashlib.sha256(b"".join(array.tobytes() for array in outputs.values())).hexdigest()
    print(
        f"{who}, {len(next(iter(outputs.values())))} samples: {seconds:.3f} s, sha256 {sha256[:16]}"
    )


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else PROGRAM)
    except SamebitsError as error:  # what is missing here: a sentence, and no traceback
        raise SystemExit(str(error)) from None
