"""Nets given twice, as torch.nn modules and as nodes of the plain-integer reference.

Between them they hold every layer that trains in block floating point.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from samebits.spec import formats
from samebits.spec.philox import philox4x32
from samebits.spec.training.cell import Tables
from samebits.spec.training.layers import Parameter
from samebits.spec.training.recurrent import STATES
from samebits.spec.training.step import Node
from samebits.tables.activation import activation_table
from samebits.train import BFPTensor
from samebits.train.operations.attention import join_heads, split_heads
from samebits.train.operations.matmul import product
from samebits.train.operations.narrow import as_bfp
from samebits.train.operations.recurrent import tables
from samebits.train.operations.softmax import mask, softmax

SEED = 11


class Sum(nn.Module):
    def forward(self, a, b):
        return a + b


class Concat(nn.Module):
    def forward(self, *tensors):
        return torch.cat(tensors, 1)


class Select(nn.Module):
    def __init__(self, axis, index):
        super().__init__()
        self.place = (slice(None),) * axis + (index,)

    def forward(self, x):
        return x[self.place]


def first(output):
    """An LSTM gives a pair: its output and its last states."""
    return output[0] if isinstance(output, tuple) else output


class Graph(nn.Module):
    """Runs modules along reference nodes: a module's name is its node's name."""

    def __init__(self, nodes: list[Node], modules: dict[str, nn.Module]):
        super().__init__()
        self.nodes = nodes
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, inputs):
        values = dict(inputs)
        for node in self.nodes:
            if node.op != "input":
                module = self._modules[node.name]
                given = [values[n] for n in node.inputs]
                if (names := STATES.get(node.op)) is not None:
                    x, *states = given
                    pair = len(names) > 1
                    output, last = module(x, *([tuple(states)] if pair and states else states))
                    last = last if pair else (last,)
                    values |= {f"{node.name}.{n}": v for n, v in zip(names, last, strict=True)}
                    values[node.name] = output
                else:
                    values[node.name] = module(*given)
        return values[self.nodes[-1].name]


@dataclass(frozen=True)
class Case:
    """A net with its data; `scales` are the standard deviations of initial parameters."""

    nodes: list[Node]
    modules: Callable[[], dict[str, nn.Module]]
    inputs: dict[str, tuple[int, ...]]  # of one shard; integers where the name is "tokens"
    loss: str
    targets: tuple[int, ...]
    scales: dict[str, float] = field(default_factory=dict)
    tokens: int = 0

    def build(self) -> Graph:
        """The float model; the initial values depend on parameter names alone."""
        model = Graph(self.nodes, self.modules())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                scale = self.scales.get(name, 0.4)
                centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
                rng = random.Random(name)
                values = [rng.gauss(centre, scale) for _ in range(parameter.numel())]
                parameter.copy_(torch.tensor(values).view(parameter.shape) if scale else 0.0)
        return model

    def shard(self, step: int, index: int):
        rng = random.Random(f"{step} {index}")
        inputs = {}
        for name, shape in self.inputs.items():
            count = math.prod(shape)
            if name == "tokens":
                inputs[name] = [rng.randrange(self.tokens) for _ in range(count)]
            else:
                inputs[name] = [float(torch.tensor(rng.gauss(0.2, 1.0))) for _ in range(count)]
        if self.loss == "mse":
            return inputs, [
                float(torch.tensor(rng.gauss(0, 1))) for _ in range(math.prod(self.targets))
            ]
        rows, classes = self.targets
        return inputs, [rng.randrange(classes) for _ in range(rows)]


def residual_nodes() -> list[Node]:
    """Every layer of a small residual image classifier."""
    return [
        Node("x", "input"),
        Node("conv1", "conv2d", ("x",), {"padding": 1}),
        Node("norm1", "batch_norm", ("conv1",)),
        Node("relu1", "relu", ("norm1",)),
        Node("depthwise", "conv2d", ("relu1",), {"padding": 1, "groups": 5}),
        Node("norm2", "batch_norm", ("depthwise",), {"eps": 1e-3, "momentum": 0.3}),
        Node("sum1", "add", ("norm2", "relu1")),
        Node("relu2", "relu", ("sum1",)),
        Node("strided", "conv2d", ("relu2",), {"stride": 2, "padding": 1}),
        Node("norm3", "batch_norm", ("strided",)),
        Node("shortcut", "conv2d", ("relu2",), {"stride": 2}),
        Node("sum2", "add", ("norm3", "shortcut")),
        Node("relu3", "relu", ("sum2",)),
        Node("pool", "max_pool", ("relu3",), {"kernel": 3, "stride": 2, "padding": 1}),
        Node("mean", "global_avg_pool", ("pool",)),
        Node("flat", "flatten", ("mean",)),
        Node("fc", "linear", ("flat",)),
    ]


def residual_modules() -> dict[str, nn.Module]:
    return {
        "conv1": nn.Conv2d(3, 5, 3, padding=1, bias=False),
        "norm1": nn.BatchNorm2d(5),
        "relu1": nn.ReLU(),
        "depthwise": nn.Conv2d(5, 5, 3, padding=1, groups=5, bias=False),
        "norm2": nn.BatchNorm2d(5, eps=1e-3, momentum=0.3),
        "sum1": Sum(),
        "relu2": nn.ReLU(inplace=True),
        "strided": nn.Conv2d(5, 6, 3, stride=2, padding=1),
        "norm3": nn.BatchNorm2d(6),
        "shortcut": nn.Conv2d(5, 6, 1, stride=2, bias=False),
        "sum2": Sum(),
        "relu3": nn.ReLU(),
        "pool": nn.MaxPool2d(3, stride=2, padding=1),
        "mean": nn.AdaptiveAvgPool2d(1),
        "flat": nn.Flatten(),
        "fc": nn.Linear(6, 4),
    }


RESIDUAL = Case(
    residual_nodes(),
    residual_modules,
    {"x": (3, 3, 6, 6)},
    "cross_entropy",
    (3, 4),
    # Tiny and zero parameters: their exponents must move far at the first updates.
    {"fc.bias": 0.0, "norm2.bias": 0.0, "depthwise.weight": 1e-7, "strided.bias": 1e-30},
)


def table(name: str, slope: float | None = None):
    @functools.cache
    def at(exponent):
        t = activation_table(name, exponent, slope)
        return (list(t.codes), t.exponent), (list(t.derivative_codes), t.derivative_exponent)

    return {"table": at, "bounded": name in ("tanh", "sigmoid")}


def everything_nodes() -> list[Node]:
    """Every other layer: tokens and an image, joined."""
    return [
        Node("tokens", "input"),
        Node("x", "input"),
        Node("embed", "embedding", ("tokens",)),
        Node("norm", "layer_norm", ("embed",)),
        Node("up", "linear", ("norm",)),
        Node("gelu", "table", ("up",), table("gelu")),
        Node("drop1", "dropout", ("gelu",), {"p": 0.25}),
        Node("none", "dropout", ("drop1",), {"p": 0.0}),
        Node("flat1", "flatten", ("none",)),
        Node("tanh", "table", ("flat1",), table("tanh")),
        Node("grouped", "conv2d", ("x",), {"padding": 2, "dilation": 2, "groups": 2}),
        Node("clip", "relu6", ("grouped",)),
        Node("average", "avg_pool", ("clip",), {"kernel": 3, "stride": 2, "padding": 1}),
        Node("leaky", "table", ("grouped",), table("leaky_relu", 0.2)),
        Node(
            "max", "max_pool", ("leaky",), {"kernel": (2, 3), "stride": (2, 2), "padding": (0, 1)}
        ),
        Node("both", "concat", ("average", "max", "average")),
        Node("silu", "table", ("both",), table("silu")),
        Node("drop2", "dropout", ("silu",), {"p": 0.1}),
        Node("narrow", "conv2d", ("drop2",), {"stride": (2, 1)}),
        Node("sigmoid", "table", ("narrow",), table("sigmoid")),
        Node("flat2", "flatten", ("sigmoid",)),
        Node("join", "concat", ("tanh", "flat2")),
        Node("norm1d", "batch_norm", ("join",)),
        Node("fc", "linear", ("norm1d",)),
    ]


def everything_modules() -> dict[str, nn.Module]:
    return {
        "embed": nn.Embedding(7, 6),
        "norm": nn.LayerNorm(6),
        "up": nn.Linear(6, 3),
        "gelu": nn.GELU(),
        "drop1": nn.Dropout(0.25),
        "none": nn.Dropout(0.0),
        "flat1": nn.Flatten(),
        "tanh": nn.Tanh(),
        "grouped": nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2),
        "clip": nn.ReLU6(),
        "average": nn.AvgPool2d(3, stride=2, padding=1),
        "leaky": nn.LeakyReLU(0.2),
        "max": nn.MaxPool2d((2, 3), stride=2, padding=(0, 1)),
        "both": Concat(),
        "silu": nn.SiLU(),
        "drop2": nn.Dropout(0.1),
        "narrow": nn.Conv2d(18, 2, (2, 1), stride=(2, 1)),
        "sigmoid": nn.Sigmoid(),
        "flat2": nn.Flatten(),
        "join": Concat(),
        "norm1d": nn.BatchNorm1d(24),
        "fc": nn.Linear(24, 2),
    }


EVERYTHING = Case(
    everything_nodes(),
    everything_modules,
    {"tokens": (3, 6), "x": (3, 4, 6, 5)},
    "mse",
    (3, 2),
    {"up.bias": 0.0, "grouped.weight": 3.0, "grouped.bias": 2.0},
    tokens=7,
)


def recurrent_nodes() -> list[Node]:
    """LSTM layers of every kind: tokens, batch first; and a sequence, steps first."""
    tables = {"tables": lstm_tables()}
    return [
        Node("tokens", "input"),
        Node("x", "input"),
        Node("embed", "embedding", ("tokens",)),
        Node("both", "lstm", ("embed",), {"bidirectional": True, "batch_first": True, **tables}),
        Node("stack", "lstm", ("both",), {"num_layers": 2, "batch_first": True, **tables}),
        Node("end", "select", ("stack",), {"axis": 1, "index": -1}),
        Node("up", "linear", ("x",)),
        Node("deep", "lstm", ("up",), {"num_layers": 2, "bidirectional": True, **tables}),
        Node("second", "select", ("deep",), {"axis": 0, "index": 1}),
        Node("bare", "lstm", ("up",), tables),
        Node("start", "select", ("bare",), {"axis": 0, "index": 0}),
        Node("join", "concat", ("end", "second", "start")),
        Node("fc", "linear", ("join",)),
    ]


def recurrent_modules() -> dict[str, nn.Module]:
    return {
        "embed": nn.Embedding(7, 3),
        "both": nn.LSTM(3, 2, bidirectional=True, batch_first=True),
        "stack": nn.LSTM(4, 4, 2, batch_first=True),
        "end": Select(1, -1),
        "up": nn.Linear(2, 3),
        "deep": nn.LSTM(3, 3, 2, bidirectional=True),
        "second": Select(0, 1),
        "bare": nn.LSTM(3, 2, bias=False),
        "start": Select(0, 0),
        "join": Concat(),
        "fc": nn.Linear(12, 3),
    }


@functools.cache
def lstm_tables() -> Tables:
    return Tables(*tables("cpu").tolist())


RECURRENT = Case(
    recurrent_nodes(),
    recurrent_modules,
    {"tokens": (3, 5), "x": (4, 3, 2)},
    "cross_entropy",
    (3, 3),
    {"both.bias_ih_l0": 4.0, "stack.weight_hh_l1": 2.0, "deep.bias_hh_l0": 1e-20},
    tokens=7,
)


def states_nodes(samples: int) -> list[Node]:
    """Recurrent layers of every kind that give and take states, with dropout between layers."""
    tables = {"tables": lstm_tables()}
    both = {"bidirectional": True, **tables}
    return [
        Node("x", "input"),
        Node("up", "linear", ("x",)),
        Node("start", "own"),
        Node("starts", "expand", ("start",), {"shape": (2, samples, 3)}),
        Node("gru", "gru", ("up", "starts"), {"num_layers": 2, "dropout": 0.25, **tables}),
        Node("turned", "gru", ("gru", "gru.h_n"), both),
        Node("code", "lstm", ("up",), {"num_layers": 2, "dropout": 0.3, **both}),
        Node("decode", "lstm", ("turned", "code.h_n", "code.c_n"), {"num_layers": 2, **both}),
        Node("first", "select", ("gru",), {"axis": 0, "index": 0}),
        Node("seed", "select", ("code.c_n",), {"axis": 0, "index": 2}),
        Node("relu", "rnn", ("decode",), {"num_layers": 2, "dropout": 0.5, "relu": True, **tables}),
        Node("begin", "linear", ("relu.h_n",)),
        Node("swapped", "lstm", ("x", "begin", "relu.h_n"), {"num_layers": 2, **tables}),
        Node("tanh", "rnn", ("relu", "decode.h_n"), {"num_layers": 2, **both}),
        Node("ends", "select", ("tanh",), {"axis": 0, "index": 1}),
        Node("left", "select", ("turned.h_n",), {"axis": 0, "index": 1}),
        Node("cell", "select", ("decode.c_n",), {"axis": 0, "index": 3}),
        Node("last", "select", ("tanh.h_n",), {"axis": 0, "index": 0}),
        Node("tail", "select", ("swapped",), {"axis": 0, "index": -1}),
        Node("join", "concat", ("first", "seed", "ends", "left", "cell", "last", "tail")),
        Node("fc", "linear", ("join",)),
    ]


def states_modules(samples: int) -> dict[str, nn.Module]:
    return {
        "up": nn.Linear(2, 3),
        "start": Own(2, 1, 3),
        "starts": Call(lambda x: x.expand(2, samples, 3)),
        "gru": nn.GRU(3, 3, 2, dropout=0.25),
        "turned": nn.GRU(3, 3, bidirectional=True),
        "code": nn.LSTM(3, 2, 2, dropout=0.3, bidirectional=True),
        "decode": nn.LSTM(6, 2, 2, bidirectional=True),
        "first": Select(0, 0),
        "seed": Select(0, 2),
        "relu": nn.RNN(4, 2, 2, nonlinearity="relu", dropout=0.5),
        "begin": nn.Linear(2, 2),
        "swapped": nn.LSTM(2, 2, 2),
        "tanh": nn.RNN(2, 2, 2, bidirectional=True, bias=False),
        "ends": Select(0, 1),
        "left": Select(0, 1),
        "cell": Select(0, 3),
        "last": Select(0, 0),
        "tail": Select(0, -1),
        "join": Concat(),
        "fc": nn.Linear(18, 3),
    }


STEPS = 3


def states_case(samples: int) -> Case:
    return Case(
        states_nodes(samples),
        functools.partial(states_modules, samples),
        {"x": (STEPS, samples, 2)},
        "cross_entropy",
        (samples, 3),
        {"start": 2.0, "gru.bias_hh_l0": 3.0, "turned.weight_hh_l0": 1.5, "begin.weight": 2.0},
    )


class Own(nn.Module):
    """A module of a user, with a parameter of its own."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))

    def forward(self):
        return as_bfp(self.weight, "own")


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *x):
        return self.function(*x)


