"""The mapping table: importing this package fills `RULES`.

One rule for each ONNX operator, in the module of its family. To add an operator, write a function
decorated with `@onnx_op("Name")` that emits real operators and returns its outputs.
"""

from samebits.onnx.reader.mapping import (
    constant,
    data,
    index,
    microsoft,
    norm,
    pointwise,
    quantized,
    recurrent,
    reduce,
    resize,
    window,
)
from samebits.onnx.reader.node import RULES

__all__ = [
    "RULES",
    "constant",
    "data",
    "index",
    "microsoft",
    "norm",
    "pointwise",
    "quantized",
    "recurrent",
    "reduce",
    "resize",
    "window",
]
