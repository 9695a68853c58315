"""torchvision's models, where it is installed; its compiled operators may be absent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch

NO_LOSSES_BETWEEN = {"aux_logits": False, "init_weights": False}
SMALL = {  # a configuration of its own, as the named ones take 224 pixels
    "image_size": 32,
    "patch_size": 8,
    "num_layers": 2,
    "num_heads": 4,
    "hidden_dim": 64,
    "mlp_dim": 128,
}
NETS: dict[
    str, tuple[int, dict[str, Any]]
] = {  # the side of a small image that each takes, and its options
    "alexnet": (63, {}),
    "vgg11_bn": (32, {}),
    "resnet18": (32, {}),
    "resnet50": (32, {}),
    "resnext50_32x4d": (32, {}),
    "squeezenet1_1": (32, {}),
    "densenet121": (32, {}),
    "googlenet": (32, NO_LOSSES_BETWEEN),
    "inception_v3": (75, NO_LOSSES_BETWEEN),
    "shufflenet_v2_x1_0": (32, {}),
    "mobilenet_v2": (32, {}),
    "mobilenet_v3_small": (32, {}),
    "mnasnet1_0": (32, {}),
    "efficientnet_b0": (32, {}),
    "regnet_y_400mf": (32, {}),
    "convnext_tiny": (32, {}),
    "swin_t": (32, {}),
    "VisionTransformer": (32, SMALL),
}

_DEFINED: list[torch.library.Library] = []  # what is defined is gone with its library


def define_operators() -> None:
    """Name torchvision's compiled operators where it is installed and they do not load.

    Its wheel is built for one build of torch. With another, importing it, or what imports it, fails
    for want of these names, which classifiers never call.
    """
    try:
        import torchvision  # noqa: F401
    except ModuleNotFoundError:
        return
    except RuntimeError:
        _DEFINED.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            _DEFINED[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def models() -> ModuleType:
    """torchvision.models; skips where torchvision is not installed."""
    define_operators()
    reason = "torchvision is not installed; `make .venv/.stamp-torchvision` installs it"
    return pytest.importorskip("torchvision.models", reason=reason, exc_type=ModuleNotFoundError)


def marked(names: Iterable[str], quick: Sequence[str]) -> list[Any]:
    """Parameters of a test: the nets, those slow that are not quick."""
    return [pytest.param(n, marks=[] if n in quick else [pytest.mark.slow]) for n in names]


def build(name: str, side: int | None = None, batch: int = 2) -> tuple[Any, torch.Tensor]:
    """A net of random weights, and images of the side that it takes or another."""
    smallest, options = NETS[name]
    torch.manual_seed(1)
    if name != "VisionTransformer":
        options = {"weights": None} | options
    net = getattr(models(), name)(**options)
    return net, torch.randn(batch, 3, *[side or smallest] * 2)
