"""The mapping table: importing this module fills `step.RULES`.

One rule for each ONNX operator, in the module of its family. To add an operator, write a function
decorated with `@onnx_op("Name")` that emits real operators and returns its outputs.
"""

from samebits.onnx import (
    mapping_constant,
    mapping_data,
    mapping_index,
    mapping_microsoft,
    mapping_norm,
    mapping_pointwise,
    mapping_quantized,
    mapping_recurrent,
    mapping_reduce,
    mapping_resize,
    mapping_window,
)

__all__ = [
    "mapping_constant",
    "mapping_data",
    "mapping_index",
    "mapping_microsoft",
    "mapping_norm",
    "mapping_pointwise",
    "mapping_quantized",
    "mapping_recurrent",
    "mapping_reduce",
    "mapping_resize",
    "mapping_window",
]
