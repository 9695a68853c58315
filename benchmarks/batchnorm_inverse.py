"""Could a step keep a batch-norm's output and invert it, instead of keeping its input?

For BFP networks after an epoch on the bundled digits: in how many channels of how many batch-norms
no two codes of the input share a code of the output (only there is the inverse exact), and what
computing the output again takes beside a table look-up of the input.

    python benchmarks/batchnorm_inverse.py --out runs/batchnorm_inverse.json
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import machine
from samebits import kernels
from samebits.data import load
from samebits.kernels import Kernels
from samebits.kernels.protocol import State
from samebits.train.layers import BatchNorm
from samebits.train.operations.narrow import as_bfp8
from samebits.train.run.config import TrainConfig
from samebits.train.run.loop import train
from samebits.train.run.restore import open_checkpoint, restore_engine

ARCHS = ("cnn", "resnet8", "mobilenetv2")
ROUNDS = 20


def exact_channels(x: Tensor, y: Tensor) -> int:
    """In how many channels of codes x, y [n, c, ...] x follows from y."""
    found = 0
    for a, b in zip(*(codes.movedim(1, 0).flatten(1).int() for codes in (x, y)), strict=True):
        pairs = torch.unique((a << 8) + b)
        found += len(pairs) == len(torch.unique(b))
    return found


def shortest(action: Callable[[], Any]) -> float:
    """Seconds of the shortest of some calls."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - start)
    return best


def look_up(table: Tensor, index: Tensor, codes: Tensor) -> Tensor:
    """Entries of the table at codes, each beyond its channel's index."""
    return table[codes.long() + index]


def _normalized(k: Kernels, z: Tensor, one: State) -> None:
    """A batch norm computed again."""
    found = k.batch_norm(z, 0, one, one, None, 1e-5)
    assert found is not None
    k.affine(z, found[0], 8)


def measure(arch: str, data: str) -> dict[str, Any]:
    """One network: channels, and seconds of all its batch-norms computed again or looked up."""
    config = TrainConfig(data=data, arch=arch, epochs=1, batch=64, lr=0.05)
    images = load(data)
    with tempfile.TemporaryDirectory() as folder:
        train(config, images, Path(folder))
        path, checkpoint = open_checkpoint(Path(folder), print)
        engine = restore_engine(path, checkpoint, images)
    pairs: list[tuple[Tensor, Tensor]] = []
    for module in engine.model.modules():
        if isinstance(module, BatchNorm):
            module.register_forward_hook(
                lambda _, given, made: pairs.append(
                    (as_bfp8(given[0], "").codes, as_bfp8(made, "").codes)
                )
            )
    engine.model.train()
    batch = images.train_images[:32].float() / images.peak, images.train_labels[:32]
    engine.loss(batch)
    again = looked_up = 0.0
    for z, y in pairs:
        k, channels = kernels.of(z), z.shape[1]
        one = (torch.full((channels,), 64, dtype=torch.int8), torch.zeros(channels).short(), -21)
        again += shortest(partial(_normalized, k, z, one))
        table = torch.zeros((channels, 256), dtype=torch.int8)
        rows = (torch.arange(channels) * 256)[None, :, None, None] + 128
        index = rows.view(1, -1, *[1] * (y.dim() - 2))
        looked_up += shortest(partial(look_up, table.view(-1), index, y))
    exact = [(exact_channels(z, y), z.shape[1]) for z, y in pairs]
    return {
        "arch": arch,
        "channels": sum(count for _, count in exact),
        "exact_channels": sum(found for found, _ in exact),
        "batch_norms": len(exact),
        "exact_batch_norms": sum(found == count for found, count in exact),
        "again_seconds": again,
        "look_up_seconds": looked_up,
    }


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(arch, given.data) for arch in ARCHS]
    print("| network | exact channels | exact batch-norms | again, us | look-up, us |")
    print("|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['arch']} | {row['exact_channels']} of {row['channels']} | "
            f"{row['exact_batch_norms']} of {row['batch_norms']} | "
            f"{1e6 * row['again_seconds']:.0f} | {1e6 * row['look_up_seconds']:.0f} |"
        )
    if given.out:
        machine.write_record(given.out, rows=rows)


if __name__ == "__main__":
    main()
