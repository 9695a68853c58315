"""The tape of a recorded training graph."""

from __future__ import annotations

import math

from torch import nn

from samebits.errors import UnsupportedError
from samebits.ondevice.gradients import settled
from samebits.ondevice.rules import FOLLOWING, KEEPING, MOVING, RULES, TAKING_ROWS
from samebits.ondevice.tape import (
    StepTape,
    TapeGradient,
    codes,
    exponent,
    gradient,
    pointer,
    stored,
)
from samebits.ondevice.writer import ALIASES, TapeWriter, instruction, slots_of, unsupported
from samebits.train.graph import Parameter, TrainingGraph, TrainingNode

MOST_CLASSES = 256  # labels are bytes
MOST_BATCH = 1 << 11  # below the rows from which the mean is one with amounts (training.md 6.2)

NAMED = {"Concat": "a concatenation, as of the two directions of a bidirectional layer,"}
"""Operations that C does not have, by what the user wrote."""


def record(model: nn.Module, graph: TrainingGraph, shape: tuple[int, ...]) -> StepTape:
    """The tape of a model in training whose graph was recorded for inputs of a shape [n, ...].

    The loss is the mean cross-entropy of class indices.
    Raises UnsupportedError, which names the layer, for a network that C cannot train yet.
    """
    made = TapeWriter(model, graph, StepTape(shape[0]))
    _quantize(made, graph.instructions[0], shape)
    for node in made.nodes:
        rule = RULES.get(node.operation.name)
        if rule is None:
            name = node.operation.name
            raise unsupported(node, NAMED.get(name, f"the operation {name}"))
        _check_axes(made, node)
        before = len(made.tape.forward), len(made.tape.run)
        rule(made, node)
        _check_run(made, node, *before)
    last = made.makers[graph.output]
    if last.operation.name != "Products" or len(made.arrays[graph.output].shape) != 2:
        raise unsupported(last, "an output that no Linear gives")
    if graph.output in made.readers:
        raise unsupported(last, "an output that a layer reads")
    _check_all(made)
    _backward(made, _loss(made, last))
    _check_updated(made)
    made.tape.live()
    return made.tape


def _check_axes(made: TapeWriter, node: TrainingNode) -> None:
    """UnsupportedError for values whose axes do not lie as usual, where they are neither moved nor
    kept."""
    name, slots = node.operation.name, list(slots_of(node))
    for slot in slots:
        if slot in made.orders and name not in (*MOVING, *KEEPING):
            raise unsupported(node, "axes in another order than samples, places, channels")
    if name not in MOVING:
        for slot in slots:
            made.keep_order(slot, node.outputs[0])


def _check_run(made: TapeWriter, node: TrainingNode, forward: int, run: int) -> None:
    """Note where C cannot evaluate yet: where rows of one sample would have exponents of their own
    (training.md 12.6) in what rounds them, or their exponents are neither used nor passed on, or
    only the step has an instruction. forward, run: how many instructions there were before."""
    name, out, t = node.operation.name, node.outputs[0], made.tape
    own = made.arrays.get(out)
    rounds = own is not None and (len(own.shape) == 3 or out in made.merged)
    rounds = rounds and name not in (*MOVING, *ALIASES)
    has_rows = any(slot in made.by_rows for slot in slots_of(node))
    loses = has_rows and out not in made.by_rows and name not in TAKING_ROWS
    lacks = len(t.forward) > forward and len(t.run) == run
    if not t.no_run and (rounds or loses or lacks):
        t.no_run = node.where or "the model"


def _backward(made: TapeWriter, g: TapeGradient) -> None:
    """All gradients, from that of the output. Gradients of a value with several uses are summed
    when they are complete (training.md 1.3); bounds of their magnitudes wait as they do."""
    t, order, at = made.tape, made.backward[::-1], made.graph.output
    made.pending[at] = [g]
    for k, (node, backward) in enumerate(order):
        slot = node.outputs[0]
        parts = made.pending.pop(slot, None)
        if parts is None:
            continue  # nobody reads it
        made.updated.update(
            a.index
            for a, wanted in zip(node.arguments, node.wanted, strict=True)
            if wanted and isinstance(a, Parameter)
        )
        g = parts[0] if len(parts) == 1 else _resolved(made, node, parts)
        if node.operation.name not in FOLLOWING:
            g = settled(made, node, g)
        if at != slot:
            t.bounds.append(instruction(node, f"b.reach = r[{made.reaches[slot]}]", fails=False))
        following = order[k + 1][0].outputs[0] if k + 1 < len(order) else None
        at = -1
        for source, dx in zip(slots_of(node), backward(g), strict=True):
            if dx is None:
                continue
            made.pending.setdefault(source, []).append(dx)
            if source == following and len(made.readers[source]) == 1:
                at = source
            else:
                _keep_reach(made, node, source)


