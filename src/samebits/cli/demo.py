"""`samebits demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from samebits.cli.output import RunProgress, log_console, print_json, set_threads

EPOCHS = 5


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the runs and report.html.")] = Path(
        "samebits-demo"
    ),
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1)] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a small network on handwritten digits in BFP and in float32; write report.html."""
    from samebits.data import load
    from samebits.report.training import Run, training_report, training_rows
    from samebits.train.checkpoint import write_atomically
    from samebits.train.config import NUMERICS, TrainConfig
    from samebits.train.loop import train
    from samebits.train.record import read_metrics

    set_threads(threads)
    data = load("digits")
    runs: list[Run] = []
    for numerics in NUMERICS:
        config = TrainConfig(
            data="digits", arch="cnn", numerics=numerics, epochs=EPOCHS, batch=64, seed=seed
        )
        folder = out / numerics
        with RunProgress(f"cnn {numerics}") as reporter:
            result = train(config, data, folder, overwrite=True, reporter=reporter)
        runs.append(Run(numerics, config.to_dict(), result.to_dict(), read_metrics(folder)))
    report = out / "report.html"
    write_atomically(report, training_report(runs).encode())
    if as_json:
        print_json({"report": str(report), "runs": {run.name: dict(run.result) for run in runs}})
        return
    header, rows = training_rows(runs)
    table = Table(title="Handwritten digits, small convolutional network")
    for index, title in enumerate(header[:-1]):
        table.add_column(title, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row[:-1])
    Console(highlight=False).print(table)
    for row in rows:
        print(f"sha256 {row[-1]} {row[0]}")  # the last column would not fit a narrow terminal
    log_console().print(f"report: {report}")