HEADS, TOKENS = 2, 3


def causal(samples: int) -> list[bool]:
    """Which keys count for which queries, in every head."""
    return [j <= i for _ in range(samples * HEADS) for i in range(TOKENS) for j in range(TOKENS)]


def masked_softmax(scores):
    allowed = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    return softmax(mask(scores, allowed), -1)


def attention_nodes(samples: int) -> list[Node]:
    """A layer of a transformer: heads of attention, and a norm by the root mean square."""
    heads = {"heads": HEADS}
    shape = {"shape": (samples, TOKENS, 6)}
    return [
        Node("tokens", "input"),
        Node("embed", "embedding", ("tokens",)),
        Node("place", "own"),
        Node("places", "expand", ("place",), shape),
        Node("sum", "add", ("embed", "places")),
        Node("norm", "rms_norm", ("sum",)),
        *(Node(name, "linear", ("norm",)) for name in ("query", "key", "value")),
        *(Node(f"{name}s", "split_heads", (name,), heads) for name in ("query", "key", "value")),
        Node("scores", "matmul", ("querys", "keys"), {"transposed": True}),
        Node("scaled", "scale", ("scores",), {"factor": 3**-0.5}),
        Node("softmax", "softmax", ("scaled",), {"allowed": causal(samples)}),
        Node("drop1", "dropout", ("softmax",), {"p": 0.2}),
        Node("open", "softmax", ("scaled",)),
        Node("gated", "multiply", ("drop1", "open")),
        Node("mixed", "matmul", ("gated", "values")),
        Node("joined", "join_heads", ("mixed",), heads),
        Node("out", "linear", ("joined",)),
        Node("residual", "add", ("out", "sum")),
        Node("norm2", "layer_norm", ("residual",)),
        Node("twins", "matmul", ("norm2", "norm2"), {"transposed": True}),
        Node("twice", "add", ("twins", "twins")),
        Node("flat", "flatten", ("twice",)),
        Node("fc", "linear", ("flat",)),
    ]


