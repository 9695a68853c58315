"""Training in the deployed arithmetic: the codes of every tensor, gradients, what is written."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quantization.conftest import POOL, Net
from samebits.errors import UnsupportedError
from samebits.finetuning import Trainable
from samebits.ir.interpreter import run, trace
from samebits.ir.lowering.lower import lower_graph
from samebits.quantization import Settings, quantize_graph
from samebits.verification.inputs import random_codes


def residual(n):
    x = n.input("x", 1, 2, 6, 6)
    r = n.add("Relu", "r", n.conv("c", x, 4, 2, 3, 3))
    m = n.add("MaxPool", "m", r, **POOL)
    h = n.add("HardSwish", "h", n.conv("d", m, 4, 1, 3, 3, bias=False, group=4))
    s = n.add("Relu", "s", n.add("Add", "a", h, m))
    g = n.add("GlobalAveragePool", "g", s)
    return n.build(n.gemm("y", n.add("Flatten", "f", g, axis=1), 3, 4)), (1, 2, 6, 6)


def branches(n):
    x = n.input("x", 1, 3, 8)
    a = n.add("Conv", "a", x, n.weight("a_w", 4, 3, 3), n.weight("a_b", 4), strides=(1,),
              pads=(1, 1), dilations=(1,), group=1)  # fmt: skip
    b = n.add("Concat", "j", n.add("Clip", "b", a, min=0.0, max=6.0), x, axis=1)
    t = n.add("Transpose", "t", b, perm=(0, 2, 1))
    m = n.add("Add", "q", n.add("MatMul", "m", t, n.weight("m_w", 7, 5)), n.weight("m_b", 5))
    p = n.add("Mul", "p", m, n.add("Sigmoid", "o", m))
    return n.build(n.gemm("y", n.add("Reshape", "f", p, shape=(1, 40)), 3, 40, transB=1)), (1, 3, 8)


def attention(n):
    """An encoder layer whose samples lie along the second axis, behind a transposed convolution."""
    x = n.input("x", 1, 2, 2, 2)
    u = n.add("ConvTranspose", "u", x, n.weight("u_w", 2, 4, 2, 2), n.weight("u_b", 4),
              strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1), group=1,
              output_padding=(0, 0))  # fmt: skip
    t = n.add("Transpose", "t", n.add("Reshape", "f", u, shape=(1, 4, 16)), perm=(2, 0, 1))
    z = n.add("LayerNormalization", "n", t, n.weight("n_m", 4), n.weight("n_b", 4), axis=-1)
    rows = [n.add("Reshape", f"{k}r", z, shape=(16, 4)) for k in "qkv"]
    sums = [
        n.add("MatMul", k, r, n.weight(f"{k}_w", 4, 4)) for k, r in zip("qkv", rows, strict=True)
    ]
    heads = [n.add("Reshape", f"{y}h", y, shape=(16, 2, 2)) for y in sums]
    q, v = (n.add("Transpose", f"{y}t", y, perm=(1, 0, 2)) for y in (heads[0], heads[2]))
    k = n.add("Transpose", "kt", heads[1], perm=(1, 2, 0))
    p = n.add("Softmax", "p", n.add("MatMul", "s", q, k), axis=-1)
    o = n.add("Transpose", "o", n.add("MatMul", "m", p, v), perm=(1, 0, 2))
    h = n.add("Add", "h", t, n.add("Reshape", "w", o, shape=(16, 1, 4)))
    g = n.add("ReduceMean", "g", h, axes=(0,), keepdims=0)
    return n.build(n.add("LogSoftmax", "y", n.gemm("e", g, 3, 4, transB=1), axis=1)), (1, 2, 2, 2)


NETS = {"residual": residual, "branches": branches, "attention": attention}
KINDS = {
    "plain": Settings(),
    "unsigned": Settings("asymmetric-u8", "asymmetric-s8", per_channel=False),
    "powers": Settings("power-of-two-s8", "power-of-two-s8"),
    "narrow": Settings("symmetric-s8", "symmetric-s4"),
    "wide": Settings("asymmetric-s16", "symmetric-s8", output_bits=16),
}


def made(name, kind, seed=3):
    n = Net(seed)
    graph, shape = NETS[name](n)
    samples = [{"x": n.normal(*shape)} for _ in range(10)]
    return quantize_graph(graph, samples, KINDS[kind])[0]


def trained(trainable, steps=4, lr=0.02, batch=3):
    """A few steps that change many codes; the codes of the last batch."""
    optimizer = torch.optim.Adam([p for p in trainable.parameters() if p.requires_grad], lr)
    for step in range(steps):
        codes = torch.from_numpy(random_codes(lower_graph(trainable.source), batch, step)[0])
        optimizer.zero_grad()
        out = trainable(codes.long()).reshape(batch, -1)
        torch.nn.functional.cross_entropy(out, torch.arange(batch) % out.shape[1]).backward()
        optimizer.step()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_codes_of_every_tensor_are_those_of_the_deployed_network(name, kind):
    """Before training and after it, sample by sample."""
    trainable = Trainable(made(name, kind))
    for steps in (0, 4):
        trained(trainable, steps)
        deployed = lower_graph(trainable.quantized())
        codes = random_codes(deployed, 3, 9)[0]
        values: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            trainable(torch.from_numpy(codes).long(), values)
        for index in range(3):
            expected = trace(deployed, [codes[index : index + 1]])
            shared = expected.keys() & values.keys()
            assert len(shared) >= len(deployed.nodes) / 2
            assert set(deployed.outputs) <= shared
            for value in shared:
                assert (values[value][index].numpy() == expected[value]).all(), value


def test_nothing_changes_before_the_first_step():
    graph = made("residual", "plain")
    again = Trainable(graph).quantized()
    before, after = lower_graph(graph), lower_graph(again)
    codes = random_codes(before, 5)[0]
    for index in range(5):
        assert (
            run(before, [codes[index : index + 1]])[0] == run(after, [codes[index : index + 1]])[0]
        ).all()


def test_codes_of_four_bits_stay_such():
    trainable = Trainable(made("residual", "narrow"))
    trained(trainable, 6, 0.3)
    changed = [
        (trainable.weight_codes(i).numpy() != layer.codes).any()
        for i, layer in enumerate(trainable.layers)
    ]
    assert all(changed)
    for layer in trainable.layers:
        graph = trainable.quantized()
        stored = graph.constants[graph.producers()[layer.weights].inputs[0]]
        assert stored.dtype == np.int8
        assert abs(stored).max() == 7


def test_gradients_are_those_of_the_float_network_away_from_saturation():
    """Of one linear layer: the derivative of a logit is the input times the scale of a weight."""
    n = Net(0)
    graph = n.build(n.gemm("y", n.input("x", 1, 4), 3, 4))
    quantized, _ = quantize_graph(
        graph, [{"x": n.normal(1, 4)} for _ in range(20)], Settings(output_bits=16)
    )
    trainable = Trainable(quantized)
    integer = lower_graph(quantized)
    value = integer.values[integer.inputs[0]].quantization
    codes = torch.tensor([[3, -20, 50, 7]])
    trainable(codes)[0, 0, 1].backward()
    x = (codes.double() - value.zero_point) * float(value.scale)
    scale = quantized.constants[quantized.producers()[trainable.layers[0].weights].inputs[1]]
    expected = x[0] * float(scale[1]) * 127
    assert torch.allclose(trainable.weights[0].grad[1], expected, rtol=1e-3)
    assert (trainable.weights[0].grad[[0, 2]] == 0).all()


@pytest.mark.parametrize(
    ("op", "shape", "attributes"),
    [("ArgMax", (1, 4), {"axis": 1, "keepdims": 1})],
)
def test_operators_without_gradients_are_named(net_of, op, shape, attributes):
    n = net_of
    h = n.gemm("h", n.input("x", *shape), 4, 4)
    graph = n.build(n.add(op, "y", h, **attributes))
    quantized, _ = quantize_graph(graph, [{"x": n.normal(*shape)} for _ in range(4)])
    with pytest.raises(UnsupportedError, match=r"expected an operator with a rule for gradients"):
        Trainable(quantized)


@pytest.fixture
def net_of():
    return Net(5)


def test_nothing_to_train(net_of):
    n = net_of
    graph = n.build(n.add("MaxPool", "y", n.input("x", 1, 2, 4, 4), **POOL))
    quantized, _ = quantize_graph(graph, [{"x": n.normal(1, 2, 4, 4)} for _ in range(4)])
    with pytest.raises(UnsupportedError, match="expected a Conv, Gemm or MatMul"):
        Trainable(quantized)


def stored(weights, *readers, zero=0):
    """A network in QDQ form of a file: one matrix of codes, read by `readers` layers in turn."""
    b = Net(1).builder
    one, zeros = b.constant("one", np.float32(0.125)), b.constant("z", np.int8(0))

    def coded(x):
        return b.add("DequantizeLinear", [b.add("QuantizeLinear", [x, one, zeros]), one, zeros])

    steps = b.constant("steps", np.full(4, 0.125**2, np.float32))
    bias = b.constant("bias", np.arange(4, dtype=np.int32))
    added = b.add("DequantizeLinear", [bias, steps], {"axis": 0})
    parameters = [one, b.constant("wz", np.array(zero, weights.dtype))]
    w = b.add("DequantizeLinear", [b.constant("w", weights), *parameters])
    h = coded(b.input("x", "float32", (1, 4)))
    for own in readers:
        other = b.add("DequantizeLinear", [b.constant("o", weights), *parameters])
        h = coded(b.add("Gemm", [h, other if own else w, added], {"transB": 1}))
    return b.build([h])


def same_codes(trainable, count=3):
    """Whether the network that is written computes what was trained."""
    deployed = lower_graph(trainable.quantized())
    codes = random_codes(deployed, count, 9)[0]
    values: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        trainable(torch.from_numpy(codes).long(), values)
    found = values[deployed.outputs[0]].numpy()
    expected = [run(deployed, [codes[i : i + 1]])[0] for i in range(count)]
    return np.array_equal(found, np.stack(expected))


def test_unsigned_codes_stay_in_their_type():
    graph = stored(np.arange(16, dtype=np.uint8).reshape(4, 4), True)
    trainable = Trainable(graph)
    trained(trainable, 4, 0.2)
    assert (trainable.weight_codes(0).numpy() != trainable.layers[0].codes).any()
    assert same_codes(trainable)


@pytest.mark.parametrize(("least", "low"), [(-128, -128), (-127, -127), (-7, -7)])
def test_codes_may_be_as_low_as_those_given(least, low):
    weights = np.full((4, 4), 3, np.int8)
    weights[0, 0] = least
    trainable = Trainable(stored(weights, True))
    assert (trainable.weight_codes(0).numpy() == weights).all()
    assert trainable.layers[0].low.min() == low


def test_codes_that_two_layers_read_stay():
    graph = stored(np.arange(-8, 8, dtype=np.int8).reshape(4, 4), False, False, True)
    trainable = Trainable(graph)
    (layer,) = trainable.layers
    assert (layer.source, layer.bias) == ([n for n in graph.nodes if n.op == "Gemm"][-1], "")
    trained(trainable, 4, 0.2)
    assert same_codes(trainable)
    with pytest.raises(UnsupportedError, match="expected a Conv, Gemm or MatMul"):
        Trainable(stored(np.ones((4, 4), np.int8), False, False), 3)


def test_a_network_that_is_not_the_one_trained_is_refused():
    trainable = Trainable(made("residual", "plain"))
    codes = torch.from_numpy(random_codes(lower_graph(trainable.source), 2)[0]).long()
    trainable.check(codes)
    trainable.rests[-1] += 10000
    with pytest.raises(UnsupportedError, match="expected the codes that were trained"):
        trainable.check(codes)
