"""Losses in both realisations against the plain-integer definition, for equality; and PyTorch's own
functions and modules on BFP tensors."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compare import assert_same
from samebits.errors import InputError, NonFiniteError, RangeError, UnsupportedError
from samebits.kernels import softmax
from samebits.spec import formats
from samebits.spec.training import loss as reference
from samebits.spec.training.layers import Array
from samebits.train import (
    SGD,
    BFPTensor,
    CrossEntropyLoss,
    MSELoss,
    binary_cross_entropy_with_logits,
    convert,
    cross_entropy,
    huber_loss,
    l1_loss,
    mse_loss,
    smooth_l1_loss,
)
from samebits.train.run.config import TrainConfig
from samebits.train.run.loop import make_engine

# From where no code matters to where every difference is beyond binary64.
EXPONENTS = [-150, -60, -45, -31, -28, -17, -16, -15, -14, -13, -5, 0, 3, 14, 40, 300, 1500]
DTYPES = {8: torch.int8, 32: torch.int32}


def logits(shape, bits, exponent, seed=0) -> Array:
    """Codes of every magnitude, the ends, and rows of equal codes, whose quotients are ties."""
    rng = random.Random(f"{shape} {bits} {exponent} {seed}")
    limit = formats.CODE_MAX[bits]
    codes = [rng.randint(-limit, limit) >> rng.randrange(bits) for _ in range(math.prod(shape))]
    codes[:2] = [limit, -limit][: len(codes)]
    codes[-shape[1] :] = [3] * shape[1]
    return Array(codes, tuple(shape), exponent, bits)


def tensor(z: Array) -> BFPTensor:
    """As BFP; of exponents by elements one for everything behind the first two axes."""
    codes = torch.tensor(z.codes, dtype=DTYPES[z.bits]).view(z.shape)
    exponent = z.exponent
    if not isinstance(exponent, int):
        own = torch.tensor(exponent).view(z.shape)
        exponent = own[:, :1] if len(z.shape) == 2 else own[..., :1]
    return BFPTensor(codes, exponent).requires_grad_()


def same(ours, z: Array, found, scale: float = 1.0) -> None:
    """A loss of `ours(tensor)` and the gradient of `scale` times it, against the definition's."""
    loss, gradient = found
    x = tensor(z)
    value = ours(x)
    assert float(value.detach()) == loss
    (value * scale).backward()
    codes, exponent = x.grad.resolved()
    assert (exponent, tuple(codes.shape), x.grad.bits) == (gradient.exponent, z.shape, 32)
    assert_same(codes, gradient.codes, z.codes)


# --- equality with the definition -------------------------------------------------------------


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_class_indices(bits, exponent, reduction, realisation):
    for shape, scale in itertools.product([(5, 7), (1, 1), (4, 2)], (1.0, 1 / 3, -(2.0**-140))):
        z = logits(shape, bits, exponent)
        for y in ([n % shape[1] for n in range(shape[0])], [0] + [-100] * (shape[0] - 1)):
            options = {"mean": reduction == "mean"}
            loss, gradient = reference.cross_entropy(z, y, abs(scale), **options)
            if scale < 0:
                codes = [-code for code in gradient.codes]
                gradient = Array(codes, gradient.shape, gradient.exponent, 32)
            ours = lambda x, y=y: cross_entropy(x, torch.tensor(y), reduction=reduction)  # noqa: E731
            same(ours, z, (loss, gradient), scale)


@pytest.mark.parametrize("exponent", [-9, -6, -4, -2, 0])
def test_every_pair_of_8_bit_logits(exponent, realisation):
    """A row (0, z) for every code z, in each way to compute it."""
    codes = range(-127, 128)
    pairs = Array([v for code in codes for v in (0, code)], (255, 2), exponent, 8)
    column = Array(list(codes), (255,), exponent, 8)
    rng = random.Random(exponent)
    for y in (0, 1):
        found = reference.cross_entropy(pairs, [y] * 255, mean=False)
        target = torch.full((255,), y)
        same(lambda x, t=target: cross_entropy(x, t, reduction="sum"), pairs, found)
    t = [rng.choice((0.0, 1.0, rng.random())) for _ in codes]
    target = torch.tensor(t, dtype=torch.float64)
    same(
        lambda x: binary_cross_entropy_with_logits(x, target),
        column,
        reference.binary_cross_entropy(column, t),
    )


