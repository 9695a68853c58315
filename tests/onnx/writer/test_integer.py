"""Integer graphs as ONNX models: onnxruntime, at every optimisation level, gives the same codes."""

from fractions import Fraction

import numpy as np
import onnx
import pytest

from compare import assert_same
from integer_graphs import extreme_softmax, inputs_of, operator_graphs, random_network
from samebits.errors import SamebitsError, UnsupportedError
from samebits.ir import GraphBuilder, Quantization, interpreter
from samebits.onnx.writer.integer import save_integer, to_integer

onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
GRAPHS = dict(operator_graphs())
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


def session(model: onnx.ModelProto, level: str = "ORT_ENABLE_ALL"):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def check(graph, seeds=range(2), levels=LEVELS):
    model = to_integer(graph)
    onnx.checker.check_model(model, full_check=True)
    cases = [inputs_of(graph, seed) for seed in seeds]
    expected = [interpreter.run(graph, inputs) for inputs in cases]
    for level in levels:
        runner = session(model, level)
        names = [value.name for value in runner.get_inputs()]
        for inputs, wanted in zip(cases, expected, strict=True):
            found = runner.run(None, dict(zip(names, inputs, strict=True)))
            for a, b in zip(found, wanted, strict=True):
                assert (a.dtype, a.shape) == (b.dtype, b.shape), level
                assert_same(a, b, np.arange(b.size))


@pytest.mark.parametrize("name", GRAPHS)
def test_operator(name):
    check(GRAPHS[name])


@pytest.mark.parametrize("seed", range(25))
def test_random_network(seed):
    check(random_network(seed), levels=LEVELS[::3])


def test_no_node_computes_in_floating_point_but_maxima():
    for name, graph in GRAPHS.items():
        model = onnx.shape_inference.infer_shapes(to_integer(graph), strict_mode=True)
        kinds = {info.name: info.type.tensor_type.elem_type for info in model.graph.value_info}
        for node in model.graph.node:
            reals = [kinds.get(n) for n in node.input if kinds.get(n) in (1, 10, 11)]
            assert not reals or node.op_type in ("Transpose", "MaxPool", "Cast"), name


def test_softmax_beyond_64_bits_is_refused():
    with pytest.raises(UnsupportedError) as caught:
        to_integer(extreme_softmax())
    assert str(caught.value) == (
        "node 'softmax' (softmax): expected a ratio whose products fit 64 bits, found "
        "35184372088832/3; use an output scale of at most 24 bits and shorter rows"
    )


def test_an_accumulator_that_may_overflow_is_refused():
    build = GraphBuilder("narrow")
    x = build.input("x", "int8", (2,))
    graph = build.build([build.add("add", [x], {"factors": (2**25,)}, name="sum")])
    with pytest.raises(UnsupportedError) as caught:
        to_integer(graph)
    assert str(caught.value) == (
        "node 'sum' (add): expected a result that is proved to fit int32, found -4294967296 to "
        "4261412864; give it the dtype int64"
    )


def test_real_graphs_are_refused():
    build = GraphBuilder("real")
    graph = build.build([build.add("Relu", [build.input("x", "float32", (2,))])])
    with pytest.raises(UnsupportedError, match="graph 'real': expected an integer graph"):
        to_integer(graph)


def test_outputs_that_are_inputs_constants_or_repeated():
    build = GraphBuilder("odd")
    x = build.input("x", "int8", (2,))
    c = build.constant("c", np.array([3, 4], np.int8))
    y = build.add("maximum", [x, c], outputs=["y"])
    graph = build.build([x, c, y, y])
    model = to_integer(graph)
    assert [value.name for value in model.graph.output] == ["x.output", "c.output", "y", "y.output"]
    check(graph)


@pytest.mark.parametrize("op", ["top_k", "top_k_index"])
def test_names_beside_those_of_the_graph(op):
    build = GraphBuilder("names")
    x = build.input("x", "int8", (1, 5))
    y = build.add(op, [x], {"axis": 1, "k": 2, "largest": True}, outputs=["v"])
    others = [
        build.add("clip", [x], {"low": -3, "high": high}, outputs=[name])
        for high, name in enumerate(("v.codes", "v.places"))
    ]
    check(build.build([y, *others]))


def test_file(tmp_path):
    build = GraphBuilder('a name with "quotes" and \u00e9')
    x = build.input("in\nput", "int8", (2,), Quantization(Fraction(3, 2**7), 5))
    graph = build.build([build.add("clip", [x], {"low": -3, "high": 9})])
    path = tmp_path / "model.onnx"
    save_integer(graph, path)
    first = path.read_bytes()
    save_integer(graph, path)
    assert path.read_bytes() == first
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    model = onnx.load(path)
    assert model.graph.input[0].name == "in\nput"
    assert {p.key: p.value for p in model.metadata_props} == {
        "scale in\nput": "3/128",
        "zero_point in\nput": "5",
    }
    with pytest.raises(SamebitsError, match="cannot be written"):
        save_integer(graph, path / "within a file.onnx")
