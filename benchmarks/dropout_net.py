"""resnet8 with dropout before its last layer: `--arch dropout_net:resnet8` from this folder."""

from __future__ import annotations

from torch import nn

from samebits.train.architectures import build


def resnet8(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Batch-norm, residual sums and dropout."""
    layers = list(build("resnet8", input_shape, classes).children())
    return nn.Sequential(*layers[:-1], nn.Dropout(0.2), layers[-1])
