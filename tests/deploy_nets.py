"""Small nets for the tests of deployment: the same net as reference nodes and as a BFP model.

Importable by name like `compare`.
"""

import functools
import random

import mpmath
import numpy as np
import torch
from torch import nn

from compare import assert_same
from reference_nets import Concat, Sum
from samebits.ir.graph import Quantization
from samebits.ir.interpreter import run
from samebits.ir.lowering.lower import lower_graph
from samebits.spec.formats import power
from samebits.spec.training import deploy
from samebits.spec.training.layers import Parameter
from samebits.spec.training.step import Node, taken_by_layers
from samebits.train import convert
from samebits.train.deployed.deploy import Exponents, FrozenSite, deployed, quantize_input
from samebits.train.deployed.export import to_graph
from samebits.train.tensor import BFPParameter

SLOPE = 0.01


class Graph(nn.Module):
    """Runs modules along reference nodes: a module's name is its node's name."""

    def __init__(self, nodes, modules):
        super().__init__()
        self.nodes = nodes
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x):
        values = {"x": x}
        for node in self.nodes:
            if node.op == "narrow":
                values[node.name] = values[node.inputs[0]]
            elif node.op != "input":
                values[node.name] = self._modules[node.name](*(values[n] for n in node.inputs))
        return values[self.nodes[-1].name]


FUNCTIONS = {
    "tanh": mpmath.tanh,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "gelu": lambda x: x * (1 + mpmath.erf(x / mpmath.sqrt(2))) / 2,
    "leaky_relu": lambda x: x if x > 0 else x * float(np.float32(SLOPE)),
    "gelu_tanh": lambda x: x / (1 + mpmath.exp(-2 * gelu_argument(x))),
    "mish": lambda x: x * mpmath.tanh(softplus(x)),
    "softplus": lambda x: softplus(x),
    "hardswish": lambda x: x * min(max(x + 3, 0), 6) / 6,
    "hardsigmoid": lambda x: min(max(float(np.float32(1 / 6)) * x + 0.5, 0), 1),
    "elu": lambda x: x if x > 0 else float(np.float32(SLOPE)) * mpmath.expm1(x),
}
PARAMETERS = {"leaky_relu": SLOPE, "elu": SLOPE}


def softplus(x):
    return max(x, 0) + mpmath.log1p(mpmath.exp(-abs(x)))


def gelu_argument(x):
    return mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf(44715) / 10**6 * x**3)


def table_codes(name, e_x, site):
    """The 256 codes of an activation, from 400 bits: none of these lies closer to a tie."""
    with mpmath.workprec(400):
        values = [FUNCTIONS[name](mpmath.ldexp(j, e_x)) for j in range(-128, 128)]
        rounded = [int(mpmath.nint(mpmath.ldexp(value, -site))) for value in values]
    return [min(max(code, -128), 127) for code in rounded]


def table(name):
    return {"codes": functools.partial(table_codes, name)}


def image_net():
    """Every layer of images."""
    nodes = [
        Node("x", "input"),
        Node("conv1", "conv2d", ("x",), {"padding": 1}),
        Node("norm1", "batch_norm", ("conv1",)),
        Node("relu1", "relu", ("norm1",)),
        Node("depthwise", "conv2d", ("relu1",), {"padding": 1, "groups": 4}),
        Node("norm2", "batch_norm", ("depthwise",), {"eps": 1e-3}),
        Node("sum1", "add", ("norm2", "relu1")),
        Node("relu2", "relu6", ("sum1",)),
        Node("strided", "conv2d", ("relu2",), {"stride": 2, "padding": 1, "groups": 2}),
        Node("shortcut", "avg_pool", ("relu2",), {"kernel": 3, "stride": 2, "padding": 1}),
        Node("joined", "concat", ("strided", "shortcut")),
        Node("silu", "table", ("joined",), table("silu")),
        Node("pool", "max_pool", ("silu",), {"kernel": 3, "stride": 1, "padding": 1}),
        Node("dilated", "conv2d", ("pool",), {"dilation": 2, "padding": 2}),
        Node("mean", "global_avg_pool", ("dilated",)),
        Node("flat", "flatten", ("mean",)),
        Node("fc", "linear", ("flat",)),
    ]
    modules = {
        "conv1": nn.Conv2d(2, 4, 3, padding=1, bias=False),
        "norm1": nn.BatchNorm2d(4),
        "relu1": nn.ReLU(),
        "depthwise": nn.Conv2d(4, 4, 3, padding=1, groups=4),
        "norm2": nn.BatchNorm2d(4, eps=1e-3),
        "sum1": Sum(),
        "relu2": nn.ReLU6(),
        "strided": nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
        "shortcut": nn.AvgPool2d(3, stride=2, padding=1),
        "joined": Concat(),
        "silu": nn.SiLU(),
        "pool": nn.MaxPool2d(3, stride=1, padding=1),
        "dilated": nn.Conv2d(10, 3, 3, dilation=2, padding=2),
        "mean": nn.AdaptiveAvgPool2d(1),
        "flat": nn.Flatten(),
        "fc": nn.Linear(3, 5),
    }
    return nodes, modules


