"""Summaries of files and folders: about a dozen lines, JSON data, or everything they hold."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebits import progress
from samebits.codegen.image import LARGEST, read_head
from samebits.codegen.image import SUFFIX as IMAGE
from samebits.codegen.run.interface import REPORT, Interface, read_report
from samebits.elsewhere import check_foreign
from samebits.entrance import opened, read
from samebits.errors import InputError, SamebitsError
from samebits.excerpt import WHOLE, Excerpt
from samebits.model import CHECKPOINT, EXPORTED, LITE, Model, check_part, kind_of, load, model_file
from samebits.npu.machine.image import SUFFIX
from samebits.reports.facts import Facts, counted, hash_lines, kind_name, model_facts, shown
from samebits.reports.html import Table
from samebits.reports.report import Report, printable, section
from samebits.verification.score import figures_text

if TYPE_CHECKING:
    from samebits.train.deployed.deploy import Exponents

DEVICE = ".toml"
SNIFFED = 1024  # bytes in which a file must say its format
# Bytes, in report.json.
PACKAGE = ("weights", "tables", "arena", "block", "state", "stack_cortex_m")

OUTPUTS = {"regression": "targets", "multilabel": "labels"}  # of tasks; of others, classes

EXPECTED = (
    f"an .onnx, {EXPORTED} or {LITE} file, an {SUFFIX} program, a compiled or training folder, a "
    f"{CHECKPOINT} checkpoint, a plan, a trace, a {DEVICE} device file or an image of weights"
)


def network_summary(source: str, kind: str, model: Model) -> Report:
    """The summary of a model that is called `source` and is of that kind."""
    return Report(f"{printable(source)}: {kind}", "", [section(*model_facts(model).lines)])


def summarize(
    path: Path, *, nodes: bool = False, arch: str | None = None, part: Excerpt = WHOLE
) -> Report:
    """The summary of anything that samebits writes, or of a network of another tool.

    nodes: all nodes and constants, tensors, sub-layers, instructions or layers after it
    arch:  repeats the name of the module:callable of a training folder, whose code then runs
    part:  what is taken of a network, as `model.load` takes it

    Raises InputError for anything else and for an option that does not apply, and SamebitsError for
    what cannot be read.
    """
    kind, facts = _examine(path, arch, part)
    more = facts.listing() if nodes else []
    return Report(f"{printable(str(path))}: {kind}", "", [section(*facts.lines), *more])


def summary_record(path: Path, *, arch: str | None = None, part: Excerpt = WHOLE) -> dict[str, Any]:
    """The same as JSON data, tensors and sub-layers included. Errors as `summarize`."""
    return dict(_examine(path, arch, part)[1].record)


def _examine(path: Path, arch: str | None, part: Excerpt) -> tuple[str, Facts]:
    """The kind in words, and the facts."""
    known = kind_of(path)
    if known in ("training", None):
        check_foreign(path, EXPECTED)
    if path.suffix == CHECKPOINT and path.with_suffix(SUFFIX).is_file():
        raise InputError(
            f"{path}: expected {EXPECTED}, found the memory image of a program; give "
            f"{path.with_suffix(SUFFIX).name}"
        )
    if (path / REPORT).is_file() and known == "training" and not any(path.glob(f"*{CHECKPOINT}")):
        known = None  # C without the network that it was generated from
    check_part(part, known, path)
    if known == "training":
        return _trained(path, arch)
    if known is not None:
        return _model(path, load(path, arch, part=part))
    if arch is not None:
        raise InputError(
            f"{path}: --arch applies to training folders and checkpoints, found {arch!r} for "
            "something else; leave it out"
        )
    kind, read = _reader(path)
    facts = read(path)
    return kind, replace(facts, record={"file": str(path), "kind": kind, **facts.record})


def _reader(path: Path) -> tuple[str, Callable[[Path], Facts]]:
    """The kind of a file or folder that holds no model, and what reads it."""
    if path.is_dir():
        return "package", _package
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; expected {EXPECTED}")
    if path.suffix == DEVICE:
        return "device", _device
    if path.suffix == IMAGE:
        return "image of weights", _image
    stated = _stated_format(path)
    if stated in ("package", "run"):
        raise InputError(f"{path}: expected {EXPECTED}, found a file of a folder; give the folder")
    kinds = {"plan": _plan, "trace": _trace, "training-trace": _training_trace}
    if stated not in kinds:
        raise InputError(
            f"{path}: expected {EXPECTED}, found a file ending in {path.suffix or 'nothing'} that "
            "states no format of samebits; give a file that samebits wrote"
        )
    return stated.replace("-", " "), kinds[stated]


def _stated_format(path: Path) -> str:
    """The format that a JSON file states at its beginning, without samebits and version: "plan"
    of samebits-plan-2; "" where it states none."""
    try:
        with opened(path) as file:
            begin = file.read(SNIFFED)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror or error}); expected {EXPECTED}"
        ) from error
    stated = re.search(rb'"format"\s*:\s*"samebits-([a-z-]{1,40})-\d', begin)
    return stated[1].decode() if stated else ""


# --- models -------------------------------------------------------------------------------------


def _model(path: Path, model: Model) -> tuple[str, Facts]:
    """A graph or firmware, with the package of C around it."""
    kind, facts = kind_name(model), model_facts(model)
    record: dict[str, Any] = {"file": str(path), "kind": "graph"}
    if model.firmware is not None:
        record["kind"] = "firmware"
    record |= facts.record
    lines = list(facts.lines)
    if (path / REPORT).is_file() and model_file(path) is not None:
        kind = f"{kind}, compiled to C"
        report = read_report(path)
        lines[-2:-2] = _package_lines(report)
        record["package"] = report
    return kind, replace(facts, lines=lines, record=record)


def _package(folder: Path) -> Facts:
    """A package of C without its network."""
    report, ports = read_report(folder), Interface.read(folder)
    lines = [
        *(f"input {shown(value)}" for value in ports.inputs),
        *(f"output {shown(value)}" for value in ports.outputs),
        *_package_lines(report),
    ]
    layers = report.get("layers")
    layers = layers if isinstance(layers, list) else []
    rows = [
        tuple(shown(layer.get(key, "")) for key in ("name", "op", "dtype", "shape"))
        for layer in layers
        if isinstance(layer, Mapping)
    ]
    table = Table(("layer", "operator", "type", "shape"), rows)
    return Facts(lines, {"package": report}, lambda: [section(table)])


def _package_lines(report: Mapping[str, Any]) -> list[str]:
    sizes = (f"{key} {report[key]:,}" for key in PACKAGE if type(report.get(key)) is int)
    lines = [f"C: names begin with {shown(report.get('prefix'))}; bytes: {', '.join(sizes)}"]
    if report.get("structure"):
        lines.append(f"structure {shown(report['structure'])}: of the images of weights it takes")
    return lines


def _image(path: Path) -> Facts:
    """The head of an image of weights."""
    record = read_head(read(path, LARGEST), str(path))
    named = [shown(record[key]) for key in ("name", "version") if record[key]]
    lines = [
        *([f"model {' '.join(named)}"] if named else []),
        f"{record['bytes']:,} bytes, format {record['format']}",
        f"structure {record['structure']}: of the code that takes it, in its report.json",
        f"hash {record['hash']}",
    ]
    return Facts(lines, record, list)


# --- training -----------------------------------------------------------------------------------


def _trained(path: Path, arch: str | None) -> tuple[str, Facts]:
    """The newest checkpoint of a folder, or one file; of its network where that can be built."""
    from samebits.train.run.checkpoint import parameter_sha256
    from samebits.train.run.record import RESULT, read_json
    from samebits.train.run.restore import open_checkpoint

    file, checkpoint = open_checkpoint(path, progress.note)
    config = checkpoint.config
    tensors = [_tensor(name, tensor) for name, tensor in sorted(checkpoint.model.items())]
    sha256 = parameter_sha256(checkpoint.model)
    network, problem = _network(file, arch)  # the folder has been looked at
    size = sum(tensor.nbytes for tensor in checkpoint.model.values())
    lines = [
        f"checkpoint {printable(str(file))} after step {checkpoint.step:,}, epoch "
        f"{shown(checkpoint.progress.get('epoch'))} of {shown(config.get('epochs'))}",
        f"architecture {shown(config.get('arch'))} in {shown(config.get('numerics'))}, input "
        f"{shown(config.get('input_shape'))}, {shown(config.get('classes'))} "
        f"{OUTPUTS.get(str(config.get('task')), 'classes')}",
        f"trained on {shown(config.get('data'))} (sha256 {shown(config.get('data_sha256'))[:16]})",
        f"{shown(config.get('optimizer'))}, lr {shown(config.get('lr'))}, batches of "
        f"{shown(config.get('batch'))}, seed {shown(config.get('seed'))}",
    ]
    result = read_json(path / RESULT) if path.is_dir() else {}
    accuracy = result.get("accuracy")
    metrics = result.get("metrics")
    if result.get("sha256") == sha256 and isinstance(metrics, dict):
        known = {k: v for k, v in metrics.items() if isinstance(v, float)}
        lines.append(f"{', '.join(figures_text(known))} on its test samples")
    elif result.get("sha256") == sha256 and isinstance(accuracy, float):
        lines.append(f"accuracy {100 * accuracy:.2f} % on its test samples")
    lines.append(f"parameters: {len(tensors)} tensors of {size:,} bytes")
    if checkpoint.exponents is not None:
        lines.append(_frozen_line(checkpoint.exponents))
    kept = ("model ", "input ", "output ", "state ", "layers: ", "multiply-adds: ")
    lines += [line for line in network.lines if line.startswith(kept)] if network else []
    lines += [f"as a network: {problem}"] if problem else []
    lines += hash_lines(sha256)
    record = {
        "file": str(file),
        "kind": "checkpoint",
        "step": checkpoint.step,
        "config": config,
        "progress": checkpoint.progress,
        "tensors": tensors,
        "sha256": sha256,
        "exponents": checkpoint.exponents.to_dict() if checkpoint.exponents else None,
        "network": network.record if network else None,
        "problem": problem,
    }
    options = [f"{shown(key)} {shown(value)}" for key, value in config.items()]
    places = [section(_site_table(checkpoint.exponents))] if checkpoint.exponents else []
    return "training checkpoint", Facts(
        lines, record, lambda: [section(*options), section(_tensor_table(tensors)), *places]
    )


def _frozen_line(exponents: Exponents) -> str:
    """The count of places with frozen exponents, and the one where most samples saturate."""
    text = f"frozen exponents at {len(exponents.sites)} places"
    worst = max(exponents.sites, key=lambda site: site.above, default=None)
    if worst is None or not worst.above:
        return f"{text}, of {exponents.samples} samples none saturates"
    return (
        f"{text}, of {exponents.samples} samples up to {worst.above} saturate at one "
        f"({printable(worst.name)})"
    )


def _site_table(exponents: Exponents) -> Table:
    """Every place, its frozen exponent, the share that saturates, and how far samples differ."""
    rows = [
        (
            printable(site.name),
            str(site.exponent),
            f"{100 * site.above / max(exponents.samples, 1):.1f} %",
            str(site.spread),
        )
        for site in exponents.sites
    ]
    return Table(("place", "exponent", "samples that saturate", "binades above the median"), rows)


def _network(path: Path, arch: str | None) -> tuple[Facts | None, str | None]:
    """The facts of the trained network, or why there are none: its layers are code that was not
    asked for, or it cannot be deployed yet."""
    try:
        return model_facts(load(path, arch)), None
    except SamebitsError as error:
        if arch is not None:
            raise
        return None, shown(error)


def _tensor(name: str, tensor: Any) -> dict[str, Any]:
    """Name, type and shape of a tensor of a checkpoint, and the exponent that one is."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    entry: dict[str, Any] = {"name": name, "dtype": dtype, "shape": list(tensor.shape)}
    if name.endswith(".exponent") and dtype == "int64" and tensor.numel() == 1:
        entry["exponent"] = int(tensor)
    return entry


