"""Sequences in blocks of steps: what is computed for all steps of a block at once, and its bits."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from compare import assert_same
from integer_graphs import random_codes
from recurrent_nets import Net, quantized_network
from samebits.codegen.blocks import STEPS, StepBlocks, step_blocks
from samebits.codegen.lowering.lower import lower_to_calls
from samebits.codegen.packaging.package import texts
from samebits.ir import Graph, GraphBuilder
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.rewrite import simplify
from samebits.ir.steps import stepped
from samebits.ir.verify import verify
from samebits.quantization.lstm import RecurrentSettings, quantize_recurrent
from stream_program import Run, steps_of, stream

CODES = {"low": -128, "high": 127, "dtype": "int8"}


class Cell:
    """A step graph in the making, its values int8 [1, size]."""

    def __init__(self, size: int = 6) -> None:
        self.size = size
        self.rng = np.random.default_rng(size)
        self.builder = GraphBuilder("cell")
        self.x = self.builder.input("x", "int8", (1, size))

    def state(self, name: str, dtype: str = "int8") -> str:
        return self.builder.state(name, dtype, (1, self.size))

    def product(self, x: str) -> str:
        """A linear layer with random weights, back to int8."""
        codes = random_codes(self.rng, "int8", (self.size, self.size))
        constants = [
            self.builder.constant("w", codes),
            self.builder.constant("b", np.arange(self.size, dtype=np.int32)),
        ]
        total = self.builder.add("linear", [x, *constants])
        ratio = {"ratios": (Fraction(1, 100 + self.size),), **CODES}
        return self.builder.add("requantize", [total], ratio)

    def half(self, *terms: str) -> str:
        total = self.builder.add("add", list(terms), {"factors": (1,) * len(terms)})
        ratio = {"ratios": (Fraction(1, 2),), **CODES}
        return self.builder.add("requantize", [total], ratio)

    def build(self, *outputs: str) -> Graph:
        graph = self.builder.build(list(outputs))
        verify(graph)
        return graph


def two_layers() -> Graph:
    """Each: s' = half(product of x, product of s), with a product and a table-like step after."""
    cell = Cell()
    first, second = cell.state("s"), cell.state("t")
    a = cell.half(cell.product(cell.x), cell.product(first))
    b = cell.half(cell.product(a), cell.product(second))
    y = cell.half(cell.product(b), cell.x)
    return cell.build(y, a, b)


def delay() -> Graph:
    """The product of x and of the x before: what reads the state takes part in its cycle."""
    cell = Cell()
    before = cell.state("before")
    return cell.build(cell.half(cell.product(cell.x), cell.product(before)), cell.x)


def repeated() -> Graph:
    """One value as two outputs and as a state; the input and the state before as outputs."""
    cell = Cell(20)
    state = cell.state("s")
    y = cell.half(cell.product(cell.x), state)
    return cell.build(y, cell.x, y, state, y)


def prepared() -> Graph:
    """Products of what is computed step by step from x alone, one of them of the other."""
    cell = Cell(17)
    state = cell.state("s")
    scaled = cell.half(cell.x)
    inner = cell.product(cell.half(cell.product(scaled), scaled))
    return cell.build(inner, cell.half(inner, state))


def constant_state() -> Graph:
    """A state that is a constant from its second step on."""
    cell = Cell()
    state = cell.state("s")
    fixed = cell.builder.constant("c", np.arange(6, dtype=np.int8)[None])
    return cell.build(cell.half(cell.product(cell.x), state), fixed)


def swapped() -> Graph:
    cell = Cell()
    first, second = cell.state("s"), cell.state("t")
    y = cell.half(cell.product(cell.x), first)
    return cell.build(y, second, first)


def recurrent_only() -> Graph:
    cell = Cell()
    state = cell.state("s")
    return cell.build(cell.x, cell.half(cell.product(cell.half(cell.x, state)), cell.x))


GRAPHS: dict[str, Callable[[], Graph]] = {
    made.__name__: made for made in (two_layers, delay, repeated, prepared, constant_state)
}
SINGLY = (swapped, recurrent_only)
SEEDS = range(3, 10)  # of random networks


def found_in(graph: Graph) -> StepBlocks:
    found = step_blocks(lower_to_calls(graph))
    assert found is not None
    return found


def kinds(graph: Graph) -> list[tuple[bool, list[str]]]:
    """Of every phase: by rows or not, and the functions that it calls."""
    return [
        (phase.rows, [call.function for step in phase.entries for call in step.calls])
        for phase in found_in(graph).phases
    ]