def vector_net():
    """Every table, batch norm of vectors, layers registered in another order, a last ReLU."""
    nodes = [
        Node("x", "input"),
        Node("flat", "flatten", ("x",)),
        Node("fc1", "linear", ("flat",)),
        Node("tanh", "table", ("fc1",), table("tanh")),
        Node("sigmoid", "table", ("tanh",), table("sigmoid")),
        Node("norm", "batch_norm", ("sigmoid",)),
        Node("gelu", "table", ("norm",), table("gelu")),
        Node("leaky", "table", ("gelu",), table("leaky_relu")),
        Node("late", "linear", ("leaky",)),
        Node("out", "linear", ("late",)),
        Node("relu", "relu", ("out",)),
    ]
    modules = {
        "flat": nn.Flatten(),
        "fc1": nn.Linear(72, 6),
        "tanh": nn.Tanh(),
        "sigmoid": nn.Sigmoid(),
        "norm": nn.BatchNorm1d(6),
        "gelu": nn.GELU(),
        "leaky": nn.LeakyReLU(SLOPE),
        "out": nn.Linear(5, 4),
        "relu": nn.ReLU(),
        "late": nn.Linear(6, 5),  # registered after those that run later
    }
    return nodes, modules


def pools_net():
    """Windows that end behind the image, of several sizes, with divisors of their own."""
    last, sizes = {"ceil": True}, {"kernel": 4, "stride": 3, "padding": 1}
    nodes = [
        Node("x", "input"),
        Node("conv", "conv2d", ("x",), {"padding": 1}),
        Node("max", "max_pool", ("conv",), {"kernel": 3, "stride": 2, **last}),
        Node("padded", "avg_pool", ("conv",), {**sizes, **last}),
        Node("halves", "avg_pool", ("conv",), {"kernel": 2, "divisor": 8}),
        Node(
            "inside",
            "avg_pool",
            ("conv",),
            {"kernel": 3, "stride": 2, "padding": 1, "include_pad": False, **last},
        ),
        Node("overlapping", "adaptive_avg_pool", ("inside",), {"size": (3, 3)}),
        Node("joined", "concat", ("max", "padded", "halves", "overlapping")),
        Node("flat", "flatten", ("joined",)),
        Node("fc", "linear", ("flat",)),
    ]
    modules = {
        "conv": nn.Conv2d(2, 2, 3, padding=1),
        "max": nn.MaxPool2d(3, 2, ceil_mode=True),
        "padded": nn.AvgPool2d(4, 3, 1, ceil_mode=True),
        "halves": nn.AvgPool2d(2, divisor_override=8),
        "inside": nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        "overlapping": nn.AdaptiveAvgPool2d(3),
        "joined": Concat(),
        "flat": nn.Flatten(),
        "fc": nn.Linear(72, 3),
    }
    return nodes, modules


def decoder_net():
    """What makes images larger, also as what the net returns."""
    first = {"stride": (2, 1), "padding": (1, 0), "output_padding": (1, 0), "groups": 2}
    nodes = [
        Node("x", "input"),
        Node("conv", "conv2d", ("x",), {"stride": 3, "padding": 1}),
        Node("grouped", "conv_transpose2d", ("conv",), first),
        Node("relu", "relu", ("grouped",)),
        Node(
            "dilated", "conv_transpose2d", ("relu",), {"dilation": (1, 2), "output_padding": (0, 0)}
        ),
        Node("last", "conv_transpose2d", ("dilated",), {"stride": 3, "output_padding": (2, 1)}),
    ]
    modules = {
        "conv": nn.Conv2d(2, 4, 3, 3, 1),
        "grouped": nn.ConvTranspose2d(4, 6, 3, (2, 1), (1, 0), (1, 0), groups=2),
        "relu": nn.ReLU(),
        "dilated": nn.ConvTranspose2d(6, 5, (1, 2), dilation=(1, 2), bias=False),
        "last": nn.ConvTranspose2d(5, 3, 2, 3, 0, (2, 1)),
    }
    return nodes, modules