def attention_modules(samples: int) -> dict[str, nn.Module]:
    return {
        "embed": nn.Embedding(7, 6),
        "place": Own(1, TOKENS, 6),
        "places": Call(lambda x: x.expand(samples, TOKENS, 6)),
        "sum": Sum(),
        "norm": nn.RMSNorm(6, 1e-5),
        **{name: nn.Linear(6, 6) for name in ("query", "key", "value")},
        **{f"{n}s": Call(lambda x: split_heads(x, HEADS)) for n in ("query", "key", "value")},
        "scores": Call(lambda a, b: product(a, b, transposed=True)),
        "scaled": Call(lambda x: x * 3**-0.5),
        "softmax": Call(masked_softmax),
        "drop1": nn.Dropout(0.2),
        "open": nn.Softmax(-1),
        "gated": Call(torch.mul),
        "mixed": Call(torch.matmul),
        "joined": Call(lambda x: join_heads(x, HEADS)),
        "out": nn.Linear(6, 6),
        "residual": Sum(),
        "norm2": nn.LayerNorm(6),
        "twins": Call(lambda a, b: product(a, b, transposed=True)),
        "twice": Sum(),
        "flat": nn.Flatten(),
        "fc": nn.Linear(TOKENS * TOKENS, 3),
    }


def attention_case(samples: int) -> Case:
    return Case(
        attention_nodes(samples),
        functools.partial(attention_modules, samples),
        {"tokens": (samples, TOKENS)},
        "cross_entropy",
        (samples, 3),
        {"query.bias": 0.0, "key.weight": 2.0},
        tokens=7,
    )


