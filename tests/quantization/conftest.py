"""Small float graphs, built by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from samebits.ir import Graph, GraphBuilder

CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
POOL = {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


@dataclass
class Net:
    """A GraphBuilder with random weights and short names: value and node names are `name`."""

    seed: int = 0
    builder: GraphBuilder = field(default_factory=lambda: GraphBuilder("net"))

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def normal(self, *shape: int) -> np.ndarray[Any, Any]:
        return self.random.normal(size=shape).astype(np.float32)

    def input(self, name: str, *shape: int, dtype: str = "float32") -> str:
        return self.builder.input(name, dtype, shape)

    def weight(self, name: str, *shape: int) -> str:
        return self.builder.constant(name, self.normal(*shape))

    def constant(self, name: str, values: Any, dtype: str = "float32") -> str:
        return self.builder.constant(name, np.array(values, dtype))

    def add(self, op: str, name: str, *inputs: str, **attributes: Any) -> str:
        return self.builder.add(op, inputs, attributes, f"{name}_node", [name])

    def conv(self, name: str, x: str, *shape: int, bias: bool = True, **attributes: Any) -> str:
        inputs = [x, self.weight(f"{name}_w", *shape)]
        if bias:
            inputs.append(self.weight(f"{name}_b", shape[0]))
        return self.add("Conv", name, *inputs, **{**CONV, **attributes})

    def gemm(self, name: str, x: str, outputs: int, features: int, **attributes: Any) -> str:
        weight = self.weight(f"{name}_w", outputs, features)
        bias = self.weight(f"{name}_b", outputs)
        return self.add("Gemm", name, x, weight, bias, **{"transB": 1, **attributes})

    def build(self, *outputs: str) -> Graph:
        return self.builder.build(outputs)


@pytest.fixture
def net() -> Callable[..., Net]:
    return Net


@pytest.fixture
def residual_net() -> tuple[Graph, list[dict[str, Any]]]:
    """Rational operators only, so that it also runs in Fractions; and ten samples."""
    n = Net(3)
    x = n.input("x", 1, 2, 6, 6)
    r = n.add("Relu", "r", n.conv("c", x, 4, 2, 3, 3))
    m = n.add("MaxPool", "m", r, **POOL)
    h = n.add("HardSwish", "h", n.conv("d", m, 4, 4, 3, 3, bias=False))
    s = n.add("Relu", "s", n.add("Add", "a", h, m))
    g = n.add("GlobalAveragePool", "g", s)
    f = n.add("Flatten", "f", g, axis=1)
    graph = n.build(n.gemm("y", f, 3, 4))
    return graph, [{"x": n.normal(1, 2, 6, 6)} for _ in range(10)]
