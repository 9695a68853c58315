"""Integer operators, one record each; importing this room registers them."""

from samebits.ir.integer import (
    normalize,
    pointwise,
    products,
    rank,
    reduce,
    resample,
    root,
    shape,
    trees,
)

__all__ = [
    "normalize",
    "pointwise",
    "products",
    "rank",
    "reduce",
    "resample",
    "root",
    "shape",
    "trees",
]
