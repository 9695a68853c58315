"""`samebits ship`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.cli.options import (
    EXCERPT,
    Arch,
    AsJson,
    GivenContract,
    Quiet,
    SampleReading,
    Sign,
    reads,
)
from samebits.cli.output import show, working
from samebits.recipes import Calibration, Formats, Packaging, Recurrence


@reads(EXCERPT)
def ship_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A float network (an .onnx, .pt2 or .tflite file, a training folder, or "
            "file.py:callable), or one that is quantized already.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the package and report.html.")],
    formats: Formats,
    calibrating: Calibration,
    recurrence: Recurrence,
    packaging: Packaging,
    reading: SampleReading,
    calibration: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="SAMPLES",
            help="Of a float network: an .npz file with an array [samples, ...] for each input, "
            "digits, a folder of images or recordings, with classes or without, or a table.",
        ),
    ] = None,
    backends: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Backends to compare, separated by commas, each of which must be able to run "
            "[default: the usual ones that can].",
        ),
    ] = None,
    board: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Compute a few inputs on this emulated board too, such as cortex-m3.",
        ),
    ] = None,
    sign: Sign = None,
    contract: GivenContract = None,
    arch: Arch = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **part: Any,
) -> None:
    """Quantize, verify and package a network in one go: what quantize, verify and compile do.

    The folder is written last, as a whole, and only if all compared bits are the same; else exit
    code 1, and an earlier folder stays as it is.
    """
    names = None if backends is None else [name.strip() for name in backends.split(",")]
    with working(quiet, as_json):
        from samebits import api
        from samebits.shipping import ship

        (samples,) = api.read_each(reading, calibration)
        result = ship(
            api.source_of(model, arch, part),
            samples,
            out,
            *(formats, calibrating, recurrence, packaging),
            backends=names,
            board=board,
            sign=sign,
            contract=contract,
        )
    show(result, as_json)
    raise typer.Exit(0 if result else 1)
