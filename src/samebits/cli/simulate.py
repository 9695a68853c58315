"""`samebits simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.options import AsJson, Quiet, reads
from samebits.cli.output import show, working


@reads({})
def simulate_command(
    program: Annotated[
        Path,
        typer.Argument(metavar="PROGRAM", help="An .nnp program, or a folder with one in it."),
    ],
    inputs: Annotated[
        Path,
        typer.Option("--data", help="An .npz archive: an array for each input of the program."),
    ],
    out: Annotated[Path, typer.Option(help="The outputs, an .npz archive.")],
    trace: Annotated[
        Path | None,
        typer.Option(help="Write what every chain wrote, for samebits audit: a JSON file."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Execute a program of the neural processor instruction by instruction."""
    with working(quiet, as_json):
        from samebits.firmware import simulate

        result = simulate(program, inputs, trace=trace is not None)
        result.save(out)
        if trace is not None:
            result.save_trace(trace)
    show(result, as_json, *(path for path in (out, trace) if path is not None))
