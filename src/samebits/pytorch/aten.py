"""The mapping table: importing this module fills `call.RULES`.

One rule for each ATen operator, in the module of its family; they become the real operators of
docs/spec/graph.md section 2. To add one, write a function decorated with `@aten("name")`.
"""

from samebits.pytorch import aten_layers, aten_pointwise, aten_recurrent, aten_shape

__all__ = ["aten_layers", "aten_pointwise", "aten_recurrent", "aten_shape"]
