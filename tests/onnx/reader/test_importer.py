"""What ONNX nodes become: names, shapes, constants, opsets, quantized operators."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compare import assert_same
from samebits.errors import SamebitsError, UnsupportedError
from samebits.ir import Graph, interpreter
from samebits.ir.lowering.lower import lower_graph
from samebits.onnx import from_model, load

Array = np.ndarray[Any, Any]
Node = onnx.NodeProto
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> Node:
    """Inputs and outputs separated by blanks, _ for one left out."""
    names = ["" if name == "_" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attributes)


def model(
    nodes: Sequence[Node],
    inputs: dict[str, Sequence[Any]] | None = None,
    constants: dict[str, Any] | None = None,
    outputs: str = "y",
    opset: int = 17,
    kind: int = TensorProto.FLOAT,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, kind, s) for n, s in (inputs or {}).items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs.split()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    imports = [helper.make_opsetid(d, v) for d, v in (("", opset), ("com.microsoft", 1), ("f", 1))]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=9)


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def only(graph: Graph) -> dict[str, Any]:
    (single,) = graph.nodes
    return dict(single.attributes)


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


# --- names and shapes -----------------------------------------------------------------------


def test_the_open_leading_dimension_is_the_batch() -> None:
    relu = [node("Relu", "x")]
    for size in ("N", None):
        graph = from_model(model(relu, {"x": [size, 3]}), batch=5)
        assert graph.values["x"].shape == (5, 3)
    assert from_model(model(relu, {"x": [2, 3]}), batch=5).values["x"].shape == (2, 3)


def test_the_batch_symbol_counts_at_every_place() -> None:
    made = model([node("MatMul", "a b")], {"a": ["N", 3], "b": [3, "N"]})
    assert from_model(made, batch=4).values["y"].shape == (4, 4)


def test_outputs_keep_their_names() -> None:
    made = model(
        [node("Identity", "x", "same"), node("Shape", "x", "size"), node("Dropout", "x", "kept")],
        {"x": [2, 3]},
        outputs="same size kept",
    )
    graph = from_model(made)
    assert graph.outputs == ("same", "size", "kept")
    x = np.ones((2, 3), np.float32)
    same, size, kept = interpreter.run(graph, [x])
    assert np.array_equal(same, x)
    assert np.array_equal(kept, x)
    assert size.tolist() == [2, 3]


def test_an_input_may_be_an_output() -> None:
    graph = from_model(model([], {"x": [2]}, outputs="x"))
    assert (graph.inputs, graph.outputs, graph.nodes) == (("x",), ("x",), ())


def test_node_names_do_not_displace_value_names() -> None:
    made = model(
        [helper.make_node("Relu", ["x"], ["a"], name="y"), helper.make_node("Neg", ["a"], ["y"])],
        {"x": [2]},
    )
    assert from_model(made).outputs == ("y",)


def test_nodes_that_no_output_needs_are_left_out() -> None:
    made = model([node("Nonsense", "x", "unused"), node("Relu", "x")], {"x": [2]})
    assert ops(from_model(made)) == ["Relu"]


def test_shape_subgraphs_become_attributes() -> None:
    made = model(
        [
            node("Shape", "x", "shape"),
            node("Gather", "shape zero", "batch"),
            node("Unsqueeze", "batch axis", "rows"),
            node("Concat", "rows rest", "target", axis=0),
            node("Reshape", "x target"),
        ],
        {"x": ["N", 2, 3]},
        {"zero": np.array(0), "axis": i64(0), "rest": i64(-1)},
    )
    graph = from_model(made, batch=4)
    assert only(graph) == {"shape": (4, 6)}
    assert not graph.constants


def test_everything_unsupported_is_in_one_message() -> None:
    made = model(
        [
            helper.make_node("Nonsense", ["x"], ["a"], name="first"),
            helper.make_node("Relu", ["a"], ["b"], name="after"),
            helper.make_node("Unknown", ["b"], ["c"], name="second", domain="my.own"),
            helper.make_node("Elu", ["x"], ["d"], name="third", colour=1),
            helper.make_node("Optional", ["x"], ["e"], name="fourth"),
            helper.make_node("Sum", ["c", "d", "e"], ["y"], name="sum"),
        ],
        {"x": [2]},
    )
    with pytest.raises(UnsupportedError) as caught:
        from_model(made, source="net.onnx")
    assert str(caught.value) == (
        "net.onnx: expected supported operators, found 4 that are not; replace them and export "
        "again:\n"
        "  node 'first' (Nonsense): there is no such operator here\n"
        "  node 'second' ('my.own:Unknown'): there is no such operator here\n"
        "  node 'third' (Elu): the attribute 'colour' is not known\n"
        "  node 'fourth' (Optional): there is no such operator here"
    )


def test_an_error_of_shapes_names_the_node() -> None:
    made = model(
        [helper.make_node("Add", ["x", "w"], ["y"], name="sum")], {"x": [2, 3]}, {"w": f32(1, 2)}
    )
    with pytest.raises(SamebitsError) as caught:
        from_model(made, source="net.onnx")
    assert str(caught.value) == (
        "net.onnx: node 'sum' (Add): expected shapes that broadcast, found [2, 3] and [2]; "
        "check the model"
    )


def test_operators_without_a_rule_for_a_type_are_unsupported() -> None:
    made = model([node("Exp", "x")], {"x": [2]}, kind=TensorProto.INT32)
    with pytest.raises(UnsupportedError, match="found int32"):
        from_model(made)


# --- opsets ---------------------------------------------------------------------------------


def test_softmax_before_opset_13_flattens() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    made = model([node("Softmax", "x")], {"x": [2, 3, 4]}, opset=11)
    graph = from_model(made)
    assert ops(graph) == ["Reshape", "Softmax", "Reshape"]
    (y,) = interpreter.run(graph, [x])
    assert np.allclose(y.sum(axis=(1, 2)), 1)
    last = model([node("Softmax", "x", axis=-1)], {"x": [2, 3, 4]}, opset=11)
    assert only(from_model(last)) == {"axis": 2}
    assert only(from_model(model([node("Softmax", "x")], {"x": [2, 3, 4]}, opset=13))) == {
        "axis": 2
    }


@pytest.mark.parametrize(
    ("op", "old", "constants", "attributes"),
    [
        ("Squeeze", {"axes": [0]}, {"axes": i64(0)}, {"axes": (0,)}),
        ("Unsqueeze", {"axes": [-1]}, {"axes": i64(-1)}, {"axes": (2,)}),
        ("ReduceSum", {"axes": [1]}, {"axes": i64(1)}, {"axes": (1,), "keepdims": 1}),
        ("Split", {"split": [1, 3], "axis": 1}, {"split": i64(1, 3)}, {"sizes": (1, 3), "axis": 1}),
        (
            "Clip",
            {"min": 0.0, "max": 6.0},
            {"min": np.array(0, np.float32), "max": np.array(6, np.float32)},
            {"min": 0.0, "max": 6.0},
        ),
        (
            "Pad",
            {"pads": [0, 1, 0, 2], "value": 3.0},
            {"pads": i64(0, 1, 0, 2), "value": np.array(3, np.float32)},
            {"pads": (0, 1, 0, 2), "mode": "constant", "value": 3.0},
        ),
        (
            "Slice",
            {"starts": [1], "ends": [-1], "axes": [1]},
            {"starts": i64(1), "ends": i64(-1), "axes": i64(1)},
            {"starts": (1,), "ends": (-1,), "axes": (1,), "steps": (1,)},
        ),
    ],
)
def test_attributes_that_became_inputs(
    op: str, old: dict[str, Any], constants: dict[str, Array], attributes: dict[str, Any]
) -> None:
    outputs = "y z" if op == "Split" else "y"
    axis = {"axis": old["axis"]} if op == "Split" else {}
    before = model([node(op, "x", outputs, **old)], {"x": [1, 4]}, outputs=outputs, opset=9)
    names = " ".join(["x", *constants])
    after = model([node(op, names, outputs, **axis)], {"x": [1, 4]}, constants, outputs, opset=13)
    assert only(from_model(before)) == only(from_model(after)) == attributes


def test_empty_axes() -> None:
    for noop, axes in ((0, (0, 1)), (1, ())):
        made = model([node("ReduceSum", "x", noop_with_empty_axes=noop)], {"x": [2, 3]}, opset=13)
        assert only(from_model(made)) == {"axes": axes, "keepdims": 1}


def test_split_into_equal_parts() -> None:
    made = model([node("Split", "x", "y z", num_outputs=2)], {"x": [5]}, outputs="y z", opset=18)
    assert only(from_model(made)) == {"axis": 0, "sizes": (3, 2)}


def test_reshape_zero_copies_unless_allowed() -> None:
    constants = {"s": i64(0, -1)}
    assert only(from_model(model([node("Reshape", "x s")], {"x": [2, 3, 4]}, constants))) == {
        "shape": (2, 12)
    }
    made = model([node("Reshape", "x s", allowzero=1)], {"x": [2, 0, 4]}, {"s": i64(4, 0)})
    assert only(from_model(made)) == {"shape": (4, 0)}


def test_bounds_that_are_computed_become_max_and_min() -> None:
    made = model([node("Clip", "x low high")], {"x": [2], "low": [], "high": []})
    assert ops(from_model(made)) == ["Max", "Min"]


def test_resize_before_opset_11_rounds_down() -> None:
    made = model([node("Resize", "x s")], {"x": [1, 1, 2, 2]}, {"s": f32(1, 1, 2, 3)}, opset=10)
    attributes = only(from_model(made))
    assert attributes["sizes"] == (1, 1, 4, 6)
    assert attributes["coordinate_transformation_mode"] == "asymmetric"
    assert attributes["nearest_mode"] == "floor"


def test_training_is_not_imported() -> None:
    constants = {"one": f32(1), "yes": np.array(True)}
    for nodes in (
        [node("BatchNormalization", "x one one one one", training_mode=1)],
        [node("Dropout", "x _ yes")],
    ):
        with pytest.raises(UnsupportedError, match="in inference"):
            from_model(model(nodes, {"x": [2, 1]}, constants))


# --- windows --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 5, 6, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2])
def test_same_padding_keeps_the_size(size: int, stride: int, kernel: int, dilation: int) -> None:
    pads = {}
    for auto in ("SAME_UPPER", "SAME_LOWER"):
        conv = node("Conv", "x w", auto_pad=auto, strides=[stride], dilations=[dilation])
        graph = from_model(model([conv], {"x": [1, 1, size]}, {"w": np.ones((1, 1, kernel), "f4")}))
        assert graph.values["y"].shape == (1, 1, -(-size // stride))
        pads[auto] = only(graph)["pads"]
    before, after = pads["SAME_UPPER"]
    assert 0 <= after - before <= 1
    assert pads["SAME_LOWER"] == (after, before)


def test_valid_padding_is_none() -> None:
    conv = node("Conv", "x w", auto_pad="VALID", pads=[0, 0])
    graph = from_model(model([conv], {"x": [1, 1, 5]}, {"w": np.ones((1, 1, 3), "f4")}))
    assert only(graph)["pads"] == (0, 0)


def test_transposed_convolution_to_a_wished_size() -> None:
    for wished in (7, 8, 9, 10):
        made = node("ConvTranspose", "x w", strides=[3], output_shape=[wished])
        graph = from_model(model([made], {"x": [1, 1, 3]}, {"w": np.ones((1, 1, 3), "f4")}))
        assert graph.values["y"].shape == (1, 1, wished)


def test_indices_of_maxima_are_not_supported() -> None:
    made = model([node("MaxPool", "x", "y i", kernel_shape=[2])], {"x": [1, 1, 4]}, outputs="y i")
    with pytest.raises(UnsupportedError, match="output 1 is not supported"):
        from_model(made)


# --- functions and branches -----------------------------------------------------------------


def test_functions_are_expanded() -> None:
    scaled = node("LeakyRelu", "a", "b")
    scaled.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    imports = [helper.make_opsetid("", 17)]
    function = helper.make_function("f", "Leaky", ["a"], ["b"], [scaled], imports, ["slope"])
    calls = [
        helper.make_node("Leaky", ["x"], ["t"], domain="f", name="one", slope=0.5),
        helper.make_node("Leaky", ["t"], ["y"], domain="f", name="two"),
    ]
    graph = from_model(model(calls, {"x": [2]}, functions=[function]))
    assert [n.attributes["alpha"] for n in graph.nodes] == [0.5, float(np.float32(0.01))]
    assert graph.outputs == ("y",)


def test_a_constant_condition_takes_its_branch() -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [node(op, "x", "out")], name, [], [helper.make_tensor_value_info("out", 1, None)]
        )
        for name, op in (("then", "Relu"), ("else", "Neg"))
    }
    for condition, op in ((True, "Relu"), (False, "Neg")):
        made = model([node("If", "c", **branches)], {"x": [2]}, {"c": np.array(condition)})
        graph = from_model(made)
        assert ops(graph) == [op]
        assert graph.outputs == ("y",)
    with pytest.raises(UnsupportedError, match="expected a constant as condition"):
        from_model(model([node("If", "c", **branches)], {"x": [2], "c": []}))


# --- quantized ------------------------------------------------------------------------------


def test_a_quantized_convolution_is_its_parts() -> None:
    rng = np.random.default_rng(1)
    scales = rng.uniform(0.01, 0.1, 4).astype(np.float32)
    constants = {
        "xs": f32(0.0173),
        "xz": np.array([7], np.int8),
        "w": rng.integers(-127, 128, (4, 2, 3, 3)).astype(np.int8),
        "ws": scales,
        "wz": np.zeros(4, np.int8),
        "ys": np.array(0.31, np.float32),
        "yz": np.array(-5, np.int8),
        "b": rng.integers(-(2**12), 2**12, 4).astype(np.int32),
    }
    made = node("QLinearConv", "x xs xz w ws wz ys yz b", pads=[1, 1, 1, 1])
    graph = from_model(model([made], {"x": [1, 2, 5, 5]}, constants, kind=TensorProto.INT8))
    assert sorted(ops(graph)) == sorted(
        [*["DequantizeLinear"] * 3, "Cast", "Conv", "QuantizeLinear"]
    )
    bias = next(
        n
        for n in graph.nodes
        if constants["b"].tobytes()
        in (graph.constants[i].tobytes() for i in n.inputs if i in graph.constants)
    )
    product = [Fraction(float(constants["xs"][0])) * Fraction(float(s)) for s in scales]
    assert [Fraction(float(s)) for s in graph.constants[bias.inputs[1]]] == product
    x = rng.integers(-128, 128, (1, 2, 5, 5)).astype(np.int8)
    (real,) = interpreter.run(graph, [x], exact=True)
    (integer,) = interpreter.run(lower_graph(graph), [x])
    assert_same(integer, real, range(real.size))


def test_codes_of_four_bits_are_widened() -> None:
    codes = np.array([[-8, 7], [3, -1]], np.int8)
    tensor = helper.make_tensor("w", TensorProto.INT4, codes.shape, codes.reshape(-1))
    made = model(
        [node("DequantizeLinear", "w s", axis=0)], constants={"s": f32(0.5, 0.25)}, opset=21
    )
    made.graph.initializer.append(tensor)
    graph = from_model(made)
    (y,) = interpreter.run(graph, [])
    assert graph.values[graph.nodes[0].inputs[0]].dtype == "int8"
    assert np.array_equal(y, codes * np.array([[0.5], [0.25]]))


def test_quantized_constants_are_folded_and_their_reals_kept() -> None:
    made = model(
        [
            node("QuantizeLinear", "w s z", "q"),
            node("DequantizeLinear", "q s z", "d"),
            node("MatMul", "x d"),
        ],
        {"x": [1, 2]},
        {"w": f32(0.3, -0.7).reshape(2, 1), "s": np.array(0.5, "f4"), "z": np.array(1, np.int8)},
    )
    graph = from_model(made)
    assert ops(graph) == ["DequantizeLinear", "MatMul"]
    assert graph.constants["q"].tolist() == [[2], [0]]


ORT_NODES = {
    "QLinearAdd": ("a as az b bs bz ys yz", {}),
    "QLinearMul": ("a as az b bs bz ys yz", {}),
    "QLinearGlobalAveragePool": ("a as az ys yz", {"channels_last": 0}),
    "QLinearAveragePool": ("a as az ys yz", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "QLinearLeakyRelu": ("a as az ys yz", {"alpha": 0.25}),
    "QLinearConcat": ("ys yz a as az b bs bz", {"axis": 1}),
    "QGemm": ("m as az w bs bz c ys yz", {"transB": 1}),
}


@pytest.mark.parametrize("op", sorted(ORT_NODES))
def test_contributed_operators_agree_with_onnxruntime(op: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(2)
    names, attributes = ORT_NODES[op]
    constants = {
        # Powers of two and sums below 2**24: the runtime's binary32 arithmetic is exact too.
        "as": np.array(0.25, "f4"),
        "az": np.array(11, np.uint8),
        "bs": np.array(0.5, "f4"),
        "bz": np.array(200, np.uint8),
        "ys": np.array({"QLinearMul": 32.0, "QGemm": 64.0}.get(op, 0.5), "f4"),
        "yz": np.array(100, np.uint8),
        "b": rng.integers(0, 256, (1, 2, 4, 4)).astype(np.uint8),
        "w": rng.integers(0, 256, (3, 8)).astype(np.uint8),
        "c": rng.integers(-5000, 5000, 3).astype(np.int32),
    }
    used = {name: constants[name] for name in names.split() if name in constants}
    data = "m" if op == "QGemm" else "a"
    shape = (4, 8) if op == "QGemm" else (1, 2, 4, 4)
    made = model(
        [node(op, names, domain="com.microsoft", **attributes)],
        {data: shape},
        used,
        kind=TensorProto.UINT8,
    )
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
    x = rng.integers(0, 256, shape).astype(np.uint8)
    (ours,) = interpreter.run(from_model(made), [x], exact=True)
    session = runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {data: x})
    assert_same(ours, theirs, range(ours.size))


# --- whole models ---------------------------------------------------------------------------


def models(*kinds: str) -> list[Path]:
    return [path for kind in kinds for path in sorted((DATA / kind).rglob("*.onnx"))]


@pytest.mark.parametrize("path", models("light"), ids=lambda path: path.stem)
def test_published_architectures_are_imported(path: Path) -> None:
    graph = load(path)
    assert graph.values[graph.outputs[0]].shape[:2] == (1, 1000)


def test_models_that_pytorch_exported_compute_what_they_did() -> None:
    paths = models("pytorch-converted", "pytorch-operator")
    assert len(paths) >= 117
    for path in paths:
        graph = load(path)
        for folder in path.parent.glob("test_data_set_*"):
            given = [array(file) for file in sorted(folder.glob("input_*.pb"))]
            wanted = [array(file) for file in sorted(folder.glob("output_*.pb"))]
            results = interpreter.run(graph, given[: len(graph.inputs)])
            for actual, expected in zip(results, wanted, strict=True):
                np.testing.assert_allclose(actual, expected, 1e-3, 1e-6, err_msg=str(path))


def array(file: Path) -> Array:
    return numpy_helper.to_array(TensorProto.FromString(file.read_bytes()))