ATTENTION = attention_case(3)


class StochasticDepth(nn.Module):
    """As torchvision names it; its twin is made by this name."""

    __module__ = "torchvision.ops.stochastic_depth"

    def __init__(self, p: float, mode: str):
        super().__init__()
        self.p, self.mode = p, mode


def pooled_nodes() -> list[Node]:
    """Pools whose windows have several sizes, and branches that are dropped for whole samples."""
    last, inside = {"kernel": 3, "stride": 2, "ceil": True}, {"include_pad": False}
    return [
        Node("x", "input"),
        Node("conv1", "conv2d", ("x",), {"padding": 1}),
        Node("groups", "group_norm", ("conv1",), {"groups": 2}),
        Node("max", "max_pool", ("groups",), last),
        Node("conv2", "conv2d", ("max",), {"padding": 1}),
        Node("rows", "stochastic_depth", ("conv2",), {"p": 0.4}),
        Node("sum1", "add", ("rows", "max")),
        Node("inside", "avg_pool", ("sum1",), {"kernel": 3, "stride": 1, "padding": 1, **inside}),
        Node("all", "stochastic_depth", ("inside",), {"p": 0.3, "mode": "batch"}),
        Node("sum2", "add", ("sum1", "all")),
        Node("mean", "avg_pool", ("sum2",), {"kernel": 2, "ceil": True}),
        Node("third", "avg_pool", ("sum2",), {"kernel": 2, "ceil": True, "divisor": 3}),
        Node("sum3", "add", ("mean", "third")),
        Node("parts", "adaptive_avg_pool", ("sum2",), {"size": (2, 4)}),
        Node("flat1", "flatten", ("sum3",)),
        Node("flat2", "flatten", ("parts",)),
        Node("join", "concat", ("flat1", "flat2")),
        Node("fc", "linear", ("join",)),
    ]


