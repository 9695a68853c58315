"""`samebits eval`."""

from __future__ import annotations

from typing import Annotated

import typer

from samebits.cli.options import (
    Arch,
    AsJson,
    Data,
    LabelledReading,
    Meaning,
    Quiet,
    Threads,
    reads,
)
from samebits.cli.output import show, working


@reads({})
def eval_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A training folder, a checkpoint, .onnx, .nnp or compiled folder.",
        ),
    ],
    data: Data,
    reading: LabelledReading,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole",
            help="Count all samples: for data that training has not seen [default: those for "
            "testing, of a file without such a part about every fifth]. Of a table that a run "
            "reads, and of each class folder, one is enough; other data needs samples for training "
            "and for testing still.",
        ),
    ] = False,
    arch: Arch = None,
    meaning: Meaning = None,
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

        (samples,) = api.read_each(reading, data)
        result = api.evaluate(
            model,
            samples,
            whole=whole,
            arch=arch,
            meaning=meaning,
            device=device,
            threads=threads,
        )
    show(result, as_json)
