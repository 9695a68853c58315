"""A data flow as one ONNX file of standard operators (opset 18), with the arithmetic as functions.

Inputs are binary32 [batch, *shape], rounded to binary16; outputs are binary16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from samebits.errors import UnsupportedError
from samebits.files import write_atomically
from samebits.npu.concord.graph import Array, DataFlow, FlowNode, FlowValue, Turns
from samebits.npu.concord.memory import channels_and_positions
from samebits.npu.concord.onnx_functions import DOMAIN, OPSET, block_constants, functions
from samebits.npu.concord.source import SHORTER, arrays
from samebits.npu.machine.image import fitted
from samebits.npu.machine.isa import POINTWISE, REDUCTIONS
from samebits.spec.npu_formula import Formula

IR_VERSION = 9
BATCH = "batch.size"
SIZE_MAX = 1 << 31  # of one protobuf message


def onnx_model(flow: DataFlow) -> onnx.ModelProto:
    """The model. Raises UnsupportedError if its arrays do not fit one file."""
    writer = OnnxWriter(flow)
    for kind, array in block_constants(flow.mantissa).items():
        writer.initializer(f"block.{kind}", array)
    for name, array in arrays(flow).items():
        shaped = array[np.newaxis] if name in writer.constants else array
        kept = array.dtype == np.int64 or name in writer.tiles
        stored = name if name in writer.constants else f"data.{name}"
        writer.initializer(stored, shaped if kept else shaped.astype(np.float32))
    for name in sorted(writer.tiles):
        writer.matrix(name)
    batch = np.array([1], np.int64)
    if flow.inputs:
        writer.node("Shape", [f"{flow.inputs[0].name}"], BATCH, start=0, end=1)
    else:
        writer.initializer(BATCH, batch)
    writer.emit(flow.nodes)
    inputs = [_info(h.name, TensorProto.FLOAT, h.shape) for h in flow.inputs]
    outputs = [_info(h.name, TensorProto.FLOAT16, h.shape) for h in flow.outputs]
    if sum(array.nbytes for array in writer.arrays.values()) >= SIZE_MAX - (1 << 24):
        raise UnsupportedError(
            f"{flow.name}: expected less than 2 GB of weights and constants for one ONNX file, "
            "found more; translate to PyTorch"
        )
    graph = helper.make_graph(
        *(writer.nodes, "program", inputs, outputs),
        [numpy_helper.from_array(array, name) for name, array in writer.arrays.items()],
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)],
        functions=functions(),
        ir_version=IR_VERSION,
        producer_name="samebits",
    )


def write_onnx(flow: DataFlow, path: Path) -> tuple[Path, ...]:
    """The file written."""
    write_atomically(path, onnx_model(flow).SerializeToString())
    return (path,)


def load_onnx(path: Path) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """A function of inputs [batch, *shape] by name, run by onnxruntime on the CPU.

    Raises UnsupportedError without onnxruntime.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise UnsupportedError(
            f"{path}: expected onnxruntime to run it, found none installed; pip install "
            "onnxruntime, or translate to torch"
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    shapes = {value.name: tuple(value.shape[1:]) for value in session.get_inputs()}

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        rounded = {
            name: fitted(
                np.asarray(a, np.float16).astype(np.float32), shapes.get(name, a.shape[1:])
            )
            for name, a in inputs.items()
        }
        return dict(zip(names, session.run(names, rounded), strict=True))

    return run


def _info(name: str, dtype: int, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, ["batch", *shape])


class OnnxWriter:
    """Nodes of a graph, or of the body of a loop. `batched`: names of values with a batch."""

    def __init__(self, flow: DataFlow) -> None:
        self.flow = flow
        self.shapes = {hint.name: hint.shape for hint in (*flow.inputs, *flow.outputs)}
        self.constants = {name for kind, name in flow.data if kind == "constant"}
        self.tiles = {name for kind, name in flow.data if kind == "tiles"}
        self.arrays: dict[str, Array] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.batched: set[str] = set()
        self.expanded: dict[str, str] = {}  # values without a batch, with one
        self.count = 0

    def initializer(self, name: str, array: Array) -> str:
        """A constant of the graph; its name."""
        self.arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
        return name

    def matrix(self, name: str) -> None:
        """Constants that the product of a matrix in `data` needs, in binary64.

        See `Tiles` of runtime_torch, which has the same bounds for its rounding test.
        """
        values = self.arrays[f"data.{name}"]
        tiles, lanes, outputs = values.shape
        wide = self.node("Cast", [f"data.{name}"], f"data.{name}.wide", to=TensorProto.DOUBLE)
        shape = self.numbers(tiles * lanes, outputs)
        flat = self.node("Reshape", [wide, shape], f"data.{name}.flat")
        self.node("Transpose", [flat], f"data.{name}.turned", perm=[1, 0])
        wide64 = values.astype(np.float64)
        size = float(np.abs(wide64).sum((0, 1)).max(initial=0.0))
        # All products are multiples of `unit`: inputs of 2**(-15 - mantissa), weights of 2**-30
        # times the largest power of two that divides them all.
        codes = (wide64 * 2.0**30).astype(np.int64).reshape(-1)
        unit = int(np.bitwise_or.reduce(codes & -codes, initial=1 << 50))
        unit64 = float(unit & -unit) * 2.0**-30 * 2.0 ** (-15 - self.flow.mantissa)
        whole = unit64 >= 2.0**-40
        bounds = {
            "rounding": 0.0 if whole else tiles * 2.0**-41 * (1 + 2.0**-20),
            "spread": tiles * lanes * 2.0**-52 * size * (1 + 2.0**-20),
            "exact": 2.0**52 * unit64 / max(size, 2.0**-30),
        }
        for kind, bound in bounds.items():
            self.initializer(f"data.{name}.{kind}", np.array(bound, np.float64))

    def numbers(self, *numbers: int) -> str:
        """The name of a constant int64 vector."""
        name = "n." + "_".join(str(n).replace("-", "m") for n in numbers)
        return self.initializer(name, np.array(numbers, np.int64))

    def node(self, op: str, inputs: Sequence[str], out: str, **attributes: Any) -> str:
        """Append a node; operators of the functions are known by their names."""
        domain = DOMAIN if op in FUNCTIONS else ""
        self.nodes.append(
            helper.make_node(op, list(inputs), [out], name=out, domain=domain, **attributes)
        )
        return out

    def formula(self, formula: Formula, arguments: Sequence[str], out: str) -> None:
        """Nodes that compute a formula of these arguments; the last of them makes `out`."""
        if formula in SHORTER:
            self.node(SHORTER[formula].onnx, arguments, out)
            return
        start = len(self.nodes)

        def node(op: str, *inputs: str) -> str:
            return self.node(op, inputs, f"{out}.{len(self.nodes) - start}")

        def rounded(op: str) -> Callable[[str, str], str]:
            return lambda a, b: node("Round16", node(op, a, b))

        operations: dict[str, Callable[..., str]] = {
            "add": rounded("Add"),
            "subtract": rounded("Sub"),
            "multiply": rounded("Mul"),
            "choose": lambda p, q, x, y: node("Choose", p, q, x, y),
            "number": lambda c: self.initializer(f"f.{c!r}", np.array(c, np.float32)),
            "look_up": lambda table, x: node("LookUp", x, f"data.t_{table.name}"),
        }
        formula.realised(operations, *arguments)
        last = self.nodes[-1]
        last.name = last.output[0] = out

    def emit(self, nodes: Sequence[FlowNode | Turns]) -> None:
        """Nodes of the data flow, in order."""
        for node in nodes:
            if isinstance(node, Turns):
                self.turns(node)
            elif node.op != "constant":
                if any(value.name in self.batched for value in node.inputs) or node.op == "input":
                    self.batched.add(node.out.name)
                EMITTERS[node.op](self, node)

    def with_batch(self, value: FlowValue) -> str:
        """A value of the whole batch."""
        if value.name in self.batched:
            return value.name
        if value.name not in self.expanded:
            self.count += 1
            name = f"{value.name}.batch{self.count}"
            self.node("Concat", [BATCH, self.numbers(1, 1)], f"{name}.shape", axis=0)
            self.expanded[value.name] = self.node("Expand", [value.name, f"{name}.shape"], name)
        return self.expanded[value.name]

    def turns(self, turns: Turns) -> None:
        """A Loop: states and what escapes are carried, what is collected is a scan output."""
        self.count += 1
        turn = f"turn.{self.count}"
        carried = [(c.state, self.with_batch(c.initial), c.next, c.final) for c in turns.carried]
        for value, out in turns.escaped:
            self.node(
                *(
                    "Concat",
                    [BATCH, self.numbers(value.positions, value.width)],
                    f"{out.name}.shape",
                ),
                axis=0,
            )
            zeros = self.node("ConstantOfShape", [f"{out.name}.shape"], f"{out.name}.zeros")
            unused = FlowValue(f"{out.name}.before", value.positions, value.vectors, value.width)
            carried.append((unused, zeros, value, out))

        before, nodes, expanded = set(self.batched), self.nodes, dict(self.expanded)
        self.nodes = []
        self.batched |= {state.name for state, *_ in carried}
        for value, outer in turns.slices:
            if outer.name in self.batched:
                self.batched.add(value.name)
            n, name = value.positions, value.name
            self.node("Reshape", [turn, self.numbers(1)], f"{name}.turn")
            self.node("Mul", [f"{name}.turn", self.numbers(n)], f"{name}.start")
            self.node("Add", [f"{name}.start", self.numbers(n)], f"{name}.stop")
            bounds = [f"{name}.start", f"{name}.stop", self.numbers(1)]
            self.node("Slice", [outer.name, *bounds], name)
        self.emit(turns.body)
        results = [self.node("Identity", [f"{turn}.on"], f"{turn}.on_still")]
        for state, _, value, _ in carried:
            results.append(
                self.node("Identity", [self.with_batch(value)], f"{state.name}.{turn}_next")
            )
        scans = []
        for value, out in turns.collected:
            scans.append(self.node("Identity", [value.name], f"{out.name}.part"))
            if value.name in self.batched:
                before.add(out.name)
        takes = [
            helper.make_tensor_value_info(turn, TensorProto.INT64, []),
            helper.make_tensor_value_info(f"{turn}.on", TensorProto.BOOL, []),
            *(_unknown(state.name) for state, *_ in carried),
        ]
        gives = [helper.make_tensor_value_info(results[0], TensorProto.BOOL, [])]
        gives += [_unknown(name) for name in (*results[1:], *scans)]
        body = helper.make_graph(self.nodes, f"{turn}.body", takes, gives)

        self.nodes, self.batched, self.expanded = nodes, before, expanded
        count = self.initializer(f"{turn}.count", np.array(turns.count, np.int64))
        start = self.initializer(f"{turn}.start", np.array(True))
        finals = [out.name if out else f"{state.name}.{turn}_end" for state, _, _, out in carried]
        stacked = [f"{out.name}.stacked" for _, out in turns.collected]
        self.nodes.append(
            helper.make_node(
                *("Loop", [count, start, *(initial for _, initial, _, _ in carried)]),
                [*finals, *stacked],
                name=turn,
                body=body,
            )
        )
        self.batched |= set(finals)
        for name, (_, out) in zip(stacked, turns.collected, strict=True):
            turned = self.node("Transpose", [name], f"{name}.turned", perm=[1, 0, 2, 3])
            self.node("Reshape", [turned, self.numbers(0, -1, out.width)], out.name)


def _unknown(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None, None])


