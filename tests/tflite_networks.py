"""Networks of the shapes of MLPerf Tiny's five, with random weights, softmax included."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from samebits.tflite.file import LiteOperator, Subgraph
from samebits.tflite.schema import SAME, VALID
from tflite_files import Net


class Scaled(Net):
    """A network whose weights have scales by which results use most of their codes."""

    def add(self, op: str, inputs: Any, outputs: Any, **more: Any) -> int:
        if op in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
            x, w, b = inputs
            weights, of, to = (self.tensors[i].quantization for i in (w, x, outputs))
            shape = self.tensors[w].shape
            taps = prod(shape[1:3]) if op.startswith("DEPTH") else prod(shape[1:])
            unit = 40 * to.scales[0] / (of.scales[0] * 60 * 73 * taps**0.5)
            scales = unit * self.rng.uniform(0.5, 1.5, len(weights.scales))
            found = replace(weights, scales=tuple(scales.astype(np.float32).tolist()))
            self.tensors[w] = replace(self.tensors[w], quantization=found)
            units = (scales * of.scales[0]).astype(np.float32).tolist()
            found = replace(self.tensors[b].quantization, scales=tuple(units))
            self.tensors[b] = replace(self.tensors[b], quantization=found)
        return super().add(op, inputs, outputs, **more)


class Converted(Scaled):
    """The same as a converter writes it: what a RELU gives takes all codes from the least on."""

    def add(self, op: str, inputs: Any, outputs: Any, **more: Any) -> int:
        if more.get("activation") in ("RELU", "RELU6"):
            found = self.tensors[outputs].quantization
            unit = 6 / 255 if more["activation"] == "RELU6" else found.scales[0]
            made = replace(found, scales=(float(np.float32(unit)),), zero_points=(-128,))
            self.tensors[outputs] = replace(self.tensors[outputs], quantization=made)
        return super().add(op, inputs, outputs, **more)


def anomaly_detection(kind: type[Scaled] = Scaled) -> tuple[Net, int]:
    """Ten dense layers."""
    net = kind(11)
    y = net.input(1, 640)
    for count in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        y = net.dense(y, count, activation="RELU")
    return net, net.dense(y, 640)


def keyword_spotting(kind: type[Scaled] = Scaled) -> tuple[Net, int]:
    """Depthwise separable convolutions over 49 x 10 features, 12 classes."""
    net = kind(12)
    y = net.conv(net.input(1, 49, 10, 1), 64, (10, 4), 2, activation="RELU")
    for _ in range(4):
        y = net.depthwise(y, activation="RELU")
        y = net.conv(y, 64, (1, 1), activation="RELU")
    y = net.pool("AVERAGE_POOL_2D", y, (25, 5))
    return net, net.softmax(net.dense(net.reshape(y, 1, 64), 12))


def image_classification(kind: type[Scaled] = Scaled) -> tuple[Net, int]:
    """A residual network over 32 x 32 x 3, 10 classes."""
    net = kind(13)
    y = net.conv(net.input(1, 32, 32, 3), 16, activation="RELU")
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        inner = net.conv(y, channels, stride=stride, activation="RELU")
        inner = net.conv(inner, channels)
        side = net.conv(y, channels, (1, 1), stride) if stride > 1 else y
        total = net.activation(net.tensors[inner].shape)
        y = net.add("ADD", [side, inner], total, activation="RELU")
    y = net.pool("AVERAGE_POOL_2D", y, (8, 8))
    return net, net.softmax(net.dense(net.reshape(y, 1, 64), 10))


def visual_wake_words(kind: type[Scaled] = Scaled) -> tuple[Net, int]:
    """A quarter of a MobileNet over 96 x 96 x 3, two classes."""
    net = kind(14)
    y = net.conv(net.input(1, 96, 96, 3), 8, stride=2, activation="RELU6")
    for channels, stride in (
        *((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (128, 1)),
        *((128, 1), (128, 1), (128, 1), (256, 2), (256, 1)),
    ):
        y = net.depthwise(y, stride=stride, activation="RELU6")
        y = net.conv(y, channels, (1, 1), activation="RELU6")
    y = net.pool("AVERAGE_POOL_2D", y, (3, 3))
    return net, net.softmax(net.dense(net.reshape(y, 1, 256), 2))


def streaming_wake_word(kind: type[Scaled] = Scaled) -> tuple[Net, int]:
    """Separable convolutions along time over 32 x 40 features, three classes."""
    net = kind(15)
    y = net.input(1, 1, 32, 40)
    for channels, stride in ((128, 1), (128, 2), (128, 1), (32, 1)):
        y = net.depthwise(y, activation="RELU", stride=1)
        y = net.conv(y, channels, (1, 1), stride=stride, padding=VALID, activation="RELU")
    y = net.conv(y, 32, (1, 3), padding=SAME)
    mean = net.add("MEAN", [y, net.integers((1, 2))], net.activation((1, 32)))
    return net, net.softmax(net.dense(mean, 3))


NETWORKS = {
    "AD": anomaly_detection,
    "IC": image_classification,
    "KWS": keyword_spotting,
    "SWW": streaming_wake_word,
    "VWW": visual_wake_words,
}


# --- a loop ------------------------------------------------------------------------------------

TURNS = 4


def _net(seed: int, dtype: str) -> Net:
    return Net(seed, dtype) if dtype == "float32" else Scaled(seed, dtype)


def looping_net(dtype: str = "int8", turns: int = TURNS, step: int = 1) -> tuple[Net, int]:
    """h = leaky(dense(x[t]) + h), t from 0 on; the last h through a dense layer."""
    net = _net(3, dtype)
    x = net.input(TURNS, 1, 6)
    h = net.activation((1, 5))
    first = net.tensors[h]
    start = net.tensor(first.shape, array=np.full((1, 5), 3, first.dtype),
                       quantization=first.quantization)  # fmt: skip
    zero = net.tensor((), "int32", array=np.array(0, np.int32))
    ends = [net.tensor((), "int32"), h, net.activation((TURNS, 1, 6), x)]
    loop = {"cond_subgraph_index": 1, "body_subgraph_index": 2}
    net.operators.append(LiteOperator("WHILE", (zero, start, x), tuple(ends), loop))
    y = net.dense(h, 2)
    net.others += [_condition(net, turns), _body(net, x, h, step)]
    return net, y


def _inside(net: Net, *like: int) -> tuple[Net, list[int]]:
    """A subgraph's tensors, and its variables."""
    inner = _net(4, net.dtype)
    variables = [inner.tensor((), "int32")]
    for number in like:
        of = net.tensors[number]
        variables.append(inner.tensor(of.shape, quantization=of.quantization))
    return inner, variables


