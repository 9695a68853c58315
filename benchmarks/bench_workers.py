"""Scaling over workers, one thread each, and bytes on the wire: BFP beside float32 PyTorch with
DistributedDataParallel.

A step of a fixed batch, of one shard a worker, on 1 worker and on n (strong scaling): efficiency =
t1 / (n * tn), of the fastest steps; the variants run in turns. Bytes are those each worker sends,
beside a ring all-reduce of an int32 gradient, 2 * (n - 1) / n * 4 bytes a parameter.

    python benchmarks/bench_workers.py --out runs/bench_workers.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import machine
from samebits.numerics import philox
from samebits.train.architectures import build, initialise
from samebits.train.run.config import TrainConfig
from samebits.train.run.distributed import join
from samebits.train.run.loop import make_engine

SHAPE, CLASSES = (3, 32, 32), 10
VARIANTS: dict[str, dict[str, Any]] = {
    "float32": {"numerics": "float32"},
    "bfp": {},
    "bfp, 16-bit gradients": {"gradient_bits": 16},
}


def child(arch: str, batch: int, shards: int, steps: int, variant: str) -> None:
    """One worker: times its steps; the first prints a JSON object."""
    torch.set_num_threads(1)
    config = TrainConfig(data="random", arch=arch, batch=batch, shards=shards, **VARIANTS[variant])
    with join() as workers:
        model = build(arch, SHAPE, CLASSES)
        initialise(model, 0)
        engine = make_engine(config, model, workers)
        words = philox.words(batch * 3 * 32 * 32, (1, 2)).double() * 2.0**-31 - 1.0
        images = workers.share(words.float().view(batch, *SHAPE))
        labels = workers.share(torch.arange(batch) % CLASSES)
        seconds, sent = [], 0
        for step in range(steps + 2):
            workers.total(0)  # start together
            before, began = workers.sent, time.perf_counter()
            engine.step((images, labels), 0.01, step)
            seconds.append(time.perf_counter() - began)
            sent = workers.sent - before
        if workers.first:
            parameters = sum(p.numel() for p in model.parameters())
            record = {"seconds": seconds[2:], "sent": sent, "parameters": parameters}
            print(json.dumps(record))


def run(
    arch: str, batch: int, shards: int, steps: int, variant: str, workers: int
) -> dict[str, Any]:
    """One run in processes of its own."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    command = [sys.executable, *(launcher if workers > 1 else []), __file__, "--child", variant]
    command += ["--archs", arch, "--batch", str(batch), "--steps", str(steps)]
    command += ["--workers", str(shards)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def measure(arch: str, batch: int, steps: int, rounds: int, workers: int) -> list[dict[str, Any]]:
    """A row per variant."""
    best: dict[tuple[str, int], float] = {}
    facts: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for variant in VARIANTS:
            for count in (1, workers):
                record = run(arch, batch, workers, steps, variant, count)
                fastest = min(record["seconds"])
                best[variant, count] = min(fastest, best.get((variant, count), fastest))
                facts[variant] = record
    rows = []
    for variant in VARIANTS:
        one, several = best[variant, 1], best[variant, workers]
        ring = 2 * (workers - 1) / workers * 4 * facts[variant]["parameters"]
        rows.append(
            {
                "arch": arch,
                "variant": variant,
                "workers": workers,
                "milliseconds": [1e3 * one, 1e3 * several],
                "efficiency": one / (workers * several),
                "sent": facts[variant]["sent"] if variant != "float32" else None,
                "ratio": facts[variant]["sent"] / ring if variant != "float32" else None,
            }
        )
    return rows


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--archs", default="resnet8,resnet18")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.child:
        child(given.archs, given.batch, given.workers, given.steps, given.child)
        return
    rows = []
    print("| model | variant | 1 worker, ms | workers, ms | efficiency | sent a step | ratio |")
    print("|---|---|---|---|---|---|---|")
    for arch in given.archs.split(","):
        for row in measure(arch, given.batch, given.steps, given.rounds, given.workers):
            rows.append(row)
            one, several = row["milliseconds"]
            wire = "| |" if row["sent"] is None else f"{row['sent']:,} B | {row['ratio']:.3f} |"
            print(
                f"| {arch} | {row['variant']} | {one:.1f} | {several:.1f} | "
                f"{row['efficiency']:.2f} | {wire}",
                flush=True,
            )
    if given.out:
        machine.write_record(given.out, rows=rows)


if __name__ == "__main__":
    main()
