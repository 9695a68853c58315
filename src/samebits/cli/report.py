"""`samebits report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.cli.options import (
    EXCERPT,
    SAMPLE_READING,
    Arch,
    Quiet,
    SampleSeed,
    file_ending,
    reads,
)
from samebits.cli.output import working


@reads(EXCERPT | SAMPLE_READING)
def report_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A network, a training or compiled folder, an .nnp program, or a plan.",
        ),
    ],
    out: Annotated[
        Path | None,
        file_ending(
            ".html",
            "The page (.html), or text (.txt) [default: text on the terminal].",
            ".htm",
            ".txt",
            "",
        ),
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            metavar="SAMPLES",
            help="Compare the usual backends on these, and measure what layers lose; with labels "
            "also how good the answers are: an .npz archive, digits, a folder of data, a table, or "
            "random:N.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The float network that this one was quantized from: losses are measured against "
            "it.",
        ),
    ] = None,
    board: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Count the instructions of every layer, such as on cortex-m3."
        ),
    ] = None,
    clock: Annotated[
        str | None,
        typer.Option(
            metavar="HZ",
            help="With --board: its clock, such as 64MHz, for an estimate of the time.",
        ),
    ] = None,
    arch: Arch = None,
    seed: SampleSeed = 0,
    quiet: Quiet = False,
    **reading: Any,
) -> None:
    """Write the page of a model: how good it is, bits, cost, graph, layers, memory, curves."""
    with working(quiet):
        from samebits import api

        found = api.report(
            source,
            inputs,
            against=against,
            board=board,
            clock=clock,
            arch=arch,
            seed=seed,
            **reading,
        )
        if out is not None:
            found.save(out)
    print(found if out is None else f"written: {out}")
