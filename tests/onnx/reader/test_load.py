"""Files that nobody vouches for: every flaw is one message, found before memory is spent on it."""

from __future__ import annotations

import itertools
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from samebits.errors import InputError, SamebitsError, UnsupportedError
from samebits.onnx import FileFacts, facts, from_model, load, save_qdq
from samebits.onnx.reader.builder import FoldingBuilder

Array = np.ndarray[Any, Any]


def add_model(constant: TensorProto | Array, shape: list[Any] | None = None) -> onnx.ModelProto:
    """y = x + w."""
    tensor = (
        constant if isinstance(constant, TensorProto) else numpy_helper.from_array(constant, "w")
    )
    return graph_model(
        [helper.make_node("Add", ["x", "w"], ["y"], name="sum")],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape or [1, 2])],
        [tensor],
    )


def graph_model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    constants: list[TensorProto] | None = None,
    outputs: tuple[str, ...] = ("y",),
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        inputs,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        constants or [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def x(*shape: Any, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("x", kind, list(shape))


def tensor(kind: int, dims: list[int], raw: bytes | None = None, **fields: Any) -> TensorProto:
    made = TensorProto(name="w", data_type=kind, dims=dims)
    if raw is not None:
        made.raw_data = raw
    for field, values in fields.items():
        getattr(made, field).extend(values)
    return made


def error_of(model: onnx.ModelProto, kind: type[SamebitsError] = InputError) -> str:
    with pytest.raises(kind) as caught:
        from_model(model, source="m.onnx")
    message = str(caught.value)
    assert message.startswith("m.onnx: ")
    return message


# --- files ----------------------------------------------------------------------------------


def test_a_file_becomes_a_graph(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(add_model(np.ones((1, 2), np.float32)), path)
    graph = load(path)
    assert [node.op for node in graph.nodes] == ["Add"]
    assert graph.outputs == ("y",)
    assert load(str(path)).inputs == ("x",)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "found no bytes"),
        (b"not an onnx file, but text", "not a readable ONNX file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(64), "not a readable ONNX file"),
        (b"\x08\x08", "expected an ONNX model with a graph, found none"),
        (b"\x3a\x00\x42\x02\x10\x11", "expected a graph with outputs, found none"),
        (b"\x3a\xff\xff\xff\x7f", "expected 268435455 bytes of field 7 of ModelProto, found 0"),
        (b"\x08" + b"\xff" * 12, "expected a number of at most ten bytes"),
        (b"\x0b", "wire type 3"),
        (b"\x12\x02\xff\xfe\x3a\x00", "expected text in UTF-8"),
    ],
)
def test_other_content_is_named(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(found)) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_the_sampling_rate_of_a_model_of_recordings(tmp_path: Path) -> None:
    graph, path = from_model(add_model(np.ones(2, np.float32))), tmp_path / "m.onnx"
    for rate in (None, 8000, 16000):
        save_qdq(graph, path, facts=FileFacts(rate))
        assert facts(path).rate == rate
        assert load(path).inputs == ("x",)
    for text in ("", "0", "-8000", "8000.0", "1" * 20, "eight"):
        model = onnx.load(path)
        helper.set_model_props(model, {"samebits.rate": text})
        onnx.save(model, path)
        with pytest.raises(InputError, match="expected a number of samples per second in the"):
            facts(path)


def test_every_truncation_is_an_error_or_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    data = add_model(np.ones((1, 2), np.float32)).SerializeToString()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(SamebitsError):
            load(path)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found no such file"):
        load(tmp_path / "missing.onnx")
    with pytest.raises(InputError, match="found a folder"):
        load(tmp_path)
    with pytest.raises(InputError, match="found no such file"):
        load("a\0b")


def test_a_file_above_two_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(InputError, match="expected at most 2147483647 bytes, found 2147483648"):
        load(path)


def test_small_messages_that_parse_to_much_memory_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    nodes = b"\x0a\x00" * (2**20 + 1)  # an empty node each
    path.write_bytes(b"\x3a" + varint(len(nodes)) + nodes)
    with pytest.raises(InputError, match="expected at most 1048576 messages and strings"):
        load(path)


def test_packed_integers_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    size = 2**26 + 1
    packed = b"\x3a" + varint(size) + bytes(size)  # int64_data
    inner = b"\x2a" + varint(len(packed)) + packed  # initializer
    path.write_bytes(b"\x3a" + varint(len(inner)) + inner)
    with pytest.raises(InputError, match="expected at most 67108864 bytes of packed integers"):
        load(path)


def test_nesting_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    data = b""
    for _ in range(40):  # graph > node > attribute > graph > ...
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            data = tag + varint(len(data)) + data
    path.write_bytes(b"\x3a" + varint(len(data)) + data)
    with pytest.raises(InputError, match="expected at most 64 nested messages"):
        load(path)


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


# --- tensors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constant", "found"),
    [
        (tensor(1, [2], bytes(4)), "expected 8 bytes of data for float32[2], found 4"),
        (tensor(1, [2], bytes(12)), "expected 8 bytes of data for float32[2], found 12"),
        (tensor(1, [2], float_data=[1.0]), "expected 2 numbers in float_data"),
        (tensor(1, [2**28], bytes(4)), "expected 1073741824 bytes of data"),
        (tensor(1, [2**29], bytes(4)), "expected at most 2**28 elements"),
        (tensor(1, [2**62, 2**62], bytes(4)), "expected at most 2**28 elements"),
        (tensor(1, [0, 2**62], b""), "expected at most 2**28 elements"),
        (tensor(1, [-1], bytes(4)), "expected sizes of at least 0, found [-1]"),
        (tensor(1, [1] * 4000, bytes(4)), "expected at most 32 dimensions, found 4000"),
        (tensor(3, [1], int32_data=[300]), "expected numbers from -128 to 127, found 300"),
    ],
)
def test_tensors_that_are_not_what_they_say(constant: TensorProto, found: str) -> None:
    tracemalloc.start()
    try:
        message = error_of(add_model(constant))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found in message
    assert "initialiser 'w'" in message
    assert peak < 2**22