def _input(writer: OnnxWriter, node: FlowNode) -> None:
    channels, positions = channels_and_positions(writer.shapes[node.key])
    out, short = node.out.name, writer.node("Round16", [node.key], f"{node.out.name}.short")
    if len(writer.shapes[node.key]) == 3:
        flat = writer.numbers(0, channels, positions)
        writer.node("Reshape", [short, flat], f"{out}.flat")
        writer.node("Transpose", [f"{out}.flat"], out, perm=[0, 2, 1])
    else:
        writer.node("Reshape", [short, writer.numbers(-1, positions, channels)], out)


def _output(writer: OnnxWriter, node: FlowNode) -> None:
    shape = writer.shapes[node.key]
    channels, positions = channels_and_positions(shape)
    name = node.out.name
    value = writer.with_batch(node.inputs[0])
    writer.node("Reshape", [value, writer.numbers(0, positions, -1)], f"{name}.rows")
    bounds = [writer.numbers(0), writer.numbers(channels), writer.numbers(2)]
    writer.node("Slice", [f"{name}.rows", *bounds], f"{name}.lanes")
    lanes = f"{name}.lanes"
    if len(shape) == 3:
        lanes = writer.node("Transpose", [lanes], f"{name}.turned", perm=[0, 2, 1])
    writer.node("Reshape", [lanes, writer.numbers(0, *shape)], f"{name}.shaped")
    writer.node("Cast", [f"{name}.shaped"], node.key, to=TensorProto.FLOAT16)


