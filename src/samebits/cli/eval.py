"""`samebits eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.model import open_model
from samebits.cli.output import print_json, set_threads


def eval_command(
    model: Annotated[Path, typer.Argument(help="A training output folder or a checkpoint file.")],
    data: Annotated[str, typer.Option(help="digits, a folder of images, or an .npz file.")],
    arch: Annotated[
        str | None,
        typer.Option(help="Needed to run a model of a module:callable of your own: its name."),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Test accuracy of a trained model."""
    from samebits.data import load
    from samebits.train.checkpoint import parameter_sha256
    from samebits.train.loop import evaluate, restore_engine

    set_threads(threads)
    path, checkpoint = open_model(model)
    dataset = load(data)
    engine = restore_engine(path, checkpoint, dataset, arch)
    correct = evaluate(engine, dataset)
    total = len(dataset.test_labels)
    sha256 = parameter_sha256(checkpoint.model)
    if as_json:
        print_json(
            {
                "model": str(path),
                "data": data,
                "step": checkpoint.step,
                "accuracy": correct / total,
                "correct": correct,
                "test_count": total,
                "sha256": sha256,
            }
        )
        return
    print(f"accuracy {100 * correct / total:.2f} % ({correct} of {total})")
    print(f"sha256 {sha256}")
