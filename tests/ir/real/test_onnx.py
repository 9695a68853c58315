"""The real operators against the node tests of the ONNX standard: float mode, then exact mode."""

from __future__ import annotations

import functools
import math
import re
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from samebits.errors import InputError, SamebitsError, UnsupportedError
from samebits.ir import Graph, GraphBuilder
from samebits.ir.interpreter import run
from samebits.ir.ops import op_named
from samebits.ir.real.define import FLOATS, INTEGERS, is_real
from samebits.ir.real.minifloat import widened

TYPES = (*FLOATS, *INTEGERS, "bool", "int4", "uint4")
# Inputs of ONNX that are attributes here: operator -> position -> name.
FOLDED: dict[str, dict[int, str]] = {
    "Clip": {1: "min", 2: "max"},
    "Reshape": {1: "shape"},
    "Expand": {1: "shape"},
    "Tile": {1: "repeats"},
    "Squeeze": {1: "axes"},
    "Unsqueeze": {1: "axes"},
    "Split": {1: "sizes"},
    "Slice": {1: "starts", 2: "ends", 3: "axes", 4: "steps"},
    "Pad": {1: "pads", 2: "value", 3: "axes"},
    "Resize": {1: "roi", 2: "scales", 3: "sizes"},
} | {f"Reduce{kind}": {1: "axes"} for kind in (
    "Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"
)}  # fmt: skip
WINDOWS = ("Conv", "ConvInteger", "ConvTranspose", "MaxPool", "AveragePool")
EXACT_ELEMENTS = 2000
# Section 2 of docs/spec/graph.md.
OPERATORS = re.findall(
    r"\w+",
    """
    Relu LeakyRelu Elu Selu Celu ThresholdedRelu Tanh Sigmoid HardSigmoid HardSwish Mish Gelu
    Softplus Softsign Erf Exp Log Sqrt Reciprocal Abs Neg Sign Floor Ceil Round Sin Cos Tan Asin
    Acos Atan Sinh Cosh Asinh Acosh Atanh Identity Swish Shrink Clip Cast Add Sub Mul Div Pow PRelu
    Mod Min Max Sum Mean Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not Where Conv
    ConvTranspose Gemm MatMul MaxPool AveragePool GlobalAveragePool GlobalMaxPool
    BatchNormalization LayerNormalization InstanceNormalization ReduceSum ReduceMean ReduceMax
    ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp ArgMax
    ArgMin Softmax LogSoftmax Hardmax Reshape Flatten Transpose Squeeze Unsqueeze Concat Split Slice
    Pad Expand Tile Gather Resize DepthToSpace SpaceToDepth QuantizeLinear DequantizeLinear
    DynamicQuantizeLinear ConvInteger MatMulInteger
    """,
)
# Operators with fewer cases than this are not covered by mistake of the translation below.
LEAST = {"Conv": 4, "MaxPool": 9, "AveragePool": 12, "Resize": 11, "ConvTranspose": 6}


class Skip(Exception):
    """The case is not of section 2 of docs/spec/graph.md."""


@functools.cache
def cases() -> dict[str, Any]:
    # Collecting the cases computes them, with overflows on purpose.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        found = load_model_tests(kind="node")
    single = {}
    for case in found:
        nodes = case.model.graph.node
        if case.name.endswith("_expanded"):  # a function's body: its operators have own cases
            continue
        if len(nodes) == 1 and nodes[0].domain == "" and nodes[0].op_type in OPERATORS:
            single[case.name] = case
    return single


def translate(node: Any, opset: int, arrays: list[Any]) -> tuple[Graph, list[Any]]:
    """The case as a graph of one node, and the inputs that stay inputs."""
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    given = {k: v.decode() if isinstance(v, bytes) else v for k, v in given.items()}
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    by_name = dict(zip((name for name in node.input if name), arrays, strict=True))
    inputs = [by_name.get(name) for name in node.input]
    for position, name in FOLDED.get(node.op_type, {}).items():
        if position < len(inputs):
            array = inputs[position]
            if array is not None:
                given[name] = array.item() if array.ndim == 0 else tuple(array.tolist())
    if node.op_type in FOLDED:
        inputs = inputs[:1]
    adapt(node, opset, given, inputs)
    known = op_named(node.op_type).attributes
    unknown = set(given) - set(known)
    if unknown:
        raise Skip(f"attribute {unknown}")
    build = GraphBuilder("case")
    names = []
    for index, array in enumerate(inputs):
        if array is None:
            names.append("")
        elif array.dtype.name in TYPES[-2:]:
            names.append(build.constant(f"x{index}", array))
        elif array.dtype.name in TYPES:
            names.append(build.input(f"x{index}", array.dtype.name, array.shape))
        else:
            raise Skip(f"type {array.dtype}")
    outputs = build.add_all(node.op_type, names, given)
    wanted = [name for name in node.output if name]
    if len(wanted) > len(outputs):
        raise Skip("more outputs")
    left = [a for a, name in zip(inputs, names, strict=True) if name in build.inputs]
    return build.build(outputs), left


