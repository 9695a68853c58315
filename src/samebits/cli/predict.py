"""`samebits predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.options import Arch, AsJson, Quiet, SampleReading, file_ending, reads
from samebits.cli.output import show, working


@reads({})
def predict_command(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="An .onnx file, a training or compiled folder."),
    ],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A table, an image, a recording, a folder of them, or an .npz archive; labels are "
            "not needed.",
        ),
    ],
    reading: SampleReading,
    out: Annotated[Path | None, file_ending(".csv", "Write all answers to this table.")] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backends",
            metavar="NAME",
            help="Which backend computes [default: the one that defines the bits]; the answers are "
            "the same.",
        ),
    ] = None,
    arch: Arch = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Named answers for raw rows, images or recordings: one for each that is given."""
    with working(quiet, as_json):
        from samebits import api

        (samples,) = api.read_each(reading, data)
        result = api.load(model, arch=arch).predict(samples, backend)
        if out is not None:
            result.save(out)
    show(result, as_json, *([] if out is None else [out]))
