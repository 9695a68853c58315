"""Losses of torchvision's classifiers after a few steps in BFP beside float32.

Sixteen digits, resized to 64 pixels or what a network needs, in the same batches for all; random
weights of one seed. Optimizer and learning rate are the first of WAYS, the smallest rates first,
with which the float32 loss falls by 30 %. Dropout and stochastic depth are off, since torch and
samebits draw other numbers. A loss is that of the trained images, in training mode, before the
first step and after the last.

Beside BFP stands float32 from weights that were rounded once to 8 bits before the first step: how
far a loss moves by a change that no arithmetic makes, which is what a ratio can be compared with.

    make .venv/.stamp-torchvision
    python benchmarks/bench_torchvision.py --out runs/torchvision.json
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

import machine
import samebits.train as bfp
from samebits.data import load

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from torchvision_models import NETS, models

Way = tuple[str, float]
WAYS: tuple[Way, ...] = (
    *(("SGD", rate) for rate in (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)),
    *(("Adam", rate) for rate in (0.0001, 0.0002, 0.0005, 0.001)),
)
SIDE, FALL, MOMENTUM, CLASSES = 64, 0.3, 0.9, 10


@dataclass(frozen=True)
class Losses:
    """Before the first step and after the last, and the median seconds of a step."""

    first: float
    last: float
    step: float


@dataclass(frozen=True)
class Line:
    """One network. moved, ratio: last losses of `rounded` and of BFP to that of float32."""

    net: str
    side: int
    optimizer: str
    rate: float
    float32: Losses
    rounded: Losses
    bfp: Losses
    moved: float
    ratio: float


def network(name: str) -> nn.Module:
    """A network of random weights for ten classes, with nothing dropped."""
    _, options = NETS[name]
    torch.manual_seed(1)
    given = options if name == "VisionTransformer" else {"weights": None, **options}
    net: nn.Module = getattr(models(), name)(num_classes=CLASSES, **given)
    for module in net.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0  # type: ignore[assignment]
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return net.train()


def side_of(name: str) -> int:
    """The side of images: 64 pixels, or what a network asks for."""
    return 32 if name == "VisionTransformer" else max(SIDE, NETS[name][0])


def samples(side: int, count: int) -> tuple[Tensor, Tensor]:
    """Digits [count, 3, side, side] and their labels."""
    data = load("digits")
    images = data.batch("train", torch.arange(count))
    images = nn.functional.interpolate(images, (side, side), mode="bilinear")
    return images.expand(-1, 3, -1, -1).contiguous(), data.train_labels[:count]


def run(net: nn.Module, numerics: str, way: Way, given: argparse.Namespace) -> Losses:
    """Train a copy of the network."""
    images, labels = samples(given.side, given.images)
    model, criterion = copy.deepcopy(net), nn.functional.cross_entropy
    kind, rate = way
    settings = {"lr": rate} | ({"momentum": MOMENTUM} if kind == "SGD" else {})
    if numerics == "bfp":
        model, criterion = bfp.convert(model), bfp.cross_entropy  # type: ignore[assignment]
    optimizers = {"bfp": bfp, "float32": torch.optim}[numerics]
    optimizer: Any = getattr(optimizers, kind)(model.parameters(), **settings)

    def loss(index: slice, step: int) -> Tensor:
        x = images[index]
        if numerics == "bfp":
            bfp.set_step(model, 1, step, 0)
            x = bfp.model_input(model, x)
        found: Tensor = criterion(model(x), labels[index])
        return found

    def whole(step: int) -> float:
        kept = {k: v.clone() for k, v in model.named_buffers()}
        with torch.no_grad():
            parts = [float(loss(index, step)) for index in batches]
            for name, buffer in model.named_buffers():
                buffer.copy_(kept[name])
        return sum(parts) / len(parts)

    batches = [slice(i, i + given.batch) for i in range(0, given.images, given.batch)]
    first, times = whole(0), []
    for step in track(range(given.steps), description=f"{given.net}, {numerics}, {way}"):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss(batches[step % len(batches)], step).backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    return Losses(first, whole(given.steps), sorted(times)[len(times) // 2])


def rounded(net: nn.Module) -> nn.Module:
    """A copy whose weights are of 8 bits: each a whole number of 2**-7 of the largest's power."""
    found = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in found.parameters():
            largest = float(parameter.abs().max())
            if largest > 0:
                unit = 2.0 ** (math.frexp(largest)[1] - 7)
                parameter.copy_((parameter / unit).round() * unit)
    return found


def line(name: str, given: argparse.Namespace) -> Line:
    """One network in both numerics. Raises RuntimeError where no way suits float32."""
    given.net, given.side, net = name, side_of(name), network(name)
    for way in WAYS:
        real = run(net, "float32", way, given)
        if real.last <= (1 - FALL) * real.first:
            near, ours = run(rounded(net), "float32", way, given), run(net, "bfp", way, given)
            moved, ratio = near.last / real.last, ours.last / real.last
            return Line(name, given.side, *way, real, near, ours, moved, ratio)
    raise RuntimeError(f"{name}: none of {WAYS} lowers the loss of float32 by {FALL:.0%}")


def main() -> None:
    """Run every network, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", nargs="*", default=list(NETS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/torchvision.json"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found: list[Line] = []
    print("| network | side | optimizer | before | float32 | rounded | BFP | ratios | step | BFP |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in given.nets:
        own = line(name, given)
        found.append(own)
        f, b = own.float32, own.bfp
        print(
            f"| {name} | {own.side} | {own.optimizer} {own.rate} | {f.first:.3f} | {f.last:.4f} | "
            f"{own.rounded.last:.4f} | {b.last:.4f} | {own.moved:.3f}, {own.ratio:.3f} | "
            f"{f.step:.2f} s | {b.step:.2f} s |",
            flush=True,
        )
        machine.write_record(given.out, lines=[asdict(each) for each in found])


if __name__ == "__main__":
    main()
