"""Figures of the weights that a run records after every epoch."""

from __future__ import annotations

import torch
from torch import nn

from samebits.train import convert
from samebits.train.run.measure import weight_codes


def model(**options):
    torch.manual_seed(0)
    return convert(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), **options)


def test_exponents_zeros_and_saturated_codes():
    made = model()
    weight = made[0].weight
    with torch.no_grad():
        weight.parts[0][0].fill_(1)
        weight.parts[0][0][0, 0] = 0
        weight.parts[0][0][0, 1] = -127
        weight.parts[0][0][0, 2] = 127
    found = weight_codes(made)
    assert list(found) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert found["0.weight"] == [float(weight.exponent), 1 / 24, 2 / 24]


def test_rows_have_a_mean_exponent():
    made = model(exponents="row")
    cells = made[0].weight.exponent_cell
    assert weight_codes(made)["0.weight"][0] == float(cells.double().mean())


def test_float_models_have_none_and_nothing_is_changed():
    assert weight_codes(nn.Linear(2, 2)) == {}
    made = model()
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    weight_codes(made)
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.state_dict().items())
