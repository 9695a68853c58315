"""Post-training quantization of recurrent networks, gate by gate, as a step graph in QDQ form.

Each gate has two products of weights, x's and h's, with a scale for each matrix (8 bits) or row
(16 bits); their exact sum with the bias is rounded once, to Q3.12. Sigmoid and tanh are tables of
all 65,536 codes into Q0.15, the cell state has 16 bits and a power-of-two scale, h has 8 or 16.
docs/guide/lstm.md; the scheme: R. Alvarez, R. Prabhavalkar, A. Bakhtin, "On the efficient
representation and execution of deep acoustic models", 2016 (asymmetric matrices whose rounding
error of the minimum is carried into every element: here the zero point is the rounded minimum and
elements are rounded relative to it); J. Li, R. Alvarez, "On the quantization of recurrent neural
networks", 2021 (integer gates).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np

from samebits import progress
from samebits.errors import InputError
from samebits.ir import Graph, Node, Trait, has
from samebits.ir.interpreter import run_steps, trace
from samebits.ir.rewrite import simplify
from samebits.ir.steps import Steps, stepped, time_axes
from samebits.quantization.calibrate import Calibrated, calibrate, from_range, rescaled, shortened
from samebits.quantization.convert import convert
from samebits.quantization.observe import (
    Sample,
    Statistics,
    check_finite,
    checked,
    merged,
    statistics,
)
from samebits.quantization.placement import Placement, is_movement, place
from samebits.quantization.recurrent_checks import check_parameters, check_varying
from samebits.quantization.report import constant_report
from samebits.quantization.settings import ACTIVATIONS, Settings
from samebits.quantization.signal import finite, ratio
from samebits.quantization.stored import float_network
from samebits.quantization.weights import check_constant
from samebits.spec import formats

Array = np.ndarray[Any, Any]

SUM = "sum"  # of a gate: Q3.12
GATE = "gate"  # what its function gives: Q0.15
CELL = "cell"
DATA = "data"  # x, h and everything else
WEIGHTS = "weights"
ROLES = (WEIGHTS, DATA, SUM, GATE, CELL)
GATE_FORMATS = ("q0.15", "symmetric", "asymmetric")
SCALE_BITS = 8  # two scales and their common unit leave room for the sums in 62 bits
SUM_SCALE = Fraction(1, 1 << 12)
FINEST_STATE = Fraction(1, 1 << 30)  # what products of gates can tell apart
BOUNDED = ("Sigmoid", "Tanh")  # at 8 and beyond they are 1 within 2**-11
GROWTH = 1.25  # of the largest cell state from the first half of a sequence to the second


@dataclass(frozen=True)
class RecurrentSettings:
    """How `quantize_recurrent` quantizes.

    bits:     of x and h. 8: a scale for each weight matrix of a gate; 16: for each of its rows
    symmetry: a matrix is symmetric where the smaller end of its range is at least this part of the
              larger one, else asymmetric; 0: all symmetric
    gates:    q0.15 (a larger power of two where calibration leaves [-1, 1]); or symmetric,
              asymmetric: 16 bits over the calibrated range
    float_bias: biases stay float32: for targets with a floating-point unit, without the promise of
              the same bits across targets
    calibration, percentile: of x, h and the cell state, as in Settings
    report_samples: sequences that the report compares
    """

    bits: int = 8
    symmetry: float = 0.0
    gates: str = "q0.15"
    float_bias: bool = False
    calibration: str = "mse"
    percentile: float = 99.99
    report_samples: int = 4

    def __post_init__(self) -> None:
        if self.bits not in (8, 16):
            raise InputError(f"--bits: expected 8 or 16, found {self.bits}")
        if self.gates not in GATE_FORMATS:
            raise InputError(
                f"--gates: expected one of {', '.join(GATE_FORMATS)}, found {self.gates!r}"
            )
        _ = self.plain  # checks the rest

    @property
    def plain(self) -> Settings:
        """As settings of the graph's other tensors."""
        return Settings(
            activations=f"asymmetric-s{self.bits}" if self.bits == 8 else "symmetric-s16",
            weights="symmetric-s8",
            per_channel=self.bits == 16,
            calibration=self.calibration,
            percentile=self.percentile,
            report_samples=self.report_samples,
            symmetry=self.symmetry,
            float_bias=self.float_bias,
            scale_bits=SCALE_BITS,
        )

    @property
    def finest(self) -> Fraction:
        """The smallest scale of a product in the sum of a gate: what a thousand products of codes
        lose by it is a small part of a step of Q3.12, and their common unit fits in 62 bits."""
        return SUM_SCALE / (1 << (self.bits + 4))