def _join(writer: OnnxWriter, node: FlowNode) -> None:
    any_batch = node.out.name in writer.batched
    parts = [writer.with_batch(v) if any_batch else v.name for v in node.inputs]
    writer.node("Concat", parts, node.out.name, axis=1)


def _select(writer: OnnxWriter, node: FlowNode) -> None:
    value = node.inputs[0].name
    if node.key:
        writer.node("Gather", [value, f"data.{node.key}"], node.out.name, axis=1)
        return
    start, stop, stride = (writer.numbers(n) for n in node.numbers)
    writer.node("Slice", [value, start, stop, writer.numbers(1), stride], node.out.name)


def _widen(writer: OnnxWriter, node: FlowNode) -> None:
    value, out = node.inputs[0], node.out.name
    padding = np.array(node.numbers[0], np.uint16).view(np.float16).astype(np.float32)
    fill = writer.initializer(f"p.{node.numbers[0]}", padding)
    pads = writer.numbers(0, 0, 0, 0, 0, node.out.width - value.width)
    writer.node("Pad", [value.name, pads, fill], out)


def _split(writer: OnnxWriter, node: FlowNode) -> None:
    shape = writer.numbers(0, -1, writer.flow.native)
    writer.node("Reshape", [node.inputs[0].name, shape], node.out.name)


