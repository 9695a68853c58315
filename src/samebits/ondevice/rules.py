"""A rule for every operation: its instructions, forward and backward.

A rule emits the forward instructions of a node and notes a function that emits the backward ones;
those are called in reverse order. `count` in the C is the number of samples, `o` the optimizer, `b`
the bounds, `e` the exponents of all arrays, `p` the parameters, `m` the arena.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from samebits.kernels import ConvShape, Window
from samebits.kernels.averages import Averages
from samebits.ondevice.tape import (
    Array,
    Room,
    StoredStatistics,
    codes,
    exponent,
    gradient,
    pointer,
    record_of,
)
from samebits.ondevice.writer import TapeWriter, instruction, unsupported
from samebits.spec import formats
from samebits.train.graph import Slot, TrainingNode

MOST_ROWS = 1 << 16  # of codes of 16 bits, so that n * S2 stays below 2**62
MOST_POSITIONS = 128  # of a window: places are bytes, with a bit for the mask of a ReLU


def _given(made: TapeWriter, node: TrainingNode) -> Array:
    slot = node.arguments[0]
    if not isinstance(slot, Slot):
        raise unsupported(node, "a constant in the place of an input")
    return made.arrays[slot.index]


def _products(made: TapeWriter, node: TrainingNode) -> None:
    """Linear and Conv2d: 8 bits, or the logits, whose 32 bits the gradient replaces."""
    _, weight, bias, shape, peaks = node.arguments
    assert isinstance(shape, ConvShape)
    if shape.groups != 1 or shape.dilation != (1, 1) or peaks is not None:
        raise unsupported(node, "groups, dilation or shifts of channels")
    t, x = made.tape, _given(made, node)
    image = len(x.shape) == 4
    out = (t.batch, *((shape.oh, shape.ow) if image else ()), shape.co)
    sides = [shape.h, shape.w, shape.ci, shape.oh, shape.ow] if image else [1, 1, shape.ci, 1, 1]
    geometry = record_of(
        "conv",
        ["count", *sides, shape.co, shape.kh, shape.kw, *shape.stride, *shape.padding],
    )
    w, b = made.parameter(node, weight), made.parameter(node, bias)
    head = f"{geometry}, {codes(x, 0)}, {exponent(x)}, {w}, {b}"
    last = made.next(node) is None
    if last:
        y = t.array(out, 32)
        call = f"samebits_train_logits({head}, {codes(y, 1)}, &{exponent(y)})"
        t.forward.append(instruction(node, call, x, y))
    elif (after := _behind(made, node)) is not None and after.operation.name == "Short":
        y = t.array(out, 32)
        call = f"samebits_train_products({head}, {pointer('int32_t', 1)}, NULL, &{exponent(y)}, "
        t.forward.append(instruction(node, f"{call}NULL)", x, y))
    else:
        y, sums = t.array(out, 8), t.room(4 * math.prod(out))
        mask, rooms = _clamped(made, node, y, 3)
        call = f"samebits_train_products({head}, {pointer('int32_t', 2)}, {codes(y, 1)}"
        call += f", &{exponent(y)}, {mask})"
        t.forward.append(instruction(node, call, x, y, sums, *rooms))
    t.run.append(t.forward[-1])
    made.arrays[node.outputs[0]] = y
    first = not node.wanted[0]

    def backward(g: Array) -> Array:
        call = f"samebits_train_bound_products(&b, {geometry}, {exponent(x)}, {w}, {b}, o)"
        t.bounds.append(instruction(node, call, fails=False))
        dx = x
        if not first:
            narrow = g
            if g.width == 32:
                narrow = t.array(g.shape, 16)
                call = f"samebits_train_narrow({gradient(g, 0)}, count * {g.sample}"
                call += f", {codes(narrow, 1)}, &{exponent(narrow)})"
                t.backward.append(instruction(node, call, g, narrow))
            dx = t.array(x.shape, 16)
            call = f"samebits_train_input_gradient({geometry}, {codes(narrow, 0)}, "
            call += f"{exponent(narrow)}, {w}, {codes(dx, 1)}, &{exponent(dx)})"
            t.backward.append(instruction(node, call, narrow, dx))
        if b != "NULL":
            room = t.room(8 * shape.co)
            call = f"samebits_train_bias_step({gradient(g, 0)}, count * {g.sample // shape.co}"
            call += f", {b}, o, {pointer('int64_t', 1)})"
            t.backward.append(instruction(node, call, g, room))
        call = f"samebits_train_weight_step({geometry}, {gradient(g, 0)}, {codes(x, 1)}, "
        t.backward.append(instruction(node, f"{call}{exponent(x)}, {w}, o)", g, x))
        return dx

    made.backward.append(backward)


def _norm(made: TapeWriter, node: TrainingNode) -> None:
    """BatchNorm: by the statistics of the batch, and of the running ones in `run`."""
    _, gamma, beta, mean, var, training, momentum, eps, peaks = node.arguments
    t, z = made.tape, _given(made, node)
    if not training or peaks is not None:
        raise unsupported(node, "a batch norm in evaluation mode or with shifts of channels")
    channels = z.shape[-1]
    places = z.sample // channels
    t.least = max(t.least, 2 if places == 1 else 1)
    if t.batch * places > MOST_ROWS and z.width == 32:
        raise unsupported(node, f"a batch norm of more than {MOST_ROWS} values a channel")
    bits = 8 if z.width == 8 else 16
    numbers = [f"count * {places}", channels, bits, repr(eps), repr(momentum)]
    geometry = record_of("norm", numbers)
    w, b = made.parameter(node, gamma), made.parameter(node, beta)
    own = len(t.statistics)
    t.statistics += [StoredStatistics(made.names[id(s)][0], channels) for s in (mean, var)]
    y, saved, room = t.array(z.shape, 8), t.room(32 * channels), t.room(8 * channels)
    head = f"{geometry}, m + {{0}}, {exponent(z)}"
    mask, masks = _clamped(made, node, y, 4)
    tail = f"{pointer('samebits_channel', 2)}, {pointer('int32_t', 3)}, {codes(y, 1)}"
    tail += f", &{exponent(y)}, {mask})"
    rooms: tuple[Array | Room, ...] = (z, y, saved, room, *masks)
    call = f"samebits_train_norm({head}, {w}, {b}, {tail}"
    t.forward.append(instruction(node, call, *rooms))
    call = f"samebits_train_norm_run({head}, {w}, {b}, s[{own}], s[{own + 1}], {tail}"
    t.run.append(instruction(node, call, *rooms))
    call = f"samebits_train_running({geometry}, {pointer('samebits_channel', 0)}, {exponent(z)}"
    t.moves.append(instruction(node, f"{call}, s[{own}], s[{own + 1}])", saved, fails=False))
    read = z
    if z.width == 32:
        read = t.array(z.shape, 8)
        call = f"samebits_train_norm_codes({geometry}, {codes(z, 0)}, {exponent(z)}, "
        call += f"{codes(read, 1)}, &{exponent(read)})"
        t.forward.append(instruction(node, call, z, read))
    made.arrays[node.outputs[0]] = y

    def backward(g: Array) -> Array:
        call = f"samebits_train_bound_norm(&b, {geometry}, {w}, {b}, "
        call += f"{pointer('samebits_channel', 0)}, o)"
        t.bounds.append(instruction(node, call, saved, fails=False))
        dz = g if g.width == 32 else t.array(g.shape, 32)
        reals, numbers = t.room(32 * channels), t.room(4 * channels)
        call = f"samebits_train_norm_gradient({geometry}, {gradient(g, 0)}, {codes(read, 1)}, "
        call += f"{exponent(read)}, {w}, {b}, {pointer('samebits_channel', 2)}, o, "
        call += f"{pointer('double', 3)}, {pointer('int32_t', 4)}, {codes(dz, 5)}"
        call += f", &{exponent(dz)})"
        t.backward.append(instruction(node, call, g, read, saved, reals, numbers, dz))
        return dz

    made.backward.append(backward)


def _behind(made: TapeWriter, node: TrainingNode) -> TrainingNode | None:
    """The node that takes the sums of one, moved or not."""
    after = made.next(node)
    while after is not None and after.operation.name == "Reshape":
        after = made.next(after)
    return after


def _clamped(made: TapeWriter, node: TrainingNode, y: Array, place: int) -> tuple[str, list[Room]]:
    """The mask of the ReLU that takes the exact sums of a node, as C, and its room; none where
    another takes them. Between both they may be moved."""
    after = _behind(made, node)
    if after is None or after.operation.name != "Relu":
        return "NULL", []
    made.masks[id(after)] = made.tape.room((math.prod(y.shape) + 7) // 8)
    return pointer("uint8_t", place), [made.masks[id(after)]]


def _relu(made: TapeWriter, node: TrainingNode) -> None:
    """ReLU: of exact sums part of what computes them, of codes in their place.

    Before a pool its mask joins the places of the maxima.
    """
    if node.arguments[1] != 0:
        raise unsupported(node, "ReLU6")
    t, x, after = made.tape, _given(made, node), made.next(node)
    made.arrays[node.outputs[0]] = x
    if id(node) not in made.masks:
        made.masks[id(node)] = t.room((math.prod(x.shape) + 7) // 8)
        call = f"samebits_train_relu({codes(x, 0)}, count * {x.sample}, {pointer('uint8_t', 1)})"
        t.forward.append(instruction(node, call, x, made.masks[id(node)], fails=False))
        t.run.append(t.forward[-1])
    mask = made.masks[id(node)]
    if after is not None and after.operation.name == "MaxPool":
        return

    def backward(g: Array) -> Array:
        call = f"samebits_train_relu_gradient(m + {{0}}, {g.width}, {pointer('uint8_t', 1)}, "
        call += f"count * {x.sample})"
        t.backward.append(instruction(node, call, g, mask, fails=False))
        return g

    made.backward.append(backward)


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
    before = next(n for n in made.graph.instructions if n.outputs == (slot.index,))
    mask = made.masks.get(id(before))
    passing, masks = (pointer("uint8_t", 3), [mask]) if mask is not None else ("NULL", [])
    geometry = record_of("pool", ["count", h, w, c, oh, ow, *window.kernel])
    out = (t.batch, oh, ow, c)
    # Maxima have the exponent of their input.
    y = Array(t.room(math.prod(out)), x.exponent, 8, out)
    where = t.room(y.room.size)
    call = f"samebits_train_max_pool({geometry}, {codes(x, 0)}, {passing}, {codes(y, 1)}, "
    call += f"{pointer('uint8_t', 2)})"
    t.forward.append(instruction(node, call, x, y, where, *masks, fails=False))
    t.run.append(t.forward[-1])
    made.arrays[node.outputs[0]] = y

    def backward(g: Array) -> Array:
        dx = t.array(x.shape, 32)
        call = f"samebits_train_max_pool_gradient({geometry}, {gradient(g, 0)}, "
        call += f"{pointer('uint8_t', 1)}, {codes(dx, 2)}, &{exponent(dx)})"
        t.backward.append(instruction(node, call, g, where, dx, fails=False))
        return dx

    made.backward.append(backward)


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

    def backward(g: Array) -> Array:
        dx = t.array(x.shape, 32)
        call = f"samebits_train_average_gradient({geometry}, {gradient(g, 0)}, {codes(dx, 1)}"
        t.backward.append(instruction(node, f"{call}, &{exponent(dx)})", g, dx, fails=False))
        return dx

    made.backward.append(backward)


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
    if p == 0:
        return
    m, power = formats.coefficient(1.0 / (1.0 - p))
    threshold = f"{formats.round_real(p * 2.0**32)}u"
    site = f"{mask.__self__.site & 0xFFFFFFFF}u"
    numbers = [f"count * {x.sample}", threshold, site, f"{{{{{m}, {power}}}}}"]
    geometry = record_of("dropout", numbers)
    y = t.array(x.shape, 8)
    call = f"samebits_train_dropout({geometry}, o, {codes(x, 0)}, {exponent(x)}, {codes(y, 1)}"
    t.forward.append(instruction(node, f"{call}, &{exponent(y)})", x, y))
    call = f"memcpy(m + {{1}}, m + {{0}}, (size_t)(count * {x.sample}))"
    t.run.append(instruction(node, call, x, y, fails=False))
    t.run.append(instruction(node, f"{exponent(y)} = {exponent(x)}", fails=False))
    made.arrays[node.outputs[0]] = y

    def backward(g: Array) -> Array:
        call = f"samebits_train_bound_dropout(&b, {geometry})"
        t.bounds.append(instruction(node, call, fails=False))
        dx = g if g.width == 32 else t.array(g.shape, 32)
        call = f"samebits_train_dropout_gradient({geometry}, o, {gradient(g, 0)}, {codes(dx, 1)}"
        t.backward.append(instruction(node, f"{call}, &{exponent(dx)})", g, dx, fails=False))
        return dx

    made.backward.append(backward)


def _reshape(made: TapeWriter, node: TrainingNode) -> None:
    """Flatten: the same codes, where channels first and channels last are one order."""
    x = _given(made, node)
    sides = tuple(node.arguments[1])
    found = (x.shape[0], x.sample)
    one_order = len(x.shape) == 2 or x.shape[-1] in (1, x.sample)
    if len(sides) != 2 or sides[1] not in (-1, x.sample) or not one_order:
        raise unsupported(node, "a reshape that moves channels and places")
    made.arrays[node.outputs[0]] = replace(x, shape=found)

    def backward(g: Array) -> Array:
        return replace(g, shape=x.shape)

    made.backward.append(backward)


def _same(made: TapeWriter, node: TrainingNode) -> None:
    """The use of sums as 8 bits, which products give already."""
    made.arrays[node.outputs[0]] = _given(made, node)


def _short(made: TapeWriter, node: TrainingNode) -> None:
    """The use of sums as 16 bits, which products give in the place of 32."""
    x = made.arrays[node.outputs[0]] = _given(made, node)
    if x.width != 32:
        raise unsupported(node, "a batch norm of other sums than those of a product")


RULES: dict[str, Callable[[TapeWriter, TrainingNode], None]] = {
    "Products": _products,
    "BatchNorm": _norm,
    "Relu": _relu,
    "MaxPool": _max_pool,
    "AveragePool": _average,
    "Dropout": _dropout,
    "Reshape": _reshape,
    "Narrow": _same,
    "Short": _short,
}
