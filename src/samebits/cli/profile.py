"""`samebits profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.options import (
    Arch,
    AsJson,
    Meaning,
    Quiet,
    SampleReading,
    Samples,
    SampleSeed,
    file_ending,
    reads,
)
from samebits.cli.output import show, working


@reads({})
def profile_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A quantized .onnx file, a training or compiled folder."
        ),
    ],
    reading: SampleReading,
    board: Annotated[
        str, typer.Option(metavar="NAME", help="Board, such as cortex-m3 or cortex-m55.")
    ] = "cortex-m3",
    inputs: Samples = "random:1",
    out: Annotated[
        Path | None,
        file_ending(
            ".html", "The table and a chart as a page (.html), or text (.txt).", ".htm", ".txt", ""
        ),
    ] = None,
    arch: Arch = None,
    meaning: Meaning = None,
    seed: SampleSeed = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Count the instructions of every layer's C on an emulated board, for the first sample."""
    with working(quiet, as_json):
        from samebits import api

        (samples,) = api.read_each(reading, inputs)
        net = api.load(model, arch=arch, meaning=meaning)
        result = net.profile(board, samples, seed=seed)
        if out is not None:
            result.report().save(out)
    show(result, as_json, *([] if out is None else [out]))
