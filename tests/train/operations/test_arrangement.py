"""Arrangements of elements, against torch on the values."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from bfp_arrays import array, forms_agree, moves_as_torch, same, tensor
from deploy_nets import make_images
from samebits.errors import UnsupportedError
from samebits.ir.interpreter import run
from samebits.spec.training import moves
from samebits.train import convert
from samebits.train.deployed.deploy import calibrate, deployed
from samebits.train.deployed.export import to_graph

INDEX = torch.tensor([2, 0, 2])
MOVES = {
    "index_select": lambda x: torch.index_select(x, 1, INDEX),
    "index_select of a method": lambda x: x.index_select(-1, INDEX[:1]),
    "index_select of the first axis": lambda x: x.index_select(0, INDEX[1:2]),
    "flip": lambda x: torch.flip(x, [1]),
    "flip of several axes": lambda x: x.flip(0, -1),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat along new axes": lambda x: x.repeat((2, 3, 1, 1, 2)),
    "tile": lambda x: torch.tile(x, (2, 2)),
    "tile of a method": lambda x: x.tile(3),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=1),
    "repeat_interleave as a function": lambda x: torch.repeat_interleave(x, 3, -1),
    "movedim": lambda x: torch.movedim(x, 0, 1),
    "movedim of two": lambda x: x.movedim((0, 1), (-2, 0)),
    "moveaxis": lambda x: torch.moveaxis(x, 1, 0),
    "moveaxis of a method": lambda x: x.moveaxis((1, 0), (0, 1)),
    "swapdims": lambda x: x.swapdims(0, 1),
    "swapdims as a function": lambda x: torch.swapdims(x, 1, 0),
    "reshape_as": lambda x: x.reshape_as(torch.empty(3, 2, 4)),
    "view_as": lambda x: x.view_as(torch.empty(6, 4)),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "narrow from behind": lambda x: torch.narrow(x, -1, -3, 2),
    "select": lambda x: x.select(1, -1),
    "select as a function": lambda x: torch.select(x, 0, 1),
    "split_with_sizes": lambda x: x.split_with_sizes([1, 2], 1),
    "split_with_sizes as a function": lambda x: torch.split_with_sizes(x, [1, 3], -1),
    "tensor_split": lambda x: x.tensor_split(2),
    "tensor_split in unequal parts": lambda x: torch.tensor_split(x, 3, dim=-1),
    "tensor_split at indices": lambda x: x.tensor_split((1, 2), 1),
    "tensor_split at a tensor": lambda x: torch.tensor_split(x, torch.tensor([1, 3]), 2),
}
OF_ONE_EXPONENT = {
    "ravel": lambda x: x.ravel(),
    "ravel as a function": lambda x: torch.ravel(x),
    "repeat_interleave of all": lambda x: x.repeat_interleave(2),
    "the transpose": lambda x: x[0].T,
    "roll of all": lambda x: torch.roll(x, 5),
    "repeat as images": lambda x: x.repeat(2, 1, 1, 1),
}


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize("name", MOVES)
def test_moves(name, kind):
    moves_as_torch(MOVES[name], tensor((2, 3, 4), kind))


@pytest.mark.parametrize("name", OF_ONE_EXPONENT)
def test_moves_that_join_rows(name):
    moves_as_torch(OF_ONE_EXPONENT[name], tensor((2, 3, 4)))


def test_nothing_moves():
    x = tensor((2, 3))
    for y in (torch.flip(x, []), x.repeat(1, 1), x.tile(1), torch.einsum("ij->ij", x)):
        assert y is x
    assert torch.equal(x[0].T.codes, x[0].codes)


def test_width_is_not_decided():
    x = tensor((2, 3), bits=32)
    assert x.flip(1).bits == x.repeat(2, 2).bits == x.index_select(1, INDEX).bits == 32


@pytest.mark.parametrize("kind", ["tensor", "row"])
def test_copies_are_summed_as_copies(kind, realisation):
    x = tensor((2, 3, 4), kind).requires_grad_()
    out, along = x.repeat(1, 2, 1), {1: [0, 1, 2, 0, 1, 2]}
    same(out, moves.placed(array(x), *moves.chosen((2, 3, 4), along)))
    g = tensor((2, 6, 4), kind, 32, 3)
    out.backward(g)
    same(x.grad, moves.chosen_backward(array(g), (2, 3, 4), along))


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize(
    ("stacked", "apart", "shapes"),
    [
        (torch.hstack, lambda t: torch.cat(t, 1), ((2, 3, 4), (2, 1, 4))),
        (torch.hstack, lambda t: torch.cat(t, 0), ((3,), (2,))),
        (torch.hstack, lambda t: torch.cat([v.reshape(1) for v in t], 0), ((), ())),
        (torch.vstack, lambda t: torch.cat(t, 0), ((2, 3), (1, 3))),
        (torch.vstack, lambda t: torch.stack(t), ((3,), (3,))),
        (torch.row_stack, lambda t: torch.stack(t), ((3,), (3,))),
        (torch.dstack, lambda t: torch.cat(t, 2), ((2, 3, 4), (2, 3, 1))),
        (torch.dstack, lambda t: torch.stack(t, 2), ((2, 3), (2, 3))),
        (lambda t: torch.concatenate(t, 1), lambda t: torch.cat(t, 1), ((2, 3), (2, 4))),
    ],
)
def test_tensors_side_by_side_are_concatenated(stacked, apart, shapes, kind):
    forms_agree((lambda *t: stacked(t), lambda *t: apart(t)), *shapes, kind=kind)
    real = [torch.zeros(shape) for shape in shapes]
    assert stacked(real).shape == apart(real).shape


def test_an_empty_vector_beside_others_is_left_out():
    """As in torch: Hugging Face's caches begin so."""
    x = tensor((2, 3), "row")
    assert torch.cat([torch.tensor([]), x], dim=-1).codes.tolist() == x.codes.tolist()


