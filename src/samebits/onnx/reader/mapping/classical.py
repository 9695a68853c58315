"""Operators of ai.onnx.ml but trees: scalers, linear models, labels. docs/spec/graph.md 2.3.

A label is the index of its class: numbers and texts that classes are called by have no codes. Where
they are others than 0, 1, 2, ..., a note says which index stands for which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import NodeProto

from samebits import progress
from samebits.errors import InputError, UnsupportedError
from samebits.ir import Node, Trait, has
from samebits.onnx.reader.builder import FoldingBuilder
from samebits.onnx.reader.node import CLASSICAL, OnnxNode, Result, onnx_op

SHOWN = 32  # labels in a note
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX")  # that have an integer form


def reads_labels(node: NodeProto) -> bool:
    """Whether the node may read texts: it picks the label of an index."""
    return (node.domain, node.op_type) == (CLASSICAL, "ArrayFeatureExtractor")


def note_labels(where: str, labels: Sequence[Any]) -> None:
    """Say which class an index stands for, unless it is the number itself."""
    if list(labels) == list(range(len(labels))):
        return
    listed = ", ".join(f"{i} for {label!r:.40}" for i, label in enumerate(labels[:SHOWN]))
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    progress.note(f"{where}: a label is the index of its class, {listed}{more}")


def class_labels(node: OnnxNode, integers: str) -> int:
    """The number of classes of a classifier, its labels said where they need be."""
    labels: Sequence[Any] = node.strings("classlabels_strings") or node.ints(integers) or ()
    if not labels:
        raise InputError("expected the labels of classes, found none")
    note_labels(node.where, labels)
    return len(labels)


def label_of(node: OnnxNode, scores: str) -> str:
    """The index of the greatest score of each row, [N]."""
    return node.emit("ArgMax", scores, axis=1, keepdims=0)


def transformed(node: OnnxNode, scores: str) -> str:
    """The scores after `post_transform`."""
    kind = node.string("post_transform", "NONE", TRANSFORMS)
    if kind == "LOGISTIC":
        return node.emit("Sigmoid", scores)
    return node.emit("Softmax", scores, axis=1) if kind == "SOFTMAX" else scores


def features_of(node: OnnxNode) -> tuple[str, int]:
    """The input as binary32 rows of features, and their number."""
    x = node.cast(node.input(0), "float32")
    if node.rank() == 1:
        x = node.emit("Reshape", x, shape=(1, *node.shape()))
    if len(node.shape_of(x)) != 2:
        raise InputError(f"expected rows of features [N, F], found {list(node.shape())}")
    return x, node.shape_of(x)[1]


def _row(node: OnnxNode, name: str, count: int, default: float) -> Any:
    """An attribute of one number or one for each feature, in binary32."""
    numbers = node.floats(name) or (default,)
    if len(numbers) not in (1, count):
        raise InputError(f"expected 1 or {count} numbers of {name}, found {len(numbers)}")
    return np.array(numbers if len(numbers) > 1 else numbers[0], np.float32)


@onnx_op("Scaler", domain=CLASSICAL)
def _scaler(node: OnnxNode) -> Result:
    """(x - offset) * scale, features along the last axis."""
    x, count = node.cast(node.input(0), "float32"), node.shape()[-1] if node.rank() else 1
    offset, scale = _row(node, "offset", count, 0.0), _row(node, "scale", count, 1.0)
    if offset.any():
        x = node.emit("Sub", x, node.constant(offset))
    return node.out("Mul", x, node.constant(scale))


def _linear(node: OnnxNode, targets: int | None, classes: int = 0) -> str:
    """x * coefficients^T + intercepts; targets: rows of coefficients, None: as many as fit. One row
    for two classes is that of the second; the first has its negation."""
    x, count = features_of(node)
    weights = np.array(node.floats("coefficients") or (), np.float32)
    rows = targets or (weights.size // count if count else 0)
    if not rows or weights.size != rows * count:
        raise InputError(f"expected coefficients of {count} features, found {weights.size}")
    bias = np.array(node.floats("intercepts") or (0.0,) * rows, np.float32)
    if bias.size != rows:
        raise InputError(f"expected {rows} intercepts, found {bias.size}")
    weights = weights.reshape(rows, count)
    if (rows, classes) == (1, 2):
        weights, bias = np.concatenate([-weights, weights]), np.concatenate([-bias, bias])
    return node.emit("Gemm", x, node.constant(weights), node.constant(bias), transB=1)


@onnx_op("LinearRegressor", domain=CLASSICAL)
def _linear_regressor(node: OnnxNode) -> Result:
    targets = node.int_("targets", 1)
    if targets < 1:
        raise InputError(f"expected at least 1 target, found {targets}")
    return transformed(node, _linear(node, targets))


@onnx_op("LinearClassifier", domain=CLASSICAL)
def _linear_classifier(node: OnnxNode) -> Result:
    """The label and the scores."""
    node.ignore("multi_class")  # how the coefficients came about
    count = class_labels(node, "classlabels_ints")
    scores = _linear(node, None, count)
    if node.shape_of(scores)[1] != count:
        raise InputError(
            f"expected coefficients of {count} classes, found {node.shape_of(scores)[1]} rows"
        )
    return [label_of(node, scores), transformed(node, scores)]


@onnx_op("Normalizer", domain=CLASSICAL)
def _normalizer(node: OnnxNode) -> Result:
    """Rows over the sum of magnitudes, their norm or their maximum. What a Softmax gives has the
    sum 1 exactly, and is left as it is."""
    norm = node.string("norm", "MAX", ("L1", "L2", "MAX"))
    x = node.input(0)
    axis = node.rank() - 1
    for before in node.builder.nodes:
        along = before.attributes.get("axis", 0) % max(node.rank(), 1) == axis
        if norm == "L1" and x in before.outputs and before.op == "Softmax" and along:
            return x
    reduce: dict[str, str] = {"L1": "ReduceL1", "L2": "ReduceL2", "MAX": "ReduceMax"}
    x = node.cast(x, "float32")
    divisor = node.emit(reduce[norm], x, axes=(axis,), keepdims=1)
    zero, one = (node.number(v, np.float32) for v in (0, 1))
    divisor = node.emit("Where", node.emit("Equal", divisor, zero), one, divisor)
    return node.out("Div", x, divisor)


@onnx_op("ZipMap", domain=CLASSICAL)
def _zip_map(node: OnnxNode) -> Result:
    """The scores as they are: column by column what a map would hold by class."""
    labels: Sequence[Any] = node.strings("classlabels_strings")
    note_labels(node.where, labels or node.ints("classlabels_int64s") or ())
    return node.input(0)


@onnx_op("ArrayFeatureExtractor", domain=CLASSICAL)
def _extractor(node: OnnxNode) -> Result:
    """Columns of data by constant indices, or a constant row of data by computed ones. Integers
    that differ, looked up by an ArgMax, are labels: their index, if `look_up_numbers` leaves it."""
    if node.is_constant(0) and not node.is_constant(1):
        row = node.array(0, "the labels")
        if row.ndim > 1 and row.size != row.shape[-1]:
            raise UnsupportedError(f"expected one row of labels, found {list(row.shape)}")
        index = node.emit("Reshape", node.input(1), shape=(1, int(np.prod(node.shape(1)))))
        data = node.constant(row.reshape(-1))
        labels = row.dtype.kind in "iu" and len(np.unique(row)) == row.size
        if not labels or _classes(node.builder, index) != row.size:
            return node.out("Gather", data, index, axis=0)
        found = node.emit("Identity", index)
        node.builder.labels[found] = node.where, data
        return found
    indices, axis = node.array(1, "the columns").reshape(-1).astype(np.int64), node.rank() - 1
    if not node.rank():
        raise InputError("expected data with columns, found one number")
    return node.out("Gather", node.input(0), node.constant(indices), axis=axis)


def _moves(node: Node) -> bool:
    """Whether a node leaves integers what they are, but for their places and their type."""
    alone = len(node.inputs) == 1 and has(node.op, Trait.MOVEMENT)
    return alone or (node.op == "Cast" and node.attributes["to"] != "bool")


def _classes(builder: FoldingBuilder, index: str) -> int:
    """The number of classes among which an ArgMax has found an index; 0 where none has."""
    for node in reversed(builder.nodes):
        if index in node.outputs and node.op == "ArgMax":
            return int(builder.values[node.inputs[0]].shape[node.attributes["axis"]])
        if index in node.outputs and not _moves(node):
            return 0
        index = node.inputs[0] if index in node.outputs else index
    return 0


def look_up_numbers(builder: FoldingBuilder) -> None:
    """Say which class the index stands for of each label that only moves, to an output; put the
    number itself where something computes with it."""
    computing: dict[str, str] = {}  # value -> operator that computes with it, or with what it moves
    for node in reversed(builder.nodes):
        following = next((computing[name] for name in node.outputs if name in computing), "")
        for name in node.inputs:
            if not _moves(node) or following:
                computing[name] = following if _moves(node) else node.op
    for place, node in enumerate(builder.nodes):
        where, data = builder.labels.get(node.output, ("", ""))
        if data and node.output not in computing:
            note_labels(where, builder.constants[data].tolist())
        elif data and builder.constants[data].dtype == np.int64:
            builder.nodes[place] = replace(
                node, op="Gather", inputs=(data, *node.inputs), attributes={"axis": 0}
            )
        elif data:
            raise UnsupportedError(
                f"{where}: expected labels of int64 where {computing[node.output]} computes with "
                f"them, found {builder.constants[data].dtype}; convert them"
            )
