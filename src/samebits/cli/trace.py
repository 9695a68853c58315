"""`samebits trace` and `samebits audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.options import (
    Arch,
    AsJson,
    Meaning,
    Quiet,
    SampleReading,
    Samples,
    SampleSeed,
    reads,
    written_file,
)
from samebits.cli.output import print_json, show, working


@reads({})
def trace_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A quantized .onnx file, a training or compiled folder, or .nnp."
        ),
    ],
    inputs: Samples,
    reading: SampleReading,
    out: Annotated[Path, written_file("The trace, a JSON file.")],
    backend: Annotated[
        str | None,
        typer.Option(
            "--backends",
            metavar="NAME",
            help="Which backend to trace [default: the one that defines the bits].",
        ),
    ] = None,
    arch: Arch = None,
    meaning: Meaning = None,
    seed: SampleSeed = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write the hash of every layer in every run, and its codes where the backend has them."""
    with working(quiet, as_json):
        from samebits import api

        (samples,) = api.read_each(reading, inputs)
        result = api.load(model, arch=arch, meaning=meaning).trace(samples, backend, seed=seed)
        result.save(out)
    if as_json:
        print_json({"out": str(out), **result.to_dict()})
    else:
        print(f"written: {out}: {result.report().summary}")


@reads({})
def audit_command(
    a: Annotated[Path, typer.Argument(metavar="A", help="A trace.")],
    b: Annotated[
        Path,
        typer.Argument(metavar="B", help="Another trace, of the same model and inputs or run."),
    ],
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Name the first layer, or training step, where two traces part; exit code 1 then."""
    with working(quiet, as_json):
        from samebits import api

        result = api.audit(a, b)
    show(result, as_json)
    raise typer.Exit(0 if result else 1)
