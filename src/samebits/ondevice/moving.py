"""Rules of what moves no code, or copies some: reshapes, permutations, indices.

Memory has samples first, then images with channels last; `orders` says where axes lie that are not
in the usual order.
"""

from __future__ import annotations

import math
from dataclasses import replace

from samebits.ondevice.tape import TapeGradient, exponent
from samebits.ondevice.writer import TapeWriter, instruction, slot_of, unsupported
from samebits.train.graph import TrainingNode


def _sides(made: TapeWriter, slot: int) -> tuple[int, ...]:
    """The shape of a value as PyTorch has it."""
    x, order = (made.shorts.get(slot) or made.arrays[slot]).shape, made.order(slot)
    return tuple(x[order.index(axis)] for axis in range(len(order)))


def _ordered(order: tuple[int, ...], sides: tuple[int, ...]) -> list[int]:
    """The axes that are longer than 1, as they lie in memory."""
    return [axis for axis in order if sides[axis] > 1]


def reshaped(made: TapeWriter, node: TrainingNode) -> None:
    """The same codes in the same places."""
    slot = slot_of(node)
    old, batch, target = _sides(made, slot), made.tape.batch, list(node.arguments[1])
    if -1 in target:
        rest = -math.prod(target)
        target[target.index(-1)] = math.prod(old) // rest
    lying = _ordered(made.order(slot), old)
    longer = [side for side in old if side > 1]
    if target[0] % batch:
        raise unsupported(node, "a reshape that cuts samples")
    if lying == sorted(lying):  # row-major: samples first, all that comes after as it is
        sides = tuple(target) if target[0] == batch else (batch, target[0] // batch, *target[1:])
        order = tuple(range(len(sides)))
        rows = target[0] != batch
    elif longer == [side for side in target if side > 1]:
        # The same axes, but for those of 1.
        sides, rows = tuple(target), False
        own = [axis for axis, side in enumerate(sides) if side > 1]
        names = dict(zip([axis for axis, side in enumerate(old) if side > 1], own, strict=True))
        order = tuple([names[axis] for axis in lying])
        order += tuple(axis for axis in range(len(sides)) if axis not in order)
    else:
        raise unsupported(node, "a reshape that moves channels and places")
    usual = made.usual(len(sides))
    if _ordered(usual, sides) == _ordered(order, sides):
        order = usual
    shape = tuple(sides[axis] for axis in order)
    before = None
    for held in (made.arrays, made.shorts):
        if slot in held:
            before = held[slot]
            held[node.outputs[0]] = replace(before, shape=shape)
    assert before is not None
    made.settle_order(node.outputs[0], order, merged=rows)
    if before.shape[1:] == shape[1:]:  # steps and their vectors stay
        made.pass_rows(slot, node.outputs[0])
    x = before
    made.going_back(node, lambda g: (replace(g, shape=x.shape),))


def permuted(made: TapeWriter, node: TrainingNode) -> None:
    """Axes under other names: the codes stay where they are."""
    slot, axes = slot_of(node), node.arguments[1]
    if len(axes) != len(made.order(slot)) or slot in made.merged:
        raise unsupported(node, "a permutation of samples and places taken together")
    axes = tuple(axis % len(axes) for axis in axes)
    for held in (made.arrays, made.shorts):
        if slot in held:
            held[node.outputs[0]] = held[slot]
    order = tuple(axes.index(axis) for axis in made.order(slot))
    made.settle_order(node.outputs[0], order)
    if order[-1] == len(order) - 1:  # vectors along the last axis stay
        made.pass_rows(slot, node.outputs[0])
    made.going_back(node, lambda g: (g,))


def indexed(made: TapeWriter, node: TrainingNode) -> None:
    """A part of one axis, which is copied."""
    slot, t = slot_of(node), made.tape
    x, sides, order = made.arrays[slot], _sides(made, slot), made.order(slot)
    parts = list(node.arguments[1])
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        parts[at : at + 1] = [slice(None)] * (len(sides) - len(parts) + 1)
    parts += [slice(None)] * (len(sides) - len(parts))
    cut = [axis for axis, part in enumerate(parts) if part != slice(None)]
    if slot in made.merged or len(cut) != 1 or order.index(cut[0]) == 0:
        raise unsupported(node, "an index but of one axis, which is not that of samples,")
    axis, place = cut[0], order.index(cut[0])
    chosen = parts[axis]
    kept = range(sides[axis])[chosen]
    places = kept if isinstance(kept, range) else range(kept, kept + 1)
    if places.step != 1 or not places:
        raise unsupported(node, "an index with steps")
    gone = isinstance(chosen, int)
    rows, after = math.prod(x.shape[1:place]), math.prod(x.shape[place + 1 :])
    shape = (*x.shape[:place], *([] if gone else [len(places)]), *x.shape[place + 1 :])
    own = tuple(a - (gone and a > axis) for a in order if not (gone and a == axis))
    first = made.by_rows.get(slot)  # exponents of steps, of which one is taken, or some
    one_step = first is not None and place == 1 and gone
    # Exact sums are rounded as a whole.
    y = t.array(shape, 8)
    y = y if one_step else replace(y, exponent=x.exponent)
    whole, part = sides[axis] * after, len(places) * after
    numbers = f"count * {rows}, {whole}, {places[0] * after}, {part}"
    call = f"samebits_train_part(m + {{0}}, {numbers}, m + {{1}})"
    t.forward.append(instruction(node, call, x, y, fails=False))
    t.run.append(t.forward[-1])
    made.arrays[node.outputs[0]] = y
    made.settle_order(node.outputs[0], own)
    if first is not None:
        first += places[0] if place == 1 else 0
        if one_step:
            t.forward.append(instruction(node, f"{exponent(y)} = {exponent(x)}", fails=False))
            t.run.append(instruction(node, f"{exponent(y)} = e[{first}]", fails=False))
        elif gone:  # one number of every step, which is then a vector
            t.no_run = t.no_run or node.where or "the model"
        else:
            made.by_rows[node.outputs[0]] = first

    def backward(g: TapeGradient) -> tuple[TapeGradient]:
        dx = replace(t.gradient(x.shape, g.width), exponent=g.exponent)
        size = g.width // 8
        numbers = f"count * {rows}, {size * sides[axis] * after}, {size * places[0] * after}, "
        call = f"samebits_train_part_gradient(m + {{0}}, {numbers}{size * len(places) * after}, "
        t.backward.append(instruction(node, f"{call}m + {{1}})", g, dx, fails=False))
        return (dx,)

    made.going_back(node, backward)