WEIGHTS = {"none": None, "spread": [0.3, 1e-4, 7.0, 0.0, 1.9], "huge": [2.0**100, 1, 3, 5, 1e30]}


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize(("bits", "weights"), [(8, "none"), (32, "none"), (32, "spread")])
def test_cross_entropy_in_general(bits, weights, exponent, realisation):
    for shape, smoothing in (((6, 5), 0.1), ((2, 5, 3), 0.0), ((1, 5, 2, 3), 1.0)):
        z, y = logits(shape, bits, exponent, 1), [0, 3, -100, 2, 1, 3]
        at = torch.tensor(y).view(shape[0], *shape[2:])
        w = WEIGHTS[weights]
        for mean, scale in ((True, 1.0), (False, 1 / 3)):
            found = reference.general_cross_entropy(
                z, y, scale, weight=w, mean=mean, smoothing=smoothing
            )
            options = {
                "weight": None if w is None else torch.tensor(w, dtype=torch.float64),
                "reduction": "mean" if mean else "sum",
                "label_smoothing": smoothing,
            }
            same(lambda x, at=at, o=options: cross_entropy(x, at, **o), z, found, scale)


@pytest.mark.parametrize("exponent", [-60, -29, -5, 14, 300])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_probabilities(weights, exponent, realisation):
    generator = torch.Generator().manual_seed(exponent + 200)
    t = torch.rand(4, 5, 2, generator=generator).softmax(1)
    t[0, :, 0] = 0
    t[1, :, 1] = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])
    rows = t.movedim(1, -1).reshape(-1, 5).tolist()
    z, w = logits((4, 5, 2), 32, exponent, 2), WEIGHTS[weights]
    for mean, smoothing in ((True, 0.0), (True, 0.3), (False, 0.3)):
        found = reference.general_cross_entropy(z, rows, weight=w, mean=mean, smoothing=smoothing)
        options = {
            "weight": None if w is None else torch.tensor(w, dtype=torch.float64),
            "reduction": "mean" if mean else "sum",
            "label_smoothing": smoothing,
        }
        same(lambda x, o=options: cross_entropy(x, t, **o), z, found)


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("bits", [8, 32])
def test_binary_cross_entropy(bits, exponent, realisation):
    z = logits((4, 3), bits, exponent, 3)
    rng = random.Random(exponent)
    t = [rng.choice((0.0, 1.0, 0.5, rng.random())) for _ in z.codes]
    target = torch.tensor(t, dtype=torch.float64).view(4, 3)
    weight = torch.tensor([0.0, 30.0, 0.7], dtype=torch.float64)
    for w, mean, scale in itertools.product((None, weight), (True, False), (1.0, 0.3)):
        own = None if w is None else w.tolist() * 4
        found = reference.binary_cross_entropy(z, t, scale, pos_weight=own, mean=mean)
        reduction = "mean" if mean else "sum"
        same(
            lambda x, w=w, r=reduction: binary_cross_entropy_with_logits(
                x, target, pos_weight=w, reduction=r
            ),
            z,
            found,
            scale,
        )


DIFFERENCES = {
    "mse": (mse_loss, reference.mse, [{}]),
    "l1": (l1_loss, reference.l1, [{}]),
    "huber": (huber_loss, reference.huber, [{"delta": d} for d in (1.0, 2.0**-20, 1e9, 2.0**127)]),
    "smooth l1": (smooth_l1_loss, reference.smooth_l1, [{"beta": b} for b in (1.0, 0.03, 0.0)]),
}


@pytest.mark.parametrize("name", DIFFERENCES)
@pytest.mark.parametrize(
    ("exponent", "size"), [(-30, 1.0), (-100, 1.0), (0, 1e-30), (20, 1e9), (-30, 0.0), (-140, 1e-4)]
)
def test_differences(name, exponent, size, realisation):
    ours, definition, settings = DIFFERENCES[name]
    rng = random.Random(f"{exponent} {size}")
    for bits, options, mean, scale in itertools.product(
        (8, 32), settings, (True, False), (1.0, 0.3)
    ):
        y = logits((5, 3), bits, exponent, 4)
        targets = [rng.gauss(0, size) for _ in y.codes]
        if size == 1.0 and bits == 8:  # some differences are zero
            targets[:4] = [math.ldexp(code, exponent) for code in y.codes[:4]]
        found = definition(y, targets, scale, mean=mean, **options)
        target = torch.tensor(targets, dtype=torch.float64).view(5, 3)
        reduction = "mean" if mean else "sum"
        same(lambda x, t=target, o=options, r=reduction: ours(x, t, reduction=r, **o), y, found,
             scale)  # fmt: skip


