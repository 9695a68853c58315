"""Recurrent layers, norms of vectors and attention in C beside PyTorch, after every step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from on_device import (
    Device,
    Recurrent,
    batches,
    code_of,
    config,
    engine,
    network,
    state_bytes,
    train_beside,
)
from samebits.data.digits import load_digits
from samebits.errors import UnsupportedError
from samebits.ondevice.gates import LINE, MOST, curves
from samebits.train.operations.recurrent import tables

SANITIZED = ("-fsanitize=undefined", "-fno-sanitize-recover=all")


def test_lines_and_what_is_off_them_are_the_tables():
    """All 65,535 values of each, as C computes them (`samebits_train_looked_up`)."""
    at = np.arange(MOST + 1)
    for table, (ends, off), is_tanh in zip(tables("cpu").numpy(), curves(), (0, 1), strict=True):
        low = np.array(ends)[at // LINE]
        high = np.array(ends)[at // LINE + 1]
        corrections = np.array(off)[at >> 2] >> 2 * (at & 3) & 3
        found = low + ((high - low) * (at % LINE) + LINE // 2) // LINE + corrections - 1
        assert np.array_equal(found, table[MOST:])
        other = -found if is_tanh else 32768 - found
        assert np.array_equal(other[::-1], table[: MOST + 1])
    sizes = [(2 * len(ends), len(off)) for ends, off in curves()]
    assert sizes == [(2050, 8192)] * 2  # bytes


def test_layers_of_all_cells_are_those_of_pytorch(tmp_path):
    """Of which C cannot evaluate the linear layer of every step."""
    options = config(weight_decay=0.001)
    device = train_beside(engine(network("cells"), options), options, tmp_path, 5, "-O1")
    assert b"model_run" not in device.code.files["model.h"]
    assert "layer 'front'" in device.code.tape.no_run


def test_norms_of_vectors_are_those_of_pytorch(tmp_path):
    options = config(weight_decay=0.001)
    train_beside(engine(network("vectors"), options), options, tmp_path, 5, "-O1")


def test_a_transformer_block_is_that_of_pytorch(tmp_path):
    options = config(lr=0.3)
    train_beside(engine(network("post"), options), options, tmp_path, 5, "-O1", short=True)


@pytest.mark.parametrize("name", ["lstms", "grus"])
def test_evaluation_is_that_of_pytorch(tmp_path, name):
    """Of a GRU each step with the exponent of its own."""
    options = config()
    run = engine(network(name), options)
    device = train_beside(run, options, tmp_path, 3, "-O1")
    images = load_digits()
    images = images.values(images.images("test")[:5])
    found = np.stack([device.run(image) for image in images])
    assert np.array_equal(found, run.logits(images).numpy())


def test_inputs_may_be_sequences(tmp_path):
    """In evaluation every vector of features has an exponent of its own."""
    options = config()
    run = engine(Recurrent(nn.GRU(8, 6, batch_first=True)), options)
    device, rows = rows_beside(run, options, tmp_path)
    found = np.stack([device.run(sample) for sample in rows])
    assert np.array_equal(found, run.logits(rows).numpy())


def rows_beside(run, options, folder):
    """Three steps in C and in PyTorch of digits as sequences of rows, each of another magnitude."""
    device = Device(code_of(run, options, shape=(8, 8)), folder, "-O1")
    scale = torch.tensor([2.0**k for k in range(-4, 4)])[:, None]
    for step, (images, labels) in enumerate(batches(3, 8)):
        rows = images[:, 0] * scale
        run.step((rows, labels), 0.1, step)
        assert device.step(rows, labels, 0.1) == 0
        assert device.state() == state_bytes(run, step + 1, device)
    return device, rows


class KeptStates(nn.Module):
    """States of LSTMs that sums and ReLUs take, of which the gradients of the LSTMs need them."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d, self.e = (nn.LSTM(8, 8, batch_first=True) for _ in range(5))
        self.relu, self.last, self.out = nn.ReLU(), nn.ReLU(), nn.Linear(8, 10)

    def forward(self, x):
        y = self.a(x)[0] + x
        y = self.b(y)[0] + self.c(y)[0]
        y = self.relu(self.d(y)[0])
        return self.out(self.last(self.e(y)[0][:, -1]))


def test_nobody_writes_over_states_that_a_gradient_reads(tmp_path):
    options = config()
    rows_beside(engine(KeptStates(), options), options, tmp_path)


