"""Programs that PT2E or torchao has quantized: their operators by hand, and with their own tools
where torchao is installed."""

from __future__ import annotations

import importlib
import itertools

import numpy as np
import pytest
import torch
from torch import nn

import quantized_elsewhere
from samebits.api import quantize
from samebits.errors import UnsupportedError
from samebits.ir import interpreter
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.real.quantize import saturation
from samebits.pytorch import import_module
from samebits.pytorch.exported import read_exported
from samebits.sources import load

importlib.import_module("torch.ao.quantization.fx._decomposed")  # defines the operators
Q = torch.ops.quantized_decomposed
BACKENDS = ["torch", "c", "onnxruntime-integer"]


class Call(nn.Module):
    """A function of x as a module."""

    def __init__(self, function, **buffers):
        super().__init__()
        self.function = function
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)

    def forward(self, x):
        return self.function(self, x)


def imported(function, x, **buffers):
    module = Call(function, **buffers).eval()
    return import_module(module, (x,)), module(x).numpy()


def ops(graph):
    return [node.op for node in graph.nodes]


def agree(graph):
    verdicts = load(graph).verify("random:20", BACKENDS).verdicts
    assert [(v.backend, v.differing) for v in verdicts] == [(name, 0) for name in BACKENDS]


ENDS = (None, (-127, 127), (-7, 7), (0, 15), (3, 100))