@pytest.mark.parametrize(("axis", "shape"), [(1, (3, 2)), (0, (4, 4)), (-1, (2, 5))])
def test_gathered_elements_are_those_of_torch(axis, shape):
    """And their gradients are sums over the uses."""
    x, size = tensor((3, 4), "tensor").requires_grad_(), (3, 4)[axis]
    index = torch.randint(0, size, shape, generator=torch.Generator().manual_seed(1))
    index = index[: 3 if axis % 2 else None, : None if axis % 2 else 4]
    y = x.gather(axis, index)
    assert y.codes.tolist() == x.codes.gather(axis, index).tolist()
    assert y.exponent == x.exponent
    g = tensor(tuple(index.shape), "tensor", 32, 3)
    y.backward(g)
    expected = torch.zeros(3, 4, dtype=torch.float64).scatter_add_(axis, index, g.dequantize())
    assert torch.equal(x.grad.dequantize(), expected)


@pytest.mark.parametrize("index", [torch.tensor([[4]]), torch.tensor([[-1]]), torch.tensor([0])])
def test_places_outside_are_refused(index):
    with pytest.raises(UnsupportedError, match=r"gather: expected integers in \[0, 3\]"):
        torch.gather(tensor((3, 4), "tensor"), 1, index)


def test_vectors_behind_each_other():
    forms_agree(
        (lambda *t: torch.dstack(t), lambda *t: torch.stack([torch.stack(t, 1)], 0)), (3,), (3,)
    )


class Arranged(nn.Module):
    """Elements that are chosen, turned, repeated and divided between two layers."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(8, 3)
        self.register_buffer("scale", torch.tensor([0.5, 1.5, 3.0]).view(1, 3, 1, 1))

    def forward(self, x):
        x = torch.relu(self.conv(x)).flip(3)[:, [0, 2, 3]] / self.scale
        x = functional.pad(x, (-1, 0, 1, -1)).tile(1, 1, 1, 2)
        x = torch.hstack([x, x.select(1, 0)[:, None], x.narrow(1, 1, 2).repeat(1, 2, 1, 1)])
        return self.fc(torch.einsum("nchw->nc", x))


def test_arrangements_are_deployed_and_exported():
    torch.manual_seed(2)
    model, images = convert(Arranged()).eval(), make_images(4, 5)
    frozen = calibrate(model, [images])
    codes, exponent = deployed(model, frozen).codes(images)
    graph = to_graph(model, frozen, tuple(images.shape[1:]), batch=len(images))
    (found,) = run(graph, [images.numpy()], exact=True)
    wanted = codes.double() * 2.0**exponent
    assert [float(v) for v in found.flatten()] == wanted.flatten().tolist()
    torch.manual_seed(2)
    real = Arranged()(images).detach()
    assert float((wanted - real).abs().max()) < 0.05 * float(real.abs().max())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.flip(3), r"flip: expected some of the axes of shape \(2, 3, 4\)"),
        (lambda x: x.flip(1, -2), r"flip: .* each once, found \(1, -2\)"),
        (lambda x: x.movedim(0, 3), "movedim: expected some of the axes"),
        (lambda x: x.movedim((0, 1), (2,)), "movedim: expected a place for every axis"),
        (lambda x: x.repeat(2, 2), r"repeat: expected sizes of at least 1 .* found \(2, 2\)"),
        (lambda x: x.repeat(2, 0, 1), r"repeat: expected sizes of at least 1"),
        (lambda x: x.repeat(1, 1 << 25, 1), "repeat: expected every element at most 16777216"),
        (lambda x: x.repeat_interleave(0, 1), "expected an integer of at least 1, found 0"),
        (lambda x: x.repeat_interleave(INDEX, 1), "expected an integer of at least 1, found tens"),
        (lambda x: x.narrow(1, 2, 2), "narrow: expected places of an axis of 3, found 2 from 2"),
        (lambda x: x.narrow(1, -4, 1), "narrow: expected places of an axis of 3, found 1 from -4"),
        (lambda x: x.narrow(1, 0, -1), "narrow: expected places of an axis of 3, found -1 from 0"),
        (lambda x: x.tensor_split(0), "tensor_split: expected at least 1 part, found 0"),
        (lambda x: x.index_select(1, INDEX + 1), r"expected integers in \[-3, 2\], found 1 to 3"),
    ],
)
def test_what_has_no_rule_is_refused(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call(tensor((2, 3, 4)))
