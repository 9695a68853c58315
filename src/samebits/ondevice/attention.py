"""Rules of attention: heads, products of activations, and the softmax between them."""

from __future__ import annotations

import math
from dataclasses import replace

from samebits.ondevice.gradients import narrowed
from samebits.ondevice.tape import (
    Array,
    Room,
    StepCall,
    TapeGradient,
    codes,
    exponent,
    gradient,
    pointer,
    record_of,
)
from samebits.ondevice.writer import TapeWriter, instruction, slot_of, unsupported, wants
from samebits.spec import formats
from samebits.train.graph import TrainingNode

HEADS = (0, 2, 1, 3)  # the axes of [n, heads, places, features] in memory: heads are features
SHARES = 1  # bits of a share of a softmax, as 2**SHARES is above it


def split_heads(made: TapeWriter, node: TrainingNode) -> None:
    """[n, places, heads * features] as [n * heads, places, features], where it lies."""
    slot, heads = slot_of(node), node.arguments[1]
    x = made.arrays[slot]
    if len(x.shape) != 3 or made.order(slot) != (0, 1, 2):
        raise unsupported(node, "heads but of [samples, places, features]")
    shape = (*x.shape[:2], heads, x.shape[2] // heads)
    made.arrays[node.outputs[0]] = replace(x, shape=shape)
    made.settle_order(node.outputs[0], HEADS, merged=True)
    made.going_back(node, lambda g: (replace(g, shape=x.shape),))


def join_heads(made: TapeWriter, node: TrainingNode) -> None:
    """The inverse."""
    slot = slot_of(node)
    x = made.arrays[slot]
    if made.order(slot) != HEADS or x.shape[2] != node.arguments[1]:
        raise unsupported(node, "heads that lie otherwise")
    made.arrays[node.outputs[0]] = replace(x, shape=(*x.shape[:2], x.shape[2] * x.shape[3]))
    made.going_back(node, lambda g: (replace(g, shape=x.shape),))


def _strides(shape: tuple[int, ...], order: tuple[int, ...], turned: bool = False) -> str:
    """The strides of [n, heads, rows, columns] as C; turned: of the transposed matrices."""
    own = [math.prod(shape[order.index(axis) + 1 :]) for axis in range(4)]
    own = [*own[:2], own[3], own[2]] if turned else own
    return f"{{{{{', '.join(map(str, own))}}}}}"


def matrices(made: TapeWriter, node: TrainingNode) -> None:
    """A product of activations: of two of 8 bits, or of the shares of a softmax and one of 8 bits,
    whose heads then lie as features."""
    t, first, second = made.tape, slot_of(node), slot_of(node, 1)
    transposed = node.arguments[2]
    a, b = made.arrays[first], made.arrays[second]
    if len(a.shape) != 4 or len(b.shape) != 4 or b.width != 8 or a.width != 8:
        raise unsupported(node, "a product but of the heads of two tensors")
    of_vectors = made.shares.get(first)
    if of_vectors is None and made.shares.get(second) is not None:
        raise unsupported(node, "shares of a softmax behind another factor")
    orders = made.order(first), made.order(second)
    n, heads, rows, terms = (a.shape[orders[0].index(axis)] for axis in range(4))
    columns = b.shape[orders[1].index(2 if transposed else 3)]
    order = (0, 1, 2, 3) if transposed else HEADS
    y = t.array(tuple((n, heads, rows, columns)[axis] for axis in order), 32)
    strides = [_strides(a.shape, orders[0]), _strides(b.shape, orders[1], not transposed)]
    numbers = ["count", heads, rows, columns, terms, int(of_vectors is not None), *strides]
    geometry = record_of("matrices", [*numbers, _strides(y.shape, order)])
    t.has_matrices = True

    def exponents(place: int) -> tuple[str, list[Room]]:
        if of_vectors is None:
            return f"&{exponent(a)}", []
        return pointer("int32_t", place), [of_vectors]

    text, rooms = exponents(3)
    call = f"samebits_train_matrices({geometry}, {codes(a, 0)}, {text}, {codes(b, 1)}, "
    call += f"{exponent(b)}, {codes(y, 2)}, &{exponent(y)})"
    t.forward.append(instruction(node, call, a, b, y, *rooms))
    made.arrays[node.outputs[0]] = y
    made.settle_order(node.outputs[0], order, merged=True)

    def backward(g: TapeGradient) -> tuple[TapeGradient | None, ...]:
        of_a = str(SHARES) if of_vectors is not None else f"{exponent(a)} + 7"
        call = f"samebits_train_bound_matrices(&b, {geometry}, {of_a}, {exponent(b)} + 7)"
        t.bounds.append(instruction(node, call, fails=False))
        da = db = None
        if wants(node, 0):
            short, da = narrowed(made, node, g), t.gradient(a.shape, 16)
            call = f"samebits_train_matrices_a({geometry}, {codes(short, 0)}, {exponent(short)}, "
            call += f"{codes(b, 1)}, {exponent(b)}, {codes(da, 2)}, &{exponent(da)})"
            t.backward.append(instruction(node, call, short, b, da))
        if wants(node, 1):
            (text, rooms), db = exponents(3), t.gradient(b.shape, 16)
            call = f"samebits_train_matrices_b({geometry}, {gradient(g, 0)}, {codes(a, 1)}, "
            call += f"{text}, {codes(db, 2)}, &{exponent(db)})"
            t.backward.append(instruction(node, call, g, a, db, *rooms))
        return da, db

    made.going_back(node, backward)


def scaled(made: TapeWriter, node: TrainingNode) -> None:
    """A product of 32 bits with a number, in its place where nobody else reads it."""
    t, slot = made.tape, slot_of(node)
    x = made.arrays[slot]
    if x.width != 32:
        raise unsupported(node, "a product of 8 bits with a number")
    m, power = formats.signed_coefficient(node.arguments[1])
    number = f"(samebits_coefficient){{{{{m}, {power}}}}}"
    t.has_matrices = True

    def times(calls: list[StepCall], given: TapeGradient, to: Array) -> None:
        call = f"samebits_train_times({gradient(given, 0)}, count * {given.sample}, {number}, "
        call += f"{codes(to, 1)}, &{exponent(to)})"
        calls.append(instruction(node, call, given, to, fails=False))

    y = t.over(x) if made.is_alone(slot) else t.array(x.shape, 32)
    times(t.forward, TapeGradient(x.room, x.exponent, 32, x.shape), y)
    made.arrays[node.outputs[0]] = y

    def backward(g: TapeGradient) -> tuple[TapeGradient]:
        call = f"samebits_train_bound_times(&b, {abs(m).bit_length() + power})"
        t.bounds.append(instruction(node, call, fails=False))
        dx = t.gradient(x.shape, 32)
        times(t.backward, g, dx)
        return (dx,)

    made.going_back(node, backward)


def softmax(made: TapeWriter, node: TrainingNode) -> None:
    """Shares of 8 bits, every vector with an exponent: what a product takes of the 30 bits."""
    t, slot = made.tape, slot_of(node)
    z, order = made.arrays[slot], made.order(slot)
    taken = [r.operation.name == "MatMul" for r in made.readers.get(node.outputs[0], [])]
    if z.width != 32 or order != (0, 1, 2, 3) or not all(taken):
        raise unsupported(node, "a softmax but of a product, of which products take shares")
    vectors, c = z.sample // z.shape[-1], z.shape[-1]
    y, of_vectors, row = t.array(z.shape, 8), t.room(4 * t.batch * vectors), t.room(8 * c)
    call = f"samebits_train_softmax({codes(z, 0)}, count * {vectors}, {c}, {exponent(z)}, TABLES, "
    call += f"{pointer('int64_t', 1)}, {codes(y, 2)}, {pointer('int32_t', 3)})"
    t.forward.append(instruction(node, call, z, row, y, of_vectors, fails=False))
    made.arrays[node.outputs[0]] = y
    made.shares[node.outputs[0]] = of_vectors

    def backward(g: TapeGradient) -> tuple[TapeGradient]:
        t.bounds.append(instruction(node, f"samebits_train_bound_softmax(&b, {c})", fails=False))
        short, dz = narrowed(made, node, g), t.gradient(z.shape, 32)
        call = f"samebits_train_softmax_gradient({codes(short, 0)}, {exponent(short)}, "
        call += f"{codes(y, 1)}, {pointer('int32_t', 2)}, count * {vectors}, {c}, {codes(dz, 3)}, "
        t.backward.append(instruction(node, f"{call}&{exponent(dz)})", short, y, of_vectors, dz))
        return (dz,)

    made.going_back(node, backward)


def narrow(made: TapeWriter, node: TrainingNode) -> None:
    """The use of sums as 8 bits, which what gives them has rounded already; of 32 bits here."""
    slot, t = slot_of(node), made.tape
    x = y = made.arrays[slot]
    if x.width == 32:
        y = t.array(x.shape, 8)
        call = f"samebits_train_codes({codes(x, 0)}, count * {x.sample}, {exponent(x)}, "
        t.forward.append(instruction(node, f"{call}{codes(y, 1)}, &{exponent(y)})", x, y))
    made.arrays[node.outputs[0]] = y
    if y is x:
        made.pass_rows(slot, node.outputs[0])
    made.going_back(node, lambda g: (g,))
