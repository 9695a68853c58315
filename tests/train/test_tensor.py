"""BFP tensors under autograd, as parameters and in state dictionaries."""

from __future__ import annotations

import copy
import itertools
import math
import re

import pytest
import torch
from torch import nn

from compare import assert_same
from samebits.errors import CheckpointError, NonFiniteError, RangeError, UnsupportedError
from samebits.spec import formats
from samebits.train import (
    SGD,
    BFPParameter,
    BFPTensor,
    convert,
    cross_entropy,
    load_state,
    model_input,
)
from samebits.train.layers import Linear
from samebits.train.operations.activations import relu
from samebits.train.value import gradient_in

pytestmark = pytest.mark.usefixtures("realisation")


def bfp(shape, exponent=-5, dtype=torch.int8, seed=0, limit=127):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-limit, limit + 1, shape, generator=generator).to(dtype)
    return BFPTensor(codes, exponent)


def wide(shape, exponent, seed):
    return bfp(shape, exponent, torch.int32, seed, formats.Q32)


def plain(tensor):
    codes, exponent = tensor.resolved()
    return codes.flatten().tolist(), exponent


# --- quantizing reals -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "index", "text"), [(math.nan, (1, 2), "nan"), (-math.inf, (0, 1), "-inf")]
)
def test_a_non_finite_input_is_named(value, index, text):
    x = torch.zeros(2, 3)
    x[1, 2] = math.inf
    x[index] = value
    place = re.escape(str(index))
    wanted = rf"tensor 'images': expected finite values, found {text} at index {place}"
    with pytest.raises(NonFiniteError, match=wanted):
        BFPTensor.from_real(x, "images")
    model = nn.Sequential(nn.Linear(3, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(x)
    with pytest.raises(NonFiniteError, match=r"tensor '0\.weight': expected finite values"):
        convert(model)


@pytest.mark.parametrize("scale", [1.0, 1e-37, 1e-44, 1e30, 0.0, 127.0, 127.5, 255.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_from_real_equals_the_definition(scale, dtype):
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(1)).to(dtype) * scale
    x[0, 0], x[1, 1] = scale, -scale
    values = x.double().flatten().tolist()
    exponent = formats.smallest_exponent(max(abs(formats.Fraction(v)) for v in values), 127)
    expected = [formats.round_real(formats.Fraction(v) / formats.power(exponent)) for v in values]
    tensor = BFPTensor.from_real(x)
    assert_same(tensor.codes, expected, values)
    assert tensor.exponent == exponent
    weight, delayed, exponent = formats.initial_weight(values)
    parameter = BFPParameter.from_real(x)
    assert_same(parameter.codes, weight, values)
    assert_same(parameter.delayed, delayed, values)
    assert parameter.exponent == exponent


def test_a_tensor_without_elements_is_as_one_of_zeros():
    empty = torch.empty(0, 3)
    assert (BFPTensor.from_real(empty).exponent, BFPTensor.from_real(empty).bits) == (-128, 8)
    assert BFPParameter.from_real(empty).exponent == formats.ZERO_WEIGHT_EXPONENT


def test_a_value_beyond_the_format_is_a_range_error():
    with pytest.raises(RangeError, match="expected an exponent of at most 127"):
        BFPTensor.from_real(torch.tensor([1e300], dtype=torch.float64))
    with pytest.raises(RangeError, match="'scale'"):
        BFPParameter.from_real(torch.tensor([1e300], dtype=torch.float64), "scale")


def test_dequantize_is_exact():
    x = bfp((40,), -140)
    assert x.dequantize().tolist() == [math.ldexp(c, -140) for c in x.codes.tolist()]
    parameter = BFPParameter.from_real(torch.tensor([0.3, -1.7]))
    joint, exponent = parameter.joint()
    assert parameter.dequantize().tolist() == [math.ldexp(j, exponent) for j in joint.tolist()]


def test_repr():
    x = bfp((2, 3))
    assert repr(x) == "BFPTensor(shape=(2, 3), bits=8, exponent=-5)"
    assert repr(x.requires_grad_()).endswith(", requires_grad=True)")
    parameter = BFPParameter.from_real(torch.ones(4))
    assert repr(parameter) == "BFPParameter(shape=(4,), bits=8, exponent=-6, requires_grad=True)"
    sums = torch.ops.aten.add.Tensor(wide((3,), -30, 1), bfp((3,), -9, torch.int16))
    assert repr(sums) == "BFPTensor(shape=(3,), bits=32+16, exponent=-30+-9)"


# --- autograd ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fan_out", [2, 3])
def test_contributions_are_summed_once_whatever_their_order(fan_out):
    gradients = [wide((4, 5), e, s) for s, e in enumerate((-40, -33, -37))][:fan_out]
    expected = formats.resolve([plain(g) for g in gradients])
    for order in itertools.permutations(range(fan_out)):
        x = bfp((4, 5), limit=100)
        x = BFPTensor(x.codes.abs() + 1, -5).requires_grad_()  # relu passes everything
        outputs = [relu(x) for _ in range(fan_out)]
        torch.autograd.backward([outputs[i] for i in order], [gradients[i] for i in order])
        assert len(x.grad.parts) == fan_out
        assert_same(x.grad.codes, expected[0], range(20))
        assert (x.grad.exponent, x.grad.bits) == (expected[1], 32)


def test_inner_contributions_are_summed_before_they_pass_on():
    """An inner node is resolved when its backward runs; the leaf gets one part."""
    x = BFPTensor(torch.ones(6, dtype=torch.int8), 0).requires_grad_()
    inner = relu(x)
    gradients = [wide((6,), e, s) for s, e in enumerate((-40, -31, -35))]
    torch.autograd.backward([relu(inner) for _ in gradients], gradients)
    assert len(x.grad.parts) == 1
    assert plain(x.grad) == formats.resolve([plain(g) for g in gradients])


def test_two_backward_calls_equal_one_resolve():
    x = BFPTensor(torch.ones(30, dtype=torch.int8), 0).requires_grad_()
    gradients = [wide((30,), -40, 1), wide((30,), -31, 2), wide((30,), -35, 3)]
    for g in gradients:
        relu(x).backward(g)
    assert len(x.grad.parts) == 3
    assert plain(x.grad) == formats.resolve([plain(g) for g in gradients])
    assert plain(gradients[0]) == plain(wide((30,), -40, 1))  # what came in is untouched


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_sum_in_place_is_the_tensor_itself(mode):
    """What autograd calls where it gathers gradients: the parts come together, unsummed."""
    with mode():
        total, more = wide((3,), -30, 1), bfp((3,), -9, torch.int16, 2)
        expected = formats.resolve([plain(total), plain(more)])
        assert torch.ops.aten.add_.Tensor(total, more) is total
        assert len(total.parts) == 2
        assert plain(total) == expected
        assert torch.ops.aten.zero_.default(total) is total
        assert plain(total) == ([0, 0, 0], -128)


def test_a_gradient_that_fits_its_width_is_taken_as_it_is():
    """Even where its exponent is below -128; one that does not fit is rounded once."""
    g = torch.tensor([3, -2047], dtype=torch.int16)
    for bits in (16, 12):
        codes, exponent = gradient_in(bits, g, -140)
        assert (codes.tolist(), exponent) == ([3, -2047], -140)
    codes, exponent = gradient_in(12, g + g, -100)
    assert (codes.tolist(), exponent) == ([3, -2047], -99)
    codes, exponent = gradient_in(16, g.int(), -140)
    assert (codes.tolist(), exponent) == ([0, 0], -128)  # 2047 / 4096 and less


def test_the_same_tensor_twice():
    x = bfp((5,)).requires_grad_()
    g = wide((5,), -30, 1)
    (x + x).backward(g)
    assert plain(x.grad) == formats.resolve([plain(g), plain(g)])


def test_a_gradient_may_not_be_float():
    x = bfp((5,)).requires_grad_()
    with pytest.raises(TypeError, match="expected a BFP gradient"):
        relu(x).backward(torch.ones(5))


def test_the_anomaly_mode_of_torch_finds_nothing():
    model = convert(nn.Linear(3, 2))
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
        cross_entropy(model(model_input(model, torch.ones(2, 3))), torch.tensor([0, 1])).backward()
    assert isinstance(model.weight.grad, BFPTensor)


def test_no_grad_and_detach():
    model = convert(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    x = bfp((2, 4))
    with torch.no_grad():
        y = model(x)
    assert not y.requires_grad
    assert plain(y) == plain(model(x))
    middle = model[0](x)
    assert middle.requires_grad
    cut = middle.detach()
    assert isinstance(cut, BFPTensor)
    assert not cut.requires_grad
    assert plain(cut) == plain(middle)
    cross_entropy(model[2](model[1](cut)), torch.tensor([0, 1])).backward()
    assert model[0].weight.grad is None
    assert model[2].weight.grad is not None
    assert plain(middle.clone()) == plain(middle)


def test_zero_grad_and_frozen_parameters():
    model = convert(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    model[0].weight.requires_grad_(False)
    cross_entropy(model(bfp((2, 4))), torch.tensor([0, 1])).backward()
    assert model[0].weight.grad is None
    assert model[0].bias.grad is not None
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: torch.sin(x), "sin"),
        (lambda x: x.prod(), "Tensor.prod"),
        (lambda x: torch.linalg.norm(x), "linalg.norm"),
        (lambda x: x.cumsum(0), "Tensor.cumsum"),
    ],
)
def test_an_unsupported_function_is_an_error(call, name):
    wanted = rf"have no torch\.{name}: .*go on in floats with \.dequantize\(\)"
    with pytest.raises(UnsupportedError, match=wanted):
        call(bfp((3, 3)))


def test_addition_that_does_not_fit():
    with pytest.raises(UnsupportedError, match=r"equal or 1, found \(3,\) and \(2,\)"):
        bfp((3,)) + bfp((2,))
    with pytest.raises(UnsupportedError, match="a float tensor that requires a gradient"):
        bfp((3,)) + torch.ones(3, requires_grad=True)


def test_functions_that_keep_codes():
    x = bfp((2, 3, 4, 5))
    for y in (
        torch.flatten(x, 1),
        x.flatten(1),
        x.reshape(2, 60),
        x.view(2, -1),
        x.reshape((2, 60)),
    ):
        assert (tuple(y.shape), plain(y)) == ((2, 60), plain(x))
    last = BFPTensor(x.codes.contiguous(memory_format=torch.channels_last), -5)
    assert plain(last.flatten(1)) == plain(x)
    total = bfp((2, 3, 4, 5))
    total += x
    assert plain(total) == plain(x + x)
    assert plain(torch.nn.functional.relu(x)) == plain(relu(x))
    assert plain(torch.cat([x, x], 1).reshape(-1))[0][:60] == plain(x)[0][:60]


def test_a_float_input_says_what_to_do():
    model = convert(nn.Sequential(nn.Linear(4, 3)))
    wanted = (
        r"layer '0' \(Linear\): expected a BFPTensor, found Tensor of torch.float32; .*from_real"
    )
    with pytest.raises(UnsupportedError, match=wanted):
        model(torch.ones(2, 4))


def test_layers_narrow_what_is_wider():
    """A 16- or 32-bit value that meets a layer is requantized; its gradient passes unchanged."""
    x = wide((5, 3), -28, 1).requires_grad_()
    y = convert(nn.ReLU())(x)
    codes, exponent = formats.requantize(*plain(x.detach()), 8)
    assert plain(y) == ([max(c, 0) for c in codes], exponent)
    g = wide((5, 3), -30, 3)
    y.backward(g)
    kept = [a if c > 0 else 0 for a, c in zip(plain(g)[0], codes, strict=True)]
    assert plain(x.grad) == (kept, -30)


def test_a_range_error_names_the_layer():
    model = convert(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    model[0].weight.set_exponent(127)
    wanted = r"layer '0' \(Linear\): expected an exponent of at most 127"
    with pytest.raises(RangeError, match=wanted):
        model(bfp((2, 4), 100))


# --- parameters -------------------------------------------------------------------------------


def small():
    torch.manual_seed(3)
    return convert(
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))
    )


def images(seed):
    generator = torch.Generator().manual_seed(seed)
    return BFPTensor.from_real(torch.randn(4, 2, 4, 4, generator=generator))


def train(model, optimizer=None):
    if optimizer is None:
        optimizer = SGD(model.parameters(), lr=0.5, momentum=0.9)
    for step in range(3):
        cross_entropy(model(images(step)), torch.tensor([0, 1, 1, 0])).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def state_of(model):
    return {name: (v.dtype, v.flatten().tolist()) for name, v in model.state_dict().items()}


def test_state_dict_holds_integers():
    state = train(small()).state_dict()
    expected = {"1.running_mean": torch.float64, "1.running_var": torch.float64}
    for layer, part in itertools.product(("0", "1", "3"), ("weight", "bias")):
        expected[f"{layer}.{part}.codes"] = torch.int8
        expected[f"{layer}.{part}.exponent"] = torch.int64
        expected[f"{layer}.{part}.delayed"] = torch.int16
    assert {name: value.dtype for name, value in state.items()} == expected


def test_state_dict_round_trip():
    model, other = train(small()), small()
    assert state_of(model) != state_of(other)
    state = copy.deepcopy(model.state_dict())
    load_state(other, state)
    assert state_of(other) == state_of(model)
    train(model)
    train(other)
    assert state_of(other) == state_of(model)
    assert state["3.weight.delayed"].tolist() != model[3].weight.delayed.tolist()  # a copy


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda s: s.pop("3.weight.delayed"), r"Missing key.*3\.weight\.delayed"),
        (lambda s: s.update(extra=torch.zeros(1)), r"Unexpected key.*extra"),
        (lambda s: s.update({"0.other": torch.zeros(1)}), r"Unexpected key.*0\.other"),
        (
            lambda s: s.update({"3.weight.codes": torch.zeros(2, 11, dtype=torch.int8)}),
            r"3\.weight\.codes: expected torch.int8 \(2, 12\), found torch.int8 \(2, 11\)",
        ),
        (
            lambda s: s.update({"3.weight.codes": torch.zeros(2, 12)}),
            r"3\.weight\.codes: expected torch.int8 \(2, 12\), found torch.float32",
        ),
        (
            lambda s: s.update({"1.running_var": torch.ones(3)}),
            r"1\.running_var: expected torch.float64 \(3,\), found torch.float32",
        ),
        (
            lambda s: s.update({"3.bias.codes": torch.full((2,), -128, dtype=torch.int8)}),
            r"3\.bias\.codes: expected integers in \[-127, 127\], found -128 to -128",
        ),
        (
            lambda s: s.update({"3.bias.exponent": torch.tensor(128)}),
            r"3\.bias\.exponent: expected integers in \[-128, 127\]",
        ),
    ],
)
def test_a_state_dict_that_does_not_fit(change, wanted):
    model = small()
    state = copy.deepcopy(model.state_dict())
    change(state)
    with pytest.raises(CheckpointError, match=f"(?s)not the state of this model.*{wanted}"):
        load_state(model, state)


