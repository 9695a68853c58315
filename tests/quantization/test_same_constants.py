"""Constants and scales of quantized networks, computed by other machine code: the same bits."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from other_machines import MACHINES, elsewhere
from samebits.ir import Graph, GraphBuilder
from samebits.ir.rewrite import simplify
from samebits.quantization import (
    RecurrentSettings,
    Settings,
    quantize_graph,
    quantize_recurrent,
)
from samebits.recipes.quantization import METHODS

WINDOW = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1), "group": 1}
QUICK = "numpy without vectors"  # and with an old BLAS kernel
POOL = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (0,) * 4, "dilations": (1, 1)}


def normal(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def convolutional() -> Graph:
    """Weights and samples of 24 bits, functions, means and a softmax: every sum rounds."""
    builder = GraphBuilder("net")

    def add(op: str, *inputs: str, **attributes: Any) -> str:
        return builder.add(op, inputs, attributes)

    def conv(seed: int, x: str, *shape: int) -> str:
        weights = builder.constant("w", normal(seed, *shape) / 8)
        return add("Conv", x, weights, builder.constant("b", normal(seed + 1, shape[0])), **WINDOW)

    x = builder.input("x", "float32", (1, 3, 16, 16))
    y = add("Gelu", conv(1, x, 24, 3, 3, 3))
    y = add("Add", add("Tanh", conv(3, y, 24, 24, 3, 3)), y)
    y = add("Flatten", add("AveragePool", add("HardSwish", y), **POOL), axis=1)
    w, b = builder.constant("w", normal(5, 10, 24 * 49) / 32), builder.constant("b", normal(6, 10))
    y = add("Gemm", y, w, b, transB=1)
    return simplify(builder.build([add("Softmax", y, axis=1), add("Sigmoid", y)]))


def recurrent() -> Graph:
    builder = GraphBuilder("lstm")
    x = builder.input("x", "float32", (9, 1, 12))
    inputs = [
        builder.constant("w", normal(seed, 1, *shape) / 4)
        for seed, shape in ((7, (128, 12)), (8, (128, 32)), (9, (256,)))
    ]
    y = builder.add("LSTM", [x, *inputs], {"hidden_size": 32})
    return simplify(builder.build([builder.add("Reshape", [y], {"shape": (9, 1, 32)})]))


def digest() -> str:
    """Of every constant of both networks by every way of calibration."""
    found = hashlib.sha256()
    images = [[normal(100 + i, 1, 3, 16, 16)] for i in range(4)]
    sequences = [[normal(200 + i, 9, 1, 12)] for i in range(3)]
    better = Settings(
        equalize="activations", rounding="least-error", bias_correction=True, per_channel=False
    )
    refined, _ = quantize_graph(convolutional(), images, better)
    for method in METHODS:
        made = [
            (refined, None),
            quantize_graph(convolutional(), images, Settings(calibration=method, report_samples=1)),
            quantize_recurrent(
                recurrent(), sequences, RecurrentSettings(calibration=method, report_samples=1)
            ),
        ]
        for graph, _ in made:
            for name, array in sorted(graph.constants.items()):
                found.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()


@pytest.fixture(scope="module")
def here() -> str:
    return digest()


@pytest.mark.parametrize(
    "machine",
    [m if m == QUICK else pytest.param(m, marks=pytest.mark.slow) for m in MACHINES],
)
def test_constants_do_not_depend_on_the_machine_code(here, machine):
    assert elsewhere(machine, __file__, "digest") == here
