"""The compiler to firmware: a real graph as a program of the neural processor.

Stages: operators become drafts of chains, one operation each (`rules`, `pointwise`); drafts are
joined (`fuse`); buffers get their places in the memories (`memory`); chains are written as
instructions (`emit`). docs/spec/npu.md is what the program means.

A graph with recurrent layers is compiled as its step graph (`ir.steps`): what a time step
computes is the body of a loop, states stay in place from turn to turn, and what depends on the last
step alone comes after the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from samebits.errors import InputError, SamebitsError, UnsupportedError
from samebits.ir import Graph, Node, Trait, has, ops_with
from samebits.ir.interpreter import carry, evaluate
from samebits.ir.ops import op_named
from samebits.ir.real.define import FLOATS
from samebits.ir.real.quantize import saturation
from samebits.ir.rewrite import simplify
from samebits.npu.compiler import lanes, pointwise, rules, tensors
from samebits.npu.compiler.build import Builder, Names
from samebits.npu.compiler.emit import emit
from samebits.npu.compiler.fuse import fuse
from samebits.npu.compiler.layout import (
    OUTSIDE,
    Buffer,
    BufferAccess,
    Port,
    UnitOperation,
    View,
    dense_places,
    port_shape,
)
from samebits.npu.compiler.memory import map_memory, place_tiles
from samebits.npu.compiler.rules import Input, Rule
from samebits.npu.compiler.time import (
    Timed,
    keep,
    kept_before,
    sections,
    state_view,
    timed,
    turn_view,
)
from samebits.npu.machine.program import DEPTH_MAX, MANTISSA, NATIVE, Image, Program

DEPTHS: Mapping[str, int] = MappingProxyType(
    {
        "ivrf": 4096,
        "asvrf0": 1024,
        "asvrf1": 1024,
        "mvrf0": 1024,
        "mvrf1": 1024,
        "dram": DEPTH_MAX,
        "mrf": 4096,
        "mdram": DEPTH_MAX,
    }
)
"""Memories of the machine that programs are made for, unless told otherwise."""

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **pointwise.RULES,
        "Conv": rules.conv,
        "ConvTranspose": rules.conv_transpose,
        "Resize": rules.resize,
        "Gemm": rules.gemm,
        "MatMul": tensors.product,
        "Concat": rules.concat,
        "MaxPool": rules.pool("vv_max"),
        "AveragePool": rules.pool("vv_add"),
        "GlobalMaxPool": rules.reduction("vv_max"),
        "GlobalAveragePool": rules.reduction("vv_add", mean=True),
        "ReduceMax": lanes.reduction("vv_max"),
        "ReduceMean": lanes.reduction("vv_add", mean=True),
        "ReduceSum": lanes.reduction("vv_add"),
        "Softmax": lanes.softmax,
        "LogSoftmax": lanes.softmax,
        "LayerNormalization": lanes.layer_norm,
        "RMSNormalization": lanes.layer_norm,
        "GroupNormalization": lanes.group_norm,
        "InstanceNormalization": lanes.group_norm,
    }
)
"""Operators that become drafts. Data movement (MOVES) and quantization become none."""

MOVES = ops_with(Trait.MOVEMENT)
QUANTIZATION = frozenset(("QuantizeLinear", "DequantizeLinear"))
KNOWN = {"Cast", *MOVES, *QUANTIZATION, *RULES}
HOST = "end the network before it and leave the rest to the host"


def lower_real_graph(
    graph: Graph,
    native: int,
    mantissa: int = 15,
    depths: Mapping[str, int] = DEPTHS,
    requantize: bool = False,
    steps: int | None = None,
) -> tuple[Program, Image]:
    """The program and memory image of a real graph for batch 1.

    native, mantissa: N and M. depths: the most that the program may use of a memory, where it is
    not what DEPTHS says. requantize: partial products go through binary16 between tiles. steps: the
    length of the sequences of a step graph; of a graph with recurrent layers, instead of its own.

    A quantized graph loses its QuantizeLinear and DequantizeLinear pairs: the machine has its own
    numerics, and weights are their dequantized values. All constants are rounded to binary16.
    Inputs and outputs are called `port_names(graph)`; a hint lists the elements in the order of the
    graph's tensor, without the batch axis, in a shape of at most 3 sizes that may join axes of it
    (an image that the network flattens first is a vector). Sequences of recurrent layers are
    [T, C], and come and go step by step.

    Raises UnsupportedError with every operator that the machine cannot compute and why, or with the
    memory that is too small; InputError for settings out of range.
    """
    if native not in NATIVE or mantissa not in MANTISSA:
        raise InputError(
            f"expected a native dimension from {NATIVE[0]} to {NATIVE[-1]} and a mantissa from "
            f"{MANTISSA[0]} to {MANTISSA[-1]} bits, found {native} and {mantissa}"
        )
    if not set(depths) <= set(DEPTHS) or not all(1 <= n <= DEPTH_MAX for n in depths.values()):
        raise InputError(
            f"expected depths of {', '.join(DEPTHS)} from 1 to {DEPTH_MAX}, found {dict(depths)}"
        )
    depths = {**DEPTHS, **depths}
    found = timed(simplify(graph), steps)
    builder = _Lowering(found, native).run()
    tiles = place_tiles(builder.chains, depths)
    chains = fuse(builder.chains, tiles)
    places = map_memory(chains, tiles, builder, depths)
    turns = found.turns or 1
    return emit(chains, places, builder, graph.name, mantissa, requantize, turns)


def port_names(graph: Graph) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names that `lower_real_graph` gives the inputs and the outputs of a graph, in its order.

    States are neither.

    The hints of a program are in the order of its instructions, which may be another.
    """
    names = Names()
    inputs = tuple(names.unique(name) for name in graph.own_inputs)
    return inputs, tuple(names.unique(name) for name in graph.own_outputs)


