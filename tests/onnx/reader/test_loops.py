"""Scan and Loop of a known number of steps become as many copies of their body."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

from samebits.errors import InputError, UnsupportedError
from samebits.ir import interpreter
from samebits.onnx import from_model
from samebits.onnx.reader.tensors import tensor_to_array

Array = np.ndarray[Any, Any]
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, kind: int = FLOAT, shape: list[int] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    node: onnx.NodeProto, inputs: dict[str, list[int]], opset: int = 18, **constants: Array
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(
        [node],
        "g",
        [info(name, shape=shape) for name, shape in inputs.items()],
        [info(name) for name in node.output],
        tensors,
    )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def running_sum(**attributes: Any) -> onnx.NodeProto:
    """State s, slices x and y: s' = s + x * y; results s' and x * y."""
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "y"], ["product"]),
            helper.make_node("Add", ["s", "product"], ["s1"]),
            helper.make_node("Identity", ["s1"], ["s2"]),
        ],
        "body",
        [info(name) for name in ("s", "x", "y")],
        [info(name) for name in ("s1", "s2", "product")],
    )
    return helper.make_node(
        "Scan", ["s0", "a", "b"], ["last", "sums", "products"], body=body, **attributes
    )


def counted(*conditions: str, inputs: tuple[str, str] = ("n", "go")) -> onnx.NodeProto:
    """State s: s' = 2 * s + step; the condition is `conditions` of the step's number."""
    body = helper.make_graph(
        [
            helper.make_node("Cast", ["i"], ["number"], to=FLOAT),
            helper.make_node("Add", ["s", "s"], ["twice"]),
            helper.make_node("Add", ["twice", "number"], ["s1"]),
            *(helper.make_node(op, ["i", "three"], ["more"]) for op in conditions),
            *(() if conditions else (helper.make_node("Identity", ["c"], ["more"]),)),
        ],
        "body",
        [info("i", INT, []), info("c", BOOL, []), info("s")],
        [info("more", BOOL), info("s1"), info("twice")],
    )
    return helper.make_node("Loop", [*inputs, "x"], ["y", "all"], body=body)


EMPTY = helper.make_graph([], "body", [info("i", INT, [])], [info("i", INT, [])])


def check(made: onnx.ModelProto, **inputs: Array) -> None:
    graph = from_model(made)
    expected = InferenceSession(made.SerializeToString()).run(None, inputs)
    for found, wanted in zip(interpreter.run(graph, list(inputs.values())), expected, strict=True):
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"scan_input_directions": [0, 1], "scan_output_directions": [1, 0]},
        {"scan_input_axes": [1, -1], "scan_output_axes": [1, -1]},
    ],
)
def test_a_scan_is_its_steps(attributes: dict[str, Any]) -> None:
    # Integers: the sums are exact in any order.
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-9, 10, (3, 3)).astype(np.float32) for _ in range(2))
    node = running_sum(num_scan_inputs=2, **attributes)
    check(model(node, {"s0": [3], "a": [3, 3], "b": [3, 3]}), s0=b[0], a=a, b=b)


def test_a_loop_is_its_steps() -> None:
    x = np.array([1.0, -2.0], np.float32)
    three, yes = np.array(3), np.array(True)
    check(model(counted(), {"x": [2]}, n=np.array(4), go=yes), x=x)
    check(model(counted("Less"), {"x": [2]}, n=np.array(9), go=yes, three=three), x=x)
    check(model(counted("Less", inputs=("", "go")), {"x": [2]}, go=yes, three=three), x=x)
    check(model(counted(inputs=("n", "")), {"x": [2]}, n=np.array(2)), x=x)


@pytest.mark.parametrize(
    ("made", "kind", "found"),
    [
        (
            lambda: model(counted(), {"x": [2], "n": []}, go=np.array(True)),
            UnsupportedError,
            "expected a constant as number of steps",
        ),
        (
            lambda: model(counted(), {"x": [2]}, n=np.array(0), go=np.array(True)),
            UnsupportedError,
            "expected at least one step where results are stacked, found none",
        ),
        (
            lambda: model(counted(inputs=("", "")), {"x": [2]}),
            InputError,
            "expected a number of steps or a condition, found neither",
        ),
        (
            lambda: model(counted(inputs=("", "go")), {"x": [2]}, go=np.array(True)),
            InputError,
            "expected at most 65536 nodes",
        ),
        (
            lambda: model(running_sum(num_scan_inputs=2), {"s0": [3], "a": [3, 3], "b": [4, 3]}),
            InputError,
            r"expected one number of steps, found \[3, 4\]",
        ),
        (
            lambda: model(running_sum(num_scan_inputs=4), {"s0": [3], "a": [3, 3], "b": [3, 3]}),
            InputError,
            "expected 1 to 3 inputs to scan, found 4",
        ),
        (
            lambda: model(
                running_sum(num_scan_inputs=2, scan_input_axes=[0]),
                {"s0": [3], "a": [3, 3], "b": [3, 3]},
            ),
            InputError,
            r"expected 2 numbers in scan_input_axes, found \[0\]",
        ),
        (
            lambda: model(counted(), {"x": [2]}, n=np.float32(np.inf), go=np.array(True)),
            InputError,
            "expected an int64 number of steps, found float32",
        ),
        (
            lambda: model(counted(), {"x": [2]}, n=np.float32(2.5), go=np.array(True)),
            InputError,
            "expected an int64 number of steps, found float32",
        ),
        (
            lambda: model(helper.make_node("Loop", ["x"], ["y"], body=EMPTY), {"x": []}),
            InputError,
            "expected a number of steps and a condition, which may be left out, found 1 input",
        ),
        (
            lambda: model(
                running_sum(num_scan_inputs=2), {"s0": [3], "a": [3, 3], "b": [3, 3]}, opset=8
            ),
            UnsupportedError,
            "expected Scan of opset 9 or later",
        ),
    ],
)
def test_loops_that_do_not_end_here(made: Any, kind: Any, found: str) -> None:
    with pytest.raises(kind, match=found):
        from_model(made())


def test_a_condition_of_the_data_is_refused() -> None:
    body = helper.make_graph(
        [
            helper.make_node("ReduceSum", ["s"], ["total"], keepdims=0),
            helper.make_node("Cast", ["total"], ["more"], to=BOOL),
            helper.make_node("Identity", ["s"], ["s1"]),
        ],
        "body",
        [info("i", INT, []), info("c", BOOL, []), info("s")],
        [info("more", BOOL), info("s1")],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    with pytest.raises(UnsupportedError, match="a condition of Loop that constants decide"):
        from_model(model(node, {"x": [2]}, n=np.array(2)))


def test_the_nodes_of_every_step_are_counted() -> None:
    """A body without nodes: slices of its inputs, and what is stacked of its results."""
    names = [f"a{i}" for i in range(300)]
    body = helper.make_graph(
        [], "body", [info(f"x{i}") for i in range(300)], [info("x0") for _ in range(300)]
    )
    outputs = [f"y{i}" for i in range(300)]
    node = helper.make_node("Scan", names, outputs, body=body, num_scan_inputs=300)
    with pytest.raises(InputError, match="expected at most 65536 nodes"):
        from_model(model(node, {name: [100, 1] for name in names}))


@pytest.mark.parametrize("op", ["Scan", "Loop"])
def test_a_body_that_gives_nothing_is_refused(op: str) -> None:
    """A function may hand on an input that its call leaves out."""
    inputs = [info("i", INT, []), info("c", BOOL, []), info("s")]
    body = helper.make_graph(
        [helper.make_node("f", ["s", ""], ["r"], domain="f")],
        "body",
        inputs if op == "Loop" else inputs[2:],
        [*([info("c", BOOL)] if op == "Loop" else []), info("r")],
    )
    given = ["n", "", "x"] if op == "Loop" else ["x"]
    more = {} if op == "Loop" else {"num_scan_inputs": 1}
    made = model(helper.make_node(op, given, ["y"], body=body, **more), {"x": [2]}, n=np.array(2))
    imports = [helper.make_opsetid("", 18)]
    made.functions.append(helper.make_function("f", "f", ["a", "b"], ["b"], [], imports))
    made.opset_import.append(helper.make_opsetid("f", 1))
    with pytest.raises(InputError, match="expected a body that gives each of its outputs"):
        from_model(made)


def test_an_initialiser_of_a_body_is_read_once() -> None:
    """However many steps there are; what may be computed does not grow with them."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "w"], ["r"])],
        "body",
        [info("i", INT, []), info("c", BOOL, []), info("s")],
        [info("c", BOOL), info("r")],
        [numpy_helper.from_array(np.float32([1, 2]), "w")],
    )
    made = model(
        helper.make_node("Loop", ["n", "", "x"], ["y"], body=body), {"x": [2]}, n=np.array(5)
    )
    with patch("samebits.onnx.reader.nodes.tensor_to_array", wraps=tensor_to_array) as read:
        graph = from_model(made)
    assert [call.args[1] for call in read.call_args_list].count("initialiser 'w'") == 1
    assert interpreter.run(graph, [np.zeros(2, np.float32)])[0].tolist() == [5, 10]
