"""ONNX models that use much of what the reader knows, as seeds; and fields of a model changed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from onnx import TensorProto, helper, numpy_helper

from fuzzing.mutations import NUMBERS, REALS, TEXTS
from onnx_trees import ML, random_lists


def i64(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def f32(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: list[str],
    constants: dict[str, np.ndarray[Any, Any]],
    opset: int = 17,
    functions: tuple[onnx.FunctionProto, ...] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "fuzz",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid(d, v) for d, v in (("", opset), ("com.microsoft", 1), ("f", 1))]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=9)


def few_bits() -> onnx.ModelProto:
    """Quantizers of QONNX, a clip of codes, packed weights in blocks."""
    node, qonnx = helper.make_node, "qonnx.custom_op.general"
    constants = {
        **{n: f32(v) for n, v in {"s": 0.25, "zero": 0, "four": 4, "eight": 8}.items()},
        **{n: np.int8(v) for n, v in {"zc": 0, "low": -7, "high": 7}.items()},
        "ws": f32([0.5, 0.25, 0.125]).reshape(3, 1),
        "packed": np.arange(24, dtype=np.uint8).reshape(3, 1, 8),
    }
    numbers = {"signed": 1, "narrow": 1, "rounding_mode": "ROUND", "domain": qonnx}
    nodes = [
        node("Quant", ["x", "s", "zero", "four"], ["q"], **numbers),
        node("BipolarQuant", ["q", "s"], ["b"], domain=qonnx),
        node("Trunc", ["q", "s", "zero", "eight", "four"], ["t"], domain=qonnx),
        node("Add", ["b", "t"], ["a"]),
        node("QuantizeLinear", ["a", "s", "zc"], ["c"]),
        node("Clip", ["c", "low", "high"], ["d"]),
        node("DequantizeLinear", ["d", "s", "zc"], ["e"]),
        node("MatMulNBits", ["e", "packed", "ws"], ["y"], domain="com.microsoft", K=16, N=3,
             bits=4, block_size=16),
        node("DequantizeLinear", ["n", "ns"], ["m"], axis=0, block_size=2),
        node("Add", ["m", "y"], ["z"]),
    ]  # fmt: skip
    made = model(nodes, {"x": (TensorProto.FLOAT, ["N", 16])}, ["z"], constants, 21)
    made.graph.initializer.extend(
        [
            helper.make_tensor("n", TensorProto.INT4, [3, 3], [-8, 7, 1, 2, 3, -4, 5, 6, 0]),
            numpy_helper.from_array(f32([[1, 2, 3], [4, 5, 6]]).reshape(2, 3), "ns"),
        ]
    )
    made.opset_import.append(helper.make_opsetid(qonnx, 1))
    return made


def classical() -> onnx.ModelProto:
    """A scaler, trees with a label, a linear model, labels that are texts."""
    node, lists = helper.make_node, random_lists(np.random.default_rng(1), 3, 2, prefix="class")
    labels: dict[str, Any] = {"classlabels_strings": ["a", "b"]}
    nodes = [
        node("Scaler", ["x"], ["s"], domain=ML, offset=[0.5, 0.0, 1.0], scale=[2.0]),
        node("TreeEnsembleClassifier", ["s"], ["k", "p"], domain=ML, **lists, **labels),
        node("ZipMap", ["p"], ["z"], domain=ML, **labels),
        node("LinearClassifier", ["s"], ["l", "c"], domain=ML, coefficients=[0.5] * 3,
             intercepts=[1.0], post_transform="LOGISTIC", **labels),
        node("Normalizer", ["c"], ["n"], domain=ML, norm="L2"),
        node("ArrayFeatureExtractor", ["names", "l"], ["y"], domain=ML),
    ]  # fmt: skip
    texts = helper.make_tensor("names", TensorProto.STRING, [2], [b"a", b"b"])
    made = model(nodes, {"x": (TensorProto.FLOAT, ["N", 3])}, ["z", "n", "y"], {})
    made.graph.initializer.append(texts)
    made.opset_import.append(helper.make_opsetid(ML, 3))
    return made


def trees() -> onnx.ModelProto:
    """The ensemble of version 5."""
    tensors = {
        "nodes_modes": np.array([0, 4], np.uint8),
        "nodes_splits": f32(1, 0),
        "leaf_weights": f32(2, -1),
    }
    attributes = {key: numpy_helper.from_array(array) for key, array in tensors.items()}
    node = helper.make_node(
        "TreeEnsemble", ["x"], ["y"], domain=ML, n_targets=2, nodes_featureids=[0, 1],
        nodes_truenodeids=[0, 1], nodes_trueleafs=[1, 1], nodes_falsenodeids=[1, 0],
        nodes_falseleafs=[0, 1], leaf_targetids=[0, 1], tree_roots=[0], **attributes,
    )  # fmt: skip
    made = model([node], {"x": (TensorProto.FLOAT, [1, 2])}, ["y"], {})
    made.opset_import.append(helper.make_opsetid(ML, 5))
    return made


def convolutional() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        node("Conv", ["xd", "wd", "b"], ["c"], auto_pad="SAME_UPPER", kernel_shape=[3, 3]),
        node("BatchNormalization", ["c", "one", "zero", "zero", "one"], ["n"]),
        node("Clip", ["n", "low", "high"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("ConvTranspose", ["p", "t"], ["u"], strides=[2, 2]),
        node("Shape", ["p"], ["ps"]),
        node("Gather", ["ps", "at"], ["batch"]),
        node("Concat", ["batch", "rest"], ["shape"], axis=0),
        node("Reshape", ["p", "shape"], ["flat"]),
        node("Gemm", ["flat", "g"], ["y"], transB=1),
        node("ReduceMean", ["u"], ["m"], axes=[2, 3]),
    ]
    constants = {
        "s": np.array(0.05, np.float32),
        "z": np.array(3, np.uint8),
        "w": np.arange(36, dtype=np.int8).reshape(4, 1, 3, 3),
        "ws": f32(0.1, 0.2, 0.3, 0.4),
        "wz": np.zeros(4, np.int8),
        "b": f32(1, 2, 3, 4),
        "one": f32(1, 1, 1, 1),
        "zero": f32(0, 0, 0, 0),
        "low": np.array(0, np.float32),
        "high": np.array(6, np.float32),
        "t": np.ones((4, 2, 2, 2), np.float32),
        "at": i64(0),
        "rest": i64(-1),
        "g": np.ones((3, 16), np.float32),
    }
    return model(nodes, {"x": (1, ["N", 1, 4, 4])}, ["y", "m"], constants)


def quantized() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("QLinearConv", ["x", "s", "z", "w", "s", "z", "s", "z", "bias"], ["c"], pads=[1] * 4),
        node("QLinearMatMul", ["c", "s", "z", "c", "s", "z", "s", "z"], ["m"]),
        node("QLinearAdd", ["m", "s", "z", "m", "s", "z", "s", "z"], ["a"], domain="com.microsoft"),
        node("QLinearSoftmax", ["a", "s", "z", "s", "z"], ["o"], axis=-1, domain="com.microsoft"),
        node("ConvInteger", ["x", "w", "z", "z"], ["i"]),
        node("MatMulInteger", ["x", "x"], ["j"]),
        node("DequantizeLinear", ["o", "s", "z"], ["f"]),
        node("DynamicQuantizeLinear", ["f"], ["d", "ds", "dz"]),
        node("DequantizeLinear", ["d", "ds", "dz"], ["y"]),
    ]
    constants = {
        "s": f32(0.5),
        "z": np.array(128, np.uint8),
        "w": np.ones((1, 1, 3, 3), np.uint8),
        "bias": np.array([5], np.int32),
    }
    return model(nodes, {"x": (2, [1, 1, 4, 4])}, ["y", "i", "j"], constants)


def shaping() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("Resize", ["x", "", "scales"], ["r"], mode="linear"),
        node("Resize", ["x", "", "", "sizes"], ["n"], nearest_mode="floor"),
        node("Pad", ["r", "pads", "value"], ["p"], mode="constant"),
        node("Slice", ["p", "starts", "ends", "axes", "steps"], ["s"]),
        node("Transpose", ["s"], ["t"], perm=[0, 2, 1]),
        node("TopK", ["t", "k"], ["v", "i"], axis=1),
        node("Expand", ["value", "big"], ["e"]),
        node("ConstantOfShape", ["big"], ["c"]),
        node("Range", ["zero", "limit", "delta"], ["range"]),
        node("OneHot", ["range", "limit", "two"], ["h"]),
        node("Einsum", ["x", "x"], ["q"], equation="bij,bkj->bik"),
        node("Trilu", ["q"], ["l"]),
        node("Tile", ["l", "repeats"], ["tile"]),
        node("Split", ["tile"], ["a", "b"], axis=0),
        node("Unsqueeze", ["a", "at"], ["w"]),
        node("LRN", ["w"], ["lrn"], size=3),
        node("Softmax", ["lrn"], ["y"], axis=1),
        node("CumSum", ["x", "zero"], ["run"]),
        node("ScatterND", ["e", "where", "update"], ["sc"]),
        node("Upsample", ["x", "scales"], ["up"]),
    ]
    constants = {
        "scales": f32(1, 2, 2),
        "sizes": i64(1, 5, 7),
        "pads": i64(0, 1, 0, 0, 1, 0),
        "value": np.array(0.5, np.float32),
        "starts": i64(1, -1),
        "ends": i64(2**31, -100),
        "axes": i64(1, 2),
        "steps": i64(2, -1),
        "k": i64(2),
        "big": i64(2, 3),
        "zero": np.array(0, np.int64),
        "limit": np.array(5, np.int64),
        "delta": np.array(1, np.int64),
        "two": f32(0, 1),
        "repeats": i64(2, 1, 1),
        "at": i64(1),
        "where": i64(1, 2).reshape(1, 2),
        "update": f32(4),
    }
    outputs = ["y", "n", "i", "c", "h", "b", "run", "sc", "v"]
    return model(nodes, {"x": (1, [1, 3, 4])}, outputs, constants)


def nested() -> onnx.ModelProto:
    node = helper.make_node
    branch = helper.make_graph(
        [node("Mul", ["x", "x"], ["square"])],
        "then",
        [],
        [helper.make_tensor_value_info("square", 1, None)],
    )
    scaled = node("LeakyRelu", ["a"], ["c"])
    scaled.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    imports = [helper.make_opsetid("", 24), helper.make_opsetid("f", 1)]
    inner = helper.make_function("f", "inner", ["a"], ["c"], [scaled], imports, ["slope"])
    calls = [
        node("inner", ["a"], ["b"], domain="f", slope=0.5),
        node("Add", ["a", "b"], ["c"]),
    ]
    outer = helper.make_function("f", "outer", ["a"], ["c"], calls, imports)
    nodes = [
        node("If", ["yes"], ["i"], then_branch=branch, else_branch=branch),
        node("outer", ["i"], ["o"], domain="f"),
        node("Attention", ["o", "o", "o"], ["at"], is_causal=1),
        node("GroupNormalization", ["at", "g", "g"], ["n"], num_groups=2),
        node("RMSNormalization", ["n", "g4"], ["y"]),
        node("Loop", ["", "yes", "x"], ["never"], body=branch),
    ]
    constants = {"yes": np.array(True), "g": f32(1, 2), "g4": f32(1, 2, 3, 4)}
    functions = (outer, inner)
    return model(nodes, {"x": (1, [1, 2, 3, 4])}, ["y"], constants, 24, functions)


# --- mutations --------------------------------------------------------------------------------


def messages(message: Any) -> list[Any]:
    """The message and all inside it."""
    found = [message]
    for descriptor, value in message.ListFields():
        if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            children = value if descriptor.is_repeated else [value]
            for child in children:
                found += messages(child)
    return found


def scalar(descriptor: Any, rng: random.Random) -> Any:
    kind = descriptor.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        text = rng.choice(TEXTS).replace("\ud800", "?")
        return text.encode() if descriptor.type == FieldDescriptor.TYPE_BYTES else text
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice(REALS)
    bits = 32 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_ENUM) else 64
    number = rng.choice(NUMBERS)
    low, high = (0, 2**64 - 1) if kind == FieldDescriptor.CPPTYPE_UINT64 else (-(2**63), 2**63 - 1)
    if bits == 32:
        low, high = -(2**31), 2**31 - 1
    return min(max(number, low), high)


def edit(message: Any, rng: random.Random) -> None:
    """Change one field somewhere."""
    target = rng.choice(messages(message))
    descriptor = rng.choice(list(target.DESCRIPTOR.fields))
    value = getattr(target, descriptor.name)
    if descriptor.is_repeated:
        choice = rng.randrange(3)
        if choice == 0 and len(value):
            del value[rng.randrange(len(value))]
        elif choice == 1 and len(value) > 1:
            order = list(value)
            rng.shuffle(order)
            del value[:]
            value.extend(order)
        elif descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            copied = value.add()
            if len(value) > 1:
                copied.CopyFrom(rng.choice(value[:-1]))
        elif len(value) and rng.random() < 0.7:
            value[rng.randrange(len(value))] = scalar(descriptor, rng)
        else:
            value.append(scalar(descriptor, rng))
    elif descriptor.type == FieldDescriptor.TYPE_MESSAGE:
        if target.HasField(descriptor.name):
            target.ClearField(descriptor.name)
        else:
            value.SetInParent()
    elif descriptor.type == FieldDescriptor.TYPE_ENUM:
        setattr(target, descriptor.name, rng.choice(descriptor.enum_type.values).number)
    else:
        setattr(target, descriptor.name, scalar(descriptor, rng))


def fields(data: bytes, rng: random.Random) -> bytes:
    """A model with a few fields changed."""
    message = onnx.ModelProto()
    message.ParseFromString(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        edit(message, rng)
    return bytes(message.SerializeToString())