class _Lowering:
    """Walks a graph and collects every node that has no rule."""

    def __init__(self, found: Timed, native: int) -> None:
        self.timed, self.graph, self.turns = found, found.graph, found.turns
        graph = self.graph
        self.inputs, self.outputs = port_names(graph)
        names = Names({*self.inputs, *self.outputs})
        self.builder = Builder(native, self.turns is not None, names)
        self.states: dict[str, Input] = {}
        self.faults: list[str] = []
        self.readers = graph.consumers()

    def run(self) -> Builder:
        """The drafts of the whole graph."""
        graph = self.graph
        for name, array in graph.constants.items():
            self.states[name] = carry(array, graph.values[name].dtype, False)
        for name, port in zip(graph.own_inputs, self.inputs, strict=True):
            with self._collected(f"input {name!r}"):
                self.states[name] = self._input(name, port)
        outputs = list(zip(graph.own_outputs, self.outputs, strict=True))
        if self.turns is None:
            self._part(graph.nodes, outputs)
        else:
            self._loop(outputs)
        if self.faults:
            raise UnsupportedError(
                f"{graph.name}: the neural processor cannot compute:\n  " + "\n  ".join(self.faults)
            )
        return self.builder

    def _part(self, nodes: Iterable[Node], outputs: Iterable[tuple[str, str]]) -> None:
        for node in nodes:
            with self._collected(f"node {node.name!r} ({node.op})"):
                self._node(node)
        for name, port in outputs:
            with self._collected(f"output {name!r}"):
                self._output(name, port)

    @contextmanager
    def _collected(self, where: str) -> Iterator[None]:
        try:
            yield
        except SamebitsError as error:
            text = str(error)
            self.faults.append(text if text.startswith(where) else f"{where}: {text}")

    # --- time -----------------------------------------------------------------------------------

    def _loop(self, outputs: Sequence[tuple[str, str]]) -> None:
        """A turn, then what follows the last one."""
        graph, builder, last = self.graph, self.builder, self.timed.last
        every = [(name, port) for name, port in outputs if name not in last]
        if len(every) > 1 or len(graph.own_inputs) != 1:
            found = ", ".join((*graph.own_inputs, *(name for name, _ in every)))
            raise UnsupportedError(
                f"{graph.name}: expected one input and at most one output of every step, found "
                f"{found}: the network queue holds one tensor after the other; join them along "
                "their features"
            )
        states = {state: state_view(builder, graph, state) for state in graph.states}
        self.states.update({state.input: view for state, view in states.items()})
        body, after = sections(graph, [name for name, _ in every])
        self._part(body, every)
        # All states change at once: what becomes of one may be another's value of before.
        old = states.values()
        following = {s: kept_before(builder, self.states.get(s.output), old) for s in states}
        for state, view in states.items():
            with self._collected(f"state {state.input!r}"):
                if following[state] is not None:  # it depends on a node that is already listed
                    keep(builder, view, following[state])
        builder.looped = False
        self._part(after, [(name, port) for name, port in outputs if name in last])

    # --- nodes ----------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        """The outputs of a node as views or constants. Raises UnsupportedError if it has no rule.

        A node without an input that depends on the network is computed here.
        """
        if node.op not in KNOWN:
            constant = all(isinstance(self.states.get(i), np.ndarray) for i in node.inputs if i)
            if not constant:
                advice = HOST if has(node.op, Trait.SCORING) else "replace this operator"
                raise UnsupportedError(f"it has no instructions for this; {advice}")
        if any(i and i not in self.states for i in node.inputs):
            return  # it depends on a node that is already listed
        inputs = [self.states[i] if i else None for i in node.inputs]
        if not any(isinstance(x, View) for x in inputs):
            arrays = [x if isinstance(x, np.ndarray) else None for x in inputs]
            results: Sequence[Input] = evaluate(node, arrays, self.graph.values)
        else:
            results = self._results(node, inputs)
        for name, result in zip(node.outputs, results, strict=False):
            self.states[name] = result

    def _results(self, node: Node, inputs: Sequence[Input]) -> Sequence[Input]:
        """By a rule; a move of elements, computed on their places, is another view."""
        builder, x = self.builder, inputs[0]
        if node.op in RULES:
            shape = self.graph.values[node.output].shape
            return [RULES[node.op](builder, node, inputs, shape)]
        if not isinstance(x, View):
            raise UnsupportedError("expected a tensor that depends on an input, found a constant")
        if node.op == "QuantizeLinear":
            return [self._quantized(node, x, inputs)]
        if node.op == "DequantizeLinear" or (
            node.op == "Cast" and self.graph.values[node.output].dtype in FLOATS
        ):
            return [x]
        if node.op == "Pad":
            return [_padded(node, x)]
        if node.op not in MOVES:
            raise UnsupportedError("expected floating-point numbers, found a conversion to others")
        if any(isinstance(i, View) for i in inputs[1:]):
            raise UnsupportedError("expected one tensor that moves, found several")
        indices = [i for i in inputs[1:] if isinstance(i, np.ndarray)]
        moved = op_named(node.op).meaning([x.places, *indices], node.attributes)
        return [View(x.buffer, np.asarray(places), x.nonnegative) for places in moved]

    def _quantized(self, node: Node, x: View, inputs: Sequence[Input]) -> View:
        """A QuantizeLinear is dropped, but for the relu that codes without negative numbers are."""
        zeros = inputs[2] if len(inputs) > 2 else None
        dtype = self.graph.values[node.output].dtype
        low = saturation(dtype, node.attributes)[0]
        zero = np.zeros(1) if not isinstance(zeros, np.ndarray) else zeros
        if x.nonnegative or (zero != low).any():
            return x
        return replace(
            self.builder.operate(node.name, x, UnitOperation("v_relu")), nonnegative=True
        )

    # --- inputs and outputs ---------------------------------------------------------------------

    def _input(self, name: str, called: str) -> View:
        """A draft that reads an input from the network. Raises UnsupportedError but for batch 1."""
        value = self.graph.values[name]
        if value.dtype not in FLOATS:
            raise UnsupportedError(f"expected floating-point numbers, found {value.dtype}")
        if not value.shape or value.shape[0] != 1 or value.size == 0:
            raise UnsupportedError(
                f"expected a first axis of 1 (one sample), found shape {list(value.shape)}; "
                "import the model for batch 1"
            )
        if self.turns is not None:
            return turn_view(self.builder, value, called, self.turns)
        shape, rows = self._stored_shape(name)
        native = self.builder.native
        port = Port(called, shape)
        channels = shape[-1] if len(shape) == 2 else shape[0]
        height, width = shape[1:] if len(shape) == 3 else (1, value.size // channels)
        if rows is not None:
            height, width = rows, width // rows
        buffer = Buffer(port.name, height, width, self.builder.vectors(channels))
        self.builder.add(port.name, port, buffer, buffer.geometry)
        return View(buffer, dense_places(shape, native).reshape(value.shape))

    def _stored_shape(self, name: str) -> tuple[tuple[int, ...], int | None]:
        """(the shape of an input's hint, rows of its image if the hint does not say so)."""
        shape, readers = self.graph.values[name].shape, self._past_quantization(name)
        while readers and all(has(r.op, Trait.RESHAPES) or r.op == "Identity" for r in readers):
            shapes = {self.graph.values[r.output].shape for r in readers}
            if len(shapes) > 1 or any(r.output in self.graph.outputs for r in readers):
                break
            made = shapes.pop()
            # An image that becomes a vector, or a vector that becomes something else: no others,
            # whose channels could end up in other pixels.
            if made[:1] != (1,) or len(made) > 4 or 2 not in (len(made), len(shape)):
                break
            shape = made
            readers = [x for r in readers for x in self._past_quantization(r.output)]
        rows = None
        if len(shape) == 4 and readers:
            perms = {r.attributes["perm"] if r.op == "Transpose" else None for r in readers}
            if perms == {(0, 3, 1, 2)}:
                shape, rows = (1, shape[1] * shape[2], shape[3]), shape[1]
        if len(shape) == 3 and rows is None and self._spatial(readers):
            shape = (1, shape[1], 1, shape[2])
        if len(shape) not in (2, 3, 4) or shape[0] != 1:
            raise UnsupportedError(
                f"expected [1, C], [1, T, C], [1, C, W] or [1, C, H, W], found {list(shape)}"
            )
        return shape[1:], rows

    def _past_quantization(self, name: str) -> list[Node]:
        """Nodes that read a value, or its dequantized codes."""
        found = []
        for node in self.readers[name]:
            quantized = node.op in QUANTIZATION
            found += self._past_quantization(node.output) if quantized else [node]
        return found

    def _spatial(self, readers: Sequence[Node]) -> bool:
        """Whether the first operator that tells images from sequences takes images."""
        waiting, seen = list(readers), set()
        while waiting:
            node = waiting.pop(0)
            if has(node.op, Trait.SPATIAL):
                return True
            if has(node.op, Trait.PRODUCT) or node.op == "Transpose":
                return False
            if node.name not in seen:
                seen.add(node.name)
                waiting += self.readers[node.output]
        return False

    def _output(self, name: str, called: str) -> None:
        """A draft that sends an output. Raises UnsupportedError for elements out of order."""
        state = self.states.get(name)
        if state is None:
            return  # it depends on a node that is already listed
        if not isinstance(state, View):
            raise UnsupportedError("expected an output that depends on an input, found a constant")
        if self.turns is not None:  # a vector each step, or one after the last
            state = replace(state, places=state.places.reshape(1, -1))
        if state.uniform and state.places.size == state.buffer.height * state.buffer.width:
            state = self.builder.first_vector(called, state)
        shape = port_shape(state, self.builder.native)
        if shape is None:
            raise UnsupportedError(
                f"expected elements in the order of the machine (channels of a pixel together), "
                f"found {list(state.places.shape)} in another; end the network before that"
            )
        if self.builder.looped and self.turns is not None:
            shape = (self.turns, *shape)
        port = Port(called, shape)
        buffer = state.buffer
        self.builder.add(port.name, BufferAccess(buffer), port, buffer.geometry)


def _padded(node: Node, x: View) -> View:
    """An explicit Pad by zeros: places outside the buffer, which a convolution reads as zeros."""
    a, rank = node.attributes, x.places.ndim
    pads = a["pads"]
    if a["mode"] != "constant" or float(a["value"]) != 0 or min(pads) < 0:
        found = "negative pads" if min(pads) < 0 else f"mode {a['mode']} and value {a['value']}"
        raise UnsupportedError(f"expected a Pad by zeros (mode constant), found {found}")
    widths = [(pads[i], pads[i + rank]) for i in range(rank)]
    return replace(x, places=np.pad(x.places, widths, constant_values=OUTSIDE))
