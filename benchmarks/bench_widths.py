"""Weight gradients from 16 bits instead of 32 (`--widths 8,16,16`): digits, seed by seed.

    python benchmarks/bench_widths.py --out runs/widths.json

Every run is `samebits train` with its options at their defaults but for the widths, evaluated in
the deployed arithmetic; both are of one seed, so that their difference is that of the widths.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

from machine import write_record
from samebits.data.digits import load_digits
from samebits.train.run.config import TrainConfig
from samebits.train.run.loop import Silent, train

WIDTHS = ("8,16,32", "8,16,16")


def measured(arch: str, seeds: int, epochs: int) -> dict[str, Any]:
    """Test accuracies in points, and of the differences the mean and its standard error."""
    points: dict[str, list[float]] = {name: [] for name in WIDTHS}
    for seed in range(seeds):
        for widths in WIDTHS:
            config = TrainConfig(data="digits", arch=arch, epochs=epochs, seed=seed, widths=widths)
            with tempfile.TemporaryDirectory() as folder:
                found = train(config, load_digits(), Path(folder, "run"), reporter=Silent())
            assert found.accuracy is not None
            points[widths].append(100 * found.accuracy)
            print(arch, seed, widths, points[widths][-1], flush=True)
    differences = [b - a for a, b in zip(*points.values(), strict=True)]
    return {
        "arch": arch,
        "epochs": epochs,
        "points": points,
        "mean": statistics.fmean(differences),
        "error": statistics.stdev(differences) / math.sqrt(seeds),
    }


def main() -> None:
    """Print a line for each network, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", nargs="+", default=["mlp", "cnn"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for arch in arguments.nets:
        rows.append(measured(arch, arguments.seeds, arguments.epochs))
        print(rows[-1], flush=True)
    if arguments.out:
        write_record(arguments.out, networks=rows)


if __name__ == "__main__":
    main()
