"""A case, or more, of every real operator: inputs as (dtype, shape) or constants, attributes."""

from __future__ import annotations

import numpy as np

from samebits.ir import GraphBuilder

F, I8 = "float32", "int8"
WINDOW = {"strides": (2, 1), "pads": (1, 0, 0, 1), "dilations": (1, 2)}
IMAGE = (F, (1, 4, 5, 6))
X = (F, (2, 3))


def number(value):
    return float(np.float32(value))


def every(ops, variants):
    return dict.fromkeys(ops, variants)


REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
# operator -> (inputs as (dtype, shape) or constant arrays, attributes); more variants in a list.
CASES = {
    **every(
        (
            *("Relu", "Selu", "Tanh", "Sigmoid", "HardSwish", "Mish", "Softplus", "Softsign"),
            *("Erf", "Exp", "Log", "Sqrt", "Reciprocal", "Abs", "Neg", "Sign", "Floor", "Ceil"),
            *("Round", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh"),
            *("Acosh", "Atanh", "Identity"),
        ),
        [([X], {})],
    ),
    "TreeEnsemble": [
        (
            [
                ("float32", (3, 2)),
                *([0, 1, 6], [1, 0], np.float32([0.5, -1.0]), [0, 2], [2, 4], [3, 5]),
                *([0, 1, 0, 1, 0], np.float32([[0.5], [2.0], [-1.0], [3.0], [0.25]])),
            ],
            {"targets": 2},
        )
    ],
    "LeakyRelu": [([X], {"alpha": number(0.1)})],
    "Elu": [([X], {"alpha": 0.5})],
    "Celu": [([X], {"alpha": 0.5})],
    "ThresholdedRelu": [([X], {"alpha": 0.5})],
    "HardSigmoid": [([X], {"alpha": 0.25, "beta": 0.5})],
    "Gelu": [([X], {"approximate": "none"}), ([X], {"approximate": "tanh"})],
    "Shrink": [([X], {"lambd": 0.25, "bias": 0.125})],
    "Clip": [([X], {"min": -1.0, "max": 1.5}), ([X], {"max": 6.0}), ([X], {"min": 0.0})],
    "Cast": [([X], {"to": "int32"}), ([("uint8", (3,))], {"to": F})],
    **every(("Add", "Sub", "Mul", "Div", "Pow"), [([X, (F, (3,))], {})]),
    "PRelu": [([X, (F, (3,))], {})],
    "Mod": [([X, (F, (3,))], {"fmod": 1})],
    **every(("Min", "Max", "Sum", "Mean"), [([X, (F, (1, 3)), X], {})]),
    **every(
        ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), [([X, (F, (3,))], {})]
    ),
    **every(("And", "Or", "Xor"), [([("bool", (2, 3)), ("bool", (3,))], {})]),
    "Not": [([("bool", (2, 3))], {})],
    "Where": [([("bool", (3,)), X, X], {})],
    "Conv": [
        ([IMAGE, (F, (6, 2, 3, 2)), (F, (6,))], {**WINDOW, "group": 2}),
        ([(F, (1, 2, 7)), (F, (3, 2, 3))], {"strides": (2,), "pads": (1, 0), "dilations": (1,)}),
    ],
    "ConvTranspose": [
        ([IMAGE, (F, (4, 3, 3, 2)), (F, (6,))], {**WINDOW, "group": 2, "output_padding": (1, 0)})
    ],
    "Gemm": [
        ([X, (F, (4, 3)), (F, (4,))], {"transB": 1, "alpha": 0.5, "beta": 2.0}),
        ([X, (F, (2, 4))], {"transA": 1}),
    ],
    "MatMul": [([(F, (2, 3, 4)), (F, (4, 5))], {})],
    "MaxPool": [([IMAGE], {**WINDOW, "kernel_shape": (3, 2), "ceil_mode": 1})],
    "AveragePool": [
        ([IMAGE], {**WINDOW, "kernel_shape": (3, 2), "ceil_mode": 0, "count_include_pad": 1}),
        ([IMAGE], {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0,) * 4,
                   "dilations": (1, 1), "ceil_mode": 1}),
    ],
    "GlobalAveragePool": [([IMAGE], {})],
    "GlobalMaxPool": [([IMAGE], {})],
    "BatchNormalization": [([IMAGE, *[(F, (4,))] * 4], {"epsilon": number(1e-3)})],
    "LayerNormalization": [
        ([IMAGE, (F, (6,)), (F, (6,))], {"axis": 3, "epsilon": number(1e-4)})
    ],
    "InstanceNormalization": [([IMAGE, (F, (4,)), (F, (4,))], {})],
    "GroupNormalization": [([IMAGE, (F, (4,)), (F, (4,))], {"num_groups": 2})],
    "RMSNormalization": [([IMAGE, (F, (5, 6))], {"axis": 2, "epsilon": number(1e-4)})],
    **{
        f"Reduce{kind}": [([IMAGE], {"axes": (1, 3), "keepdims": 0}), ([IMAGE], {"axes": (2,)})]
        for kind in REDUCTIONS
    },
    **every(
        ("ArgMax", "ArgMin"), [([IMAGE], {"axis": 2, "keepdims": 0, "select_last_index": 1})]
    ),
    **every(("Softmax", "LogSoftmax", "Hardmax"), [([IMAGE], {"axis": 1})]),
    "Reshape": [([IMAGE], {"shape": (2, 60)}), ([(F, (0, 3))], {"shape": (3, 0)})],
    "Flatten": [([IMAGE], {"axis": 2})],
    "Transpose": [([IMAGE], {"perm": (0, 2, 3, 1)})],
    "Squeeze": [([IMAGE], {"axes": (0,)})],
    "Unsqueeze": [([IMAGE], {"axes": (0, 3)})],
    "Concat": [([X, (F, (2, 1))], {"axis": 1})],
    "Split": [([IMAGE], {"axis": 1, "sizes": (1, 3)})],
    "Slice": [([IMAGE], {"starts": (1, -1), "ends": (3, -7), "steps": (1, -2), "axes": (1, 3)})],
    "Pad": [
        ([IMAGE], {"pads": (0, 0, 1, 2, 0, 0, 0, 1), "value": 0.5}),
        ([IMAGE], {"pads": (0, 0, 1, 2, 0, 0, 0, 1), "mode": "reflect"}),
    ],
    "Expand": [([(F, (3, 1))], {"shape": (2, 3, 4)})],
    "Tile": [([X], {"repeats": (2, 3)})],
    "Gather": [([IMAGE, np.array([2, 0], np.int64)], {"axis": 1})],
    "Resize": [
        ([IMAGE], {"sizes": (1, 4, 10, 12), "coordinate_transformation_mode": "asymmetric",
                   "nearest_mode": "floor"}),
        ([IMAGE], {"sizes": (1, 4, 7, 3), "scales": (1.0, 1.0, 1.5, 0.5)}),
    ],
    "Interpolate": [
        ([IMAGE], {"sizes": (1, 4, 10, 12), "coordinate_transformation_mode": "align_corners"}),
        ([IMAGE], {"sizes": (1, 4, 7, 3), "scales": (1.0, 1.0, 1.5, 0.5), "mode": "cubic",
                   "cubic_coeff_a": -0.5, "exclude_outside": 1, "antialias": 1}),
        ([IMAGE], {"sizes": (1, 4, 7, 3), "roi": (0.0, 0.0, 0.25, 0.0, 1.0, 1.0, 0.75, 1.0),
                   "coordinate_transformation_mode": "tf_crop_and_resize"}),
    ],
    "RoundDynamic": [([X], {})],
    "DepthToSpace": [([IMAGE], {"blocksize": 2, "mode": "CRD"})],
    "SpaceToDepth": [([(F, (1, 2, 4, 6))], {"blocksize": 2})],
    "QuantizeLinear": [
        ([X, np.float32(0.5), np.int8(3)], {}),
        ([X, np.array([0.5, 0.25, 1], F), np.array([3, 0, 1], np.uint16)], {"axis": 1}),
        ([X, np.float32(0.5), np.int8(3)], {"low": -7, "high": 7}),
        ([X, np.float32(0.5), np.uint8(3)], {"low": 0, "high": 14}),
        ([X, np.float32(0.5), np.int16(3)], {"low": -2047, "high": 2047}),
        ([X, np.float32(0.5), np.uint16(3)], {"low": 0, "high": 4095}),
    ],
    "DequantizeLinear": [
        ([(I8, (2, 3)), np.float32(0.5), np.int8(3)], {}),
        ([("int16", (2, 3)), np.array([0.5, 0.25, 1], F), np.zeros(3, np.int16)], {"axis": 1}),
    ],
    "DynamicQuantizeLinear": [([X], {})],
    "ConvInteger": [
        ([("uint8", (1, 4, 5, 6)), (I8, (6, 2, 3, 2)), np.uint8(3), np.int8(1)],
         {**WINDOW, "group": 2})
    ],
    **every(
        ("BitwiseAnd", "BitwiseOr", "BitwiseXor"), [([("int32", (2, 3)), ("int32", (3,))], {})]
    ),
    "BitwiseNot": [([("int32", (2, 3))], {})],
    "BitShift": [([("uint8", (2, 3)), np.array([1, 2, 3], np.uint8)], {"direction": "RIGHT"})],
    **every(("IsNaN", "IsInf"), [([X], {})]),
    "CumSum": [([X], {"axis": 1, "exclusive": 1, "reverse": 1})],
    "GatherElements": [([X, np.array([[1], [0]], np.int64)], {"axis": 1})],
    "GatherND": [([X, np.array([[1], [0]], np.int64)], {})],
    "ScatterElements": [([X, np.array([[1], [0]], np.int64), (F, (2, 1))], {"axis": 1})],
    "ScatterND": [([X, np.array([[1], [0]], np.int64), X], {})],
    "TensorScatter": [
        ([(F, (2, 4, 3)), (F, (2, 1, 3)), np.array([3, 0], np.int64)], {"axis": 1}),
        ([(F, (2, 4, 3)), (F, (2, 2, 3)), np.array([3, 0], np.int64)],
         {"axis": 1, "mode": "circular"}),
    ],
    "TopK": [([X], {"k": 2, "axis": 1})],
    "LSTM": [
        ([(F, (5, 2, 3)), (F, (1, 16, 3)), (F, (1, 16, 4)), (F, (1, 32))],
         {"hidden_size": 4, "clip": 0.5, "input_forget": 1}),
        ([(F, (5, 2, 3)), (F, (2, 16, 3)), (F, (2, 16, 4)), (F, (2, 32)), np.array([3, 5], "int32"),
          (F, (2, 2, 4)), (F, (2, 2, 4)), (F, (2, 12))],
         {"hidden_size": 4, "direction": "bidirectional",
          "activations": ("HardSigmoid", "Elu", "Tanh", "Sigmoid", "LeakyRelu", "Affine"),
          "activation_alpha": (0.25, 0.5, None, None, 0.125, 2.0),
          "activation_beta": (0.5, None, None, None, None, 0.25)}),
    ],
    "GRU": [
        ([(F, (5, 2, 3)), (F, (1, 12, 3)), (F, (1, 12, 4)), (F, (1, 24))],
         {"hidden_size": 4, "linear_before_reset": 1, "direction": "reverse"}),
    ],
    "RNN": [([(F, (5, 2, 3)), (F, (1, 4, 3)), (F, (1, 4, 4))], {"hidden_size": 4})],
    "Det": [([(F, (3, 3))], {})],
    "Einsum": [([X, X], {"equation": "ij,kj->ik"})],
    "MatMulInteger": [([("uint8", (2, 3)), (I8, (3, 4)), np.uint8(3), np.int8(1)], {})],
}  # fmt: skip
VARIANTS = [(op, i) for op, variants in CASES.items() for i in range(len(variants))]


def one_node(op, inputs, attributes):
    build = GraphBuilder(op)
    names = [
        build.input(f"x{i}", *spec) if isinstance(spec, tuple)
        else build.constant(f"c{i}", np.asarray(spec))
        for i, spec in enumerate(inputs)
    ]  # fmt: skip
    return build.build(build.add_all(op, names, attributes, "the node"))


def samples(graph, seed=0):
    rng = np.random.default_rng(seed)
    arrays = []
    for name in graph.inputs:
        value = graph.values[name]
        if value.dtype.startswith("float"):
            array = rng.uniform(0.1, 0.9, value.shape)  # where every function is defined
        elif value.dtype == "bool":
            array = rng.integers(0, 2, value.shape)
        else:
            array = rng.integers(0, 100, value.shape)
        arrays.append(array.astype(value.dtype))
    return arrays
