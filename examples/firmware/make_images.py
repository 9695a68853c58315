"""Memory images of the example firmware: small random weights, the same on every machine.

    python examples/firmware/make_images.py [FOLDER]

writes NAME.safetensors for every NAME.nnp beside this file. Numbers come from Philox, so a tensor
depends on its program's name, its own name and its shape, and on nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from samebits.npu.machine.assembly import parse
from samebits.npu.machine.program import Hint
from samebits.spec.philox import philox4x32

HERE = Path(__file__).parent
SEED = 20160
ZEROS = {"frame", "frame1", "frame2", "h", "c", "h_operand"}  # borders of zeros, initial states


def uniform(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Multiples of 2**-15 in [-1, 1), from the high halves of Philox words."""
    key = (int.from_bytes(name.encode()[:4], "little"), SEED)
    stream = int.from_bytes(name.encode()[-4:], "little")
    count = int(np.prod(shape))
    blocks = [philox4x32((i, stream, len(name), 0), key) for i in range(-(-count // 4))]
    words = [word for block in blocks for word in block][:count]
    return (np.array(words, np.int64) >> 16).reshape(shape) / 2.0**15 - 1


def tensor(program: str, hint: Hint) -> np.ndarray[Any, Any]:
    """The initial contents of a tensor hint: binary16 in its logical shape."""
    if hint.name in ZEROS:
        return np.zeros(hint.shape, np.float16)
    if hint.name == "quarter":
        return np.full(hint.shape, 0.25, np.float16)
    values = uniform(f"{program}/{hint.name}", hint.shape)
    # A power of two that keeps activations about as large as the inputs.
    inputs = int(np.prod(hint.shape[1:])) if len(hint.shape) > 1 else 64
    values *= 2.0 ** -round(np.log2(inputs / 4) / 2)
    return values.astype(np.float16)


def main() -> None:
    """Write every image."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for path in sorted(HERE.glob("*.nnp")):
        program = parse(path.read_text(encoding="utf-8"), path.name)
        tensors = {
            f"{hint.memory}/{hint.name}": tensor(path.stem, hint)
            for hint in program.hints
            if hint.kind == "tensor"
        }
        (folder / f"{path.stem}.safetensors").write_bytes(save(tensors))


if __name__ == "__main__":
    main()
