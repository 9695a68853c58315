"""Trains a small net for some steps and prints the SHA-256 of its parameters. A process of its own,
because thread counts and instruction-set caps are read when torch starts.

usage: same_bits_run.py STEPS THREADS REALISATION EXPONENTS
"""

import sys

import torch
from torch import nn

from samebits import kernels
from samebits.numerics import philox
from samebits.train import SGD, convert, cross_entropy, set_step
from samebits.train.architectures import initialise
from samebits.train.convert import model_input
from samebits.train.run.checkpoint import parameter_sha256


class Block(nn.Module):
    """Residual block with a depthwise branch."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.GELU(),
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + x


def main(steps: int, threads: int, realisation: str, exponents: str) -> None:
    torch.set_num_threads(threads)
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        Block(24),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(24 * 9, 64),
        nn.Tanh(),
        nn.Linear(64, 10),
    )
    initialise(model, 7)
    twin = convert(model, exponents)
    optimizer = SGD(twin.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    words = philox.words(64 * 3 * 12 * 12, (1, 2))
    images = (words.double() * 2.0**-31 - 1.0).float().view(64, 3, 12, 12)
    labels = philox.words(64, (3, 4)) % 10
    with kernels.use(realisation):
        assert kernels.realisation() == realisation, f"{realisation} kernels are not available"
        for step in range(steps):
            start = step % 4 * 16
            for shard in range(2):
                at = slice(start + 8 * shard, start + 8 * shard + 8)
                set_step(twin, 5, step, shard)
                loss = cross_entropy(twin(model_input(twin, images[at])), labels[at])
                (loss / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
    print(parameter_sha256(twin.state_dict()))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
