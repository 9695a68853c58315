"""Networks of few bits, as other tools' files give them: codes between ends of their own, weights
with scales of blocks, and what the integer graphs compute."""

from __future__ import annotations

from functools import cache

import numpy as np

from pins.quantization import c_compiler
from pins.registry import Pins, digest, route
from pins.samples import integers
from samebits.ir import Graph, GraphBuilder
from samebits.model import Model
from samebits.verification.backends.pytorch import PyTorch
from samebits.verification.backends.reference import Reference
from samebits.verification.inputs import random_codes

CONV = {"strides": (1, 1), "dilations": (1, 1), "group": 1, "pads": (1, 1, 1, 1)}
POOL = {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
SAMPLES = 8
BITS = (2, 4, 12)


def network(bits: int) -> Graph:
    """x [1, 2, 8, 8]: a convolution, a pool, a function, a product in blocks of 7."""
    builder = GraphBuilder(f"{bits} bits")
    half = 1 << (bits - 1)

    def add(op: str, *inputs: str, **attributes: object) -> str:
        return builder.add(op, inputs, attributes)  # type: ignore[arg-type]

    def coded(x: str, scale: float, ends: tuple[int, int]) -> str:
        kind = f"{'u' if ends[0] == 0 else ''}int{8 if bits <= 8 else 16}"
        numbers = (
            builder.constant("s", np.float32(scale)),
            builder.constant("z", np.array(0, kind)),
        )
        codes = add("QuantizeLinear", x, *numbers, low=ends[0], high=ends[1])
        return add("DequantizeLinear", codes, *numbers)

    def weights(site: int, *shape: int, scales: tuple[int, ...], **along: int) -> str:
        codes = integers(site, shape, -min(half, 8), min(half, 8) - 1).astype(np.int8)
        numbers = (integers(site + 1, scales, 8, 31) / 64).astype(np.float32)
        names = (builder.constant("w", codes), builder.constant("ws", numbers))
        return add("DequantizeLinear", *names, **along)

    signed, unsigned = (-half + 1, half - 1), (0, 2 * half - 1)
    x = coded(builder.input("x", "float32", (1, 2, 8, 8)), 0.3, signed)
    w = weights(120, 4, 2, 3, 3, scales=(4,), axis=0)
    a = coded(add("Relu", add("Conv", x, w, **CONV)), 0.7, unsigned)
    b = coded(add("Tanh", add("MaxPool", a, **POOL)), 1 / half, signed)
    w = weights(122, 5, 64, scales=(5, 10), axis=1, block_size=7)
    return builder.build([coded(add("Gemm", add("Flatten", b, axis=1), w, transB=1), 0.9, signed)])


@cache
def model(bits: int) -> Model:
    return Model(f"{bits} bits", network(bits))


@route("few-bits")
def few_bits() -> Pins:
    found = {}
    for bits in BITS:
        inputs = random_codes(model(bits).integer, SAMPLES)
        found[f"{bits} bits: interpreter"] = digest(*Reference().run(model(bits), inputs))
        found[f"{bits} bits: torch"] = digest(*PyTorch().run(model(bits), inputs))
    return found


@route("few-bits-c")
def few_bits_in_c() -> Pins:
    program = c_compiler()
    return {
        f"{bits} bits": digest(
            *program.run(model(bits), random_codes(model(bits).integer, SAMPLES))
        )
        for bits in BITS
    }
