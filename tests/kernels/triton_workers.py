"""Trains a small net on the kernels in Triton, by the interpreter. A process of torchrun's, or one.

usage: triton_workers.py OUT KERNELS
"""

import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import interpreted
from samebits import kernels
from samebits.data import Dataset
from samebits.numerics import philox
from samebits.train.run.config import TrainConfig
from samebits.train.run.distributed import join
from samebits.train.run.loop import Silent, train


def data() -> Dataset:
    """8 training and 4 test images [1, 4, 4] of 2 classes."""
    words = philox.words(12 * 16, (7, 7)) % 200
    labels = torch.arange(12) % 2
    images = (words.view(12, 1, 4, 4) + 30 * labels.view(-1, 1, 1, 1)).to(torch.uint8)
    return Dataset(images[:8], labels[:8], images[8:], labels[8:], ("a", "b"), "made")


def net() -> nn.Module:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.25)),
        nn.Linear(6, 2),
    )


def main(out: Path, name: str) -> None:
    torch.set_num_threads(1)
    if name == "triton":
        interpreted.realisation()
    options = {"epochs": 2, "batch": 8, "shards": 4, "clip_norm": 0.5}
    config = TrainConfig(data="made", arch="net", seed=5, **options)
    with join() as workers, kernels.use(name):
        train(config, data(), out, model=net(), reporter=Silent(), workers=workers)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
