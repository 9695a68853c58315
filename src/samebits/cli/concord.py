"""`samebits concord`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.options import AsJson, Quiet, reads
from samebits.cli.output import show, working


@reads({})
def concord_command(
    program: Annotated[
        Path,
        typer.Argument(metavar="PROGRAM", help="An .nnp program, or a folder with one in it."),
    ],
    to: Annotated[str, typer.Option(metavar="KIND", help="torch, onnx, tensorflow or c.")],
    out: Annotated[Path, typer.Option(help="The .py, .onnx or .c file; data of a .py beside it.")],
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Translate firmware into software that computes the same bits."""
    with working(quiet, as_json):
        from samebits.firmware import concord

        result = concord(program, to=to, out=out)
    show(result, as_json)
