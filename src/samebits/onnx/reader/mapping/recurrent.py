"""Recurrent layers: sequences [T, B, ...] whatever the layout, numbers of activations in full."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.errors import InputError, UnsupportedError
from samebits.ir.ops import Attribute
from samebits.ir.real.cell import ACTIVATIONS, LAYERS
from samebits.onnx.reader.node import OnnxNode, Result, onnx_op

BATCH_FIRST = {0: (2, 0, 1, 3), 1: (1, 0, 2), 2: (1, 0, 2)}  # perm of each output, for layout 1


@onnx_op("LSTM", "GRU", "RNN")
def _recurrent(node: OnnxNode) -> Result:
    """The layer on whole sequences [T, B, ...]; layout 1, [B, T, ...], by transposing sequences and
    states before and after it."""
    op = node.op
    direction = node.string("direction", "forward", ("forward", "reverse", "bidirectional"))
    directions = 2 if direction == "bidirectional" else 1
    names, alpha, beta = _activations(node, directions)
    attributes: dict[str, Attribute] = {
        "hidden_size": node.int_("hidden_size", (node.shape(2) or (0,))[-1]),
        "direction": direction,
        "activations": names,
        "activation_alpha": alpha,
        "activation_beta": beta,
        "clip": node.float_("clip", 0.0) or None,
    }
    if op == "LSTM":
        attributes["input_forget"] = int(node.flag("input_forget", False))
    if op == "GRU":
        attributes["linear_before_reset"] = int(node.flag("linear_before_reset", False))
    node.ignore("output_sequence")  # before opset 7: whether Y is wanted
    batch_first = node.flag("layout", False)
    inputs = list(node.inputs)
    if not batch_first:
        return node.out(op, *inputs, **attributes)
    for index in (0, 5, 6)[: 1 + LAYERS[op].states]:
        if node.has(index):
            inputs[index] = node.emit("Transpose", inputs[index], perm=(1, 0, 2))
    results = node.emit_all(op, *inputs, **attributes)
    found: list[str] = []
    for index, (result, name) in enumerate(zip(results, node.outputs, strict=False)):
        moved = {"perm": BATCH_FIRST[index]}
        found += node.builder.add_all("Transpose", [result], moved, node.hint, [name])
    return found


def _activations(
    node: OnnxNode, directions: int
) -> tuple[tuple[str, ...], tuple[float | None, ...], tuple[float | None, ...]]:
    """Names of the activations (none: the standard's own), and the alpha and beta of each."""
    given = node.strings("activations")
    names = given or LAYERS[node.op].activations * directions
    for index, name in enumerate(names):
        if name not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise UnsupportedError(f"expected activations of {known}, found {name!r} ({index})")
    alpha = _spread(names, 1, "activation_alpha", node)
    return given, alpha, _spread(names, 2, "activation_beta", node)


def _spread(names: Sequence[str], least: int, key: str, node: OnnxNode) -> tuple[float | None, ...]:
    """One number for each activation, None for those without one; () where none is given.

    ONNX lists in the attribute `key` the numbers of those activations that take at least `least`
    of them, in order; the list may end early.
    """
    numbers = list(node.floats(key) or ())
    takers = [len(ACTIVATIONS[name]) >= least for name in names]
    if len(numbers) > sum(takers) > 0:
        raise InputError(f"expected at most {sum(takers)} numbers in {key}, found {len(numbers)}")
    if not numbers or not any(takers):
        return ()
    return tuple(numbers.pop(0) if taker and numbers else None for taker in takers)
