"""Deployed recurrent models: the plain-integer restatement, one step at a time, exports."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import nn

from compare import assert_same
from deploy_nets import plain, spread_rows
from samebits.data.dataset import Dataset
from samebits.errors import UnsupportedError
from samebits.model import Model
from samebits.spec import formats
from samebits.spec.training import deploy_recurrent
from samebits.spec.training.cell import Direction
from samebits.spec.training.layers import Array
from samebits.train import convert
from samebits.train.architectures import build, initialise
from samebits.train.deployed.deploy import Exponents, FrozenSite, calibrate, deployed
from samebits.train.deployed.export import to_graph
from samebits.train.deployed.recurrent import (
    CellMemory,
    DeployedCell,
    GruSteps,
    LstmSteps,
    ReluSteps,
    TanhSteps,
    gate_table,
    layer,
    weights_of,
)
from samebits.train.deployed.weights import exponents_of
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.verification.accuracy import step_codes, streamed
from samebits.verification.backends.pytorch import PyTorch
from samebits.verification.backends.reference import Reference
from samebits.verification.backends.training import TrainingBackend
from samebits.verification.inputs import random_codes

FUNCTIONS = {"sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)), "tanh": mpmath.tanh}


@functools.cache
def looked_up(name: str, code: int, exponent: int) -> int:
    """An entry from 400 bits: none of these lies closer to a tie."""
    with mpmath.workprec(400):
        value = mpmath.ldexp(FUNCTIONS[name](mpmath.ldexp(code, exponent)), 15)
        return min(max(int(mpmath.nint(value)), -32768), 32767)


def parameter(rng: random.Random, *shape: int, rows: str = "tensor") -> BFPParameter:
    scale = 2.0 ** rng.randint(-4, 2)
    count = int(np.prod(shape))
    values = torch.tensor([rng.gauss(0.0, scale) for _ in range(count)]).view(shape)
    if rows == "row" and len(shape) > 1:
        values = spread_rows(values, rng)
    return BFPParameter.from_real(values, "p", rows == "row")


KINDS: dict[str, tuple[type[DeployedCell], int]] = {
    "lstm": (LstmSteps, 4),
    "gru": (GruSteps, 3),
    "tanh": (TanhSteps, 1),
    "relu": (ReluSteps, 1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", ["tensor", "row"])
@pytest.mark.parametrize("seed", range(12))
def test_equals_the_reference(realisation: str, seed: int, rows: str, kind: str) -> None:
    rng = random.Random(seed)
    cell, gates = KINDS[kind]
    steps, samples, features, hidden = (rng.randint(1, n) for n in (5, 3, 5, 4))
    shapes = ((gates * hidden, features), (gates * hidden, hidden), (gates * hidden,))
    parts: list[BFPParameter | None] = [
        parameter(rng, *shape, rows=rows) for shape in (*shapes, shapes[2])
    ]
    if seed % 3 == 2:
        parts[2:] = [None, None] if seed % 2 else [parts[2], None]
    x = torch.tensor(
        [rng.randint(-128, 127) for _ in range(steps * samples * features)], dtype=torch.int8
    ).view(steps, samples, features)
    e_x, reverse = rng.randint(-9, -3), seed % 4 == 1
    site = rng.randint(-9, -5) if kind in ("tanh", "relu") else rng.randint(-16, -9)
    memory = CellMemory()
    codes, exponent = layer(cell, site, BFPTensor(x, e_x), parts, reverse, memory)
    p = Direction(*(part if part is None else plain(part) for part in parts), reverse)
    expected, states = deploy_recurrent.layer(
        kind, Array(x.flatten().tolist(), tuple(x.shape), e_x, 8), p, site, looked_up
    )
    assert (codes.dtype, exponent) == (torch.int8, expected.exponent)
    assert_same(codes, expected.codes, range(codes.numel()))
    assert tuple(8 * s.element_size() for s in memory.after) == cell.bits
    assert [s.flatten().tolist() for s in memory.after] == states


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_goes_on_from_the_states_after_its_first_part(kind: str) -> None:
    rng = random.Random(5)
    cell, gates = KINDS[kind]
    parts = [parameter(rng, *shape) for shape in ((gates * 3, 4), (gates * 3, 3), (gates * 3,))]
    x = torch.tensor([rng.randint(-128, 127) for _ in range(56)], dtype=torch.int8).view(7, 2, 4)

    def run(codes: torch.Tensor, memory: CellMemory) -> torch.Tensor:
        found, _ = layer(cell, -8, BFPTensor(codes, -6), [*parts, None], False, memory)
        return found

    first, second, whole = CellMemory(), CellMemory(), CellMemory()
    halves = [run(x[:3], first)]
    second.before = first.after
    halves.append(run(x[3:], second))
    assert torch.equal(torch.cat(halves), run(x, whole))
    for a, b in zip(second.after, whole.after, strict=True):
        assert torch.equal(a, b)


def test_tables_saturate_at_the_ends_of_their_type() -> None:
    tanh = gate_table("Tanh", -12, "cpu")
    assert (int(tanh[0]), int(tanh[-1])) == (-32768, 32767)
    assert tanh.shape == (65536,)
    assert int(gate_table("Sigmoid", -12, "cpu")[32768]) == 16384


def recordings(*shape: int, count: int = 12) -> Dataset:
    generator = torch.Generator().manual_seed(1)
    images = len(shape) == 3
    high, dtype = (256, torch.uint8) if images else (32000, torch.int16)
    samples = torch.randint(0, high, (count, *shape), generator=generator)
    if not images:
        samples = samples - 16000
    samples = samples.to(dtype)
    labels = torch.arange(count) % 3
    return Dataset(samples, labels, samples.flip(0), labels, ("a", "b", "c"))


def model(data: Dataset, seed: int = 0, rows: str = "tensor") -> nn.Module:
    """The architecture lstm, its weights larger than at the start of training."""
    made = build("lstm", data.input_shape, data.classes)
    initialise(made, seed)
    with torch.no_grad():
        for weight in made.parameters():
            weight.mul_(2.0)
            if rows == "row" and weight.dim() > 1:
                weight.copy_(spread_rows(weight, random.Random(seed)))
    return convert(made, exponents=rows).eval()


def images(data: Dataset) -> torch.Tensor:
    return data.batch("test", torch.arange(len(data.test_labels)))


def shifted(exponents: Exponents, seed: int) -> Exponents:
    """Some a few off, so that cells and inputs saturate or lose bits."""
    rng = random.Random(seed)
    moved = [FrozenSite(s.name, s.exponent + rng.choice((-2, -1, 0, 1))) for s in exponents.sites]
    return Exponents(tuple(moved))


SHAPES = [(6, 5), (1, 4, 7), (3, 5, 4)]


@pytest.mark.parametrize(
    ("shape", "seed", "rows"),
    [  # every other one is slow: among the rest are each shape, seed and kind of exponents
        pytest.param(shape, seed, rows, marks=pytest.mark.slow if (at + seed) % 2 else ())
        for at, (shape, rows) in enumerate(itertools.product(SHAPES, ("tensor", "row")))
        for seed in (0, 1)
    ],
)
def test_steps_of_the_graph_are_the_deployed_sequence(
    shape: tuple[int, ...], seed: int, rows: str
) -> None:
    data = recordings(*shape)
    net = model(data, seed, rows)
    exponents = calibrate(net, [images(data)])
    assert [site.name for site in exponents.sites] == ["input", *["lstm (LSTM)"] * 3]
    for used in (exponents, shifted(exponents, seed)):
        whole = deployed(net, used)
        codes, exponent = whole.codes(images(data))
        found = Model("lstm", to_graph(net, used, data.input_shape), deployed=whole)
        graph = found.integer
        assert len(graph.states) == 4
        value = graph.values[graph.outputs[0]]
        assert value.quantization is not None
        assert value.quantization.scale == formats.power(exponent)
        steps = step_codes(found, data)
        taken, (logits,) = streamed(graph, steps, functools.partial(PyTorch().run, found))
        assert_same(logits, codes, range(codes.numel()))
        check_backends(found, taken)
        check_backends(found, random_codes(graph, 20))


def check_backends(found: Model, inputs: list[Any]) -> None:
    expected = Reference().run(found, inputs)
    for array, other in zip(expected, TrainingBackend().run(found, inputs), strict=True):
        assert array.dtype == other.dtype
        assert_same(other, array, range(array.size))


class Sequences(nn.Module):
    """Two layers of cells, and a head on h after the last step, read in one of two ways."""

    def __init__(self, kind: str, reads_state: bool, **options: Any) -> None:
        super().__init__()
        made: dict[str, type[nn.Module]] = {"gru": nn.GRU, "tanh": nn.RNN, "relu": nn.RNN}
        if kind == "relu":
            options["nonlinearity"] = "relu"
        self.cells = made[kind](5, 4, num_layers=2, batch_first=True, **options)
        self.reads_state, self.out = reads_state, nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sequence, h = self.cells(x)
        y: torch.Tensor = self.out(h[-1] if self.reads_state else sequence[:, -1])
        return y


@pytest.mark.parametrize("kind", ["gru", "tanh", "relu"])
@pytest.mark.parametrize(
    ("rows", "bias", "reads_state"),
    [("tensor", True, False), ("row", True, True), ("tensor", False, True)],
)
def test_other_cells_are_deployed_and_exported_too(
    kind: str, rows: str, bias: bool, reads_state: bool
) -> None:
    torch.manual_seed(3)
    module = Sequences(kind, reads_state, bias=bias)
    data = recordings(6, 5)
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(2.0)
    net = convert(module, exponents=rows).eval()
    exponents = calibrate(net, [images(data)])
    word = {"gru": "GRU"}.get(kind, "RNN")
    names = [site.name for site in exponents.sites]
    assert names[:3] == ["input", *[f"cells ({word})"] * 2]
    for used in (exponents, shifted(exponents, 7)):
        whole = deployed(net, used)
        codes, _ = whole.codes(images(data))
        assert len(codes.unique()) > 8
        found = Model(kind, to_graph(net, used, data.input_shape), deployed=whole)
        assert len(found.integer.states) == 2
        taken, (logits,) = streamed(
            found.integer, step_codes(found, data), functools.partial(PyTorch().run, found)
        )
        assert_same(logits, codes, range(codes.numel()))
        check_backends(found, taken)
        check_backends(found, random_codes(found.integer, 20))


@pytest.mark.parametrize("kind", ["gru", "tanh", "relu"])
def test_deployed_cells_are_near_training(kind: str) -> None:
    torch.manual_seed(4)
    data = recordings(6, 5)
    net = convert(Sequences(kind, True)).eval()
    found = deployed(net, calibrate(net, [images(data)])).logits(images(data))
    with torch.no_grad():
        wanted = net(BFPTensor.from_real(images(data))).detach().dequantize().double()
    assert (found - wanted).abs().max() < 0.05 * wanted.abs().max()


def test_logits_do_not_depend_on_the_batch() -> None:
    data = recordings(6, 5)
    net = model(data)
    found = deployed(net, calibrate(net, [images(data)[:5], images(data)[5:]]))
    codes, _ = found.codes(images(data))
    for start, stop in ((0, 1), (3, 8), (11, 12)):
        assert torch.equal(found.codes(images(data)[start:stop])[0], codes[start:stop])


@pytest.mark.parametrize("seed", range(3))
def test_gates_too_fine_for_their_bias_are_raised(realisation: str, seed: int) -> None:
    rng = random.Random(seed)
    parts = [parameter(rng, *shape) for shape in ((8, 3), (8, 2), (8,))]
    for place, size in enumerate((-24.0, -12.0)):
        values = parts[place].dequantize()
        values[5] *= 2.0**size
        parts[place] = BFPParameter.from_real(values, "p", by_rows=True)
    x = torch.tensor([rng.randint(-128, 127) for _ in range(18)], dtype=torch.int8).view(3, 2, 3)
    given = BFPTensor(x, -7)
    own = weights_of(LstmSteps, -12, given, [*parts, None]).of_x
    assert own.exponents[5] > -7 + exponents_of(parts[0])[5]
    codes, _ = layer(LstmSteps, -12, given, [*parts, None], False)
    p = Direction(*map(plain, parts), None, False)
    array = Array(x.flatten().tolist(), (3, 2, 3), -7, 8)
    expected, _ = deploy_recurrent.layer("lstm", array, p, -12, looked_up)
    assert_same(codes, expected.codes, range(codes.numel()))


def test_the_largest_exponent_of_a_cell_is_frozen() -> None:
    data = recordings(6, 5)
    net = model(data)
    found = calibrate(net, [images(data)])
    quiet = calibrate(net, [images(data) / 4096])
    assert found.sites[1].exponent > quiet.sites[1].exponent
    both = calibrate(net, [images(data), images(data) / 4096])
    assert both.sites[1].exponent == found.sites[1].exponent


class Pair(nn.Module):
    """An LSTM and something around it."""

    def __init__(self, after: Callable[[torch.Tensor], torch.Tensor], width: int, **options: Any):
        super().__init__()
        self.lstm = nn.LSTM(5, 4, batch_first=True, **options)
        self.after, self.out = after, nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(self.after(self.lstm(x)[0]))
        return y


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "both": (
        lambda: Pair(lambda y: y[:, -1], 8, bidirectional=True),
        r"lstm \(Lstm\): expected layers that go forward, found a bidirectional one",
    ),
    "first": (
        lambda: Pair(lambda y: y[:, 0], 4),
        r"\(Indexed\): expected every step or the last one, found others",
    ),
    "most": (
        lambda: Pair(lambda y: y[:, 2:][:, -1], 4),
        r"expected a model that takes sequences of one step as well as of 6",
    ),
    "flat": (
        lambda: Pair(lambda y: y.reshape(y.shape[0], -1), 24),
        r"expected a model that takes sequences of one step as well as of 6",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_not_time_wise_is_evaluated_but_not_exported(name: str) -> None:
    make, message = REFUSED[name]
    net = convert(make()).eval()
    x = images(recordings(6, 5))
    exponents = calibrate(net, [x])
    assert deployed(net, exponents).codes(x)[0].shape == (12, 2)
    with pytest.raises(UnsupportedError, match=message):
        to_graph(net, exponents, (6, 5))


def test_scales_too_far_apart_are_named() -> None:
    rng = random.Random(0)
    x = BFPTensor(torch.ones(2, 1, 3, dtype=torch.int8), -50)
    parts = [parameter(rng, 8, 3), parameter(rng, 8, 2)]
    with pytest.raises(UnsupportedError, match=r"expected scales at most 2\*\*20 apart in a sum"):
        layer(LstmSteps, -12, x, [*parts, None, None], False)


def test_a_bias_too_large_for_its_weights_is_named() -> None:
    rng = random.Random(0)
    x = BFPTensor(torch.ones(2, 1, 3, dtype=torch.int8), -30)
    parts = [parameter(rng, 8, 3), parameter(rng, 8, 2), parameter(rng, 8)]
    with pytest.raises(UnsupportedError, match="expected gates whose products of x and biases"):
        layer(LstmSteps, -12, x, [*parts, None], False)
