"""`samebits demo`."""

from __future__ import annotations

import tempfile
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
    """Train a small network on handwritten digits in BFP and in float32; write report.html.

    The BFP run is repeated with the plain PyTorch kernels on one thread: its hash must be the same.
    """
    import torch

    from samebits import kernels
    from samebits.data import load
    from samebits.report.training import Run, same_bits_section, training_report, training_rows
    from samebits.train.checkpoint import write_atomically
    from samebits.train.config import NUMERICS, TrainConfig
    from samebits.train.loop import train
    from samebits.train.record import read_metrics

    set_threads(threads)
    data = load("digits")
    runs: list[Run] = []
    configs = {
        numerics: TrainConfig(
            data="digits", arch="cnn", numerics=numerics, epochs=EPOCHS, batch=64, seed=seed
        )
        for numerics in NUMERICS
    }
    for numerics, config in configs.items():
        folder = out / numerics
        with RunProgress(f"cnn {numerics}") as reporter:
            result = train(config, data, folder, overwrite=True, reporter=reporter)
        runs.append(Run(numerics, config.to_dict(), result.to_dict(), read_metrics(folder)))
    own = f"{kernels.realisation()} kernels, {torch.get_num_threads()} threads"
    hashes = {own: runs[NUMERICS.index("bfp")].result["sha256"]}
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as work,
        kernels.use("eager"),
        RunProgress("cnn bfp, PyTorch kernels") as reporter,
    ):
        again = train(configs["bfp"], data, Path(work), overwrite=True, reporter=reporter)
    hashes["PyTorch kernels, 1 thread"] = again.sha256
    same = len(set(hashes.values())) == 1
    report = out / "report.html"
    write_atomically(report, training_report(runs, [same_bits_section(hashes)]).encode())
    if as_json:
        results = {run.name: dict(run.result) for run in runs}
        print_json({"report": str(report), "runs": results, "hashes": hashes, "same_bits": same})
        raise typer.Exit(0 if same else 1)
    header, rows = training_rows(runs)
    table = Table(title="Handwritten digits, small convolutional network")
    for index, title in enumerate(header[:-1]):
        table.add_column(title, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row[:-1])
    Console(highlight=False).print(table)
    for row in rows:
        print(f"sha256 {row[-1]} {row[0]}")  # the last column would not fit a narrow terminal
    print(f"sha256 {again.sha256} bfp again, PyTorch kernels, 1 thread")
    print("same bits: yes" if same else "same bits: NO")
    log_console().print(f"report: {report}")
    if not same:
        raise typer.Exit(1)