def adapt(node: Any, opset: int, given: dict[str, Any], inputs: list[Any]) -> None:
    """What ONNX leaves implicit, and older opsets state otherwise."""
    op, x = node.op_type, inputs[0]
    rank = x.ndim
    if op in WINDOWS:
        spatial = rank - 2
        kernel = given.get("kernel_shape", inputs[1].shape[2:] if "Conv" in op else None)
        given.setdefault("strides", (1,) * spatial)
        given.setdefault("dilations", (1,) * spatial)
        auto = given.pop("auto_pad", "NOTSET")
        if auto in ("SAME_UPPER", "SAME_LOWER") and op != "ConvTranspose":
            pads = [0] * (2 * spatial)
            for i, n in enumerate(x.shape[2:]):
                out = -(-n // given["strides"][i])
                reach = given["dilations"][i] * (kernel[i] - 1) + 1
                total = max((out - 1) * given["strides"][i] + reach - n, 0)
                small, big = total // 2, total - total // 2
                pair = (small, big) if auto == "SAME_UPPER" else (big, small)
                pads[i], pads[i + spatial] = pair
            given["pads"] = tuple(pads)
        elif auto not in ("NOTSET", "VALID"):
            raise Skip("auto_pad of ConvTranspose")
        given.setdefault("pads", (0,) * (2 * spatial))
        if "Conv" in op:
            given.pop("kernel_shape", None)
        if op == "ConvTranspose":
            given.setdefault("output_padding", (0,) * spatial)
            if "output_shape" in given:
                raise Skip("output_shape")
        if len([name for name in node.output if name]) > 1:
            raise Skip("indices")
        given.pop("storage_order", None)
    elif op.startswith("Reduce"):
        noop = given.pop("noop_with_empty_axes", 0)
        if not given.get("axes"):
            given["axes"] = () if noop else tuple(range(rank))
    elif op == "Squeeze":
        given.setdefault("axes", tuple(i for i, n in enumerate(x.shape) if n == 1))
    elif op == "Transpose":
        given.setdefault("perm", tuple(reversed(range(rank))))
    elif op == "Reshape":
        if given.pop("allowzero", 0) == 0:
            given["shape"] = tuple(
                x.shape[i] if n == 0 else n for i, n in enumerate(given["shape"])
            )
        known = math.prod(n for n in given["shape"] if n != -1)
        given["shape"] = tuple(x.size // known if n == -1 else n for n in given["shape"])
    elif op == "Slice":
        given.setdefault("axes", tuple(range(len(given["starts"]))))
        given.setdefault("steps", (1,) * len(given["starts"]))
    elif op == "Split":
        axis = given.get("axis", 0)
        if "sizes" not in given:
            parts = given.pop("num_outputs", len(node.output))
            each = -(-x.shape[axis] // parts)
            rest = x.shape[axis] - each * (parts - 1)
            given["sizes"] = (*[each] * (parts - 1), rest)
    elif op == "Pad":
        axes = given.pop("axes", tuple(range(rank)))
        before, after = [0] * rank, [0] * rank
        for i, axis in enumerate(axes):
            before[axis], after[axis] = given["pads"][i], given["pads"][i + len(axes)]
        given["pads"] = (*before, *after)
    elif op == "Resize":
        adapt_resize(x, given)
    elif op == "Cast":
        to = onnx.helper.tensor_dtype_to_np_dtype(given["to"]).name
        if to not in TYPES[:-2]:
            raise Skip("type")
        given["to"] = to
        given.pop("saturate", None)
        given.pop("round_mode", None)
    elif op in ("QuantizeLinear", "DequantizeLinear"):
        given.pop("saturate", None)
        given.pop("precision", None)
        to = given.pop("output_dtype", 0)
        if to and op == "QuantizeLinear" and len(inputs) == 2:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(to)
            inputs.append(np.zeros(inputs[1].shape, dtype))
        if any(a is not None and a.dtype.name not in TYPES for a in inputs):
            raise Skip("type")
    elif op == "BatchNormalization":
        if given.pop("training_mode", 0):
            raise Skip("training")
        given.pop("momentum", None)
    elif op == "LayerNormalization" and len(node.output) > 1:
        del node.output[1:]
    if op in ("Softmax", "LogSoftmax", "Hardmax") and opset < 13:
        raise Skip("old axis")


def adapt_resize(x: Any, given: dict[str, Any]) -> None:
    given.pop("roi", None)
    for key in ("cubic_coeff_a", "exclude_outside", "extrapolation_value", "antialias"):
        if given.pop(key, 0):
            raise Skip(key)
    axes = given.pop("axes", tuple(range(x.ndim)))
    policy = given.pop("keep_aspect_ratio_policy", "stretch")
    if given.get("mode", "nearest") != "nearest" or policy != "stretch":
        raise Skip("mode")
    if given.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise Skip("crop")
    sizes = list(x.shape)
    if given.get("sizes"):
        for axis, n in zip(axes, given["sizes"], strict=True):
            sizes[axis] = n
        given["scales"] = None
    else:
        scales = [1.0] * x.ndim
        for axis, s in zip(axes, given["scales"], strict=True):
            scales[axis] = s
            sizes[axis] = math.floor(x.shape[axis] * s)
        given["scales"] = tuple(scales)
    given["sizes"] = tuple(sizes)


def to_array(data: Any) -> Any:
    return np.asarray(data) if not hasattr(data, "data_type") else numpy_helper.to_array(data)


def close(actual: Any, expected: Any, name: str) -> None:
    assert actual.shape == expected.shape, name
    if expected.dtype.name in ("int4", "uint4"):
        expected = expected.astype(actual.dtype)
    assert actual.dtype == expected.dtype, name
    if actual.dtype.name == "bfloat16":
        assert np.array_equal(widened(actual), widened(expected), equal_nan=True), name
        return
    if actual.dtype.kind != "f":
        assert np.array_equal(actual, expected), name
        return
    # The expected numbers were computed in the type itself.
    rtol = 2e-3 if actual.dtype == np.float16 else 2e-5
    atol = 1e-4 if name in FOUR_DIGITS else 1e-5
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=name)


# The expected results of these cases are written with four digits.
FOUR_DIGITS = ("test_averagepool_2d_ceil_last_window_starts_on_pad",)


@functools.cache
def translated() -> dict[str, tuple[str, Graph, list[Any], list[Any]]]:
    """name -> operator, graph, inputs, expected outputs of every case of section 2."""
    found = {}
    for name, case in cases().items():
        node = onnx.NodeProto()
        node.CopyFrom(case.model.graph.node[0])  # other tests load the same cases
        opset = max(o.version for o in case.model.opset_import if o.domain == "")
        arrays, outputs = ([to_array(a) for a in side] for side in case.data_sets[0])
        try:
            graph, left = translate(node, opset, arrays)
        except Skip:
            continue
        found[name] = (node.op_type, graph, left, outputs)
    return found


def test_most_operators_have_cases() -> None:
    counted = dict.fromkeys(OPERATORS, 0)
    for op, *_ in translated().values():
        counted[op] += 1
    assert [op for op, count in counted.items() if not count] == []
    for op, least in LEAST.items():
        assert counted[op] >= least, op


def test_node_cases_in_float_mode() -> None:
    failures = []
    for name, (_, graph, inputs, outputs) in translated().items():
        try:
            for actual, expected in zip(run(graph, inputs), outputs, strict=False):
                close(actual, expected, name)
        except (AssertionError, SamebitsError) as error:
            failures.append(f"{name}: {str(error)[:300]}")
    assert not failures, "\n".join(failures)


def test_node_cases_in_exact_mode_equal_float_mode() -> None:
    failures, compared = [], 0
    for name, (op, graph, inputs, _) in translated().items():
        arrays = [*inputs, *(a for a in graph.constants.values() if a.dtype.kind == "f")]
        if any(a.size > EXACT_ELEMENTS or not finite(a) for a in arrays):
            continue
        exact = exact_results(graph, inputs)
        if isinstance(exact, str):
            undefined = "division by zero" in exact or "found none" in exact
            if not undefined and op not in IRRATIONAL:
                failures.append(f"{name}: {exact}")
            continue
        compared += 1
        # Enough digits for any sum here; the operators that decide an integer must agree.
        for actual, expected in zip(exact, run(graph, inputs), strict=True):
            if actual.dtype != object:
                same = np.array_equal(actual, expected)
            else:
                assert all(type(v) is Fraction for v in actual.reshape(-1)), name
                rtol = 1e-3 if expected.dtype == np.float16 else 2e-7
                same = np.allclose(actual.astype(np.float64), expected, rtol=rtol, atol=1e-7)
            if not same:
                failures.append(name)
    assert not failures, "\n".join(failures)
    assert compared > 300


def exact_results(graph: Graph, inputs: list[Any]) -> list[Any] | str:
    try:
        return run(graph, inputs, exact=True)
    except (InputError, UnsupportedError) as error:
        return str(error)


def finite(array: Any) -> bool:
    return not is_real(array.dtype) or bool(np.isfinite(widened(array)).all())


IRRATIONAL = {
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cos", "Cosh", "Elu", "Erf"),
    *("Exp", "Gelu", "Log", "Mish", "Selu", "Sigmoid", "Sin", "Sinh", "Softplus", "Sqrt"),
    *("Swish", "Tan", "Tanh", "Softmax", "LogSoftmax", "ReduceL2", "ReduceLogSum"),
    *("ReduceLogSumExp", "BatchNormalization", "LayerNormalization", "InstanceNormalization"),
    *("DynamicQuantizeLinear", "Pow"),
}
