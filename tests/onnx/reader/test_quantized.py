"""Files whose codes have fewer bits than their type: QCDQ files (QuantizeLinear, Clip,
DequantizeLinear, as Brevitas writes them) and ONNX's types of 2 and 4 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantized_elsewhere
from samebits.errors import InputError, UnsupportedError
from samebits.ir import Graph, interpreter
from samebits.ir.integer.bounds import bounds
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.real.quantize import saturation
from samebits.onnx import from_model, to_qdq
from samebits.sources import load

Array = np.ndarray[Any, Any]
BACKENDS = ["torch", "c", "onnxruntime-integer"]


class File:
    """An ONNX file node by node."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def constant(self, array: Any, kind: int | None = None) -> str:
        name = f"c{len(self.constants)}"
        array = np.asarray(array)
        self.constants[name] = (
            numpy_helper.from_array(array, name)
            if kind is None
            else helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist())
        )
        return name

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def coded(self, x: str, scale: Any, zero: Any, ends: Any = None, **attributes: Any) -> str:
        """QuantizeLinear, a Clip where there are ends, DequantizeLinear."""
        numbers = [self.constant(np.float32(scale)), self.constant(zero)]
        codes = self.op("QuantizeLinear", x, *numbers, **attributes)
        if ends is not None:
            dtype = np.asarray(zero).dtype
            wide = np.int32 if dtype.itemsize > 1 else dtype  # runtimes clip no 16-bit integers
            if wide != dtype:
                codes = self.op("Cast", codes, to=TensorProto.INT32)
            codes = self.op("Clip", codes, *(self.constant(np.array(e, wide)) for e in ends))
            if wide != dtype:
                codes = self.op("Cast", codes, to=helper.np_dtype_to_tensor_dtype(dtype))
        return self.op("DequantizeLinear", codes, *numbers, **attributes)

    def model(self, x: tuple[int, ...], *outputs: str, opset: int = 21) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
            list(self.constants.values()),
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def ends_of(bits: int, signed: bool, narrow: bool) -> tuple[int, int]:
    half = 1 << (bits - 1)
    return (narrow - half, half - 1) if signed else (0, 2 * half - 1 - narrow)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def agree(graph: Graph, backends: list[str] = BACKENDS) -> None:
    """All backends compute the codes of the definition."""
    verdicts = load(graph).verify("random:20", backends).verdicts
    assert [(v.backend, v.differing) for v in verdicts] == [(name, 0) for name in backends]