def pooled_modules() -> dict[str, nn.Module]:
    return {
        "conv1": nn.Conv2d(2, 4, 3, padding=1),
        "groups": nn.GroupNorm(2, 4),
        "max": nn.MaxPool2d(3, 2, ceil_mode=True),
        "conv2": nn.Conv2d(4, 4, 3, padding=1),
        "rows": StochasticDepth(0.4, "row"),
        "sum1": Sum(),
        "inside": nn.AvgPool2d(3, 1, 1, count_include_pad=False),
        "all": StochasticDepth(0.3, "batch"),
        "sum2": Sum(),
        "mean": nn.AvgPool2d(2, ceil_mode=True),
        "third": nn.AvgPool2d(2, ceil_mode=True, divisor_override=3),
        "sum3": Sum(),
        "parts": nn.AdaptiveAvgPool2d((2, 4)),
        "flat1": nn.Flatten(),
        "flat2": nn.Flatten(),
        "join": Concat(),
        "fc": nn.Linear(48, 3),
    }


POOLED = Case(
    pooled_nodes(), pooled_modules, {"x": (3, 2, 7, 6)}, "cross_entropy", (3, 3), {"conv2.bias": 0}
)


def vectors_nodes(samples: int) -> list[Node]:
    """Vectors of four axes, sums that a softmax takes, and a user's parameters of 0 to 2 axes."""
    return [
        Node("x", "input"),
        Node("conv", "conv2d", ("x",)),
        Node("norm", "layer_norm", ("conv",)),
        Node("mix", "linear", ("norm",)),
        Node("gate", "linear", ("norm",)),
        Node("soft", "softmax", ("gate",)),
        Node("gated", "add", ("soft", "mix")),
        Node("norm2", "rms_norm", ("gated",)),
        Node("gain", "own"),
        Node("gains", "expand", ("gain",), {"shape": (samples, 2, 3, 4)}),
        Node("scaled", "multiply", ("norm2", "gains")),
        Node("shift", "own"),
        Node("shifts", "expand", ("shift",), {"shape": (samples, 2, 3, 4)}),
        Node("sum", "add", ("scaled", "shifts")),
        Node("flat", "flatten", ("sum",)),
        Node("classes", "own"),
        Node("narrow", "matmul", ("flat", "classes")),
        Node("fc", "linear", ("narrow",)),
    ]


