"""`samebits ship`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.cli.options import (
    EXCERPT,
    SAMPLE_READING,
    Arch,
    AsJson,
    GivenContract,
    Quiet,
    Sign,
    reads,
)
from samebits.cli.output import show, working


@reads(EXCERPT | SAMPLE_READING)
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
    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="SAMPLES",
            help="Of a float network: an .npz file with an array [samples, ...] for each input, "
            "digits, a folder of images or recordings, with classes or without, or a table.",
        ),
    ] = None,
    package: Annotated[
        str,
        typer.Option(
            metavar="SYSTEM",
            help="The folder as make, cmake, arduino, zephyr, espidf or platformio has it.",
        ),
    ] = "make",
    prefix: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Prefix of every name in C [default: model]."),
    ] = None,
    scheme: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT", help="Of activations [default: asymmetric-s8]; see samebits quantize."
        ),
    ] = None,
    effort: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="plain (the default) or high; see samebits quantize."),
    ] = None,
    floor: Annotated[
        str,
        typer.Option(
            metavar="DB",
            help="What every output has to keep of the float network, in dB on every fourth "
            "sample; none: whatever it keeps.",
        ),
    ] = "10",
    cpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Processor whose kernels are taken, such as cortex-m4 [default: the board's, or "
            "any].",
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
    **reading: Any,
) -> None:
    """Quantize, verify and package a network in one go: what quantize, verify and compile do.

    The folder is written last, as a whole, and only if all compared bits are the same; else exit
    code 1, and an earlier folder stays as it is.
    """
    names = None if backends is None else [name.strip() for name in backends.split(",")]
    with working(quiet, as_json):
        from samebits.shipping import ship

        result = ship(
            model,
            calibration,
            out,
            package=package,
            prefix=prefix,
            scheme=scheme,
            effort=effort,
            floor=floor,
            cpu=cpu,
            backends=names,
            board=board,
            sign=sign,
            contract=contract,
            arch=arch,
            **reading,
        )
    show(result, as_json)
    raise typer.Exit(0 if result else 1)
