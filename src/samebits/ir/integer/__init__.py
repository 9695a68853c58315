"""Integer operators, one record each; importing this room registers them."""

from samebits.ir.integer import normalize, pointwise, products, reduce, shape, trees

__all__ = ["normalize", "pointwise", "products", "reduce", "shape", "trees"]
