"""Number of operations of a sub-layer, from its kind and shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Shape = tuple[int, ...]

# Operations per element of the output.
PER_ELEMENT = {
    "BatchNorm": 6,
    "BatchNorm1d": 6,
    "BatchNorm2d": 6,
    "LayerNorm": 8,
    "Dropout": 4,
    "Activation": 2,
    "Tanh": 2,
    "Sigmoid": 2,
    "GELU": 2,
    "SiLU": 2,
}


def count_operations(module: Any, kind: str, inputs: Sequence[Shape], output: Shape) -> int:
    """Number of operations of one forward pass; a multiplication and an addition are two.

    Products are counted exactly, point-wise sub-layers by their kind (one operation per element of
    the output if the kind is not known), pooling as one operation per element of the input.
    """
    size = math.prod(output)
    weight = getattr(module, "weight", None)
    if weight is not None and kind in ("Conv2d", "Conv1d", "Linear"):
        return 2 * size * math.prod(weight.shape[1:])
    if kind == "Embedding":
        return size
    if "Pool" in kind:
        return math.prod(inputs[0])
    return PER_ELEMENT.get(kind, 1) * size