def vectors_modules(samples: int) -> dict[str, nn.Module]:
    whole = (samples, 2, 3, 4)
    return {
        "conv": nn.Conv2d(2, 2, 1),
        "norm": nn.LayerNorm(4),
        "mix": nn.Linear(4, 4),
        "gate": nn.Linear(4, 4, bias=False),
        "soft": nn.Softmax(-1),
        "gated": Sum(),
        "norm2": nn.RMSNorm(4, 1e-5),
        "gain": Own(),
        "gains": Call(lambda x: x.expand(whole)),
        "scaled": Call(torch.mul),
        "shift": Own(4),
        "shifts": Call(lambda x: x.expand(whole)),
        "sum": Sum(),
        "flat": nn.Flatten(),
        "classes": Own(24, 5),
        "narrow": Call(torch.matmul),
        "fc": nn.Linear(5, 3),
    }


def vectors_case(samples: int) -> Case:
    return Case(
        vectors_nodes(samples),
        functools.partial(vectors_modules, samples),
        {"x": (samples, 2, 3, 4)},
        "cross_entropy",
        (samples, 3),
        {"gate.weight": 2.0},
    )


VECTORS = vectors_case(3)
STATEFUL = states_case(3)


def decoder_nodes() -> list[Node]:
    """What makes images larger."""
    grouped = {"stride": 2, "padding": 1, "output_padding": (1, 0), "groups": 2}
    return [
        Node("x", "input"),
        Node("conv1", "conv2d", ("x",), {"stride": 2, "padding": 1}),
        Node("norm1", "batch_norm", ("conv1",)),
        Node("relu1", "relu", ("norm1",)),
        Node("grouped", "conv_transpose2d", ("relu1",), grouped),
        Node("clip", "relu6", ("grouped",)),
        Node(
            "dilated",
            "conv_transpose2d",
            ("clip",),
            {"padding": (0, 1), "dilation": (1, 2), "stride": (3, 1), "output_padding": (2, 0)},
        ),
        Node("point", "conv_transpose2d", ("clip",), {"stride": (3, 1), "output_padding": (2, 0)}),
        Node("sum", "add", ("dilated", "point")),
        Node("mean", "avg_pool", ("sum",), {"kernel": (3, 2)}),
        Node("reflected", "copies", ("mean",), {"along": {2: [1, 0, 1, 2, 3], 3: [0, 1, 0]}}),
        Node("between", "interpolate", ("reflected",), {"size": (7, 4)}),
        Node("mix", "conv2d", ("between",)),
        Node("edge", "copies", ("mix",), {"along": {2: [0, 0, 1, 2, 3, 4, 5, 6]}}),
        Node("corners", "interpolate", ("edge",), {"size": (3, 6), "corners": True}),
        Node("twice", "copies", ("corners",), {"along": {2: [0, 0, 1, 1, 2, 2]}}),
        Node("flat", "flatten", ("twice",)),
        Node("fc", "linear", ("flat",)),
    ]


