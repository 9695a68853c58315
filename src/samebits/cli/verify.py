"""`samebits verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.status import Status
from rich.table import Table
from rich.text import Text

from samebits.cli.options import Arch, AsJson, Samples, SampleSeed
from samebits.cli.output import log_console, print_json, print_table


def verify_command(
    model: Annotated[
        Path, typer.Argument(help="A quantized .onnx file, a training or compiled folder, or .nnp.")
    ],
    inputs: Samples,
    backends: Annotated[
        str | None,
        typer.Option(
            help="Names, separated by commas; default torch,c,onnxruntime (firmware: "
            "concordant-torch,concordant-onnx)."
        ),
    ] = None,
    arch: Arch = None,
    seed: SampleSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Run a model on several backends and compare their bits; exit code 1 on any difference."""
    from samebits.model import load
    from samebits.verification.inputs import read_inputs, step
    from samebits.verification.registry import backend_named
    from samebits.verification.run import default_backends, verify_model

    names = None if backends is None else tuple(backends.split(","))
    for name in names or ():
        backend_named(name)
    loaded = load(model, arch)
    names = names or default_backends(loaded)
    ports = loaded.interface
    samples = read_inputs(inputs, ports, seed)
    console = log_console()
    with Status("reference", console=console) as status:
        _, verdicts = verify_model(loaded, samples, names, started=status.update)
    compared = [v for v in verdicts if v.skipped is None]
    same = all(v.equal for v in compared) if compared else None
    if as_json:
        print_json(
            {
                "model": str(model),
                "samples": len(samples[0]) // step(ports.values[ports.inputs[0]]),
                "same_bits": same,
                "verdicts": [v.to_dict() for v in verdicts],
            }
        )
        raise typer.Exit(0 if same else 1)
    table = Table("backend", "differing", "of", "largest", "samples", "sha256")
    for v in verdicts:
        if v.skipped is not None:
            table.add_row(v.backend, Text(f"skipped: {v.skipped}"))
            continue
        table.add_row(
            v.backend,
            f"{v.differing:,}",
            f"{v.total:,}",
            f"{v.largest:g}",
            f"{v.samples} of {v.sample_count}",
            v.sha256[:16],
        )
    print_table(table)
    for v in verdicts:
        for d in v.first:
            print(f"{v.backend}: output {d.output!r} {list(d.index)}: {d.expected} != {d.found}")
        if v.note and not v.equal:
            print(f"{v.backend}: {v.note}")
    print({True: "same bits: yes", False: "same bits: NO", None: "nothing compared"}[same])
    raise typer.Exit(0 if same else 1)
