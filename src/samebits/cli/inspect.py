"""`samebits inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.options import Arch, AsJson, Quiet, Shapes, shapes_of
from samebits.cli.output import print_json, working


def inspect_command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A file or folder that samebits writes, or an .onnx or .pt2 file.",
        ),
    ],
    nodes: Annotated[
        bool,
        typer.Option("--nodes", help="Every node, constant, tensor, sub-layer or instruction too."),
    ] = False,
    arch: Arch = None,
    shape: Shapes = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show what a file holds: inputs, outputs, layers, bytes, formats, hash."""
    shapes = shapes_of(shape)
    with working(quiet, as_json):
        from samebits import api

        if as_json:
            record = api.inspect_record(file, arch=arch, shapes=shapes)
        else:
            report = api.inspect(file, nodes=nodes, arch=arch, shapes=shapes)
    if as_json:
        print_json(record)
    else:
        print(report)
