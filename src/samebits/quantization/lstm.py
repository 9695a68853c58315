"""Post-training quantization of recurrent networks, gate by gate, in QDQ form: as a step graph, or
over whole sequences, where the cells of a layer have one format each for what they have in common.

Each gate has two products of weights, x's and h's, with a scale for each row; their exact sum with
the bias is rounded once, to Q3.12, or to Q4.11 where calibration saw sums beyond 8. Sigmoid and
tanh are tables of all 65,536 codes into Q0.15, the cell state has 16 bits and a power-of-two scale.
x, h and all other activations have as many bits, 8 to 16, as they need not to lose more than the
weights do; those of 16 reach twice as far as calibration saw, since a sequence may go on.
docs/guide/lstm.md; the scheme: R. Alvarez, R. Prabhavalkar, A. Bakhtin, "On the efficient
representation and execution of deep acoustic models", 2016 (asymmetric matrices whose rounding
error of the minimum is carried into every element: here the zero point is the rounded minimum and
elements are rounded relative to it); J. Li, R. Alvarez, "On the quantization of recurrent neural
networks", 2021 (integer gates).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np

from samebits import progress
from samebits.errors import InputError
from samebits.ir import Graph, Trait, has
from samebits.ir.fidelity import MEASURED, Held
from samebits.ir.many import Live
from samebits.ir.reuse import Reuse
from samebits.ir.rewrite import simplify
from samebits.ir.sequences import StepSequence, run_sequences
from samebits.ir.signal import finite, ratio, sqnr
from samebits.ir.steps import Steps, stepped, time_axes, whole
from samebits.quantization.calibrate import Calibrated, calibrate, from_range, rescaled, shortened
from samebits.quantization.convert import Converted, convert
from samebits.quantization.levels import levelled
from samebits.quantization.observe import (
    Sample,
    Statistics,
    checked,
    merged,
    statistics,
)
from samebits.quantization.pieces import (
    COMPARED,
    compared_part,
    halves_of,
    held_back,
    input_ranges,
    observe_steps,
    windows,
)
from samebits.quantization.placement import Placement, place
from samebits.quantization.recurrent_checks import check_parameters, check_varying
from samebits.quantization.report import constant_report
from samebits.quantization.roles import CELL, ROLES, SUM, gates_of, roles_of
from samebits.quantization.settings import ACTIVATIONS, WIDTHS, Settings
from samebits.quantization.stored import float_network
from samebits.quantization.trial import (
    DATA,
    INPUT,
    QUIET,
    WEIGHTS,
    Trial,
    Widths,
    error,
    sufficient,
)
from samebits.quantization.weights import check_constant
from samebits.recipes.quantization import GATE_FORMATS
from samebits.spec import formats

Array = np.ndarray[Any, Any]

SCALE_BITS = 8  # two scales and their common unit leave room for the sums in 62 bits
SUM_SCALE = Fraction(1, 1 << 12)  # Q3.12
SUM_END = Fraction(8)  # a gate that closes to 3e-4 forgets a tenth of its cell in 300 steps
CLOSED = Fraction(1, 1 << 11)  # of a cell state up to 16: beyond 8 its tanh is 1 within 2**-22
FINEST_STATE = Fraction(1, 1 << 30)  # what products of gates can tell apart
CLEAR = 1e-4  # noise over signal that 8-bit weights may leave beside 16-bit activations: 40 dB
GROWTH = 1.25  # of the largest cell state from the first half of a sequence to the second


@dataclass(frozen=True)
class RecurrentSettings:
    """How `quantize_recurrent` quantizes.

    bits:     of x, h and what else is no gate or cell state: 8 or 16
    symmetry: a matrix is symmetric where the smaller end of its range is at least this part of the
              larger one, else asymmetric; 0: all symmetric
    gates:    q0.15 (a larger power of two where calibration leaves [-1, 1]); or symmetric,
              asymmetric: 16 bits over the calibrated range
    float_bias: biases stay float32: for targets with a floating-point unit, without the promise of
              the same bits across targets
    calibration, percentile: of x, h and the cell state, as in Settings
    closed:   cell states beyond 16 saturate, also where calibration saw larger ones, and have finer
              codes. `quantize_steps` chooses it where the outputs keep more so
    widths:   bits of single groups of activations (`placement`), of WIDTHS; others have `bits`.
              `quantize_steps` adds those that need more than 8
    report_samples: sequences that the report compares
    """

    bits: int = 8
    symmetry: float = 0.0
    gates: str = "q0.15"
    float_bias: bool = False
    calibration: str = "mse"
    percentile: float = 99.99
    closed: bool = False
    widths: Mapping[str, int] = field(default_factory=dict)
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
            calibration=self.calibration,
            percentile=self.percentile,
            report_samples=self.report_samples,
            symmetry=self.symmetry,
            float_bias=self.float_bias,
            scale_bits=SCALE_BITS,
            widths=self.widths,
            headroom=True,
        )

    @property
    def finest(self) -> Fraction:
        """The smallest scale of a product in the sum of a gate: what a thousand products of codes
        lose by it is a small part of a step of Q3.12, and their common unit fits in 62 bits."""
        return SUM_SCALE / (1 << (max(self.bits, *self.widths.values(), 0) + 4))


@dataclass(frozen=True)
class GateReport:
    """One gate. Ranges (low, high) are those that calibration saw.

    saturated: share of the sums beyond 8
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
    wider:     activation -> its bits, where it needs more than the settings say
    whole:     a call takes whole sequences, not one time step
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
    wider: Mapping[str, int] = field(default_factory=dict)
    whole: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; infinite ratios become None."""
        found: dict[str, Any] = finite(asdict(self))
        return found


def quantize_recurrent(
    graph: Graph, samples: Iterable[Sample], settings: RecurrentSettings | None = None
) -> tuple[Graph, RecurrentReport]:
    """The step graph of a float32 graph with recurrent layers, in QDQ form, and a report.

    graph:   simplified, on whole sequences; forward LSTMs, GRUs or RNNs, otherwise time-wise
    samples: as for `quantize`, whole sequences; kept in memory

    Raises InputError for samples that do not fit, hold NaN or infinity or do not vary, or for none;
    UnsupportedError where there is no step graph.
    """
    found = quantize_steps(*whole_sequences(graph, samples), settings or RecurrentSettings())
    return found.graph, found.report


def whole_sequences(graph: Graph, samples: Iterable[Sample]) -> tuple[Steps, list[StepSequence]]:
    """The step graph of a graph on whole sequences, and samples for it. Raises as
    `quantize_recurrent`."""
    graph = float_network(graph).graph
    check_parameters(graph)
    steps = stepped(graph)
    return steps, [StepSequence(cut_steps(graph, arrays)) for arrays in checked(graph, samples)]


def whole_calls(graph: Graph, samples: Iterable[Sample]) -> tuple[Steps, list[StepSequence]]:
    """A graph over whole sequences as one step without states, and a call for every sample. Raises
    as `quantize_recurrent`."""
    graph = float_network(graph).graph
    check_parameters(graph)
    steps = whole(graph)
    return steps, [
        StepSequence([array[None] for array in arrays]) for arrays in checked(graph, samples)
    ]


@dataclass(frozen=True, eq=False)
class QuantizedSteps:
    """A step graph, or a graph over whole sequences, in QDQ form, what that cost, and what its
    integers are to be measured on."""

    graph: Graph
    report: RecurrentReport
    held: Held

    def causes(self) -> dict[str, float | None]:
        """The ratio of the outputs in dB with nothing quantized but each kind of tensor."""
        return dict(self.report.causes)


def quantize_steps(
    steps: Steps, sequences: Sequence[StepSequence], settings: RecurrentSettings
) -> QuantizedSteps:
    """A float32 step graph in QDQ form, each state with one format, and a report; or a graph over
    whole sequences, which is one step without states.

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
    levels = levelled(float_steps, input_ranges(float_steps, sequences))
    float_steps = levels.graph
    tied = [*(names for _, names in steps.carried), *steps.repeated]
    placement = place(float_steps, exact_sums=True, tied=tied, entries=levels.entries)
    parts, joined = gates_of(float_steps, steps, placement.quantized)
    roles = roles_of(float_steps, steps, placement, (*parts, *joined))
    watched = {*placement.quantized, *(name for pair in parts.values() for name in pair)}
    seen, runs = observe_steps(float_steps, sequences, watched)
    check_varying(float_steps, seen, (_gate(float_steps, h) for _, h in parts.values()))

    def made(placed: Placement, widths: Widths, closed: bool = False) -> Converted:
        chosen = replace(settings, widths={**settings.widths, **widths})
        chosen = replace(chosen, closed=closed or settings.closed)
        fixed = _fixed(float_steps, placed, roles, seen, chosen)
        fixed.update(_peepholes(float_steps, placed, fixed, chosen))
        return convert(float_steps, placed, seen, chosen.plain, fixed, chosen.finest)

    probes, reuse = windows(float_steps, sequences, runs), Reuse[Live](float_steps)
    trial = Trial(
        *(float_steps, placement, lambda placed, widths: made(placed, widths).graph),
        lambda graph: _outputs(steps, _run(graph, probes, reuse)),
    )

    def closing() -> bool:
        """Whether the outputs keep more where cell states saturate at 16, over many steps: a unit
        may count beyond and back."""
        cells = _alone(trial, roles).get(CELL)
        graphs = [made(cells, {}, closed) for closed in (False, True)] if cells else []
        if not graphs or graphs[0].tensors == graphs[1].tensors:
            return False
        runs = (_outputs(steps, _run(each.graph, compared)) for each in graphs)
        wide, narrow = (error(_outputs(steps, expected), outputs) for outputs in runs)
        return narrow < wide

    most = settings.report_samples if float_steps.states else COMPARED
    compared = [compared_part(sequence) for sequence in sequences[:most]]
    expected = [
        [run[name][: len(part)] for name in float_steps.outputs]
        for part, run in zip(compared, runs, strict=False)
    ]
    progress.stage("choosing bits of single tensors")
    settings = replace(settings, closed=settings.closed or closing())
    if settings.bits == WIDTHS[0]:
        chosen = _wider(trial, roles)
    else:
        gated = {name for pair in parts.values() for name in pair}
        chosen = _finer_weights(trial, gated.union(joined))
    settings = replace(settings, widths={**chosen, **settings.widths})
    converted = made(placement, {})
    progress.stage("comparing with the float network")
    found = _run(converted.graph, compared)
    halves = halves_of(float_steps, runs)
    cells = {
        state: ends for state, ends in halves.items() if roles.get(placement.group[state]) == CELL
    }
    count = len(float_steps.own_outputs)
    report = RecurrentReport(
        settings,
        len(sequences),
        len(compared),
        tuple(_gate_reports(float_steps, parts, seen, placement.group)),
        _sqnr(*([_own(steps, arrays) for arrays in runs] for runs in (expected, found))),
        {role: sqnr(1.0, trial.noise(part)) for role, part in _alone(trial, roles).items()},
        cells,
        tuple(_warnings(cells)),
        sum(c.values.nbytes for c in converted.constants),
        sum(constant_report(c).bytes_after for c in converted.constants),
        {
            state.input: _sqnr([[e[index]] for e in expected], [[f[index]] for f in found])
            for index, state in enumerate(float_steps.states, count)
        },
        _bits(converted, settings, placement),
        not float_steps.states,
    )
    back = held_back(float_steps, sequences, runs)
    if float_steps.states:
        held = Held(float_steps, back, sequences=True, last=steps.last)
    else:
        first = [_call(sequence) for sequence in sequences[:MEASURED]]
        held = Held(float_steps, [_call(sequence) for sequence in back], first)
    return QuantizedSteps(converted.graph, report, held)


