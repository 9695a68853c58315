"""`samebits profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.cli.options import (
    SAMPLE_READING,
    Arch,
    AsJson,
    Meaning,
    Quiet,
    Samples,
    SampleSeed,
    file_ending,
    reads,
)
from samebits.cli.output import show, working


@reads(SAMPLE_READING)
def profile_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A quantized .onnx file, a training or compiled folder."
        ),
    ],
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
    seed: SampleSeed = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **reading: Any,
) -> None:
    """Count the instructions of every layer's C on an emulated board, for the first sample."""
    with working(quiet, as_json):
        from samebits import api

        result = api.load(model, arch=arch, meaning=meaning).profile(
            board, inputs, seed=seed, **reading
        )
        if out is not None:
            result.report().save(out)
    show(result, as_json, *([] if out is None else [out]))