class CutSteps(nn.Module):
    """Some steps of an input and of states, and two single ones of the same states."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.GRU(8, 6, batch_first=True), nn.GRU(6, 5, batch_first=True)
        self.out = nn.Linear(5, 10)

    def forward(self, x):
        y = self.b(self.a(x[:, 3:])[0][:, 1:4])[0]
        return self.out(y[:, 0] + y[:, -1])


def test_steps_that_are_cut_keep_their_exponents(tmp_path):
    options = config()
    run = engine(CutSteps(), options)
    device, rows = rows_beside(run, options, tmp_path)
    found = np.stack([device.run(sample) for sample in rows])
    assert np.array_equal(found, run.logits(rows).numpy())


class OtherSteps(nn.Module):
    """A sequence of half as many steps, each of two vectors that have exponents of their own."""

    def __init__(self):
        super().__init__()
        self.cells, self.out = nn.GRU(16, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, x):
        return self.out(self.cells(x.reshape(-1, 4, 16))[0][:, -1])


class ClampedSteps(nn.Module):
    """A clamp of states whose steps have exponents of their own."""

    def __init__(self):
        super().__init__()
        self.cells, self.relu = nn.GRU(8, 6, batch_first=True), nn.ReLU6()
        self.out = nn.Linear(6, 10)

    def forward(self, x):
        return self.out(self.relu(self.cells(x)[0])[:, -1])


class SplitSteps(nn.Module):
    """A state in two parts: what PyTorch has as an image has one exponent, to which it rounds."""

    def __init__(self):
        super().__init__()
        self.cells, self.out = nn.GRU(8, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, x):
        return self.out(self.cells(x)[0].unflatten(2, (2, 3))[:, 2].flatten(1))


class TurnedSteps(nn.Module):
    """Vectors over the steps, which have one exponent each, to which PyTorch rounds."""

    def __init__(self):
        super().__init__()
        self.cells, self.out = nn.GRU(8, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, x):
        return self.out(self.cells(x)[0].transpose(1, 2)[:, :, -1])


@pytest.mark.parametrize(
    ("made", "where"),
    [
        *((SplitSteps, "the model"), (OtherSteps, "the model"), (TurnedSteps, "the model")),
        (ClampedSteps, "'relu'"),
    ],
)
def test_there_is_no_evaluation_where_steps_lose_their_exponents(made, where):
    options = config()
    code = code_of(engine(made(), options), options, shape=(8, 8))
    assert where in code.tape.no_run
    assert b"model_run" not in code.files["model.h"]


def test_parts_of_a_layer_train(tmp_path):
    options = config()
    run = engine(network("gru"), options)
    run.train_only(["cells.weight_hh_l0", "cells.bias_ih_l0", "out.bias"])
    device = Device(code_of(run, options), tmp_path, "-O1")
    assert len(device.places.parameters) == 3
    for step, batch in enumerate(batches(3, 8)):
        run.step(batch, 0.1, step)
        assert device.step(*batch, 0.1) == 0
        assert device.state() == state_bytes(run, step + 1, device)


class PartOfSums(nn.Module):
    """A ReLU of a part of what a layer gives, whose exponent only that part decides."""

    def __init__(self):
        super().__init__()
        self.first, self.relu, self.out = nn.Linear(64, 20), nn.ReLU(), nn.Linear(8, 10)

    def forward(self, x):
        return self.out(self.relu(self.first(x.flatten(1))[:, :8]))


class LastState(nn.Module):
    """The last state, which has more bits than what a layer gives."""

    def __init__(self):
        super().__init__()
        self.cells, self.out = nn.GRU(8, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, x):
        return self.out(self.cells(x.reshape(-1, 8, 8))[1][-1])


class BothDirections(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.out = nn.Linear(12, 10)

    def forward(self, x):
        return self.out(self.cells(x.reshape(-1, 8, 8))[0][:, -1])


class GivenState(nn.Module):
    """A constant as the initial state."""

    def __init__(self):
        super().__init__()
        self.cells, self.out = nn.GRU(8, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, x):
        states, _ = self.cells(x.reshape(-1, 8, 8), torch.zeros(1, len(x), 6))
        return self.out(states[:, -1])


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (GivenState, r"'cells' \(GRU\).*a constant in the place of an input"),
        (BothDirections, r"'cells' \(LSTM\).*of a bidirectional layer"),
        (PartOfSums, r"'relu' \(ReLU\).*a ReLU of a part of exact sums"),
        (LastState, r"'cells' \(GRU\).*operation States"),
        (
            lambda: Recurrent(nn.LSTM(8, 6, 2, batch_first=True, dropout=0.5)),
            r"'cells.dropout_l1' \(Dropout\).*axes in another order",
        ),
    ],
)
def test_what_c_does_not_have_is_named(made, said):
    options = config()
    with pytest.raises(UnsupportedError, match=said):
        code_of(engine(made(), options), options)


@pytest.mark.slow  # half a minute
@pytest.mark.parametrize(
    ("name", "flags", "options"),
    [
        ("lstm", ["-O0"], {"weight_decay": 0.001}),
        ("lstm", ["-O3"], {"optimizer": "adam", "lr": 0.01, "short": True}),
        ("lstms", ["-O2", *SANITIZED], {"nesterov": True, "short": True}),
        ("gru", ["-O1"], {"weight_decay": 0.001, "nesterov": True}),
        ("gru", ["-Os"], {"optimizer": "adamw", "lr": 0.01, "batch": 5}),
        ("grus", ["-O3", *SANITIZED], {"lr": 0.3, "short": True}),
        ("rnn", ["-O2"], {"clip_norm": 0.3}),
        ("rectified", ["-O0", *SANITIZED], {"lr": 0.3, "momentum": 0.0}),
        ("cells", ["-O3", "-march=native", "-std=gnu99"], {"lr": 0.3, "short": True}),
        ("cells", ["-O1", *SANITIZED], {"lr": 1.0}),
        ("vectors", ["-O0", *SANITIZED], {"lr": 1.0, "short": True}),
        ("vectors", ["-O3"], {"optimizer": "adam", "lr": 0.01}),
        ("block", ["-O0"], {"weight_decay": 0.001}),
        ("block", ["-O3", *SANITIZED], {"optimizer": "adamw", "lr": 0.01, "short": True}),
        ("post", ["-O2", *SANITIZED], {"nesterov": True, "lr": 0.3, "batch": 5}),
    ],
)
def test_a_hundred_steps(tmp_path, name, flags, options):
    given = {k: options.pop(k) for k in ("short", "batch") if k in options}
    chosen = config(**options)
    train_beside(engine(network(name), chosen), chosen, tmp_path, 100, *flags, **given)
