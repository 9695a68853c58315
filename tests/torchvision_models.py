"""torchvision's models, where it is installed; its compiled operators may be absent."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

_DEFINED: list[torch.library.Library] = []  # what is defined is gone with its library


def models() -> ModuleType:
    """torchvision.models; skips where torchvision is not installed.

    Its wheel is built for one build of torch. With another its compiled operators do not load, and
    importing it fails for want of their names, which classifiers never call: they are defined here.
    """
    reason = "torchvision is not installed; `make .venv/.stamp-torchvision` installs it"
    try:
        pytest.importorskip("torchvision", reason=reason, exc_type=ModuleNotFoundError)
    except RuntimeError:
        _DEFINED.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            _DEFINED[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return pytest.importorskip("torchvision.models", reason=reason, exc_type=ModuleNotFoundError)
