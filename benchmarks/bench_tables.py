"""Tables in block floating point beside float32: the data sets of scikit-learn, over some seeds.

Every data set is written as a CSV file and read by `samebits.fit`, as a user would do; accuracy of
classes and R2 of numbers are those of the test rows, in the deployed arithmetic for BFP.

    python benchmarks/bench_tables.py --out runs/bench_tables.json
    python benchmarks/bench_tables.py --tables diabetes --lr 0.05 --seeds 20
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from sklearn import datasets

import samebits as sb
from machine import write_record
from samebits.recipes import by_options

TABLES = ("iris", "wine", "breast_cancer", "diabetes")
OPTIONS: dict[str, Any] = {"batch": 32, "epochs": 10, "lr": 0.02, "threads": 1}


def table(name: str, folder: Path) -> Path:
    """A data set as a CSV file, its target last; classes by their names."""
    found = getattr(datasets, f"load_{name}")(as_frame=True)
    frame = found.frame
    if "target_names" in found:
        frame["target"] = [str(found.target_names[i]) for i in found.target]
    path = folder / f"{name}.csv"
    frame.to_csv(path, index=False)
    return path


def main() -> None:
    """Print a row for each data set, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--lr", type=float, default=OPTIONS["lr"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    options = {**OPTIONS, "lr": arguments.lr}
    rows = []
    with tempfile.TemporaryDirectory() as made:
        for name in arguments.tables:
            path = table(name, Path(made))
            figures: dict[str, list[float]] = {}
            count = 0
            for numerics in ("bfp", "float32"):
                for seed in range(arguments.seeds):
                    out = Path(made) / name / numerics / str(seed)
                    run = sb.fit(
                        path,
                        "mlp",
                        out,
                        *by_options(sb.fit, {**options, "numerics": numerics, "seed": seed}),
                    )
                    assert run is not None
                    figure = run.metrics["r2"] if run.metrics else run.accuracy
                    figures.setdefault(numerics, []).append(figure)
                    count = run.result.test_count
            rows.append({"data": name, "test_rows": count, **figures})
            shown = "  ".join(
                f"{numerics} {' '.join(f'{value:.4f}' for value in values)}"
                for numerics, values in figures.items()
            )
            print(f"{name}, {count} test rows: {shown}", flush=True)
    if arguments.out is not None:
        write_record(arguments.out, options=options, rows=rows)


if __name__ == "__main__":
    main()
