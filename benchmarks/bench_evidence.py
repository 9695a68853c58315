"""Accuracy and loss of samebits' training against float32: the lines that decide its defaults.

Each line is one network, data set and optimizer, trained in every numerics over fixed seeds, with
the same initial values and data order. A run that is finished is kept, one that was stopped goes on
where it was: call it again with the same --out (and take another --out after a change of bits).

    python benchmarks/bench_evidence.py --data data --out runs/evidence
    python benchmarks/bench_evidence.py --only digits embedding --numerics float32,bfp,mxint8
    python benchmarks/bench_evidence.py --only cifar10-vit --seeds 1 --out runs/vit
    python benchmarks/bench_evidence.py --report

Cheap lines come first; --only takes beginnings of names. A line breaks where the mean of its paired
differences of accuracy to float32 is below -1 point, or that mean plus two standard errors below
-0.5; the exit code is then 1. `data` holds the folders cifar10 (train/ and test/, 50,000 and 5,000
images) and fsdd (spoken digits); lines whose data is not there are left out, with a line that says
so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import machine
from evidence_tasks import Optimization, Task, embedding_task, finetune_task, trained
from samebits.comparison import NumericsEntry, compare, entries_of
from samebits.errors import InputError
from samebits.recipes import by_options
from samebits.recipes.training import OPTIMIZERS
from samebits.reports.comparison import ComparedRun, Comparison, PairedDifference

LEAST_BOUND, LEAST_MEAN = -0.5, -1.0  # points of accuracy
Record = dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """A line of `samebits compare`: an architecture, data, options of `fit`.

    data: digits, or a folder inside --data.
    """

    data: str
    arch: str
    options: Record
    seeds: int = 5

    def missing(self, data: Path) -> str | None:
        """Why the line cannot run; None where it can."""
        optimizer = self.options.get("optimizer", "sgd")
        if optimizer not in OPTIMIZERS:
            return f"samebits train has no optimizer {optimizer}"
        if self.data != "digits" and not (data / self.data).is_dir():
            return f"no folder {data / self.data}"
        return None

    def run(
        self,
        data: Path,
        out: Path,
        entries: tuple[NumericsEntry, ...],
        seeds: list[int],
        threads: int,
    ) -> Comparison:
        """Train what is not finished yet."""
        names = [entry.name for entry in entries]
        source = self.data if self.data == "digits" else str(data / self.data)
        options = self.options | {"threads": threads}
        recipes = by_options(compare, options)
        return compare(source, self.arch, out, *recipes, numerics=names, seeds=seeds)


@dataclass(frozen=True)
class Looped:
    """A line of a loop of its own, evidence_tasks.py: a network, data, how it is trained."""

    arch: str
    data: str
    task: Callable[[], Task]
    how: Optimization
    seeds: int = 5

    def missing(self, data: Path) -> str | None:
        """Nothing: its data is made here."""
        return None

    def run(
        self,
        data: Path,
        out: Path,
        entries: tuple[NumericsEntry, ...],
        seeds: list[int],
        threads: int,
    ) -> Comparison:
        """Train what is not finished yet."""
        torch.set_num_threads(threads)
        task = self.task()
        runs: list[ComparedRun] = []
        for seed in seeds:
            for entry in entries:
                file = out / entry.folder / f"{seed}.json"
                runs.append(trained(task, self.how, entry, seed, file))
        made = Comparison(
            self.arch,
            self.data,
            {"epochs": task.epochs, "batch": task.batch, **vars(self.how)},
            tuple(entry.name for entry in entries),
            tuple(entry.name for entry in entries if entry.format is not None),
            tuple(seeds),
            tuple(runs),
        )
        made.save(out)
        return made


Line = Trained | Looped


def _digits(arch: str, epochs: int, lr: float) -> dict[str, Line]:
    """One network with four optimizers; 0.99 of momentum takes a tenth of the rate of 0.9."""
    adam = {"optimizer": "adam", "lr": 0.003}
    kinds: dict[str, Record] = {
        "sgd": {"lr": lr},
        "sgd99": {"lr": lr / 10, "momentum": 0.99},
        "adam": adam,
        "adamw": adam | {"optimizer": "adamw", "weight_decay": 0.01},
    }
    return {
        f"digits-{arch}-{name}": Trained("digits", arch, {"epochs": epochs, **options})
        for name, options in kinds.items()
    }


def _looped(
    name: str, arch: str, data: str, task: Callable[[], Task], lr: float
) -> dict[str, Line]:
    """One task with four optimizers; `lr` is that of SGD with momentum 0.9, Adam's a thirtieth."""
    kinds = {
        "sgd": Optimization("sgd", lr),
        "sgd99": Optimization("sgd", lr / 10, 0.99),
        "adam": Optimization("adam", lr / 30),
        "adamw": Optimization("adamw", lr / 30),
    }
    return {f"{name}-{kind}": Looped(arch, data, task, how) for kind, how in kinds.items()}


