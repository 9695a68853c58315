"""`samebits plan`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.options import AsJson, Page, Quiet, Shards, Threads, reads, real, sizes_of, whole
from samebits.cli.output import show, working
from samebits.errors import InputError


@reads({})
def plan_command(
    arch: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="An architecture of samebits train, or a callable of your own."
        ),
    ],
    batch: Annotated[int, whole("Samples per step.", 1)],
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE", help="A device's name, or a file that samebits device wrote."
        ),
    ] = "laptop-cpu",
    memory_budget: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="What a pass may hold: bytes, 3M, or 40% of what storing everything takes "
            "[default: each result by itself, by the local rule].",
        ),
    ] = None,
    backward: Annotated[
        str,
        typer.Option(
            metavar="ORDER",
            help="Order of the backward pass: sequential, or, in BFP, paired (weight gradients in "
            "a second thread, beside the next activation gradient).",
        ),
    ] = "sequential",
    numerics: Annotated[
        str | None, typer.Option(metavar="NUMERICS", help="bfp or float32 [default: bfp].")
    ] = None,
    shards: Shards = None,
    input_shape: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="SIZES",
            help="Shape of a sample: channels,height,width [default: 3,32,32].",
        ),
    ] = None,
    classes: Annotated[int | None, whole("Classes of the data [default: 10].", 2)] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICES",
            help="Plan for each of these devices, parted by commas, and show the plans beside each "
            "other; in the place of --device.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the plan, for samebits train --plan FILE.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Write memory over the step's time, an SVG file.")
    ] = None,
    report: Page = None,
    time_limit: Annotated[
        float | None,
        real(
            "Seconds after which the search within a budget ends with the best plan so far, which "
            "then depends on the machine's speed [default: a number of steps]."
        ),
    ] = None,
    threads: Threads = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Which results a training step keeps and which it computes again; no plan changes a bit.

    Runs one step with everything stored, to know what its sub-layers keep.
    """
    sizes = sizes_of(input_shape, "--input")
    with working(quiet, as_json):
        from samebits import planning

        devices = [device] if compare is None else compare.split(",")
        if compare is not None and (out or picture):
            raise InputError(
                "--compare: expected one plan for --out or --picture, found several; plan for one "
                "device to write it"
            )
        plan = functools.partial(
            planning.plan,
            arch,
            budget=memory_budget,
            backward=backward,
            numerics=numerics,
            batch=batch,
            shards=shards,
            input_shape=sizes,
            classes=classes,
            time_limit=time_limit,
            threads=threads,
        )
        first, *others = [plan(device=name) for name in devices]
        if out is not None:
            first.save(out)
        if picture is not None:
            first.save_picture(picture)
        result = first if compare is None else first.compare(*others)
        if report is not None:
            result.report().save(report)
    show(result, as_json, *(path for path in (out, picture, report) if path is not None))
