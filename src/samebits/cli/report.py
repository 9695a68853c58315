"""`samebits report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.cli.options import (
    EXCERPT,
    Arch,
    AsJson,
    Quiet,
    SampleReading,
    SampleSeed,
    file_ending,
    reads,
)
from samebits.cli.output import print_json, working


@reads(EXCERPT)
def report_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A network, a training or compiled folder, an .nnp program, or a plan.",
        ),
    ],
    reading: SampleReading,
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
            "--data",
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
    seed: SampleSeed = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **part: Any,
) -> None:
    """Write the page of a model: how good it is, bits, cost, graph, layers, memory, curves."""
    with working(quiet, as_json):
        from samebits import api

        (samples,) = api.read_each(reading, inputs)
        given = api.source_of(source, arch, part) if any(part.values()) else source  # or its curves
        named = arch if given is source else None
        found = api.report(
            given, samples, against=against, board=board, clock=clock, arch=named, seed=seed
        )
        if out is not None:
            found.save(out)
    if as_json:
        record = {"title": found.title, "summary": found.summary, "text": str(found)}
        print_json({**record, "out": None if out is None else str(out)})
    else:
        print(found if out is None else f"written: {out}")
