"""Runs of a small net whose options cover every pair, and the ways to compute them.

A process of its own for several workers, by torchrun: training_options.py OUT ROW [ROW ...], with
the numbers of rows that have that many workers.
"""

from __future__ import annotations

import itertools
import random
import shutil
import sys
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samebits import kernels
from samebits.data import Dataset
from samebits.numerics import philox
from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.plan.cost import find_device
from samebits.recompute.plan.plan import Plan
from samebits.recompute.training import Planner
from samebits.train.run.config import TrainConfig
from samebits.train.run.distributed import ALONE, Workers, join
from samebits.train.run.loop import Silent, train
from samebits.train.run.record import LOCK

Row = dict[str, Any]
LEVELS: dict[str, list[Row]] = {  # of every factor: what it adds to a run's options, or to its way
    "optimizer": [
        {"optimizer": "sgd", "momentum": 0.0, "lr": 0.2},
        {"optimizer": "sgd", "momentum": 0.9, "lr": 0.1},
        {"optimizer": "sgd", "momentum": 0.8, "nesterov": True, "lr": 0.1},
        {"optimizer": "adam", "lr": 0.01},
        {"optimizer": "adamw", "lr": 0.02},
    ],
    "exponents": [{"exponents": name} for name in ("tensor", "row", "row-shift")],
    "widths": [{"widths": text} for text in ("8,16,32", "6,12,16", "4,9,32")],
    "clip": [{}, {"clip_norm": 0.3}, {"clip_value": 0.02}, {"clip_norm": 0.2, "clip_value": 0.05}],
    "schedule": [
        {"schedule": "constant"},
        {"schedule": "step"},
        {"schedule": "linear", "warmup": 2},
        {"schedule": "cosine", "warmup": 1},
    ],
    "augment": [{"augment": "none"}, {"augment": "flip,crop:1,zoom:75"}],
    "shards": [{"shards": 4}, {"shards": 8}],
    "rounding": [{"rounding": "stochastic"}, {"rounding": "nearest"}],
    "weight_decay": [{"weight_decay": 0.0}, {"weight_decay": 0.02}],
    "label_smoothing": [{"label_smoothing": 0.0}, {"label_smoothing": 0.1}],
    "ema": [{"ema": None}, {"ema": 0.8}],
    "gradient_bits": [{"gradient_bits": 32}, {"gradient_bits": 16}],
    # Ways: none of them may change a bit.
    "workers": [{"workers": 1}, {"workers": 2}, {"workers": 4}],
    "kernels": [{"kernels": "native"}, {"kernels": "eager"}],
    "threads": [{"threads": 1}, {"threads": 2}],
    "plan": [{"plan": None}, {"plan": "sequential"}, {"plan": "paired"}],
    "cut": [{"cut": None}, {"cut": 1}, {"cut": 4}],  # goes on from the checkpoint of that step
}
WAYS = ("workers", "kernels", "threads", "plan", "cut")
Pair = tuple[tuple[str, int], tuple[str, int]]


def every_pair() -> set[Pair]:
    """All pairs of levels of two factors."""
    places = [[(name, i) for i in range(len(levels))] for name, levels in LEVELS.items()]
    return {pair for a, b in itertools.combinations(places, 2) for pair in itertools.product(a, b)}


def pairs_of(chosen: dict[str, int]) -> set[Pair]:
    """The pairs of one row, in the order of the factors."""
    return set(itertools.combinations(chosen.items(), 2))


def covering() -> list[dict[str, int]]:
    """Levels by factor whose rows hold every pair: row after row the best of some random ones.

    Cohen, Dalal, Fredman and Patton, "The AETG system", 1997.
    """
    rng, left, rows = random.Random(7), every_pair(), []
    while left:
        best: dict[str, int] = {}
        for _ in range(6):
            (a, i), (b, j) = rng.choice(sorted(left))
            chosen = {a: i, b: j}
            for name in rng.sample(list(LEVELS), len(LEVELS)):
                if name not in chosen:
                    gains = [
                        sum(
                            tuple(sorted(((name, level), other), key=_place)) in left
                            for other in chosen.items()
                        )
                        for level in range(len(LEVELS[name]))
                    ]
                    top = [level for level, gain in enumerate(gains) if gain == max(gains)]
                    chosen[name] = rng.choice(top)
            chosen = {name: chosen[name] for name in LEVELS}
            if not best or len(pairs_of(chosen) & left) > len(pairs_of(best) & left):
                best = chosen
        left -= pairs_of(best)
        rows.append(best)
    return rows


