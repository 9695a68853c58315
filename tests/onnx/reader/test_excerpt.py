"""Parts of ONNX files: inputs that are set, graphs that are cut, and what files leave open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from samebits import progress
from samebits.errors import InputError, UnsupportedError
from samebits.excerpt import excerpt_of
from samebits.ir import Graph
from samebits.ir.interpreter import run
from samebits.onnx import load
from samebits.onnx.metadata import STATES

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.array([[1, -2, 3, -4]], np.float32)


def value(name: str, shape: Sequence[Any] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def saved(
    folder: Any,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: str = "y",
    constants: dict[str, Any] | None = None,
    known: Sequence[onnx.ValueInfoProto] = (),
) -> Any:
    graph = helper.make_graph(
        nodes,
        "graph",
        inputs,
        [value(name, None) for name in outputs.split()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
        value_info=known,
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def taken(path: Any, **part: Any) -> Graph:
    return load(path, part=excerpt_of(**part))


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


class Notes:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def stage(self, what: str, total: int | None) -> None: ...

    def advance(self, done: int) -> None: ...

    def note(self, text: str) -> None:
        self.texts.append(text)


# --- inputs that are set ------------------------------------------------------------------------


def branching(folder: Any, kind: int = INT64, shape: Sequence[int] = ()) -> Any:
    """Neg of x where the rate is 16000, Abs elsewhere, as exporters of speech networks write it."""
    branches = {
        f"{branch}_branch": helper.make_graph(
            [helper.make_node(op, ["x"], [branch])], branch, [], [value(branch, None)]
        )
        for branch, op in (("then", "Neg"), ("else", "Abs"))
    }
    nodes = [
        helper.make_node("Cast", ["sr"], ["whole"], to=INT64),
        helper.make_node("ReduceMax", ["whole"], ["rate"], keepdims=0),
        helper.make_node("Equal", ["rate", "wide"], ["is_wide"]),
        helper.make_node("If", ["is_wide"], ["y"], **branches),
    ]
    inputs = [value("x", [1, 4]), value("sr", shape, kind)]
    return saved(folder, nodes, inputs, constants={"wide": np.int64(16000)})


@pytest.mark.parametrize(("rate", "op"), [(16000, "Neg"), ("16000", "Neg"), (8000.0, "Abs")])
def test_an_input_that_is_set_chooses_the_branch(tmp_path, rate, op):
    graph = taken(branching(tmp_path), set={"sr": rate})
    assert (graph.inputs, ops(graph)) == (("x",), [op])
    assert set(graph.values) == {"x", "y"}
    np.testing.assert_array_equal(run(graph, [X], False)[0], -X if op == "Neg" else abs(X))


def test_an_input_that_decides_and_is_not_set_is_refused(tmp_path):
    with pytest.raises(UnsupportedError, match="expected a constant as condition"):
        taken(branching(tmp_path))


@pytest.mark.parametrize("shape", [[], [1], [3], ["N", 2]])
def test_a_number_fills_the_tensor(tmp_path, shape):
    graph = taken(branching(tmp_path, shape=shape), set={"sr": 16000})
    assert ops(graph) == ["Neg"]


def test_an_initialiser_that_is_an_input_too_is_set(tmp_path):
    nodes = [helper.make_node("Add", ["x", "c"], ["y"])]
    inputs = [value("x", [1, 4]), value("c", [4])]
    path = saved(tmp_path, nodes, inputs, constants={"c": np.zeros(4, np.float32)})
    np.testing.assert_array_equal(run(taken(path), [X], False)[0], X)
    np.testing.assert_array_equal(run(taken(path, set={"c": 0.5}), [X], False)[0], X + 0.5)


@pytest.mark.parametrize(
    ("kind", "given", "fits"),
    [
        (INT64, 2**63 - 1, True), (INT64, 2**63, False), (INT64, 10**400, False),
        (INT64, 1.5, False), (INT64, "1e3", True), (INT64, True, False), (INT64, "true", False),
        (INT64, "x", False), (INT64, [1], False), (INT64, float("inf"), False),
        (INT64, np.int32(3), True), (INT64, np.array(3), True),
        (TensorProto.UINT8, -1, False), (TensorProto.UINT8, 255, True),
        (TensorProto.INT8, "-128", True), (TensorProto.INT8, 128, False),
        (BOOL, "true", True), (BOOL, "False", True), (BOOL, 1, True), (BOOL, 2, False),
        (BOOL, "yes", False),
        (FLOAT, 0.1, True), (FLOAT, "-3", True), (FLOAT, 1e39, False), (FLOAT, "nan", False),
        (FLOAT, True, False), (FLOAT, None, False),
        (TensorProto.FLOAT16, 65504, True), (TensorProto.FLOAT16, 65520, False),
        (TensorProto.BFLOAT16, 1e38, True),
    ],
)  # fmt: skip
def test_a_number_must_fit_the_type_of_its_input(tmp_path, kind, given, fits):
    path = branching(tmp_path, kind)
    if fits:
        assert ops(taken(path, set={"sr": given})) == ["Abs"]
    else:
        with pytest.raises(InputError, match="--set sr: expected "):
            taken(path, set={"sr": given})


def test_a_name_that_is_no_input_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"--set rate: expected the name of an input \('x', 'sr'"):
        taken(branching(tmp_path), set={"rate": 1})
    with pytest.raises(InputError, match="expected numbers by the names of inputs"):
        excerpt_of(set=[("sr", 1)])  # type: ignore[arg-type]


def test_a_set_input_of_a_huge_shape_is_refused_before_it_is_made(tmp_path):
    path = branching(tmp_path, shape=[2**27])
    with pytest.raises(UnsupportedError, match="elements of computed constants"):
        taken(path, set={"sr": 1})


# --- graphs that are cut ------------------------------------------------------------------------


def detector(folder: Any, known: Sequence[onnx.ValueInfoProto] = ()) -> Any:
    """A front end that nothing here reads, a network, and a choice of boxes behind it."""
    nodes = [
        helper.make_node("StringNormalizer", ["text"], ["words"]),
        helper.make_node("Foreign", ["words"], ["features"], domain="of.others"),
        helper.make_node("Relu", ["features"], ["h"]),
        helper.make_node("Split", ["h"], ["boxes", "rest"], axis=1),
        helper.make_node("Neg", ["rest"], ["scores"]),
        helper.make_node("NonZero", ["scores"], ["y"]),
    ]
    return saved(folder, nodes, [value("text", ["N"], TensorProto.STRING)], known=known)


def test_what_lies_outside_of_a_cut_is_not_read(tmp_path):
    path = detector(tmp_path, known=[value("features", [1, 4])])
    with pytest.raises(UnsupportedError):
        taken(path)
    graph = taken(path, start_at=["features"], end_at=["scores", "boxes"])
    assert (graph.inputs, graph.outputs) == (("features",), ("scores", "boxes"))
    scores, boxes = run(graph, [X], False)
    np.testing.assert_array_equal(boxes, [[1, 0]])
    np.testing.assert_array_equal(scores, [[-3, 0]])


def test_one_result_of_a_node_may_be_an_input_while_another_is_computed(tmp_path):
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=1),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    path = saved(tmp_path, nodes, [value("x", [1, 4])])
    graph = taken(path, start_at=["x", "a"])
    assert [graph.values[name].shape for name in graph.inputs] == [(1, 4), (1, 2)]
    found = run(graph, [X, np.array([[10, 20]], np.float32)], False)[0]
    np.testing.assert_array_equal(found, [[13, 16]])


def test_the_shape_of_a_cut_is_given_where_nothing_says_it(tmp_path):
    path = detector(tmp_path)
    with pytest.raises(InputError, match=r"--start-at features: .* give --shape features=SIZES"):
        taken(path, start_at="features", end_at="scores")
    notes = Notes()
    with progress.listening(notes):
        graph = taken(path, shapes={"features": (1, 4)}, start_at="features", end_at="scores")
    assert graph.values["features"].shape == (1, 4)
    assert any("float32 is taken" in text for text in notes.texts)
    partly = detector(tmp_path, known=[value("features", ["N", "F"])])
    with pytest.raises(InputError, match="fix it with --shape features="):
        taken(partly, start_at="features", end_at="scores")


def test_the_shape_of_a_cut_is_that_of_what_is_before_it(tmp_path):
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["wide"], axis=1),
        helper.make_node("Cast", ["wide"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Neg", ["half"], ["y"]),
    ]
    path = saved(tmp_path, nodes, [value("x", ["N", "F"])])
    graph = taken(path, shapes={"x": (2, 3)}, start_at="half")
    assert (graph.values["half"].dtype, graph.values["half"].shape) == ("float16", (2, 6))
    with pytest.raises(InputError, match="give --shape half="):
        taken(path, start_at="half")


def test_inputs_that_the_outputs_do_not_need_are_left_out(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Add", ["h", "z"], ["y"])]
    path = saved(tmp_path, nodes, [value("x", [1, 4]), value("z", ["N", "M"])])
    notes = Notes()
    with progress.listening(notes):
        graph = taken(path, end_at="h")
    assert (graph.inputs, graph.outputs) == (("x",), ("h",))
    assert notes.texts == ["left out, as nothing before --end-at reads them: z"]
    assert taken(path, start_at=["z", "h"], shapes={"z": (1, 4)}).inputs == ("z", "h")
    assert taken(path, start_at="h", set={"z": 1}, shapes={"z": (1, 4)}).inputs == ("h",)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"start_at": "h"}, "--start-at: expected all inputs that the outputs need, found 'z'"),
        (
            {"start_at": ["x", "z"], "end_at": "h"},
            "--start-at z: expected tensors that the outputs",
        ),
        ({"start_at": "c"}, "--start-at: expected a tensor of the network, found no 'c'"),
        ({"end_at": "hidden_output"}, "found no 'hidden_output'; did you mean 'hidden_outputs'"),
        ({"end_at": "hidden"}, "did you mean 'hidden_outputs'?"),
        ({"end_at": "q" * 5000}, "found no 'qqq"),
        ({"end_at": ["h", "h"]}, "--end-at: expected different tensors, found 'h' twice"),
        ({"end_at": [""]}, "--end-at: expected names of tensors"),
        ({"end_at": [3]}, "--end-at: expected names of tensors"),
        ({"end_at": "h", "set": {"h": 1}}, "--set h: expected the name of an input"),
        ({"end_at": "h", "shapes": {"h": (1,)}}, "--shape h: expected the name of an input"),
    ],
)
def test_cuts_that_are_refused(tmp_path, part, message):
    nodes = [
        helper.make_node("Add", ["x", "c"], ["hidden_outputs"]),
        helper.make_node("Relu", ["hidden_outputs"], ["h"]),
        helper.make_node("Add", ["h", "z"], ["y"]),
    ]
    inputs = [value("x", [1, 4]), value("z", [1, 4])]
    path = saved(tmp_path, nodes, inputs, constants={"c": np.ones(4, np.float32)})
    with pytest.raises(InputError) as caught:
        taken(path, **part)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_a_chosen_branch_is_cut_at_its_own_tensors(tmp_path):
    inner = [
        helper.make_node("Neg", ["x"], ["n"], name="first"),
        helper.make_node("Exp", ["n"], ["e"], name="second"),
    ]
    branch = helper.make_graph(inner, "branch", [], [value("e", None)])
    choice = helper.make_node(
        "If", ["c"], ["y"], name="choice", then_branch=branch, else_branch=branch
    )
    path = saved(tmp_path, [choice], [value("x", [1, 4]), value("c", [], BOOL)])
    graph = taken(path, set={"c": "true"}, end_at="choice/n")
    assert (ops(graph), graph.outputs) == (["Neg"], ("choice/n",))
    behind = taken(path, set={"c": 1}, start_at="choice/n")
    assert (ops(behind), behind.inputs) == (["Exp"], ("choice/n",))
    with pytest.raises(InputError, match="did you mean 'choice/n'"):
        taken(path, set={"c": 1}, end_at="choice/m")
    with pytest.raises(
        InputError, match=r"(?s)which this one is not: .*condition.*--set NAME=VALUE"
    ):
        taken(path, end_at="choice/n")


def test_a_time_step_is_not_cut(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Add", ["y", "s"], ["t"])]
    path = saved(tmp_path, nodes, [value("x", [1, 4]), value("s", [1, 4])], "y t")
    model = onnx.load(path)
    model.metadata_props.add(key=STATES, value="1")
    onnx.save(model, path)
    assert load(path).states
    for part in ({"end_at": "y"}, {"start_at": ["x", "s"]}, {"set": {"s": 0}}):
        with pytest.raises(InputError, match="expected a network without states to cut"):
            taken(path, **part)
    assert taken(path, set={"x": 1.0}).inputs == ("s",)


# --- dimensions and versions that are left open -------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "given"), [((-1, 4), None), ((-1, -1), (2, 4)), (("N", -1), (2, 4))]
)
def test_a_size_of_minus_one_is_open(tmp_path, shape, given):
    path = saved(tmp_path, [helper.make_node("Relu", ["x"], ["y"])], [value("x", shape)])
    graph = taken(path, shapes={"x": given} if given else None)
    assert graph.values["x"].shape == (given or (1, 4))
    if given:
        with pytest.raises(InputError, match="expected a size for dimension 1"):
            taken(path)


def test_other_negative_sizes_are_refused(tmp_path):
    path = saved(tmp_path, [helper.make_node("Relu", ["x"], ["y"])], [value("x", (-2, 4))])
    with pytest.raises(InputError, match="expected sizes of at least 0"):
        taken(path)


def test_an_input_without_any_shape_takes_a_given_one(tmp_path):
    path = saved(tmp_path, [helper.make_node("Relu", ["x"], ["y"])], [value("x", None)])
    with pytest.raises(InputError, match="expected a shape, found none; give --shape x=SIZES"):
        taken(path)
    assert taken(path, shapes={"x": (2, 3)}).values["y"].shape == (2, 3)


def test_a_domain_that_opset_import_leaves_out_is_version_1(tmp_path):
    quant = helper.make_node(
        "Quant", ["x", "s", "z", "b"], ["y"], domain="onnx.brevitas",
        signed=1, narrow=0, rounding_mode="ROUND",
    )  # fmt: skip
    again = helper.make_node(
        "Quant", ["y", "s", "z", "b"], ["w"], domain="onnx.brevitas",
        signed=1, narrow=0, rounding_mode="ROUND",
    )  # fmt: skip
    numbers = {"s": np.float32(0.5), "z": np.float32(0), "b": np.float32(8)}
    path = saved(tmp_path, [quant, again], [value("x", [1, 4])], "w", numbers)
    notes = Notes()
    with progress.listening(notes):
        graph = load(path)
    assert notes.texts == [
        "opset_import leaves out the operators of 'onnx.brevitas': version 1 is read"
    ]
    np.testing.assert_array_equal(run(graph, [X / 4], False)[0], [[0, -0.5, 1, -1]])


def test_a_domain_of_the_standard_needs_its_version(tmp_path):
    scaler = helper.make_node(
        "Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[0.0], scale=[2.0]
    )
    path = saved(tmp_path, [scaler], [value("x", [1, 4])])
    with pytest.raises(InputError, match=r"expected a version of the operators of 'ai.onnx.ml'"):
        load(path)