def test_exponents_by_rows(realisation):
    rng = random.Random(7)
    own = [-29, -20, -40, -5]
    z = logits((4, 5), 32, tuple(e for e in own for _ in range(5)), 5)
    y, t = [0, 4, -100, 2], [rng.random() for _ in z.codes]
    target = torch.tensor(t, dtype=torch.float64).view(4, 5)
    same(lambda x: cross_entropy(x, torch.tensor(y)), z, reference.cross_entropy(z, y))
    found = reference.general_cross_entropy(z, y, smoothing=0.1)
    same(lambda x: cross_entropy(x, torch.tensor(y), label_smoothing=0.1), z, found)
    found = reference.binary_cross_entropy(z, t)
    same(lambda x: binary_cross_entropy_with_logits(x, target), z, found)
    for ours, definition, _ in DIFFERENCES.values():
        same(lambda x, f=ours: f(x, target), z, definition(z, t))
    # Of [N, C, d] the exponents are those of vectors along d: they differ along the classes.
    vectors = tuple(e for e in (-29, -27, -30, -29, -29, -31) for _ in range(2))
    z = logits((2, 3, 2), 32, vectors, 6)
    found = reference.general_cross_entropy(z, [0, 2, 1, 1])
    same(lambda x: cross_entropy(x, torch.tensor([[0, 2], [1, 1]])), z, found)
    z = logits((2, 2, 2), 32, tuple(e for e in (-29, -27, -30, -29) for _ in range(2)), 7)
    found = reference.general_cross_entropy(z, [0, 1, 1, 0])
    same(lambda x: cross_entropy(x, torch.tensor([[0, 1], [1, 0]])), z, found)


def test_sums_of_losses_are_exact():
    """As integers of Python are: in two parts, and above bit 30 of a product."""
    rng = random.Random(1)
    weights = [rng.getrandbits(29) for _ in range(500)]
    logs = [rng.getrandbits(28) for _ in range(500)]
    for bits in (32, 61):
        distances = [rng.getrandbits(bits) >> rng.randrange(30) for _ in range(500)]
        for exponent in (-100, -40, -17, -16, -15, 0, 14, 15, 90):
            wanted = 0
            for a, log, d in zip(weights, logs, distances, strict=True):
                product = d * softmax.LOG2_E
                shift = exponent - 14
                wanted += a * log + ((product << shift if shift >= 0 else product >> -shift) << 8)
            given = [torch.tensor(v) for v in (logs, weights, distances)]
            assert softmax.loss_units(*given, exponent) == wanted
            assert softmax.loss_units(*given, torch.tensor([[exponent]]).expand(500, 1)) == wanted


@pytest.mark.parametrize("shape", [(1, 2, 2**14), (2**14, 2)])
def test_many_rows_on_a_grid_of_their_own(shape, realisation):
    """6.2 divides on a grid of 2**-24; no bits are lost to the number of rows or positions."""
    x = BFPTensor(torch.zeros(shape, dtype=torch.int32), -29).requires_grad_()
    loss = cross_entropy(x, torch.zeros(shape[0], *shape[2:]).long())
    loss.backward()
    assert float(loss.detach()) == math.log(2)
    assert int(x.grad.codes.abs().max()) > 2**29
    first = x.grad.dequantize().movedim(1, -1).reshape(-1, 2)[0]
    assert first.tolist() == [-(2.0**-15), 2.0**-15]


@pytest.mark.parametrize("ignored", [0, 1])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_rows_from_which_on_the_grid_changes(ignored, reduction, realisation):
    """2**12 that count, and one less."""
    z = logits((2**12, 2), 32, -30)
    y = [-100] * ignored + [n % 2 for n in range(2**12 - ignored)]
    found = reference.cross_entropy(z, y, mean=reduction == "mean")
    fine = found[1].exponent != -24
    assert fine == (reduction == "mean" and not ignored)
    same(lambda x: cross_entropy(x, torch.tensor(y), reduction=reduction), z, found)