@pytest.mark.parametrize(
    ("constant", "found"),
    [
        (tensor(TensorProto.STRING, [1], string_data=[b"a"]), "found STRING"),
        (tensor(TensorProto.COMPLEX64, [1], bytes(8)), "found COMPLEX64"),
        (tensor(999, [1], bytes(4)), "found type number 999"),
    ],
)
def test_tensors_without_arithmetic(constant: TensorProto, found: str) -> None:
    assert found in error_of(add_model(constant), UnsupportedError)


@pytest.mark.parametrize(
    "dtype",
    [
        *("float16", "float64", "int8", "uint16", "int32", "uint64", "bool", "bfloat16"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn"),
    ],
)
def test_types_are_read_as_stored(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    for proto in (numpy_helper.from_array(array, "w"), typed(array)):
        model = graph_model([helper.make_node("Identity", ["w"], ["y"])], [], [proto])
        graph = from_model(model)
        (read,) = graph.constants.values()
        assert read.dtype == array.dtype
        assert np.array_equal(read, array)


def typed(array: Array) -> TensorProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor("w", kind, array.shape, array.reshape(-1))


# --- external data --------------------------------------------------------------------------


def external(location: str, **entries: str) -> TensorProto:
    made = tensor(TensorProto.FLOAT, [1, 2])
    made.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        made.external_data.add(key=key, value=value)
    return made


def test_external_data_is_read_from_the_models_folder(tmp_path: Path) -> None:
    numbers = np.array([[3.0, 4.0]], np.float32)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(bytes(4) + numbers.tobytes() + bytes(9))
    path = tmp_path / "model.onnx"
    onnx.save(add_model(external("data/w.bin", offset="4", length="8")), path)
    assert np.array_equal(load(path).constants["w"], numbers)


def prepare(folder: Path) -> Path:
    inside = folder / "inside"
    inside.mkdir()
    (folder / "secret.bin").write_bytes(bytes(8))
    (inside / "short.bin").write_bytes(bytes(7))
    (inside / "whole.bin").write_bytes(bytes(8))
    (inside / "link.bin").symlink_to(folder / "secret.bin")
    (inside / "up").symlink_to(folder)
    (inside / "loop").symlink_to(inside / "loop")
    return inside


@pytest.mark.parametrize(
    ("location", "entries", "found"),
    [
        ("../secret.bin", {}, "found location '../secret.bin'"),
        ("a/../../secret.bin", {}, "found location"),
        ("/etc/passwd", {}, "found location '/etc/passwd'"),
        ("..\\secret.bin", {}, "found location"),
        ("link.bin", {}, "expected a file, found a link"),
        ("up/secret.bin", {}, "expected a folder, found a link"),
        ("loop", {}, "expected a file, found a link"),
        ("", {}, "found location ''"),
        ("nothing.bin", {}, "found 'nothing.bin': No such file"),
        ("up", {}, "expected a file, found a link"),
        ("n" * 5000, {}, "expected external data"),
        ("short.bin", {}, "expected 8 bytes at 0 of 'short.bin', found a file of 7 bytes"),
        ("whole.bin", {"offset": "1"}, "found a file of 8 bytes"),
        ("whole.bin", {"offset": "-1"}, "found '-1'"),
        ("whole.bin", {"offset": "9" * 30}, "expected a whole number"),
        ("whole.bin", {"length": "4"}, "expected 8 bytes of external data, found length 4"),
        ("whole.bin", {"length": "x\n"}, "found 'x\\n'"),
    ],
)
def test_external_data_elsewhere_is_refused(
    tmp_path: Path, location: str, entries: dict[str, str], found: str
) -> None:
    path = prepare(tmp_path) / "model.onnx"
    path.write_bytes(add_model(external(location, **entries)).SerializeToString())
    with pytest.raises(InputError) as caught:
        load(path)
    assert found in str(caught.value)
    assert "initialiser 'w'" in str(caught.value)


def test_external_data_needs_a_folder() -> None:
    assert "load the model from its folder" in error_of(add_model(external("w.bin")))


# --- graphs ---------------------------------------------------------------------------------


def test_cycles_are_named() -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
        helper.make_node("Relu", ["b"], ["y"], name="third"),
    ]
    message = error_of(graph_model(nodes, [x(2)]))
    assert "expected a graph without cycles" in message
    assert "node 'first' (Add), node 'second' (Relu)" in message


def test_nodes_may_come_in_any_order() -> None:
    nodes = [helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Neg", ["x"], ["a"])]
    assert [n.op for n in from_model(graph_model(nodes, [x(2)])).nodes] == ["Neg", "Relu"]


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ([("Relu", ["x"], ["y"]), ("Neg", ["x"], ["y"])], "written once, found 'y' again"),
        ([("Relu", ["x"], ["x"]), ("Neg", ["x"], ["y"])], "written once, found 'x' again"),
        ([("Relu", ["nothing"], ["y"])], "expected a value that is written, found 'nothing'"),
        ([("Relu", ["x"], ["z"])], "expected a value that is written, found 'y'"),
        ([("Relu", [], ["y"])], "expected"),
        ([("Add", ["x", ""], ["y"])], "expected input 1, found none"),
        ([("Relu", ["x", "x"], ["y"])], "expected"),
    ],
)
def test_graphs_that_do_not_fit(nodes: list[tuple[str, list[str], list[str]]], found: str) -> None:
    made = [helper.make_node(*node) for node in nodes]
    assert found in error_of(graph_model(made, [x(2)]))


