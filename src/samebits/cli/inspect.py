"""`samebits inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.cli.model import open_model
from samebits.cli.output import print_json


def inspect_command(
    file: Annotated[Path, typer.Argument(help="A training output folder or a checkpoint file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """What a checkpoint holds: tensors, shapes, dtypes, exponents, SHA-256."""
    import torch

    from samebits.train.checkpoint import parameter_sha256

    path, checkpoint = open_model(file)
    tensors: list[dict[str, Any]] = []
    for name, tensor in sorted(checkpoint.model.items()):
        entry: dict[str, Any] = {
            "name": name,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
        }
        if name.endswith(".exponent") and tensor.dtype == torch.int64 and tensor.numel() == 1:
            entry["exponent"] = int(tensor)
        tensors.append(entry)
    sha256 = parameter_sha256(checkpoint.model)
    if as_json:
        print_json(
            {
                "file": str(path),
                "kind": "checkpoint",
                "step": checkpoint.step,
                "config": checkpoint.config,
                "progress": checkpoint.progress,
                "tensors": tensors,
                "sha256": sha256,
            }
        )
        return
    print(f"checkpoint {path}")
    print(f"step {checkpoint.step}")
    for key, value in checkpoint.config.items():
        print(f"{key} {value}")
    table = Table("tensor", "dtype", "shape", "exponent")
    for entry in tensors:
        shape = "x".join(str(size) for size in entry["shape"]) or "scalar"
        exponent = str(entry["exponent"]) if "exponent" in entry else ""
        table.add_row(Text(entry["name"]), entry["dtype"], shape, exponent)
    Console(highlight=False).print(table)
    print(f"sha256 {sha256}")
