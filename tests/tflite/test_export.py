"""Networks from elsewhere as TensorFlow Lite files: what is written is read, and close to it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import samebits as sb
from samebits.errors import UnsupportedError
from samebits.ir import GraphBuilder, Quantization
from samebits.ir.interpreter import run
from samebits.tflite import from_bytes, parse, to_bytes
from samebits.tflite.export import to_lite
from samebits.tflite.peers.process import missing
from tflite_files import image_net

CLOSE = 2  # codes by which roundings of a small network move its outputs


class Net(nn.Module):
    """Layers that most networks have, an odd pad among them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.own = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1, groups=8)
        self.point, self.dense, self.flat = nn.Conv2d(8, 8, 1), nn.Linear(8, 5), nn.Linear(32, 4)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(x + self.point(nn.functional.relu6(self.own(x))))
        small = torch.flatten(nn.functional.max_pool2d(x, 2), 1)
        halves = torch.cat([small[:, :16], small[:, 16:]], 1)
        gate = torch.sigmoid(self.flat(halves)) * torch.tanh(self.flat(small))
        return torch.softmax(self.dense(x.mean((2, 3))), -1), gate


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    torch.manual_seed(1)
    x = np.random.default_rng(1).normal(0, 1, (64, 3, 8, 8)).astype(np.float32)
    path = tmp_path_factory.mktemp("net") / "net.pt2"
    torch.export.save(torch.export.export(Net().eval(), (torch.randn(1, 3, 8, 8),)), path)
    return sb.quantize(sb.load(path), x)


@pytest.fixture(scope="module")
def written(quantized, tmp_path_factory):
    return quantized.save(tmp_path_factory.mktemp("lite") / "net.tflite")


def test_a_written_network_is_read(quantized, written):
    """In the meaning that it states, with codes close to those of the network."""
    found = sb.load(written)
    assert found.kind == "integer network"
    assert found.model.lite.meaning.name == "tflite:tflm-2026-10"
    (x,) = quantized.inputs
    codes = np.random.default_rng(2).integers(-128, 128, (50, *x.shape[1:])).astype(np.int8)
    ours, theirs = quantized.run(codes, codes=True), found.run(codes, codes=True)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        apart = np.abs(array.astype(int) - theirs[name])
        assert apart.max() <= CLOSE
        assert np.unique(array).size > 20
    operators = {operator.op for operator in found.model.lite.file.subgraphs[0].operators}
    assert operators >= {
        *("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "ADD", "MUL", "MAX_POOL_2D", "MEAN"),
        *("SOFTMAX", "LOGISTIC", "TANH", "QUANTIZE", "PAD", "TRANSPOSE", "CONCATENATION"),
    }


def test_it_is_written_again_as_it_was(written, tmp_path):
    again = sb.load(written).save(tmp_path / "again.tflite")
    assert again.read_bytes() == written.read_bytes()


def test_a_file_is_written_in_its_own_meaning(tmp_path):
    net, y = image_net(1)
    path = tmp_path / "f.tflite"
    path.write_bytes(net.bytes(y))
    for meaning, kind in (("exact", "quantized network"), ("tflite", "integer network")):
        copy = sb.load(path, meaning=meaning).save(tmp_path / f"{meaning}.tflite")
        assert sb.load(copy).kind == kind


@pytest.mark.slow
def test_it_is_the_runtime_in_every_tensor(written):
    """1,000 inputs."""
    if reason := missing("tflm"):
        pytest.skip(reason)
    found = sb.load(written).verify("random:1000", ["tflm"])
    assert found, found
    assert found.verdicts[0].between[1] > 1000 * 1000


def graph_of(op, shapes, dtype="int8", rounded=None, out="int8", **attributes):
    """One operator on codes; rounded: a `requantize` behind it."""
    builder = GraphBuilder("g")
    unit = Quantization(Fraction(1, 64), 3)
    names = [builder.input(f"x{i}", dtype, s, unit) for i, s in enumerate(shapes)]
    y = builder.add(op, names, attributes, "y", quantization=None if rounded else unit)
    if rounded:
        more = {"ratios": (rounded,), "zero": 3, "low": -128, "high": 127, "dtype": out}
        y = builder.add("requantize", [y], more, "z", quantization=unit)
    return builder.build([y])


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (graph_of("clip", [(1, 4)], low=-5, high=9), ["MAXIMUM", "MINIMUM"]),
        (graph_of("maximum", [(1, 4), (1, 4)]), ["MAXIMUM"]),
        (graph_of("reduce_max", [(1, 4)], axes=(1,), keepdims=True), ["REDUCE_MAX"]),
        (graph_of("pad", [(1, 4)], before=(0, 1), after=(0, 2), code=7), ["PADV2"]),
        (graph_of("expand", [(1, 4)], shape=(3, 4)), ["BROADCAST_TO"]),
        (graph_of("slice", [(1, 4)], starts=(0, 1), stops=(1, 4), steps=(1, 2)), ["STRIDED_SLICE"]),
        (graph_of("reduce_sum", [(1, 4)], rounded=Fraction(1), axes=(1,), keepdims=True, zero=3),
         ["SUM"]),
        (graph_of("multiply", [(1, 4), (1, 4)], rounded=Fraction(1, 64), a_zero=3, b_zero=3),
         ["MUL"]),
        (graph_of("add", [(1, 4)] * 2, rounded=Fraction(1), factors=(1, -1), offset=0), ["SUB"]),
        (graph_of("matmul", [(2, 4), (4, 3)], rounded=Fraction(1, 64), a_zero=3, b_zero=3),
         ["BATCH_MATMUL"]),
    ],
)  # fmt: skip
def test_single_operators(graph, expected):
    file = to_lite(graph, "g")
    assert [operator.op for operator in file.subgraphs[0].operators] == expected
    read = from_bytes(to_bytes(file), "g").graph
    rng = np.random.default_rng(3)
    codes = [rng.integers(-128, 128, graph.values[n].shape).astype(np.int8) for n in graph.inputs]
    for ours, theirs in zip(run(graph, codes), run(read, codes), strict=True):
        assert np.abs(ours.astype(int) - theirs).max() <= 1


