"""samebits: low-precision neural networks that compute the same bits everywhere.

    import samebits as sb

    net = sb.quantize(module_or_path, calibration=samples)
    net.verify(samples)
    net.compile("build/net")

Everything here is imported when it is first used: `import samebits` alone loads no torch.
docs/guide/python.md describes every function.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from samebits import settled as _settled  # noqa: F401  (it hears of forks from here on)

if TYPE_CHECKING:
    from samebits import train
    from samebits.adaptation import compile_training
    from samebits.api import (
        audit,
        convert,
        evaluate,
        fit,
        inspect,
        load,
        profile_training,
        quantize,
        report,
    )
    from samebits.checkup import doctor
    from samebits.comparison import compare
    from samebits.estimators import SamebitsClassifier, SamebitsRegressor  # noqa: F401
    from samebits.explanations import explain
    from samebits.firmware import concord, simulate
    from samebits.ledger import memory_limit
    from samebits.network import Network
    from samebits.planning import measure_device, plan
    from samebits.recipes import (
        Accelerator,
        Calibration,
        Execution,
        FineTuning,
        Formats,
        Numerics,
        Optimizer,
        Packaging,
        Recomputation,
        Recurrence,
        Training,
        prepared,
        read,
    )
    from samebits.recompute.capture.front import within
    from samebits.shipping import ship

    __version__: str

_RECIPES = (
    *("Accelerator", "Calibration", "Execution", "FineTuning", "Formats", "Numerics", "Optimizer"),
    *("Packaging", "Recomputation", "Recurrence", "Training"),
)
_HOMES = {
    **dict.fromkeys((*_RECIPES, "prepared", "read"), "samebits.recipes"),
    "Network": "samebits.network",
    "SamebitsClassifier": "samebits.estimators",
    "SamebitsRegressor": "samebits.estimators",
    "compare": "samebits.comparison",
    "compile_training": "samebits.adaptation",
    "concord": "samebits.firmware",
    "doctor": "samebits.checkup",
    "explain": "samebits.explanations",
    "measure_device": "samebits.planning",
    "memory_limit": "samebits.ledger",
    "plan": "samebits.planning",
    "ship": "samebits.shipping",
    "simulate": "samebits.firmware",
    "within": "samebits.recompute.capture.front",
    **dict.fromkeys(
        (
            *("audit", "convert", "evaluate", "fit", "inspect", "load"),
            *("profile_training", "quantize", "report"),
        ),
        "samebits.api",
    ),
}

# Not SamebitsClassifier and SamebitsRegressor, which need scikit-learn: `import *` needs it not.
__all__ = [
    "Accelerator",
    "Calibration",
    "Execution",
    "FineTuning",
    "Formats",
    "Network",
    "Numerics",
    "Optimizer",
    "Packaging",
    "Recomputation",
    "Recurrence",
    "Training",
    "__version__",
    "audit",
    "compare",
    "compile_training",
    "concord",
    "convert",
    "doctor",
    "evaluate",
    "explain",
    "fit",
    "inspect",
    "load",
    "measure_device",
    "memory_limit",
    "plan",
    "prepared",
    "profile_training",
    "quantize",
    "read",
    "report",
    "ship",
    "simulate",
    "train",
    "within",
]


def __getattr__(name: str) -> Any:
    """A name of the front door, the version, or the room `train`, imported on first use."""
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("samebits")
    if name == "train":
        return importlib.import_module("samebits.train")
    if name not in _HOMES:
        raise AttributeError(f"module 'samebits' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
