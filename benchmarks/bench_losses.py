"""Losses of one's own: a VAE, a DQN, a triplet network and a policy in BFP beside float32.

    python benchmarks/bench_losses.py --out runs/bench_losses.json
    python benchmarks/bench_losses.py --tasks DQN --seeds 5

Every seed is trained in both numerics in turns, on one thread, so that their times are taken under
the same load. Scores are means with their standard error over the seeds; the means agree where
they lie within two standard errors of their difference.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from loss_tasks import NUMERICS, SCORES, TASKS
from machine import write_record


def measured(task: str, seeds: int) -> dict[str, Any]:
    """Scores and seconds of a task in both numerics, seed by seed in turns."""
    scores: dict[str, list[float]] = {name: [] for name in NUMERICS}
    seconds: dict[str, list[float]] = {name: [] for name in NUMERICS}
    for seed in range(seeds):
        for name in NUMERICS:
            started = time.perf_counter()
            scores[name].append(TASKS[task](seed, name))
            seconds[name].append(time.perf_counter() - started)
    means = {name: statistics.fmean(scores[name]) for name in NUMERICS}
    errors = {name: statistics.stdev(scores[name]) / math.sqrt(seeds) for name in NUMERICS}
    ratios = [b / a for a, b in zip(seconds["float32"], seconds["bfp"], strict=True)]
    return {
        "task": task,
        "score": SCORES[task],
        "scores": scores,
        "seconds": seconds,
        "mean": means,
        "error": errors,
        "agree": abs(means["bfp"] - means["float32"]) <= 2 * math.hypot(*errors.values()),
        "ratio": statistics.median(ratios),
    }


def main() -> None:
    """Print a line for each task, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.seeds < 2:
        parser.error(f"expected --seeds of at least 2, found {arguments.seeds}")
    torch.set_num_threads(1)
    rows = []
    for task in arguments.tasks:
        found = measured(task, arguments.seeds)
        rows.append(found)
        both = ", ".join(
            f"{name} {found['mean'][name]:.3f} +- {found['error'][name]:.3f}" for name in NUMERICS
        )
        agree = "within" if found["agree"] else "not within"
        print(
            f"{task} ({found['score']}): {both}: {agree} two standard errors; "
            f"{found['ratio']:.2f} times the time",
            flush=True,
        )
    if arguments.out:
        write_record(arguments.out, tasks=rows)


if __name__ == "__main__":
    main()
