"""The page of a network: quality, bits, cost, graph, layers, memory, weights, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from samebits.codegen.run.profile import LayerCost
from samebits.codegen.run.requirements import Requirements
from samebits.errors import InputError, SamebitsError
from samebits.ir import Graph
from samebits.ir.figures import constant_bytes, graph_sha256
from samebits.model import Model
from samebits.quantization.causes import TensorLoss, causes
from samebits.reports.html import Paragraph, Section
from samebits.reports.meaning import contract_section
from samebits.reports.page.arena import arena_section
from samebits.reports.page.cost import clock_hz, cost_section
from samebits.reports.page.graph import graph_section
from samebits.reports.page.layers import footprint_of, format_text, inputs_of, layers_of
from samebits.reports.page.quality import quality_section
from samebits.reports.page.rows import layers_section
from samebits.reports.page.run import run_sections
from samebits.reports.page.tables import tables_section
from samebits.reports.page.verdict import BackendsCompared, verdict_section
from samebits.reports.page.weights import weights_section
from samebits.reports.report import printable
from samebits.verification.quality import Quality

Array = np.ndarray[Any, Any]
COST = "What quantization cost"


@dataclass(frozen=True, eq=False)
class NetworkFacts:
    """The facts of a network besides itself.

    compared: a verification
    samples:  for the inputs of the real graph, to measure losses on
    origin:   the float network that it was quantized from
    quality:  its answers to samples with labels; unmeasured: why there are none, and what its run
              has recorded
    profile:  a board, and the instructions of its layers and of one run there; uncounted: why there
              are none
    needs:    bytes measured on boards; clock: by which a time is estimated, such as 64MHz
    cost:     sections on what quantization cost; made: on what was made of it
    run:      the folder of the training run; saved: where the network lies, for commands
    cpu:      the processor that its C is for, by default the model's own
    other_meaning: what the other meaning of a .tflite file would change, in words
    """

    compared: BackendsCompared | None = None
    samples: Sequence[Sequence[Array]] = ()
    origin: Graph | None = None
    quality: Quality | None = None
    unmeasured: tuple[str, str] = ("", "")
    profile: tuple[str, Sequence[LayerCost], int] | None = None
    needs: Sequence[Requirements] = ()
    clock: str = ""
    uncounted: str = ""
    cost: Sequence[Section] = ()
    made: Sequence[Section] = ()
    run: Path | None = None
    saved: str = ""
    cpu: str = ""
    other_meaning: str = ""


class Named(Protocol):
    """A network with its name and its kind in words."""

    @property
    def source(self) -> str: ...

    @property
    def kind(self) -> str: ...


def check_options(
    net: Named,
    sampled: bool,
    against: Named | None,
    board: str | None,
    clock: str | None,
) -> None:
    """Raise InputError for an option that does not apply to the page of a network.

    sampled: samples were given; against: the network to measure losses against
    """
    kind = net.kind
    if clock is not None:
        clock_hz(clock)
        if board is None:
            raise InputError(f"--clock {clock}: expected --board, whose instructions it times")
    if against is not None and against.kind != "float network":
        raise InputError(
            f"--against: expected a float network, found {against.source}: {against.kind}"
        )
    if against is not None and not sampled:
        raise InputError("--against needs samples, found none; give --data SAMPLES")
    options = {"--data": sampled, "--against": against, "--board": board}
    for option, value in options.items():
        applies = kind not in ("float network", "firmware")
        applies = applies or (option == "--data" and kind == "firmware")
        if value and not applies:
            raise InputError(
                f"{net.source}: {option} applies to a quantized network, found a {kind}; leave "
                "it out, or quantize it first"
            )


def network_sections(model: Model, kind: str, facts: NetworkFacts) -> list[Section]:
    """All sections of the page: how good it is, the bits, the cost, then the rest."""
    real = model.real
    integer, problem = _integer(model, kind)
    graph = real if integer is None else integer
    cpu = facts.cpu or model.cpu
    held = None if integer is None else footprint_of(graph, cpu)
    formats = _formats(real, graph)
    layers = layers_of(graph, formats, held)
    constants = constant_bytes(graph) if held is None else held.constants
    rounds = kind != "integer network"  # whose own roundings nothing says how to leave out
    losses = _losses(real, graph, facts) if facts.samples and rounds else {}
    notes = _notes(kind, facts, losses, problem)
    place = facts.saved or model.source
    cost = [block for part in facts.cost for block in part.blocks]
    meaning = None if model.lite is None else model.lite.meaning
    said = f"Read in the meaning {meaning}. {facts.other_meaning}".strip()
    stated = [] if meaning is None else [Paragraph(said)]
    verdict = verdict_section(place, kind, graph_sha256(graph), facts.compared)
    named = any(output.names for output in model.meaning.outputs)
    costs = {} if facts.profile is None else {facts.profile[0]: facts.profile[1]}
    totals = {} if facts.profile is None else {facts.profile[0]: facts.profile[2]}
    processor = None if held is None else cpu
    found: list[Section | None] = [
        None
        if kind == "float network"
        else quality_section(facts.quality, named, *facts.unmeasured),
        Section(verdict.title, [verdict.blocks[0], *stated, *verdict.blocks[1:]]),
        cost_section(graph, layers, constants, processor, facts.needs, totals, facts.clock),
        contract_section(model.meaning),
        *facts.made,
        *run_sections(facts.run),
        graph_section(graph, layers),
        layers_section(inputs_of(graph, formats), layers, losses, costs, notes, constants),
        None if held is None else arena_section(graph, cpu),
        weights_section(graph, layers),
        None if integer is None else tables_section(integer, real, held is not None),
        Section(COST, cost) if cost else None,
    ]
    return [part for part in found if part is not None]


def _integer(model: Model, kind: str) -> tuple[Graph | None, str]:
    """The integer form, or why a quantized network has none."""
    if kind == "float network":
        return None, ""
    try:
        return model.integer, ""
    except SamebitsError as error:
        why = printable(str(error))
        return None, f"It has no integer form, so its graph is shown as it was read: {why}"


def _formats(real: Graph, graph: Graph) -> dict[str, str]:
    """Formats of values in words: as the graph says, or the QuantizeLinear that made the codes."""
    found = {
        name: format_text(value.dtype, value.quantization)
        for name, value in graph.values.items()
        if value.quantization is not None
    }
    for node in real.nodes:
        if node.op != "QuantizeLinear" or node.output in found:
            continue
        scale = real.constants.get(node.inputs[1])
        if scale is None or not scale.size:
            continue
        zero = real.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
        point = 0 if zero is None or not zero.size else int(zero.reshape(-1)[0])
        many = f"{scale.min():.4g}" + (f" to {scale.max():.4g}" if scale.size > 1 else "")
        dtype = real.values[node.output].dtype
        found[node.output] = f"{dtype}, scale {many}, zero {point}"
    return found


def _losses(real: Graph, graph: Graph, facts: NetworkFacts) -> dict[str, TensorLoss]:
    """Losses by the name of the codes; of inputs and outputs of an integer graph by the name that
    they have outside."""
    found = causes(real, facts.samples, facts.origin)
    back = {node.inputs[0]: node.output for node in real.nodes if node.op == "DequantizeLinear"}
    named = {back[codes]: loss for codes, loss in found.items() if codes in back}
    if graph is not real:
        named |= {
            node.inputs[0]: found[node.output]
            for node in real.nodes
            if node.output in found and node.inputs[0] in real.inputs
        }
    return {**named, **found}


def _notes(
    kind: str, facts: NetworkFacts, losses: Mapping[str, TensorLoss], problem: str
) -> list[str]:
    """Sentences over the table of the layers: what was measured on what, and what was not."""
    notes = [problem] if problem else []
    if losses:
        reference = (
            "the float network"
            if facts.origin is not None
            else "the same network without the rounding of activations (its float network is not "
            "in this file: give --against)"
        )
        notes.append(
            f"Measured on {len(facts.samples):,} samples. SQNR is against {reference}, errors of "
            "the layers before included; what a layer lost is its own noise by cause."
        )
        if facts.origin is None:
            notes.append("Rounding of weights is not among the causes: it needs the float network.")
    elif kind == "quantized network":
        notes.append(
            "No samples were given, so nothing is said of errors and ranges: give --data SAMPLES."
        )
    elif kind == "integer network":
        notes.append(
            "Errors and ranges are not measured: this network is integers alone, and without its "
            "roundings there is nothing to compare with."
        )
    if facts.uncounted:
        notes.append(facts.uncounted)
    if facts.profile is not None:
        notes.append("Instructions are counted by the board's emulator; they are not cycles.")
    return notes
