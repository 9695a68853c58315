"""`samebits plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.options import (
    Architecture,
    AsJson,
    Only,
    Page,
    Quiet,
    Threads,
    reads,
    real,
    sizes_of,
    whole,
)
from samebits.cli.output import show, working
from samebits.errors import InputError
from samebits.recipes import Numerics, Recomputation, Training


@reads({})
def plan_command(
    arch: Architecture,
    training: Annotated[Training, Only(("batch", "shards"))],
    numerics: Annotated[Numerics, Only(("numerics",))],
    recomputation: Annotated[Recomputation, Only(("plan_device", "memory_budget", "backward"))],
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
            "other; in the place of --plan-device.",
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

        devices = [recomputation.plan_device] if compare is None else compare.split(",")
        if compare is not None and recomputation.plan_device is not None:
            raise InputError(
                f"--plan-device: expected none beside --compare, which names devices, found "
                f"{recomputation.plan_device}; leave one out"
            )
        if compare is not None and (out or picture):
            raise InputError(
                "--compare: expected one plan for --out or --picture, found several; plan for one "
                "device to write it"
            )
        first, *others = [
            planning.plan(
                arch,
                None,
                *(training, numerics, recomputation.but(plan_device=name)),
                input_shape=sizes,
                classes=classes,
                time_limit=time_limit,
                threads=threads,
            )
            for name in devices
        ]
        if out is not None:
            first.save(out)
        if picture is not None:
            first.save_picture(picture)
        result = first if compare is None else first.compare(*others)
        if report is not None:
            result.report().save(report)
    show(result, as_json, *(path for path in (out, picture, report) if path is not None))
