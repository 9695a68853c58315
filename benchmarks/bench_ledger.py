"""What the ledger of decoded bytes costs: processor time of loading data with it and without.

For every kind of file the same data are loaded again and again, in pairs of turns: with the ledger,
and with functions in its place that do nothing. A pair gives the difference as a share of the turn
without; shown are the median of all pairs and a 95 % interval of it. Where the memory of a process
happens to lie costs one of the two more by up to 4 %, in all its pairs: so there are several
processes, and the interval is from samples of them. The clock is that of the process's own
processor time, and the order within a pair is random, so that other programs of the machine blur
the pairs and shift none. One thread decodes: of several each
waits for the others, which costs more at one time than at another. On a busy machine the pairs tell
less than what follows them: the calls of the ledger in a load, each as long as it takes in a loop.

    python benchmarks/bench_ledger.py --out runs/bench_ledger.json
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import tempfile
import time
import wave
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
from PIL import Image

from machine import write_record
from samebits import data, ledger
from samebits.data import decode

PROCESSES = 12  # of each kind
NOTHING: AbstractContextManager[None] = nullcontext()
rng = np.random.default_rng(7)


def image(path: Path, side: int) -> None:
    """An image as a camera gives one: smooth, with noise."""
    ramp = np.add.outer(np.arange(side), np.arange(side)) * (200 / (2 * side))
    pixels = (ramp[..., None] + rng.integers(0, 40, (side, side, 3))).astype(np.uint8)
    Image.fromarray(pixels).save(path)


def recording(path: Path) -> None:
    """One second at 16 kHz."""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(rng.integers(-9000, 9000, 16000).astype("<i2").tobytes())


def folder(suffix: str, count: int, write: Callable[[Path], None]) -> Callable[[Path], Path]:
    """So many samples in a folder of two classes."""

    def make(root: Path) -> Path:
        for number in range(count):
            place = root / ("test", "train")[number % 4 > 1] / "ab"[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            write(place / f"{number}{suffix}")
        return root

    return make


def csv(root: Path) -> Path:
    """1000 rows of 20 numbers and a class."""
    lines = [",".join(f"x{i}" for i in range(20)) + ",y"]
    for number, row in enumerate(rng.normal(size=(1000, 20))):
        lines.append(",".join(f"{v:.4f}" for v in row) + f",{'ab'[number % 2]}")
    (root / "x.csv").write_text("\n".join(lines) + "\n")
    return root / "x.csv"


def npz(root: Path) -> Path:
    """1000 images of 8x8 and their classes, packed."""
    x, y = rng.integers(0, 99, (1000, 8, 8)).astype(np.uint8), np.arange(1000) % 10
    np.savez_compressed(root / "x.npz", x_train=x, y_train=y, x_test=x[:99], y_test=y[:99])
    return root / "x.npz"


KINDS: dict[str, Callable[[Path], Path]] = {
    "PNG 32x32": folder(".png", 40, lambda path: image(path, 32)),
    "JPEG 224x224": folder(".jpg", 20, lambda path: image(path, 224)),
    "CSV 1000x20": csv,
    "NPZ 1099x8x8": npz,
    "WAV 1 s": folder(".wav", 8, recording),
}


@contextmanager
def without() -> Iterator[None]:
    """No ledger."""
    kept = {name: getattr(ledger, name) for name in ("opens", "keep", "keep_of", "hold", "ample")}
    for name in ("opens", "keep", "keep_of"):
        setattr(ledger, name, lambda *given: None)
    ledger.hold = lambda size, where: NOTHING
    ledger.ample = lambda size: True
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(ledger, name, function)


HERE = os.stat(".")
CALLS: dict[str, Callable[[], object]] = {
    "opens": lambda: ledger.opens(HERE),
    "keep": lambda: ledger.keep(1, "x"),
    "keep_of": lambda: ledger.keep_of((), 1, "x"),
    "ample": lambda: ledger.ample(1),
}


def hold() -> None:
    """A call of the ledger with its two ends."""
    with ledger.hold(1, "x"):
        pass


def calls(path: Path) -> dict[str, int]:
    """How often a load asks the ledger, by function."""
    found = dict.fromkeys((*CALLS, "hold"), 0)
    kept = {name: getattr(ledger, name) for name in found}

    def counted(name: str) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            found[name] += 1
            return kept[name](*given)

        return call

    for name in found:
        setattr(ledger, name, counted(name))
    data.load(str(path))
    for name, function in kept.items():
        setattr(ledger, name, function)
    return found


@functools.cache
def seconds_of(name: str) -> float:
    """Processor time of a call, the median of many loops."""
    call, taken = CALLS.get(name, hold), []
    with ledger.load():
        for _ in range(200):
            began = time.thread_time()
            for _ in range(500):
                call()
            taken.append((time.thread_time() - began) / 500)
    return median(taken)


def turn(path: Path) -> float:
    """Seconds of processor time of a load."""
    began = time.process_time()
    data.load(str(path))
    return time.process_time() - began


def pairs(path: Path, duration: float) -> tuple[list[float], list[float]]:
    """Seconds of loads without the ledger, and its share in each pair of turns."""
    decode.THREADS = 1
    turn(path)
    shares, seconds = [], []
    began = time.monotonic()
    while time.monotonic() - began < duration:
        taken = {}
        for ledger_on in random.sample((True, False), 2):
            with nullcontext() if ledger_on else without():
                taken[ledger_on] = turn(path)
        seconds.append(taken[False])
        shares.append((taken[True] - taken[False]) / taken[False])
    return seconds, shares


def measure(name: str, root: Path, duration: float) -> dict[str, Any]:
    """Milliseconds of a load, and the share of the ledger in the pairs of several processes."""
    root.mkdir()
    path = KINDS[name](root)
    seconds, shares = [], []
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as fresh:
        for _ in range(PROCESSES):
            taken, found = fresh.submit(pairs, path, duration / PROCESSES).result()
            seconds += taken
            shares.append(found)
    cuts = quantiles([middle(random.choices(shares, k=PROCESSES)) for _ in range(1000)], n=40)
    return {
        "kind": name,
        "milliseconds": 1000 * median(seconds),
        "share": middle(shares),
        "interval": [cuts[0], cuts[-1]],
        "pairs": sum(map(len, shares)),
        "calls": (made := calls(path)),
        "share_of_calls": sum(n * seconds_of(f) for f, n in made.items()) / median(seconds),
    }


def middle(shares: list[list[float]]) -> float:
    """The median of all pairs of these processes."""
    return median(chain.from_iterable(shares))


def main() -> None:
    """Print a row for each kind, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seconds", type=float, default=60, help="of each kind")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as made:
        for number, name in enumerate(arguments.kinds):
            row = measure(name, Path(made, str(number)), arguments.seconds)
            low, high = (f"{100 * end:.2f}" for end in row["interval"])
            print(
                f"{name:14} {row['milliseconds']:8.1f} ms a load, ledger {100 * row['share']:.2f} "
                f"% ({low} to {high}), {row['pairs']} pairs; "
                f"{sum(row['calls'].values())} calls {100 * row['share_of_calls']:.2f} %",
                flush=True,
            )
            rows.append(row)
    if arguments.out is not None:
        write_record(arguments.out, rows=rows)


if __name__ == "__main__":
    main()
