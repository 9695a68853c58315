"""One suite for every backend: each inherits it and must give the reference's codes."""

from __future__ import annotations

import numpy as np
import pytest

from compare import assert_same
from integer_graphs import inputs_of, operator_graphs
from random_graphs import awkward_inputs, random_graph
from samebits.codegen.run.targets import TARGETS, host
from samebits.errors import UnsupportedError
from samebits.ir import Graph, GraphBuilder
from samebits.ir.integer.layers import layers
from samebits.ir.lowering.lower import lower_graph
from samebits.model import Model
from samebits.verification.backends.generated_c import GeneratedC
from samebits.verification.backends.onnxruntime import OnnxRuntime
from samebits.verification.backends.pytorch import PyTorch
from samebits.verification.backends.reference import Reference
from samebits.verification.inputs import dequantize

QUICK_SEEDS, SLOW_SEEDS = range(12), range(100, 160)
FLASH = 1_200_000  # bytes of constants in one program: what the boards hold


def side_by_side(graphs: list[Graph]) -> Graph:
    """One graph that computes all of them: a program is built once for many cases."""
    builder = GraphBuilder("side by side")
    outputs = []
    for graph in graphs:
        names = {}
        for name in graph.inputs:
            value = graph.values[name]
            names[name] = builder.input(name, value.dtype, value.shape, value.quantization)
        for name, array in graph.constants.items():
            names[name] = builder.constant(name, array)
        for node in graph.nodes:
            names[node.output] = builder.add(
                node.op,
                [names[n] for n in node.inputs],
                node.attributes,
                f"{graph.name}/{node.name}",
                quantization=graph.values[node.output].quantization,
            )
        outputs += [names[n] for n in graph.outputs]
    return builder.build(outputs)


def graphs_per_program(kind: str, without: tuple[str, ...] = ()) -> list[list[Graph]]:
    """The cases in groups that one program computes."""
    if kind == "operators":
        graphs = [graph for name, graph in operator_graphs() if name not in without]
        graphs.sort(key=lambda graph: graph.values[graph.inputs[0]].shape[0])  # stable
    else:
        seeds = QUICK_SEEDS if kind == "quick" else SLOW_SEEDS
        graphs = [lower_graph(random_graph(seed, 1 + seed % 12)) for seed in seeds]
    groups: list[list[Graph]] = []
    room = samples = 0
    for graph in graphs:
        size = sum(array.nbytes for array in graph.constants.values())
        first = graph.values[graph.inputs[0]].shape[0]
        if size > room or first != samples:
            groups.append([])
            room, samples = FLASH, first
        groups[-1].append(graph)
        room -= size
    return groups


class BackendSuite:
    """What every backend must pass; a subclass names it."""

    backend = Reference()
    without: tuple[str, ...] = ()  # operator cases beyond the backend's memory

    @pytest.fixture(autouse=True)
    def _available(self):
        reason = self.backend.unavailable()
        if reason is not None:
            pytest.skip(reason)

    def same(self, model: Model, inputs: list[np.ndarray]) -> None:
        expected = Reference().run(model, inputs)
        found = self.backend.run(model, inputs)
        graph = model.integer
        for name, e, f in zip(graph.outputs, expected, found, strict=True):
            if f.dtype.kind == "f":
                e = dequantize(e, graph.values[name])
            assert f.dtype == e.dtype, name
            assert_same(f, e, [(name, *index) for index in np.ndindex(e.shape)])

    def check(self, graph: Graph, seed: int) -> None:
        inputs = inputs_of(graph, seed)
        self.same(Model("test", graph), inputs)

    def test_every_operator(self):
        for index, group in enumerate(graphs_per_program("operators", self.without)):
            self.check(side_by_side(group), index)

    def test_random_graphs(self):
        self.random("quick")

    @pytest.mark.slow
    def test_more_random_graphs(self):
        self.random("slow")

    def random(self, kind: str) -> None:
        for index, group in enumerate(graphs_per_program(kind)):
            self.check(side_by_side(group), index)

    def test_several_samples_give_what_each_gives_alone(self):
        real = random_graph(3, 6)
        model = Model("random-3", real)
        inputs = awkward_inputs(model.integer, 3, samples=3)
        together = self.backend.run(model, inputs)
        for index in range(3):
            alone = self.backend.run(model, [a[index : index + 1] for a in inputs])
            for whole, one in zip(together, alone, strict=True):
                step = len(one)
                part = whole[index * step : (index + 1) * step]
                assert_same(part, one, list(np.ndindex(one.shape)))

    def test_traces_are_those_of_the_reference(self):
        model = Model("random-5", random_graph(5, 8))
        inputs = awkward_inputs(model.integer, 5, samples=2)
        try:
            found = self.backend.trace(model, inputs)
        except UnsupportedError as error:
            pytest.skip(str(error))
        expected = Reference().trace(model, inputs)
        assert [[layer.name for layer in run] for run in found] == [
            list(layers(model.integer)) for _ in range(2)
        ]
        for run, other in zip(found, expected, strict=True):
            assert [(a.name, a.hash, a.count) for a in run] == [
                (b.name, b.hash, b.count) for b in other
            ]


