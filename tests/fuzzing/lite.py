"""TensorFlow Lite files of much that the reader knows, as seeds; and their data changed."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fuzzing.mutations import NUMBERS, REALS, TEXTS
from lite_models import make
from samebits.tflite import parse, to_bytes
from samebits.tflite.file import LiteOperator, Scaling, Subgraph, Tensor
from samebits.tflite.schema import OPERATORS, TYPES
from tflite_files import Net, image_net, options_of, streaming_net
from tflite_networks import looping_net, sequence_net

OWN = (  # operators with rules of their own in the meaning `tflite`
    *("UNIDIRECTIONAL_SEQUENCE_LSTM", "SVDF", "STRIDED_SLICE", "SPLIT_V", "UNPACK", "GATHER"),
    *("MIRROR_PAD", "REVERSE_V2", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND", "RESIZE_BILINEAR"),
    *("RESIZE_NEAREST_NEIGHBOR", "PRELU", "DIV", "SQUARED_DIFFERENCE", "BATCH_MATMUL", "ARG_MIN"),
)
SMALL = (-2, -1, 0, 1, 2, 3, 4, 5, 8, 16)


def seeds() -> Iterator[bytes]:
    """Images in floats and bytes; movements; 4 and 16 bits; a transposed convolution."""
    for dtype in ("int8", "float32"):
        net, y = image_net(2, dtype)
        yield net.bytes(y)
    yield _moving()
    for made in (streaming_net(1), looping_net(), looping_net("float32"), sequence_net()):
        yield made[0].bytes(made[1])
    for op in OWN:
        made = make(op, "int8", np.random.default_rng(3))
        assert made is not None
        yield made[0].bytes(*made[1])
    net = Net(3, "int8")
    x = net.input(1, 2, 2, 2)
    yield net.bytes(net.conv(x, 3, (1, 1), weights="int4"))
    net = Net(4, "int16")
    x = net.input(2, 3)
    y = net.add("LOGISTIC", [x], net.activation((2, 3)))
    yield net.bytes(
        net.dense(y, 2, 0, activation="RELU"), net.add("NEG", [y], net.activation((2, 3)))
    )
    net = Net(5, "uint8")
    x = net.input(1, 2, 2, 3)
    y = net.add("TRANSPOSE_CONV", [net.integers((1, 4, 4, 2)), net.weights((2, 2, 2, 3), None), x],
                net.activation((1, 4, 4, 2)), stride_w=2, stride_h=2)  # fmt: skip
    yield net.bytes(net.add("MEAN", [y, net.integers((1, 2))], net.activation((1, 2))))


def _moving() -> bytes:
    """Pads, splits, packs, slices, and the place of the greatest number."""
    net = Net(1)
    x = net.input(1, 4, 6)
    pads = net.integers([[0, 0], [1, 0], [0, 2]])
    padded = net.add("PAD", [x, pads], net.activation((1, 5, 8), x))
    parts = [net.activation((1, 5, 4), x) for _ in range(2)]
    net.add("SPLIT", [net.integers(2), padded], parts)
    whole = net.add("PACK", parts, net.activation((1, 5, 2, 4), x), values_count=2, axis=2)
    ends = [net.integers(v) for v in ((0, 1, 0, 0), (1, 2, 2, 4), (1, 1, 1, 1))]
    last = net.activation((2, 4), x)
    net.add("STRIDED_SLICE", [whole, *ends], last, shrink_axis_mask=3)
    place = net.add("ARG_MAX", [last, net.integers(1)], net.tensor((2,), "int32"))
    return net.bytes(last, place)


def fields(data: bytes, rng: random.Random) -> bytes:
    """A file with a few changes in its data, written anew."""
    file = parse(data, "case")
    graphs = list(file.subgraphs)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(graphs))
        graphs[at] = _changed(graphs[at], rng)
    return to_bytes(replace(file, subgraphs=tuple(graphs)))


def _changed(graph: Subgraph, rng: random.Random) -> Subgraph:
    kind = rng.randrange(8)
    if kind < 3:
        tensors = list(graph.tensors)
        at = rng.randrange(len(tensors))
        tensors[at] = _tensor(tensors[at], rng.choice(tensors), rng)
        return replace(graph, tensors=tuple(tensors))
    if kind < 6 and graph.operators:
        operators = list(graph.operators)
        at = rng.randrange(len(operators))
        operators[at] = _operator(operators[at], len(graph.tensors), rng)
        return replace(graph, operators=tuple(operators))
    if kind == 6:
        operators = list(graph.operators)
        rng.shuffle(operators)
        return replace(graph, operators=tuple(operators))
    name = rng.choice(("inputs", "outputs"))
    return replace(graph, **{name: _numbers(getattr(graph, name), len(graph.tensors), rng)})


def _numbers(given: tuple[int, ...], tensors: int, rng: random.Random) -> tuple[int, ...]:
    found = list(given)
    kind = rng.randrange(3)
    if kind == 0 and found:
        found[rng.randrange(len(found))] = rng.randrange(-1, tensors)
    elif kind == 1 and found:
        del found[rng.randrange(len(found))]
    else:
        found.insert(rng.randrange(len(found) + 1), rng.randrange(tensors))
    return tuple(found)


def _tensor(tensor: Tensor, other: Tensor, rng: random.Random) -> Tensor:
    kind = rng.randrange(7)
    if kind == 0:
        return replace(tensor, dtype=rng.choice(list(TYPES.values())), array=None)
    if kind == 1:
        sizes = list(tensor.shape) or [1]
        sizes[rng.randrange(len(sizes))] = rng.choice((*SMALL[2:], 1 << 14, 1 << 28))
        return replace(tensor, shape=tuple(sizes), array=None)
    if kind == 2:
        return replace(tensor, quantization=other.quantization)
    if kind == 3 and tensor.quantization is not None:
        scale = abs(rng.choice((*REALS, 1.0, 2.0**-7)))
        zero = rng.choice((0, -128, 127, 255, 1 << 40))
        return replace(tensor, quantization=Scaling((scale,), (zero,), rng.choice(SMALL)))
    if kind == 4 and tensor.array is not None:
        array = tensor.array.copy()
        array.reshape(-1)[:1] = rng.choice(SMALL)
        return replace(tensor, array=array)
    if kind == 5:
        return replace(tensor, name=rng.choice((*TEXTS[:8], other.name)))
    return replace(other, name=tensor.name)


def _operator(operator: LiteOperator, tensors: int, rng: random.Random) -> LiteOperator:
    kind = rng.randrange(4)
    if kind == 0:
        op = rng.choice(list(OPERATORS.values()))
        op = "CUSTOM of_mine" if op == "CUSTOM" else op
        return replace(operator, op=op, options=options_of(op, {}))
    if kind == 1 and operator.options:
        name = rng.choice(sorted(operator.options))
        held: Any = operator.options[name]
        if not isinstance(held, (bool, float)):
            held = rng.choice(SMALL if name in ("padding", "activation") else (*SMALL, 1 << 20))
        elif isinstance(held, float):
            held = rng.choice(REALS)
        else:
            held = not held
        return replace(operator, options={**operator.options, name: held})
    name = "inputs" if kind < 3 else "outputs"
    return replace(operator, **{name: _numbers(getattr(operator, name), tensors, rng)})


def aligned(data: bytes, rng: random.Random) -> bytes:
    """Some numbers changed where numbers lie: distances, counts, layouts."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        letter = rng.choice("HHIIIIQ")
        size = struct.calcsize("<" + letter)
        at = rng.randrange(max(len(found) // size, 1)) * size
        if at + size > len(found):
            continue
        (held,) = struct.unpack_from("<" + letter, found, at)
        near = held + rng.choice((-16, -4, -2, -1, 1, 2, 4, 16))
        number = rng.choice((near, near, rng.choice(NUMBERS)))
        struct.pack_into("<" + letter, found, at, number % (1 << 8 * size))
    return bytes(found)
