"""Losses of torchvision's classifiers after a few steps in BFP beside float32.

Digits, resized to 64 pixels or what a network needs; random weights of one seed; Adam, in the same
batches for all. Every step sees other images, as training does; of a network that does not learn
from that within these steps, a few batches again and again: the first of IMAGES that suits. The
rate is one of RATES with which the float32 loss falls by 30 %, and does not with the next smaller
one. Dropout and stochastic depth are off, since torch and samebits draw other numbers. A loss is
that of the first images trained on, in training mode, before the first step and after the last.

Beside BFP stands float32 from weights that were rounded once to 8 bits before the first step: how
far a loss moves by a change that no arithmetic makes, which is what a ratio can be compared with.
The cosines between the gradients of the first step say how much of a step is rounding already.

    make .venv/.stamp-torchvision
    python benchmarks/bench_torchvision.py --out runs/torchvision.json
    python benchmarks/bench_torchvision.py --images 16 --batch 16 --out runs/one_batch.json
"""

from __future__ import annotations

import argparse
import copy
import functools
import math
import statistics
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
from findings import torchvision
from samebits.data import load

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from figures import table

from torchvision_models import NETS, models

RATES = tuple(float(f"{digits}e-{tens}") for tens in (5, 4, 3) for digits in (1, 1.5, 2, 3, 5, 7))
STRIDE = 3  # of RATES tried first, from the smallest on; then those before the one that suffices
IMAGES = (640, 128, 32)
SIDE, FALL, CLASSES = 64, 0.3, 10


@dataclass(frozen=True)
class Losses:
    """Before the first step and after the last, and the median seconds of a step."""

    first: float
    last: float
    step: float


@dataclass(frozen=True)
class Line:
    """One network, and what `rounded` and BFP are to float32.

    moved, ratio: last losses to that of float32; moved_gradient, gradient: the median over weights
    of the cosine between the gradients of the first step
    """

    net: str
    side: int
    images: int
    rate: float
    float32: Losses
    rounded: Losses
    bfp: Losses
    moved: float
    ratio: float
    moved_gradient: float
    gradient: float


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


@functools.cache
def samples(side: int, count: int) -> tuple[Tensor, Tensor]:
    """Digits [count, 3, side, side] and their labels."""
    data = load("digits")
    images = data.batch("train", torch.arange(count))
    images = nn.functional.interpolate(images, (side, side), mode="bilinear")
    return images.expand(-1, 3, -1, -1).contiguous(), data.train_labels[:count]


def made(net: nn.Module, numerics: str) -> nn.Module:
    """A copy of the network, in BFP its twin."""
    return bfp.convert(net) if numerics == "bfp" else copy.deepcopy(net)


def loss(model: nn.Module, numerics: str, images: Tensor, labels: Tensor, step: int) -> Tensor:
    """The loss of a batch in a step."""
    if numerics == "float32":
        return nn.functional.cross_entropy(model(images), labels)
    bfp.set_step(model, 1, step, 0)
    found: Tensor = bfp.cross_entropy(model(bfp.model_input(model, images)), labels)
    return found


def run(
    net: nn.Module,
    numerics: str,
    count: int,
    rate: float,
    given: argparse.Namespace,
    first: float | None = None,
) -> Losses:
    """Train a copy on the first `count` images; `first`: the loss before it, where it is known."""
    images, labels = samples(given.side, count)
    model = made(net, numerics)
    adam = {"bfp": bfp.Adam, "float32": torch.optim.Adam}[numerics]
    optimizer: Any = adam(model.parameters(), lr=rate)
    batches = list(zip(images.split(given.batch), labels.split(given.batch), strict=True))

    def whole(step: int) -> float:
        kept = {k: v.clone() for k, v in model.named_buffers()}
        with torch.no_grad():
            parts = [float(loss(model, numerics, *b, step)) for b in batches[: given.measured]]
            for name, buffer in model.named_buffers():
                buffer.copy_(kept[name])
        return sum(parts) / len(parts)

    first, times = whole(0) if first is None else first, []
    for step in track(range(given.steps), description=f"{given.net}, {numerics}, {rate}"):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss(model, numerics, *batches[step % len(batches)], step).backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    return Losses(first, whole(given.steps), sorted(times)[len(times) // 2])


def gradients(net: nn.Module, numerics: str, given: argparse.Namespace) -> list[Tensor]:
    """The gradients of weights in the first step, flat."""
    model = made(net, numerics)
    loss(model, numerics, *samples(given.side, given.batch), 0).backward()
    found: list[Any] = [p.grad for p in model.parameters() if p.dim() > 1 and p.grad is not None]
    return [(g.dequantize() if numerics == "bfp" else g).flatten().double() for g in found]


def agreement(one: list[Tensor], other: list[Tensor]) -> float:
    """The median cosine of pairs of vectors, of which the first is not all zeros."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a.any()]
    return statistics.median(float(nn.functional.cosine_similarity(a, b, 0)) for a, b in pairs)


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


def suited(net: nn.Module, count: int, given: argparse.Namespace) -> tuple[float, Losses] | None:
    """The rate that the module's text describes, and float32's losses; None if no rate suffices."""
    tried: dict[float, Losses] = {}

    def suffices(rate: float) -> bool:
        first = next((losses.first for losses in tried.values()), None)
        tried[rate] = real = run(net, "float32", count, rate, given, first)
        return real.last <= (1 - FALL) * real.first

    coarse = next((at for at in range(0, len(RATES), STRIDE) if suffices(RATES[at])), None)
    if coarse is None:
        return None
    before = RATES[max(0, coarse - STRIDE + 1) : coarse]
    rate = next((rate for rate in before if suffices(rate)), RATES[coarse])
    return rate, tried[rate]


def line(name: str, given: argparse.Namespace) -> Line:
    """One network in both numerics. Raises RuntimeError where no rate suits float32."""
    given.net, given.side, net = name, side_of(name), network(name)
    for count in given.images:
        if (found := suited(net, count, given)) is not None:
            rate, real = found
            once = rounded(net)
            near = run(once, "float32", count, rate, given)
            ours = run(net, "bfp", count, rate, given)
            ratios = (near.last / real.last, ours.last / real.last)
            start = gradients(net, "float32", given)
            others = (gradients(once, "float32", given), gradients(net, "bfp", given))
            cosines = (agreement(start, other) for other in others)
            return Line(name, given.side, count, rate, real, near, ours, *ratios, *cosines)
    raise RuntimeError(f"{name}: no rate of {RATES} lowers the loss of float32 by {FALL:.0%}")


def main() -> None:
    """Run every network, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", nargs="*", default=list(NETS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--images", type=int, nargs="+", default=list(IMAGES))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--measured", type=int, default=8, help="batches whose loss is told")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/torchvision.json"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    lines: list[dict[str, Any]] = []
    for name in given.nets:
        lines.append(asdict(line(name, given)))
        machine.write_record(given.out, lines=lines)
    print(table(torchvision({"lines": lines}).tables["networks"]))


if __name__ == "__main__":
    main()