@pytest.mark.parametrize(
    ("dtype", "ends", "zero"),
    [  # every other one is slow: each type and each pair of ends has both zeros among the rest
        pytest.param(dtype, ends, zero, marks=pytest.mark.slow if (at + at // 2) % 2 else ())
        for at, (dtype, ends, zero) in enumerate(
            itertools.product((torch.int8, torch.uint8, torch.int16), ENDS, (0, 5))
        )
    ],
)
def test_codes_of_a_tensor(dtype, ends, zero):
    """Every quarter of a step: torch's product with 1 / scale is exact for this scale."""
    info = torch.iinfo(dtype)
    low, high = ends or (info.min, info.max)
    numbers = (0.25, zero, max(low, info.min), high, dtype)

    def function(self, x):
        return Q.dequantize_per_tensor(Q.quantize_per_tensor(x, *numbers), *numbers)

    x = torch.arange(-1200, 1200).reshape(2, -1) / 16
    graph, expected = imported(function, x)
    assert ops(graph) == ["QuantizeLinear", "DequantizeLinear"]
    name = str(dtype).removeprefix("torch.")
    assert saturation(name, graph.nodes[0].attributes) == (max(low, info.min), high)
    assert np.array_equal(interpreter.run(graph, [x.numpy()])[0], expected)


def test_scales_are_the_binary32_numbers_that_torch_takes():
    def function(self, x):
        return Q.dequantize_per_tensor(x.to(torch.int8), 0.1, 0, -128, 127, torch.int8)

    graph, expected = imported(function, torch.arange(-9.0, 9.0))
    assert np.array_equal(interpreter.run(graph, [np.arange(-9, 9, dtype="f4")])[0], expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_codes_of_channels(axis):
    def function(self, x):
        rest = (self.scales, self.zeros, axis, -7, 7, torch.int8)
        return Q.dequantize_per_channel(Q.quantize_per_channel(x, *rest), *rest)

    x = torch.linspace(-9, 9, 36).reshape(3, 3, 4)
    count = x.shape[axis]
    scales = 2.0 ** -torch.arange(count)
    graph, expected = imported(function, x, scales=scales, zeros=torch.arange(count))
    assert np.array_equal(interpreter.run(graph, [x.numpy()])[0], expected)


class Blocks(nn.Module):
    """x times weights in int8, rounded to few bits."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        codes = torch.randint(-7, 8, (5, 8), generator=generator, dtype=torch.int8)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", torch.rand(5, generator=generator) + 0.5)
        self.register_buffer("zeros", torch.zeros(5, dtype=torch.int64))
        self.bias = nn.Parameter(torch.rand(5, generator=generator))

    def forward(self, x):
        x = Q.quantize_per_tensor(x, 0.1, 3, 0, 255, torch.uint8)
        x = Q.dequantize_per_tensor(x, 0.1, 3, 0, 255, torch.uint8)
        w = Q.dequantize_per_channel(self.codes, self.scales, self.zeros, 0, -7, 7, torch.int8)
        y = torch.relu(nn.functional.linear(x, w, self.bias))
        y = Q.quantize_per_tensor(y, 0.7, -8, -8, 7, torch.int8)
        return Q.dequantize_per_tensor(y, 0.7, -8, -8, 7, torch.int8)


def test_a_network_is_the_same_everywhere(tmp_path):
    torch.export.save(torch.export.export(Blocks(), (torch.rand(2, 8),)), tmp_path / "net.pt2")
    graph = read_exported(tmp_path / "net.pt2")
    integer = lower_graph(graph)
    assert ops(integer) == ["linear", "requantize"]
    assert (integer.nodes[1].attributes["low"], integer.nodes[1].attributes["high"]) == (-8, 7)
    agree(graph)


def test_groups_of_weights():
    def function(self, x):
        rest = (-8, 7, torch.int8, 4, torch.float32)
        return x + Q.dequantize_per_channel_group(self.codes, self.scales, self.zeros, *rest)

    codes = torch.arange(-8, 8, dtype=torch.int8).reshape(2, 8)
    numbers = {"scales": torch.tensor([[1.0, 2], [4, 8]]), "zeros": torch.tensor([[0, 1], [2, 3]])}
    graph, expected = imported(function, torch.zeros(2, 8), codes=codes, **numbers)
    assert dict(graph.nodes[0].attributes) == {"axis": 1, "block_size": 4}
    assert np.array_equal(interpreter.run(graph, [np.zeros((2, 8), "f4")])[0], expected)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0.0, 0, -128, 127, torch.int8), r"expected positive finite scales, found \[0.0\]"),
        ((1.0, 300, -128, 127, torch.int8), r"whole zero points from -128 to 127, found \[300\]"),
        ((1.0, 0, -300, 127, torch.int8), r"low <= high among the codes of int8, found -300"),
        ((1.0, 0, 7, -7, torch.int8), r"low <= high among the codes of int8, found 7 and -7"),
    ],
)
def test_numbers_that_quantize_nothing_are_refused(numbers, message):
    def function(self, x):
        return x + Q.quantize_per_tensor(torch.ops.aten.mul(x, 2.0), *self.numbers).to(x.dtype)

    module = Call(function)
    module.numbers = (1.0, 0, -128, 127, torch.int8)
    program = torch.export.export(module, (torch.rand(3),))
    (node,) = (n for n in program.graph.nodes if "quantize_per_tensor" in str(n.target))
    node.args = (node.args[0], *numbers)
    with pytest.raises(UnsupportedError, match=message):
        load(program)


def test_codes_of_32_bits_are_refused():
    def function(self, x):
        return Q.quantize_per_tensor(x, 1.0, 0, -300, 300, torch.int32)

    with pytest.raises(UnsupportedError, match="expected codes of 8 or 16 bits, found int32"):
        imported(function, torch.rand(3))


def test_scales_from_data_are_refused_with_what_to_do():
    def function(self, x):
        scale, zero = Q.choose_qparams(x, -128, 127, 1e-6, torch.int8)
        return Q.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)

    with pytest.raises(UnsupportedError) as caught:
        imported(function, torch.rand(3))
    assert "quantized_decomposed.choose_qparams.tensor in the module itself" in str(caught.value)
    assert "quantize with scales fixed by calibration instead" in str(caught.value)


def test_everything_refused_is_in_one_message():
    """Whatever is not refused itself, but reads what is, is passed over."""

    def function(self, x):
        x = Q.quantize_per_tensor(x, 1.0, 0, -300, 300, torch.int32)
        x = Q.dequantize_per_tensor(x, 1.0, 0, -300, 300, torch.int32)
        scale, zero = Q.choose_qparams(self.y, -128, 127, 1e-6, torch.int8)
        return x, Q.quantize_per_tensor.tensor(x * 2, scale, zero, -128, 127, torch.int8)

    class Two(Call):
        def forward(self, x, y):
            self.y = y
            return self.function(self, x)

    with pytest.raises(UnsupportedError) as caught:
        import_module(Two(function).eval(), (torch.rand(3), torch.rand(3)))
    operators, codes = str(caught.value).split("\n")
    assert "found quantized_decomposed.choose_qparams.tensor in the module itself;" in operators
    assert codes.startswith("quantized_decomposed.quantize_per_tensor.default in the module itself")


# --- with the tools themselves ----------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of programs that torchao has quantized."""
    return quantized_elsewhere.made_by("torchao", tmp_path_factory.mktemp("torchao"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["xnnpack", "few-bits", "x86"])
def test_pt2e(made, name):
    graph = read_exported(made / f"{name}.pt2")
    assert {"QuantizeLinear", "DequantizeLinear", "Conv", "Gemm", "MaxPool"} <= set(ops(graph))
    agree(graph)
    expected = np.load(made / f"{name}.npz")
    found = load(graph).run(expected["x"])
    scale = graph.constants[graph.nodes[-1].inputs[1]] if name != "x86" else 1e-4
    wrong = np.abs(next(iter(found.values())) - expected["y"]) > 1.01 * scale
    assert wrong.mean() < 0.1  # torch rounds in binary32, and biases not at all


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "int3", "int4-groups"])
def test_weight_only(made, name):
    """Quantized here, from what the weights mean; codes that have a scale a row are kept."""
    network = load(made / f"{name}.pt2")
    samples = np.load(made / f"{name}.npz")
    quantized = quantize(network, calibration=samples["x"])
    assert quantized.verify("random:20", BACKENDS)
    error = next(iter(quantized.run(samples["x"]).values())) - samples["y"]
    assert (error**2).sum() < 0.002 * (samples["y"] ** 2).sum()
    if name == "int3":
        before, after = (
            [a for a in net.model.graph.constants.values() if a.shape == (32, 64)]
            for net in (network, quantized)
        )
        assert np.array_equal(before, after)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dynamic", "quantized_decomposed.choose_qparams.tensor in .*; quantize with scales fixed"),
        ("int8-dynamic", "_int_mm.default in .*; quantize with scales fixed by calibration"),
        ("intx-dynamic", "expected a constant scale, found one computed from data; quantize with"),
    ],
)
def test_dynamic_quantization_is_refused(made, name, message):
    with pytest.raises(UnsupportedError, match=message):
        read_exported(made / f"{name}.pt2")