def _call(sequence: StepSequence) -> list[Array]:
    """The operands of one call over a whole sequence."""
    return [array[0] for array in sequence.inputs]


def _alone(trial: Trial, roles: Mapping[str, str]) -> dict[str, Placement]:
    """Each role -> the placement of its tensors alone."""
    inputs = trial.placement.groups_of_inputs(trial.graph)
    of = {g: INPUT if g in inputs else roles.get(g, DATA) for g in trial.groups}
    parts = {
        role: trial.only([g for g in trial.groups if of[g] == role])
        for role in ROLES
        if role == WEIGHTS or role in of.values()
    }
    return {**parts, WEIGHTS: trial.placement.weights_alone()}


def _wider(trial: Trial, roles: Mapping[str, str]) -> dict[str, int]:
    """Bits of the groups of activations that would lose more with 8 than all that has no choice:
    weights, sums, gates and cell states. Inputs have 8 or 16."""
    alone = _alone(trial, roles)
    chosen = [name for role in (INPUT, DATA) if role in alone for name in alone[role].quantized]
    groups = {trial.placement.group[name] for name in chosen}
    rest = replace(
        trial.placement,
        quantized=tuple(n for n in trial.placement.quantized if n not in chosen),
    )
    floor = max(trial.noise(rest), QUIET)
    if trial.noise(trial.only(groups)) <= floor:
        return {}
    inputs = trial.placement.groups_of_inputs(trial.graph)
    ends = WIDTHS[0], WIDTHS[-1]
    return {
        **sufficient(trial, sorted(groups & inputs), floor, ends),
        **sufficient(trial, [g for g in trial.groups if g in groups - inputs], floor),
    }