def decoder_modules() -> dict[str, nn.Module]:
    return {
        "conv1": nn.Conv2d(2, 4, 3, 2, 1),
        "norm1": nn.BatchNorm2d(4),
        "relu1": nn.ReLU(),
        "grouped": nn.ConvTranspose2d(4, 6, 3, 2, 1, (1, 0), groups=2),
        "clip": nn.ReLU6(),
        "dilated": nn.ConvTranspose2d(
            6, 3, (2, 3), (3, 1), (0, 1), (2, 0), dilation=(1, 2), bias=False
        ),
        "point": nn.ConvTranspose2d(6, 3, (2, 3), (3, 1), 0, (2, 0)),
        "sum": Sum(),
        "mean": nn.AvgPool2d((3, 2)),
        "reflected": nn.ReflectionPad2d((0, 1, 1, 0)),
        "between": nn.Upsample((7, 4), mode="bilinear"),
        "mix": nn.Conv2d(3, 2, 1),
        "edge": nn.ReplicationPad2d((0, 0, 1, 0)),
        "corners": nn.Upsample((3, 6), mode="bilinear", align_corners=True),
        "twice": nn.Upsample(scale_factor=(2.0, 1.0)),
        "flat": nn.Flatten(),
        "fc": nn.Linear(72, 3),
    }


