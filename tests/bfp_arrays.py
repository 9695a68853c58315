"""BFP tensors made for tests, and their plain-integer twins."""

from __future__ import annotations

import math
import random

import torch

import drawn
from compare import assert_same
from samebits.kernels import rows
from samebits.spec.formats import CODE_MAX
from samebits.spec.training.layers import Array
from samebits.train import BFPTensor
from samebits.train.value import same_parts

TYPES = {8: torch.int8, 16: torch.int16, 32: torch.int32}


@drawn.once
def codes(shape, bits, seed, dtype=None):
    """Integers of all magnitudes up to the largest of `bits`, some of them 0."""
    rng = random.Random(f"{seed} {shape} {bits}")
    most = CODE_MAX[bits]
    values = [
        0 if rng.random() < 0.1 else max(-most, min(most, rng.randint(-(1 << n), 1 << n)))
        for n in (rng.randint(0, bits - 1) for _ in range(math.prod(shape)))
    ]
    return torch.tensor(values).view(shape).to(dtype or TYPES[max(bits, 8)])


def tensor(shape, kind="tensor", bits=8, seed=0, exponent=-6, spread=6):
    """A BFP tensor with one exponent ("tensor"), or with those of rows up to `spread` apart."""
    made = codes(shape, bits, seed)
    own = exponent
    if kind == "row":
        rng = random.Random(f"exponents {seed}")
        size = rows.row_size(shape)
        values = [exponent + rng.randint(-spread, spread) for _ in range(math.prod(size))]
        own = torch.tensor(values).view(size)
    return BFPTensor(made, own, bits=bits if bits < 8 else None)


def array(x):
    """The same in plain integers."""
    made, exponent, shifts = x.value.shifted()
    own = exponent
    if isinstance(exponent, torch.Tensor):
        own = tuple(exponent.expand(made.shape).flatten().tolist())
    up = () if shifts is None else tuple(shifts.tolist())
    return Array(made.flatten().tolist(), tuple(made.shape), own, x.bits, up)


def forms_agree(forms, *shapes, kind="tensor", bits=8):
    """Several forms of one computation have the same bits, and so have the gradients of inputs."""
    found = []
    for form in forms:
        given = [tensor(s, kind, bits, seed).requires_grad_() for seed, s in enumerate(shapes)]
        out = form(*given)
        out = out if isinstance(out, tuple) else (out,)
        grads = [tensor(tuple(y.shape), kind, 32, 7 + at) for at, y in enumerate(out)]
        torch.autograd.backward(out, grads)
        found.append((*out, *(x.grad for x in given)))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert (a.shape, a.bits) == (b.shape, b.bits)
            assert same_parts(a.resolved(), b.resolved())


def moves_as_torch(move, *tensors):
    """Elements lie where torch has them, at their exponents, and gradients are exact sums."""
    given = [x.requires_grad_() for x in tensors]
    real = [x.detach().dequantize().requires_grad_() for x in tensors]
    found, wanted = move(*given), move(*real)
    pairs = [(found, wanted)] if isinstance(found, BFPTensor) else zip(found, wanted, strict=True)
    out, values = zip(*pairs, strict=True)
    for y, real_y in zip(out, values, strict=True):
        assert y.shape == real_y.shape
        assert torch.equal(y.detach().dequantize(), real_y.detach())
        assert y.bits == tensors[0].bits
    gradients = [torch.arange(y.numel(), dtype=torch.int32).view(y.shape) + 1 for y in out]
    torch.autograd.backward(out, [BFPTensor(g, -20) for g in gradients])
    torch.autograd.backward(values, [g.double() * 2.0**-20 for g in gradients])
    for x, real_x in zip(given, real, strict=True):
        assert torch.equal(x.grad.dequantize(), real_x.grad)


def same(found, wanted):
    """Codes, exponents, shape and width are those of the plain integers."""
    made, exponent = found.resolved() if found.shifts is None else (found.codes, found.exponent)
    assert tuple(made.shape) == wanted.shape
    places = [f"element {i}" for i in range(made.numel())]
    assert isinstance(exponent, int) == isinstance(wanted.exponent, int)
    own = torch.as_tensor(exponent).expand(made.shape).flatten().tolist()
    assert_same(made.flatten().tolist(), wanted.codes, places)
    assert_same(own, list(wanted.exponents), places)
    assert found.bits == wanted.bits
