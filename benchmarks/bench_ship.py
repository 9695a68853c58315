"""From a module of PyTorch to a firmware folder and a verified board, in two commands.

    make wheel
    python3 -m venv new && new/bin/pip install dist/samebits-*.whl torch
    python benchmarks/bench_ship.py --python new/bin/python --out runs/ship.json

Each network is shipped from a folder that holds net.py and a hundred images alone, with caches of
its own, by the interpreter given: one of an environment that has the wheel and what it needs. Wall
time, and time of the processor, of each command. Exits with 1 where a command fails, which
`samebits verify` does if a bit differs.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from machine import write_record

NETS = {
    "linear, 32, linear": "nn.Flatten(), nn.Linear(3072, 32), nn.ReLU(), nn.Linear(32, 10)",
    "two convolutions": (
        "nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), "
        "nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)"
    ),
}
COMMANDS = {
    "ship": "ship net.py:make --data images/ --package zephyr --out firmware",
    "verify": "verify firmware --data random:8 --backends cortex-m3",
}


def prepare(folder: Path, layers: str) -> None:
    """net.py and images/."""
    (folder / "net.py").write_text(
        "import torch\nfrom torch import nn\n\n\ndef make():\n    torch.manual_seed(0)\n"
        f"    return nn.Sequential({layers})\n"
    )
    rng = np.random.default_rng(0)
    for i in range(100):
        path = folder / "images" / str(i % 2) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(path)


def timed(python: Path, words: str, folder: Path) -> dict[str, float]:
    """Seconds of one command, of the wall clock and of the processor."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SAMEBITS", "PYTHONPATH"))}
    clean["XDG_CACHE_HOME"] = str(folder / "cache")
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [python, "-m", "samebits", *words.split()],
        cwd=folder, env=clean, capture_output=True, text=True, check=False,
    )  # fmt: skip
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"samebits {words}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": wall, "cpu": cpu}


def main() -> None:
    """Print the times and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, required=True, help="an interpreter with the wheel")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    python = given.python.absolute()
    rows = []
    for name, layers in NETS.items():
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work)
            prepare(folder, layers)
            row = {command: timed(python, words, folder) for command, words in COMMANDS.items()}
        rows.append({"network": name, **row})
        shown = (f"{command} {t['wall']:.0f} s ({t['cpu']:.0f})" for command, t in row.items())
        print(f"{name}: {', '.join(shown)}", flush=True)
    if given.out:
        write_record(given.out, rows=rows)


if __name__ == "__main__":
    main()
