"""The kernels in Triton as an H100's machine code, compiled on a machine without a GPU.

Steps of networks on the CPU, in which every launch is noted and none is made: no launch depends on
a number that was computed. Each kernel is then compiled for sm_90 with the types and constants of
its launches. Of each: registers of a thread, spilled bytes, instructions, those of the matrix units
(wgmma: those of Hopper at full rate; mma: the older ones), and fused multiply-adds of binary64,
of which there may be none. No time is measured here.

    python benchmarks/gpu_kernels.py --out runs/gpu_kernels.json
"""

from __future__ import annotations

import argparse
import copy
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor, nn
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

import machine
from bench_gpu import resnet18, vision
from samebits import kernels
from samebits.kernels.triton import launch
from samebits.kernels.triton.realisation import Triton
from samebits.train import SGD, Adam, convert, model_input, recording
from samebits.train.clip import clip_grad_value_, limit_grad_norm_
from samebits.train.late import LateStep
from samebits.train.whole import Taken

TARGET = GPUTarget("cuda", 90, 32)
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
KINDS = {
    torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.uint8: "u8", torch.float32: "fp32", torch.float64: "fp64", torch.bool: "i1",
}  # fmt: skip
Launch = tuple[JITFunction[Any], tuple[tuple[str, str], ...], tuple[tuple[str, Any], ...], Any]


def noted(act: Callable[[], None]) -> list[Launch]:
    """The launches of a computation on the CPU, each kind once; none is made."""
    found: dict[Any, Launch] = {}

    def run(self: JITFunction[Any], *given: Any, grid: Any, warmup: bool, **named: Any) -> None:
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        values = dict(zip(self.arg_names, given, strict=False)) | named
        constants = {p.name: values[p.name] for p in self.params if p.is_constexpr}
        kinds = {n: "constexpr" if n in constants else kind_of(values[n]) for n in self.arg_names}
        made = (self, (*kinds.items(),), (*constants.items(),), (*options.items(),))
        found[self.__name__, *made[1:]] = made

    launch.INTERPRETED = True  # tensors lie on the CPU
    serving = mock.patch.object(kernels, "_triton", return_value=Triton())
    with mock.patch.object(JITFunction, "run", run), serving, kernels.use("triton"):
        act()
    return [*found.values()]


def kind_of(v: Any) -> str:
    """The type of an argument, as Triton chooses it."""
    if isinstance(v, Tensor):
        return f"*{KINDS[v.dtype]}"
    return "i32" if -(1 << 31) <= v < 1 << 31 else "i64"


def compiled(call: Launch) -> dict[str, Any]:
    """What ptxas and the code say of one kernel."""
    function, kinds, constants, options = call
    names = [name for name, _ in kinds]
    aligned = {(i,): [["tt.divisibility", 16]] for i, (_, k) in enumerate(kinds) if k[0] == "*"}
    source = ASTSource(
        function,
        dict(kinds),
        constexprs={(names.index(name),): value for name, value in constants},
        attrs=aligned,
    )
    made = triton.compile(source, target=TARGET, options=dict(options))
    text = made.asm["ptx"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(text, encoding="utf-8")
        command = [
            get_ptxas(90).path,
            "-v",
            "--gpu-name=sm_90a",
            path,
            "-o",
            path.with_suffix(".o"),
        ]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        command = [Path(get_ptxas(90).path).with_name("nvdisasm"), "-c", path.with_suffix(".o")]
        code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {
        "kernel": function.__name__,
        "constants": dict(constants),
        "wgmma": len(re.findall(r"wgmma\.mma_async\S*s32\.s8\.s8", text)),
        "mma": len(re.findall(r"mma\.sync\S*s8", text)),
        "fused": len(re.findall(r"fma\.rn\.f64", text)),
        "registers": max(map(int, re.findall(r"Used (\d+) registers", said))),
        "instructions": len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+\S", code, re.MULTILINE)),
        "spilled": sum(map(int, re.findall(r"(\d+) bytes spill stores", said))),
        "shared": made.metadata.shared,
    }


def step_of(
    model: nn.Module,
    images: Tensor,
    target: Tensor,
    adam: bool = False,
    exponents: str = "tensor",
) -> Callable[[], None]:
    """A step of training, whose numbers nobody reads. adam: that, and clipped gradients."""
    twin = convert(model, exponents, widths=(8, 16, 16) if adam else (8, 16, 32))
    twin.train()
    graph, _ = recording.traced(twin, model_input(twin, images))

    def act() -> None:
        parameters = [copy.deepcopy(p) for p in graph.parameters]  # numbers where Triton has them
        own, taken = replace(graph, parameters=(*parameters,)), Taken.by(twin, 0.1 if adam else 0.0)
        if adam:
            rule = Adam(parameters, lr=0.01, weight_decay=0.1, decoupled=True)

            def clip() -> None:
                clip_grad_value_(parameters, 0.1)
                limit_grad_norm_(parameters, 0.1)

            LateStep(own, rule, taken, clip=clip)(images, target)
            return
        optimizer = SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4)
        LateStep(own, optimizer, taken)(images, target)

    return act


def main() -> None:
    """Compile, print, and write a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_kernels.json"))
    options = parser.parse_args()
    images = torch.rand((4, 3, 224, 224), generator=torch.Generator().manual_seed(1))
    launches: dict[str, Launch] = {}
    small = nn.Sequential(
        *(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Dropout(0.25)),
        *(nn.Linear(192, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)),
    )
    for model, adam, exponents in (
        *((resnet18(), False, "tensor"), (vision(1), False, "tensor"), (small, True, "tensor")),
        *((small, False, "row"), (small, True, "row")),
    ):
        step = step_of(model, images, torch.arange(4), adam, exponents)
        launches |= {str(call): call for call in noted(step)}
    rows = []
    for call in launches.values():
        rows.append(compiled(call))
        print(rows[-1], flush=True)
    machine.write_record(options.out, triton=triton.__version__, kernels=rows)


if __name__ == "__main__":
    main()
