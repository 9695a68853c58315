"""Integer operators, one record each; importing this room registers them."""

from samebits.ir.integer import pointwise, products, reduce, shape, trees

__all__ = ["pointwise", "products", "reduce", "shape", "trees"]
