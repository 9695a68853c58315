"""Builds the wheel and tries it with other versions of Python, PyTorch and numpy.

    .venv/bin/python tools/test_versions.py --python python3.11 --torch 2.13.0 --numpy 1.26.4

Every combination gets a virtual environment of its own, with the wheel, the extra `demo` and those
versions, all else as pip chooses it. There `samebits doctor` runs, and every route of tests/pins
whose bits are committed. Prints a table, and exits with 1 where a bit differs. Each combination
takes minutes and gigabytes; pip's own variables (PIP_EXTRA_INDEX_URL ...) are honoured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from figures import table

from machine import write_record

ROOT = Path(__file__).resolve().parents[1]
NEWEST = "newest"
PYTHONS = ("python3.11", "python3.12", "python3.13")
COLUMNS = ("python", "torch", "numpy", "doctor", "pins right", "changed", "not run", "seconds")
# Runs in the environment: compares, and writes nothing.
PINS = """
import json, sys
import torch
from pins import ROUTES, UnavailableError
from pins.book import read

torch.set_num_threads(1)
book, right, changed, not_run = read(), 0, [], {}
for name, route in ROUTES.items():
    if route.slow and "--slow" not in sys.argv:
        not_run[name] = "slow; give --slow"
        continue
    try:
        found = route.compute()
    except UnavailableError as error:
        not_run[name] = str(error)
        continue
    for pin in book[name].keys() | found.keys():
        if book[name].get(pin) == found.get(pin):
            right += 1
        else:
            changed.append(f"{name}: {pin}")
print(json.dumps({"right": right, "changed": changed, "not run": not_run}))
"""
VERSIONS = """
import json
from importlib.metadata import version
print(json.dumps({name: version(name) for name in ("torch", "numpy")}))
"""


@dataclass(frozen=True)
class Case:
    """One combination: an interpreter, and versions or NEWEST."""

    python: str
    torch: str
    numpy: str

    @property
    def needs(self) -> list[str]:
        """What pip installs."""
        wanted = {"torch": self.torch, "numpy": self.numpy}
        return [n if v == NEWEST else f"{n}=={v}" for n, v in wanted.items()]


class Failed(Exception):
    """A command that ended otherwise than it should; its last line of output."""


def ran(command: list[str | Path], allowed: tuple[int, ...] = (0,), **environment: str) -> str:
    """The output of a command. Raises Failed."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)),
        cwd=ROOT / "tests",
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in allowed:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise Failed(lines[-1] if lines else f"exit code {done.returncode}")
    return done.stdout


def tried(case: Case, wheel: Path, work: Path, slow: bool) -> tuple[tuple[str, ...], list[str]]:
    """The row of a combination, and what is to be told below the table."""
    start = time.perf_counter()
    folder = work / "venv"
    shutil.rmtree(folder, ignore_errors=True)
    row: list[str] = [Path(case.python).name, case.torch, case.numpy]
    notes: list[str] = []
    try:
        row[0] = ran([case.python, "--version"]).split()[-1]
        ran([case.python, "-m", "venv", folder])
        python = folder / "bin" / "python"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        ran([*pip, *case.needs, f"samebits[demo] @ {wheel.as_uri()}"])
        row[1:] = json.loads(ran([python, "-c", VERSIONS])).values()
        doctor = json.loads(ran([python, "-m", "samebits", "doctor", "--json"], (0, 1)))
        row.append("right" if doctor["right"] else "WRONG")
        script = [python, "-c", PINS, *(["--slow"] if slow else [])]
        pins = json.loads(ran(script, PYTHONPATH=str(ROOT / "tests")).splitlines()[-1])
        row += [f"{pins['right']:,}", f"{len(pins['changed']):,}", f"{len(pins['not run']):,}"]
        notes += [f"changed: {name}" for name in pins["changed"]]
        notes += [f"not run: {name}: {why}" for name, why in pins["not run"].items()]
    except (Failed, OSError) as error:
        row += ["not tried"] + [""] * (len(COLUMNS) - 2 - len(row))
        notes.append(f"not tried further: {error}")
    row.append(f"{time.perf_counter() - start:.0f}")
    return tuple(row), [f"{' '.join(row[:3])}: {note}" for note in notes]


def main() -> int:
    """Try every combination; 1 where a bit differs or nothing could be tried."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", help=f"[default: of {', '.join(PYTHONS)}]")
    parser.add_argument("--torch", action="append", help=f"a version or {NEWEST}")
    parser.add_argument("--numpy", action="append", help=f"a version or {NEWEST}")
    parser.add_argument("--slow", action="store_true", help="the slow routes of tests/pins too")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args()
    cases = itertools.product(
        given.python or [name for name in PYTHONS if shutil.which(name)],
        given.torch or ("2.11.0", NEWEST),
        given.numpy or ("1.26.4", NEWEST),
    )
    rows, notes = [], []
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", work, ROOT]
        ran(command)
        (wheel,) = work.glob("samebits-*.whl")
        for case in itertools.starmap(Case, cases):
            row, more = tried(case, wheel, work, given.slow)
            print(" ".join(row), file=sys.stderr, flush=True)
            rows.append(row)
            notes += more
    print(table({"columns": list(COLUMNS), "rows": rows}), *notes, sep="\n")
    if given.out:
        write_record(given.out, columns=COLUMNS, rows=rows, notes=notes)
    right = [row for row in rows if row[3:4] == ("right",)]
    return 0 if right and all(row[3] == "not tried" or row[5] == "0" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
