"""Which parameters train, and which batch norms stand, by patterns of names."""

from __future__ import annotations

import pytest
from torch import nn

from samebits.errors import InputError
from samebits.train.parts import train_only

NET = nn.Sequential(
    nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()), nn.Flatten(), nn.Linear(8, 3)
)


@pytest.mark.parametrize(
    ("patterns", "trained", "stands"),
    [
        (["2"], {"2.weight", "2.bias"}, True),
        (["0.1"], {"0.1.weight", "0.1.bias"}, False),
        (["*.bias"], {"0.0.bias", "0.1.bias", "2.bias"}, False),
        (["0.0", "2.bias"], {"0.0.weight", "0.0.bias", "2.bias"}, True),
    ],
)
def test_patterns_name_modules_and_parameters(patterns, trained, stands):
    assert train_only(NET, patterns) == ((NET[0][1],) if stands else ())
    assert {name for name, p in NET.named_parameters() if p.requires_grad} == trained


@pytest.mark.parametrize("pattern", ["1", "head", "0.0.weights", ""])
def test_the_name_of_nothing_is_an_error_that_lists_what_there_is(pattern):
    with pytest.raises(InputError, match=r"--train-only: expected names .* there are 0, 0\.0, "):
        train_only(NET, [pattern])


def test_a_norm_without_parameters_stands_with_what_is_around_it():
    net = nn.Sequential(
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False)), nn.Linear(3, 2)
    )
    assert train_only(net, ["*"]) == train_only(net, ["0"]) == ()
    assert train_only(net, ["1"]) == (net[0][1],)
