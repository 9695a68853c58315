"""Which nodes leave places out of a Softmax, and what integer inputs say of them."""

from __future__ import annotations

import numpy as np
import pytest

from samebits.ir import GraphBuilder
from samebits.ir.masks import Flag, flags_of, masks_of

SHAPE = (2, 3, 3)
KEPT = np.tri(3, dtype=bool)


def found(graph):
    return masks_of(graph, flags_of(graph))


class Scores:
    """Scores, a flag for every place or column, and a Softmax of what is made of them."""

    def __init__(self, kind: str = "int64") -> None:
        self.g = GraphBuilder("scores")
        self.scores = self.g.input("scores", "float32", SHAPE)
        self.flag = self.g.input("flag", kind, (2, 1, 3))

    def number(self, value: float, kind: str = "float32") -> str:
        return self.g.constant("number", np.array(value, kind))

    def lost(self, number: float = -1e9) -> str:
        """0 where the flag is 1, else `number`."""
        real = self.g.add("Cast", [self.flag], {"to": "float32"})
        inverse = self.g.add("Sub", [self.number(1), real])
        return self.g.add("Mul", [inverse, self.number(number)])

    def mask(self, op: str, *inputs: str):
        masked = self.g.add(op, list(inputs))
        graph = self.g.build([self.g.add("Softmax", [masked])])
        return found(graph).get(masked)


@pytest.mark.parametrize("least", [-np.inf, -65504.0, -(2.0**15) - 1])
@pytest.mark.parametrize("swapped", [False, True])
def test_constants_that_are_added(least, swapped):
    s = Scores()
    constant = s.g.constant("mask", np.where(KEPT, 0, least).astype(np.float32))
    mask = s.mask("Add", *((constant, s.scores) if swapped else (s.scores, constant)))
    assert mask is not None
    assert mask.scores == s.scores
    np.testing.assert_array_equal(mask.kept, KEPT)


@pytest.mark.parametrize(
    "constant",
    [
        *(np.zeros(SHAPE), np.full(SHAPE, -(2.0**15)), KEPT * -1e9 + 1),
        np.where(np.eye(3) > 0, np.nan, KEPT * -1e9),
    ],
)
def test_other_sums_are_none(constant):
    s = Scores()
    assert s.mask("Add", s.scores, s.g.constant("mask", constant.astype(np.float32))) is None


@pytest.mark.parametrize("swapped", [False, True])
def test_choices_by_constants(swapped):
    s = Scores()
    parts = [s.scores, s.number(-np.inf)]
    mask = s.mask("Where", s.g.constant("kept", KEPT), *(parts[::-1] if swapped else parts))
    assert mask is not None
    np.testing.assert_array_equal(mask.kept, ~KEPT if swapped else KEPT)
    other = Scores()
    assert other.mask("Where", other.g.constant("k", KEPT), other.scores, other.number(-9)) is None


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_flags_that_are_added(kind):
    s = Scores(kind)
    mask = s.mask("Add", s.scores, s.lost())
    assert mask is not None
    assert (mask.scores, mask.kept, mask.where) == (s.scores, None, 1)
    other = Scores(kind)
    assert other.mask("Add", other.scores, other.lost(-9)) is None


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("inverted", [False, True])
def test_flags_that_choose(inverted, swapped):
    s = Scores()
    choice = s.g.add("Cast", [s.flag], {"to": "bool"})
    choice = s.g.add("Not", [choice]) if inverted else choice
    parts = [s.scores, s.number(-np.inf)]
    mask = s.mask("Where", choice, *(parts[::-1] if swapped else parts))
    assert mask is not None
    assert (mask.kept, mask.flag) == (None, choice)
    assert mask.where == (inverted == swapped)


def test_what_others_read_too_is_none():
    s = Scores()
    constant = s.g.constant("mask", np.where(KEPT, 0, -np.inf).astype(np.float32))
    masked = s.g.add("Add", [s.scores, constant])
    soft = s.g.add("Softmax", [masked])
    assert found(s.g.build([soft, s.g.add("Relu", [masked])])) == {}
    assert found(s.g.build([soft, masked])) == {}


def test_flags_follow_functions_and_moves():
    s = Scores()
    lost = s.lost(4)
    moved = s.g.add("Reshape", [lost], {"shape": (6,)})
    both = s.g.add("Add", [moved, moved])
    wide = s.g.add("Mul", [both, s.g.constant("ones", np.ones((2, 6), np.float32))])
    apart = s.g.add("Add", [both, wide])  # places of two shapes
    mixed = s.g.add("Add", [moved, s.g.constant("each", np.arange(6, dtype=np.float32))])
    total = s.g.add("ReduceSum", [lost], {"axes": (2,)})
    flags = flags_of(s.g.build([wide, apart, mixed, total]))
    assert flags[s.flag] == Flag(s.flag, (0, 1), True)
    assert flags[lost] == Flag(s.flag, (4, 0), False)
    assert flags[moved] == Flag(moved, (4, 0), False)
    assert flags[both] == Flag(moved, (8, 0), False)
    assert flags[wide] == Flag(wide, (8, 0), False)
    assert not {apart, mixed, total} & set(flags)
    assert "scores" not in flags


def test_moves_and_casts_to_integers_keep_what_is_selected():
    s = Scores()
    moved = s.g.add("Transpose", [s.flag], {"perm": (2, 1, 0)})
    narrow = s.g.add("Cast", [moved], {"to": "int32"})
    more = s.g.add("Add", [narrow, s.number(0, "int32")])
    flags = flags_of(s.g.build([more]))
    assert flags[narrow] == Flag(moved, (0, 1), True)
    assert flags[more] == Flag(moved, (0, 1), False)  # a sum, whatever is added