def _place(at: tuple[str, int]) -> int:
    return list(LEVELS).index(at[0])


CHOSEN = covering()
ROWS: list[Row] = [
    {key: value for name, i in chosen.items() for key, value in LEVELS[name][i].items()}
    for chosen in CHOSEN
]


def config_of(row: Row) -> TrainConfig:
    """The options of a row, without its way."""
    options = {name: value for name, value in row.items() if name not in WAYS}
    return TrainConfig(data="made", arch="net", epochs=2, batch=8, seed=5, **options)


def data() -> Dataset:
    """24 training and 8 test images [1, 4, 4] of 3 classes."""
    words = philox.words(32 * 16, (3, 3)) % 160
    labels = torch.arange(32) % 3
    images = (words.view(32, 1, 4, 4) + 30 * labels.view(-1, 1, 1, 1)).to(torch.uint8)
    return Dataset(images[:24], labels[:24], images[24:], labels[24:], ("a", "b", "c"), "made")


def net() -> nn.Module:
    """The float net whose layers `reference_run.NODES` names."""
    layers = {
        "conv": nn.Conv2d(1, 3, 3, padding=1),
        "norm": nn.BatchNorm2d(3),
        "relu": nn.ReLU(),
        "deep": nn.Conv2d(3, 4, 2),
        "drop": nn.Dropout(0.25),
        "act": nn.ReLU(),
        "pool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "out": nn.Linear(4, 3),
    }
    return nn.Sequential(OrderedDict(layers))


class Copy(Silent):
    """Copies a run as it stands after a step, for what a kill there would have left."""

    def __init__(self, step: int, source: Path, target: Path) -> None:
        self.step, self.source, self.target = step, source, target

    def stepped(self, step: int, loss: float) -> None:
        if step == self.step + 1:  # the checkpoint of a step comes after this call
            shutil.copytree(self.source, self.target, ignore=shutil.ignore_patterns(LOCK))


class Dropping(Planner):
    """A planner whose plans keep nothing that they may compute again."""

    def plan(self, network: PassNetwork) -> Plan:
        """The plan of the options, of which only what stays in any case is stored."""
        found, may = super().plan(network), set(network.choices())
        layers = (
            replace(layer, stored=False) if i in may else layer
            for i, layer in enumerate(found.layers)
        )
        return replace(found, layers=tuple(layers))


def run(row: Row, out: Path, workers: Workers = ALONE) -> None:
    """Train in a row's way; `out` then holds the run."""
    config, before = config_of(row), torch.get_num_threads()
    torch.set_num_threads(row["threads"])
    try:
        with kernels.use(row["kernels"]):
            options: dict[str, Any] = {"checkpoint_every": 1, "workers": workers}
            if row["plan"] is not None:
                options["planner"] = Dropping(
                    config,
                    find_device("server-gpu"),
                    workers=row["workers"],
                    backward=row["plan"],
                )
            if row["cut"] is not None:
                whole = out.with_name(f"{out.name}-whole")
                reporter = Copy(row["cut"], whole, out)
                train(config, data(), whole, model=net(), reporter=reporter, **options)
                workers.total(0)  # nobody reads the copy before it is there
            train(config, data(), out, model=net(), resume=row["cut"] is not None, **options)
    finally:
        torch.set_num_threads(before)


def main(out: Path, rows: list[int]) -> None:
    """All rows on the workers of this torchrun."""
    with join(120) as workers:
        for row in rows:
            run(ROWS[row], out / str(row), workers)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(text) for text in sys.argv[2:]])
