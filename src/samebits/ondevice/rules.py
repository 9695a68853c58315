"""A rule for every operation: its instructions, forward and backward.

A rule emits the forward instructions of a node and, where a gradient is wanted, notes a function
that emits the backward ones; those are called in reverse order. `count` in the C is the number of
samples, `o` the optimizer, `b` the bounds, `e` the exponents of all arrays, `p` the parameters of
the state and `s` its statistics, `FROZEN` and `STANDING` those that no step changes, `r` bounds
that wait, `m` the arena.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from samebits.kernels import ConvShape, Window
from samebits.kernels.averages import Averages
from samebits.ondevice.attention import (
    join_heads,
    matrices,
    narrow,
    scaled,
    softmax,
    split_heads,
)
from samebits.ondevice.gradients import column, settled
from samebits.ondevice.moving import indexed, permuted, reshaped
from samebits.ondevice.products import ProductGradients
from samebits.ondevice.recurrent import recurrence
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
from samebits.ondevice.vectors import vector_norm
from samebits.ondevice.writer import (
    ALIASES,
    TapeWriter,
    instruction,
    slot_of,
    slots_of,
    unsupported,
    wants,
)
from samebits.spec import formats
from samebits.train.graph import TrainingNode

MOST_ROWS = 1 << 16  # of codes of 16 bits, so that n * S2 stays below 2**62
MOST_POSITIONS = 128  # of a window: places are bytes, with a bit for the mask of a ReLU
CLAMPS = {0: "SAMEBITS_TRAIN_RELU", 6: "SAMEBITS_TRAIN_RELU6"}  # by clip values; 0: none


def _given(made: TapeWriter, node: TrainingNode) -> Array:
    return made.arrays[slot_of(node)]


def _products(made: TapeWriter, node: TrainingNode) -> None:
    """Linear and Conv2d: 8 bits, or the logits, whose 32 bits the gradient replaces."""
    *_, shape, peaks = node.arguments
    assert isinstance(shape, ConvShape)
    if shape.dilation != (1, 1) or peaks is not None:
        raise unsupported(node, "dilation or shifts of channels")
    t, x = made.tape, _given(made, node)
    image = len(x.shape) == 4
    rows = 1 if image else math.prod(x.shape[1:-1])
    out = (t.batch, *((shape.oh, shape.ow) if image else x.shape[1:-1]), shape.co)
    sides = [shape.h, shape.w, shape.ci, shape.oh, shape.ow] if image else [1, 1, shape.ci, 1, 1]
    window = [shape.kh, shape.kw, *shape.stride, *shape.padding, shape.groups]
    geometry = record_of("conv", [f"count * {rows}", *sides, shape.co, *window])
    work = math.prod(out) * shape.products
    w, b = made.parameter(node, 1), made.parameter(node, 2)
    head = f"{geometry}, {codes(x, 0)}, {exponent(x)}, {w}, {b}"
    if node.outputs[0] == made.graph.output:
        y = t.array(out, 32)
        call = f"samebits_train_logits({head}, {codes(y, 1)}, &{exponent(y)})"
        forward = [instruction(node, call, x, y)]
        made.arrays[node.outputs[0]] = y
    elif _joins(made, node):
        forward, z = [], Array(Room(0), -1, 16, out)
        made.shorts[node.outputs[0]], made.joined[z] = z, (head, x)
    else:
        clamp, rooms, forward = "SAMEBITS_TRAIN_PLAIN, NULL", list[Room](), []
        for width in _widths(made, node):  # where two are read, the products are computed again
            y = t.array(out, width)
            sums = t.optional(4 * math.prod(out), work, y.room)
            if width == 8:
                clamp, rooms = clamped(made, node, y, 3)
            call = f"samebits_train_products({head}, {{2}}, m + {{1}}, {width}, &{exponent(y)}, "
            forward.append(instruction(node, f"{call}{clamp})", x, y, sums, *rooms))
            (made.arrays if width == 8 else made.shorts)[node.outputs[0]] = y
    t.forward += forward
    t.run += forward

    back = ProductGradients(made, node, geometry, shape, t.batch * rows)

    def backward(g: TapeGradient) -> tuple[TapeGradient | None]:
        dx = back.input(g, x, w) if wants(node, 0) else None
        if wants(node, 2):
            back.bias_step(g, b)
        if wants(node, 1):
            back.weight_step(g, x, w)
        if dx is not None:
            back.bound("input", w)
        return (dx,)

    made.going_back(node, backward)


def _joins(made: TapeWriter, node: TrainingNode) -> bool:
    """Whether products and the batch norm that alone takes them stand, so that one instruction
    computes both and never stores what lies between."""
    short = made.next(node)
    norm = None if short is None or short.operation.name != "Short" else made.next(short)
    if norm is None or norm.operation.name != "BatchNorm" or any(node.wanted):
        return False
    return not norm.arguments[5] and not any(norm.wanted)


def _norm(made: TapeWriter, node: TrainingNode) -> None:
    """BatchNorm: by the statistics of the batch, and by the running ones in `run` and where it
    stands in evaluation mode."""
    slot, *_, mean, var, training, momentum, eps, peaks = node.arguments
    t, z = made.tape, _given(made, node)
    if peaks is not None:
        raise unsupported(node, "shifts of channels")
    channels = z.shape[-1]
    places = z.sample // channels
    if t.batch * places > MOST_ROWS and z.width == 16:
        raise unsupported(node, f"a batch norm of more than {MOST_ROWS} values a channel")
    if training:
        t.least = max(t.least, 2 if places == 1 else 1)
    numbers = [f"count * {places}", channels, z.width, repr(eps), repr(momentum)]
    geometry = record_of("norm", [*numbers, int(not training)])
    w, b = made.parameter(node, 1), made.parameter(node, 2)
    running = ", ".join(made.statistics(mean, var, training))
    saved, room = t.room(32 * channels), t.room(8 * channels)
    if z in made.joined:
        head, x = made.joined[z]
        y = t.array(z.shape, 8)
        clamp, _ = clamped(made, node, y, 4)
        call = f"samebits_train_products_norm({head}, {geometry}, {w}, {b}, {running}, "
        call += f"{pointer('samebits_channel', 2)}, {pointer('int32_t', 3)}, {codes(y, 1)}, "
        t.forward.append(instruction(node, f"{call}&{exponent(y)}, {clamp})", x, y, saved, room))
        t.run.append(t.forward[-1])
        made.arrays[node.outputs[0]] = y
        return
    in_place = not training and made.is_alone(slot.index)
    reads = wants(node, 1) or wants(node, 2)  # z, which the gradients of gamma and beta need
    in_place &= not reads if z.width == 8 else not _is_kept(made, node)
    read = z
    if z.width == 16 and any(node.wanted):
        read = t.array(z.shape, 8)
        call = f"samebits_train_norm_codes({geometry}, {codes(z, 0)}, {exponent(z)}, "
        call += f"{codes(read, 1)}, &{exponent(read)})"
        t.forward.append(instruction(node, call, z, read))
    y = t.over(z, 8) if in_place else t.array(z.shape, 8)
    head = f"{geometry}, m + {{0}}, {exponent(z)}"
    clamp, masks = clamped(made, node, y, 4)
    tail = f"{pointer('samebits_channel', 2)}, {pointer('int32_t', 3)}, {codes(y, 1)}"
    tail += f", &{exponent(y)}, {clamp})"
    rooms: tuple[Array | Room, ...] = (z, y, saved, room, *masks)
    call = f"samebits_train_norm_run({head}, {w}, {b}, {running}, {tail}"
    t.run.append(instruction(node, call, *rooms))
    if training:
        call = f"samebits_train_norm({head}, {w}, {b}, {tail}"
        call_moves = f"samebits_train_running({geometry}, {pointer('samebits_channel', 0)}, "
        call_moves += f"{exponent(z)}, {running})"
        t.moves.append(instruction(node, call_moves, saved, fails=False))
    t.forward.append(instruction(node, call, *rooms))
    made.arrays[node.outputs[0]] = y

    def backward(g: TapeGradient) -> tuple[TapeGradient | None]:
        if g.lines is not None:
            g = settled(made, node, g)
        gamma, beta = (own if wants(node, i) else "NULL" for i, own in ((1, w), (2, b)))
        call = f"samebits_train_bound_norm(&b, {geometry}, {gamma}, {beta}, "
        call += f"{pointer('samebits_channel', 0)}, o)"
        t.bounds.append(instruction(node, call, saved, fails=False))
        reals, integers = t.room(32 * channels + 8), t.room(4 * channels)
        dz = replace(g, exponent=t.new_exponent(), lines=(reals, read.room))
        call = f"samebits_train_norm_gradient({geometry}, {gradient(g, 5)}, {codes(read, 0)}, "
        call += f"{exponent(read)}, {gamma}, {beta}, {pointer('samebits_channel', 1)}, o, "
        call += f"{pointer('int32_t', 2)}, {pointer('double', 3)}, {pointer('int32_t', 4)}, "
        call += f"&{exponent(dz)})" if wants(node, 0) else "NULL)"
        rooms = (read, saved, column(made, g), reals, integers)
        t.backward.append(instruction(node, call, *rooms, *g.rooms))
        if not wants(node, 0):
            return (None,)
        stays = g.is_stored and g.width == 32 and not made.is_shared(g)
        return (settled(made, node, dz) if stays else dz,)

    made.going_back(node, backward)


def clamped(made: TapeWriter, node: TrainingNode, y: Array, place: int) -> tuple[str, list[Room]]:
    """The clamp of the ReLU that takes a node's exact sums and the mask of its gradient, as C, and
    the room of the mask. Between node and ReLU the sums may be moved."""
    found = list(_takers(made, node.outputs[0]))
    relu = next((reader for reader in found if reader.operation.name == "Relu"), None)
    if relu is None:
        return "SAMEBITS_TRAIN_PLAIN, NULL", []
    if len(found) > 1:
        raise unsupported(node, "sums that a ReLU and another layer take")
    made.clamped.add(id(relu))
    mask, rooms = _mask(made, relu, y, place)
    return f"{_clamp_of(relu)}, {mask}", rooms


def _takers(made: TapeWriter, slot: int) -> Iterator[TrainingNode]:
    """The nodes that take a value, moved or not."""
    for reader in made.readers.get(slot, []):
        if reader.operation.name in ("Reshape", "Permute"):
            yield from _takers(made, reader.outputs[0])
        else:
            yield reader


def _clamp_of(relu: TrainingNode) -> str:
    if relu.arguments[1] not in CLAMPS:
        raise unsupported(relu, f"a ReLU with the limit {relu.arguments[1]}")
    return CLAMPS[relu.arguments[1]]


def _mask(made: TapeWriter, relu: TrainingNode, y: Array, place: int) -> tuple[str, list[Room]]:
    """The mask of a ReLU as C, and its room; none where no gradient passes."""
    if not wants(relu, 0):
        return "NULL", []
    made.masks[id(relu)] = made.tape.room((math.prod(y.shape) + 7) // 8)
    return pointer("uint8_t", place), [made.masks[id(relu)]]


def _relu(made: TapeWriter, node: TrainingNode) -> None:
    """ReLU and ReLU6: of exact sums part of what computes them, of codes in their place.

    Before a pool its mask joins the places of the maxima.
    """
    t, x, after = made.tape, _given(made, node), made.next(node)
    if id(node) not in made.clamped:
        if made.is_part(node.arguments[0].index):
            raise unsupported(node, "a ReLU of a part of exact sums")
        if not made.is_alone(node.arguments[0].index):
            x, given = t.array(x.shape, 8), x
            _copy(t.forward, node, given, x)
            t.run += t.forward[-2:]
        mask, masks = _mask(made, node, x, 1)
        call = f"samebits_train_relu({codes(x, 0)}, count * {x.sample}, {exponent(x)}, "
        call += f"{_clamp_of(node)}, {mask})"
        t.forward.append(instruction(node, call, x, *masks, fails=False))
        t.run.append(t.forward[-1])
    made.arrays[node.outputs[0]] = x
    joined = after is not None and after.operation.name == "MaxPool"

    def backward(g: TapeGradient) -> tuple[TapeGradient]:
        if joined:
            return (g,)
        dx = g = settled(made, node, g)
        if made.is_shared(g):
            dx = t.gradient(g.shape, g.width)
            _copy(t.backward, node, g, dx)
        call = f"samebits_train_relu_gradient(m + {{0}}, {g.width}, {pointer('uint8_t', 1)}, "
        call += f"count * {x.sample})"
        t.backward.append(instruction(node, call, dx, made.masks[id(node)], fails=False))
        return (dx,)

    made.going_back(node, backward)


def _add(made: TapeWriter, node: TrainingNode) -> None:
    """The sum of two values, in the place of one that nobody reads after it."""
    t, terms = made.tape, [made.arrays[slot] for slot in slots_of(node)]
    if len(terms) != 2 or terms[0].shape != terms[1].shape:
        raise unsupported(node, "a sum with a constant, or of two shapes,")
    a, b = terms
    own = (made.arrays[slot] for slot in slots_of(node) if made.is_alone(slot))
    given = next(own, None)
    y = t.array(a.shape, 8) if given is None else t.over(given)
    clamp, masks = clamped(made, node, y, 3)
    call = f"samebits_train_add(count * {a.sample}, {codes(a, 0)}, {exponent(a)}, {codes(b, 1)}, "
    call += f"{exponent(b)}, {codes(y, 2)}, &{exponent(y)}, {clamp})"
    t.forward.append(instruction(node, call, a, b, y, *masks))
    t.run.append(t.forward[-1])
    made.arrays[node.outputs[0]] = y
    made.going_back(node, lambda g: tuple(g if wants(node, i) else None for i in (0, 1)))


def _copy(calls: list[StepCall], node: TrainingNode, given: Array, to: Array) -> None:
    """Codes and exponent of an array in another."""
    size = f"(size_t)(count * {given.sample * given.width // 8})"
    calls.append(instruction(node, f"memcpy(m + {{1}}, m + {{0}}, {size})", given, to, fails=False))
    calls.append(instruction(node, f"{exponent(to)} = {exponent(given)}", fails=False))


def _max_pool(made: TapeWriter, node: TrainingNode) -> None:
    """MaxPool2d of windows side by side, with a ReLU before it."""
    slot, window = node.arguments
    assert isinstance(window, Window)
    t, x = made.tape, _given(made, node)
    _, h, w, c = x.shape
    oh, ow = window.counts(h, w)
    inside = oh * window.kernel[0] <= h and ow * window.kernel[1] <= w
    plain = window.stride == window.kernel and window.padding == (0, 0) and inside
    if not plain or window.size > MOST_POSITIONS:
        raise unsupported(node, "windows that overlap, or leave the image,")
    before = made.makers.get(slot.index)
    alone = before is not None and made.next(before) is node
    mask = made.masks.get(id(before)) if alone else None
    passing, masks = (pointer("uint8_t", 3), [mask]) if mask is not None else ("NULL", [])
    geometry = record_of("pool", ["count", h, w, c, oh, ow, *window.kernel])
    out = (t.batch, oh, ow, c)
    # Maxima have the exponent of their input.
    y = Array(t.room(math.prod(out)), x.exponent, 8, out)
    where = [t.room(y.room.size)] if wants(node, 0) else []
    text = pointer("uint8_t", 2) if where else "NULL"
    call = f"samebits_train_max_pool({geometry}, {codes(x, 0)}, {passing}, {codes(y, 1)}, {text})"
    t.forward.append(instruction(node, call, x, y, *where, *masks, fails=False))
    t.run.append(t.forward[-1])
    made.arrays[node.outputs[0]] = y

    def backward(g: TapeGradient) -> tuple[TapeGradient]:
        return (replace(g, shape=x.shape, pool=(geometry, where[0])),)

    made.going_back(node, backward)


def _average(made: TapeWriter, node: TrainingNode) -> None:
    """The mean of every channel of an image."""
    _, means = node.arguments
    assert isinstance(means, Averages)
    t, x = made.tape, _given(made, node)
    _, h, w, c = x.shape
    whole = means.rows, means.columns, means.heights, means.widths
    if whole != (((0, h),), ((0, w),), (h,), (w,)):
        raise unsupported(node, "means of parts of an image")
    geometry = record_of("pool", ["count", h, w, c, 1, 1, h, w])
    y, sums = t.array((t.batch, 1, 1, c), 8), t.room(4 * t.batch * c)
    call = f"samebits_train_average({geometry}, {codes(x, 0)}, {exponent(x)}, "
    call += f"{pointer('int32_t', 2)}, {codes(y, 1)}, &{exponent(y)})"
    t.forward.append(instruction(node, call, x, y, sums))
    t.run.append(t.forward[-1])
    made.arrays[node.outputs[0]] = y

    def backward(g: TapeGradient) -> tuple[TapeGradient]:
        dx = t.gradient(x.shape, 32)
        call = f"samebits_train_average_gradient({geometry}, {gradient(g, 0)}, {codes(dx, 1)}"
        t.backward.append(instruction(node, f"{call}, &{exponent(dx)})", g, dx, fails=False))
        return (dx,)

    made.going_back(node, backward)


def _dropout(made: TapeWriter, node: TrainingNode) -> None:
    """Dropout: its mask is drawn again where the gradient passes."""
    _, p, mask, draws = node.arguments
    t, x = made.tape, _given(made, node)
    if draws is not None:
        raise unsupported(node, "stochastic depth")
    if mask.__self__.site in made.sites:
        raise unsupported(node, "a Dropout that is called twice")
    made.sites.add(mask.__self__.site)
    if x.sample != x.shape[-1] and x.shape[-1] != 1:
        raise unsupported(node, "a Dropout of images of several channels")
    made.arrays[node.outputs[0]] = x
    made.pass_rows(slot_of(node), node.outputs[0])
    if p == 0:
        made.going_back(node, lambda g: (g,))
        return
    m, power = formats.coefficient(1.0 / (1.0 - p))
    threshold = f"{formats.round_real(p * 2.0**32)}u"
    site = f"{mask.__self__.site & 0xFFFFFFFF}u"
    numbers = [f"count * {x.sample}", threshold, site, f"{{{{{m}, {power}}}}}"]
    geometry = record_of("dropout", numbers)
    y = t.array(x.shape, 8)
    call = f"samebits_train_dropout({geometry}, o, {codes(x, 0)}, {exponent(x)}, {codes(y, 1)}"
    t.forward.append(instruction(node, f"{call}, &{exponent(y)})", x, y))
    _copy(t.run, node, x, y)
    made.arrays[node.outputs[0]] = y

    def backward(g: TapeGradient) -> tuple[TapeGradient]:
        call = f"samebits_train_bound_dropout(&b, {geometry})"
        t.bounds.append(instruction(node, call, fails=False))
        dx = g if g.width == 32 and not made.is_shared(g) else t.gradient(g.shape, 32)
        call = f"samebits_train_dropout_gradient({geometry}, o, {gradient(g, 0)}, {codes(dx, 1)}"
        t.backward.append(instruction(node, f"{call}, &{exponent(dx)})", g, dx, fails=False))
        return (dx,)

    made.going_back(node, backward)


def _short(made: TapeWriter, node: TrainingNode) -> None:
    """The use of sums as 16 bits, which products have rounded already."""
    slot = slot_of(node)
    if slot not in made.shorts:
        raise unsupported(node, "a batch norm of other sums than those of a product")
    made.arrays[node.outputs[0]] = made.shorts[slot]
    made.going_back(node, lambda g: (g,))


def _is_kept(made: TapeWriter, node: TrainingNode) -> bool:
    """Whether a node with a gradient reads the output of another, in which it may lie for long."""
    readers = made.readers.get(node.outputs[0], [])
    return any(r.wanted or (r.operation.name in ALIASES and _is_kept(made, r)) for r in readers)


def _widths(made: TapeWriter, node: TrainingNode) -> list[int]:
    """The widths at which the exact sums of a node are taken, moved or not."""
    takers = _takers(made, node.outputs[0])
    return sorted({16 if taker.operation.name == "Short" else 8 for taker in takers}, reverse=True)


FOLLOWING = ("Products", "BatchNorm", "Narrow", "Short", "Relu")
"""Operations that take gradients which are not stored."""

MOVING = (
    *("Reshape", "Permute", "Indexed", "SplitHeads", "JoinHeads", "MatMul"),
    *("Lstm", "Gru", "Rnn"),
)
"""Operations whose rules say where the axes of their outputs lie."""

TAKING_ROWS = ("Lstm", "Gru", "Rnn", "Indexed")
"""Operations that use the exponents that steps have of their own in `run`."""

KEEPING = ("Narrow", "Short", "Relu", "Scale", "Softmax")
"""Operations of elements alone, whatever the order of axes."""

RULES: dict[str, Callable[[TapeWriter, TrainingNode], None]] = {
    "Products": _products,
    "BatchNorm": _norm,
    "Add": _add,
    "Relu": _relu,
    "MaxPool": _max_pool,
    "AveragePool": _average,
    "Dropout": _dropout,
    "Reshape": reshaped,
    "Permute": permuted,
    "Indexed": indexed,
    "LayerNorm": vector_norm,
    "Lstm": recurrence,
    "Gru": recurrence,
    "Rnn": recurrence,
    "Narrow": narrow,
    "SplitHeads": split_heads,
    "JoinHeads": join_heads,
    "MatMul": matrices,
    "Scale": scaled,
    "Softmax": softmax,
    "Short": _short,
}
