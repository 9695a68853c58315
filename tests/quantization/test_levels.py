"""Inputs with a scale for each feature: the same function, what needs it, and that it is kept."""

from __future__ import annotations

import shutil
import subprocess
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import samebits as sb
from samebits.ir.canonical import canonicalize
from samebits.ir.interpreter import run
from samebits.ir.many import run_many
from samebits.ir.value import Quantization, Value
from samebits.quantization.levels import element_ranges, levelled
from samebits.verification.inputs import dequantize, quantize_samples

UNITS = np.array([1, 1000, 0.01, 5, 20000, 0.1])  # g, Pa, V, %, lux, A
COMPILER = shutil.which("cc")


def sensors(offset: float = 0.0):
    """A perceptron over six raw sensors, and samples of them."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x = ((rng.normal(size=(512, 6)) + offset) * UNITS).astype(np.float32)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5))
    with torch.no_grad():
        net[0].weight /= torch.tensor(UNITS)
        net[0].bias -= net[0].weight @ torch.tensor(offset * UNITS, dtype=torch.float32)
    return net.eval(), x


def normalised(padding: int):
    """A batch norm over channels of ranges from 1e-3 to 1e4, then convolutions."""
    torch.manual_seed(1)
    scale = torch.logspace(-3, 4, 8)
    net = nn.Sequential(
        *(nn.BatchNorm2d(8), nn.Conv2d(8, 12, 3, padding=padding), nn.ReLU()),
        *(nn.Conv2d(12, 4, 3), nn.Flatten()),
    )
    with torch.no_grad():
        net[0].running_mean.copy_(0.3 * scale)
        net[0].running_var.copy_(scale**2)
    x = (torch.randn(48, 8, 8, 8) + 0.3) * scale[:, None, None]
    return net.eval(), x.numpy()


def sequence():
    """A recurrent network over features of different units."""
    torch.manual_seed(2)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(6, 12, batch_first=True), nn.Linear(12, 3)
            with torch.no_grad():
                self.rnn.weight_ih_l0 /= torch.tensor(UNITS, dtype=torch.float32)

        def forward(self, x):
            return self.head(self.rnn(x)[0])

    x = np.random.default_rng(0).normal(size=(8, 20, 6)) * UNITS
    return Net().eval(), x.astype(np.float32)


def ratio(wanted, found):
    noise = ((wanted - found) ** 2).sum()
    return 10 * np.log10((wanted**2).sum() / noise) if noise else np.inf


def float_graph(net, x):
    return canonicalize(sb.load(net, example=torch.from_numpy(x[:1])).model.real)


@pytest.mark.parametrize("offset", [0.0, 50.0])
def test_the_same_function(offset):
    net, x = sensors(offset)
    graph = float_graph(net, x)
    samples = x[:, None]
    found = levelled(graph, element_ranges({graph.inputs[0]: samples}, graph.inputs))
    assert len(found.entries) == 1
    assert [node.op for node in found.graph.nodes][:2] == (
        ["Sub", "Mul"] if offset else ["Mul", "Gemm"]
    )
    for sample in samples[:32]:
        np.testing.assert_allclose(
            run(found.graph, [sample])[0], run(graph, [sample])[0], rtol=2e-4, atol=2e-4
        )


def test_scales_are_powers_of_two_and_change_no_bit_of_the_weights():
    net, x = sensors()
    graph = float_graph(net, x)
    found = levelled(graph, element_ranges({graph.inputs[0]: x[:, None]}, graph.inputs)).graph
    before = net[0].weight.detach().numpy()
    (factor,) = [v for n, v in found.constants.items() if n.endswith(".factor")]
    assert (np.frexp(factor)[0] == 0.5).all()
    (after,) = [v for n, v in found.constants.items() if n.endswith(".levelled")]
    weights = after if after.shape == before.shape else after.T
    assert (weights * factor.reshape(1, -1) == before).all()


@pytest.mark.parametrize("offset", [0.0, 50.0])
def test_raw_sensors_without_an_option(offset):
    net, x = sensors(offset)
    quantized = sb.quantize(net, x[:256])
    wanted = net(torch.from_numpy(x)).detach().numpy()
    found = next(iter(quantized.run(x[256:]).values()))
    assert (found.argmax(1) == wanted[256:].argmax(1)).mean() >= 0.97
    assert ratio(wanted[256:], found) > 25
    assert not quantized.fidelity.bad
    assert quantized.verify(x[:64], ["torch", "c"] if COMPILER else ["torch"])


@pytest.mark.parametrize("padding", [0, 1])
def test_a_batch_norm_before_all(padding):
    net, x = normalised(padding)
    quantized = sb.quantize(net, x[:32])
    with torch.no_grad():
        wanted = net(torch.from_numpy(x)).numpy()
    found = next(iter(quantized.run(x[32:]).values()))
    assert ratio(wanted[32:], found) >= 30
    value = quantized.inputs[0]
    assert value.quantization.axis == -3
    assert len(value.quantization.table) == 8


def test_sequences_of_different_units():
    net, x = sequence()
    quantized = sb.quantize(net, x)
    assert quantized.fidelity.worst_db > 25
    assert len(quantized.inputs[0].quantization.factors) == 6


def test_features_of_one_range_share_a_scale():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    x = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
    x[:, 0] *= 0.05  # little, and it matters no more than others do
    assert sb.quantize(net, x).inputs[0].quantization.plain


def test_the_file_is_read_back(tmp_path):
    net, x = sensors(50.0)
    quantized = sb.quantize(net, x[:64])
    again = sb.load(quantized.save(tmp_path / "q.onnx"))
    assert again.inputs == quantized.inputs
    assert again.fidelity == quantized.fidelity
    codes = quantize_samples(x[:8, None], quantized.inputs[0])
    graph = again.model.integer
    np.testing.assert_array_equal(
        run_many(graph, [[c] for c in codes])[0],
        run_many(quantized.model.integer, [[c] for c in codes])[0],
    )


def test_codes_are_those_of_rationals():
    """Also where a quotient is a tie but for what binary64 rounds."""
    table = Quantization(
        Fraction(3, 1024), 2, (1, Fraction(7, 3), 1 << 20), (Fraction(101325), Fraction(-1, 3), 0)
    )
    value = Value("x", "int8", (1, 3), table)
    rng = np.random.default_rng(0)
    for _ in range(50):
        codes = rng.integers(-128, 127, (1, 3))
        exact = [
            (int(c) - 2 + Fraction(1, 2)) * s + o
            for c, (s, o) in zip(codes[0], table.table, strict=True)
        ]
        x = np.array([[float(e) for e in exact]], np.float32)
        wanted = [
            min(127, max(-128, round((Fraction(float(v)) - o) / s) + 2))
            for v, (s, o) in zip(x[0], table.table, strict=True)
        ]
        assert quantize_samples(x, value)[0].tolist() == wanted
    codes = np.array([[-128, 0, 127]], np.int8)
    reals = [
        np.float32(float((int(c) - 2) * s + o))
        for c, (s, o) in zip(codes[0], table.table, strict=True)
    ]
    assert dequantize(codes, value)[0].tolist() == reals


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_the_header_makes_the_same_codes(tmp_path):
    net, x = sensors(50.0)
    quantized = sb.quantize(net, x[:64])
    quantized.compile(tmp_path / "c")
    x = np.concatenate([x[:40], 10 * x[40:44], np.full((1, 6), np.nan)]).astype(np.float32)
    rows = ", ".join(
        value.hex() if value == value else "0.0 / 0.0" for value in x.astype(float).flat
    )
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "model.h"\n'
        f"static const double x[] = {{{rows}}};\n"
        "int main(void) {\n    uint32_t i;\n"
        f"    for (i = 0; i < {x.size}; i++)\n"
        '        printf("%d\\n", (int)model_input0_code((float)x[i], i % 6));\n    return 0;\n}\n'
    )
    folder = tmp_path / "c"
    sources = [str(path) for path in folder.rglob("*.c") if path.parent.name != "test"]
    subprocess.run(
        [COMPILER, "-std=c99", "-Wall", "-Werror", f"-I{folder}", f"-I{folder / 'samebits'}",
         *sources, str(tmp_path / "main.c"), "-o", str(tmp_path / "main")],
        check=True,
    )  # fmt: skip
    done = subprocess.run([str(tmp_path / "main")], capture_output=True, check=True, text=True)
    found = np.array(done.stdout.split(), int).reshape(x.shape)
    wanted = quantize_samples(x[:-1], quantized.inputs[0])
    assert (found[:-1] == wanted).all()
    assert (found[-1] == quantized.inputs[0].quantization.zero_point).all()
