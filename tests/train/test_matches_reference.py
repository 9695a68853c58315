"""Whole training steps of the fast layers against the plain-integer reference: the same bits.

Codes, delayed updates, exponents, momenta, running statistics, losses and every node's output and
gradient are compared after every step, in both realisations.
"""

from __future__ import annotations

import functools
import itertools
import math
import random

import pytest
import torch
from torch import nn

from compare import assert_same
from realisations import eager_slowly
from reference_nets import (
    CASES,
    EVERYTHING,
    RESIDUAL,
    SEED,
    Case,
    dropout_sizes,
    dropout_words,
    watched,
)
from samebits.errors import RangeError
from samebits.spec.training import loss as reference_loss
from samebits.spec.training import optimizer as reference_optimizers
from samebits.spec.training import step as reference
from samebits.spec.training.layers import Array, Parameter, initial_parameter, quantize_input
from samebits.spec.training.optimizer import SGDState
from samebits.spec.training.step import Node
from samebits.train import SGD, Adam, BFPTensor, convert, cross_entropy, mse_loss, set_step

SHARDS = 2


# --- the reference's steps, computed once ----------------------------------------------------

OPTIMIZERS = {
    "sgd": (
        lambda p: SGD(p, lr=0.05, seed=7),
        reference_optimizers.SGD(0.05, seed=7),
    ),
    "sgd large": (
        lambda p: SGD(p, lr=6.0),
        reference_optimizers.SGD(6.0),
    ),
    "sgd tiny": (
        lambda p: SGD(p, lr=1e-7, momentum=0.5),
        reference_optimizers.SGD(1e-7, momentum=0.5),
    ),
    "momentum": (
        lambda p: SGD(p, lr=0.3, momentum=0.9, weight_decay=0.05, seed=2**32 - 1),
        reference_optimizers.SGD(0.3, momentum=0.9, weight_decay=0.05, seed=2**32 - 1),
    ),
    "nesterov": (
        lambda p: SGD(p, lr=0.2, momentum=0.8, weight_decay=1e-3, nesterov=True),
        reference_optimizers.SGD(0.2, momentum=0.8, weight_decay=1e-3, nesterov=True),
    ),
    "nearest": (
        lambda p: SGD(p, lr=0.2, momentum=0.8, nesterov=True, rounding="nearest"),
        reference_optimizers.SGD(0.2, momentum=0.8, nesterov=True, seed=None),
    ),
    "adam": (
        lambda p: Adam(p, lr=0.05, weight_decay=0.01, seed=3),
        reference_optimizers.Adam(0.05, weight_decay=0.01, seed=3),
    ),
    "adam nearest": (
        lambda p: Adam(p, lr=0.05, weight_decay=0.01, rounding="nearest"),
        reference_optimizers.Adam(0.05, weight_decay=0.01, seed=None),
    ),
    "adamw": (
        lambda p: Adam(p, lr=0.1, betas=(0.8, 0.9), weight_decay=0.1, decoupled=True),
        reference_optimizers.Adam(0.1, 0.8, 0.9, weight_decay=0.1, decoupled=True),
    ),
}

QUICK_OPTIMIZERS = ("nearest", "momentum", "adam")  # of the case with every layer


def reference_state(model: nn.Module):
    parameters = {
        name: initial_parameter(p.detach().flatten().tolist(), tuple(p.shape))
        for name, p in model.named_parameters()
    }
    buffers = {
        name: b.double().tolist()
        for name, b in model.named_buffers()
        if not name.endswith("num_batches_tracked")
    }
    return parameters, buffers


def reference_inputs(case: Case, inputs) -> dict[str, Array]:
    return {
        name: Array(values, case.inputs[name], 0, 32)
        if name == "tokens"
        else quantize_input(values, case.inputs[name])
        for name, values in inputs.items()
    }


@functools.cache
def reference_steps(name: str, optimizer: str, steps: int):
    case = CASES[name]
    parameters, buffers = reference_state(case.build())
    state, results = {}, []
    for step in range(steps):
        shards = [case.shard(step, i) for i in range(SHARDS)]
        result = reference.step(
            case.nodes,
            parameters,
            buffers,
            state,
            [(reference_inputs(case, x), y) for x, y in shards],
            OPTIMIZERS[optimizer][1],
            case.loss,
            [dropout_words(case, dropout_sizes(case), step, i) for i in range(SHARDS)],
        )
        parameters, buffers, state = result.parameters, result.buffers, result.state
        results.append(result)
    return results


# --- comparing -------------------------------------------------------------------------------


def same_tensor(codes, exponent, expected_codes, expected_exponent, what):
    codes = codes.reshape(-1).tolist()
    assert_same(codes, expected_codes, [f"{what} [{i}]" for i in range(len(codes))])
    assert exponent == expected_exponent, (
        f"{what}: exponent {exponent}, expected {expected_exponent}"
    )