def _finer_weights(trial: Trial, gated: Collection[str]) -> dict[str, int]:
    """16 bits for the weights that cost most, outside of gates, until all that have 8 together make
    no more noise than is allowed beside activations of 16 bits."""
    outputs = {node.name: node.output for node in trial.graph.nodes}
    costs = {name: trial.noise(trial.only((), {name})) for name in trial.layers}
    left, found = sum(costs.values()), dict[str, int]()
    for name in sorted(costs, key=lambda name: (-costs[name], name)):
        if left <= CLEAR:
            break
        if outputs[name] not in gated:
            found[trial.layers[name]] = WIDTHS[-1]
            left -= costs[name]
    return found


def _bits(
    converted: Converted, settings: RecurrentSettings, placement: Placement
) -> dict[str, int]:
    """The bits of every activation that has others than the settings say, by name."""
    return {
        tensor.name: tensor.numbers.format.bits
        for tensor in converted.tensors
        if placement.group[tensor.name] in settings.widths
    }


# --- sequences --------------------------------------------------------------------------------


def cut_steps(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """Inputs on whole sequences, states left out, as [T, *shape of one step]."""
    axes = time_axes(graph)
    return [
        np.expand_dims(np.moveaxis(array, axes[name], 0), axes[name] + 1)
        for name, array in zip(graph.own_inputs, arrays, strict=True)
    ]


def _run(
    graph: Graph, sequences: Sequence[StepSequence], reuse: Reuse[Live] | None = None
) -> list[list[Array]]:
    """The outputs of all steps of each sequence, states among them."""
    found = run_sequences(graph, sequences, reuse=reuse)
    return [[each[name] for name in graph.outputs] for each in found]


def _own(steps: Steps, arrays: Sequence[Array]) -> list[Array]:
    """The outputs that are no states, or those of the last step where the network gives no more."""
    names = steps.graph.own_outputs
    return [
        array[-1] if name in steps.last else array
        for name, array in zip(names, arrays, strict=False)
    ]


def _outputs(steps: Steps, runs: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """For each output that is no state its arrays, sequence by sequence."""
    return [list(column) for column in zip(*(_own(steps, run) for run in runs), strict=True)]


# --- numbers ------------------------------------------------------------------------------------


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
            wide = max(-Fraction(stats.low), Fraction(stats.high)) > SUM_END
            factor = 2 if wide else 1
            ends = -factor * SUM_END, factor * SUM_END
            fixed[group] = Calibrated(power, factor * SUM_SCALE, 0, *ends)
        elif role in (CELL, DATA):
            plain = settings.plain
            fmt = power if role == CELL else plain.width_of(group, plain.activation_format)
            plain = replace(plain, headroom=role != CELL)
            found = calibrate(stats, fmt, plain, group)
            scale = min(found.scale, CLOSED) if role == CELL and settings.closed else found.scale
            fixed[group] = rescaled(found, max(scale, FINEST_STATE))
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


# --- report -----------------------------------------------------------------------------------


def _sqnr(expected: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]) -> float | None:
    return ratio([*chain(*expected)], [*chain(*found)])


def _gate_reports(
    graph: Graph,
    parts: Mapping[str, tuple[str, str]],
    seen: Mapping[str, Statistics],
    group: Mapping[str, str],
) -> Iterator[GateReport]:
    """A report of every gate, over all cells that have it. group: of the sums."""
    consumers = graph.consumers()
    cells: dict[str, list[tuple[Statistics, ...]]] = {}
    names: dict[str, tuple[str, str]] = {}
    for name, (x, h) in parts.items():
        names.setdefault(group[name], _gate(graph, h))
        output, waiting = "", [name]
        while waiting and not output:
            for node in consumers[waiting.pop()]:
                if node.output in seen:
                    output = node.output
                elif has(node.op, Trait.POINTWISE):
                    waiting.append(node.output)
        found = tuple(seen[value] for value in (x, h, output or name, name))
        cells.setdefault(group[name], []).append(found)
    for key, each in cells.items():
        of_x, of_h, gate, total = (merged(list(column)) for column in zip(*each, strict=True))
        px, ph, out = ((stats.low, stats.high) for stats in (of_x, of_h, gate))
        yield GateReport(*names[key], px, ph, out, _saturated(total))


def _gate(graph: Graph, h: str) -> tuple[str, str]:
    """The layer and the gate of a product of h."""
    layer, _, gate = graph.producers()[h].name.removesuffix("_h").rpartition(".")
    return re.sub(r"\.t[0-9]+$", "", layer), gate  # of one cell of many: its layer


def _saturated(stats: Statistics) -> float:
    """The share of sums beyond 8, which is an edge of bins."""
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
