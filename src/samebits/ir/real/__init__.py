"""Real operators, one record each; importing this room registers them. docs/spec/graph.md 2."""

from samebits.ir.real import (
    indexing,
    linear,
    normalize,
    pointwise,
    quantize,
    recurrent,
    reduce,
    resize,
    shape,
    trees,
    window,
)

__all__ = [
    "indexing",
    "linear",
    "normalize",
    "pointwise",
    "quantize",
    "recurrent",
    "reduce",
    "resize",
    "shape",
    "trees",
    "window",
]
