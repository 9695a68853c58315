"""`samebits trace` and `samebits audit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.cli.options import Arch, AsJson, Samples, SampleSeed
from samebits.cli.output import log_console, print_json
from samebits.errors import InputError

if TYPE_CHECKING:
    from samebits.verification.trace import Parting
    from samebits.verification.training_trace import TrainingParting


def trace_command(
    model: Annotated[
        Path, typer.Argument(help="A quantized .onnx file, a training or compiled folder, or .nnp.")
    ],
    inputs: Samples,
    out: Annotated[Path, typer.Option(help="The trace, a JSON file.")],
    backend: Annotated[
        str | None, typer.Option(help="Which backend to trace; default reference (firmware: npu).")
    ] = None,
    arch: Arch = None,
    seed: SampleSeed = 0,
) -> None:
    """Write the hash of every layer in every run, and its codes where the backend has them."""
    from samebits.errors import UnsupportedError
    from samebits.files import write_atomically
    from samebits.model import load
    from samebits.verification.inputs import read_inputs
    from samebits.verification.registry import backend_named, check_needs
    from samebits.verification.run import reference_of
    from samebits.verification.trace import to_record

    if backend is not None:
        backend_named(backend)  # an unknown name is refused before a model is read
    loaded = load(model, arch)
    chosen = backend_named(backend or reference_of(loaded))
    check_needs(chosen, loaded)
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
    as_json: AsJson = False,
) -> None:
    """Name the first layer, or training step, where two traces part; exit code 1 then."""
    from samebits.verification.training_trace import is_training_trace

    training = [is_training_trace(path) for path in (a, b)]
    if training[0] != training[1]:
        raise InputError("expected two traces of one kind, found one of training and one not")
    found, more, lines = (_audit_training if training[0] else _audit_runs)(a, b)
    if as_json:
        parting = None if found is None else found.to_dict()
        print_json({"same_bits": found is None, **more, "parting": parting})
    else:
        for line in lines:
            print(line)
        print("same bits: yes" if found is None else "same bits: NO")
    raise typer.Exit(0 if found is None else 1)


def _audit_runs(a: Path, b: Path) -> tuple[Parting | None, dict[str, int], list[str]]:
    """Where two traces of a model's runs part, in JSON what it says besides, and lines of text."""
    from samebits.verification.trace import first_parting, read_trace

    parting = first_parting(read_trace(a), read_trace(b))
    if parting is None:
        return None, {}, []
    lines = [
        f"run {parting.run}: layer {parting.layer!r} differs: {parting.hashes[0]} in {a}, "
        f"{parting.hashes[1]} in {b}",
        *(f"  {list(index)}: {left} != {right}" for index, left, right in parting.elements),
    ]
    if parting.differing is not None:
        lines.append(f"{parting.differing} elements of this layer differ")
    return parting, {}, lines


def _audit_training(a: Path, b: Path) -> tuple[TrainingParting | None, dict[str, int], list[str]]:
    """The same for two training traces."""
    from samebits.verification.training_trace import audit

    result = audit(a, b)
    parting, lines = result.parting, [f"{result.steps} steps agree"]
    if parting is not None:
        shard = "" if parting.shard is None else f", shard {parting.shard}"
        lines.append(
            f"step {parting.step}{shard}: {parting.tensor} differs: {parting.hashes[0]} in {a}, "
            f"{parting.hashes[1]} in {b}"
        )
    return parting, {"steps": result.steps}, lines
