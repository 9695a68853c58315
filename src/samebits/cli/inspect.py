"""`samebits inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.cli.options import EXCERPT, Arch, AsJson, Quiet, reads
from samebits.cli.output import print_json, working


@reads(EXCERPT)
def inspect_command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A file or folder that samebits writes, or an .onnx, .pt2 or .tflite file.",
        ),
    ],
    nodes: Annotated[
        bool,
        typer.Option("--nodes", help="Every node, constant, tensor, sub-layer or instruction too."),
    ] = False,
    arch: Arch = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **part: Any,
) -> None:
    """Show what a file holds: inputs, outputs, layers, bytes, formats, hash."""
    with working(quiet, as_json):
        from samebits import api

        if as_json:
            record = api.inspect_record(file, arch=arch, **part)
        else:
            report = api.inspect(file, nodes=nodes, arch=arch, **part)
    if as_json:
        print_json(record)
    else:
        print(report)
