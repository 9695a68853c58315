"""The rule of norms of vectors, LayerNorm and RMSNorm."""

from __future__ import annotations

import math

from samebits.ondevice.gradients import column
from samebits.ondevice.tape import TapeGradient, codes, exponent, gradient, pointer, record_of
from samebits.ondevice.writer import TapeWriter, instruction, slot_of, unsupported, wants
from samebits.train.graph import TrainingNode


def vector_norm(made: TapeWriter, node: TrainingNode) -> None:
    """Vectors along the last axis; 8 bits of the normalized ones are kept for the gradient."""
    _, _, _, eps, centred, groups, peaks = node.arguments
    t, slot = made.tape, slot_of(node)
    if groups is not None or peaks is not None:
        raise unsupported(node, "norms of groups of channels, or shifts of channels")
    x = made.arrays[slot]
    if len(x.shape) > 3:
        raise unsupported(node, "norms of images")
    gamma, beta = made.parameter(node, 1), made.parameter(node, 2)
    rows, d = math.prod(x.shape[1:-1]), x.shape[-1]
    numbers = [f"count * {rows}", d, repr(eps), int(centred)]
    geometry = record_of("vectors", numbers)
    t.has_vectors = True
    y, xhat = t.array(x.shape, 8), t.array(x.shape, 8)
    room, factors, e_m = t.room(16 * t.batch * rows), t.room(4 * t.batch * rows), t.new_exponent()
    call = f"samebits_train_vector_norm({geometry}, {codes(x, 0)}, {exponent(x)}, {gamma}, {beta}, "
    call += f"{pointer('samebits_vector', 1)}, {codes(xhat, 2)}, &{exponent(xhat)}, "
    call += f"{pointer('int32_t', 3)}, &e[{e_m}], {codes(y, 4)}, &{exponent(y)})"
    t.forward.append(instruction(node, call, x, room, xhat, factors, y))
    t.run.append(t.forward[-1])
    made.arrays[node.outputs[0]] = y

    def backward(g: TapeGradient) -> tuple[TapeGradient | None]:
        own = [p if wants(node, i) else "NULL" for i, p in ((1, gamma), (2, beta))]
        call = f"samebits_train_bound_vectors(&b, {geometry}, {', '.join(own)}, {gamma}, "
        call += f"{exponent(xhat)}, e[{e_m}], o)"
        t.bounds.append(instruction(node, call, fails=False))
        dx = t.gradient(x.shape, 32) if wants(node, 0) else None
        if dx is not None:
            call = f"samebits_train_vector_norm_gradient({geometry}, {gradient(g, 0)}, {gamma}, "
            call += f"{codes(xhat, 1)}, {exponent(xhat)}, {pointer('int32_t', 2)}, e[{e_m}], "
            call += f"{pointer('samebits_dots', 3)}, {codes(dx, 4)}, &{exponent(dx)})"
            dots = t.room(16 * t.batch * rows)
            t.backward.append(instruction(node, call, g, xhat, factors, dots, dx))
        tail = f"count * {rows}, {pointer('int32_t', 0)}, {pointer('int64_t', 1)}, "
        if wants(node, 1):
            call = f"samebits_train_factor_step({gradient(g, 3)}, {codes(xhat, 2)}, "
            call += f"{exponent(xhat)}, {tail}{gamma}, o)"
            sums = t.room(8 * d)
            t.backward.append(instruction(node, call, column(made, g), sums, xhat, g))
        if wants(node, 2):
            call = f"samebits_train_bias_step({gradient(g, 2)}, {tail}{beta}, o)"
            t.backward.append(instruction(node, call, column(made, g), t.room(8 * d), g))
        return (dx,)

    made.going_back(node, backward)
