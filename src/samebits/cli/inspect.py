"""`samebits inspect`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from samebits.cli.options import AsJson
from samebits.cli.output import log_console, print_json, print_table
from samebits.cli.plan import print_plan


def inspect_command(
    file: Annotated[
        Path,
        typer.Argument(
            help="A training folder, a checkpoint, an .onnx file, compiled folder or plan."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show a checkpoint's tensors, an ONNX file's graph and its integer form, or a plan."""
    import torch

    from samebits.model import kind_of
    from samebits.recompute.plan.plan import read_plan
    from samebits.train.run.checkpoint import parameter_sha256
    from samebits.train.run.restore import open_checkpoint

    if file.suffix == ".json":
        plan = read_plan(file)
        if as_json:
            print_json({"file": str(file), "kind": "plan", **plan.to_dict()})
        else:
            print_plan(plan)
        return
    if kind_of(file) == "graph":
        _inspect_graph(file, as_json)
        return
    path, checkpoint = open_checkpoint(file, log_console().print)
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
    print_table(table)
    print(f"sha256 {sha256}")


def _inspect_graph(file: Path, as_json: bool) -> None:
    """The real graph as it was imported, and the integer graph if it is quantized."""
    from samebits.ir.integer.transfer import transfer_tables
    from samebits.ir.printer import text
    from samebits.model import is_quantized, load

    model = load(file)
    graph = model.graph
    assert graph is not None
    integer = model.integer if is_quantized(graph) else None
    if as_json:
        record: dict[str, Any] = {"file": str(file), "kind": "graph", "quantized": bool(integer)}
        for key, level in (("real", graph), ("integer", integer)):
            if level is not None:
                record[key] = {
                    "inputs": [str(level.values[name]) for name in level.inputs],
                    "outputs": [str(level.values[name]) for name in level.outputs],
                    "operators": dict(Counter(node.op for node in level.nodes)),
                    "constant_bytes": sum(array.nbytes for array in level.constants.values()),
                }
        if integer is not None:
            record["tables"] = asdict(transfer_tables(integer))
        print_json(record)
        return
    print(text(graph), end="")
    if integer is not None:
        print("\nas integers:")
        print(text(integer), end="")