def _condition(net: Net, turns: int) -> Subgraph:
    inner, variables = _inside(net, net.operators[0].outputs[1], net.inputs[0])
    most = inner.tensor((), "int32", array=np.array(turns, np.int32))
    more = inner.tensor((), "bool")
    less = LiteOperator("LESS", (variables[0], most), (more,))
    return Subgraph(tuple(inner.tensors), (less,), tuple(variables), (more,), "cond")


def _body(net: Net, x: int, h: int, step: int) -> Subgraph:
    inner, (t, past, all_) = _inside(net, h, x)
    one = inner.tensor((), "int32", array=np.array(step, np.int32))
    following = inner.add("ADD", [t, one], inner.tensor((), "int32"))
    own = inner.tensors[all_].quantization
    now = inner.add("GATHER", [all_, t], inner.tensor((1, 6), quantization=own), axis=0)
    total = inner.add("ADD", [inner.dense(now, 5), past], inner.activation((1, 5)))
    last = net.tensors[h].quantization
    y = inner.add("LEAKY_RELU", [total], inner.tensor((1, 5), quantization=last), alpha=0.5)
    tensors, operators = tuple(inner.tensors), tuple(inner.operators)
    return Subgraph(tensors, operators, (t, past, all_), (following, y, all_), "body")


def sequence_net(
    dtype: str = "float32", turns: int = TURNS, given: bool = False
) -> tuple[Net, int]:
    """Every h of `looping_net`, as a list that turn t writes as list[:t], h, list[t + 1:]; sizes
    that a turn computes are 1 in the file, as converters write them. given: the list is an input
    """
    net = _net(3, dtype)
    x, h = net.input(TURNS, 1, 6), net.activation((1, 5))
    own, kind = net.tensors[h].quantization, net.tensors[h].dtype
    arrays = [np.array(0, np.int32), np.full((1, 5), 3, kind), np.zeros((TURNS, 1, 5), kind)]
    zero = net.tensor((), "int32", array=arrays[0])
    start = net.tensor((1, 5), array=arrays[1], quantization=own)
    rows = net.tensor((TURNS, 1, 5), array=None if given else arrays[2], quantization=own)
    net.inputs += [rows] if given else []
    y = net.tensor((TURNS, 1, 5), quantization=own)
    ends = (net.tensor((), "int32"), h, net.activation((TURNS, 1, 6), x), y)
    loop = {"cond_subgraph_index": 1, "body_subgraph_index": 2}
    net.operators.append(LiteOperator("WHILE", (zero, start, x, rows), ends, loop))
    condition = _condition(net, turns)
    number = len(condition.tensors)
    tensors = (*condition.tensors, replace(net.tensors[y], name="list"))
    condition = replace(condition, tensors=tensors, inputs=(*condition.inputs, number))
    net.others += [condition, _writing(_body(net, x, h, 1), net, y)]
    return net, net.dense(net.reshape(y, TURNS, 5), 2)


def _writing(body: Subgraph, net: Net, y: int) -> Subgraph:
    """The body with a list like y, to which it writes its second output."""
    own = net.tensors[y].quantization
    inner = _net(4, net.dtype)
    inner.tensors, inner.operators = list(body.tensors), list(body.operators)
    whole, last = (inner.tensor((TURNS, 1, 5), quantization=own) for _ in range(2))
    at, following, h = body.inputs[0], *body.outputs[:2]

    def place(number: int) -> int:
        one = inner.add("RESHAPE", [number, inner.integers([1])], inner.tensor((1,), "int32"))
        parts = [one, inner.integers([0, 0])]
        return inner.add("CONCATENATION", parts, inner.tensor((3,), "int32"), axis=0)

    def part(begin: int, size: int) -> int:
        return inner.add("SLICE", [whole, begin, size], inner.tensor((1, 1, 5), quantization=own))

    sizes = [place(at), inner.integers([0, 1, 5])]
    front = part(inner.integers([0, 0, 0]), inner.add("ADD", sizes, inner.tensor((3,), "int32")))
    behind = part(place(following), inner.integers([-1, -1, -1]))
    row = inner.tensor((1, 1, 5), quantization=own)
    inner.add("RESHAPE", [h, inner.integers([1, 1, 5])], row)
    inner.add("CONCATENATION", [front, row, behind], last, axis=0)
    ends = (*body.inputs, whole), (*body.outputs, last)
    return Subgraph(tuple(inner.tensors), tuple(inner.operators), *ends, "body")
