"""`samebits generate`."""

from __future__ import annotations

from typing import Annotated

import typer

from samebits.cli.options import Arch, AsJson, Quiet, reads, real, whole
from samebits.cli.output import show, working
from samebits.recipes.training import SEEDS


@reads({})
def generate_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A training folder of a language model, or a quantized .onnx."
        ),
    ],
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="What the text begins with.")],
    tokens: Annotated[int, whole("Tokens to draw.", 1)] = 100,
    seed: Annotated[int, whole("Seed of the draws.", 0, SEEDS)] = 0,
    top_k: Annotated[
        int | None, whole("Draw among the N most likely tokens [default: all].", 1)
    ] = None,
    temperature: Annotated[float, real("0 takes the most likely token each time.")] = 1.0,
    backend: Annotated[
        str,
        typer.Option(
            "--backends",
            metavar="NAMES",
            help="torch, reference, c, cortex-m3 ...; of several, separated by commas, all draw.",
        ),
    ] = "torch",
    arch: Arch = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Generate text with a language model in integers; exit code 1 where backends draw others."""
    names = [name.strip() for name in backend.split(",")]
    with working(quiet, as_json):
        from samebits import api

        result = api.load(model, arch=arch).generate(
            prompt,
            tokens,
            seed=seed,
            top_k=top_k,
            temperature=temperature,
            backends=names,
        )
    show(result, as_json)
    raise typer.Exit(0 if result else 1)