class TestTorch(BackendSuite):
    backend = PyTorch()


class TestC(BackendSuite):
    backend = GeneratedC("c")


class BoardSuite(BackendSuite):
    """Boards: a table of thresholds per channel for 16-bit codes (5 MB) is beyond their flash."""

    without = ("requantize-int32-int16--32768", "requantize-int32-uint16-5")


@pytest.mark.slow
class TestCortexM3(BoardSuite):
    backend = GeneratedC("cortex-m3")


class TestCortexM55(BoardSuite):
    backend = GeneratedC("cortex-m55")


@pytest.mark.slow
class TestCortexM0Large(BoardSuite):
    """ARMv6-M code: the microbit's own memory is too small for all operators at once."""

    backend = GeneratedC("cortex-m0-large")


class TestOnnxRuntimeInteger(BackendSuite):
    backend = OnnxRuntime("onnxruntime-integer")


@pytest.mark.slow
class TestCortexM4(BoardSuite):
    backend = GeneratedC("cortex-m4")


@pytest.mark.slow
class TestCortexM7(BoardSuite):
    backend = GeneratedC("cortex-m7")


@pytest.mark.slow
class TestCortexM33(BoardSuite):
    backend = GeneratedC("cortex-m33")


@pytest.mark.slow
class TestLevel2(BackendSuite):
    backend = GeneratedC("x86-64-v2")


@pytest.mark.slow
class TestLevel3(BackendSuite):
    backend = GeneratedC("x86-64-v3")


@pytest.mark.slow
class TestLevel4(BackendSuite):
    backend = GeneratedC("x86-64-v4")


@pytest.mark.slow
class TestAarch64(BackendSuite):
    backend = GeneratedC("aarch64")


@pytest.mark.slow
class TestBigEndian(BackendSuite):
    backend = GeneratedC("s390x")


@pytest.mark.slow
class TestRiscV(BackendSuite):
    backend = GeneratedC("riscv64")


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["-O0", "-O3", "-Os", "-O3 -march=native", "sanitize"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_every_compiler_and_level(compiler, flags):
    options = flags.split()
    if flags == "sanitize":
        options = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    target = host(compiler, *options)
    suite = BackendSuite()
    suite.backend = GeneratedC(target)
    reason = suite.backend.unavailable()
    if reason is not None:
        pytest.skip(reason)
    suite.test_every_operator()
    suite.random("quick")


def test_every_target_has_a_backend():
    waiting, suites = [BackendSuite], set()
    while waiting:
        suite = waiting.pop()
        waiting += suite.__subclasses__()
        if isinstance(suite.backend, GeneratedC):
            suites.add(suite.backend.name)
    # The microbit has too little memory for all operators at once.
    assert suites | {"cortex-m0"} == set(TARGETS) | {"cortex-m0"}
