"""Operations that only move codes, against the same operation of PyTorch on the integers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bfp_arrays import array, forms_agree, same, tensor
from samebits.errors import UnsupportedError
from samebits.spec.training import moves
from samebits.train import BFPTensor, convert

SHAPE = (2, 6, 1, 4)
EXPONENTS = {"tensor": -5, "row": torch.tensor([-3, -9]).view(2, 1, 1, 1)}
INDEX = torch.tensor([2, 0, -2])
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
    "new axis": lambda x: x[None],
    "new axis inside": lambda x: x[:, None],
    "new axis at the end": lambda x: x[..., None],
    "new axes among slices": lambda x: x[1:, None, 2, ..., None, ::2],
    "all of it": lambda x: x[:, ...],
    "integers of an axis": lambda x: x[:, INDEX],
    "a list of an axis": lambda x: x[:, [0, -1]],
    "a list of the first axis": lambda x: x[[1]],
    "integers of the last axis": lambda x: x[..., INDEX],
    "integers before an axis": lambda x: x[..., INDEX, :, 1:],
    "integers after an integer": lambda x: x[:, 1, :, INDEX],
    "integers after a new axis": lambda x: x[:, None, INDEX],
    "integers before new axes": lambda x: x[..., INDEX, None, :, 0, None],
    "integers of several axes": lambda x: x[:, INDEX.view(3, 1), 0],
    "one integer as a tensor": lambda x: x[:, torch.tensor(-2)],
    "int32": lambda x: x[:, :, :, INDEX.int()],
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


@pytest.mark.parametrize("kind", ["tensor", "row"])
def test_integers_of_an_axis_are_copies(kind, realisation):
    for axis, along in ((1, [2, 0, 2]), (2, [3, 3])):
        x = tensor((2, 3, 4), kind).requires_grad_()
        out = x[:, [2, 0, 2]] if axis == 1 else x[..., [3, 3]]
        same(out, moves.placed(array(x), *moves.chosen((2, 3, 4), {axis: along})))
        g = tensor(tuple(out.shape), kind, 32, 3)
        out.backward(g)
        same(x.grad, moves.chosen_backward(array(g), (2, 3, 4), {axis: along}))


def test_what_indexing_refuses():
    x = tensor((2, 3))
    for index in ((INDEX[:1], INDEX[:1]), (0, True), [True, False], (0, 1.5), [0.5], "a", []):
        with pytest.raises(UnsupportedError, match="indexing: expected integers, slices, None or"):
            x[index]
    with pytest.raises(UnsupportedError, match=r"expected integers in \[-3, 2\], found 0 to 3"):
        x[:, [0, 3]]
    with pytest.raises(IndexError, match="too many indices"):
        x[:, :, None, :]


def test_no_integers():
    assert tensor((2, 3))[:, INDEX[:0]].shape == (2, 0)


def test_a_list_of_a_width_that_is_not_decided():
    x = tensor((2, 3), bits=32)
    assert x[:, [1, 0]].bits == x[:, None].bits == 32


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize("join", [torch.cat, torch.stack])
def test_constants_beside_tensors(join, kind, realisation):
    c = torch.linspace(-3, 2, 6).view(2, 3)
    own = BFPTensor.from_real(c, by_rows=kind == "row")
    forms_agree((lambda x: join([x, c], 1), lambda x: join([x, own], 1)), (2, 3), kind=kind)
    forms_agree((lambda x: join([c, x, x], 0), lambda x: join([own, x, x], 0)), (2, 3), kind=kind)
    narrow = BFPTensor.from_real(c, bits=5)
    forms_agree((lambda x: join([c, x]), lambda x: join([narrow, x])), (2, 3), bits=5)


def test_constants_beside_parameters_and_what_is_refused():
    entered = convert(nn.Linear(3, 2), widths=(6, 16, 32)).weight
    found = torch.cat([torch.ones(1, 3), entered])
    wanted = torch.cat([BFPTensor.from_real(torch.ones(1, 3), bits=6), entered])
    assert found.bits == wanted.bits == 6
    assert torch.equal(found.codes, wanted.codes)
    with pytest.raises(
        UnsupportedError, match=r"stack: .* a float tensor that requires a gradient"
    ):
        torch.stack([entered, torch.ones(2, 3, requires_grad=True)])
    with pytest.raises(
        UnsupportedError, match=r"concat: .* a float tensor that requires a gradient"
    ):
        torch.cat([entered, torch.ones(2, 3, requires_grad=True)])
    with pytest.raises(UnsupportedError, match="stack: expected finite values"):
        torch.stack([tensor((2, 3)).masked_fill(torch.eye(2, 3) > 0, -torch.inf)])


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
    assert torch.equal(flat.T.codes, flat.codes.t())
    for y in (x.swapdims(2, 3), torch.swapdims(x, 3, 2)):
        assert torch.equal(y.codes, wanted)
    assert torch.equal(torch.t(flat).codes, flat.codes.t())
