"""Traits of operators: what a pass may conclude about a node without knowing its name.

The record of an operator states its traits; a pass asks `ops.has(node.op, Trait.X)`, or builds a
table of rules with `ops.ops_with(Trait.X)`. So a new operator joins every pass that its traits
allow, and no pass keeps a list of names (tests/ir/test_traits.py). The golden file traits.txt
shows which operator has which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from types import MappingProxyType


class Trait(Enum):
    """The sentence above each is what a pass may rely on."""

    # An element of the result is a function of the elements in its place of the operands, which
    # broadcast: the steps of a sequence, the samples of a batch stay apart.
    POINTWISE = auto()
    # samebits.tables can evaluate it, correctly rounded: a chain of such operators on one tensor
    # of codes can be one transfer table.
    FUNCTION = auto()
    # An element of the result is an element of an operand, or a number that an attribute states;
    # which one depends on shapes, attributes and indices alone. Codes can move in its stead: the
    # result has the scale of the operand.
    MOVEMENT = auto()
    # Its last operand is indices: they say where elements are taken from or put, and are none.
    INDEXED = auto()
    # The elements of its operand in their order, in another shape.
    RESHAPES = auto()
    # An element of the result is the greatest or least of some elements of its operand. Codes
    # compare like the numbers they stand for: the result has the scale of the operand.
    SELECTION = auto()
    # An element of the result is an element of an operand, its negation, or a number that an
    # attribute states: every format that holds those holds the result.
    UNROUNDED = auto()
    # With one operand, and one result of its type and shape, the result is the operand: the node
    # may be dropped.
    NEUTRAL = auto()
    # On codes the result is an exact sum or product of integers that one requantization rounds: a
    # clip or a requantization that alone reads it can merge with it.
    ACCUMULATES = auto()
    # The sums of products of two operands x and w; w has codes with scales of its own, one for
    # each output channel where it is constant.
    PRODUCT = auto()
    # The operands are x, w and a bias for each output channel, in this order: a factor and a
    # constant for each channel that follow can become part of w and the bias.
    WEIGHTED = auto()
    # The means of elements of one operand, over axes or windows: a sum, then a division.
    AVERAGE = auto()
    # Where a channel of the first operand is multiplied by a positive number, the same channel of
    # the result is. Channels lie along any one axis, of a SPATIAL operator along axis 1.
    HOMOGENEOUS = auto()
    # A channel of the result is made of the same channel of the first operand, and of the numbers
    # of that channel in constants and attributes that have one for each: a channel may be left out
    # with these. Channels lie along the last axis, of which a result has as many.
    CHANNELWISE = auto()
    # The sums of constants that comparisons of the first operand choose: it changes no number, and
    # no operand scales the result, which may leave a graph, and be ranked, without codes.
    TALLIES = auto()
    # The axes that `axes` lists are reduced; they stay, with size 1, where `keepdims` is.
    REDUCES = auto()
    # It works along `axis` and does the same in every place of the others, which the result has
    # too.
    ALONG = auto()
    # It works so along `axis` and all axes behind it.
    TRAILING = auto()
    # The numbers of its operand, rounded to codes whose scale is that of their own range: it is not
    # given codes beside those, and products read it.
    RANGED = auto()
    # It compares or classifies numbers: the result is boolean or an index, and exact where the
    # operands are.
    DECISION = auto()
    # It ranks or normalises scores along an axis: a network often ends with it, and a host can
    # compute it from what the network gives before.
    SCORING = auto()
    # The first operand is a batch of images [N, C, spatial...] (integer: [N, H, W, C]).
    SPATIAL = auto()
    # Its work or memory is not bounded by the sizes of its operands and results: on constants of
    # an untrusted file it is not evaluated.
    HEAVY = auto()
    # It makes codes of numbers, numbers of codes, or computes on codes with zero points: a real
    # graph with such a node is quantized.
    QUANTIZES = auto()


IMPLIED: Mapping[Trait, tuple[Trait, ...]] = MappingProxyType(
    {
        Trait.FUNCTION: (Trait.POINTWISE,),
        Trait.MOVEMENT: (Trait.UNROUNDED,),
        Trait.RESHAPES: (Trait.MOVEMENT, Trait.NEUTRAL),
        Trait.SELECTION: (Trait.UNROUNDED,),
        Trait.PRODUCT: (Trait.ACCUMULATES,),
        Trait.WEIGHTED: (Trait.PRODUCT,),
        Trait.AVERAGE: (Trait.ACCUMULATES,),
        Trait.TRAILING: (Trait.ALONG,),
    }
)
"""What a trait implies; records state the strongest only."""


def closed(traits: Iterable[Trait]) -> frozenset[Trait]:
    """The traits with all that they imply."""
    stated = frozenset(traits)
    more = stated.union(*(IMPLIED.get(trait, ()) for trait in stated))
    return stated if more == stated else closed(more)
