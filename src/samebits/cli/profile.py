"""`samebits profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.cli.options import (
    Arch,
    AsJson,
    GivenSamples,
    Meaning,
    Quiet,
    SampleReading,
    SampleSeed,
    file_ending,
    reads,
)
from samebits.cli.output import show, working


@reads({})
def profile_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A quantized .onnx file, a training or compiled folder."
        ),
    ],
    reading: SampleReading,
    board: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Board, such as cortex-m3 or cortex-m55.",
            show_default="cortex-m3",
        ),
    ] = None,
    inputs: GivenSamples = None,
    train: Annotated[
        bool,
        typer.Option(
            "--train",
            help="Time a training step of a run on this machine instead, by layer and kernel.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        file_ending(
            ".html", "The table and a chart as a page (.html), or text (.txt).", ".htm", ".txt", ""
        ),
    ] = None,
    arch: Arch = None,
    meaning: Meaning = None,
    seed: SampleSeed = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Count the instructions of every layer's C on an emulated board, for the first sample.

    Of a training run, with --train, time a step of its training on this machine instead.
    """
    with working(quiet, as_json):
        from samebits import adaptation, api

        result: Any
        if train:
            others: dict[str, Any] = {
                "board": board,
                "data": inputs,
                "meaning": meaning,
                "seed": seed,
                **reading.chosen(),
            }
            adaptation.check_train(others)
            result = api.profile_training(model, arch=arch)
        else:
            (samples,) = api.read_each(reading, inputs or "random:1")
            net = api.load(model, arch=arch, meaning=meaning)
            result = net.profile(board or "cortex-m3", samples, seed=seed)
        if out is not None:
            result.report().save(out)
    show(result, as_json, *([] if out is None else [out]))
