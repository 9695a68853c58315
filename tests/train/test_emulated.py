"""Emulated numerics: values rounded as spec.formats says, and sums that every float32 holds."""

from fractions import Fraction

import pytest
import torch
from torch import nn

from compare import assert_same
from samebits.errors import InputError, RangeError, UnsupportedError
from samebits.spec import formats
from samebits.train.emulated import (
    Emulated,
    conv2d,
    emulated_format,
    emulated_formats,
    linear,
    round_along,
)

NAMES = emulated_formats()
SHARED = tuple(name for name in NAMES if emulated_format(name).power_of_two)


def same(expected, found):
    """Equality of two tensors; the inputs in a message are positions."""
    assert expected.shape == found.shape
    assert_same(found, expected, range(found.numel()))


def by_definition(row, fmt):
    """One row of reals after rounding, block by block, by spec.formats alone."""
    values = formats.reals(row)
    size = fmt.block or len(values)
    out = []
    for start in range(0, len(values), size):
        block = values[start : start + size]
        if fmt.power_of_two:
            scale, zero = formats.power(formats.block_exponent(block, fmt)), 0
        else:
            scale, zero = formats.affine_parameters(block, fmt)
        codes = [formats.encode(value, scale, zero, fmt) for value in block]
        out += [formats.decode(code, scale, zero) for code in codes]
    return out


def rounded(x, fmt, axis):
    """A tensor after rounding along an axis, by spec.formats alone."""
    moved = x.movedim(axis, -1)
    flat = moved.reshape(-1, moved.shape[-1]).tolist()
    if fmt.block is None:  # one scale for the whole tensor
        flat = [[value for row in flat for value in row]]
    rows = [[float(value) for value in by_definition(row, fmt)] for row in flat]
    return torch.tensor(rows, dtype=torch.float32).reshape(moved.shape).movedim(-1, axis)


def reals(*shape, seed=0):
    """Values over many binades, with zeros, ties and both signs."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randint(-12, 12, shape, generator=generator)
    return torch.randint(-40, 40, shape, generator=generator) * 2.0**spread


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_the_definition(name):
    fmt = emulated_format(name)
    for axis, shape in ((-1, (3, 37)), (0, (35, 3)), (1, (2, 33, 2)), (2, (2, 2, 5, 3))):
        x = reals(*shape, seed=len(shape))
        same(rounded(x, fmt, axis), round_along(x, fmt, axis))


def test_msfp12_in_figures():
    """Sixteen values share the smallest exponent that does not saturate the largest."""
    x = torch.tensor([[7.0, 0.5, 1.5, -2.5] + [0.0] * 12 + [0.25, 3.0]])
    found = round_along(x, emulated_format("msfp12"), -1)
    assert found.tolist() == [[7, 0, 2, -2] + [0] * 12 + [0.5 * 0, 3]]


# --- products: small integers, so that no sum rounds in float32 -----------------------------------


def small(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-99, 100, shape, generator=generator) * 0.25


def exactly(equation, a, b):
    """A product of tensors as binary64, in which the sums of these are exact too."""
    return torch.einsum(equation, a.double(), b.double()).float()


@pytest.mark.parametrize("name", SHARED)
def test_a_linear_layer_forward_and_backward(name):
    fmt = emulated_format(name)
    if fmt.bits > 8:
        fmt = emulated_format("msfp14")
    x, w, b = small(2, 19, 21, seed=1), small(17, 21, seed=2), small(17, seed=3)
    g = small(2, 19, 17, seed=4)
    for tensor in (x, w, b):
        tensor.requires_grad_()
    y = linear(fmt, x, w, b)
    y.backward(g)
    x, w, b, dx, dw, db = (t.detach() for t in (x, w, b, x.grad, w.grad, b.grad))
    rows, of_rows = x.reshape(-1, 21), g.reshape(-1, 17)
    same(exactly("nak,mk->nam", rounded(x, fmt, -1), rounded(w, fmt, -1)) + b, y.detach())
    same(exactly("nam,mk->nak", rounded(g, fmt, -1), rounded(w, fmt, 0)), dx)
    same(exactly("nm,nk->mk", rounded(of_rows, fmt, 0), rounded(rows, fmt, 0)), dw)
    same(of_rows.sum(0), db)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("name", ["mxint8", "msfp12", "bfp8"])
def test_a_convolution_forward_and_backward(name, groups):
    fmt = emulated_format(name)
    outputs = 4 * groups
    x, w = small(18, 6, 5, 4, seed=1), small(outputs, 6 // groups, 3, 2, seed=2)
    b, sizes = small(outputs, seed=3), ((2, 1), (1, 0), (1, 2))
    for tensor in (x, w, b):
        tensor.requires_grad_()
    y = conv2d(fmt, x, w, b, *sizes, groups)
    g = small(*y.shape, seed=4)
    y.backward(g)
    dx, dw, db = x.grad, w.grad, b.grad
    x, w, b = (tensor.detach() for tensor in (x, w, b))

    def by_group(image):
        return rounded(image.unflatten(1, (groups, -1)), fmt, 2).flatten(1, 2).double()

    def autograd(image, kernel, grad):
        """The gradients of torch's own convolution, in binary64, where these sums are exact."""
        image, kernel = image.double().requires_grad_(), kernel.double().requires_grad_()
        out = nn.functional.conv2d(image, kernel, None, *sizes, groups)
        out.backward(grad.double())
        return out.detach().float(), image.grad.float(), kernel.grad.float()

    forward, _, _ = autograd(by_group(x), rounded(w, fmt, 1), g)
    kernel = rounded(w.unflatten(0, (groups, -1)), fmt, 1).flatten(0, 1)
    _, of_image, _ = autograd(x, kernel, by_group(g))
    _, _, of_kernel = autograd(rounded(x, fmt, 0), w, rounded(g, fmt, 0))
    same(forward + b[:, None, None], y.detach())
    same(of_image, dx)
    same(of_kernel, dw)
    same(g.sum((0, 2, 3)), db)


