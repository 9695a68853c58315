"""Recurrent layers: sequences [T, B, ...] whatever the layout, numbers of activations in full."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.errors import InputError, UnsupportedError
from samebits.ir.ops import Attribute
from samebits.ir.real.cell import ACTIVATIONS, LAYERS
from samebits.onnx.reader.step import Result, Step, onnx_op

BATCH_FIRST = {0: (2, 0, 1, 3), 1: (1, 0, 2), 2: (1, 0, 2)}  # perm of each output, for layout 1


@onnx_op("LSTM", "GRU", "RNN")
def recurrent(step: Step) -> Result:
    """The layer on whole sequences; layout 1 by transposing them and the states."""
    op = step.node.op_type
    direction = step.string("direction", "forward", ("forward", "reverse", "bidirectional"))
    directions = 2 if direction == "bidirectional" else 1
    names, alpha, beta = _activations(step, directions)
    attributes: dict[str, Attribute] = {
        "hidden_size": step.int_("hidden_size", (step.shape(2) or (0,))[-1]),
        "direction": direction,
        "activations": names,
        "activation_alpha": alpha,
        "activation_beta": beta,
        "clip": step.float_("clip", 0.0) or None,
    }
    if op == "LSTM":
        attributes["input_forget"] = int(step.flag("input_forget", False))
    if op == "GRU":
        attributes["linear_before_reset"] = int(step.flag("linear_before_reset", False))
    step.ignore("output_sequence")  # before opset 7: whether Y is wanted
    batch_first = step.flag("layout", False)
    inputs = list(step.inputs)
    if not batch_first:
        return step.out(op, inputs, **attributes)
    for index in (0, 5, 6)[: 1 + LAYERS[op].states]:
        if step.has(index):
            inputs[index] = step.emit("Transpose", [inputs[index]], perm=(1, 0, 2))
    results = step.emission.emit(step.hint, op, inputs, attributes, ())
    found: list[str] = []
    for index, result in enumerate(results[: len(step.outputs)]):
        wished = step.outputs[index : index + 1]
        moved = {"perm": BATCH_FIRST[index]}
        found += step.emission.emit(step.hint, "Transpose", [result], moved, wished)
    return found


def _activations(
    step: Step, directions: int
) -> tuple[tuple[str, ...], tuple[float | None, ...], tuple[float | None, ...]]:
    """The functions (none: the standard's own), and for each its alpha and its beta."""
    given = step.strings("activations")
    names = given or LAYERS[step.node.op_type].activations * directions
    for index, name in enumerate(names):
        if name not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise UnsupportedError(f"expected activations of {known}, found {name!r} ({index})")
    alpha = _spread(names, 1, "activation_alpha", step)
    return given, alpha, _spread(names, 2, "activation_beta", step)


def _spread(names: Sequence[str], least: int, key: str, step: Step) -> tuple[float | None, ...]:
    """ONNX lists the numbers of those functions that have them, in order; the list may end early.

    () where none is given.
    """
    numbers = list(step.floats(key) or ())
    takers = [len(ACTIVATIONS[name]) >= least for name in names]
    if len(numbers) > sum(takers) > 0:
        raise InputError(f"expected at most {sum(takers)} numbers in {key}, found {len(numbers)}")
    if not numbers or not any(takers):
        return ()
    return tuple(numbers.pop(0) if taker and numbers else None for taker in takers)
