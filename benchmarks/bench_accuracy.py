"""Accuracy of BFP against float32 over several seeds: same data, order, initial values, schedule.

Runs `samebits train` once per seed and numerics, with any further options given, and writes the
mean test accuracies and their difference.

    python benchmarks/bench_accuracy.py --seeds 5 --out runs/digits.json -- \
        --data digits --arch cnn --epochs 10
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine


def run(options: list[str], numerics: str, seed: int, folder: Path) -> dict[str, Any]:
    """One training run; its JSON result."""
    command = [sys.executable, "-m", "samebits", "train", *options]
    command += ["--numerics", numerics, "--seed", str(seed), "--json"]
    command += ["--out", str(folder / f"{numerics}-{seed}")]
    print(shlex.join(command[1:]), file=sys.stderr, flush=True)
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


def main() -> None:
    """Run, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("options", nargs="+", help="options of samebits train, after --")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as work:
        for seed in range(given.seeds):
            for numerics in ("bfp", "float32"):
                result = run(given.options, numerics, seed, Path(work))
                rows.append({"numerics": numerics, "seed": seed, **result})
                print(
                    f"{numerics} seed {seed}: {100 * result['accuracy']:.2f} %",
                    file=sys.stderr,
                    flush=True,
                )
    means = {
        numerics: statistics.mean(100 * r["accuracy"] for r in rows if r["numerics"] == numerics)
        for numerics in ("bfp", "float32")
    }
    report = {
        "options": given.options,
        "machine": machine.facts(),
        "mean_accuracy": means,
        "difference": means["bfp"] - means["float32"],
        "runs": rows,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(report, indent=1))
    print(
        f"mean of {given.seeds} seeds: bfp {means['bfp']:.2f} %, float32 {means['float32']:.2f} %, "
        f"difference {report['difference']:+.2f}"
    )


if __name__ == "__main__":
    main()