# --- QCDQ -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("signed", [False, True])
def test_a_clip_of_codes_is_where_they_saturate(bits: int, narrow: bool, signed: bool) -> None:
    file, ends = File(), ends_of(bits, signed, narrow)
    zero = np.int8(0) if signed else np.uint8(ends[1] // 2)
    y = file.coded("x", 0.5, zero, ends)
    real = from_model(file.model((1, 600), y))
    assert ops(real) == ["QuantizeLinear", "DequantizeLinear"]
    assert saturation(zero.dtype.name, real.nodes[0].attributes) == ends
    x = (np.arange(-300, 300) / 2).astype(np.float32).reshape(1, -1)
    codes = np.clip(np.rint(x.astype(np.float64) / 0.5) + float(zero), *ends)
    assert np.array_equal(interpreter.run(real, [x])[0], (codes - float(zero)) * 0.5)


@pytest.mark.parametrize("bits", [2, 3, 4, 7, 11])
def test_a_network_of_few_bits_is_the_same_everywhere(bits: int) -> None:
    rng = np.random.default_rng(bits)
    kind: Any = np.int8 if bits <= 8 else np.int16
    narrow = ends_of(bits, True, True)
    file = File()
    x = file.coded("x", 0.25, kind(0), ends_of(bits, True, False))
    w = file.constant(rng.normal(0, 1, (5, 6)).astype(np.float32))
    w = file.coded(w, rng.uniform(0.1, 0.2, 5), np.zeros(5, np.int8), (-7, 7), axis=0)
    y = file.op("Gemm", x, w, file.constant(np.float32([1, 2, 3, 4, 5])), transB=1)
    unsigned: Any = np.uint8 if bits <= 8 else np.uint16
    y = file.coded(file.op("Relu", y), 0.3, unsigned(0), ends_of(bits, False, False))
    y = file.coded(file.op("Tanh", y), 2.0 ** (1 - bits), kind(0), narrow)
    graph = from_model(file.model((2, 6), y))
    integer = lower_graph(graph)
    assert ops(integer) == ["clip", "linear", "requantize", "table"]
    hull = bounds(integer)[integer.outputs[0]].hull
    assert (hull.low[0], hull.high[0]) >= narrow[:1]
    assert hull.high[0] <= narrow[1]
    agree(graph)


def test_files_that_are_written_are_read_again() -> None:
    file = File()
    y = file.coded("x", 0.5, np.int8(3), (-7, 7))
    y = file.coded(y, 0.25, np.uint16(9), (2, 1000))
    graph = from_model(file.model((1, 4), y))
    again = from_model(to_qdq(graph, "float"))
    assert [dict(n.attributes) for n in again.nodes] == [dict(n.attributes) for n in graph.nodes]


def test_what_is_no_end_of_codes_stays_a_clip() -> None:
    file = File()
    numbers = [file.constant(np.float32(0.5)), file.constant(np.int8(0))]
    codes = file.op("QuantizeLinear", "x", *numbers)
    wide = file.op("Cast", codes, to=TensorProto.INT32)
    far = file.op("Clip", wide, "", file.constant(np.int32(-200)))
    reals = file.op("Cast", codes, to=TensorProto.FLOAT)
    bounded = file.op("Clip", reals, file.constant(np.float32(1)))
    graph = from_model(file.model((1, 4), far, bounded))
    assert ops(graph) == ["QuantizeLinear", "Cast", "Clip", "Cast", "Clip"]
    found = interpreter.run(graph, [np.float32([[-9, 0, 9, 99]])])
    assert [a.tolist() for a in found] == [[[-200] * 4], [[1, 1, 18, 127]]]


def test_clips_after_one_another_and_codes_that_are_read_twice() -> None:
    file = File()
    numbers = [file.constant(np.float32(1)), file.constant(np.int8(0))]
    codes = file.op("QuantizeLinear", "x", *numbers)
    less = file.op("Clip", codes, file.constant(np.int8(-9)))
    least = file.op("Clip", less, file.constant(np.int8(-20)), file.constant(np.int8(5)))
    outputs = [file.op("DequantizeLinear", c, *numbers) for c in (codes, less, least)]
    graph = from_model(file.model((1, 4), *outputs))
    found = interpreter.run(graph, [np.float32([[-99, -9, 5, 99]])])
    assert [a.tolist() for a in found] == [
        [[-99, -9, 5, 99]],
        [[-9, -9, 5, 99]],
        [[-9, -9, 5, 5]],
    ]
    assert [dict(n.attributes)["high"] for n in graph.nodes[:3]] == [None, 127, 5]


# --- types of 2 and 4 bits ---------------------------------------------------------------------

TYPES = {
    "int4": (TensorProto.INT4, -8, 7),
    "uint4": (TensorProto.UINT4, 0, 15),
    "int2": (TensorProto.INT2, -2, 1),
    "uint2": (TensorProto.UINT2, 0, 3),
}


@pytest.mark.parametrize("name", TYPES)
def test_activations_of_narrow_types_are_codes_between_their_ends(name: str) -> None:
    kind, low, high = TYPES[name]
    file = File()
    numbers = [file.constant(np.float32(0.5)), file.constant(np.array(1), kind)]
    codes = file.op("QuantizeLinear", "x", *numbers)
    y = file.op("DequantizeLinear", codes, *numbers)
    graph = from_model(file.model((1, 41), y, opset=25))
    x = (np.arange(-20, 21) / 2).astype(np.float32).reshape(1, -1)
    expected = (np.clip(np.rint(x / 0.5) + 1, low, high) - 1) * 0.5
    assert np.array_equal(interpreter.run(graph, [x])[0], expected)
    assert ops(lower_graph(graph)) == ["clip"]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_weights_of_narrow_types(name: str, axis: int | None) -> None:
    kind, low, high = TYPES[name]
    rng = np.random.default_rng(3)
    codes = rng.integers(low, high + 1, (5, 7))
    count = () if axis is None else (codes.shape[axis],)
    scales = rng.uniform(0.1, 1, count).astype(np.float32)
    zeros = rng.integers(low, high + 1, count)
    file = File()
    x = file.coded("x", 0.25, np.int8(3))
    names = [file.constant(codes, kind), file.constant(scales), file.constant(zeros, kind)]
    w = file.op("DequantizeLinear", *names, **({} if axis is None else {"axis": axis}))
    graph = from_model(file.model((2, 7), w, opset=25))
    shape = {None: (), 0: (-1, 1), 1: (1, -1)}[axis]
    reals = ((codes - zeros.reshape(shape)) * scales.reshape(shape)).astype(np.float32)
    assert np.array_equal(interpreter.run(graph, [np.zeros((2, 7), np.float32)])[0], reals)
    if axis != 1:  # a scale for each input of a product has no integer form
        y = file.coded(file.op("Gemm", x, w, transB=1), 0.5, np.int8(0))
        agree(from_model(file.model((2, 7), y, opset=25)))


def test_packed_codes_that_are_too_few_are_refused() -> None:
    file = File()
    numbers = [file.constant(np.float32(0.5)), file.constant(np.array(1), TensorProto.INT4)]
    w = file.constant(np.zeros((3, 3)), TensorProto.INT4)
    file.constants[w].ClearField("int32_data")
    file.constants[w].raw_data = b"1234"
    y = file.op("Add", "x", file.op("DequantizeLinear", w, *numbers))
    with pytest.raises(InputError, match=r"expected 5 bytes of data for int4\[3, 3\], found 4"):
        from_model(file.model((3, 3), y))


def test_a_type_without_codes_is_refused() -> None:
    file = File()
    zero = file.constant(np.array(1), TensorProto.INT32)
    y = file.op("QuantizeLinear", "x", file.constant(np.float32(0.5)), zero)
    with pytest.raises(UnsupportedError, match=r"expected codes of int8, .*, uint2, found int32"):
        from_model(file.model((3, 3), y))


# --- with Brevitas itself ----------------------------------------------------------------------


@pytest.mark.slow
def test_what_brevitas_exports_in_two_formats_is_one_network(tmp_path: Path) -> None:
    """QCDQ and QONNX files of one network give the same codes, on every backend."""
    folder = quantized_elsewhere.made_by("brevitas", tmp_path)
    for bits in (2, 3, 4, 6, 8):
        made = [load(folder / f"{kind}-{bits}.onnx") for kind in ("qcdq", "qonnx")]
        codes = []
        for network in made:
            result = network.verify("random:20", BACKENDS)
            assert [v.differing for v in result.verdicts] == [0] * len(BACKENDS)
            codes += result.outputs.values()
        assert np.array_equal(*codes)
        (relu,) = (
            n
            for n in made[0].model.integer.nodes
            if n.op == "requantize" and n.attributes["dtype"] == "uint8"
        )
        assert (relu.attributes["low"], relu.attributes["high"]) == (0, 2**bits - 1)


@pytest.mark.parametrize(("block", "scales"), [(3, [0.5]), (4, [0.5]), (2, [0.5, 2.0])])
def test_blocks_of_a_vector(block: int, scales: list[float]) -> None:
    """One block, whose scale is one number, or several."""
    arrays = {"c": np.int8([1, -2, 3]), "s": np.float32(scales)}
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["c", "s"], ["w"], axis=0, block_size=block),
            helper.make_node("Add", ["x", "w"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    found = interpreter.run(from_model(made), [np.zeros(3, np.float32)])[0]
    assert found.tolist() == (arrays["c"] * np.repeat(arrays["s"], block)[:3]).tolist()