DECODER = Case(
    decoder_nodes(),
    decoder_modules,
    {"x": (3, 2, 4, 4)},
    "cross_entropy",
    (3, 3),
    {"point.bias": 2.0, "grouped.weight": 1e-7},
)
CASES = {
    "residual": RESIDUAL,
    "everything": EVERYTHING,
    "recurrent": RECURRENT,
    "attention": ATTENTION,
    "pooled": POOLED,
    "vectors": VECTORS,
    "states": STATEFUL,
    "decoder": DECODER,
}
OF_ONE_SAMPLE = {
    "residual of one sample": replace(RESIDUAL, inputs={"x": (1, 3, 6, 6)}, targets=(1, 4)),
    "everything of one sample": replace(
        EVERYTHING, inputs={"tokens": (1, 6), "x": (1, 4, 6, 5)}, targets=(1, 2)
    ),
    "recurrent of one sample": replace(
        RECURRENT, inputs={"tokens": (1, 5), "x": (4, 1, 2)}, targets=(1, 3)
    ),
    "attention of one sample": attention_case(1),
    "vectors of one sample": vectors_case(1),
    "states of one sample": states_case(1),
    "decoder of one sample": replace(DECODER, inputs={"x": (1, 2, 4, 4)}, targets=(1, 3)),
    "pooled of one sample": replace(POOLED, inputs={"x": (1, 2, 7, 6)}, targets=(1, 3)),
}


def dropout_words(case: Case, shapes: dict[str, int], step: int, shard: int):
    """Philox words by the formula, one dropout site after the other."""
    sites = [name for node in case.nodes for name in dropout_sites(node)]
    return {
        name: [
            philox4x32((i // 4, step, shard, 0), (SEED, site))[i % 4] for i in range(shapes[name])
        ]
        for site, name in enumerate(sites)
    }


def dropout_sites(node: Node) -> list[str]:
    """The names of the dropout layers of a node."""
    if node.op in ("dropout", "stochastic_depth"):
        return [node.name]
    layers = node.attributes.get("num_layers", 1) if node.attributes.get("dropout") else 1
    return [f"{node.name}.dropout_l{index}" for index in range(1, layers)]


def dropout_sizes(case: Case) -> dict[str, int]:
    samples = case.targets[0]
    each = {"drop1": 18, "none": 18, "drop2": 18 * 3 * 3} if case.loss == "mse" else {}
    if any(node.op == "split_heads" for node in case.nodes):
        each = {"drop1": HEADS * TOKENS * TOKENS}
    if any(node.op == "stochastic_depth" for node in case.nodes):
        return {"rows": samples, "all": 1}
    if any(node.op == "gru" for node in case.nodes):
        each = {f"{n}.dropout_l1": STEPS * w for n, w in (("gru", 3), ("code", 4), ("relu", 2))}
    return {name: samples * size for name, size in each.items()}


def watched(model: nn.Module) -> dict[str, BFPTensor]:
    """Filled by a forward pass: every module's output, whose gradient is then kept."""
    outputs: dict[str, BFPTensor] = {}

    def watch(name):
        def hook(module, args, output):
            outputs[name] = output = first(output)
            if output.requires_grad:
                output.retain_grad()

        return hook

    for name, module in model.named_children():
        module.register_forward_hook(watch(name))
    return outputs


def state_of(net: nn.Module, by_rows: bool, widths: Mapping[str, tuple[int, int, int]]):
    """The parameters and buffers of a float net as the reference has them.

    widths: of the layers that have others than 8, 16 and 32 bits, by name
    """
    parameters = {}
    for name, parameter in net.named_parameters():
        values, shape = parameter.detach().flatten().tolist(), tuple(parameter.shape)
        own_widths = widths.get(name.split(".")[0], (8, 16, 32))
        rows = shape[0] if by_rows and len(shape) > 1 else 1
        size = len(values) // rows
        states = [
            formats.initial_weight(values[i * size : (i + 1) * size], name, own_widths[0])
            for i in range(rows)
        ]
        codes, delayed = ([v for state in states for v in state[part]] for part in (0, 1))
        own = tuple(state[2] for state in states)
        weight = (codes, delayed, own if by_rows and len(shape) > 1 else own[0])
        parameters[name] = Parameter(weight, shape, own_widths)
    buffers = {
        name: b.double().tolist()
        for name, b in net.named_buffers()
        if not name.endswith("num_batches_tracked")
    }
    return parameters, buffers
