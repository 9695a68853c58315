"""What the meaning `tflite` costs beside `exact`: generated C of the same .tflite files in both.

    PYTHONPATH=tests python benchmarks/bench_tflite.py [--nets KWS ...] [--boards cortex-m4 ...]
        [--flags native avx2] [--out runs/tflite.json]

The networks are those of tests/tflite_networks.py, of the shapes of MLPerf Tiny's five, written by
the project's own writer with the zero points and scales that a converter gives. On boards
instructions are exact counts, and codes are the interpreter's; here the thread's own time is taken
in turns, the least of the rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_cortex import BOARDS, ours
from bench_edge import TARGETS as FLAGS
from bench_inference import c_library, timed
from machine import write_record
from samebits.codegen.run.targets import TARGETS
from samebits.excerpt import Excerpt
from samebits.model import Model, load
from tflite_networks import NETWORKS, Converted

MEANINGS = ("exact", "tflite")
BURSTS = 60, 0.03  # short ones, so that some of them are alone on their core


def models(name: str) -> dict[str, Model]:
    """The network in both meanings."""
    net, y = NETWORKS[name](Converted)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.tflite"
        path.write_bytes(net.bytes(y))
        return {meaning: load(path, part=Excerpt(meaning=meaning)) for meaning in MEANINGS}


def counted(board: str, made: dict[str, Model]) -> dict[str, Any]:
    """Counts and sizes on a board."""
    found = {}
    for meaning, model in made.items():
        with tempfile.TemporaryDirectory() as folder:
            found[meaning] = ours(model.integer, board, Path(folder))
    return found


def times(flags: str, made: dict[str, Model]) -> dict[str, float]:
    """Seconds of an inference here, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        runs = {m: c_library(model, work / m, FLAGS[flags]) for m, model in made.items()}
        return timed(runs, min, time.thread_time, BURSTS)


def main() -> None:
    """Measure, print a line each, write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", nargs="*", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--boards", nargs="*", default=list(BOARDS))
    parser.add_argument("--flags", nargs="*", choices=list(FLAGS), default=["native", "avx2"])
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in a.nets:
        made = models(name)
        for board in a.boards:
            reason = TARGETS[board].unavailable()
            if reason:
                print(f"skipped: {reason}")
                continue
            found = counted(board, made)
            first, second = (found[m]["instructions"] for m in MEANINGS)
            sizes = [found[m]["flash"] for m in MEANINGS]
            rows.append({"network": name, "board": board, **found})
            print(
                f"{name:4} {board:11} {first:>12,} {second:>12,} {second / first:6.3f}   flash "
                f"{sizes[0]:>9,} {sizes[1]:>9,}",
                flush=True,
            )
        for flags in a.flags:
            seconds = times(flags, made)
            first, second = (seconds[m] * 1e6 for m in MEANINGS)
            rows.append({"network": name, "flags": flags, "seconds": seconds})
            print(
                f"{name:4} {flags:11} {first:>9.1f} us {second:>9.1f} us {second / first:6.3f}",
                flush=True,
            )
    if a.out:
        write_record(a.out, rows=rows)


if __name__ == "__main__":
    main()