def same_array(actual: BFPTensor, expected: Array, what: str):
    codes, exponent = actual.resolved()
    same_tensor(codes, exponent, expected.codes, expected.exponent, what)
    assert (tuple(actual.shape), actual.bits) == (expected.shape, expected.bits), what


def same_parameter(actual, expected: Parameter, what: str):
    codes, delayed, exponent = expected.weight
    same_tensor(actual.codes, actual.exponent, codes, exponent, f"W of {what}")
    same_tensor(actual.delayed, actual.exponent, delayed, exponent, f"A of {what}")


def same_state(actual, expected, what: str):
    if expected is None:
        assert not actual, what
        return
    assert actual["steps"] == expected.steps, what
    if isinstance(expected, SGDState):
        if expected.momentum is None:
            assert "momentum" not in actual, what
            return
        v = actual["momentum"], actual["momentum_exponent"]
        same_tensor(*v, *expected.momentum, f"V of {what}")
    else:
        same_tensor(actual["first"], actual["first_exponent"], *expected.first, f"M of {what}")
        same_tensor(actual["root"], actual["root_exponent"], *expected.root, f"S of {what}")
        assert (actual["power1"], actual["power2"]) == (expected.power1, expected.power2), what


def model_inputs(case: Case, inputs):
    return {
        name: torch.tensor(values).view(case.inputs[name])
        if name == "tokens"
        else BFPTensor.from_real(torch.tensor(values).view(case.inputs[name]))
        for name, values in inputs.items()
    }


def loss_of(case: Case, output, targets):
    if case.loss == "mse":
        return mse_loss(output, torch.tensor(targets).view(case.targets))
    return cross_entropy(output, torch.tensor(targets))


def run_and_compare(name: str, optimizer_name: str, steps: int):
    case = CASES[name]
    model = convert(case.build())
    optimizer = OPTIMIZERS[optimizer_name][0](model.parameters())
    expected = reference_steps(name, optimizer_name, steps)
    for name, parameter in model.named_parameters():
        same_parameter(parameter, reference_state(case.build())[0][name], f"initial {name}")
    for step, result in enumerate(expected):
        for shard in range(SHARDS):
            inputs, targets = case.shard(step, shard)
            set_step(model, SEED, step, shard)
            loss = loss_of(case, model(model_inputs(case, inputs)), targets)
            assert float(loss.detach()) == result.losses[shard], (step, shard)
            (loss / SHARDS).backward()
        named = dict(model.named_parameters())
        assert set(named) == set(result.gradients)
        for key, gradient in result.gradients.items():
            same_array(named[key].grad, gradient, f"gradient of {key}, step {step}")
        optimizer.step()
        optimizer.zero_grad()
        for key, parameter in named.items():
            same_parameter(parameter, result.parameters[key], f"{key}, step {step}")
            same_state(optimizer.state.get(parameter), result.state[key], f"{key}, step {step}")
        buffers = dict(model.named_buffers())
        assert set(buffers) == set(result.buffers)
        for key, values in result.buffers.items():
            assert_same(buffers[key], values, [f"{key}, step {step}"] * len(values))
    return model, expected


@pytest.mark.parametrize(
    ("case", "optimizer"),
    [
        *(p for p in itertools.product(CASES, OPTIMIZERS) if p[0] == "residual"),
        *(("everything", name) for name in QUICK_OPTIMIZERS),
        *(
            pytest.param("everything", name, marks=pytest.mark.slow)
            for name in OPTIMIZERS
            if name not in (*QUICK_OPTIMIZERS, "sgd large")
        ),
        *(("recurrent", name) for name in ("sgd large", "momentum", "adamw")),
        *(("attention", name) for name in ("sgd", "momentum", "adam")),
        ("pooled", "adam"),
        *(("decoder", name) for name in ("momentum", "adamw")),
        *(("vectors", name) for name in ("nesterov", "adam nearest")),
        *(("states", name) for name in ("momentum", "adam")),
    ],
)
@pytest.mark.parametrize("steps", [3, pytest.param(5, marks=pytest.mark.slow)])
@eager_slowly
def test_training_steps(case, optimizer, steps, realisation):
    run_and_compare(case, optimizer, steps)


def test_training_diverges_at_the_same_step(realisation):
    with pytest.raises(RangeError, match="lower the learning rate"):
        reference_steps("everything", "sgd large", 5)
    good = next(n for n in range(4, 0, -1) if not diverges(n))
    assert good >= 2
    model, _ = run_and_compare("everything", "sgd large", good)
    inputs, targets = EVERYTHING.shard(good, 0)
    set_step(model, SEED, good, 0)
    with pytest.raises(RangeError, match="lower the learning rate"):
        loss_of(EVERYTHING, model(model_inputs(EVERYTHING, inputs)), targets)