def _quantize(writer: OnnxWriter, node: FlowNode) -> None:
    value, out = node.inputs[0], node.out
    name = value.name
    if out.width > value.width:
        fill = writer.initializer("p.0", np.array(0, np.float32))
        pads = writer.numbers(0, 0, 0, 0, 0, out.width - value.width)
        name = writer.node("Pad", [name, pads, fill], f"{out.name}.padded")
    blocked = writer.numbers(0, 0, -1, min(out.width, writer.flow.native))
    flat = writer.numbers(0, 0, out.width)
    writer.node(
        "Quantize", [name, blocked, flat, "block.bounds", "block.magics", "block.limit"], out.name
    )


def _mv_mul(writer: OnnxWriter, node: FlowNode) -> None:
    """Constant tiles: tile by tile if products are requantized, else by `Product`."""
    out = node.out
    tiles, lanes, _ = writer.flow.data["tiles", node.key].shape
    data, rows = f"data.{node.key}", writer.numbers(-1, tiles, lanes)
    if node.numbers[0]:
        inputs = [node.inputs[0].name, f"{data}.wide", rows]
        dots = writer.node("Dots", inputs, f"{out.name}.dots")
        flat = writer.node("SumShortTiles", [dots], f"{out.name}.flat")
    else:
        shape = writer.numbers(-1, tiles * lanes)
        x = writer.node("Reshape", [node.inputs[0].name, shape], f"{out.name}.rows")
        inputs = [x, *(f"{data}.{kind}" for kind in ("flat", "turned", "wide"))]
        inputs += [rows, writer.numbers(0, tiles, lanes)]
        inputs += [f"{data}.{kind}" for kind in ("rounding", "spread", "exact")]
        flat = writer.node("Product", inputs, f"{out.name}.flat")
    writer.node("Reshape", [flat, writer.numbers(-1, out.positions, out.width)], out.name)


def _tiles(writer: OnnxWriter, node: FlowNode) -> None:
    tiles, requantize = node.numbers
    rows = writer.numbers(0, -1, tiles, writer.flow.native)
    inputs = [*(value.name for value in node.inputs), rows]
    dots = writer.node("DotsOfTiles", inputs, f"{node.out.name}.dots")
    writer.node("SumShortTiles" if requantize else "SumTiles", [dots], node.out.name)


def _pointwise(writer: OnnxWriter, node: FlowNode) -> None:
    names = [value.name for value in node.inputs]
    writer.formula(POINTWISE[node.op], names, node.out.name)


def _across(writer: OnnxWriter, node: FlowNode) -> None:
    """An instruction across lanes, by the function of its name."""
    shapes = [writer.numbers(0, -1, *node.numbers), writer.numbers(0, -1, node.out.width)]
    function = REDUCTIONS[node.op].name.capitalize()
    writer.node(function, [node.inputs[0].name, *shapes], node.out.name)


def _turn(writer: OnnxWriter, node: FlowNode) -> None:
    native, out = writer.flow.native, node.out.name
    tiles = writer.numbers(0, -1, native, native)
    writer.node("Reshape", [node.inputs[0].name, tiles], f"{out}.tiles")
    writer.node("Transpose", [f"{out}.tiles"], f"{out}.transposed", perm=[0, 1, 3, 2])
    writer.node("Reshape", [f"{out}.transposed", writer.numbers(0, -1, native)], out)


FUNCTIONS = frozenset(function.name for function in functions())
EMITTERS: dict[str, Callable[[OnnxWriter, FlowNode], None]] = {
    "input": _input,
    "output": _output,
    "join": _join,
    "select": _select,
    "widen": _widen,
    "split": _split,
    "quantize": _quantize,
    "mv_mul": _mv_mul,
    "mv_mul_tiles": _tiles,
    "turn": _turn,
    **dict.fromkeys(POINTWISE, _pointwise),
    **dict.fromkeys(REDUCTIONS, _across),
}