def _keep_reach(made: TapeWriter, node: TrainingNode, slot: int) -> None:
    """The bound of a gradient, for its sum with others, or for later."""
    if slot in made.reaches:
        text = f"samebits_train_bound_sum(&b, &r[{made.reaches[slot]}])"
    else:
        own = made.reaches[slot] = len(made.reaches)
        text = f"r[{own}] = b.reach"
    made.tape.bounds.append(instruction(node, text, fails=False))
    made.tape.reaches = len(made.reaches)


def _resolved(made: TapeWriter, node: TrainingNode, parts: list[TapeGradient]) -> TapeGradient:
    """The sum of the gradients of a value, in the place of one of 32 bits if there is one."""
    t, rooms = made.tape, [g.room for g in parts]
    parts = [settled(made, node, g, rooms.count(g.room) > 1) for g in parts]
    wide = next((g for g in parts if g.width == 32 and not made.is_shared(g)), None)
    out = t.gradient(parts[0].shape, 32) if wide is None else stored(t.over(wide))
    given = ", ".join(gradient(g, i) for i, g in enumerate(parts))
    call = f"samebits_train_resolve((samebits_gradient[]){{{{{given}}}}}, {len(parts)}, "
    call += f"count * {out.sample}, {codes(out, len(parts))}, &{exponent(out)})"
    t.backward.append(instruction(node, call, *parts, out, fails=False))
    return out


def _quantize(made: TapeWriter, first: TrainingNode, shape: tuple[int, ...]) -> None:
    """The real input as codes of 8 bits, images with channels last."""
    if len(shape) not in (2, 3, 4):
        raise unsupported(first, "inputs but images [C, H, W], sequences and rows [features]")
    sides = shape if len(shape) < 4 else (shape[0], *shape[2:], shape[1])
    t = made.tape
    t.inputs, x = math.prod(sides[1:]), t.array(sides, 8)
    call = f"samebits_train_quantize(inputs, count * {x.sample}, {codes(x, 0)}, &{exponent(x)})"
    t.forward.append(instruction(first, call, x))
    t.run.append(t.forward[-1])
    if len(shape) == 3:  # each vector has an exponent of its own in evaluation
        made.by_rows[0] = first_row = t.new_exponents(shape[1])
        call = f"samebits_train_quantize_rows(inputs, {shape[1]}, {shape[2]}, {codes(x, 0)}"
        t.run[-1] = instruction(first, f"{call}, &e[{first_row}])", x)
    made.arrays[0] = x


def _loss(made: TapeWriter, last: TrainingNode) -> TapeGradient:
    """The gradient of the logits, in their place."""
    t, z = made.tape, made.arrays[made.graph.output]
    t.logits, t.classes = z, z.shape[1]
    if t.classes > MOST_CLASSES or t.batch > MOST_BATCH:
        raise unsupported(last, f"more than {MOST_CLASSES} classes or {MOST_BATCH} samples")
    row = t.room(8 * t.classes)
    call = f"samebits_train_cross_entropy({codes(z, 0)}, count, {t.classes}, {exponent(z)}, labels"
    call += f", TABLES, {pointer('int64_t', 1)}, {codes(z, 0)}, &{exponent(z)}, loss)"
    t.forward.append(instruction(last, call, z, row, fails=False))
    return stored(z)


def _check_updated(made: TapeWriter) -> None:
    """UnsupportedError for a parameter that wants a gradient and gets none."""
    for index, parameter in enumerate(made.graph.parameters):
        if parameter.requires_grad and index not in made.updated:
            name, _ = made.names[id(parameter)]
            raise UnsupportedError(
                f"{name}: expected a parameter whose gradient every step computes, found one that "
                "no gradient reaches; let it stand by requires_grad=False or --train-only, or "
                "remove what cuts its gradient off (detach, no_grad, an output that nobody uses)"
            )


def _check_all(made: TapeWriter) -> None:
    """UnsupportedError unless every parameter is used, and some are trained."""
    t = made.tape
    stored = {parameter.name for parameter in (*t.parameters, *t.frozen)}
    for name, _ in made.model.named_parameters():
        if name not in stored:
            raise UnsupportedError(
                f"{name}: expected a parameter that every step uses, found one that none does, "
                "which training in C cannot leave out; remove it"
            )
    if not t.parameters:
        raise UnsupportedError(
            "expected a parameter that steps train, found none: requires_grad is False of all; "
            "let some be trained"
        )