def diverges(steps: int) -> bool:
    try:
        reference_steps("everything", "sgd large", steps)
    except RangeError:
        return True
    return False


def test_exponents_move_both_ways():
    """The steps above do exercise raising (also by more than 15) and lowering."""
    moves = []
    for optimizer in ("sgd", "sgd large"):
        last = reference_state(RESIDUAL.build())[0]
        for result in reference_steps("residual", optimizer, 5):
            moves += [result.parameters[n].exponent - last[n].exponent for n in last]
            last = result.parameters
    assert max(moves) > 15
    assert 1 in moves
    assert min(moves) < 0


# --- every node of one step -------------------------------------------------------------------


def compare_nodes(case, parameters, buffers, model, data, scale=1.0):
    inputs, targets = data
    words = dropout_words(case, dropout_sizes(case), 3, 1)
    done, after = reference.forward(
        case.nodes, parameters, buffers, reference_inputs(case, inputs), words=words
    )
    losses = {"mse": reference_loss.mse, "cross_entropy": reference_loss.cross_entropy}
    loss, gradient = losses[case.loss](done.outputs[case.nodes[-1].name], targets, scale)
    at_parameter, at_node = reference.backward(case.nodes, parameters, done, gradient)

    outputs = watched(model)
    model.train()
    set_step(model, SEED, 3, 1)
    value = loss_of(case, model(model_inputs(case, inputs)), targets)
    assert float(value.detach()) == loss
    (value * scale).backward()
    checked = 0
    for node in case.nodes:
        if node.op != "input":
            output = done.wide.get(node.name, done.outputs[node.name])
            same_array(outputs[node.name], output, f"output of {node.name}")
            checked += 1
            if node.name not in at_node:  # its states alone are used
                assert outputs[node.name].grad is None
                continue
            expected = reference.resolve(at_node[node.name])
            same_array(outputs[node.name].grad, expected, f"gradient at {node.name}")
    for name, parameter in model.named_parameters():
        expected = reference.resolve(at_parameter[name])
        same_array(parameter.grad, expected, f"gradient of {name}")
    for name, values in after.items():
        assert_same(dict(model.named_buffers())[name], values, [name] * len(values))
    return checked


@pytest.mark.parametrize("steps", [2, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(CASES))
@eager_slowly
def test_outputs_and_gradients_of_every_node(name, steps, realisation):
    """In training; those of evaluation, by rows, are in `test_rows_and_widths`."""
    case = CASES[name]
    # A state some steps from the start, with delayed updates and running statistics.
    model, results = run_and_compare(name, "momentum", steps)
    model.zero_grad()
    state = results[-1].parameters, results[-1].buffers
    checked = compare_nodes(case, *state, model, case.shard(9, 0))
    assert checked == len(case.nodes) - len(case.inputs)


@pytest.mark.parametrize("power", [-150, -128, -100, 30])
def test_gradients_near_the_ends_of_the_exponent_range(power, realisation):
    """Gradients that underflow to zero codes on their way down, and very large ones."""
    case = RESIDUAL
    model = case.build()
    parameters, buffers = reference_state(model)
    compare_nodes(
        case,
        parameters,
        buffers,
        convert(model),
        case.shard(1, 0),
        scale=math.ldexp(1.0, power),
    )


@pytest.mark.parametrize("what", ["image", "gamma", "weight", "relu"])
def test_all_zero_tensors(what, realisation):
    case = RESIDUAL
    model = case.build()
    with torch.no_grad():
        if what == "gamma":
            model.norm1.weight.zero_()
            model.norm3.weight.zero_()
        elif what == "weight":
            model.depthwise.weight.zero_()
            model.shortcut.weight.zero_()
        elif what == "relu":  # nothing passes: an all-zero gradient part beside others
            model.norm1.bias.fill_(-50.0)
            model.norm2.bias.fill_(-50.0)
    inputs, targets = case.shard(1, 0)
    if what == "image":
        inputs = {"x": [0.0] * len(inputs["x"])}
    parameters, buffers = reference_state(model)
    compare_nodes(case, parameters, buffers, convert(model), (inputs, targets))


# --- one layer, one number -------------------------------------------------------------------


def test_input_gradient_of_the_first_layer(realisation):
    """Reference nets give none to their inputs; a convolution alone shows it."""
    from samebits.spec.training import layers
    from samebits.train.operations.linear import conv2d

    rng = random.Random(4)
    x = BFPTensor(torch.tensor([rng.randint(-127, 127) for _ in range(2 * 3 * 5 * 4)]).to(
        torch.int8).view(2, 3, 5, 4), -6)  # fmt: skip
    x.requires_grad_()
    weight = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(1))
    model = convert(nn.Sequential(nn.Conv2d(3, 4, 3)))
    model[0].weight = type(model[0].weight).from_real(weight)
    y = conv2d(x, model[0].weight, padding=(1, 1), stride=(2, 1))
    g = BFPTensor(torch.tensor([rng.randint(-(2**31) + 2**23, 2**31 - 2**23) for _ in range(
        y.numel())]).to(torch.int32).view(y.shape), -40)  # fmt: skip
    torch.autograd.backward(y, g)
    expected = layers.affine_input_gradient(
        Array(g.codes.flatten().tolist(), tuple(y.shape), -40, 32),
        Array(x.codes.flatten().tolist(), tuple(x.shape), -6, 8),
        initial_parameter(weight.flatten().tolist(), tuple(weight.shape)),
        layers.Geometry(stride=(2, 1), padding=(1, 1)),
    )
    same_array(x.grad, expected, "input gradient")


