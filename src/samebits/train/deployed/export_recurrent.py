"""Deployed recurrent models as one time step: whether they are time-wise, and cells in QDQ form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.kernels.protocol import ARGUMENT_EXPONENT, GATE_EXPONENT, HIDDEN_EXPONENT
from samebits.train.deployed.deploy import Deployed, DeployedOperation, run
from samebits.train.deployed.nodes import Array, Nodes
from samebits.train.deployed.operations import rule_of
from samebits.train.deployed.recurrent import (
    DeployedCell,
    GruSteps,
    LstmSteps,
    ReluSteps,
    TanhSteps,
    kind_of,
    weights_of,
)
from samebits.train.deployed.weights import FrozenWeights
from samebits.train.operation import TrainingOperation
from samebits.train.operations import activations, addition, pointwise
from samebits.train.operations.gru import GRU
from samebits.train.operations.indexing import INDEXED, PERMUTE
from samebits.train.operations.linear import PRODUCTS
from samebits.train.operations.lstm import LSTM
from samebits.train.operations.narrow import NARROW
from samebits.train.operations.rnn import RNN
from samebits.train.value import BFPValue, is_activation

TIME_WISE = (
    *(LSTM, GRU, RNN, PRODUCTS, INDEXED, PERMUTE, pointwise.RESHAPE, activations.RELU),
    *(activations.TABLE, NARROW, addition.ADD, pointwise.CONCAT),
)


def is_recurrent(steps: Sequence[DeployedOperation]) -> bool:
    """Whether a deployed run has recurrent layers."""
    return any(has_states(step.operation) for step in steps)


def has_states(operation: TrainingOperation) -> bool:
    """Whether an operation goes from step to step with states."""
    rule = rule_of(operation)
    return rule is not None and rule.states


def one_step(
    model: Deployed, whole: Sequence[DeployedOperation], shape: tuple[int, ...]
) -> tuple[list[DeployedOperation], Tensor | BFPValue, BFPValue]:
    """The operations of a run on sequences of one step, its input and output.

    whole: those of a run on [1, *shape]. Every axis as long as the sequence is tried as the axis of
    time, the last one first, until the operations of both runs agree. Raises UnsupportedError where
    a step of the result does not follow from the same step of the sequence and the states.
    """
    length = next(s for s in whole if has_states(s.operation)).output.shape[0]
    device = whole[0].output.codes.device
    for axis in reversed(range(len(shape))):
        if shape[axis] != length:
            continue
        single: list[DeployedOperation] = []
        size = (1, *shape[:axis], 1, *shape[axis + 1 :])
        images = torch.zeros(size, dtype=torch.float32, device=device)
        try:
            x, output = run(model, images, single.append)
        except (RuntimeError, IndexError, UnsupportedError):  # torch: the shapes do not fit
            continue
        if _match(whole, single):
            _check_time_wise(whole, single, length)
            return single, x, output
    raise UnsupportedError(
        f"expected a model that takes sequences of one step as well as of {length}, found one that "
        "does not; it cannot be exported step by step: evaluate it with frozen exponents "
        "(samebits.train.deployed.deploy), or let it hold layers without states, such as Conv2d"
    )


def _match(whole: Sequence[DeployedOperation], single: Sequence[DeployedOperation]) -> bool:
    """The same operations, and recurrent layers of the same features on sequences of one step."""
    if [s.operation for s in whole] != [s.operation for s in single]:
        return False
    pairs = [(a, b) for a, b in zip(whole, single, strict=True) if has_states(a.operation)]
    shapes = [[LayerOf(step).x.shape for step in pair] for pair in pairs]
    return all(b == (1, *a[1:]) for a, b in shapes)


def _check_time_wise(
    whole: Sequence[DeployedOperation], single: Sequence[DeployedOperation], length: int
) -> None:
    """UnsupportedError unless each step of the output follows from the same step of the input.

    An operation may read all steps or the last one, its shape must differ from that of one step in
    the axis of time alone, and it must leave the steps apart and go forward.
    """
    for a, b in zip(whole, single, strict=True):
        where = f"{a.path or 'the model'} ({a.operation.name})"
        axes = [
            _time_axis(where, x.shape, y.shape, length)
            for x, y in zip(a.arguments, b.arguments, strict=True)
            if is_activation(x)
        ]
        _time_axis(where, a.output.shape, b.output.shape, length)
        if axes and all(axis is None for axis in axes):
            continue  # of the last step
        if None in axes or a.operation not in TIME_WISE:
            raise UnsupportedError(f"{where}: expected a time-wise operation, found another")
        if has_states(a.operation) and LayerOf(a).reverse:
            raise UnsupportedError(
                f"{where}: expected layers that go forward, found a bidirectional one: its steps "
                "wait for the end of the sequence"
            )
        if a.operation is pointwise.CONCAT and a.arguments[0] % a.output.dim() == axes[0]:
            raise UnsupportedError(f"{where}: expected steps that stay apart, found them joined")
        if a.operation is INDEXED:
            _check_index(where, a, axes[0], length)


def _time_axis(where: str, whole: Sequence[int], single: Sequence[int], length: int) -> int | None:
    """The axis of `length` steps of which the other has one; None where there is none."""
    pairs = list(zip(whole, single, strict=False))
    differing = [i for i, (a, b) in enumerate(pairs) if a != b]
    if (
        len(whole) != len(single)
        or len(differing) > 1
        or any(pairs[i] != (length, 1) for i in differing)
    ):
        raise UnsupportedError(
            f"{where}: expected steps that stay apart, found some that are mixed"
        )
    return differing[0] if differing else None


def _check_index(where: str, step: DeployedOperation, axis: int | None, length: int) -> None:
    """Every step, or the last one."""
    x, index = step.arguments
    assert axis is not None
    times = torch.arange(length, device="cpu").view(
        [-1 if i == axis else 1 for i in range(x.dim())]
    )
    found = set(times.expand(x.shape)[index].unique().tolist())
    if found not in ({length - 1}, set(range(length))):
        raise UnsupportedError(f"{where}: expected every step or the last one, found others")


# --- cells ------------------------------------------------------------------------------------


class LayerOf:
    """A recurrent layer of one direction as its operation has it."""

    def __init__(self, step: DeployedOperation) -> None:
        self.x: BFPValue
        cell, self.x, *self.parameters, self.reverse = step.arguments[:7]
        self.kind = kind_of(cell)


States = tuple[str, ...]


def cell(nodes: Nodes, path: str, value: str, step: DeployedOperation) -> tuple[str, States]:
    """One step of a deployed recurrent layer: the value of h [1, N, H], and those of its states.

    value: of x [1, N, I]. One Gemm a gate and side, so that each has a scale of its own, and a
    QuantizeLinear where the layer rounds.
    """
    own = LayerOf(step)
    assert step.site is not None
    made = _Cell(nodes, path, value, step.site, own)
    hidden, states = _WRITERS[own.kind](made)
    shape = (1, made.samples, made.size)
    return made.add("Reshape", [hidden], "y", shape=shape), states


class _Cell:
    """Writes the nodes of one step."""

    def __init__(self, nodes: Nodes, path: str, value: str, site: int, own: LayerOf) -> None:
        self.nodes, self.path, self.site, self.e_x = nodes, path, site, own.x.whole()[1]
        weights = weights_of(own.kind, site, own.x, own.parameters)
        self.of_x, self.of_h = weights.of_x, weights.of_h
        _, self.samples, features = own.x.shape
        self.size, self.e_h = self.of_h.codes.shape[1], own.kind(site).hidden_exponent
        self.row = self.add("Reshape", [value], "x", shape=(self.samples, features))

    def add(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """The value of an operator."""
        return self.nodes.add(op, inputs, attributes, f"{self.path}.{name}")

    def rounded(self, name: str, value: str, exponent: int, dtype: str) -> str:
        """A value rounded to codes."""
        return self.nodes.rounded(f"{self.path}.{name}", value, exponent, dtype)

    def state(self, name: str, exponent: int, dtype: str) -> str:
        """A state [N, H] before the step."""
        given = self.nodes.state(f"{self.path}.{name}", (self.samples, self.size))
        return self.rounded(name, given, exponent, dtype)

    def from_x(self, gate: str, place: int) -> str:
        """The sum of x of the gate whose rows are at `place`, with its bias."""
        return self._product(f"{gate}_x", self.row, self.of_x, self.e_x, place, True)

    def from_h(self, gate: str, place: int, h: str, biased: bool = False) -> str:
        """The sum of h of a gate."""
        return self._product(f"{gate}_h", h, self.of_h, self.e_h, place, biased)

    def _product(
        self, name: str, rows: str, own: FrozenWeights, e: int, place: int, biased: bool
    ) -> str:
        of_gate = slice(place * self.size, (place + 1) * self.size)
        grids = own.exponents[of_gate]
        codes = own.codes[of_gate].cpu().contiguous().numpy()
        inputs = [rows, self._constant(f"{name}.weight", codes, [grid - e for grid in grids])]
        if biased:
            offsets = np.array(own.offsets[of_gate], np.int32)
            inputs.append(self._constant(f"{name}.bias", offsets, grids))
        return self.add("Gemm", inputs, name, transB=1)

    def _constant(self, name: str, codes: Array, exponents: Sequence[int]) -> str:
        return self.nodes.constant(f"{self.path}.{name}", codes, exponents)

    def gate(self, gate: str, function: str, parts: Sequence[str]) -> str:
        """The function of a sum of two parts, which is rounded to an argument."""
        total = self.add("Add", parts, f"{gate}_sum")
        total = self.rounded(f"{gate}_sum", total, ARGUMENT_EXPONENT, "int16")
        opened = self.add(function, [total], f"{gate}_gate")
        return self.rounded(f"{gate}_gate", opened, GATE_EXPONENT, "int16")


def _lstm(cell: _Cell) -> tuple[str, States]:
    h = cell.state("h", HIDDEN_EXPONENT, "int8")
    c = cell.state("c", cell.site, "int16")
    i, f, g, o = (
        cell.gate(name, function, [cell.from_x(name, place), cell.from_h(name, place, h)])
        for place, (name, function) in enumerate(zip("ifgo", _LSTM_FUNCTIONS, strict=True))
    )
    parts = [cell.add("Mul", [f, c], "kept"), cell.add("Mul", [i, g], "new")]
    c = cell.rounded("cell", cell.add("Add", parts, "cell"), cell.site, "int16")
    squashed = cell.add("Tanh", [c], "squashed")
    squashed = cell.rounded("squashed", squashed, GATE_EXPONENT, "int16")
    hidden = cell.add("Mul", [o, squashed], "hidden")
    hidden = cell.rounded("hidden", hidden, HIDDEN_EXPONENT, "int8")
    return hidden, (hidden, c)


def _gru(cell: _Cell) -> tuple[str, States]:
    """1 - z is a code: the sigmoid of an argument in [-8, 8) is above 0 and below 1."""
    s = cell.state("s", GATE_EXPONENT, "int16")
    h = cell.rounded("h", s, HIDDEN_EXPONENT, "int8")
    r, z = (
        cell.gate(name, "Sigmoid", [cell.from_x(name, place), cell.from_h(name, place, h)])
        for place, name in enumerate("rz")
    )
    from_x = cell.from_x("n", 2)
    m = cell.rounded("n_h", cell.from_h("n", 2, h, biased=True), cell.site, "int16")
    n = cell.gate("n", "Tanh", [from_x, cell.add("Mul", [r, m], "reset")])
    one = cell.nodes.real(f"{cell.path}.one", np.array(1.0, np.float32))
    rest = cell.add("Sub", [one, z], "z_rest")
    rest = cell.rounded("z_rest", rest, GATE_EXPONENT, "int16")
    parts = [cell.add("Mul", [z, s], "kept"), cell.add("Mul", [rest, n], "new")]
    s = cell.rounded("state", cell.add("Add", parts, "state"), GATE_EXPONENT, "int16")
    return cell.rounded("hidden", s, HIDDEN_EXPONENT, "int8"), (s,)


def _rnn(cell: _Cell) -> tuple[str, States]:
    h = cell.state("h", cell.site, "int8")
    opened = cell.gate("h", "Tanh", [cell.from_x("h", 0), cell.from_h("h", 0, h)])
    hidden = cell.rounded("hidden", opened, cell.site, "int8")
    return hidden, (hidden,)


def _relu(cell: _Cell) -> tuple[str, States]:
    h = cell.state("h", cell.site, "int8")
    total = cell.add("Add", [cell.from_x("h", 0), cell.from_h("h", 0, h)], "h_sum")
    hidden = cell.rounded("hidden", cell.add("Relu", [total], "relu"), cell.site, "int8")
    return hidden, (hidden,)


_LSTM_FUNCTIONS = ("Sigmoid", "Sigmoid", "Tanh", "Sigmoid")
_WRITERS: dict[type[DeployedCell], Callable[[_Cell], tuple[str, States]]] = {
    LstmSteps: _lstm,
    GruSteps: _gru,
    TanhSteps: _rnn,
    ReluSteps: _relu,
}
