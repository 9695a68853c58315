"""Magnitudes, sqrt(a * a + b * b): which are found, their scales, and what they keep."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from samebits.ir.interpreter import run
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.rewrite import simplify
from samebits.pytorch import import_module
from samebits.pytorch.executor import TorchExecutor
from samebits.quantization.calibrate import from_range
from samebits.quantization.lstm import RecurrentSettings, quantize_recurrent
from samebits.quantization.magnitude import Magnitude, fitted, magnitudes
from samebits.quantization.placement import place
from samebits.quantization.post_training import quantize_graph
from samebits.quantization.settings import ACTIVATIONS, Settings
from samebits.verification.inputs import dequantize, quantize_samples


def halves(n, x):
    """The halves of a convolution of two channels."""
    y = n.conv("y", x, 2, 1, 3, 3)
    cut = {"axes": (1,), "steps": (1,)}
    parts = zip("ab", (0, 1), (1, 2), strict=True)
    return [n.add("Slice", name, y, starts=(i,), ends=(j,), **cut) for name, i, j in parts]


def summed(n, a, b):
    two = n.constant("two", 2.0)
    return n.add("Add", "s", n.add("Pow", "p", a, two), n.add("Mul", "q", b, b))


# --- where --------------------------------------------------------------------------------------


def test_squares_have_no_codes(net):
    n = net()
    s = summed(n, *halves(n, n.input("x", 1, 1, 4, 4)))
    s = n.add("Clip", "t", n.add("Add", "e", s, n.constant("eps", [1e-9])), min=0.0, max=None)
    placement = place(n.build(n.conv("z", n.add("Sqrt", "r", s), 1, 1, 3, 3)))
    assert placement.quantized == ("x", "y", "r", "z")
    assert placement.magnitudes == (Magnitude(("a", "b"), ("t", "e", "s", "q", "p"), "r"),)


@pytest.mark.parametrize("exact_sums", [False, True])
def test_what_is_squared_shares_a_scale(net, exact_sums):
    """Relus of two convolutions; roots of one scale, side by side, tie what both are made of."""
    n = net()
    x = n.input("x", 1, 1, 4, 4)
    parts = [n.add("Relu", f"r{i}", n.conv(f"c{i}", x, 1, 1, 3, 3)) for i in range(4)]
    roots = []
    for i in (0, 2):
        squares = [n.add("Mul", f"q{j}", parts[j], parts[j]) for j in (i, i + 1)]
        roots.append(n.add("Sqrt", f"m{i}", n.add("Add", f"s{i}", *squares)))
    graph = n.build(n.add("Concat", "y", *roots, axis=1))
    placement = place(graph, exact_sums)
    assert placement.quantized == ("x", "r0", "r1", "r2", "r3", "m0", "m2")
    groups = {frozenset(names) for names in placement.members().values()}
    assert groups == {
        frozenset(names) for names in (["x"], ["r0", "r1", "r2", "r3"], ["m0", "m2", "y"])
    }


def test_other_roots_are_what_they_were(net):
    n = net()
    x = n.input("x", 1, 1, 4, 4)
    a, b = halves(n, x)
    s = summed(n, a, b)
    assert not magnitudes(n.build(n.add("Sqrt", "r", s), s))  # the sum is an output
    n = net()
    x = n.input("x", 1, 1, 4, 4)
    s = summed(n, n.add("Sin", "a", x), n.add("Add", "b", x, n.constant("one", 1.0)))
    graph = n.build(n.add("Sqrt", "r", s))  # a function of x alone: a table
    assert place(graph).quantized == ("x", "r")
    n = net()
    a, b = halves(n, n.input("x", 1, 1, 4, 4))
    s = n.add("Add", "s", n.add("Mul", "p", a, a), n.add("Mul", "q", a, b))
    assert not magnitudes(n.build(n.add("Sqrt", "r", s)))
    n = net()
    a, b = halves(n, n.input("x", 1, 1, 4, 4))
    cube = n.add("Pow", "p", a, n.constant("three", 3.0))
    s = n.add("Add", "s", cube, n.add("Mul", "q", b, b))
    assert not magnitudes(n.build(n.add("Sqrt", "r", s)))


# --- scales -------------------------------------------------------------------------------------


@pytest.mark.parametrize("operand", ["asymmetric-s8", "symmetric-s16", "power-of-two-s8"])
@pytest.mark.parametrize("root", ["asymmetric-s8", "asymmetric-u16", "power-of-two-s16"])
@pytest.mark.parametrize("size", [1e-4, 0.71, 1.3, 40.0])
def test_the_scale_of_a_root(operand, root, size):
    """No finer than it must be, by less than 2**-7; a binary32 number; a ratio `root` takes."""
    high = Fraction(1.37)
    numbers = {
        "a": from_range(-high, high, ACTIVATIONS[operand], "a"),
        "r": from_range(Fraction(0), high * Fraction(size), ACTIVATIONS[root], "r"),
    }
    each = Magnitude(("a", "b"), ("s", "p", "q"), "r")
    found = fitted([each], {"a": "a", "b": "a", "r": "r"}, numbers)
    scale, unit = found["r"].scale, found["a"].scale
    assert Fraction(float(np.float32(float(scale)))) == scale
    assert (
        numbers["a"].scale
        <= unit
        < numbers["a"].scale * (2 if root.startswith("power") else 1 + Fraction(1, 1 << 15))
    )
    p, q = ((unit / scale) ** 2).as_integer_ratio()
    span = found["a"].format.code_max - found["a"].format.code_min
    assert q <= 1 << 26
    assert 4 * p * 2 * span**2 < 1 << 63
    assert numbers["r"].scale <= scale
    if size > 1e-2:
        assert scale < numbers["r"].scale * (1 + Fraction(1, 1 << 7)) or root.startswith("power")
    assert found["r"].zero_point == found["r"].format.code_min * (root[0] == "a")


def test_a_root_of_roots():
    """The scale of the first has up to 24 bits: the second is a power of two times it."""
    fmt = ACTIVATIONS["asymmetric-s16"]
    numbers = {name: from_range(Fraction(0), Fraction(5, i + 3), fmt, name)
               for i, name in enumerate("abc")}  # fmt: skip
    chain = [Magnitude(("a", "a2"), ("s",), "b"), Magnitude(("b", "b2"), ("t",), "c")]
    group = {"a": "a", "a2": "a", "b": "b", "b2": "b", "c": "c"}
    found = fitted(chain, group, numbers)
    for x, y in ("ab", "bc"):
        p, q = ((found[x].scale / found[y].scale) ** 2).as_integer_ratio()
        assert max(p, q) <= 1 << 26
        assert Fraction(float(np.float32(float(found[y].scale)))) == found[y].scale
    same = dict.fromkeys(group, "a")
    assert fitted(chain, same, {"a": numbers["a"]}) == {"a": numbers["a"]}


# --- what they keep -----------------------------------------------------------------------------


class Spectrum(nn.Module):
    """|X| of a windowed transform, as audio networks have it: quiet samples beside loud ones."""

    def __init__(self, size=64, before=0.0):
        super().__init__()
        k, t = np.arange(size // 2 + 1)[:, None], np.arange(size)
        angle = 2 * np.pi * k * t / size
        window = 0.5 - 0.5 * np.cos(2 * np.pi * t / size)
        basis = np.concatenate([np.cos(angle), np.sin(angle)]) * window
        self.stft = nn.Conv1d(1, len(basis), size, stride=size // 2, bias=False)
        self.stft.weight.data = torch.tensor(basis[:, None], dtype=torch.float32)
        self.bins, self.before = size // 2 + 1, before

    def forward(self, x):
        y = self.stft(x)
        return torch.sqrt(y[:, : self.bins] ** 2 + y[:, self.bins :] ** 2 + self.before)


def recordings():
    rng = np.random.default_rng(0)
    loud = 10 ** rng.uniform(-2, 0, (40, 1, 1))
    return loud.ravel(), (loud * np.cumsum(rng.normal(size=(40, 1, 256)), -1) / 16).astype("f4")


def ratios(wanted, found, of):
    errors = (wanted - found)[of] ** 2
    return 10 * np.log10((wanted[of] ** 2).sum() / errors.sum())


@pytest.mark.parametrize(
    ("settings", "all_db", "quiet_db"),
    [
        (Settings(activations="asymmetric-s8"), 28, 12),
        (Settings(activations="symmetric-s16"), 50, 46),
        (Settings(activations="symmetric-s16", weights="symmetric-s16"), 72, 48),
        (Settings(activations="asymmetric-s16", weights="symmetric-s16"), 74, 50),
        (Settings(activations="power-of-two-s16", weights="symmetric-s16"), 68, 44),
    ],
)
def test_quiet_samples_keep_what_codes_of_the_result_allow(settings, all_db, quiet_db):
    """With codes of squares the ten quietest had 3 dB."""
    loud, x = recordings()
    module = Spectrum().eval()
    graph = simplify(import_module(module, (torch.tensor(x[:1]),)))
    made, _ = quantize_graph(graph, [[each[None]] for each in x], settings)
    lowered = lower_graph(simplify(made))
    assert [n.op for n in lowered.nodes].count("root") == 1
    wanted, found = [], []
    executor = TorchExecutor(lowered)
    source, result = (lowered.values[names[0]] for names in (lowered.inputs, lowered.outputs))
    for each in x:
        codes = quantize_samples(each[None], source)
        (made_codes,) = executor.run([codes])
        assert np.array_equal(run(lowered, [codes])[0], made_codes)
        found.append(np.asarray(dequantize(made_codes, result), np.float64))
        with torch.no_grad():
            wanted.append(module(torch.tensor(each[None])).numpy())
    wanted, found = np.stack(wanted), np.stack(found)
    assert ratios(wanted, found, slice(None)) >= all_db
    assert ratios(wanted, found, np.argsort(loud)[:10]) >= quiet_db


def test_a_constant_joins_the_squares():
    _, x = recordings()
    graph = simplify(import_module(Spectrum(before=0.01).eval(), (torch.tensor(x[:1]),)))
    made, _ = quantize_graph(graph, [[each[None]] for each in x], Settings())
    assert "root" in {n.op for n in lower_graph(simplify(made)).nodes}


class Listener(nn.Module):
    """A magnitude of two products in front of an LSTM."""

    def __init__(self):
        super().__init__()
        self.mixed, self.cells = nn.Linear(6, 16), nn.LSTM(8, 5)

    def forward(self, x):
        y = self.mixed(x)
        return self.cells(torch.sqrt(y[..., :8] ** 2 + y[..., 8:] ** 2))[0]


@pytest.mark.parametrize("bits", [8, 16])
def test_a_magnitude_in_front_of_a_recurrent_layer(bits):
    torch.manual_seed(0)
    module, rng = Listener().eval(), np.random.default_rng(1)
    x = rng.normal(size=(6, 12, 1, 6)).astype(np.float32)
    graph = simplify(import_module(module, (torch.tensor(x[0]),)))
    made, report = quantize_recurrent(graph, [[each] for each in x], RecurrentSettings(bits=bits))
    lowered = lower_graph(simplify(made))
    ops = [n.op for n in lowered.nodes]
    assert ops.count("root") == 1
    assert "Sqrt" in {n.op for n in made.nodes}  # a plain QDQ file
    assert report.sqnr_db >= (25 if bits == 8 else 40)
