"""`samebits eval`."""

from __future__ import annotations

from typing import Annotated

import typer

from samebits.cli.options import Arch, AsJson, Data, Quiet, Threads
from samebits.cli.output import show, working


def eval_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A training folder, a checkpoint, .onnx, .nnp or compiled folder.",
        ),
    ],
    data: Data,
    arch: Arch = None,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="Where a trained model computes: cpu or cuda.")
    ] = "cpu",
    threads: Threads = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Test accuracy of a network or of firmware."""
    with working(quiet, as_json):
        from samebits import api

        result = api.evaluate(model, data, arch=arch, device=device, threads=threads)
    show(result, as_json)