def test_deepcopy_is_independent():
    model = train(small())
    twin = copy.deepcopy(model)
    before = state_of(model)
    assert state_of(twin) == before
    assert isinstance(twin[0].weight, BFPParameter)
    assert twin[0].weight.requires_grad
    train(twin)
    assert state_of(model) == before
    assert state_of(twin) != before
    train(model)
    assert state_of(model) == state_of(twin)


def test_deepcopy_keeps_shared_parameters_shared():
    parameter = BFPParameter.from_real(torch.ones(3, 3))
    pair = copy.deepcopy(nn.ModuleList([Linear(parameter, None), Linear(parameter, None)]))
    assert pair[0].weight is pair[1].weight is not parameter


@pytest.mark.parametrize("move", ["cpu", "float", "double", "half", "to"])
def test_moving_to_the_same_place_changes_nothing(move):
    """An optimizer made before still holds the model's parameters, and nothing becomes float."""
    model, expected = small(), train(small())
    optimizer = SGD(model.parameters(), lr=0.5, momentum=0.9)
    held = list(model.parameters())
    assert getattr(model, move)(*(["cpu"] if move == "to" else [])) is model
    assert all(a is b for a, b in zip(held, model.parameters(), strict=True))
    train(model, optimizer)
    assert state_of(model) == state_of(expected)


