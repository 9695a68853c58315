"""Operations that only move codes, against the same operation of PyTorch on the integers."""

from __future__ import annotations

import pytest
import torch

from samebits.errors import UnsupportedError
from samebits.train import BFPTensor

SHAPE = (2, 6, 1, 4)
EXPONENTS = {"tensor": -5, "row": torch.tensor([-3, -9]).view(2, 1, 1, 1)}
MOVES = {
    "split": lambda x: x.split(4, 1),
    "split in sizes": lambda x: torch.split(x, [1, 2, 3], dim=1),
    "split along the last": lambda x: x.split(4, -1),
    "chunk": lambda x: x.chunk(4, dim=1),
    "chunk as a function": lambda x: torch.chunk(x, 2, 3),
    "unbind": lambda x: x.unbind(1),
    "unbind as a function": lambda x: torch.unbind(x, -1),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "unsqueeze as a function": lambda x: torch.unsqueeze(x, 1),
    "squeeze": lambda x: x.squeeze(),
    "squeeze one axis": lambda x: torch.squeeze(x, 2),
    "squeeze another": lambda x: x.squeeze(dim=1),
    "squeeze several": lambda x: x.squeeze((1, 2)),
    "unflatten": lambda x: x.unflatten(1, (2, -1)),
    "unflatten as a function": lambda x: torch.unflatten(x, -1, (2, 2)),
    "contiguous": lambda x: x.transpose(1, 3).contiguous(),
    "shuffle": lambda x: x.view(2, 2, 3, 1, 4).transpose(1, 2).contiguous().view(2, 6, 1, 4),
}


def codes():
    generator = torch.Generator().manual_seed(3)
    return torch.randint(-127, 128, SHAPE, generator=generator).to(torch.int8)


def parts(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("exponents", EXPONENTS)
@pytest.mark.parametrize("name", MOVES)
def test_codes_and_gradients_move(name, exponents):
    move, exponent = MOVES[name], EXPONENTS[exponents]
    x = BFPTensor(codes(), exponent, bits=8).requires_grad_()
    found, wanted = parts(move(x)), parts(move(codes()))
    every = torch.as_tensor(exponent).expand(SHAPE)
    real = codes().double().requires_grad_()
    outputs = parts(move(real))
    assert [tuple(y.shape) for y in found] == [tuple(y.shape) for y in wanted]
    for y, values, own in zip(found, wanted, parts(move(every)), strict=True):
        assert torch.equal(y.codes, values)
        assert torch.equal(torch.as_tensor(y.exponent).expand(own.shape), own)
        assert y.bits == 8
    gradients = [torch.arange(y.numel(), dtype=torch.int32).view(y.shape) + 1 for y in found]
    torch.autograd.backward(found, [BFPTensor(g, -20) for g in gradients])
    torch.autograd.backward(outputs, [g.double() for g in gradients])
    assert torch.equal(x.grad.dequantize(), real.grad * 2.0**-20)


@pytest.mark.parametrize("dim", [0, 2, -1])
def test_stack_is_concat_along_a_new_axis(dim):
    a, b = (BFPTensor(codes().roll(i), e, bits=8) for i, e in ((0, -5), (1, -6)))
    y = torch.stack([a, b], dim)
    apart = torch.cat([x.unsqueeze(dim) for x in (a, b)], dim)
    assert y.shape == torch.stack([codes(), codes()], dim).shape
    assert torch.equal(y.codes, apart.codes)
    assert y.exponent == apart.exponent == -5


def test_sizes_that_do_not_add_up_are_refused():
    x = BFPTensor(codes(), -5, bits=8)
    with pytest.raises(UnsupportedError, match=r"expected sizes that add up to 6, found \[1, 2\]"):
        x.split([1, 2], 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.split(-1, 1), "split: expected sizes of at least 1, found -1"),
        (lambda x: x.split(0, 1), "split: expected sizes of at least 1, found 0"),
        (lambda x: x.split([5, -1, 2], 1), r"expected sizes of at least 1, found \[5, -1, 2\]"),
        (lambda x: x.chunk(0, 1), "chunk: expected at least 1 part, found 0"),
        (lambda x: x.split(2, 4), "split: expected an axis of 4, found 4"),
        (lambda x: x.unbind(-5), "unbind: expected an axis of 4, found -5"),
        (lambda x: x.unsqueeze(9), "unsqueeze: expected an axis of 5, found 9"),
        (lambda x: x.squeeze(4), "squeeze: expected an axis of 4, found 4"),
        (lambda x: x.unflatten(5, (2, 2)), "unflatten: expected an axis of 4, found 5"),
        (lambda x: torch.stack([x, x], 7), "stack: expected an axis of 5, found 7"),
        (lambda x: torch.stack([x, torch.ones(SHAPE)]), "stack: expected a BFPTensor, found"),
        (lambda x: x.mean((6, 7)), "mean: expected some of the axes"),
        (lambda x: x.mean((2, 3), dtype=torch.float64), "no dtype, found .* torch.float64"),
        (lambda x: torch.mul(x, x, out=x), "mul of BFP tensors: got an unexpected keyword"),
    ],
)
def test_other_arguments_are_refused(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call(BFPTensor(codes(), -5, bits=8))


def test_a_transpose_has_many_names():
    x = BFPTensor(codes(), -5, bits=8)
    wanted = x.transpose(-2, -1).codes
    for y in (x.mT, x.swapaxes(-1, -2), torch.swapaxes(x, 2, 3)):
        assert torch.equal(y.codes, wanted)
    flat = x[0, 0]
    assert torch.equal(flat.t().codes, flat.codes.t())
    assert torch.equal(torch.t(flat).codes, flat.codes.t())