def test_names_come_once() -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    assert "inputs to have different names" in error_of(graph_model([relu], [x(1), x(2)]))
    twice = graph_model([relu], [x(1)], outputs=("y", "y"))
    assert "outputs to have different names" in error_of(twice)
    same = [numpy_helper.from_array(np.ones(1, np.float32), "w")] * 2
    assert "initialisers to have different names" in error_of(graph_model([relu], [x(1)], same))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (x(1, "width"), "input 'x': expected a size for dimension 1, found 'width'"),
        (x(1, None), "input 'x': expected a size for dimension 1, found none"),
        (x(-3), "input 'x': expected sizes of at least 0, found [-3]"),
        (x(2**40), "input 'x': expected at most 2**28 elements"),
        (helper.make_tensor_value_info("x", 1, None), "input 'x': expected a shape, found none"),
    ],
)
def test_input_shapes(value: onnx.ValueInfoProto, found: str) -> None:
    assert found in error_of(graph_model([helper.make_node("Relu", ["x"], ["y"])], [value]))


def conv(**attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Conv", ["x", "w"], ["y"], **attributes)


def pool(**attributes: Any) -> onnx.NodeProto:
    return helper.make_node("MaxPool", ["x"], ["y"], **attributes)


@pytest.mark.parametrize(
    "node",
    [
        pool(kernel_shape=[2**31, 2**31]),
        pool(kernel_shape=[2**31, 1], pads=[2**30, 0, 2**30, 0]),
        pool(kernel_shape=[2, 2], pads=[2**62] * 4),
        pool(kernel_shape=[2, 2], strides=[0, 0]),
        pool(kernel_shape=[2, 2], dilations=[2**40, 1]),
        pool(kernel_shape=[2] * 4000),
        pool(),
        pool(kernel_shape=[-1, 2]),
        conv(pads=[2**31 - 1] * 4),
        conv(pads=[-1] * 4),
        conv(group=0),
        conv(group=2**62),
        conv(strides=[1] * 1000),
        conv(kernel_shape=[5, 5]),
        helper.make_node("Softmax", ["x"], ["y"], axis=2**62),
        helper.make_node("Transpose", ["x"], ["y"], perm=[0] * 4),
        helper.make_node("Elu", ["x"], ["y"], alpha=float("nan")),
        helper.make_node("Concat", ["x"] * 100, ["y"], axis=-9),
        helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=2**40),
        helper.make_node("LRN", ["x"], ["y"], size=2**40),
        helper.make_node("Flatten", ["x"], ["y"], axis=7),
        helper.make_node("Split", ["x"], ["y"], num_outputs=2**40),
        helper.make_node("Cast", ["x"], ["y"], to=2**40),
        helper.make_node("Constant", [], ["y"]),
    ],
)
def test_absurd_attributes_end_in_a_message(node: onnx.NodeProto) -> None:
    weights = numpy_helper.from_array(np.ones((1, 1, 3, 3), np.float32), "w")
    with pytest.raises(SamebitsError):
        from_model(graph_model([node], [x(1, 1, 8, 8)], [weights], opset=18))