# --- memory -----------------------------------------------------------------------------------


def test_saved_activations_take_one_byte_an_element():
    blocks = [
        m
        for width in (3, 8, 8)
        for m in (nn.Conv2d(width, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    ]
    model = convert(nn.Sequential(*blocks))
    weights = {p.codes.data_ptr() for p in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = bfp((2, 3, 6, 6))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = model(x)
    # What convolutions and batch norms read; beside it three binary64 scalars of every channel of a
    # batch norm, and one bit an element of a ReLU.
    size = 2 * 8 * 6 * 6
    assert sum(saved.values()) == x.numel() + (3 + 2) * size + 3 * (8 * 3 * 8) + 3 * size // 8
    assert len(saved) == 1 + 5 + 3 + 3
    assert y.codes.data_ptr() not in saved


# --- values and their gradients ---------------------------------------------------------------


def logits() -> BFPTensor:
    layer = convert(torch.nn.Linear(3, 2))
    return layer(BFPTensor.from_real(torch.ones(1, 3)))


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(lambda y: y, id="sums"),
        pytest.param(lambda y: y.relu(), id="codes"),
    ],
)
def test_values_carry_the_gradient_on(of):
    """A loss of floats on values without one would train nothing, and nobody would know."""
    y = of(logits())
    values = y.dequantize()
    assert values.requires_grad
    assert torch.equal(y.detach().dequantize(), values)
    with torch.no_grad():
        assert torch.equal(y.dequantize(), values)


def test_values_without_a_gradient_are_read_without_a_word():
    """Warnings are errors here."""
    weight = convert(torch.nn.Linear(3, 2)).weight
    assert weight.requires_grad
    assert weight.dequantize().shape == (2, 3)
    assert BFPTensor.from_real(torch.ones(2)).requires_grad_().dequantize().tolist() == [1, 1]
    with torch.no_grad():
        assert logits().dequantize().shape == (1, 2)
