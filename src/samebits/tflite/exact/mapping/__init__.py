"""The mapping table: importing this package fills `RULES`.

One rule for each operator of the format, in the module of its family. To add an operator, write a
function decorated with `@lite_op("NAME")` that emits real operators and returns its outputs.
"""

import importlib
import pkgutil

from samebits.tflite.exact.node import MOVEMENTS, RULES

__all__ = ["MOVEMENTS", "RULES"]

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