@pytest.mark.parametrize(
    ("op", "constants"),
    [
        ("Expand", [[2**40]]),
        ("Expand", [[2**20, 2**20]]),
        ("Tile", [[2**62]]),
        ("Reshape", [[-1, -1]]),
        ("Reshape", [[0, 0, 0]]),
        ("Reshape", [[2**62, -1]]),
        ("Pad", [[2**40, 0]]),
        ("Slice", [[0], [1], [5]]),
        ("Slice", [[0], [1], [0], [0]]),
        ("Unsqueeze", [[0] * 4000]),
        ("Unsqueeze", [list(range(1, 60))]),
        ("Squeeze", [[0]]),
        ("TopK", [[2**40]]),
        ("Gather", [[99]]),
    ],
)
def test_absurd_constants_end_in_a_message(op: str, constants: list[list[int]]) -> None:
    names = [f"c{index}" for index in range(len(constants))]
    tensors = [
        numpy_helper.from_array(np.array(c, np.int64), name)
        for name, c in zip(names, constants, strict=True)
    ]
    outputs = ["y", "z"] if op == "TopK" else ["y"]
    # The data is constant too, so that evaluation would have to allocate the result.
    data = numpy_helper.from_array(np.ones(3, np.float32), "w")
    node = helper.make_node(op, ["w", *names], outputs)
    with pytest.raises(SamebitsError):
        from_model(graph_model([node], [], [data, *tensors]))


@pytest.mark.parametrize("limit", [2**62, 2**27])
def test_computed_constants_are_bounded(limit: int) -> None:
    numbers = [np.array(n, np.int64) for n in (0, limit, 1)]
    constants = [numpy_helper.from_array(a, f"c{i}") for i, a in enumerate(numbers)]
    node = helper.make_node("Range", ["c0", "c1", "c2"], ["y"])
    message = error_of(graph_model([node], [], constants), UnsupportedError)
    assert "expected at most 16777216 elements of computed constants" in message


def test_a_large_constant_stays_a_node() -> None:
    shape = numpy_helper.from_array(np.array([2**14, 2**14], np.int64), "shape")
    node = helper.make_node("ConstantOfShape", ["shape"], ["y"])
    graph = from_model(graph_model([node], [], [shape]))
    assert [n.op for n in graph.nodes] == ["Expand"]
    assert sum(array.nbytes for array in graph.constants.values()) == 4


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_are_positive_numbers(scale: float) -> None:
    constants = [numpy_helper.from_array(np.array(scale, np.float32), "s")]
    for op, kind in (("QuantizeLinear", TensorProto.FLOAT), ("DequantizeLinear", TensorProto.INT8)):
        node = helper.make_node(op, ["x", "s"], ["y"])
        message = error_of(graph_model([node], [x(2, kind=kind)], constants))
        assert "expected positive finite numbers as scale" in message


def test_functions_that_call_themselves_end() -> None:
    node = helper.make_node("f", ["a"], ["b"], domain="d")
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    function = helper.make_function("d", "f", ["a"], ["b"], [node], imports)
    model = graph_model([helper.make_node("f", ["x"], ["y"], domain="d")], [x(1)])
    model.functions.append(function)
    assert "expected at most 32 levels of nesting" in error_of(model)


def test_functions_that_multiply_end() -> None:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    model = graph_model([helper.make_node("f17", ["x"], ["y"], domain="d")], [x(1)])
    for level in range(18):
        call = f"f{level - 1}" if level else "Relu"
        domain = "d" if level else ""
        nodes = [
            helper.make_node(call, ["a"], ["p"], domain=domain),
            helper.make_node(call, ["p"], ["b"], domain=domain),
        ]
        made = helper.make_function("d", f"f{level}", ["a"], ["b"], nodes, imports)
        model.functions.append(made)
    assert "expected at most 65536 nodes after functions are expanded" in error_of(model)