@pytest.mark.parametrize(("bits", "exponent"), [
    (8, -5), (8, 3), (8, 40), (32, -28), (32, -60), (32, -8), (32, -17), (32, 0), (32, 90),
])  # fmt: skip
@pytest.mark.parametrize("scale", [1.0, 1.0 / 3.0, 2.0**-140])
def test_cross_entropy(bits, exponent, scale, realisation):
    rng = random.Random(f"{bits} {exponent}")
    rows, classes, limit = 5, 9, 127 if bits == 8 else 0x7F7F7F7F
    codes = [rng.randint(-limit, limit) for _ in range(rows * classes)]
    codes[:classes] = [limit, -limit, 0, *codes[3:classes]]
    codes[classes : 2 * classes] = [7] * classes
    targets = [1, 0, 8, 4, 3]
    loss, gradient = reference_loss.cross_entropy(
        Array(codes, (rows, classes), exponent, bits), targets, scale
    )
    dtype = torch.int8 if bits == 8 else torch.int32
    z = BFPTensor(torch.tensor(codes, dtype=dtype).view(rows, classes), exponent).requires_grad_()
    value = cross_entropy(z, torch.tensor(targets))
    assert float(value.detach()) == loss
    (value * scale).backward()
    same_array(z.grad, gradient, "gradient")


@pytest.mark.parametrize("exponents", [(-30, 1.0), (-100, 1.0), (0, 1e-30), (20, 1e9), (-30, 0.0)])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_mse(exponents, scale, realisation):
    exponent, size = exponents
    rng = random.Random(f"{exponents}")
    codes = [rng.randint(-(2**31) + 2**23, 2**31 - 2**23) for _ in range(15)]
    targets = torch.tensor([rng.gauss(0, size) for _ in range(15)])
    loss, gradient = reference_loss.mse(Array(codes, (5, 3), exponent, 32), targets.tolist(), scale)
    y = BFPTensor(torch.tensor(codes, dtype=torch.int32).view(5, 3), exponent).requires_grad_()
    value = mse_loss(y, targets.view(5, 3))
    assert float(value.detach()) == loss
    (value * scale).backward()
    same_array(y.grad, gradient, "gradient")


def test_a_tied_parameter_collects_its_parts(realisation):
    nodes = [
        Node("x", "input"),
        Node("a", "linear", ("x",), {"weight": "a.weight"}),
        Node("b", "linear", ("a",), {"weight": "a.weight"}),
    ]
    model = nn.Sequential()
    model.add_module("a", nn.Linear(4, 4, bias=False))
    model.add_module("b", nn.Linear(4, 4, bias=False))
    model.b.weight = model.a.weight
    w = initial_parameter(model.a.weight.detach().flatten().tolist(), (4, 4))
    images, targets = [0.3, -1.0, 2.0, 0.7] * 3, [0, 3, 1]
    shards = [({"x": quantize_input(images, (3, 4))}, targets)]
    optimizer = reference_optimizers.SGD(0.5, momentum=0.9)
    result = reference.step(nodes, {"a.weight": w}, {}, {}, shards, optimizer)
    twin = convert(model)
    ours = SGD(twin.parameters(), lr=0.5, momentum=0.9)
    out = twin(BFPTensor.from_real(torch.tensor(images).view(3, 4)))
    cross_entropy(out, torch.tensor(targets)).backward()
    assert len(twin.a.weight.grad.parts) == 2
    same_array(twin.a.weight.grad, result.gradients["a.weight"], "gradient")
    ours.step()
    same_parameter(twin.b.weight, result.parameters["a.weight"], "the tied weight")
