"""The mapping table: importing this module fills `step.RULES`.

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

__all__ = [
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
