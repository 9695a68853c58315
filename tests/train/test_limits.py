"""Inputs and habits at the edge: a clear error, or the right bits, never a crash."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from compare import assert_same
from reference_nets import CASES
from samebits import kernels
from samebits.errors import CheckpointError, InputError, RangeError, UnsupportedError
from samebits.kernels import Window, conv_shape
from samebits.kernels.eager import Eager
from samebits.train import SGD, Adam, BFPTensor, convert, cross_entropy, mse_loss
from samebits.train.operations.normalization import batch_norm
from samebits.train.operations.pointwise import embedding
from samebits.train.operations.pooling import avg_pool2d, max_pool2d
from samebits.train.tensor import BFPParameter


def real(*shape: int) -> BFPTensor:
    count = math.prod(shape)
    return BFPTensor.from_real((torch.arange(count) % 11 - 5.0).view(shape))


def test_input_gradient_just_below_the_32_bit_limit() -> None:
    """518 * 127 * 32639 + 9 * 32639 = 2147483005 does not fit a rounding shift in 32 bits."""
    w = torch.full((519, 1, 1, 1), 127, dtype=torch.int8)
    w[-1] = 9
    g = torch.full((1, 519, 1, 1), 32639, dtype=torch.int16)
    shape = conv_shape((1, 1, 1, 1), tuple(w.shape))
    found = []
    for k in (Eager(), kernels.of(w)):
        acc, largest = k.conv_input_grad(g, w, shape)
        codes, exponent = k.requantize(acc, largest, 0, 16)
        assert largest == 2147483005
        found.append((int(codes), exponent))
    assert found[0] == found[1] == (16384, 17)


@pytest.mark.parametrize(
    ("module", "shape", "text"),
    [
        (nn.Conv2d(3, 4, 3), (0, 3, 8, 8), "empty batch"),
        (nn.Conv2d(3, 4, 3), (3, 8, 8), "expected \\[n, c, h, w\\]"),
        (nn.Linear(4, 2), (0, 4), "empty batch"),
        (nn.MaxPool2d(9), (1, 1, 2, 2), "window that fits"),
        (nn.AvgPool2d(5, 1), (1, 1, 2, 2), "window that fits"),
        (nn.MaxPool2d(2), (2, 4), "expected \\[n, c, h, w\\]"),
        (nn.BatchNorm2d(1), (2, 64, 2, 2), "expected \\[n, 1\\]"),
        (nn.BatchNorm1d(4), (2, 3, 4), "expected \\[n, 4\\]"),
        (nn.LayerNorm(3), (2, 6), "rows of 3 elements"),
        (nn.LayerNorm(1), (2, 6), "rows of 1 elements"),
    ],
)
def test_shapes_that_do_not_fit(module: nn.Module, shape: tuple[int, ...], text: str) -> None:
    layer = convert(module)
    x = BFPTensor(torch.zeros(shape, dtype=torch.int8), 0)
    with pytest.raises(UnsupportedError, match=text):
        layer(x)


def test_windows_of_padding_alone_are_refused() -> None:
    x = real(1, 2, 4, 4)
    for pool in (max_pool2d, avg_pool2d):
        with pytest.raises(UnsupportedError, match="at most half its size"):
            pool(x, Window((2, 2), (1, 1), (3, 3)))


def test_statistics_that_are_not_finite_are_an_error() -> None:
    one = BFPParameter.from_real(torch.ones(2))
    x = real(4, 2)
    for bad in (math.nan, -1.0):
        with pytest.raises(RangeError, match="not finite"):
            batch_norm(x, one, one, torch.zeros(2), torch.tensor([1.0, bad]).double(), False)
    state = convert(nn.BatchNorm1d(2)).state_dict()
    state["running_var"] = torch.tensor([1.0, -1.0], dtype=torch.float64)
    with pytest.raises(RuntimeError, match="variances >= 0"):
        convert(nn.BatchNorm1d(2)).load_state_dict(state)


@pytest.mark.parametrize("training", [True, False])
def test_a_channel_of_weight_zero_leaves_the_others_their_gradient(training: bool) -> None:
    def gradient(weight: list[float], x: Tensor, g: Tensor) -> BFPTensor:
        one, bias = (BFPParameter.from_real(torch.tensor(v)) for v in (weight, [0.0] * len(weight)))
        mean, var = (torch.full((len(weight),), v).double() for v in (0.0, 1.0))
        entering = BFPTensor(x, -4).requires_grad_()
        batch_norm(entering, one, bias, mean, var, training).backward(BFPTensor(g, -30))
        return entering.grad

    x = torch.tensor([[7, 100], [-50, 3], [33, -9]], dtype=torch.int8)
    g = torch.tensor([[5, -600], [1000, 70], [-8, 123456]], dtype=torch.int32)
    both, alone = gradient([0.0, 1.0], x, g), gradient([1.0], x[:, 1:], g[:, 1:])
    assert both.exponent == alone.exponent
    assert both.codes[:, 0].tolist() == [0, 0, 0]
    assert_same(both.codes[:, 1], alone.codes, g[:, 1])
    assert alone.codes.all()


def test_empty_losses_and_bad_factors() -> None:
    with pytest.raises(UnsupportedError, match="empty batch"):
        cross_entropy(BFPTensor(torch.zeros(0, 3, dtype=torch.int8), 0), torch.zeros(0).long())
    with pytest.raises(UnsupportedError, match="BFP tensor"):
        mse_loss(torch.zeros(3), torch.zeros(3))  # type: ignore[arg-type]
    model = convert(nn.Linear(4, 3))
    loss = cross_entropy(model(real(2, 4)), torch.tensor([0, 1]))
    with pytest.raises(RangeError, match="finite factor"):
        (loss * math.inf).backward()


def test_embedding_takes_integers() -> None:
    weight = BFPParameter.from_real(torch.ones(3, 2))
    with pytest.raises(UnsupportedError, match="integer indices"):
        embedding(torch.zeros(2), weight)


def test_frozen_layers_stay_frozen() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    model[0].weight.requires_grad_(False)
    twin = convert(model)
    assert [p.requires_grad for p in twin.parameters()] == [False, True, True, True]
    before = twin[0].weight.codes.clone()
    optimizer = SGD(twin.parameters(), lr=10.0)
    cross_entropy(twin(real(3, 4)), torch.tensor([0, 1, 2])).backward()
    optimizer.step()
    assert torch.equal(twin[0].weight.codes, before)


def test_a_tensor_added_to_in_place_is_used_up() -> None:
    old = real(2, 2)
    total = old.add_(real(2, 2))
    assert torch.equal(total.dequantize(), 2 * real(2, 2).dequantize())
    with pytest.raises(UnsupportedError, match="use the result"):
        old.dequantize()


def test_dropout_without_set_step_changes_from_pass_to_pass() -> None:
    layer = convert(nn.Sequential(nn.Dropout(0.5)))
    x = real(8, 8)
    first, second = layer(x).codes, layer(x).codes
    assert not torch.equal(first, second)


def test_a_clone_of_a_parameter_is_a_snapshot_of_its_value() -> None:
    model = convert(nn.Linear(4, 3))
    value = model.weight.dequantize().clone()
    snapshot = model.weight.detach().clone()
    optimizer = SGD(model.parameters(), lr=1.0)
    cross_entropy(model(real(3, 4)), torch.tensor([0, 1, 2])).backward()
    optimizer.step()
    assert torch.equal(snapshot.dequantize(), value)
    assert not torch.equal(model.weight.dequantize(), value)


def test_state_dict_follows_the_exponent() -> None:
    model = convert(nn.Linear(4, 3))
    state = model.state_dict()
    model.weight.set_exponent(5)
    assert int(state["weight.exponent"]) == 5


def test_step_without_any_gradient_is_an_error() -> None:
    with pytest.raises(InputError, match="no parameter has a gradient"):
        SGD(convert(nn.Linear(2, 2)).parameters(), lr=0.1).step()


def test_gradients_set_to_zero_in_place() -> None:
    def gradient(again: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = convert(nn.Linear(4, 3))
        optimizer = SGD(model.parameters(), lr=0.1)
        for _ in range(2 if again else 1):
            optimizer.zero_grad(set_to_none=False)
            cross_entropy(model(real(3, 4)), torch.tensor([0, 1, 2])).backward()
        return model.weight.grad.dequantize()

    assert torch.equal(gradient(True), gradient(False))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("momentum", torch.zeros(3, 4, dtype=torch.int8)),
        ("momentum", torch.zeros(3, 4, dtype=torch.int32)),
        ("momentum", torch.full((3, 4), -32768, dtype=torch.int16)),
        ("momentum", torch.zeros(4, 3, dtype=torch.int16)),
        ("momentum_exponent", 10**6),
        ("momentum_exponent", "1"),
        ("extra", 1),
    ],
)
def test_optimizer_state_of_another_kind_is_refused(key: str, value: object) -> None:
    model = convert(nn.Linear(4, 3))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    cross_entropy(model(real(3, 4)), torch.tensor([0, 1, 2])).backward()
    optimizer.step()
    state = optimizer.state_dict()
    state["state"][0][key] = value
    with pytest.raises(CheckpointError, match="optimizer state"):
        optimizer.load_state_dict(state)
    with pytest.raises(CheckpointError, match="this optimizer"):
        Adam(model.parameters()).load_state_dict(state)


def test_tied_parameters_stay_tied_on_another_device() -> None:
    """The meta device stands in for any other: it takes shapes and types, no GPU needed."""
    source = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    source[2].weight = source[0].weight
    twin = convert(source)
    assert twin[0].weight is twin[2].weight
    old = twin[0].weight
    twin.to("meta")
    moved = twin[0].weight
    assert moved is twin[2].weight
    assert moved is not old
    assert (moved.device.type, moved.codes.device.type, moved.delayed.device.type) == ("meta",) * 3
    assert (moved.codes.dtype, moved.delayed.dtype) == (torch.int8, torch.int16)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("name", list(CASES))
def test_a_gradient_of_8_bits_is_taken_as_one_of_16(name, parts, realisation):
    """Whoever calls `backward` may have one; kernels read 16 and 32 bits."""
    case = CASES[name]
    inputs, _ = case.shard(0, 0)
    tensors = {key: torch.tensor(v).view(case.inputs[key]) for key, v in inputs.items()}
    found = []
    for dtype in (torch.int8, torch.int16):
        model = convert(case.build()).eval()
        given = {k: v if k == "tokens" else BFPTensor.from_real(v) for k, v in tensors.items()}
        y = model(given)
        codes = (torch.arange(y.numel()) * 37 % 255 - 127).view(y.shape).to(dtype)
        gradients = [BFPTensor(codes, -20 - part) for part in range(parts)]
        torch.autograd.backward([y] * parts, gradients)
        named = model.named_parameters()
        found.append({n: (p.grad.codes.tolist(), p.grad.exponent) for n, p in named})
    assert found[0] == found[1]