def between_net():
    """Pixels between others, with ends in both ways, before a ReLU and as the output."""
    nodes = [
        Node("x", "input"),
        Node("conv", "conv2d", ("x",), {"stride": 3, "padding": 1}),
        Node("twice", "interpolate", ("conv",), {"size": (4, 4)}),
        Node("relu", "relu", ("twice",)),
        Node("corners", "interpolate", ("relu",), {"size": (7, 3), "corners": True}),
        Node("mixed", "conv2d", ("corners",), {"padding": 1}),
        Node("smaller", "interpolate", ("mixed",), {"size": (5, 1)}),
    ]
    modules = {
        "conv": nn.Conv2d(2, 3, 3, 3, 1),
        "twice": nn.Upsample(scale_factor=2, mode="bilinear"),
        "relu": nn.ReLU(),
        "corners": nn.Upsample((7, 3), mode="bilinear", align_corners=True),
        "mixed": nn.Conv2d(3, 4, 3, padding=1),
        "smaller": nn.Upsample((5, 1), mode="bilinear"),
    }
    return nodes, modules


NETS = {
    "image": image_net,
    "vector": vector_net,
    "pools": pools_net,
    "decoder": decoder_net,
    "between": between_net,
}
SHAPE = (2, 6, 6)
OF_SUMS = ("linear", "conv2d", "conv_transpose2d")
ROUNDING = (
    "input",
    "batch_norm",
    "table",
    "avg_pool",
    "adaptive_avg_pool",
    "global_avg_pool",
    "interpolate",
    "add",
    "concat",
    "narrow",
)


def spread_rows(value, rng):
    """Weights whose rows, the first excepted, are several powers of two apart."""
    sizes = [2.0 ** rng.randint(-9, 3) for _ in range(value.shape[0] - 1)]
    return value * torch.tensor([1.0, *sizes]).view(-1, *[1] * (value.dim() - 1))


def make_net(name, seed, exponents="tensor"):
    """(nodes, BFP model) with parameters and statistics of many scales, of each row with "row"."""
    rng = random.Random(f"{name} {seed}")
    nodes, modules = NETS[name]()
    model = Graph(nodes, modules)
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if not value.dtype.is_floating_point:
                continue
            scale = 2.0 ** rng.randint(-4, 2)
            numbers = [rng.gauss(0.0, scale) for _ in range(value.numel())]
            if key.endswith("running_var"):
                numbers = [abs(number) for number in numbers]
            value.copy_(torch.tensor(numbers).view(value.shape))
            if exponents == "row" and value.dim() > 1:
                value.copy_(spread_rows(value, rng))
    return nodes, convert(model, exponents=exponents).eval()


def make_images(count, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(count, *SHAPE, generator=generator)


def rounding_nodes(nodes):
    """The names of the sites of a net; that of a batch norm where it is part of a product."""
    taken, norms = taken_by_layers(nodes, ()), deploy.joined_norms(nodes)
    part = {norm.name for norm in norms.values()}
    return [
        norms[node.name].name if node.name in norms else node.name
        for node in nodes
        if (node.op in ROUNDING and node.name not in part)
        or (node.op in OF_SUMS and node.name in taken)
    ]


def shifted(exponents, seed):
    """The exponents, a few off: more codes saturate, others lose bits."""
    rng = random.Random(seed)
    moved = [
        FrozenSite(s.name, s.exponent + rng.choice((-3, -1, 0, 0, 2))) for s in exponents.sites
    ]
    return Exponents(tuple(moved))


def plain(parameter):
    """A parameter as the plain-integer restatement has it."""
    (codes, exponent), delayed = parameter.parts[0], parameter.delayed
    if isinstance(exponent, torch.Tensor):
        exponent = tuple(exponent.flatten().tolist())
    state = (codes.flatten().tolist(), delayed.flatten().tolist(), exponent)
    return Parameter(state, tuple(codes.shape))


def reference(nodes, model, images, exponents):
    """The last node's output by the plain-integer restatement."""
    parameters, buffers = {}, {}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, BFPParameter)
        parameters[name] = plain(parameter)
    for name, buffer in model.named_buffers():
        buffers[name] = buffer.tolist()
    frozen = dict(zip(rounding_nodes(nodes), (s.exponent for s in exponents.sites), strict=True))
    values = images.double().flatten().tolist()
    done = deploy.evaluate(nodes, parameters, buffers, values, tuple(images.shape), frozen)
    return done[nodes[-1].name]


def assert_exported(model, images, exponents):
    """The graph of a model, whose integer form gives the codes of the deployed one."""
    graph = to_graph(model, exponents, tuple(images.shape[1:]), batch=len(images))
    codes, exponent = deployed(model, exponents).codes(images)
    lowered = lower_graph(graph)
    inputs = images
    if images.is_floating_point():
        inputs = quantize_input(images, exponents.sites[0].exponent).codes
    (found,) = run(lowered, [inputs.numpy()])
    assert found.shape == tuple(codes.shape)
    assert_same(found, codes, range(codes.numel()))
    assert lowered.values[lowered.outputs[0]].quantization == Quantization(power(exponent), 0)
    return graph
