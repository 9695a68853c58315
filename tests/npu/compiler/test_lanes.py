"""Networks whose features are joined: softmax, normalizations, attention, on every realisation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compare import assert_same
from samebits.errors import UnsupportedError
from samebits.npu.compiler.lower import lower_real_graph, port_names
from samebits.npu.concord.dataflow import data_flow
from samebits.npu.concord.source import module_text
from samebits.npu.concord.translate import load_concordant, translate
from samebits.npu.simulator.simulate import simulate
from samebits.pytorch import import_module


class Attention(torch.nn.Module):
    """Self-attention by hand, with a mask that keeps what comes later out."""

    def __init__(self, size, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.q, self.k, self.v, self.out = (torch.nn.Linear(size, size) for _ in range(4))

    def forward(self, x):
        split = (x.shape[0], x.shape[1], self.heads, -1)
        q, k, v = (layer(x).view(split).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def modules():
    """(name, module, shape of an input, native dimension, error of the largest output)."""
    nn = torch.nn
    for size, native in ((20, 8), (8, 16), (16, 8), (48, 16)):
        net = nn.Sequential(nn.Linear(size, size), nn.Softmax(-1), nn.Linear(size, 5))
        yield f"softmax {size} {native}", net, (size,), native, 4e-3
    for name, layer in (("softmax", nn.Softmax(-1)), ("log softmax", nn.LogSoftmax(-1))):
        parts = nn.Sequential(nn.Unflatten(1, (3, 4)), layer, nn.Flatten())
        groups = nn.Sequential(nn.Linear(12, 12), parts, nn.Linear(12, 5))
        yield f"{name} of groups", groups, (12,), 8, 1e-2
    net = nn.Sequential(nn.GroupNorm(3, 12), nn.Flatten(), nn.Linear(12 * 4, 5), nn.Softmax(-1))
    yield "group norm before others", net, (12, 2, 2), 8, 1e-2
    yield "log softmax", nn.LogSoftmax(-1), (20,), 8, 4e-3
    yield "softmax over steps", nn.Softmax(1), (5, 20), 8, 4e-3
    for size, native in ((20, 8), (32, 16), (5, 8)):
        yield f"layer norm {size} {native}", nn.LayerNorm(size), (size,), native, 6e-3
        yield f"sequence norm {size} {native}", nn.LayerNorm(size), (3, size), native, 6e-3
    yield "rms norm", nn.RMSNorm(20), (3, 20), 8, 6e-3
    yield "image norm", nn.LayerNorm((12, 3, 4)), (12, 3, 4), 8, 1e-2
    yield "group norm", nn.GroupNorm(3, 12), (12, 4, 3), 8, 1e-2
    yield "whole groups", nn.GroupNorm(2, 16), (16, 4, 3), 8, 1e-2
    yield "instance norm", nn.InstanceNorm2d(12), (12, 4, 3), 8, 1e-2
    for name in ("GELU", "ELU", "Softplus"):
        yield name, nn.Sequential(nn.Linear(12, 12), getattr(nn, name)()), (12,), 8, 4e-3
    for name, function in (
        ("exp", lambda x: torch.exp(x)),
        ("log", lambda x: torch.log(x.abs() + 1)),
        ("sqrt", lambda x: torch.sqrt(x.abs())),
        ("quotient", lambda x: x / (1 + x * x)),
        ("reciprocal", lambda x: 2 / (1 + torch.relu(x))),
        ("mean", lambda x: x.mean(-1, keepdim=True)),
        ("largest", lambda x: x.amax(-1)),
        ("centred", lambda x: x - x.mean(-1, keepdim=True)),
        ("unit", lambda x: x / x.pow(2).sum(-1, keepdim=True).sqrt()),
    ):
        yield name, Function(function), (3, 20), 8, 4e-3
    for size, heads, native, steps in ((32, 2, 16, 6), (24, 2, 8, 5), (16, 1, 8, 19), (8, 2, 8, 3)):
        net = Attention(size, heads, causal=steps > 5)
        yield f"attention {size} {heads} {native}", net, (steps, size), native, 1e-2
    for groups, stride, kernel, pad, more, dilation in (
        (1, (2, 2), (2, 2), (0, 0), (0, 0), 1),
        (1, (2, 3), (3, 2), (1, 0), (1, 2), 1),
        (2, (1, 2), (3, 4), (2, 1), (0, 0), 2),
        (1, (3, 2), (2, 3), (0, 1), (0, 1), 1),
    ):
        net = nn.ConvTranspose2d(4, 6, kernel, stride, pad, more, groups, dilation=dilation)
        yield f"transposed {groups} {stride} {kernel}", net, (4, 5, 4), 8, 4e-3
    yield "transposed row", nn.ConvTranspose1d(4, 10, 3, 2), (4, 7), 8, 4e-3
    yield "repeated", nn.Upsample(scale_factor=(2, 3)), (12, 3, 4), 8, 1e-3
    up = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(4, 6, 3, padding=1))
    yield "repeated and convolved", up, (4, 5, 4), 8, 4e-3
    yield "row", nn.Conv1d(6, 9, 3), (6, 20), 8, 4e-3
    yield "encoder", Encoder(), (6, 32), 16, 2e-2


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, norm_first=True)

    def forward(self, x):
        return self.layer(x)


MODULES = {name: rest for name, *rest in modules()}


@pytest.mark.parametrize("name", MODULES)
def test_modules_across_lanes(name, tmp_path):
    """Near the float network, and the same bits from PyTorch."""
    torch.manual_seed(3)
    module, shape, native, near = MODULES[name]
    x = np.random.default_rng(1).standard_normal((2, *shape)).astype(np.float16)
    graph = import_module(module.eval(), (torch.zeros(1, *shape),))
    program, image = lower_real_graph(graph, native)
    (port,), (out,) = port_names(graph)
    found = simulate(program, image, {port: x}).outputs[out]
    with torch.no_grad():
        wanted = module(torch.from_numpy(x).float()).numpy().reshape(found.shape)
    assert np.abs(found - wanted).max() <= near * np.abs(wanted).max()
    translate(program, image, "torch", tmp_path / "m.py")
    translated = load_concordant(tmp_path / "m.py")({port: x})[out]
    assert_same(translated.view(np.uint16), found.view(np.uint16), range(found.size))


@pytest.mark.parametrize(
    ("mantissa", "requantize"),
    [
        (2, True),
        (5, False),
        (11, True),
        *(pytest.param(*mode, marks=pytest.mark.slow) for mode in ((2, False), (5, True))),
        pytest.param(11, False, marks=pytest.mark.slow),
    ],
)
def test_attention_in_number_modes(mantissa, requantize, tmp_path):
    torch.manual_seed(1)
    module = torch.nn.Sequential(Attention(24, 2, causal=True), torch.nn.Softmax(-1)).eval()
    graph = import_module(module, (torch.zeros(1, 5, 24),))
    program, image = lower_real_graph(graph, 8, mantissa, requantize=requantize)
    x = {port_names(graph)[0][0]: np.random.default_rng(0).standard_normal((3, 5, 24))}
    ((_, wanted),) = simulate(program, image, x).outputs.items()
    for kind, file in (("torch", "m.py"), ("onnx", "m.onnx")):
        translate(program, image, kind, tmp_path / file)
        ((_, found),) = load_concordant(tmp_path / file)(x).items()
        assert_same(found.view(np.uint16), wanted.view(np.uint16), range(found.size))


def test_a_softmax_is_recovered_by_its_name():
    """From a network, and from instructions by hand."""
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
    for shape in ((8,), (4, 8)):
        graph = import_module(module.eval(), (torch.zeros(1, *shape),))
        flow = data_flow(*lower_real_graph(graph, 8))
        text = module_text(flow, "torch", "m.safetensors")
        assert text.count("self.softmax(") == 1, shape
        body = text[text.index("class Model") :]
        assert "t_exponential" not in body
        assert "largest(" not in body


def test_features_of_heads_that_lie_apart_are_refused():
    module = Attention(24, 2, causal=False)
    module.k = torch.nn.Linear(24, 48)
    net = Function(lambda x: module.q(x) @ module.k(x)[..., 20:44].transpose(1, 2))
    net.add_module("inner", module)
    graph = import_module(net.eval(), (torch.zeros(1, 5, 24),))
    with pytest.raises(UnsupportedError, match=r"same lanes; .*multiple of the native dimension"):
        lower_real_graph(graph, 8)
