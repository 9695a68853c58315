"""`samebits compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.messages import Interrupted
from samebits.cli.options import (
    Architecture,
    AsJson,
    Data,
    LabelledReading,
    Only,
    Quiet,
    reads,
)
from samebits.cli.output import RunProgress, show, working
from samebits.errors import InputError
from samebits.recipes import Execution, Numerics, Optimizer, Recomputation, Training
from samebits.recipes.training import SEEDS

MOST_SEEDS = 1000


@reads({})
def compare_command(
    data: Data,
    arch: Architecture,
    out: Annotated[Path, typer.Option(help="Folder for the runs, the table and the picture.")],
    training: Annotated[Training, Only(n for n in Training.options() if n != "seed")],
    optimizer: Optimizer,
    arithmetic: Annotated[Numerics, Only(("gradient_bits", "keep_float"))],
    recomputation: Recomputation,
    execution: Annotated[
        Execution, Only(("device", "threads", "worker_timeout", "checkpoint_every"))
    ],
    reading: LabelledReading,
    numerics: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="float32, bfp, bfp:row, bfp:row-shift, bfp:6,12,32 (widths), bfp:nearest, and "
            "formats emulated in float32: mxint8, msfp12 to msfp16 and others of the catalogue.",
        ),
    ] = "float32,bfp",
    seeds: Annotated[
        str, typer.Option(metavar="LIST", help="Seeds, such as 0..4 or 0,2,5.")
    ] = "0..4",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train one network in several numerics over several seeds: what a number format costs.

    Prints accuracies, losses and paired differences to float32 with two standard errors. Called
    again, it goes on where it was stopped; finished runs are not repeated.
    """
    drawn = RunProgress("")
    try:
        with working(quiet, as_json, drawn):
            from samebits import api
            from samebits.comparison import compare

            (samples,) = api.read_each(reading, data)
            result = compare(
                samples,
                arch,
                out,
                *(training, optimizer, arithmetic, recomputation, execution),
                numerics=numerics,
                seeds=_seeds(seeds),
                reporter_of=None if quiet else drawn.titled,
            )
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; run again with the same options to go on from the checkpoints in {out}"
        ) from None
    files = sorted(out.glob("comparison.*"))
    show(result, as_json, *files)


def _seeds(text: str) -> list[int]:
    """The seeds of a text such as 0..4 or 0,2,5. Raises InputError for another text."""
    found: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        ends = [first, last] if dots else [first]
        numbers = [int(end) for end in ends if end.isascii() and end.isdigit() and len(end) <= 10]
        if len(numbers) < len(ends) or numbers[-1] > SEEDS or numbers[0] > numbers[-1]:
            raise InputError(f"--seeds: expected seeds such as 0..4 or 0,2,5, found {text!r}")
        found += range(numbers[0], min(numbers[-1], numbers[0] + MOST_SEEDS) + 1)
    if len(found) > MOST_SEEDS:
        raise InputError(f"--seeds: expected at most {MOST_SEEDS} seeds, found {text!r}")
    return found
