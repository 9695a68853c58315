"""`samebits compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.cli.messages import Interrupted
from samebits.cli.options import (
    LABELLED_READING,
    SEEDS,
    AsJson,
    Data,
    KeepFloat,
    OwnLoss,
    Quiet,
    Shards,
    Threads,
    paths_of,
    reads,
    real,
    whole,
)
from samebits.cli.output import RunProgress, show, working
from samebits.errors import InputError

MOST_SEEDS = 1000


@reads(LABELLED_READING)
def compare_command(
    data: Data,
    arch: Annotated[
        str,
        typer.Option(metavar="NAME", help="A network, as samebits train takes it."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the runs, the table and the picture.")],
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
    epochs: Annotated[int, whole("Passes over the data.", 1)] = 10,
    batch: Annotated[int, whole("Samples per step.", 1)] = 64,
    shards: Shards = None,
    lr: Annotated[
        float | None,
        real("Learning rate [default: 0.1 for sgd, 0.02 of a regression; else 0.001]."),
    ] = None,
    optimizer: Annotated[str, typer.Option(metavar="NAME", help="sgd, adam or adamw.")] = "sgd",
    momentum: Annotated[float, real("Momentum of sgd.")] = 0.9,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov momentum.")] = False,
    weight_decay: Annotated[float, real("Weight decay.")] = 0.0,
    schedule: Annotated[
        str,
        typer.Option(metavar="NAME", help="Learning rate: constant, step, linear or cosine."),
    ] = "cosine",
    warmup: Annotated[int, whole("Linear warm-up, in steps.", 0)] = 0,
    limit: Annotated[
        int | None, whole("Use the first N training samples of each class.", 1)
    ] = None,
    augment: Annotated[
        str,
        typer.Option(metavar="LIST", help="none, or a list of flip, crop:PIXELS and zoom:PERCENT."),
    ] = "none",
    loss: OwnLoss = None,
    keep_float: KeepFloat = "",
    checkpoint_every: Annotated[int, whole("Also write a checkpoint every N steps.", 0)] = 0,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="Where to compute: cpu or cuda.")
    ] = "cpu",
    threads: Threads = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **reading: Any,
) -> None:
    """Train one network in several numerics over several seeds: what a number format costs.

    Prints accuracies, losses and paired differences to float32 with two standard errors. Called
    again, it goes on where it was stopped; finished runs are not repeated.
    """
    drawn = RunProgress("")
    try:
        with working(quiet, as_json, drawn):
            from samebits.comparison import compare

            result = compare(
                data,
                arch,
                out,
                **reading,
                numerics=numerics,
                seeds=_seeds(seeds),
                reporter_of=None if quiet else drawn.titled,
                epochs=epochs,
                batch=batch,
                shards=shards,
                lr=lr,
                optimizer=optimizer,
                momentum=momentum,
                nesterov=nesterov,
                weight_decay=weight_decay,
                schedule=schedule,
                warmup=warmup,
                limit=limit,
                augment=augment,
                loss=loss,
                keep_float=paths_of(keep_float),
                checkpoint_every=checkpoint_every,
                device=device,
                threads=threads,
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
