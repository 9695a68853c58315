"""Files of networks that other tools have quantized, made in a process of its own: these tools
warn and print, and the tests take warnings for errors.

python tests/quantized_elsewhere.py torchao FOLDER
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

NEEDED = {
    "torchao": ("torchao",),
    "brevitas": ("brevitas", "dependencies", "onnxscript", "onnx_ir", "onnxoptimizer"),
}


def made_by(tool: str, folder: Path) -> Path:
    """The folder with the files of a tool; a skip where it is not installed."""
    missing = [name for name in NEEDED[tool] if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    command = [sys.executable, "-W", "ignore", __file__, tool, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def save(folder: Path, name: str, program: Any, x: torch.Tensor) -> None:
    """A program and what it computes of some samples."""
    torch.export.save(program, folder / f"{name}.pt2")
    module = program.module()
    y = torch.cat([module(part) for part in x.split(1)]).detach()
    np.savez(folder / f"{name}.npz", x=x.numpy(), y=y.numpy())


# --- torchao ------------------------------------------------------------------------------------


class Convolutions(nn.Module):
    """Batch normalisation, a sum of branches, a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.second, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(36, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.max_pool2d(torch.relu(self.second(x) + x), 2)
        y: torch.Tensor = self.last(x.flatten(1))
        return y


def pt2e(quantizer: Any) -> Any:
    """The program that PT2E makes of `Convolutions` with a quantizer."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    torch.manual_seed(0)
    x = torch.randn(1, 1, 8, 8)
    prepared = prepare_pt2e(torch.export.export(Convolutions().eval(), (x,)).module(), quantizer)
    for _ in range(3):
        prepared(torch.randn(1, 1, 8, 8))
    return torch.export.export(convert_pt2e(prepared), (x,))


def torchao(folder: Path) -> None:
    """Programs of PT2E with torchao's quantizers, and of `quantize_`."""
    from torchao import quantization as q
    from torchao.quantization.granularity import PerAxis, PerGroup
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
    from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack

    def xnn(**settings: Any) -> Any:
        config = xnnpack.get_symmetric_quantization_config(**settings)
        return xnnpack.XNNPACKQuantizer().set_global(config)

    config = x86.get_default_x86_inductor_quantization_config()
    for name, quantizer in {
        "xnnpack": xnn(is_per_channel=True),
        "few-bits": xnn(is_per_channel=False, weight_qmin=-7, weight_qmax=7),
        "dynamic": xnn(is_per_channel=True, is_dynamic=True),
        "x86": x86.X86InductorQuantizer().set_global(config),
    }.items():
        save(folder, name, pt2e(quantizer), torch.randn(20, 1, 8, 8))
    group = PerGroup(32)
    for name, settings in {
        "int8": q.Int8WeightOnlyConfig(),
        "int3": q.IntxWeightOnlyConfig(weight_dtype=torch.int3, granularity=PerAxis(0)),
        "int4-groups": q.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=group),
        "int8-dynamic": q.Int8DynamicActivationInt8WeightConfig(),
        "intx-dynamic": q.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=group
        ),
    }.items():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5)).eval()
        q.quantize_(net, settings)
        program = torch.export.export(net, (torch.randn(1, 64),)).run_decompositions({})
        save(folder, name, program, torch.randn(20, 64))


# --- Brevitas -----------------------------------------------------------------------------------


def brevitas(folder: Path) -> None:
    """Networks of several bit widths, each as QCDQ and as QONNX."""
    import brevitas.nn as qnn
    from brevitas.export import export_onnx_qcdq, export_qonnx

    for bits in (2, 3, 4, 6, 8):
        torch.manual_seed(bits)
        net = nn.Sequential(
            qnn.QuantIdentity(bit_width=8, return_quant_tensor=True),
            qnn.QuantConv2d(1, 4, 3, weight_bit_width=bits, bias=True),
            qnn.QuantReLU(bit_width=bits, return_quant_tensor=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            qnn.QuantLinear(36, 5, bias=True, weight_bit_width=bits),
            qnn.QuantIdentity(bit_width=8),
        )
        for _ in range(3):
            net(torch.randn(8, 1, 8, 8))
        net.eval()
        x = torch.randn(1, 1, 8, 8)
        export_onnx_qcdq(net, args=x, export_path=str(folder / f"qcdq-{bits}.onnx"))
        export_qonnx(net, args=x, export_path=str(folder / f"qonnx-{bits}.onnx"))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    {"torchao": torchao, "brevitas": brevitas}[sys.argv[1]](Path(sys.argv[2]))
