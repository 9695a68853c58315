"""What repeats or moves elements, against the plain integers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from bfp_arrays import array, moves_as_torch, same, tensor
from samebits.errors import UnsupportedError
from samebits.spec.training import moves
from samebits.train import BFPTensor
from samebits.train.operations.broadcast import expand

KINDS = ["tensor", "row"]
EXPANSIONS = {
    "rows": ((1, 4), (3, 4)),
    "inside": ((3, 1), (3, 4)),
    "samples": ((1, 2, 3), (4, 2, 3)),
    "new axes": ((2, 3), (2, 4, 2, 3)),
    "a vector": ((3,), (2, 4, 3)),
    "images": ((1, 3, 1, 1), (2, 3, 2, 2)),
    "planes": ((2, 3, 1, 1), (2, 3, 2, 2)),
    "an axis": ((3,), (1, 3)),
    "an image": ((2, 3, 4), (1, 2, 3, 4)),
    "rows of one image": ((2, 1, 4), (1, 2, 3, 4)),
    "an axis before an image": ((2, 3, 2, 2), (1, 2, 3, 2, 2)),
    "a number": ((), (2, 3)),
    "a number as an image": ((), (1, 1, 1, 1)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EXPANSIONS)
def test_expansion(name, kind, realisation):
    shape, whole = EXPANSIONS[name]
    x = tensor(shape, kind).requires_grad_()
    out = expand(x, whole)
    same(out, moves.expand(array(x), whole))
    g = tensor(whole, kind, 32, 3)
    out.backward(g)
    same(x.grad, moves.expand_backward(array(g), shape))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(4, 3), (4, 2, 3), (4, 1, 2, 2)])
def test_elements_of_the_first_axis_by_integers(shape, kind, realisation):
    x = tensor(shape, kind).requires_grad_()
    index = torch.tensor([[0, 3, 3], [-1, 1, 0]])
    out = x[index[0]] if len(shape) == 4 else x[index]
    places = moves.gathered(shape, (index[0] if len(shape) == 4 else index).flatten() % 4)
    places = [int(place) for place in places]
    same(out, moves.placed(array(x), places, tuple(out.shape)))
    g = tensor(tuple(out.shape), kind, 32, 3)
    out.backward(g)
    same(x.grad, moves.summed_at(array(g), places, shape, True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("shape", "by", "axes"), [((2, 3, 4), (1,), (1,)), ((2, 3, 4, 2), (-1, 2), (0, 2))]
)
def test_rolls(shape, by, axes, kind, realisation):
    x = tensor(shape, kind).requires_grad_()
    out = torch.roll(x, by, axes)
    places = moves.rolled(shape, by, axes)
    same(out, moves.placed(array(x), places, shape))
    g = tensor(shape, kind, 32, 3)
    out.backward(g)
    same(x.grad, moves.placed(array(g), moves.inverse(places), shape))


def test_a_roll_without_axes_is_of_all_in_a_row():
    moves_as_torch(lambda x: torch.roll(x, 5), tensor((2, 3, 4)))
    moves_as_torch(lambda x: x.roll((-1,)), tensor((2, 3)))
    with pytest.raises(UnsupportedError, match="roll: expected an axis for every shift"):
        tensor((2, 3)).roll((1, 2), 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.expand(3, 5), r"expand: expected sizes .* found \(3, 5\)"),
        (lambda x: x.expand(2), r"expand: expected sizes"),
        (lambda x: x.expand(1 << 25, 2, 3), "expand: expected every element at most 16777216"),
        (lambda x: x[torch.tensor([2])], r"indexing: expected integers in \[-2, 1\], found 2"),
        (lambda x: x[torch.tensor([True, False])], "no indexing by several tensors or masks"),
        (lambda x: functional.dropout(x), "found p=0.5 and no such model"),
    ],
)
def test_what_has_no_rule_is_refused(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call(BFPTensor.from_real(torch.ones(2, 3)))


def test_a_float_tensor_is_made_beside_a_bfp_tensor():
    x = BFPTensor.from_real(torch.ones(2, 3))
    assert torch.equal(x.new_zeros((2, 2)), torch.zeros(2, 2))
    assert torch.equal(x.new_full((2,), 3.0), torch.full((2,), 3.0))
    assert torch.equal(torch.zeros_like(x), torch.zeros(2, 3))
    assert torch.equal(torch.ones_like(x, dtype=torch.float64), torch.ones(2, 3).double())
    assert torch.equal(torch.full_like(x, 3.0), torch.full((2, 3), 3.0))
    assert not isinstance(torch.zeros_like(x), BFPTensor)