def _tensor_table(tensors: list[dict[str, Any]]) -> Table:
    rows = [
        (
            printable(entry["name"]),
            entry["dtype"],
            "x".join(map(str, entry["shape"])) or "scalar",
            str(entry.get("exponent", "")),
        )
        for entry in tensors
    ]
    return Table(("tensor", "dtype", "shape", "exponent"), rows)


# --- plans and devices --------------------------------------------------------------------------


def _plan(path: Path) -> Facts:
    """A plan's figures, as `samebits plan` shows them."""
    from samebits.recompute.plan.plan import read_plan
    from samebits.reports.recompute import plan_rows, plan_summary

    plan = read_plan(path)
    kept = sum(layer.stored for layer in plan.layers)
    lines = [
        f"for {plan.arch} in {plan.numerics}, {plan.samples:,} samples a pass, on {plan.device}",
        f"budget: {'none' if plan.budget is None else f'{plan.budget:,} bytes'}",
        f"results of sub-layers: {kept} kept, {len(plan.layers) - kept} dropped",
        f"backward pass: {plan.backward}",
        *plan_summary(plan),
    ]
    return Facts(lines, plan.to_dict(), lambda: [section(Table(*plan_rows(plan)))])


def _device(path: Path) -> Facts:
    """A device's rates and memories."""
    from samebits.recompute.plan.cost import find_device

    device = find_device(str(path))
    lines = [
        f"name {device.name}",
        f"integers: {device.integer_operations_per_second:,} operations per second",
        f"floats: {device.float_operations_per_second:,} operations per second",
        f"other operations: {device.pointwise_operations_per_second:,} per second",
        f"overhead: {device.overhead_ns:,} ns for each sub-layer",
        f"dispatch: {device.dispatch_ns:,} ns",
        *(
            f"memory {tier.name}: {tier.bytes:,} bytes, {tier.bytes_per_second:,} bytes per "
            f"second, latency {tier.latency_ns:,} ns"
            for tier in device.tiers
        ),
    ]
    return Facts(lines, asdict(device), list)