@pytest.mark.parametrize(("weight", "unit"), [(9, 1), (127, 2)])
def test_a_network_that_ends_in_sums(weight, unit):
    """Exact ones where 15 bits hold them, else in units of the least power of two that does."""
    builder, rng = GraphBuilder("g"), np.random.default_rng(3)
    codes, sums = (Quantization(Fraction(1, 1 << n)) for n in (6, 12))
    x = builder.input("x", "int8", (2, 6), codes)
    w = builder.constant("w", rng.integers(-weight, weight + 1, (5, 6)).astype(np.int8))
    b = builder.constant("b", rng.integers(-300, 300, 5).astype(np.int32))
    y = builder.add("linear", [x, w, b], {"dtype": "int32"}, "y", quantization=sums)
    graph = builder.build([y])
    file = to_lite(graph, "g")
    assert [op.op for op in file.subgraphs[0].operators] == ["QUANTIZE", "FULLY_CONNECTED"]
    read = from_bytes(to_bytes(file), "g").graph
    assert read.values[read.outputs[0]].quantization.scale == sums.scale * unit
    given = rng.integers(-128, 128, (2, 6)).astype(np.int8)
    (ours,), (theirs,) = run(graph, [given]), run(read, [given])
    np.testing.assert_array_equal((ours.astype(int) + unit // 2) // unit, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["mlp", "cnn"])
def test_a_trained_network_is_the_runtime_in_every_tensor(arch, tmp_path):
    """1,000 inputs; block floating point, which ends in sums."""
    sb.fit("digits", arch, epochs=1, out=tmp_path / "run")
    net = sb.load(tmp_path / "run")
    back = sb.load(net.save(tmp_path / "net.tflite"))
    x, y = net.inputs[0], net.outputs[0].quantization.scale
    unit = back.outputs[0].quantization.scale / y
    codes = np.random.default_rng(2).integers(-128, 128, (200, *x.shape[1:])).astype(np.int8)
    ours, theirs = (next(iter(n.run(codes, codes=True).values())) for n in (net, back))
    assert np.abs(ours - theirs * float(unit)).max() < np.abs(ours).max() / 20
    if reason := missing("tflm"):
        pytest.skip(reason)
    found = back.verify("random:1000", ["tflm"])
    assert found, found
    assert found.verdicts[0].between[1] > 400 * 1000


def test_what_has_no_counterpart():
    with pytest.raises(UnsupportedError) as caught:
        to_lite(graph_of("multiply", [(1, 4)] * 2, rounded=Fraction(1, 9), a_zero=3, b_zero=3), "g")
    assert str(caught.value) == (
        "g: expected operators that TensorFlow Lite has, found 1 without a counterpart:\n"
        "  node 'y' (multiply): expected a product in the scales of its tensors, found another"
    )
    with pytest.raises(UnsupportedError, match="expected codes of int8 or int16 with one scale"):
        to_lite(graph_of("clip", [(1, 4)], "uint8", low=0, high=9), "g")


def test_the_file_names_no_machine(written):
    assert parse(written.read_bytes(), "f").metadata["samebits.meaning"] == "tflite:tflm-2026-10"
