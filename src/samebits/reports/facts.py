"""Facts about a model, for summaries: lines in words, JSON data, and everything in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from samebits.codegen.footprint import Footprint
from samebits.contract import UNKNOWN
from samebits.errors import SamebitsError
from samebits.ir import Graph, Trait, Value, has
from samebits.ir.figures import constant_bytes, graph_sha256, multiply_adds
from samebits.ir.integer.transfer import transfer_tables
from samebits.ir.printer import text
from samebits.model import Model, is_quantized
from samebits.npu.machine.assembly import to_text
from samebits.npu.machine.image import firmware_sha256
from samebits.npu.machine.program import Image, Program
from samebits.reports.html import Section
from samebits.reports.meaning import contract_lines
from samebits.reports.page.layers import footprint_of, layers_of
from samebits.reports.report import printable, section

PORTS = 6  # inputs, outputs or states that a summary shows of each
OPERATORS = 10
LONGEST = 200  # characters of a text from a file


@dataclass(frozen=True)
class Facts:
    """A thing in words and as data.

    lines:   the summary
    record:  JSON data
    listing: gives the sections that list everything
    """

    lines: Sequence[str]
    record: Mapping[str, Any]
    listing: Callable[[], list[Section]]


def shown(value: object) -> str:
    """A value from an untrusted file as a text that a terminal can show."""
    found = printable(str(value))
    return found if len(found) <= LONGEST else found[: LONGEST - 3] + "..."


def hash_lines(sha256: str) -> list[str]:
    """A hash to compare by eye, and the whole."""
    return [f"hash {sha256[:16]}", f"sha256 {sha256}"]


def counted(names: Iterable[str]) -> str:
    """So many in all, and of each, the most frequent first."""
    found = Counter(names)
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{count} {shown(name)}" for name, count in ordered[:OPERATORS]]
    if len(ordered) > OPERATORS:
        parts.append(f"{sum(n for _, n in ordered[OPERATORS:])} others")
    return f"{found.total():,}" + (f" ({', '.join(parts)})" if parts else "")


def model_facts(model: Model) -> Facts:
    """The facts of a network or of firmware."""
    if model.firmware is not None:
        return firmware_facts(model.program, model.image)
    return network_facts(model)


def kind_name(model: Model) -> str:
    """The name of the kind: float network, quantized network, integer network or firmware."""
    if model.firmware is not None:
        return "firmware"
    graph = model.real
    if graph.integer and graph.nodes:
        return "integer network"
    return "quantized network" if is_quantized(graph) else "float network"


# --- networks -----------------------------------------------------------------------------------


def network_facts(model: Model) -> Facts:
    """The facts of the integer form where there is one, else of the real graph."""
    real = model.real
    integer, problem = _integer_form(model)
    graph = real if integer is None else integer
    work, sha256 = multiply_adds(graph), graph_sha256(graph)
    formats = number_formats(real, integer)
    held = None if integer is None else footprint_of(graph, model.cpu, draft=True)
    layers = layers_of(graph, {}, held)
    lines = [*_port_lines(graph), f"layers: {counted(layer.op for layer in layers)}"]
    most = "" if held is None or held.exact else "at most "  # cubics take time
    where = "" if held is None else " in C"
    size = constant_bytes(graph) if held is None else held.constants
    lines.append(f"constants: {most}{size:,} bytes{where}")
    lines.append(f"multiply-adds: {work:,} in a {'step' if graph.states else 'pass'}")
    lines.append(f"numbers: {formats}")
    record: dict[str, Any] = {"quantized": kind_name(model) != "float network"}
    for key, level in (("real", model.graph or real), ("integer", integer)):
        if level is not None:
            record[key] = {
                "inputs": [str(level.values[name]) for name in level.inputs],
                "outputs": [str(level.values[name]) for name in level.outputs],
                "operators": dict(Counter(node.op for node in level.nodes)),
                "constant_bytes": constant_bytes(level),
            }
    if integer is not None:
        tables = transfer_tables(integer)
        record["tables"] = asdict(tables)
        record["c"] = None if held is None else _held(held)
        if tables.pairs:
            lines.append(
                f"tables: {tables.tables:,} ({most}{tables.bytes:,} "
                f"bytes{where}) for {tables.pairs:,} transfer functions"
            )
    if problem is not None:
        lines.append(f"no integer form: {problem}")
    meaning = None if model.lite is None else model.lite.meaning
    if meaning is not None:
        lines.append(f"meaning: {meaning}")
    lines += contract_lines(model.meaning)
    if model.rate is not None:
        lines.append(f"made for recordings of {model.rate:,} samples per second")
    record |= {
        "ports": {
            "inputs": [_port(graph.values[name]) for name in graph.own_inputs],
            "outputs": [_port(graph.values[name]) for name in graph.own_outputs],
            "states": [_port(graph.values[state.input]) for state in graph.states],
        },
        "multiply_adds": work,
        "formats": formats,
        "problem": problem,
        "rate": model.rate,
        "meaning": None if meaning is None else meaning.name,
        "contract": model.meaning.to_dict() if model.meaning != UNKNOWN else None,
        "sha256": sha256,
    }
    lines += hash_lines(sha256)
    return Facts(lines, record, lambda: _graph_listing(model.graph or real, integer))


def _held(held: Footprint) -> dict[str, Any]:
    """Layers and constants of the C, as data."""
    return {
        "layers": len(held.layers),
        "weights": held.weights,
        "tables": held.tables,
        "exact": held.exact,
    }


def _integer_form(model: Model) -> tuple[Graph | None, str | None]:
    """The integer form, or why a quantized network has none; neither of a float network."""
    if kind_name(model) == "float network":
        return None, None
    try:
        return model.integer, None
    except SamebitsError as error:
        return None, shown(error)


def _port_lines(graph: Graph) -> list[str]:
    """Inputs, outputs and states, a line each."""
    lines = []
    for kind, names in (("input", graph.own_inputs), ("output", graph.own_outputs)):
        lines += [f"{kind} {_value(graph.values[name])}" for name in names[:PORTS]]
        if len(names) > PORTS:
            lines.append(f"... and {len(names) - PORTS} more {kind}s")
    for state in graph.states[:PORTS]:
        initial = shown(state.initial) if state.initial else "zeros"
        lines.append(f"state {_value(graph.values[state.input])}, {initial} at first")
    if len(graph.states) > PORTS:
        lines.append(f"... and {len(graph.states) - PORTS} more states")
    if graph.states:
        count = len(graph.states)
        states = "1 state" if count == 1 else f"{count} states"
        lines.append(f"a step graph: one step of a sequence, with {states}")
    return lines


def _value(value: Value) -> str:
    line = shown(value)
    if value.quantization is not None:
        scales = [float(scale) for scale in value.quantization.scales]
        shown_scales = f"{min(scales):.9g}"
        if len(scales) > 1:
            shown_scales += f" to {max(scales):.9g} by feature"
        line += f", scale {shown_scales}, zero point {value.quantization.zero_point}"
    return line


def _port(value: Value) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": value.name,
        "dtype": value.dtype,
        "shape": list(value.shape),
    }
    if value.quantization is not None:
        scales = [float(scale) for scale in value.quantization.scales]
        found["scale"] = scales[0] if len(scales) == 1 else scales
        found["zero_point"] = value.quantization.zero_point
    return found


def number_formats(real: Graph, integer: Graph | None) -> str:
    """The formats of activations, weights, biases and sums; only types where nothing says more."""
    found: dict[str, set[str]] = {}
    for node in real.nodes:
        if node.op == "DequantizeLinear":
            codes, scale = (real.values[name] for name in node.inputs[:2])
            zero = real.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
            even = "symmetric" if zero is None or not zero.any() else "asymmetric"
            wide = codes.dtype.removeprefix("u") in ("int32", "int64")
            constant = "biases" if wide else "weights"
            role = constant if codes.name in real.constants else "activations"
            several = " per channel" if scale.size > 1 else ""
            found.setdefault(role, set()).add(f"{codes.dtype} {even}{several}")
    if not found:
        graph = real if integer is None else integer
        return ", ".join(sorted({value.dtype for value in graph.values.values()}))
    if integer is not None:
        sums = (n.output for n in integer.nodes if has(n.op, Trait.PRODUCT))
        found["sums"] = {integer.values[name].dtype for name in sums}
    return "; ".join(
        f"{role} {' or '.join(sorted(found[role]))}"
        for role in ("activations", "weights", "biases", "sums")
        if found.get(role)
    )


def _graph_listing(graph: Graph, integer: Graph | None) -> list[Section]:
    """The graph as it was read, and as integers."""
    found = [section(*text(graph).splitlines())]
    if integer is not None and integer is not graph:
        found.append(section(*text(integer).splitlines(), title="as integers:"))
    return found


# --- firmware -----------------------------------------------------------------------------------


def firmware_facts(program: Program, image: Image) -> Facts:
    """Sizes, ports, instructions and memories."""
    sha256 = firmware_sha256(program, image)
    operators = Counter(instruction.op for instruction in program.instructions)
    hints = {
        kind: {hint.name: list(hint.shape) for hint in program.hints if hint.kind == kind}
        for kind in ("input", "output")
    }
    held = {
        memory: {"entries": len(entries), "bytes": 2 * sum(e.size for e in entries.values())}
        for memory, entries in image.entries.items()
        if entries
    }
    lines = [f"native dimension {program.native}, mantissa {program.mantissa} bits"]
    for kind, ports in hints.items():
        lines += [f"{kind} {name}: float16{shape}" for name, shape in list(ports.items())[:PORTS]]
        if len(ports) > PORTS:
            lines.append(f"... and {len(ports) - PORTS} more {kind}s")
    lines.append(f"instructions: {counted(operators.elements())}")
    for memory in dict.fromkeys([*program.depths, *held]):
        depth = program.depths.get(memory)
        size = held.get(memory, {"entries": 0, "bytes": 0})
        deep = "no depth stated" if depth is None else f"depth {depth:,}"
        lines.append(
            f"memory {memory}: {deep}, {size['entries']:,} in the image ({size['bytes']:,} bytes)"
        )
    lines += hash_lines(sha256)
    record = {
        "native": program.native,
        "mantissa": program.mantissa,
        "instructions": len(program.instructions),
        "operators": dict(operators),
        "inputs": hints["input"],
        "outputs": hints["output"],
        "depths": dict(program.depths),
        "image": held,
        "sha256": sha256,
    }
    return Facts(lines, record, lambda: [section(*to_text(program).splitlines())])
