"""Deployed LSTM models as one time step: whether they are time-wise, and the cell in QDQ form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.kernels.protocol import ARGUMENT_EXPONENT, GATE_EXPONENT, HIDDEN_EXPONENT
from samebits.train.deployed.deploy import Deployed, DeployedOperation, run
from samebits.train.deployed.lstm import GATES, gate_weights
from samebits.train.deployed.nodes import Nodes
from samebits.train.deployed.weights import exponents_of
from samebits.train.operations import activations, addition, pointwise
from samebits.train.operations.indexing import Indexed, Permute
from samebits.train.operations.linear import Products
from samebits.train.operations.lstm import Lstm
from samebits.train.operations.narrow import Narrow
from samebits.train.tensor import BFPParameter, BFPTensor

TIME_WISE = (
    *(Lstm, Products, Indexed, Permute, pointwise.Reshape, activations.Relu),
    *(activations.TableActivation, Narrow, addition.Add, pointwise.Concat),
)


def is_recurrent(steps: Sequence[DeployedOperation]) -> bool:
    """Whether a deployed run has LSTM layers."""
    return any(step.operation is Lstm for step in steps)


def one_step(
    model: Deployed, whole: Sequence[DeployedOperation], shape: tuple[int, ...]
) -> tuple[list[DeployedOperation], Tensor, BFPTensor]:
    """The operations of a run on sequences of one step, its input and output.

    whole: those of a run on [1, *shape]. Every axis as long as the sequence is tried as the axis of
    time, the last one first, until the operations of both runs agree. Raises UnsupportedError where
    a step of the result does not follow from the same step of the sequence and the states.
    """
    length = next(step for step in whole if step.operation is Lstm).output.shape[0]
    device = whole[0].output.codes.device
    for axis in reversed(range(len(shape))):
        if shape[axis] != length:
            continue
        single: list[DeployedOperation] = []
        images = torch.zeros(1, *shape[:axis], 1, *shape[axis + 1 :], device=device)
        try:
            x, output = run(model, images, single.append)
        except (RuntimeError, IndexError, UnsupportedError):  # torch: the shapes do not fit
            continue
        if _match(whole, single):
            _check_time_wise(whole, single, length)
            return single, x, output
    raise UnsupportedError(
        f"expected a model that takes sequences of one step as well as of {length}, found one that "
        "does not; it cannot be exported step by step"
    )


def _match(whole: Sequence[DeployedOperation], single: Sequence[DeployedOperation]) -> bool:
    """The same operations, and LSTMs of the same features on sequences of one step."""
    if [s.operation for s in whole] != [s.operation for s in single]:
        return False
    pairs = [(a, b) for a, b in zip(whole, single, strict=True) if a.operation is Lstm]
    return all(b.arguments[0].shape == (1, *a.arguments[0].shape[1:]) for a, b in pairs)


def _check_time_wise(
    whole: Sequence[DeployedOperation], single: Sequence[DeployedOperation], length: int
) -> None:
    """UnsupportedError unless each step of the output follows from the same step of the input.

    An operation may read all steps or the last one, its shape must differ from that of one step in
    the axis of time alone, and it must leave the steps apart and go forward.
    """
    for a, b in zip(whole, single, strict=True):
        where = f"{a.path or 'the model'} ({a.operation.word()})"
        axes = [
            _time_axis(where, x.shape, y.shape, length)
            for x, y in zip(a.arguments, b.arguments, strict=True)
            if isinstance(x, BFPTensor) and not isinstance(x, BFPParameter)
        ]
        _time_axis(where, a.output.shape, b.output.shape, length)
        if axes and all(axis is None for axis in axes):
            continue  # of the last step
        if None in axes or a.operation not in TIME_WISE:
            raise UnsupportedError(f"{where}: expected a time-wise operation, found another")
        if a.operation is Lstm and a.arguments[-1]:
            raise UnsupportedError(
                f"{where}: expected layers that go forward, found a bidirectional one: its steps "
                "wait for the end of the sequence"
            )
        if a.operation is pointwise.Concat and a.arguments[0] % a.output.dim() == axes[0]:
            raise UnsupportedError(f"{where}: expected steps that stay apart, found them joined")
        if a.operation is Indexed:
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
    times = torch.arange(length).view([-1 if i == axis else 1 for i in range(x.dim())])
    found = set(times.expand(x.shape)[index].unique().tolist())
    if found not in ({length - 1}, set(range(length))):
        raise UnsupportedError(f"{where}: expected every step or the last one, found others")


# --- the cell ---------------------------------------------------------------------------------


def cell(
    nodes: Nodes, path: str, value: str, site: int, arguments: Sequence[Any]
) -> tuple[str, tuple[str, str]]:
    """One step of a deployed LSTM layer: the value of h [1, N, H], and those of the states h, c.

    value: of x [1, N, I]. site and arguments: as `deployed.lstm.lstm` takes them. One Gemm a gate
    and side, so that each has a scale of its own, and a QuantizeLinear where the layer rounds.
    """
    x, weight_ih, weight_hh, *biases, _ = arguments
    w_hh, e_hh = weight_hh.parts[0][0], exponents_of(weight_hh)
    n, size = x.shape[1], w_hh.shape[1]
    own = gate_weights(x, weight_ih, *biases)
    e_ih = [e - x.whole()[1] for e in own.exponents]
    offsets = torch.tensor(own.offsets, dtype=torch.int32)

    def constant(name: str, codes: Tensor, exponents: Sequence[int]) -> str:
        return nodes.constant(f"{path}.{name}", codes.cpu().contiguous().numpy(), exponents)

    row = nodes.add("Reshape", [value], {"shape": (n, x.shape[2])}, f"{path}.x")
    h = nodes.rounded(f"{path}.h", nodes.state(f"{path}.h", (n, size)), HIDDEN_EXPONENT, "int8")
    c = nodes.rounded(f"{path}.c", nodes.state(f"{path}.c", (n, size)), site, "int16")
    gates = {}
    for place, gate in enumerate(GATES):
        rows = slice(place * size, (place + 1) * size)
        weight = constant(f"{gate}_x.weight", own.codes[rows], e_ih[rows])
        bias = constant(f"{gate}_x.bias", offsets[rows], own.exponents[rows])
        from_x = nodes.add("Gemm", [row, weight, bias], {"transB": 1}, f"{path}.{gate}_x")
        back = constant(f"{gate}_h.weight", w_hh[rows], e_hh[rows])
        from_h = nodes.add("Gemm", [h, back], {"transB": 1}, f"{path}.{gate}_h")
        total = nodes.add("Add", [from_x, from_h], {}, f"{path}.{gate}_sum")
        total = nodes.rounded(f"{path}.{gate}_sum", total, ARGUMENT_EXPONENT, "int16")
        function = "Tanh" if gate == "g" else "Sigmoid"
        opened = nodes.add(function, [total], {}, f"{path}.{gate}_gate")
        gates[gate] = nodes.rounded(f"{path}.{gate}_gate", opened, GATE_EXPONENT, "int16")
    kept = nodes.add("Mul", [gates["f"], c], {}, f"{path}.kept")
    new = nodes.add("Mul", [gates["i"], gates["g"]], {}, f"{path}.new")
    total = nodes.add("Add", [kept, new], {}, f"{path}.cell")
    state = nodes.rounded(f"{path}.cell", total, site, "int16")
    squashed = nodes.add("Tanh", [state], {}, f"{path}.squashed")
    squashed = nodes.rounded(f"{path}.squashed", squashed, GATE_EXPONENT, "int16")
    hidden = nodes.add("Mul", [gates["o"], squashed], {}, f"{path}.hidden")
    hidden = nodes.rounded(f"{path}.hidden", hidden, HIDDEN_EXPONENT, "int8")
    shape = {"shape": (1, n, size)}
    return nodes.add("Reshape", [hidden], shape, f"{path}.y"), (hidden, state)
