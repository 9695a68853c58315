"""timm's models at small sizes, where it is installed: sides of images, options, fewer blocks."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from torchvision_models import define_operators

Change = Callable[[Any], None]  # of a net whose depth is no option


def _first_blocks(net: Any) -> None:
    net.blocks = net.blocks[:2]


def _a_block_a_stage(net: Any) -> None:
    for stage in net.stages if hasattr(net, "stages") else net.layers:
        stage.blocks = stage.blocks[:1]


STAGES = (1, 1, 1, 1)
NETS: dict[str, tuple[int, dict[str, Any], *tuple[Change, ...]]] = {
    "test_resnet": (32, {}),
    "test_efficientnet": (32, {}),
    "test_convnext": (32, {}),
    "test_vit": (32, {"img_size": 32, "patch_size": 8}),
    "test_vit3": (32, {"img_size": 32, "patch_size": 8}),
    "test_byobnet": (32, {}),
    "test_mambaout": (32, {}),
    "test_nfnet": (32, {}),
    "lcnet_050": (32, {}),
    "ghostnet_050": (32, {}),
    "mobilevit_xxs": (32, {}),
    "edgenext_xx_small": (32, {}),
    "convnext_atto": (32, {"depths": STAGES}),
    "repvgg_a0": (32, {}),
    "res2net50_14w_8s": (32, {"layers": STAGES}),
    "mobileone_s0": (64, {}),
    "fastvit_t8": (64, {"layers": STAGES}),
    "mobilenetv4_conv_small_035": (64, {}),
    "poolformerv2_s12": (32, {}, _a_block_a_stage),
    "resmlp_12_224": (32, {"img_size": 32}, _first_blocks),
    "mixer_s32_224": (64, {"img_size": 64}, _first_blocks),
    "xcit_nano_12_p16_224": (32, {"img_size": 32}, _first_blocks),
    "eva02_tiny_patch14_224": (28, {"img_size": 28, "depth": 2}),
    "swinv2_cr_tiny_224": (64, {"img_size": 64, "window_size": 2, "depths": (2, 2, 1, 1)}),
    "nf_regnet_b0": (32, {}),
    "focalnet_tiny_srf": (32, {}, _a_block_a_stage),
    "levit_128s": (96, {"img_size": 96, "depth": (1, 1, 1)}),  # 3, 2 and 1 tokens a side
    "starnet_s050": (32, {}),
    "hgnetv2_b0": (64, {}),
    "sequencer2d_s": (56, {"layers": STAGES}),
}
"""Nets by their names; at sides below these, batch norms would have a value or two a channel."""


def timm() -> ModuleType:
    """The package; skips where it is not installed."""
    define_operators()
    reason = "timm is not installed; `make .venv/.stamp-timm` installs it"
    return pytest.importorskip("timm", reason=reason, exc_type=ModuleNotFoundError)


def build(name: str, batch: int = 4) -> tuple[nn.Module, torch.Tensor]:
    """A net of random weights and ten classes, and images of the side that it takes."""
    side, options, *changes = NETS[name]
    torch.manual_seed(1)
    net = timm().create_model(name, num_classes=10, **options)
    for change in changes:
        change(net)
    return net.train(), torch.randn(batch, 3, side, side)
