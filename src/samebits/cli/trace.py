"""`samebits trace` and `samebits audit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.output import log_console, print_json
from samebits.errors import InputError


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
    from samebits.files import write_atomically
    from samebits.model import is_firmware, load_subject
    from samebits.verification.backend import backend_named, check_subject
    from samebits.verification.inputs import read_inputs
    from samebits.verification.trace import to_record

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
    b: Annotated[Path, typer.Argument(help="Another trace, of the same model and inputs or run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Name the first layer, or training step, where two traces part; exit code 1 then."""
    from samebits.verification.training_trace import is_training_trace

    training = [is_training_trace(path) for path in (a, b)]
    if training[0] != training[1]:
        raise InputError("expected two traces of one kind, found one of training and one not")
    parted = (_audit_training if training[0] else _audit_runs)(a, b, as_json)
    if not as_json:
        print("same bits: NO" if parted else "same bits: yes")
    raise typer.Exit(1 if parted else 0)


def _audit_runs(a: Path, b: Path, as_json: bool) -> bool:
    from samebits.verification.trace import first_parting, read_trace

    parting = first_parting(read_trace(a), read_trace(b))
    if as_json:
        record = {"same_bits": parting is None}
        print_json({**record, "parting": None if parting is None else parting.to_dict()})
    elif parting is not None:
        print(f"run {parting.run}: layer {parting.layer!r} differs: ", end="")
        print(f"{parting.hashes[0]} in {a}, {parting.hashes[1]} in {b}")
        for index, left, right in parting.elements:
            print(f"  {list(index)}: {left} != {right}")
        if parting.differing is not None:
            print(f"{parting.differing} elements of this layer differ")
    return parting is not None


def _audit_training(a: Path, b: Path, as_json: bool) -> bool:
    from samebits.verification.training_trace import audit

    result = audit(a, b)
    parting = result.parting
    if as_json:
        record = {"same_bits": parting is None, "steps": result.steps}
        print_json({**record, "parting": None if parting is None else parting.to_dict()})
        return parting is not None
    print(f"{result.steps} steps agree")
    if parting is not None:
        where = f"step {parting.step}" + (
            "" if parting.shard is None else f", shard {parting.shard}"
        )
        print(f"{where}: {parting.tensor} differs: ", end="")
        print(f"{parting.hashes[0]} in {a}, {parting.hashes[1]} in {b}")
    return parting is not None
