"""Every activation with a table as PyTorch has it: functions, and the module."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

FORMS = {  # by its name in samebits: functions of a tensor, and modules
    "tanh": (torch.tanh, torch.Tensor.tanh, functional.tanh, nn.Tanh()),
    "sigmoid": (torch.sigmoid, torch.Tensor.sigmoid, functional.sigmoid, nn.Sigmoid()),
    "gelu": (functional.gelu, nn.GELU()),
    "gelu_tanh": (lambda x: functional.gelu(x, approximate="tanh"), nn.GELU("tanh")),
    "silu": (functional.silu, lambda x: functional.silu(x, inplace=True), nn.SiLU()),
    "mish": (functional.mish, nn.Mish()),
    "softplus": (functional.softplus, nn.Softplus()),
    "hardswish": (functional.hardswish, nn.Hardswish()),
    "hardsigmoid": (functional.hardsigmoid, nn.Hardsigmoid()),
    "elu": (lambda x: functional.elu(x, 0.75), nn.ELU(0.75)),
    "leaky_relu": (lambda x: functional.leaky_relu(x, 0.25), nn.LeakyReLU(0.25)),
}
