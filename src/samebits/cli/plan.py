"""`samebits plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from samebits.cli.options import AsJson, Shards, Threads
from samebits.cli.output import log_console, print_json, print_table, set_threads
from samebits.errors import InputError

if TYPE_CHECKING:
    from samebits.recompute.plan.plan import Plan


def plan_command(
    arch: Annotated[str, typer.Option(help="An architecture of samebits train.")],
    batch: Annotated[int, typer.Option(min=1, help="Samples per step.")],
    device: Annotated[
        str, typer.Option(help="A device's name, or a file that samebits device wrote.")
    ] = "laptop-cpu",
    memory_budget: Annotated[
        int | None,
        typer.Option(min=1, help="Bytes of tensors a pass may hold [default: the local rule]."),
    ] = None,
    backward: Annotated[
        str,
        typer.Option(
            help="Order of the backward pass: sequential, or paired (weight gradients in a second "
            "thread, beside the next activation gradient)."
        ),
    ] = "sequential",
    numerics: Annotated[str, typer.Option(help="bfp or float32.")] = "bfp",
    shards: Shards = None,
    input_shape: Annotated[
        str, typer.Option("--input", help="Shape of a sample: channels,height,width.")
    ] = "3,32,32",
    classes: Annotated[int, typer.Option(min=2)] = 10,
    out: Annotated[
        Path | None, typer.Option(help="Write the plan, for samebits train --plan FILE.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Write memory over the step's time, an SVG file.")
    ] = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Which results a training step keeps and which it computes again; no plan changes a bit.

    Runs one step with everything stored, to know what its sub-layers keep.
    """
    from samebits.files import write_atomically
    from samebits.recompute.plan.cost import find_device
    from samebits.recompute.plan.plan import write_plan
    from samebits.recompute.training import Planner, architecture_network
    from samebits.reports.recompute import memory_picture
    from samebits.train.run.config import TrainConfig

    set_threads(threads)
    config = TrainConfig(data="", arch=arch, numerics=numerics, batch=batch, shards=shards)
    planner = Planner(config, find_device(device), memory_budget, backward=backward)
    _, network = architecture_network(config, _shape(input_shape), classes)
    plan = planner.plan(network)
    if out is not None:
        write_plan(out, plan)
    if picture is not None:
        write_atomically(picture, memory_picture(network, plan, planner.device))
    if as_json:
        print_json(plan.to_dict())
        return
    print_plan(plan)


def print_plan(plan: Plan) -> None:
    """A row per sub-layer, then the figures."""
    from samebits.reports.recompute import plan_rows, plan_summary

    columns, rows = plan_rows(plan)
    table = Table(*columns)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    print_table(table, width=None if log_console().is_terminal else 160)
    for line in plan_summary(plan):
        print(line)


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if not 1 <= len(sizes) <= 3 or not all(
        s.isascii() and s.isdigit() and int(s) > 0 for s in sizes
    ):
        raise InputError(f"--input: expected sizes such as 3,32,32, found {text!r}")
    return tuple(int(size) for size in sizes)