@dataclass(frozen=True)
class GateReport:
    """One gate. Ranges (low, high) are those that calibration saw.

    saturated: share of the sums beyond Q3.12
    """

    layer: str
    gate: str
    input_product: tuple[float, float]
    recurrent_product: tuple[float, float]
    output: tuple[float, float]
    saturated: float


@dataclass(frozen=True)
class RecurrentReport:
    """The result of quantizing a recurrent network.

    sqnr_db:   of the outputs on the compared sequences, against the float step graph; None if equal
    causes:    the same with nothing but one kind of tensor quantized (ROLES)
    cells:     layer -> largest |cell state| in the first and in the second half of the sequences
    states:    state -> the ratio of its values after every step, as sqnr_db
    bytes_before, bytes_after: of the constants
    """

    settings: RecurrentSettings
    sequences: int
    samples: int
    gates: tuple[GateReport, ...]
    sqnr_db: float | None
    causes: Mapping[str, float | None]
    cells: Mapping[str, tuple[float, float]]
    warnings: tuple[str, ...]
    bytes_before: int
    bytes_after: int
    states: Mapping[str, float | None] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; infinite ratios become None."""
        found: dict[str, Any] = finite(asdict(self))
        return found


@dataclass(frozen=True, eq=False)
class StepSequence:
    """The operands of a step graph in calibration.

    inputs: [T, *shape of one step] for each input that is no state
    states: of each state before the first step; None: as the graph says
    """

    inputs: Sequence[Array]
    states: Sequence[Array] | None = None


def quantize_recurrent(
    graph: Graph, samples: Iterable[Sample], settings: RecurrentSettings | None = None
) -> tuple[Graph, RecurrentReport]:
    """The step graph of a float32 graph with recurrent layers, in QDQ form, and a report.

    graph:   simplified, on whole sequences; forward LSTMs, GRUs or RNNs, otherwise time-wise
    samples: as for `quantize`, whole sequences; kept in memory

    Raises InputError for samples that do not fit, hold NaN or infinity or do not vary, or for none;
    UnsupportedError where there is no step graph.
    """
    graph = float_network(graph).graph
    check_parameters(graph)
    steps = stepped(graph)
    sequences = [StepSequence(cut_steps(graph, arrays)) for arrays in checked(graph, samples)]
    return quantize_steps(steps, sequences, settings or RecurrentSettings())


def quantize_steps(
    steps: Steps, sequences: Sequence[StepSequence], settings: RecurrentSettings
) -> tuple[Graph, RecurrentReport]:
    """A float32 step graph in QDQ form, each state with one format, and a report.

    The states over calibration are those that the float graph hands on. Raises as
    `quantize_recurrent`.
    """
    float_steps = simplify(steps.graph)
    if not sequences:
        raise InputError(
            f"graph {float_steps.name!r}: expected sequences to calibrate on, found none; give at "
            "least one"
        )
    for name, array in float_steps.constants.items():
        if array.dtype.kind == "f":
            check_constant(array, name)
    placement = place(float_steps, exact_sums=True, tied=[names for _, names in steps.carried])
    hidden = _hidden(float_steps, steps)
    parts, joined = _parts(float_steps, placement.quantized, hidden)
    roles = _roles(float_steps, placement, (*parts, *joined), _cell_groups(float_steps, steps))
    watched = {*placement.quantized, *(name for pair in parts.values() for name in pair)}
    seen, halves = _observe(float_steps, sequences, watched)
    check_varying(float_steps, seen, (_gate(float_steps, h) for _, h in parts.values()))
    fixed = _fixed(float_steps, placement, roles, seen, settings)
    fixed.update(_peepholes(float_steps, placement, fixed, settings))
    numbers = settings.plain, fixed, settings.finest
    converted = convert(float_steps, placement, seen, *numbers)
    progress.stage("comparing with the float network")
    compared = sequences[: settings.report_samples]
    expected = [_run(float_steps, sequence) for sequence in compared]
    found = [_run(converted.graph, sequence) for sequence in compared]
    wanted = [_own(steps, arrays) for arrays in expected]
    causes = {}
    for role in ROLES:
        alone = convert(float_steps, _only(placement, roles, role), seen, *numbers).graph
        causes[role] = _sqnr(wanted, [_own(steps, _run(alone, s)) for s in compared])
    cells = {
        state: ends for state, ends in halves.items() if roles.get(placement.group[state]) == CELL
    }
    count = len(float_steps.own_outputs)
    report = RecurrentReport(
        settings,
        len(sequences),
        len(compared),
        tuple(_gate_reports(float_steps, parts, seen)),
        _sqnr(wanted, [_own(steps, arrays) for arrays in found]),
        causes,
        cells,
        tuple(_warnings(cells)),
        sum(c.values.nbytes for c in converted.constants),
        sum(constant_report(c).bytes_after for c in converted.constants),
        {
            state.input: _sqnr([[e[index]] for e in expected], [[f[index]] for f in found])
            for index, state in enumerate(float_steps.states, count)
        },
    )
    return converted.graph, report


# --- sequences --------------------------------------------------------------------------------


def cut_steps(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """Inputs on whole sequences, states left out, as [T, *shape of one step]."""
    axes = time_axes(graph)
    return [
        np.expand_dims(np.moveaxis(array, axes[name], 0), axes[name] + 1)
        for name, array in zip(graph.own_inputs, arrays, strict=True)
    ]


def _run(graph: Graph, sequence: StepSequence) -> list[Array]:
    """The outputs of all steps, states among them."""
    return run_steps(graph, sequence.inputs, initial=sequence.states)


def _own(steps: Steps, arrays: Sequence[Array]) -> list[Array]:
    """The outputs that are no states, or those of the last step where the network gives no more."""
    names = steps.graph.own_outputs
    return [
        array[-1] if name in steps.last else array
        for name, array in zip(names, arrays, strict=False)
    ]


def _observe(
    graph: Graph, sequences: Sequence[StepSequence], names: Iterable[str]
) -> tuple[dict[str, Statistics], dict[str, tuple[float, float]]]:
    """Statistics of the named values, and the largest magnitude of each state in the first and in
    the second half of the sequences."""
    seen: dict[str, Statistics] = {}
    halves = {state.input: [0.0, 0.0] for state in graph.states}
    for index, sequence in enumerate(progress.track(sequences, "calibrating", len(sequences))):
        made: dict[str, list[Array]] = {name: [] for name in names}
        length = len(sequence.inputs[0])
        for t, values in enumerate(_traced(graph, sequence)):
            for name, arrays in made.items():
                arrays.append(np.asarray(values[name]).reshape(-1))
            for state in graph.states:
                half = halves[state.input]
                largest = float(np.abs(values[state.output]).max(initial=0.0))
                half[2 * t // length] = max(half[2 * t // length], largest)
        for name, arrays in made.items():
            array = np.concatenate(arrays)
            check_finite(name, array, index)
            if array.size:
                found = statistics(array)
                seen[name] = merged([seen[name], found]) if name in seen else found
    return seen, {name: (first, second) for name, (first, second) in halves.items()}


def _traced(graph: Graph, sequence: StepSequence) -> Iterator[dict[str, Array]]:
    """Every value of every step."""
    states = sequence.states or [
        graph.constants.get(
            s.initial, np.zeros(graph.values[s.input].shape, graph.values[s.input].dtype)
        )
        for s in graph.states
    ]
    for arrays in zip(*sequence.inputs, strict=True):
        values = trace(graph, [*arrays, *states])
        states = [values[state.output] for state in graph.states]
        yield values


# --- what is what -----------------------------------------------------------------------------


def _hidden(graph: Graph, steps: Steps) -> set[str]:
    """Values that a step begins with: the states, what they are moved to, and within a step of
    several time steps what the cells hand on."""
    found = {state.input for state in graph.states}
    for node in graph.nodes:
        if is_movement(node) and found.intersection(node.inputs):
            found.update(node.outputs)
    return found.union(*(names for _, names in steps.carried))


def _cell_groups(graph: Graph, steps: Steps) -> set[str]:
    """A value of every state that is a cell state: what reads it, once it is moved, is no product.

    A state of several parts (h and c in one tensor) is one as soon as a part is."""
    consumers = graph.consumers()
    found = {names[-1] for letter, names in steps.carried if letter == "c" and names}
    for state in graph.states:
        waiting = [state.input]
        while waiting:
            readers = consumers[waiting.pop()]
            moved = [node for node in readers if is_movement(node)]
            waiting += [name for node in moved for name in node.outputs]
            others = [node for node in readers if node not in moved]
            if others and not any(has(node.op, Trait.PRODUCT) for node in others):
                found.add(state.input)
    return found


def _parts(
    graph: Graph, quantized: Sequence[str], hidden: set[str]
) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """The sum of each gate -> (the product of x, the product of h) in it; and the sums of gates
    with one product, of x and h side by side."""
    producers = graph.producers()
    kept = set(quantized)
    found, joined = {}, []
    for name in quantized:
        products: list[Node] = []
        waiting = [name]
        while waiting:
            node = producers.get(waiting.pop())
            if node is None:
                continue
            if has(node.op, Trait.PRODUCT):
                products.append(node)
            elif node.op in ("Add", "Sub") or node.op == "Clip":
                waiting += [n for n in node.inputs if n not in kept]
            elif node.op == "Mul":  # a GRU that resets after the product
                made = [n for n in node.inputs if n in producers]
                waiting += [n for n in made if has(producers[n].op, Trait.PRODUCT)]
        recurrent = [node for node in products if hidden & _factors(producers, node.inputs[0])]
        inputs = [node for node in products if node not in recurrent]
        if len(recurrent) == 1 and len(inputs) == 1:
            found[name] = (inputs[0].output, recurrent[0].output)
        elif recurrent and _saturates(graph, name):
            joined.append(name)
    return found, joined


def _saturates(graph: Graph, name: str) -> bool:
    """Whether a value, once it is moved, goes through bounded functions alone: what Q3.12 cuts off
    changes them by less than 2**-10."""
    consumers = graph.consumers()
    waiting, functions = [name], 0
    while waiting:
        value = waiting.pop()
        if value in graph.outputs:
            return False
        for node in consumers[value]:
            if is_movement(node):
                waiting += node.outputs
            elif node.op in BOUNDED:
                functions += 1
            else:
                return False
    return functions > 0


def _factors(producers: Mapping[str, Node], name: str) -> set[str]:
    """The value, and what it is a product of: a GRU resets before the product."""
    node = producers.get(name)
    return {name, *node.inputs} if node is not None and node.op == "Mul" else {name}


def _roles(
    graph: Graph, placement: Placement, sums: Iterable[str], cells: Iterable[str]
) -> dict[str, str]:
    """Group -> its role (SUM, GATE or CELL); groups that are not listed are DATA."""
    roles = {placement.group[name]: CELL for name in cells if name in placement.group}
    roles.update({placement.group[name]: SUM for name in sums})
    inside: set[str] = set()  # of the function of a gate, which may be several operators
    for node in graph.nodes:
        variables = [name for name in node.inputs if name and name not in graph.constants]
        if not has(node.op, Trait.POINTWISE) or len(variables) != 1:
            continue
        group = placement.group.get(node.output, "")
        role = roles.get(placement.group.get(variables[0], ""), DATA)
        if variables[0] in inside or role in (SUM, GATE, CELL):
            if group:
                roles.setdefault(group, GATE)
            else:
                inside.add(node.output)
    return roles


def _fixed(
    graph: Graph,
    placement: Placement,
    roles: Mapping[str, str],
    seen: Mapping[str, Statistics],
    settings: RecurrentSettings,
) -> dict[str, Calibrated]:
    """The numbers of sums, gates and states, by group."""
    fixed = {}
    power = ACTIVATIONS["power-of-two-s16"]
    members = placement.members()
    states = dict.fromkeys((placement.group[state.input] for state in graph.states), DATA)
    for group, role in {**states, **roles}.items():
        stats = merged([seen[name] for name in members[group] if name in seen])
        if role == SUM:
            fixed[group] = Calibrated(power, SUM_SCALE, 0, Fraction(-8), Fraction(8))
        elif role in (CELL, DATA):
            fmt = power if role == CELL else settings.plain.activation_format
            found = calibrate(stats, fmt, settings.plain, group)
            fixed[group] = rescaled(found, max(found.scale, FINEST_STATE))
        elif settings.gates == GATE_FORMATS[0]:
            ends = min(Fraction(stats.low), Fraction(-1)), max(Fraction(stats.high), Fraction(1))
            largest, exponent = max(-ends[0], ends[1]), -15
            if largest > 1:  # a Relu, a scaled tanh
                exponent = formats.smallest_exponent(largest, power.code_max, exponent, None)
            fixed[group] = Calibrated(power, formats.power(exponent), 0, *ends)
        else:
            fmt = ACTIVATIONS[
                "symmetric-s16" if settings.gates == "symmetric" else "asymmetric-s16"
            ]
            ends = Fraction(stats.low), Fraction(stats.high)
            fixed[group] = shortened(from_range(*ends, fmt, group), SCALE_BITS)
    return fixed


def _peepholes(
    graph: Graph,
    placement: Placement,
    fixed: Mapping[str, Calibrated],
    settings: RecurrentSettings,
) -> Iterator[tuple[str, Calibrated]]:
    """The numbers of constants that a cell state is multiplied by, by group."""
    for node in graph.nodes:
        for position, name in enumerate(node.inputs):
            if node.op == "Mul" and (node.name, position) in placement.operands:
                state = fixed.get(placement.group.get(node.inputs[1 - position], ""))
                if state is not None:
                    check_constant(graph.constants[name], name)
                    stats = statistics(graph.constants[name])
                    ends = Fraction(stats.low), Fraction(stats.high)
                    fmt = settings.plain.activation_format
                    found = shortened(from_range(*ends, fmt, name), SCALE_BITS)
                    least = settings.finest / state.scale
                    yield placement.group[name], rescaled(found, max(found.scale, least))


def _only(placement: Placement, roles: Mapping[str, str], role: str) -> Placement:
    """The placement with the tensors of one role alone."""
    weights = role == WEIGHTS
    return replace(
        placement,
        quantized=tuple(
            name for name in placement.quantized if roles.get(placement.group[name], DATA) == role
        ),
        operands=placement.operands if weights else frozenset(),
        biases=placement.biases if weights else {},
        weights=weights,
    )


# --- report -----------------------------------------------------------------------------------


def _sqnr(expected: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]) -> float | None:
    return ratio([*chain(*expected)], [*chain(*found)])


def _gate_reports(
    graph: Graph, parts: Mapping[str, tuple[str, str]], seen: Mapping[str, Statistics]
) -> Iterator[GateReport]:
    consumers = graph.consumers()
    for total, (x, h) in parts.items():
        layer, gate = _gate(graph, h)
        output, waiting = "", [total]
        while waiting and not output:
            for node in consumers[waiting.pop()]:
                if node.output in seen:
                    output = node.output
                elif has(node.op, Trait.POINTWISE):
                    waiting.append(node.output)
        px, ph, out = ((seen[name].low, seen[name].high) for name in (x, h, output or total))
        yield GateReport(layer, gate, px, ph, out, _saturated(seen[total]))


def _gate(graph: Graph, h: str) -> tuple[str, str]:
    """The layer and the gate of a product of h."""
    layer, _, gate = graph.producers()[h].name.removesuffix("_h").rpartition(".")
    return layer, gate


def _saturated(stats: Statistics) -> float:
    """The share of sums beyond Q3.12, whose ends are edges of bins."""
    edges = np.array([stats.edge(i) for i in range(len(stats.counts))], np.float64)
    return float(stats.counts[(edges >= 8) | (edges < -8)].sum()) / stats.count


def _warnings(cells: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    for name, (first, second) in cells.items():
        if second > GROWTH * first:
            yield (
                f"cell state {name!r} grows over time: up to {first:.3g} in the first half of the "
                f"sequences, {second:.3g} in the second; calibrate on sequences as long as those "
                "of use, or it will saturate"
            )
