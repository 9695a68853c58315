"""The rule of recurrent layers, one layer in one direction, and the arrays that it keeps."""

from __future__ import annotations

from samebits.kernels import conv_shape
from samebits.ondevice.products import ProductGradients
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
from samebits.ondevice.writer import TapeWriter, instruction, slot_of, slots_of, unsupported, wants
from samebits.train.graph import TrainingNode
from samebits.train.operations.gru import GruCell
from samebits.train.operations.lstm import LstmCell
from samebits.train.operations.recurrence import SteppedCell
from samebits.train.operations.rnn import RnnCell

TIME_FIRST = (1, 0, 2)  # the axes of [T, n, features] as they lie in memory: samples come first


def _kind_of(cell: SteppedCell) -> tuple[str, int]:
    """A cell's number in C, and how many gates it has."""
    if isinstance(cell, LstmCell):
        return "SAMEBITS_TRAIN_LSTM", 4
    if isinstance(cell, GruCell):
        return "SAMEBITS_TRAIN_GRU", 3
    assert isinstance(cell, RnnCell)
    return ("SAMEBITS_TRAIN_RECTIFIED" if cell.relu else "SAMEBITS_TRAIN_TANH"), 1


def _bytes(*sizes: int) -> int:
    return sum(-(-size // 8) * 8 for size in sizes)


def _product(made: TapeWriter, node: TrainingNode, inputs: int, outputs: int) -> ProductGradients:
    """The products of all steps of all samples with a weight."""
    t = made.tape
    steps = made.arrays[slot_of(node, 1)].shape[1]
    shape = conv_shape((1, inputs, 1, 1), (outputs, inputs, 1, 1))
    sides = [1, 1, inputs, 1, 1, outputs, 1, 1, 1, 1, 0, 0, 1]
    geometry = record_of("conv", [f"count * {steps}", *sides])
    return ProductGradients(made, node, geometry, shape, t.batch * steps)


def recurrence(made: TapeWriter, node: TrainingNode) -> None:
    """A layer of recurrent cells. In `run` each step has exponents of its own where x has them."""
    cell, _, *_, reverse = node.arguments[:7]
    t, slot = made.tape, slot_of(node, 1)
    x = made.arrays[slot]
    if len(list(slots_of(node))) > 1:
        raise unsupported(node, "initial states")
    if len(x.shape) != 3 or made.order(slot) != TIME_FIRST:
        raise unsupported(node, "a sequence whose first axis in memory is time")
    (n, steps, features), (kind, gates) = x.shape, _kind_of(cell)
    weights = [made.parameter(node, place) for place in range(2, 6)]
    units = made.graph.parameters[node.arguments[3].index].shape[1]
    width, cells = gates * units, n * units
    numbers = ["count", steps, features, units, kind, int(reverse), *weights, "CURVES"]
    geometry = record_of("cells", numbers)
    t.has_curves = True
    y = Array(t.room(cells * steps), t.new_exponent(), 8, (n, steps, units))
    states, exponents = t.room(2 * cells * steps), t.room(4 * 4 * steps)
    inside = 8 * cells, 2 * gates * cells, 2 * cells
    room = t.room(_bytes(*inside))
    of_states = f"{pointer('int16_t', 2)}, {pointer('int32_t', 3)}"

    def forward(e_x: str, of_steps: int, e_y: str, to_steps: int) -> StepCall:
        call = f"samebits_train_recurrence({geometry}, {codes(x, 0)}, &{e_x}, {of_steps}, "
        call += f"m + {{1}}, {of_states}, {codes(y, 4)}, &{e_y}, {to_steps})"
        return instruction(node, call, x, room, states, exponents, y)

    t.forward.append(forward(exponent(x), 0, exponent(y), 0))
    made.arrays[node.outputs[0]] = y
    made.orders[node.outputs[0]] = TIME_FIRST
    first, to = made.by_rows.get(slot), exponent(y)
    if kind != "SAMEBITS_TRAIN_LSTM":  # all of whose steps have the exponent -7
        own = made.by_rows[node.outputs[0]] = t.new_exponents(steps)
        to = f"e[{own}]"
    of = exponent(x) if first is None else f"e[{first}]"
    t.run.append(forward(of, int(first is not None), to, int(to != exponent(y))))
    of_x, of_h = (_product(made, node, size, width) for size in (features, units))

    def backward(g: TapeGradient) -> tuple[TapeGradient | None]:
        at_x = t.gradient((n, steps, width), 32)
        at_h = t.gradient((n, steps, width), 32) if gates == 3 else at_x
        past = Array(t.room(cells * steps), t.new_exponent(), 8, y.shape)
        inner = t.room(_bytes(*inside, 8 * cells, 4 * cells, 2 * cells, 2 * cells))
        t.bounds.append(
            instruction(node, f"samebits_train_bound_cells(&b, {geometry})", fails=False)
        )
        call = f"samebits_train_recurrence_gradient({geometry}, {codes(x, 0)}, {exponent(x)}, "
        call += f"m + {{1}}, {of_states}, {codes(y, 4)}, {gradient(g, 5)}, {codes(past, 6)}, "
        call += f"&{exponent(past)}, {codes(at_x, 7)}, &{exponent(at_x)}, "
        rest = [at_h] if at_h is not at_x else []
        call += f"{codes(at_h, 8)}, &{exponent(at_h)})" if rest else "NULL, NULL)"
        own: tuple[Array | Room, ...] = x, inner, states, exponents, y, g, past, at_x, *rest
        t.backward.append(instruction(node, call, *own))
        dx = None
        if wants(node, 1):
            dx = of_x.input(at_x, x, weights[0])
        for place, d, of in ((4, at_x, of_x), (5, at_h, of_h)):
            if wants(node, place):
                of.bias_step(d, weights[place - 2])
        if wants(node, 2):
            of_x.weight_step(at_x, x, weights[0])
        if wants(node, 3):  # the exponent of all rows of h is not below that of past ones
            of_h.weight_step(at_h, past, weights[1], exponent(y))
        if dx is not None:
            of_x.bound("input", weights[0])
        return (dx,)

    made.going_back(node, backward)
