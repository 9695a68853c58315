"""`samebits verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.cli.options import (
    Arch,
    AsJson,
    Meaning,
    Quiet,
    SampleReading,
    Samples,
    SampleSeed,
    TrainOnly,
    reads,
)
from samebits.cli.output import show, working
from samebits.errors import InputError

RANDOM = "random:100"


@reads({})
def verify_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A quantized .onnx file, a training or compiled folder, or .nnp."
        ),
    ],
    reading: SampleReading,
    inputs: Samples = RANDOM,
    backends: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Names, separated by commas, each of which must be able to run [default: the "
            "usual ones that can].",
        ),
    ] = None,
    available: Annotated[
        bool,
        typer.Option(
            "--available",
            help="Every backend that can run here, or with --backends those of them that can.",
        ),
    ] = False,
    rebuild: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Of a compiled folder: write the same package there again, before it is checked.",
        ),
    ] = None,
    signers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Of a folder: allowed signers (man ssh-keygen), one of whom must have signed its "
            "report.json, of a training folder its result.json.",
        ),
    ] = None,
    raw: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Instead of --data: raw rows or images, as samebits predict takes them; answers "
            "are compared, which C computes from raw values.",
        ),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            metavar="steps:N",
            help="Of a training folder or checkpoint, instead: N training steps on its data, in "
            "PyTorch (training) and C (c, cortex-m3 ...), state and loss compared after each.",
        ),
    ] = None,
    train_only: TrainOnly = None,
    arch: Arch = None,
    meaning: Meaning = None,
    seed: SampleSeed = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a model on several backends and compare their bits; exit code 1 on any difference.

    Of a compiled folder every file is checked first, and its own C is built. Of a folder of
    firmware and of a training folder the files are compared with the SHA-256 that it states.
    """
    names = None if backends is None else [name.strip() for name in backends.split(",")]
    with working(quiet, as_json):
        from samebits import adaptation, api

        result: Any
        if train is not None or train_only is not None:
            others: dict[str, Any] = {
                "train_only": train_only,
                "data": None if inputs == RANDOM else inputs,
                "available": available or None,
                "rebuild": rebuild,
                "signers": signers,
                "raw": raw,
                "meaning": meaning,
                "seed": seed,
                **reading.chosen(),
            }
            result = adaptation.verify_training(model, train or "", names, arch, **others)
        else:
            if raw is not None and inputs != RANDOM:
                raise InputError(
                    f"--data: expected none beside --raw, which names samples too, found {inputs}; "
                    "leave one out"
                )
            net = api.load(model, arch=arch, meaning=meaning)
            if rebuild is not None:
                net.rebuild(rebuild)
            (samples,) = api.read_each(reading, inputs if raw is None else raw)
            result = net.verify(
                samples,
                names,
                available=available,
                signers=signers,
                seed=seed,
                raw=raw is not None,
            )
    show(result, as_json, *([] if rebuild is None else [rebuild]))
    raise typer.Exit(0 if result else 1)