def test_two_to_the_14_classes_are_taken(realisation):
    alike = BFPTensor(torch.zeros(1, 2**14, dtype=torch.int8), 0)
    assert float(cross_entropy(alike, torch.tensor([5]))) == 14 * math.log(2)
    more = BFPTensor(torch.zeros(1, 2**14 + 1, dtype=torch.int8), 0)
    with pytest.raises(UnsupportedError, match="at most 16384 classes, found 16385"):
        cross_entropy(more, torch.tensor([5]))


# --- PyTorch's own functions and modules --------------------------------------------------------

Y = torch.tensor([0, 2, 1, -100])
REAL = torch.tensor([[0.5, -1.0, 2.0]] * 4)
SHARE = torch.tensor([[0.5, 0.25, 0.25]] * 4)
THREE = torch.tensor([0.5, 1.0, 2.0])
SAME = {
    "cross_entropy": (
        lambda x: F.cross_entropy(x, Y, THREE, label_smoothing=0.1, reduction="sum"),
        nn.CrossEntropyLoss(THREE, label_smoothing=0.1, reduction="sum"),
        lambda x, _: cross_entropy(x, Y, THREE, label_smoothing=0.1, reduction="sum"),
        Y,
    ),
    "ignored": (
        lambda x: F.cross_entropy(x, Y, ignore_index=2),
        nn.CrossEntropyLoss(ignore_index=2),
        lambda x, y: cross_entropy(x, y, ignore_index=2),
        Y.clamp(min=0),
    ),
    "binary": (
        lambda x: F.binary_cross_entropy_with_logits(x, SHARE, pos_weight=THREE),
        nn.BCEWithLogitsLoss(pos_weight=THREE),
        lambda x, y: binary_cross_entropy_with_logits(x, y, pos_weight=THREE),
        SHARE,
    ),
    "mse": (lambda x: F.mse_loss(x, REAL), nn.MSELoss(), mse_loss, REAL),
    "l1": (lambda x: F.l1_loss(x, REAL), nn.L1Loss(), l1_loss, REAL),
    "smooth_l1": (
        lambda x: F.smooth_l1_loss(x, REAL, beta=0.5),
        nn.SmoothL1Loss(beta=0.5),
        lambda x, y: smooth_l1_loss(x, y, beta=0.5),
        REAL,
    ),
    "huber": (
        lambda x: F.huber_loss(x, REAL, delta=0.5),
        nn.HuberLoss(delta=0.5),
        lambda x, y: huber_loss(x, y, delta=0.5),
        REAL,
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_torch_calls_ours(name):
    function, module, ours, target = SAME[name]
    z = logits((4, 3), 32, -29, 8)
    found = []
    for call in (function, lambda x: module(x, target), lambda x: ours(x, target)):
        if name == "ignored" and call is function:
            continue  # its targets hold -100, which ignore_index=2 does not excuse
        x = tensor(z)
        value = call(x)
        value.backward()
        found.append((float(value.detach()), x.grad.codes.tolist(), x.grad.exponent))
    assert all(one == found[-1] for one in found)


def test_our_modules_are_those_of_torch():
    z = logits((4, 3), 32, -29, 9)
    module = CrossEntropyLoss(weight=THREE, ignore_index=2, label_smoothing=0.2)
    y = Y.clamp(min=0)
    assert module(tensor(z), y) == cross_entropy(
        tensor(z), y, THREE, ignore_index=2, label_smoothing=0.2
    )
    assert MSELoss(reduction="sum")(tensor(z), REAL) == mse_loss(tensor(z), REAL, reduction="sum")
    with pytest.raises(UnsupportedError, match="expected BFP logits"):
        CrossEntropyLoss()(torch.zeros(2, 3), torch.zeros(2).long())


def test_a_bfp_target_is_its_values():
    z = logits((4, 3), 8, -4, 10)
    target = BFPTensor.from_real(REAL)
    assert mse_loss(tensor(z), target) == mse_loss(tensor(z), target.dequantize())
    with pytest.raises(UnsupportedError, match="a target without a gradient"):
        mse_loss(tensor(z), target.requires_grad_())


REFUSED = {
    "reduction of cross-entropy": (
        lambda x: F.cross_entropy(x, Y, reduction="none"),
        "cross-entropy: expected reduction among mean, sum, found 'none'",
    ),
    "reduction of l1": (
        lambda x: nn.L1Loss(reduction="none")(x, REAL),
        "l1: expected reduction among mean, sum, found 'none'",
    ),
    "size_average": (
        lambda x: F.cross_entropy(x, Y, size_average=True),
        "cross-entropy: expected no size_average for a BFP tensor, found bool; use reduction",
    ),
    "weight of the elements": (
        lambda x: F.binary_cross_entropy_with_logits(x, SHARE, weight=THREE),
        "binary cross-entropy: expected no weight for a BFP tensor, found Tensor; leave it out",
    ),
    "smoothing": (
        lambda x: cross_entropy(x, Y, label_smoothing=1.5),
        "cross-entropy: expected label_smoothing in [0, 1], found 1.5",
    ),
    "smoothing that is no number": (
        lambda x: cross_entropy(x, Y, label_smoothing=math.nan),
        "cross-entropy: expected label_smoothing in [0, 1], found nan",
    ),
    "targets": (
        lambda x: cross_entropy(x, torch.tensor([0, 3, 1, -1])),
        "cross-entropy: expected targets in [0, 2], found -1 to 3",
    ),
    "a target below 0": (
        lambda x: cross_entropy(x, torch.tensor([0, 2, 1, -1])),
        "cross-entropy: expected targets in [0, 2], found -1 to 2",
    ),
    "shape of targets": (
        lambda x: cross_entropy(x, Y[:3]),
        "cross-entropy: expected 4 integer targets, found (3,) of torch.int64",
    ),
    "shape of probabilities": (
        lambda x: cross_entropy(x, SHARE[:3]),
        "cross-entropy: expected 4 integer targets, or probabilities of shape (4, 3), found "
        "(3, 3) of torch.float32",
    ),
    "probabilities": (
        lambda x: cross_entropy(x, SHARE * 2.5),
        "cross-entropy: expected probabilities in [0, 1] as targets, found 0.625 to 1.25",
    ),
    "sum of probabilities": (
        lambda x: cross_entropy(x, SHARE * 2),
        "cross-entropy: expected probabilities that add up to at most 1, found a row of sum 2.0",
    ),
    "ignored probabilities": (
        lambda x: cross_entropy(x, SHARE, ignore_index=1),
        "cross-entropy: expected class indices for ignore_index 1, found probabilities; a row of "
        "zeros counts for nothing but in the mean's divisor",
    ),
    "nothing but ignored rows": (
        lambda x: cross_entropy(x, Y * 0 - 100),
        "cross-entropy: expected at least one target that is not ignore_index, found -100 alone; "
        "skip such a batch, or use reduction='sum'",
    ),
    "no weight": (
        lambda x: cross_entropy(x, Y * 0, torch.tensor([0.0, 1.0, 1.0])),
        "cross-entropy: expected a target whose class has a weight above 0 (2**-25 of the "
        "largest), found none; skip such a batch, or use reduction='sum'",
    ),
    "negative weights": (
        lambda x: cross_entropy(x, Y, -THREE),
        "class weights: expected weights >= 0, found -2.0",
    ),
    "no weights at all": (
        lambda x: cross_entropy(x, Y, THREE * 0),
        "class weights: expected the largest weight above 2**-127 and at most 2**127, found 0.0",
    ),
    "shape of weights": (
        lambda x: cross_entropy(x, Y, THREE[:2]),
        "cross-entropy: expected weights of shape (3,), found (2,)",
    ),
    "shape of pos_weight": (
        lambda x: binary_cross_entropy_with_logits(x, SHARE, pos_weight=torch.ones(4)),
        "binary cross-entropy: expected a pos_weight that broadcasts to (4, 3), found shape (4,)",
    ),
    "pos_weight of more axes": (
        lambda x: binary_cross_entropy_with_logits(x, SHARE, pos_weight=torch.ones(2, 4, 3)),
        "binary cross-entropy: expected a pos_weight that broadcasts to (4, 3), found shape "
        "(2, 4, 3)",
    ),
    "binary targets": (
        lambda x: binary_cross_entropy_with_logits(x, REAL),
        "binary cross-entropy: expected probabilities in [0, 1] as targets, found -1.0 to 2.0",
    ),
    "shape of real targets": (
        lambda x: smooth_l1_loss(x, REAL[:2]),
        "smooth l1: expected a target of shape (4, 3), found (2, 3)",
    ),
    "delta": (
        lambda x: huber_loss(x, REAL, delta=0.0),
        "huber: expected delta in [2**-126, 2**127], found 0.0",
    ),
    "beta": (
        lambda x: smooth_l1_loss(x, REAL, beta=-1.0),
        "smooth l1: expected beta 0 or in [2**-126, 2**127], found -1.0",
    ),
    "rank": (
        lambda x: cross_entropy(x.reshape(12), Y),
        "cross-entropy: expected BFP logits [n, classes, ...], found BFPTensor of shape (12,)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, message = REFUSED[name]
    with pytest.raises((UnsupportedError, InputError)) as caught:
        call(tensor(logits((4, 3), 32, -29)))
    assert str(caught.value) == message


def test_numbers_that_are_not_finite():
    x = tensor(logits((4, 3), 32, -29))
    bad = THREE.clone()
    bad[1] = math.nan
    with pytest.raises(NonFiniteError, match=r"'class weights'.* found nan at index \(1,\)"):
        cross_entropy(x, Y, bad)
    with pytest.raises(NonFiniteError, match=r"'target'.* found inf"):
        cross_entropy(x, SHARE * math.inf)
    with pytest.raises(NonFiniteError, match=r"'target'.* found nan"):
        l1_loss(x, REAL * math.nan)
    for factor in (math.inf, math.nan):
        loss = binary_cross_entropy_with_logits(x, SHARE)
        with pytest.raises(RangeError, match="expected a finite factor"):
            (loss * factor).backward()


def test_ignored_rows_alone_have_a_sum():
    x = tensor(logits((4, 3), 32, -29))
    loss = cross_entropy(x, Y * 0 - 100, reduction="sum")
    loss.backward()
    assert (float(loss.detach()), x.grad.codes.unique().tolist()) == (0.0, [0])


# --- training ---------------------------------------------------------------------------------


@pytest.mark.parametrize("numerics", ["bfp", "float32"])
def test_label_smoothing_of_a_run(numerics):
    """It reaches the loss of either numerics, and its gradient."""
    generator = torch.Generator().manual_seed(4)
    images, labels = torch.randn(6, 4, generator=generator), torch.arange(6) % 3
    found = []
    for smoothing in (0.0, 0.2):
        torch.manual_seed(3)
        config = TrainConfig(
            data="made", arch="net", numerics=numerics, batch=6, lr=0.1, label_smoothing=smoothing
        )
        engine = make_engine(config, nn.Sequential(nn.Linear(4, 3)))
        x = engine.real_input(images)
        with torch.no_grad():
            wanted = F.cross_entropy(engine.model(x), labels, label_smoothing=smoothing)
        assert engine.step((images, labels), 0.1, 0) == float(wanted)
        found.append([p.detach().clone() for p in engine.model.state_dict().values()])
    assert not all(map(torch.equal, *found))


LABELS = torch.arange(24) % 3
ONES = F.one_hot(LABELS, 3).float()
TRAINED = {
    "cross_entropy": lambda y: cross_entropy(y, LABELS),
    "weights and smoothing": lambda y: F.cross_entropy(y, LABELS, THREE, label_smoothing=0.1),
    "probabilities": lambda y: F.cross_entropy(y, ONES),
    "positions": lambda y: F.cross_entropy(y.reshape(4, 6, 3).permute(0, 2, 1), LABELS.view(4, 6)),
    "binary": lambda y: F.binary_cross_entropy_with_logits(y, ONES),
    "mse": lambda y: F.mse_loss(y, ONES),
    "l1": lambda y: F.l1_loss(y, ONES),
    "smooth l1": lambda y: F.smooth_l1_loss(y, ONES),
    "huber": lambda y: F.huber_loss(y, ONES, delta=0.3),
}


@pytest.mark.parametrize("name", TRAINED)
def test_a_small_net_learns(name, realisation):
    torch.manual_seed(0)
    x = torch.randn(24, 5) * 0.2 + ONES @ torch.randn(3, 5)
    model = convert(nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(25):
        loss = TRAINED[name](model(BFPTensor.from_real(x)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    floor = 0.45 if name == "weights and smoothing" else 0.0  # the entropy of smoothed labels
    assert losses[-1] - floor < 0.4 * (losses[0] - floor), losses[::8]
