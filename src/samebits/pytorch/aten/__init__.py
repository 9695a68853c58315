"""The mapping table: importing this package fills `RULES`.

One rule for each ATen operator, in the module of its family; they become the real operators of
docs/spec/graph.md section 2. To add one, write a function decorated with `@aten("name")`.
"""

from samebits.pytorch.aten import indexing, layers, pointwise, quantized, recurrent, shape
from samebits.pytorch.call import RULES

__all__ = ["RULES", "indexing", "layers", "pointwise", "quantized", "recurrent", "shape"]