# --- traces -------------------------------------------------------------------------------------


def _trace(path: Path) -> Facts:
    """A trace of a model's runs. Its hash is that of the layers and of their hashes."""
    from samebits.verification.trace import read_trace

    trace = read_trace(path)
    layers, runs = trace["layers"], trace["runs"]
    sha256 = hashlib.sha256(json.dumps([layers, runs], sort_keys=True).encode()).hexdigest()
    lines = [
        f"of {shown(trace.get('model'))} on {shown(trace.get('backend'))}",
        f"layers: {counted(shown(layer.get('op', 'unknown')) for layer in layers)}",
        f"runs: {len(runs):,}",
        f"codes: {'of every layer' if 'codes' in trace else 'none, hashes only'}",
        *hash_lines(sha256),
    ]
    record = {key: trace.get(key) for key in ("format", "model", "backend", "layers")}
    record |= {"runs": len(runs), "codes": "codes" in trace, "sha256": sha256}
    return Facts(lines, record, lambda: [section(trace_table(trace))])


def trace_table(trace: Mapping[str, Any]) -> Table:
    """The layers of a trace with the hashes of its first run."""
    first = trace["runs"][0] if trace["runs"] else [""] * len(trace["layers"])
    rows = [
        (
            shown(layer["name"]),
            shown(layer.get("op", "")),
            f"{layer['dtype']}{layer['shape']}",
            code,
        )
        for layer, code in zip(trace["layers"], first, strict=True)
    ]
    columns = ("layer", "operator", "type", "hash in the first run")
    return Table(columns, rows, code=columns[-1:])


