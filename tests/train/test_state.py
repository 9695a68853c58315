"""States of float models as states of their BFP twins."""

import copy
import re

import pytest
import torch
from torch import nn

from samebits.errors import CheckpointError
from samebits.train import SGD, BFPTensor, convert, cross_entropy, load_state
from samebits.train.tensor import BFPParameter


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


def real(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(Block(), nn.Flatten(), nn.Linear(12, 4, bias=False), nn.LayerNorm(4))
    model(torch.randn(6, 2, 4, 4))  # statistics
    return model


def state_of(model):
    return {name: (v.dtype, v.flatten().tolist()) for name, v in model.state_dict().items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_float_state_gives_what_convert_gives(dtype):
    model, other = real(1).to(dtype), convert(real(2))
    held = list(other.parameters())
    state = model.state_dict()
    assert {key.rpartition(".")[2] for key in state} >= {"weight", "num_batches_tracked"}
    other.load_state_dict(state)
    assert state_of(other) == state_of(convert(model))
    assert all(a is b for a, b in zip(held, other.parameters(), strict=True))


def test_training_goes_on_from_a_float_state():
    """The optimizer holds the same parameters: what it does is what it does after convert."""
    found = []
    for seed in (1, 2):
        model = convert(real(seed))
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        load_state(model, real(1).state_dict(), "float.safetensors")
        x = BFPTensor.from_real(
            torch.ones(2, 2, 4, 4).cumsum(-1) * torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)
        )
        for _ in range(2):
            optimizer.zero_grad()
            cross_entropy(model(x), torch.tensor([0, 3])).backward()
            optimizer.step()
        found.append(state_of(model))
    assert found[0] == found[1]


def test_single_layers_and_lstms():
    lstm, empty = nn.LSTM(3, 4, 2, bidirectional=True), nn.Embedding(5, 0)
    for layer in (nn.Linear(3, 2), lstm, nn.Embedding(5, 3), empty):
        other = convert(copy.deepcopy(layer))
        with torch.no_grad():
            for p in layer.parameters():
                p.mul_(0.7)
        other.load_state_dict(layer.state_dict())
        assert state_of(other) == state_of(convert(layer))
        other.load_state_dict(convert(layer).state_dict())
        assert state_of(other) == state_of(convert(layer))


def test_tied_parameters_stay_tied():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
    model[1].weight = model[0].weight
    other = convert(model)
    other.load_state_dict(model.state_dict())
    assert other[0].weight is other[1].weight


CHANGES = {
    "missing": (lambda s: s.pop("2.weight"), r'Missing key\(s\) in state_dict: "2.weight[".]'),
    "a missing statistic": (lambda s: s.pop("0.norm.running_var"), r'Missing key.*running_var"'),
    "unexpected": (lambda s: s.update({"2.bias": torch.ones(4)}), r'Unexpected key.*: "2.bias"'),
    "of no module": (lambda s: s.update({"1.x": torch.ones(4)}), r'Unexpected key.*: "1.x"'),
    "shape": (
        lambda s: s.update({"2.weight": torch.ones(4, 11)}),
        r"2.weight: expected real values \(4, 12\), found torch.float32 \(4, 11\)",
    ),
    "type": (
        lambda s: s.update({"2.weight": torch.ones(4, 12, dtype=torch.int32)}),
        r"2.weight: expected real values \(4, 12\), found torch.int32",
    ),
    "no tensor": (lambda s: s.update({"2.weight": 3}), "2.weight: expected a tensor, found int"),
    "NaN": (
        lambda s: s["3.bias"].__setitem__(2, torch.nan),
        r"3.bias: tensor '3.bias': expected finite values, found nan at index \(2,\)",
    ),
    "a statistic": (
        lambda s: s["0.norm.running_var"].__setitem__(0, -1.0),
        "0.norm.running_var: expected finite statistics and variances >= 0",
    ),
    "integers beside": (
        lambda s: s.update({"3.bias.codes": torch.ones(4, dtype=torch.int8)}),
        "3.bias.codes: expected real values, as 0.conv.weight has, found integers",
    ),
    "a layer of integers": (
        lambda s: (s.pop("3.bias"), s.pop("3.weight"), s.update(integers())),
        "3.weight.codes: expected real values, as 0.conv.weight has, found integers",
    ),
}


def integers():
    state = convert(real(1)).state_dict()
    return {key: value for key, value in state.items() if key.startswith("3.")}


@pytest.mark.parametrize("change", CHANGES)
def test_a_state_that_does_not_fit_changes_nothing(change):
    model = convert(real(2))
    before = state_of(model)
    state = copy.deepcopy(real(1).state_dict())
    edit, text = CHANGES[change]
    edit(state)
    with pytest.raises(CheckpointError, match=f"(?s)^file: not the state of this model.*{text}"):
        load_state(model, state, "file")
    assert state_of(model) == before
    with pytest.raises(RuntimeError, match=text):
        model.load_state_dict(state)
    if "key" not in text:  # torch takes the rest where a key is missing or unexpected
        assert state_of(model) == before


def test_a_part_of_a_state():
    """strict=False takes what is there; what is wrong is an error all the same."""
    model, wanted = convert(real(2)), convert(real(1))
    state = {k: v for k, v in real(1).state_dict().items() if k.startswith("0.")}
    result = model.load_state_dict(state, strict=False)
    assert result.missing_keys
    for key, value in model[0].state_dict().items():
        assert torch.equal(value, wanted[0].state_dict()[key])
    with pytest.raises(RuntimeError, match=re.escape("0.conv.bias: expected real values (3,)")):
        model.load_state_dict({"0.conv.bias": torch.ones(2)}, strict=False)


def test_copies_check_their_own_state():
    model = copy.deepcopy(convert(real(2)))
    model.load_state_dict(real(1).state_dict())
    assert state_of(model) == state_of(convert(real(1)))
    assert isinstance(model[2].weight, BFPParameter)
