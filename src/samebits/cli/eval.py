"""`samebits eval`."""

from __future__ import annotations

from typing import Annotated

import typer

from samebits.cli.options import (
    Arch,
    AsJson,
    Colour,
    Data,
    Quiet,
    Resample,
    Resize,
    Target,
    Task,
    Threads,
)
from samebits.cli.output import show, working


def eval_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A training folder, a checkpoint, .onnx, .nnp or compiled folder.",
        ),
    ],
    data: Data,
    target: Target = None,
    task: Task = None,
    resize: Resize = None,
    resample: Resample = False,
    colour: Colour = None,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole",
            help="Count all samples: for data that training has not seen [default: those for "
            "testing, of a file without such a part about every fifth]. Of a table that a run "
            "reads one row is enough; other data needs samples for training and for testing still.",
        ),
    ] = False,
    arch: Arch = None,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="Where a trained model computes: cpu or cuda.")
    ] = "cpu",
    threads: Threads = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Test accuracy of a network or of firmware, or the figures of another task."""
    with working(quiet, as_json):
        from samebits import api

        result = api.evaluate(
            model,
            data,
            target=target,
            task=task,
            resize=resize,
            resample=resample,
            colour=colour,
            whole=whole,
            arch=arch,
            device=device,
            threads=threads,
        )
    show(result, as_json)