def _training_trace(path: Path) -> Facts:
    """A training trace. Its hash is that of the parameters after the last step, by name."""
    from samebits.verification.training_trace import read_training_trace

    trace = read_training_trace(path)
    state = dict(zip(trace.parameters, trace.state, strict=True))
    sha256 = hashlib.sha256(json.dumps(state).encode()).hexdigest()
    run = trace.run
    lines = [
        f"of {shown(run.get('arch'))} in {shown(run.get('numerics'))}, lr {shown(run.get('lr'))}, "
        f"batches of {shown(run.get('batch'))}, seed {shown(run.get('seed'))}",
        f"steps: {trace.last - trace.first:,}, from {trace.first:,} to {trace.last:,}, "
        f"{trace.shards} shards in the last",
        f"layers: {len(trace.layers)}",
        f"parameters: {len(trace.parameters)}",
        *hash_lines(sha256),
    ]
    record = {
        "run": run,
        "layers": list(trace.layers),
        "parameters": state,
        "first_step": trace.first,
        "last_step": trace.last,
        "sha256": sha256,
    }
    rows = [(shown(name), "none" if code is None else code) for name, code in state.items()]
    columns = ("parameter", "hash after the last step")
    table = Table(columns, rows, code=columns[-1:])
    names = section(*(f"layer {shown(name)}" for name in trace.layers))
    return Facts(lines, record, lambda: [names, section(table)])
