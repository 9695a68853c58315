"""The mapping table: importing this module fills `call.RULES`.

One rule for each ATen operator, in the module of its family; they become the real operators of
docs/spec/graph.md section 2. To add one, write a function decorated with `@aten("name")`.
"""

from samebits.pytorch.aten import layers, pointwise, recurrent, shape

__all__ = ["layers", "pointwise", "recurrent", "shape"]
