"""Trains small nets on however many workers there are. A process of its own, for torchrun.

usage: workers_run.py OUT [RUN ...]   (all runs without names)
"""

import sys
from pathlib import Path

import torch
from torch import nn

from samebits.data import Dataset
from samebits.numerics import philox
from samebits.recompute.plan.cost import find_device
from samebits.recompute.training import Planner
from samebits.train.run.config import TrainConfig
from samebits.train.run.distributed import join
from samebits.train.run.loop import train

RUNS = {
    "sgd": {"augment": "flip,crop:1,zoom:80"},
    "two-shards": {"shards": 4, "momentum": 0.0, "lr": 0.02},
    "adam": {"optimizer": "adam", "lr": 0.003, "weight_decay": 0.01},
    "decay": {"nesterov": True, "weight_decay": 0.001, "shards": 8},
    "short": {"gradient_bits": 16},
    "clipped": {"clip_norm": 0.5, "clip_value": 0.05, "ema": 0.9},
    "rows": {"exponents": "row-shift"},
    "float32": {"numerics": "float32", "epochs": 5},
    "planned": {"augment": "flip,crop:1,zoom:80"},
    "planned float32": {"numerics": "float32", "epochs": 5},
}


def data():
    """64 training and 40 test images [2, 6, 6] of 4 classes."""
    words = philox.words(104 * 72, (7, 7)) % 160
    labels = torch.arange(104) % 4
    images = (words.view(104, 2, 6, 6) + 30 * labels.view(-1, 1, 1, 1)).to(torch.uint8)
    names = ("a", "b", "c", "d")
    return Dataset(images[:64], labels[:64], images[64:], labels[64:], names, "made")


class StochasticDepth(nn.Module):
    """As torchvision names it, whose twin is made by this name; in float32 it does nothing here."""

    __module__ = "torchvision.ops.stochastic_depth"
    p, mode = 0.3, "row"

    def forward(self, x):
        return x


class Net(nn.Module):
    """Batch-norm, dropout, a residual sum, and one convolution used twice."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.relu = nn.ReLU()
        self.twice = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop, self.depth = nn.Dropout(0.2), StochasticDepth()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.out = nn.Linear(8, 4)

    def forward(self, x):
        x = self.relu(self.stem(x))
        x = self.depth(self.norm(self.twice(x))) + x
        x = self.norm(self.twice(x)) + x
        return self.out(self.flatten(self.pool(self.drop(x))))


def main(out, names):
    with join(120) as workers:
        for name in names or RUNS:
            changes = {"epochs": 3, "batch": 16, "shards": 4, "seed": 5, **RUNS[name]}
            config = TrainConfig(data="made", arch="net", **changes)
            planner = None
            if name.startswith("planned"):
                budget = "90%" if config.numerics == "float32" else "99.9%"
                planner = Planner(config, find_device("server-gpu"), budget, workers=workers.size)
            torch.manual_seed(1)  # of dropout in float32
            train(config, data(), out / name, model=Net(), workers=workers, planner=planner)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