# --- networks -------------------------------------------------------------------------------------


class Wide(nn.Module):
    """Every product that is emulated."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.lstm = nn.LSTM(18, 5, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(10, 3)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x))).permute(0, 2, 1, 3).flatten(2)
        return self.out(self.lstm(y)[0][:, -1])


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Wide()


def gradients(module, x):
    module.zero_grad()
    module(x).square().sum().backward()
    return [parameter.grad.clone() for parameter in module.parameters()]


def test_a_network_has_its_parameters_and_their_order(net):
    names = [name for name, _ in Emulated(net, emulated_format("mxint8")).named_parameters()]
    assert names == [f"model.{name}" for name, _ in net.named_parameters()]


def test_wide_codes_are_near_float32_and_narrow_ones_are_not(net):
    """An LSTM unrolled in Python has torch's meaning: with 16-bit codes hardly anything moves."""
    x = torch.randn(7, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    want = gradients(net, x)

    def error(name):
        found = gradients(Emulated(net, emulated_format(name)), x)
        assert [bool(a.any()) for a in found] == [bool(b.any()) for b in want]
        errors = [(a - b).norm() / b.norm() for a, b in zip(found, want, strict=True) if b.norm()]
        return max(errors[3:])  # the bias before a batch-norm has a gradient of rounding errors

    assert error("bfp16") < 0.01 < error("msfp12")


def test_other_products_are_refused_not_left_in_float32():
    class Product(nn.Module):
        def forward(self, x):
            return x @ x.T

    for model, name, shape in (
        (Product(), "matmul", (2, 3)),
        (nn.GRU(3, 2), "gru", (2, 1, 3)),
        (nn.Conv1d(1, 1, 2), "conv1d", (1, 1, 4)),
        (nn.ConvTranspose2d(1, 1, 2), "conv_transpose2d", (1, 1, 3, 3)),
    ):
        with pytest.raises(UnsupportedError) as caught:
            Emulated(model, emulated_format("mxint8"))(torch.zeros(shape))
        assert str(caught.value) == (
            f"{name} in mxint8: expected the products of Linear, Conv2d and LSTM, which are "
            "emulated; replace it, or compare without this format"
        )


def test_forms_of_layers_that_are_not_emulated():
    fmt = emulated_format("mxint8")
    with pytest.raises(UnsupportedError, match=r"padding as numbers, found .* padding 'same'"):
        Emulated(nn.Conv2d(1, 1, 3, padding="same"), fmt)(torch.zeros(1, 1, 4, 4))
    with pytest.raises(UnsupportedError, match=r"expected a batch .* found \[1, 4, 4\]"):
        Emulated(nn.Conv2d(1, 1, 3), fmt)(torch.zeros(1, 4, 4))
    with pytest.raises(UnsupportedError, match="without dropout between layers"):
        Emulated(nn.LSTM(3, 2, 2, dropout=0.5), fmt)(torch.zeros(2, 1, 3))


def test_infinity_in_a_product_is_divergence():
    layer = Emulated(nn.Linear(2, 2), emulated_format("msfp12"))
    with pytest.raises(RangeError) as caught:
        layer(torch.tensor([[1.0, float("inf")]]))
    assert str(caught.value) == (
        "expected finite operands of a product in msfp12, found infinity or NaN"
    )


def test_formats_that_float32_cannot_hold():
    assert "bfp32" not in NAMES
    assert {"mxint8", "msfp12", "msfp13", "msfp14", "msfp15", "msfp16"} < set(NAMES)
    with pytest.raises(InputError) as caught:
        emulated_format("bfp32")
    assert str(caught.value) == (
        "format 'bfp32': expected at most 24 bits, which float32 holds, found 32; choose another "
        "format"
    )
    with pytest.raises(InputError, match="known names: bfp8"):
        emulated_format("msfp11")


def test_values_fit_float32_exactly():
    """Of the formats with a power of two: what the definition gives is a float32 number."""
    for name in SHARED:
        row = reals(1, 40, seed=7)[0].tolist()
        values = by_definition(row, emulated_format(name))
        assert all(Fraction(torch.tensor(float(v)).item()) == v for v in values), name
