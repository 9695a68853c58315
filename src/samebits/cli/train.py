"""`samebits train`."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.messages import INTERRUPTED, Interrupted
from samebits.cli.options import Architecture, AsJson, Data, LabelledReading, Page, Quiet, reads
from samebits.cli.output import Printed, RunProgress, show, working
from samebits.recipes import Execution, Numerics, Optimizer, Recomputation, Training


@reads({})
def train_command(
    data: Data,
    arch: Architecture,
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, metrics and the result.")],
    training: Training,
    optimizer: Optimizer,
    numerics: Numerics,
    recomputation: Recomputation,
    execution: Execution,
    reading: LabelledReading,
    init: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Start from these weights: a .safetensors file of a state dict, a training folder "
            "or a checkpoint.",
        ),
    ] = None,
    report: Page = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a network; prints its accuracy and the SHA-256 of its parameters.

    On N processes, with the same result: torchrun --nproc-per-node N -m samebits train ...
    """
    drawn = RunProgress(f"{arch} {numerics.numerics}")
    stdout = sys.stdout

    def done(run: Printed) -> None:
        drawn.close()
        with redirect_stdout(stdout):
            show(run, as_json)
        stdout.flush()  # what stops this process from here on must not take it away

    try:
        with working(quiet, as_json, drawn):
            from samebits import api

            (samples,) = api.read_each(reading, data)
            run = api.fit(
                samples,
                arch,
                out,
                *(training, optimizer, numerics, recomputation, execution),
                init=init,
                reporter=None if quiet else drawn,
                done=done,
            )
            if report is not None and run is not None:
                api.report(out, arch=arch if ":" in arch else None).save(report)
                drawn.say(f"written: {report}")
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") != "0":
            raise SystemExit(INTERRUPTED) from None  # of several workers, the first one tells it
        raise Interrupted(_how_to_go_on(out)) from None


def _how_to_go_on(out: Path) -> str:
    """The sentence of an interrupted run: what it has left, and what to do."""
    found = sorted(out.glob("checkpoint-*.safetensors"))
    if found:
        return f"interrupted; {out} holds {found[-1].name}: run again with --resume"
    return (
        f"interrupted; {out} holds no checkpoint yet: run again with --resume, which starts from "
        "the first step; --checkpoint-every N writes one every N steps"
    )
