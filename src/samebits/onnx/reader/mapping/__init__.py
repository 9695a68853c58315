"""The mapping table: importing this package fills `RULES`.

One rule for each ONNX operator, in the module of its family. To add an operator, write a function
decorated with `@onnx_op("Name")` that emits real operators and returns its outputs.
"""

import importlib
import pkgutil

from samebits.onnx.reader.node import RULES

__all__ = ["RULES"]

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