def test_products_of_a_layer_wait_for_the_layer_before() -> None:
    assert kinds(two_layers()) == [
        (True, ["conv8"]),
        (False, ["conv8", "broadcast", "copy"]),
        (True, ["conv8"]),
        (False, ["conv8", "broadcast", "copy"]),
        (True, ["conv8"]),
        (False, ["broadcast"]),
    ]


def test_products_of_states_go_step_by_step() -> None:
    assert kinds(delay()) == [(True, ["conv8"]), (False, ["conv8", "broadcast", "copy"])]


def test_lstm_layers() -> None:
    net = Net(0, 5, 6)
    (y, *_) = net.layer("LSTM", net.x, 8)
    flat = net.builder.add("Reshape", [y], {"shape": (5, 1, 8)})
    (y, *_) = net.layer("LSTM", flat, 4)
    samples = [[a.astype(np.float32)] for a in net.rng.standard_normal((4, 5, 1, 6))]
    graph = net.builder.build([y])
    narrow = RecurrentSettings(widths=dict.fromkeys(simplify(stepped(graph).graph).values, 8))
    made, _ = quantize_recurrent(graph, samples, narrow)
    found = found_in(lower_graph(simplify(made)))
    assert [phase.rows for phase in found.phases] == [True, False, True, False]
    for phase in found.phases:
        products = sum(call.function == "conv8" for step in phase.entries for call in step.calls)
        assert products == 4  # of x, or of h


@pytest.mark.parametrize("made", SINGLY)
def test_graphs_without_blocks(made: Callable[[], Graph]) -> None:
    graph = made()
    assert step_blocks(lower_to_calls(graph)) is None
    files, report = texts(graph)
    assert report.block == 0
    assert "SAMEBITS_BLOCKS" not in files["model.c"]


def test_what_another_phase_reads_is_kept_for_all_steps() -> None:
    checked = 0
    for seed in SEEDS:
        found = step_blocks(lower_to_calls(quantized_network(seed)[0]))
        if found is None:
            continue
        made = {s.value: at for at, phase in enumerate(found.phases) for s in phase.entries}
        for at, phase in enumerate(found.phases):
            for step in phase.entries:
                for name in step.reads:
                    kind = found.places[name].kind
                    if made.get(name, at) != at or phase.rows:
                        assert kind in ("input", "output", "rows"), (seed, name)
                        checked += kind == "rows"
        assert found.bytes == found.arena + found.rows + found.scratch
    assert checked > 30


@pytest.mark.parametrize(
    "flags",
    [
        ("-O1",),
        pytest.param(("-O3", "-march=native"), marks=pytest.mark.slow),
        pytest.param(("-DSAMEBITS_BLOCKS=0",), marks=pytest.mark.slow),
    ],
)
def test_blocks_give_the_codes_of_single_steps(
    flags: tuple[str, ...], cc: str, tmp_path: Path, objects: Path
) -> None:
    """In chunks of less, as much and more than a block, and from states drawn at random."""
    graphs = [make() for make in (*GRAPHS.values(), *SINGLY)]
    graphs += [quantized_network(seed)[0] for seed in SEEDS]
    steps = 2 * STEPS + 5
    cases = []
    for seed, graph in enumerate(graphs):
        rng = np.random.default_rng(seed)
        inputs = [graph.values[name] for name in graph.own_inputs]
        codes = [random_codes(rng, v.dtype, (steps, *v.shape)) for v in inputs]
        states = [graph.values[state.input] for state in graph.states]
        drawn = [random_codes(rng, v.dtype, v.shape) for v in states]
        cases.append([Run(codes), Run(codes, drawn)])
    chunks = (1, 7, STEPS, STEPS + 1, 0)
    found = stream(graphs, cases, tmp_path, cc, *flags, chunks=chunks, objects=objects)
    for graph, runs, results in zip(graphs, cases, found, strict=True):
        own = len(graph.own_outputs)
        for run, result in zip(runs, results, strict=True):
            given = steps_of(graph, run)[1]
            expected = [*given[:own], *(states[-1] for states in given[own:])]
            for chunk, arrays in zip(chunks, result, strict=True):
                for name, e, f in zip(graph.outputs, expected, arrays, strict=True):
                    where = [(chunk, name, *index) for index in np.ndindex(e.shape)]
                    assert_same(f.reshape(e.shape), e, where)
