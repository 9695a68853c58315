"""Exponents by rows, shifts of channels and other widths: the bits of the plain-integer reference.

Nets that hold every layer, with weights, inputs and gradients whose rows differ by many binades and
rows of zeros; widths drawn for every layer (docs/spec/training.md, sections 12 and 13).
"""

from __future__ import annotations

import functools
import math
import random

import pytest
import torch
from torch import nn

from realisations import eager_slowly
from reference_nets import (
    CASES,
    OF_ONE_SAMPLE,
    SEED,
    Case,
    dropout_sizes,
    dropout_words,
    state_of,
    watched,
)
from samebits.errors import InputError, RangeError, UnsupportedError
from samebits.spec.training import optimizer as reference_optimizers
from samebits.spec.training import step as reference
from samebits.spec.training.layers import Array, quantize_input
from samebits.spec.training.step import PEAKS
from samebits.train import SGD, Adam, BFPTensor, convert, cross_entropy, mse_loss, set_step
from samebits.train.convert import model_input
from samebits.train.deferred import deferred_updates
from samebits.train.widths import Widths

Layers = dict[str, tuple[int, int, int]]


# --- nets with rows of very different size ----------------------------------------------------


def spread_net(case: Case, spread: int, seed: int) -> nn.Module:
    """The float net, every row of its matrices times a power of two of its own."""
    net, rng = case.build(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() > 1:
                size = (parameter.shape[0], *[1] * (parameter.dim() - 1))
                powers = torch.randint(-spread, spread + 1, size, generator=rng)
                parameter.mul_(torch.exp2(powers.float()))
    return net


def drawn_widths(net: nn.Module, seed: int) -> Layers:
    """Widths of every layer that has parameters, and of the input."""
    rng = random.Random(f"widths {seed}")
    found = {}
    for name, layer in net.named_children():
        if list(layer.parameters()):
            values = rng.randint(4, 8)
            sums = random.Random(f"sums {seed} {name}").choice((16, 32))
            found[name] = (values, rng.randint(values + 1, 16), sums)
    return found | {"input": (rng.randint(4, 8), 16, 32)}


def channels_of(layer: nn.Module) -> int:
    """The channels of a layer's output."""
    transposed = isinstance(layer, nn.ConvTranspose2d)
    return layer.out_channels if transposed else layer.weight.shape[0]


def peaks_of(case: Case, net: nn.Module, seed: int) -> dict[str, list[float]]:
    """Magnitudes of channels before the pass, some of them outliers."""
    rng = random.Random(f"peaks {seed}")
    shifting = ("linear", "conv2d", "batch_norm", "layer_norm", "rms_norm", "group_norm")
    shifting += ("conv_transpose2d",)
    return {
        f"{node.name}.{PEAKS}": [
            rng.choice((0.0, 1.0, 1.5, 40.0, 700.0, 1e4, 1e9))
            for _ in range(channels_of(dict(net.named_children())[node.name]))
        ]
        for node in case.nodes
        if node.op in shifting
    }


def shard_of(case: Case, step: int, index: int, spread: int):
    """Inputs whose samples differ by powers of two, some of them zero; and targets."""
    inputs, targets = case.shard(step, index)
    rng = random.Random(f"spread {step} {index}")
    for name, values in inputs.items():
        if name != "tokens":
            size = len(values) // case.inputs[name][0]
            for start in range(0, len(values), size):
                factor = 0.0 if rng.random() < 0.1 else 2.0 ** rng.randint(-spread, spread)
                values[start : start + size] = [v * factor for v in values[start : start + size]]
    return inputs, targets


def of_reference(case: Case, inputs, by_rows: bool, widths: Layers) -> dict[str, Array]:
    bits = widths.get("input", (8, 16, 32))[0]
    return {
        name: Array(values, case.inputs[name], 0, 32)
        if name == "tokens"
        else quantize_input(values, case.inputs[name], by_rows, bits)
        for name, values in inputs.items()
    }


def of_model(case: Case, model: nn.Module, inputs):
    tensors = {name: torch.tensor(v).view(case.inputs[name]) for name, v in inputs.items()}
    return {n: t if n == "tokens" else model_input(model, t) for n, t in tensors.items()}


def converted(net: nn.Module, exponents: str, widths: Layers, peaks) -> nn.Module:
    """The model, with magnitudes of channels if they have shifts."""
    model = convert(net, exponents, widths)
    buffers = dict(model.named_buffers())
    for name, values in peaks.items():
        buffers[name].copy_(torch.tensor(values))
    return model


def assert_same_array(actual: BFPTensor, expected: Array, what: str) -> None:
    codes, exponent = actual.codes, actual.exponent
    assert tuple(codes.shape) == expected.shape, what
    assert isinstance(exponent, int) == isinstance(expected.exponent, int), what
    if isinstance(exponent, torch.Tensor):
        exponents = exponent.expand(codes.shape).flatten().tolist()
    else:
        exponents = [exponent] * codes.numel()
    found = list(zip(codes.flatten().tolist(), exponents, strict=True))
    wanted = list(zip(expected.codes, expected.exponents, strict=True))
    wrong = [(i, f, w) for i, (f, w) in enumerate(zip(found, wanted, strict=True)) if f != w]
    assert not wrong, f"{what}: {len(wrong)} of {len(found)} differ: {wrong[:5]}"


# --- every node of a pass ---------------------------------------------------------------------


class Pass:
    """A net with its data, and what the reference makes of them, once for both realisations."""

    def __init__(self, name: str, training: bool, exponents: str, wide: bool, seed: int) -> None:
        case, spread = (CASES | OF_ONE_SAMPLE)[name], (0, 3, 12)[seed % 3]
        self.net, rng = spread_net(case, spread, seed), random.Random(seed)
        self.widths = {} if wide else drawn_widths(self.net, seed)
        by_rows = exponents != "tensor"
        self.parameters, buffers = state_of(self.net, by_rows, self.widths)
        self.peaks = peaks_of(case, self.net, seed) if exponents == "row-shift" else {}
        self.inputs, _ = shard_of(case, 9, seed, spread)
        words = dropout_words(case, dropout_sizes(case), 3, 1)
        self.by_rows = by_rows or not training
        given = of_reference(case, self.inputs, self.by_rows, self.widths)
        self.done, self.buffers = reference.forward(
            case.nodes, self.parameters, buffers | self.peaks, given, training, words
        )
        last = case.nodes[-1].name
        wanted = self.done.wide[last]
        self.shape = wanted.shape
        self.codes = [rng.randint(-(1 << 30), 1 << 30) >> rng.randint(0, 28) for _ in wanted.codes]
        self.rows = [rng.randint(-60, -20) for _ in range(self.shape[0])]
        own = tuple(self.rows[i // self.shape[1]] for i in range(len(self.codes)))
        at = {last: Array(self.codes, self.shape, own if self.by_rows else -40, 32)}
        found = reference.backward(case.nodes, self.parameters, self.done, at)
        self.at_parameter, self.at_node = found


reference_pass = functools.lru_cache(maxsize=4)(Pass)


def compare_every_node(name: str, training: bool, exponents: str, wide: bool, seed: int) -> None:
    wanted = reference_pass(name, training, exponents, wide, seed)
    case = (CASES | OF_ONE_SAMPLE)[name]
    model = converted(wanted.net, exponents, wanted.widths, wanted.peaks)
    outputs = watched(model)
    model.train(training)
    set_step(model, SEED, 3, 1)
    y = model(of_model(case, model, wanted.inputs))
    for node in case.nodes:
        if node.op != "input":
            expected = wanted.done.wide.get(node.name, wanted.done.outputs[node.name])
            assert_same_array(outputs[node.name], expected, f"output of {node.name}")
    exponent = torch.tensor(wanted.rows).view(-1, 1) if wanted.by_rows else -40
    codes = torch.tensor(wanted.codes, dtype=torch.int32).view(wanted.shape)
    torch.autograd.backward(y, BFPTensor(codes, exponent))
    for node in case.nodes:
        if node.op != "input":
            if node.name not in wanted.at_node:  # its states alone are used
                assert outputs[node.name].grad is None
                continue
            expected = reference.resolve(wanted.at_node[node.name])
            assert_same_array(outputs[node.name].grad, expected, f"gradient at {node.name}")
    for parameter, value in model.named_parameters():
        expected = reference.resolve(wanted.at_parameter[parameter])
        assert_same_array(value.grad, expected, f"gradient of {parameter}")
    for buffer, values in wanted.buffers.items():
        assert dict(model.named_buffers())[buffer].tolist() == values, buffer


@pytest.mark.parametrize(
    ("name", "exponents", "wide", "training"),
    [  # half of them are slow: each net has every option once
        pytest.param(name, *how, training, marks=() if training == (at < 2) else pytest.mark.slow)
        for name in CASES
        for at, how in enumerate(
            [("row", True), ("row-shift", False), ("row-shift", True), ("tensor", False)]
        )
        for training in (True, False)
    ],
)
@eager_slowly
def test_every_node(name, exponents, wide, training, realisation):
    compare_every_node(name, training, exponents, wide, seed=2 if training else 1)


@pytest.mark.parametrize("exponents", ["tensor", "row", "row-shift"])
@pytest.mark.parametrize("name", list(OF_ONE_SAMPLE))
@eager_slowly
def test_every_node_of_one_sample(name, exponents, realisation):
    """A row is not a tensor, where there is one row: gradients are aligned by other rules.

    Batch norm of [1, channels] takes its running statistics: one element has no variance.
    """
    training = not name.startswith("everything")
    compare_every_node(name, training, exponents, True, seed=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("name", list(CASES))
def test_every_node_of_more_nets(name, seed, realisation):
    exponents = ("row", "row-shift", "row-shift", "tensor")[seed // 2 % 4]
    compare_every_node(name, seed % 2 == 0, exponents, seed % 5 == 0, seed)


# --- whole steps -------------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd": (lambda p: SGD(p, lr=0.05, seed=7), reference_optimizers.SGD(0.05, seed=7)),
    "momentum": (
        lambda p: SGD(p, lr=0.3, momentum=0.9, weight_decay=0.05),
        reference_optimizers.SGD(0.3, momentum=0.9, weight_decay=0.05),
    ),
    "nearest": (
        lambda p: SGD(p, lr=0.2, momentum=0.8, nesterov=True, rounding="nearest"),
        reference_optimizers.SGD(0.2, momentum=0.8, nesterov=True, seed=None),
    ),
    "adam": (
        lambda p: Adam(p, lr=0.05, weight_decay=0.01, seed=3),
        reference_optimizers.Adam(0.05, weight_decay=0.01, seed=3),
    ),
    "adamw": (
        lambda p: Adam(p, lr=0.1, betas=(0.8, 0.9), weight_decay=0.1, decoupled=True),
        reference_optimizers.Adam(0.1, 0.8, 0.9, weight_decay=0.1, decoupled=True),
    ),
}


def our_step(case: Case, model: nn.Module, optimizer, step: int, shards) -> list[float]:
    losses = []
    with deferred_updates() as updates:
        for index, (inputs, targets) in enumerate(shards):
            set_step(model, SEED, step, index)
            y = model(of_model(case, model, inputs))
            loss = (
                mse_loss(y, torch.tensor(targets).view(case.targets))
                if case.loss == "mse"
                else cross_entropy(y, torch.tensor(targets))
            )
            losses.append(float(loss.detach()))
            (loss / 2).backward()
    for update in updates:
        update.apply()
    optimizer.step()
    optimizer.zero_grad()
    return losses


@functools.lru_cache(maxsize=2)
def reference_steps(name: str, optimizer: str, exponents: str, wide: bool, steps: int):
    """The net, its widths and shards, and the result of every step; None where it diverges."""
    case, seed, by_rows = CASES[name], len(name) + len(optimizer), exponents != "tensor"
    net = spread_net(case, 3, seed)
    widths = {} if wide else drawn_widths(net, seed)
    parameters, buffers = state_of(net, by_rows, widths)
    peaks = peaks_of(case, net, seed) if exponents == "row-shift" else {}
    buffers, state, results = buffers | peaks, {}, []
    for step in range(steps):
        shards = [shard_of(case, step, index, 3) for index in range(2)]
        try:
            result = reference.step(
                case.nodes,
                parameters,
                buffers,
                state,
                [(of_reference(case, x, by_rows, widths), y) for x, y in shards],
                OPTIMIZERS[optimizer][1],
                case.loss,
                [dropout_words(case, dropout_sizes(case), step, i) for i in range(2)],
            )
        except RangeError:
            assert step > 3
            results.append((shards, None))
            break
        parameters, buffers, state = result.parameters, result.buffers, result.state
        results.append((shards, result))
    return net, widths, peaks, results


def compare_steps(name: str, optimizer: str, exponents: str, wide: bool, steps: int) -> None:
    """Step after step; where the reference diverges, so must the layers."""
    net, widths, peaks, results = reference_steps(name, optimizer, exponents, wide, steps)
    model = converted(net, exponents, widths, peaks)
    ours = OPTIMIZERS[optimizer][0](model.parameters())
    for step, (shards, result) in enumerate(results):
        own = (CASES[name], model, ours, step, shards)
        if result is None:
            with pytest.raises(RangeError):
                our_step(*own)
            return
        assert our_step(*own) == result.losses
        for key, parameter in model.named_parameters():
            codes, delayed, exponent = result.parameters[key].weight
            found = parameter.exponent_cell.tolist()
            where = f"{key} after step {step}"
            assert (tuple(found) if isinstance(found, list) else found) == exponent, where
            assert parameter.codes.flatten().tolist() == codes, where
            assert parameter.delayed.flatten().tolist() == delayed, where
        for key, values in result.buffers.items():
            assert dict(model.named_buffers())[key].tolist() == values, key


@pytest.mark.parametrize(
    ("name", "optimizer", "exponents", "wide"),
    [  # every pair of options
        ("residual", "sgd", "row-shift", True),
        ("residual", "momentum", "row", False),
        ("residual", "adam", "tensor", False),
        ("everything", "momentum", "tensor", False),
        ("everything", "nearest", "row", True),
        ("everything", "adamw", "row-shift", False),
        ("recurrent", "adam", "row", True),
        ("recurrent", "nearest", "row-shift", False),
        ("recurrent", "sgd", "tensor", False),
        ("attention", "momentum", "row-shift", True),
        ("attention", "nearest", "tensor", False),
        ("attention", "adamw", "row", False),
        ("vectors", "sgd", "row-shift", True),
        ("vectors", "momentum", "row-shift", False),
        ("vectors", "adam", "tensor", False),
        ("states", "sgd", "row", True),
        ("states", "adamw", "row-shift", False),
    ],
)
@pytest.mark.parametrize("steps", [2, pytest.param(3, marks=pytest.mark.slow)])
@eager_slowly
def test_training_steps(name, optimizer, exponents, wide, steps, realisation):
    compare_steps(name, optimizer, exponents, wide, steps)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("name", list(CASES))
def test_longer_training(name, optimizer, realisation):
    steps = 4 if name == "states" else 12  # the reference of its many layers is slow
    compare_steps(name, optimizer, "row-shift", False, steps)


# --- edges -------------------------------------------------------------------------------------


def test_codes_stay_within_their_width():
    """After steps that move every exponent up and down."""
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    model = convert(net, "row", (5, 9, 32))
    optimizer = SGD(model.parameters(), lr=2.0, momentum=0.5)
    for step in range(20):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        hidden = model[1](model[0](model_input(model, x)))
        assert hidden.bits == 5
        assert int(hidden.codes.max()) <= 15
        cross_entropy(model[2](hidden), torch.tensor([0, 1, 2, 1])).backward()
        optimizer.step()
        optimizer.zero_grad()
        for parameter in (model[0].weight, model[2].weight):
            largest = parameter.codes.abs().amax(1)
            assert int(largest.max()) <= 15
            assert int(largest.min()) > 7


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        ((8, 8, 32), "widths: expected 9 to 16 bits for gradients, found 8"),
        ((3, 16, 32), "widths: expected 4 to 8 bits for weights and activations, found 3"),
        ((9, 16, 32), "widths: expected 4 to 8 bits for weights and activations, found 9"),
        ((8, 17, 32), "widths: expected 9 to 16 bits for gradients, found 17"),
        ((8, 16, 24), "widths: expected 16 or 32 bits for intermediates, found 24"),
        ((8, 16), "widths: expected three whole numbers, e.g. 8, 16, 32, found (8, 16)"),
        (
            (8.0, 16, 32),
            "widths: expected three whole numbers, e.g. 8, 16, 32, found (8.0, 16, 32)",
        ),
        ({"0": (6, 6, 32)}, "widths of '0': expected 7 to 16 bits for gradients, found 6"),
        (
            {"head": (8, 16, 32)},
            "widths: expected paths of modules, found 'head', where the model has none",
        ),
    ],
)
def test_wrong_widths_are_refused(widths, message):
    with pytest.raises(InputError) as error:
        convert(nn.Sequential(nn.Linear(2, 2)), widths=widths)
    assert str(error.value) == message


def test_widths_by_path_count_for_all_inside():
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
    model = convert(net, widths={"": (7, 14, 32), "0": (6, 12, 16), "0.1": (5, 10, 32)})
    assert model[0][0].weight.widths == Widths(6, 12, 16)
    assert model[0][1].bias.widths == Widths(5, 10)
    assert model[1].weight.widths == Widths(7, 14)
    assert model_input(model, torch.randn(3, 2)).bits == 7


def test_other_exponents_are_refused():
    with pytest.raises(
        InputError, match="exponents: expected one of tensor, row, row-shift, found 'column'"
    ):
        convert(nn.Linear(2, 2), exponents="column")


@pytest.mark.parametrize("layer", [nn.Linear(4, 3), nn.Conv2d(2, 3, 3), nn.LSTM(4, 3)])
def test_inputs_with_one_exponent_are_refused_by_rows(layer):
    """Else a sample's result would depend on its batch, without a word."""
    model = convert(layer, exponents="row")
    x = torch.randn(2, 2, 4, 4) if isinstance(layer, nn.Conv2d) else torch.randn(2, 3, 4)
    with pytest.raises(UnsupportedError, match="model_input"):
        model(BFPTensor.from_real(x))


def test_reading_a_value_by_rows():
    x = torch.tensor([[1.0, -3.0], [2.0**40, 5.0], [0.0, 0.0]])
    y = BFPTensor.from_real(x, by_rows=True)
    assert y.exponent.flatten().tolist() == [-5, 34, -128]
    assert y.dequantize().tolist() == [[1.0, -3.0], [2.0**40, 0.0], [0.0, 0.0]]
    assert math.isclose(float(y.dequantize()[0, 1]), -3.0)
