"""`samebits eval`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from samebits.cli.options import (
    LABELLED_READING,
    Arch,
    AsJson,
    Data,
    Meaning,
    Quiet,
    Threads,
    reads,
)
from samebits.cli.output import show, working


@reads(LABELLED_READING)
def eval_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A training folder, a checkpoint, .onnx, .nnp or compiled folder.",
        ),
    ],
    data: Data,
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
    **reading: Any,
) -> None:
    """Test accuracy of a network or of firmware, or the figures of another task."""
    with working(quiet, as_json):
        from samebits import api

        result = api.evaluate(
            model,
            data,
            **reading,
            whole=whole,
            arch=arch,
            meaning=meaning,
            device=device,
            threads=threads,
        )
    show(result, as_json)
