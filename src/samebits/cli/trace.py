"""`samebits trace` and `samebits audit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.output import log_console, print_json


def trace_command(
    model: Annotated[
        Path, typer.Argument(help="A quantized .onnx file, a training or compiled folder, or .nnp.")
    ],
    inputs: Annotated[str, typer.Option(help="An .npz archive of samples, or random:N.")],
    out: Annotated[Path, typer.Option(help="The trace, a JSON file.")],
    backend: Annotated[
        str | None, typer.Option(help="Which backend to trace; default reference (firmware: npu).")
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(help="Needed for a model of a module:callable of your own: its name."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of random:N.")] = 0,
) -> None:
    """Write the hash of every layer in every run, and its codes where the backend has them."""
    from samebits.errors import UnsupportedError
    from samebits.train.checkpoint import write_atomically
    from samebits.verify.backend import backend_named, check_subject
    from samebits.verify.inputs import read_inputs
    from samebits.verify.model import is_firmware, load_subject
    from samebits.verify.trace import to_record

    chosen = backend_named(backend or ("npu" if is_firmware(model) else "reference"))
    loaded = load_subject(model, arch)
    check_subject(chosen, loaded)
    samples = read_inputs(inputs, loaded.interface, seed)
    reason = chosen.unavailable()
    if reason is not None:
        raise UnsupportedError(reason)
    runs = chosen.trace(loaded, samples)
    record = to_record(loaded, str(model), chosen.name, runs)
    write_atomically(out, (json.dumps(record) + "\n").encode())
    log_console().print(f"{out}: {len(record['layers'])} layers, {len(runs)} runs")


def audit_command(
    a: Annotated[Path, typer.Argument(help="A trace.")],
    b: Annotated[Path, typer.Argument(help="Another trace of the same model and inputs.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Name the first layer, and the first elements, where two traces part; exit code 1 then."""
    from samebits.verify.trace import first_parting, read_trace

    parting = first_parting(read_trace(a), read_trace(b))
    if as_json:
        record = {"same_bits": parting is None}
        print_json({**record, "parting": None if parting is None else parting.to_dict()})
    elif parting is None:
        print("same bits: yes")
    else:
        print(f"run {parting.run}: layer {parting.layer!r} differs: ", end="")
        print(f"{parting.hashes[0]} in {a}, {parting.hashes[1]} in {b}")
        for index, left, right in parting.elements:
            print(f"  {list(index)}: {left} != {right}")
        if parting.differing is not None:
            print(f"{parting.differing} elements of this layer differ")
        print("same bits: NO")
    raise typer.Exit(0 if parting is None else 1)
