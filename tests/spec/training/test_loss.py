"""The definitions of the losses mean what they say: against real numbers of 60 digits."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import mpmath
import pytest
import torch
import torch.nn.functional as F

from samebits.spec import formats
from samebits.spec.training import loss as losses
from samebits.spec.training.layers import Array
from samebits.spec.training.loss import Row

mpmath.mp.dps = 60
# Of a loss: log2(S) is one of 24 bits, and P has 24 behind the point; u has 16.
LOSS_ERROR = 2.0**-15


def integers(seed, shape, bits, exponent, small=0) -> Array:
    rng = random.Random(f"{seed} {shape} {bits}")
    limit = formats.CODE_MAX[bits] >> small
    codes = [rng.randint(-limit, limit) for _ in range(math.prod(shape))]
    return Array(codes, shape, exponent, bits)


def softmax(row: Row) -> list[mpmath.mpf]:
    values = [mpmath.exp(mpmath.mpf(-d) * mpmath.mpf(2) ** row.exponent) for d in row.distances]
    return [v / sum(values) for v in values]


def real(a: Array, grad: bool = False) -> torch.Tensor:
    return torch.tensor(a.values, dtype=torch.float64).view(a.shape).requires_grad_(grad)


def check(found, wanted: torch.Tensor, z: torch.Tensor, gradient_error: float, scale: float = 1.0):
    """A loss and a gradient against those of float64 PyTorch."""
    value, gradient = found
    (wanted * scale).backward()
    assert value == pytest.approx(wanted.item(), rel=1e-4, abs=2 * LOSS_ERROR)
    assert (real(gradient) - z.grad).abs().max() <= gradient_error


@pytest.mark.parametrize("classes", [1, 2, 5, 300])
@pytest.mark.parametrize(("bits", "exponent"), [(8, -5), (8, -2), (32, -28), (32, -31), (32, -60)])
def test_softmax_is_within_the_stated_bound(classes, bits, exponent):
    for seed in range(4):
        row = Row(integers(seed, (classes,), bits, exponent).codes, exponent)
        powers = row.powers
        assert max(powers) == 2**24
        bound = 2.0**-16 + classes * 2.0**-23
        for p, s in zip(powers, softmax(row), strict=True):
            assert abs(Fraction(p, sum(powers)) - Fraction(str(mpmath.nstr(s, 30)))) <= bound


@pytest.mark.parametrize("exponent", [-60, -31, -28, -24, -17, -16, -15, -10, 0, 5, 40, 300])
def test_losses_of_rows_do_not_saturate(exponent):
    """ln 2 * R * 2**-24 is A * ln(S) + D * 2**e, whatever the distance of the target."""
    for seed, classes in enumerate((2, 3, 10, 40)):
        row = Row(integers(seed, (classes,), 32, exponent).codes, exponent)
        s = mpmath.log(mpmath.fsum(mpmath.exp(-mpmath.ldexp(d, exponent)) for d in row.distances))
        for j in range(classes):
            for amount in (1, 2**28 // 3):
                found = mpmath.mpf(row.loss(amount, amount * row.distances[j])) * mpmath.log(2)
                wanted = amount * (s + mpmath.ldexp(row.distances[j], exponent))
                error = abs(found / 2**24 - wanted)
                stated = amount * (2.0**-16 + classes * 2.0**-23)
                distance = amount * row.distances[j]
                assert error <= stated + mpmath.ldexp(distance, exponent - 30)


def test_a_target_far_below_the_maximum():
    z = Array([0, -3000, 5], (1, 3), 0, 32)
    assert losses.cross_entropy(z, [1])[0] == pytest.approx(3005.006715, abs=2e-5)  # 32 ln 2 = 22.2
    assert losses.cross_entropy(z, [1])[1].codes == [112287, -(2**24), 2**24 - 112287]
    assert losses.cross_entropy(Array([0, -1], (1, 2), 1500, 32), [1])[0] == math.inf


LOGITS = [(8, -5, 0), (32, -29, 0), (32, -20, 8)]
WEIGHTS = [0.25, 3.0, 1.0, 0.001, 0.7]


@pytest.mark.parametrize(("bits", "exponent", "small"), LOGITS)
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("weight", [None, WEIGHTS])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("shape", [(6, 5), (2, 5, 3), (1, 5, 3, 2)])
def test_general_cross_entropy(bits, exponent, small, mean, weight, smoothing, shape):
    z = integers(1, shape, bits, exponent, small)
    targets = [0, 3, -7, 2, 1, 3]
    w = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    reduction = "mean" if mean else "sum"
    rz = real(z, True)
    wanted = F.cross_entropy(
        rz,
        torch.tensor(targets).view(shape[0], *shape[2:]),
        w,
        ignore_index=-7,
        reduction=reduction,
        label_smoothing=smoothing,
    )
    options = {"weight": weight, "ignored": -7, "mean": mean, "smoothing": smoothing}
    found = losses.general_cross_entropy(z, targets, 0.3, **options)
    check(found, wanted, rz, 2e-5 * (1 if weight is None else 5), 0.3)


@pytest.mark.parametrize(("bits", "exponent", "small"), LOGITS)
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("weight", [None, WEIGHTS])
@pytest.mark.parametrize("smoothing", [0.0, 0.25])
def test_cross_entropy_of_probabilities(bits, exponent, small, mean, weight, smoothing):
    z = integers(2, (4, 5, 2), bits, exponent, small)
    given = torch.rand(4, 5, 2, generator=torch.Generator().manual_seed(5)).softmax(1)
    given[1, :, 0] = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0])
    given[2, :, 1] = 0
    w = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    rz = real(z, True)
    wanted = F.cross_entropy(
        rz, given.double(), w, reduction="mean" if mean else "sum", label_smoothing=smoothing
    )
    rows = given.movedim(1, -1).reshape(-1, 5).tolist()
    options = {"weight": weight, "mean": mean, "smoothing": smoothing}
    check(losses.general_cross_entropy(z, rows, **options), wanted, rz, 1e-4)


def test_ignored_rows_are_left_out():
    z = integers(3, (4, 3), 32, -29)
    kept = Array(z.codes[:3] + z.codes[9:], (2, 3), -29, 32)
    value, gradient = losses.cross_entropy(z, [2, -100, -100, 0])
    assert (value, gradient.codes[:3] + gradient.codes[9:]) == (
        losses.cross_entropy(kept, [2, 0])[0],
        losses.cross_entropy(kept, [2, 0])[1].codes,
    )
    assert gradient.codes[3:9] == [0] * 6


def test_the_two_grids_of_cross_entropy_agree():
    """6.2 rounds to 2**-24 after the division by the rows, 6.3 to 2**-28 before it."""
    z, targets = integers(4, (9, 7), 32, -29), [0, 6, 3, 3, 2, 1, 5, 4, 0]
    value, gradient = losses.cross_entropy(z, targets)
    other, finer = losses.general_cross_entropy(z, targets)
    assert 0 <= other - value <= 2.0**-16  # u is floored
    assert (real(gradient) - real(finer)).abs().max() <= 2.0**-25 + 2.0**-17 / 9


@pytest.mark.parametrize(("bits", "exponent", "small"), [*LOGITS, (32, -24, 0)])
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy(bits, exponent, small, mean, weighted):
    z = integers(5, (4, 3), bits, exponent, small)
    generator = torch.Generator().manual_seed(6)
    t = torch.rand(4, 3, generator=generator).double()
    t[0] = torch.tensor([0.0, 1.0, 0.5])
    w = torch.tensor([[0.0], [1.0], [20.0], [0.3]]).expand(4, 3).double() if weighted else None
    rz = real(z, True)
    wanted = F.binary_cross_entropy_with_logits(
        rz, t, pos_weight=w, reduction="mean" if mean else "sum"
    )
    weight = None if w is None else w.flatten().tolist()
    found = losses.binary_cross_entropy(z, t.flatten().tolist(), pos_weight=weight, mean=mean)
    check(found, wanted, rz, 2e-5 * (20 if weighted else 1))


def test_sigmoid_by_integers():
    """With a target of 0 the gradient is the sigmoid."""
    for code in (-127, -40, -3, 0, 1, 17, 127):
        _, g = losses.binary_cross_entropy(Array([code], (1,), -4, 8), [0.0], mean=False)
        wanted = 1 / (1 + mpmath.exp(mpmath.mpf(-code) / 16))
        assert abs(mpmath.ldexp(g.codes[0], g.exponent) - wanted) <= 2.0**-16 + 2.0**-22


DIFFERENCES = {
    "mse": (losses.mse, F.mse_loss, {}),
    "l1": (losses.l1, F.l1_loss, {}),
    "huber": (losses.huber, F.huber_loss, {"delta": 0.4}),
    "huber of wide delta": (losses.huber, F.huber_loss, {"delta": 1e4}),
    "smooth l1": (losses.smooth_l1, F.smooth_l1_loss, {"beta": 0.3}),
    "smooth l1 of beta 0": (losses.smooth_l1, F.smooth_l1_loss, {"beta": 0.0}),
}


@pytest.mark.parametrize("name", DIFFERENCES)
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize(("bits", "exponent", "small"), LOGITS)
def test_differences(name, mean, bits, exponent, small):
    ours, theirs, options = DIFFERENCES[name]
    y = integers(7, (4, 3), bits, exponent, small)
    targets = torch.randn(4, 3, generator=torch.Generator().manual_seed(8)).double()
    ry = real(y, True)
    wanted = theirs(ry, targets, reduction="mean" if mean else "sum", **options)
    value, gradient = ours(y, targets.flatten().tolist(), mean=mean, **options)
    wanted.backward()
    assert value == pytest.approx(wanted.item(), rel=2e-4)
    error = (real(gradient) - ry.grad).abs().max()
    assert error <= ry.grad.abs().max() * 2.0**-14


def test_an_outlier_does_not_take_the_bits_of_others():
    """Huber clamps before it rounds, L1 takes signs of exact differences; targets have 32 bits."""
    y = Array([1 << 30, 40, -40, 3], (4,), -10, 32)
    for ours, options in ((losses.huber, {"delta": 1.0}), (losses.l1, {})):
        _, gradient = ours(y, [0.0] * 4, mean=False, **options)
        wanted = [1.0, 40 / 1024, -40 / 1024, 3 / 1024] if options else [1.0, 1.0, -1.0, 1.0]
        assert gradient.values == pytest.approx(wanted, rel=2e-3)
        _, gradient = ours(Array([0] * 4, (4,), 0, 8), [-1e4, -1.0, 0.5, 0.25], **options)
        wanted = [0.25, 0.25, -0.125, -0.0625] if options else [0.25, 0.25, -0.25, -0.25]
        assert gradient.values == pytest.approx(wanted, rel=1e-4)


def test_exponents_by_rows():
    """A row of its own exponent is that row alone; where one row has several, they are aligned."""
    z = integers(9, (3, 4), 32, -29, 4)
    rows = Array(z.codes, (3, 4), (-29,) * 4 + (-26,) * 4 + (-40,) * 4, 32)
    value, gradient = losses.cross_entropy(rows, [0, 2, 1], mean=False)
    total = 0.0
    for n, exponent in enumerate((-29, -26, -40)):
        alone = Array(z.codes[4 * n : 4 * n + 4], (1, 4), exponent, 32)
        own, g = losses.cross_entropy(alone, [[0, 2, 1][n]])
        assert gradient.codes[4 * n : 4 * n + 4] == g.codes
        total += own
    assert value == pytest.approx(total, rel=1e-12)
    mixed = Array([5, 9, 6, 0], (1, 2, 2), (-3, -3, -1, -1), 8)  # E is -1: 5/4 and 9/4 are rounded
    aligned = Array([1, 2, 6, 0], (1, 2, 2), -1, 8)
    assert losses.general_cross_entropy(mixed, [0, 1]) == losses.general_cross_entropy(
        aligned, [0, 1]
    )
    own = (-3, -3, -1, -1, -9, -9, -8, -8)  # E is that of a sample, here -1 and -8
    several = Array([5, 9, 6, 0, 5, 9, 6, 0], (2, 2, 2), own, 8)
    rows_found = [(row.codes, row.exponent) for row in losses.logits_rows(several)]
    assert rows_found == [([1, 6], -1), ([2, 0], -1), ([2, 6], -8), ([4, 0], -8)]
    y = Array([8, 4, 2, 1], (2, 2), (-3, -3, 0, 0), 8)
    same = Array([8, 4, 16, 8], (2, 2), -3, 8)
    assert losses.mse(y, [0.0] * 4) == losses.mse(same, [0.0] * 4)