CIFAR = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0005, "schedule": "cosine"}
LINES: dict[str, Line] = {
    **_digits("cnn", 10, 0.1),
    **_digits("lstm", 15, 0.2),
    **_looped("embedding", "embedding", "words with Zipf frequencies", embedding_task, 0.1),
    **_looped("finetune", "cnn trained in float32", "turned digits", finetune_task, 0.03),
    "spoken-lstm-adam": Trained(
        "fsdd", "lstm", {"epochs": 30, "optimizer": "adam", "lr": 0.003, "checkpoint_every": 100}
    ),
    "cifar10-resnet8-sgd": Trained(
        "cifar10", "resnet8", {"epochs": 15, "limit": 1000, "checkpoint_every": 100, **CIFAR}
    ),
    "cifar10-vit-adamw": Trained(
        "cifar10",
        "vit",
        {
            "epochs": 30,
            "limit": 1000,
            "optimizer": "adamw",
            "lr": 0.001,
            "warmup": 300,
            "weight_decay": 0.05,
            "augment": "flip,crop:4",
            "checkpoint_every": 50,
        },
        seeds=3,
    ),
    "cifar10-resnet20-sgd": Trained(
        "cifar10",
        "resnet20",
        {"epochs": 30, "augment": "flip,crop:4", "checkpoint_every": 100, **CIFAR},
        seeds=2,
    ),
}


def chosen_lines(only: list[str]) -> list[str]:
    """The lines whose names begin with one of `only`; all of none. Exits for a wrong one."""
    unknown = [start for start in only if not any(name.startswith(start) for name in LINES)]
    if unknown:
        raise SystemExit(
            f"--only: expected beginnings of {', '.join(LINES)}; found {', '.join(unknown)}"
        )
    return [name for name in LINES if not only or name.startswith(tuple(only))]


def broken(row: Record) -> str | None:
    """What breaks the bounds in a row of a comparison's table; None where nothing does."""
    if row["diverged"]:
        return f"{row['diverged']} of {row['seeds']} runs diverged"
    points = row["points"]
    if points is None:
        return None  # float32 itself, or it diverged
    if points["mean"] < LEAST_MEAN:
        return f"the mean is below {LEAST_MEAN}"
    if points["two_errors"] is not None and points["mean"] + points["two_errors"] < LEAST_BOUND:
        return f"the mean plus two standard errors is below {LEAST_BOUND}"
    return None


def report(out: Path, names: list[str]) -> bool:
    """Print a line of a table for every numerics of every finished line; true if none breaks.

    Formats that are emulated are there to compare: the bounds are those of bfp.
    """
    found, whole = [], True
    print("| line | seeds | numerics | accuracy | points to float32 | loss | loss to float32 | |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        path = out / name / "comparison.json"
        if not path.exists():
            continue
        record = json.loads(path.read_text())
        found.append({"line": name, **record})
        for row in record["table"]:
            bound = broken(row) if row["numerics"].startswith("bfp") else None
            if row["numerics"] in record["emulated"]:
                bound = None
            whole &= bound is None
            print(_row(name, row, bound))
    left = [name for name in names if not (out / name / "comparison.json").exists()]
    if left:
        print(f"not finished: {', '.join(left)}")
    if found:
        machine.write_record(out / "evidence.json", lines=found)
    return whole


def _row(name: str, row: Record, bound: str | None) -> str:
    accuracy = "diverged" if row["accuracy"] is None else f"{100 * row['accuracy']:.2f} %"
    loss = "" if row["loss"] is None else f"{row['loss']:.4f}"
    figures = [_figure(row["points"], 2), loss, _figure(row["loss_difference"], 4)]
    verdict = "" if bound is None else f"BREAKS: {bound}"
    cells = [name, str(row["seeds"]), row["numerics"], accuracy, *figures, verdict]
    return f"| {' | '.join(cells)} |"


def _figure(difference: Record | None, digits: int) -> str:
    return "" if difference is None else PairedDifference(**difference).text(digits)


def main() -> None:
    """Run the lines, print their table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--numerics", default="float32,bfp", help="as samebits compare takes it")
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="by default 0 to 4 (to 2 of vit, 1 of resnet20)"
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="holds cifar10 and fsdd")
    parser.add_argument("--out", type=Path, default=Path("runs/evidence"))
    parser.add_argument("--threads", type=int, default=1, help="float32 depends on them")
    parser.add_argument("--report", action="store_true", help="print what is there, run nothing")
    given = parser.parse_args()
    names = chosen_lines(given.only)
    try:
        entries = entries_of(given.numerics)
    except InputError as error:
        raise SystemExit(str(error)) from None
    for name in [] if given.report else names:
        line = LINES[name]
        why = line.missing(given.data)
        if why is not None:
            print(f"{name}: left out: {why}", file=sys.stderr)
            continue
        seeds = given.seeds or list(range(line.seeds))
        made = line.run(given.data, given.out / name, entries, seeds, given.threads)
        print(f"{name}\n{made}\n", file=sys.stderr, flush=True)
    if not report(given.out, names):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