HOSTILE = ['a"b', "*/ int x; /*", "line\nbreak", "%s%n{0}", "'; DROP", "\u202e", "../../x", "\\"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_stay_as_they_are_and_messages_escape_them(name: str) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], [name], name=name),
        helper.make_node("Neg", [name], ["y"]),
    ]
    graph = from_model(graph_model(nodes, [x(2)]))
    assert name in graph.values
    bad = [helper.make_node("Nonsense", ["x"], ["y"], name=name)]
    message = error_of(graph_model(bad, [x(2)]), UnsupportedError)
    assert repr(name) in message
    strange = [helper.make_node(name, ["x"], ["y"], name="n")]
    assert repr(name) in error_of(graph_model(strange, [x(2)]), UnsupportedError)


def test_a_batch_is_at_least_one() -> None:
    with pytest.raises(InputError, match="expected a batch of at least 1, found 0"):
        from_model(add_model(np.ones((1, 2), np.float32)), batch=0)


def with_opsets(*versions: tuple[str, int]) -> Callable[[], onnx.ModelProto]:
    def make() -> onnx.ModelProto:
        model = add_model(np.ones((1, 2), np.float32))
        del model.opset_import[:]
        model.opset_import.extend(helper.make_opsetid(*version) for version in versions)
        return model

    return make


@pytest.mark.parametrize(
    ("make", "kind", "found"),
    [
        (with_opsets(), InputError, "found none in opset_import"),
        (with_opsets(("", 13), ("ai.onnx", 14)), InputError, "found 13 and 14"),
        (with_opsets(("", 3)), UnsupportedError, "expected an opset from 6 to"),
        (with_opsets(("", 2**62)), UnsupportedError, "expected an opset from 6 to"),
    ],
)
def test_opsets(make: Callable[[], onnx.ModelProto], kind: type[SamebitsError], found: str) -> None:
    assert found in error_of(make(), kind)


def test_many_nodes_of_one_name() -> None:
    count = 20_000
    names = ["x", *(f"v{index}" for index in range(count - 1)), "y"]
    nodes = [
        helper.make_node("Relu", [before], [after], name="same")
        for before, after in itertools.pairwise(names)
    ]
    graph = from_model(graph_model(nodes, [x(1)]))
    assert len({node.name for node in graph.nodes}) == count


def test_messages_are_bounded() -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="n" * 10**6, **{"a" * 10**6: 1})
    message = error_of(graph_model([node], [x(1)]), UnsupportedError)
    assert len(message) < 3000
    many = [helper.make_node("Nonsense", ["x"], [f"y{i}"]) for i in range(100)]
    many.append(helper.make_node("Sum", [f"y{i}" for i in range(100)], ["y"]))
    message = error_of(graph_model(many, [x(1)]), UnsupportedError)
    assert "found 100 that are not" in message
    assert message.endswith("  and 50 more")


@pytest.mark.parametrize(
    ("roi", "scale"), [([0, 0, 1, 0.5], 1.0), ([0, 0, 1, 1], 1.0000001192092896)]
)
def test_rows_of_interpolation_are_counted(roi: list[float], scale: float) -> None:
    """An axis that keeps its size, of which a region or another scale asks for."""
    sides = np.array(roi, np.float32), np.array([1, scale], np.float32)
    constants = [numpy_helper.from_array(a, n) for a, n in zip(sides, "rs", strict=True)]
    node = helper.make_node(
        *("Resize", ["x", "r", "s"], ["y"]),
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
    )
    message = error_of(graph_model([node], [x(1, 2**18)], constants, opset=18), UnsupportedError)
    assert "elements of computed constants" in message


def test_the_places_of_a_cache_are_counted() -> None:
    given = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2**25, 1, 1]) for name in ("x", "u")
    ]
    node = helper.make_node("TensorScatter", ["x", "u"], ["y"])
    message = error_of(graph_model([node], given, opset=24), UnsupportedError)
    assert "elements of computed constants" in message


def test_narrow_constants_are_stored_once() -> None:
    builder = FoldingBuilder("g", None)
    codes = np.ones(8, ml_dtypes.int4)
    first, second = (builder.stored(f"c{i}", codes, own=True) for i in range(2))
    assert first == second
    assert builder.stored("c2", codes.astype(np.int8), "int2") != first
