"""Validation loss and step time of a small language model in BFP beside float32.

The text is the documentation of Python's statements and types that every CPython ships
(`pydoc_data.topics`), byte by byte, the last tenth of it for validation. Both numerics have the
same initial values, batches and learning rates; float32 depends on the number of threads.

    python benchmarks/bench_gpt.py --out runs/gpt.json
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import math
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

import machine
import samebits.train as bfp
from samebits.train.architectures import gpt, initialise

CONTEXT, BATCH = 128, 16
LR, WARMUP, DECAY = 1e-3, 100, 0.01
VALIDATED = 64  # windows of the validation text, apart by its length over them


@dataclass(frozen=True)
class Run:
    """What one run gave; times in seconds."""

    numerics: str
    seed: int
    train_loss: float
    loss: float
    step: float


@functools.cache
def text() -> tuple[Tensor, Tensor, int, str]:
    """(training bytes, validation bytes) as indices, their number, and the SHA-256 of the text."""
    raw = "\n".join(topics[name] for name in sorted(topics)).encode()
    known = sorted(set(raw))
    place = {byte: index for index, byte in enumerate(known)}
    codes = torch.tensor([place[byte] for byte in raw])
    cut = len(codes) * 9 // 10
    return codes[:cut], codes[cut:], len(known), hashlib.sha256(raw).hexdigest()


def windows(source: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [n, context] from these places on, and those that follow each."""
    whole = torch.stack([source[i : i + CONTEXT + 1] for i in starts.tolist()])
    return whole[:, :-1], whole[:, 1:]


def rate(step: int, steps: int) -> float:
    """Linear up over the first steps, then a cosine down to a tenth."""
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    way = (step - WARMUP) / max(1, steps - WARMUP)
    return LR * (0.1 + 0.45 * (1 + math.cos(math.pi * way)))


def run(numerics: str, seed: int, steps: int, exponents: str) -> Run:
    """Train, and validate at the end. exponents: of BFP, as `convert` takes them."""
    train, held_out, vocabulary, _ = text()
    model = gpt(vocabulary, CONTEXT)
    initialise(model, seed)
    criterion: Any = nn.functional.cross_entropy
    if numerics == "bfp":
        model, criterion = bfp.convert(model, exponents), bfp.cross_entropy
        optimizer: Any = bfp.Adam(
            model.parameters(), lr=LR, weight_decay=DECAY, decoupled=True, seed=seed
        )
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY)
    draws = torch.Generator().manual_seed(seed)
    losses, times = [], []
    for step in track(range(steps), description=f"{numerics}, seed {seed}"):
        x, y = windows(train, torch.randint(len(train) - CONTEXT, (BATCH,), generator=draws))
        began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        loss = criterion(model(x).transpose(1, 2), y)
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    model.eval()
    spread = torch.arange(VALIDATED) * ((len(held_out) - CONTEXT - 1) // VALIDATED)
    with torch.no_grad():
        parts = []
        for starts in spread.split(BATCH):
            x, y = windows(held_out, starts)
            parts.append(float(criterion(model(x).transpose(1, 2), y)))
    last = losses[-100:]
    return Run(numerics, seed, sum(last) / len(last), sum(parts) / len(parts), min(times))


def main() -> None:
    """Run every seed in both numerics, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--exponents", default="tensor", help="tensor, row or row-shift")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/gpt.json"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    runs = []
    print("| seed | float32 | BFP | difference | step, float32 | step, BFP |")
    print("|---|---|---|---|---|---|")
    for seed in given.seeds:
        pair = [
            run(numerics, seed, given.steps, given.exponents) for numerics in ("float32", "bfp")
        ]
        runs += pair
        f, b = pair
        times = f"{1e3 * f.step:.0f} ms | {1e3 * b.step:.0f} ms"
        print(f"| {seed} | {f.loss:.4f} | {b.loss:.4f} | {b.loss - f.loss:+.4f} | {times} |")
    differences = [b.loss - f.loss for f, b in zip(runs[::2], runs[1::2], strict=True)]
    print(f"mean difference {statistics.mean(differences):+.4f} nats")
    machine.write_record(
        given.out, sha256=text()[3], exponents=given.exponents, runs=[asdict(r) for r in runs]
    )


if __name__ == "__main__":
    main()
