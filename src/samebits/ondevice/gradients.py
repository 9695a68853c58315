"""Gradients that instructions need stored, of those that follow from others."""

from __future__ import annotations

from samebits.ondevice.tape import Room, TapeGradient, codes, exponent, gradient, pointer
from samebits.ondevice.writer import TapeWriter, instruction
from samebits.train.graph import TrainingNode


def column(made: TapeWriter, g: TapeGradient) -> Room:
    """Room for one channel of a gradient."""
    return made.tape.room(4 * made.tape.batch * g.rows)


def settled(
    made: TapeWriter, node: TrainingNode, g: TapeGradient, shared: bool = False
) -> TapeGradient:
    """The gradient with all its codes in memory, where those that it follows from lie if it can.

    shared: somebody else reads those, too, beside the values that wait for their gradient
    """
    if g.is_stored:
        return g
    t, shared = made.tape, shared or made.is_shared(g)
    in_place = g.pool is None and g.width == 32 and not shared
    own = g.room if in_place else t.room(4 * g.shape[0] * g.sample)
    out = TapeGradient(own, g.exponent, 32, g.shape)
    call = f"samebits_train_settle({gradient(g, 2)}, count * {g.rows}, {g.shape[-1]}, "
    call += f"{pointer('int32_t', 0)}, {codes(out, 1)})"
    t.backward.append(instruction(node, call, column(made, g), out, *g.rooms, fails=False))
    return out


def narrowed(made: TapeWriter, node: TrainingNode, g: TapeGradient) -> TapeGradient:
    """The gradient in 16 bits."""
    if g.is_stored and g.width == 16:
        return g
    out = made.tape.gradient(g.shape, 16)
    call = f"samebits_train_narrow({gradient(g, 2)}, count * {g.rows}, {g.shape[-1]}, "
    call += f"{pointer('int32_t', 0)}, {codes(out, 1)}, &{exponent(out)})"
    made.tape.backward.append(instruction(node, call, column(made, g), out, *g.rooms))
    return out
