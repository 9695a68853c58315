"""Integer graphs in torch, on a CPU or a GPU: the same codes as the reference interpreter.

Every tensor is int64 inside. Matrix products run in binary64, which is exact in any order of
summation while all partial sums stay below 2**53; longer sums are cut into pieces that do. Nothing
else is computed in floating point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from samebits.errors import InputError, RangeError, UnsupportedError
from samebits.ir.graph import Array, Graph, Node
from samebits.ir.integer.bounds import Interval, bounds
from samebits.ir.integer.define import limits
from samebits.ir.integer.realise import Quotient, positions, requantization, transposed_positions
from samebits.ir.integer.windows import balance_factors
from samebits.ir.ops import op_named

Tensor = torch.Tensor
Function = Callable[..., Tensor]
EXACT = 2**53  # every integer up to it is a binary64 number


class TorchExecutor:
    """Runs an integer graph. Raises UnsupportedError for a real graph, RangeError (here, or from
    `run`) where an accumulator does not hold its sum."""

    def __init__(self, graph: Graph, device: str = "cpu") -> None:
        if not graph.integer:
            raise UnsupportedError(
                f"graph {graph.name!r}: expected an integer graph, found real operators; "
                "lower it first (samebits.ir.lowering.lower)"
            )
        self.graph = graph
        self.device = torch.device(device)
        intervals = bounds(graph)
        self._constants = {name: self._tensor(array) for name, array in graph.constants.items()}
        self._functions = [
            _checked(node, graph, intervals, _PREPARE[node.op](_Step(self, node, intervals)))
            for node in graph.nodes
        ]
        self._last_use = {name: i for i, node in enumerate(graph.nodes) for name in node.inputs}

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs as arrays of their declared types.

        `inputs`: integer codes, in order of graph.inputs; any multiple of the graph's batch along
        axis 0, which is cut into pieces of the graph's batch. Raises InputError.
        """
        pieces = [self._run(piece) for piece in self._pieces(inputs)]
        if len(pieces) == 1:
            return pieces[0]
        columns = zip(*pieces, strict=True)
        return [np.concatenate([np.atleast_1d(part) for part in column]) for column in columns]

    def trace(self, inputs: Sequence[Array]) -> dict[str, Array]:
        """Every value but the constants, by name, for one piece of the graph's own batch."""
        pieces = self._pieces(inputs)
        if len(pieces) != 1:
            raise InputError(f"trace: expected one batch of the graph, found {len(pieces)}")
        values = self._start(pieces[0])
        for node, function in zip(self.graph.nodes, self._functions, strict=True):
            values[node.output] = function(*(values[name] for name in node.inputs))
        return {
            name: self._array(name, tensor)
            for name, tensor in values.items()
            if name not in self.graph.constants
        }

    def _run(self, inputs: Sequence[Array]) -> list[Array]:
        values = self._start(inputs)
        for index, (node, function) in enumerate(
            zip(self.graph.nodes, self._functions, strict=True)
        ):
            values[node.output] = function(*(values[name] for name in node.inputs))
            for name in set(node.inputs):
                if self._last_use[name] == index and name not in self.graph.outputs:
                    del values[name]
        return [self._array(name, values[name]) for name in self.graph.outputs]

    def _start(self, inputs: Sequence[Array]) -> dict[str, Tensor]:
        given = zip(self.graph.inputs, map(self._tensor, inputs), strict=True)
        return {**self._constants, **dict(given)}

    def _pieces(self, inputs: Sequence[Array]) -> list[list[Array]]:
        """The inputs, checked and cut along axis 0."""
        graph = self.graph
        if len(inputs) != len(graph.inputs):
            raise InputError(
                f"graph {graph.name!r}: expected {len(graph.inputs)} inputs, found {len(inputs)}"
            )
        counts = set()
        for name, array in zip(graph.inputs, inputs, strict=True):
            value = graph.values[name]
            batch = value.shape[0] if value.shape else 0
            times = array.shape[0] // batch if array.ndim and batch else 1
            shape = (batch * times, *value.shape[1:]) if value.shape else ()
            if array.dtype.name != value.dtype or array.shape != shape or times < 1:
                raise InputError(
                    f"input {name!r} of graph {graph.name!r}: expected {value.dtype} codes "
                    f"{list(value.shape)} or a multiple along axis 0, found {array.dtype.name} "
                    f"{list(array.shape)}"
                )
            counts.add(times)
        if len(counts) > 1:
            raise InputError(
                f"graph {graph.name!r}: expected the same number of samples in every input, "
                f"found {sorted(counts)} batches"
            )
        count = counts.pop() if counts else 1
        if count == 1:
            return [list(inputs)]
        columns = [np.split(array, count) for array in inputs]
        return [list(piece) for piece in zip(*columns, strict=True)]

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.array(array, np.int64)).to(self.device)

    def _array(self, name: str, tensor: Tensor) -> Array:
        array: Array = tensor.cpu().numpy()
        return array.astype(self.graph.values[name].dtype)


class _Step:
    """One node while it is prepared."""

    def __init__(self, executor: TorchExecutor, node: Node, intervals: dict[str, Interval]) -> None:
        self.graph, self.device, self.node = executor.graph, executor.device, node
        self.attributes: dict[str, Any] = dict(node.attributes)
        self.intervals = [intervals[name] for name in node.inputs]
        self.values = [self.graph.values[name] for name in node.inputs]

    def largest(self, index: int, zero: int = 0) -> int:
        """max |x - zero| of an input."""
        interval = self.intervals[index]
        return max(abs(v - zero) for v in (*interval.low, *interval.high))

    def tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.array(array, np.int64)).to(self.device)

    def image(self) -> tuple[int, int]:
        height, width = self.values[0].shape[1:3]
        return height, width


def _checked(
    node: Node, graph: Graph, intervals: dict[str, Interval], function: Function
) -> Function:
    """`function`, with a check of its result where the interval does not prove that it fits."""
    dtype = graph.values[node.output].dtype
    low, high = limits(dtype)
    interval = intervals[node.output].hull
    if low <= interval.low[0] and interval.high[0] <= high:
        return function

    def check(*tensors: Tensor) -> Tensor:
        out = function(*tensors)
        if out.numel() and (int(out.min()) < low or int(out.max()) > high):
            raise RangeError(
                f"node {node.name!r} ({node.op}): expected integers of {dtype}, found "
                f"{int(out.min())} to {int(out.max())}"
            )
        return out

    return check


# --- sums of products -------------------------------------------------------------------------


def _product(a: Tensor, b: Tensor, largest: int) -> Tensor:
    """a @ b in int64. `largest`: a bound of |a| * |b|, far below 2**53 for codes."""
    length, size = max(1, EXACT // max(largest, 1)), a.shape[-1]
    if size <= length:
        return (a.double() @ b.double()).long()
    parts = [
        (a[..., k : k + length].double() @ b[..., k : k + length, :].double()).long()
        for k in range(0, size, length)
    ]
    return torch.stack(parts).sum(0)


def _gathered(x: Tensor, index: Tensor, outside: int) -> Tensor:
    """x[N, H, W, C] -> [N, P, T, C]: position index[P, T], `outside` where it is H * W."""
    n, h, w, c = x.shape
    rows = torch.cat((x.reshape(n, h * w, c), x.new_full((n, 1, c), outside)), 1)
    return rows.index_select(1, index.reshape(-1)).reshape(n, *index.shape, c)


def _convolution(step: _Step, index: Tensor, outside: int, zero: int) -> Function:
    """Windows times weights, group by group; x - zero is what the weights multiply."""
    groups = step.attributes["groups"]
    out = step.graph.values[step.node.output].shape
    largest = max(step.largest(0, zero), abs(outside - zero)) * step.largest(1)

    def run(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        windows = _gathered(x - zero, index, outside - zero)
        n, p, t, c = windows.shape
        rows = windows.reshape(n, p, t, groups, c // groups).permute(0, 3, 1, 2, 4)
        rows = rows.reshape(n, groups, p, t * c // groups)
        columns = w.reshape(groups, w.shape[0] // groups, -1).transpose(1, 2)
        sums = _product(rows, columns, largest)
        return sums.permute(0, 2, 1, 3).reshape(out) + b

    return run


def _conv(step: _Step) -> Function:
    kernel = step.values[1].shape[1:3]
    index = positions(step.image(), (kernel[0], kernel[1]), step.attributes)
    return _convolution(step, step.tensor(index), step.attributes["pad_code"], 0)


def _conv_transpose(step: _Step) -> Function:
    kernel = step.values[1].shape[1:3]
    index = transposed_positions(step.image(), (kernel[0], kernel[1]), step.attributes)
    zero = step.attributes["zero"]
    return _convolution(step, step.tensor(index), zero, zero)


def _linear(step: _Step) -> Function:
    largest = step.largest(0) * step.largest(1)
    return lambda x, w, b: _product(x.unsqueeze(-2), w.T, largest).squeeze(-2) + b


def _matmul(step: _Step) -> Function:
    a_zero, b_zero = step.attributes["a_zero"], step.attributes["b_zero"]
    largest = step.largest(0, a_zero) * step.largest(1, b_zero)
    return lambda a, b: _product(a - a_zero, b - b_zero, largest)


def _affine(step: _Step) -> Function:
    return lambda x, m, b: x * m + b


def _add(step: _Step) -> Function:
    factors, offset = step.attributes["factors"], step.attributes["offset"]

    def run(*terms: Tensor) -> Tensor:
        total = terms[0] * factors[0] + offset
        for term, factor in zip(terms[1:], factors[1:], strict=True):
            total = total + term * factor
        return total

    return run


def _multiply(step: _Step) -> Function:
    a_zero, b_zero = step.attributes["a_zero"], step.attributes["b_zero"]
    return lambda a, b: (a - a_zero) * (b - b_zero)


# --- requantization and tables ----------------------------------------------------------------


def _quotient(numerator: Tensor, denominator: Tensor) -> Tensor:
    """rne(numerator / denominator) for int64, denominator > 0 and at most 2**62."""
    quotient = torch.div(numerator, denominator, rounding_mode="floor")
    remainder = numerator - quotient * denominator
    return quotient + (2 * remainder + (quotient & 1) > denominator)


def _requantize(step: _Step) -> Function:
    a = step.attributes
    low, high, zero = a["low"], a["high"], a["zero"]
    plan = requantization(step.intervals[0], a)
    if isinstance(plan, Quotient):
        numerators, denominators = step.tensor(plan.numerators), step.tensor(plan.denominators)
        if not step.values[0].shape:
            numerators, denominators = numerators[0], denominators[0]
        return lambda x: (_quotient(x * numerators, denominators) + zero).clamp(low, high)
    steps = step.tensor(plan.values)
    return lambda x: low + _reached(x, steps)


def _reached(x: Tensor, steps: Tensor) -> Tensor:
    """How many steps are <= x; steps [1, T], or [C, T] along the last axis of x."""
    if steps.shape[0] == 1:
        return torch.searchsorted(steps[0], x.contiguous(), right=True)
    columns = x.movedim(-1, 0)
    flat = columns.reshape(steps.shape[0], -1).contiguous()
    return torch.searchsorted(steps, flat, right=True).reshape(columns.shape).movedim(0, -1)


def _table(step: _Step) -> Function:
    offset = -limits(step.values[0].dtype)[0]
    if len(step.values[1].shape) == 1:
        return lambda x, t: t[x + offset]
    channels, entries = step.values[1].shape
    row = step.tensor(np.arange(channels) * entries + offset)
    return lambda x, t: t.reshape(-1)[x + row]


def _clip(step: _Step) -> Function:
    return lambda x: x.clamp(step.attributes["low"], step.attributes["high"])


def _softmax(step: _Step) -> Function:
    a = step.attributes
    numerator, denominator = a["ratio"].as_integer_ratio()
    largest = step.largest(1)
    length = step.values[0].shape[-1]
    if largest * numerator >= 1 << 62 or largest * length * denominator > 1 << 62:
        return _reference(step)  # products beyond 64 bits: only for extreme scales

    def run(x: Tensor, t: Tensor) -> Tensor:
        powers = t[x.amax(-1, keepdim=True) - x]
        sums = powers.sum(-1, keepdim=True)
        codes = _quotient(powers * numerator, sums * denominator)
        return (codes + a["zero"]).clamp(a["low"], a["high"])

    return run


def _reference(step: _Step) -> Function:
    """The operator's own meaning, in Python integers."""
    dtypes = [value.dtype for value in step.values]

    def run(*tensors: Tensor) -> Tensor:
        arrays = [x.cpu().numpy().astype(d) for x, d in zip(tensors, dtypes, strict=True)]
        return step.tensor(op_named(step.node.op).meaning(arrays, step.attributes)[0])

    return run


# --- pools and reductions ---------------------------------------------------------------------


def _max_pool(step: _Step) -> Function:
    index = step.tensor(positions(step.image(), step.attributes["kernel"], step.attributes))
    out = step.graph.values[step.node.output].shape
    least = limits(step.values[0].dtype)[0]
    return lambda x: _gathered(x, index, least).amax(2).reshape(out)


def _sum_pool(step: _Step) -> Function:
    a = step.attributes
    index = step.tensor(positions(step.image(), a["kernel"], a))
    out = step.graph.values[step.node.output].shape
    balance = balance_factors(step.image(), a)[0] if a["balance"] else np.ones(out[1:3], np.int64)
    factors = step.tensor(balance.astype(np.int64)[:, :, None])
    return lambda x: _gathered(x - a["zero"], index, 0).sum(2).reshape(out) * factors


def _reduce_sum(step: _Step) -> Function:
    a = step.attributes
    if not a["axes"]:
        return lambda x: x - a["zero"]
    return lambda x: (x - a["zero"]).sum(a["axes"], keepdim=a["keepdims"])


def _reduce(function: Callable[..., Tensor]) -> Callable[[_Step], Function]:
    def prepare(step: _Step) -> Function:
        a = step.attributes
        if not a["axes"]:
            return lambda x: x
        return lambda x: function(x, a["axes"], keepdim=a["keepdims"])

    return prepare


def _argmax(step: _Step) -> Function:
    a = step.attributes
    return lambda x: torch.argmax(x, a["axis"], keepdim=a["keepdims"])


# --- data movement ----------------------------------------------------------------------------


def _slice(step: _Step) -> Function:
    a = step.attributes
    parts = tuple(map(slice, a["starts"], a["stops"], a["steps"]))
    return lambda x: x[parts]


def _concat(step: _Step) -> Function:
    return lambda *tensors: torch.cat(tensors, step.attributes["axis"])


def _pad(step: _Step) -> Function:
    a = step.attributes
    out = step.graph.values[step.node.output].shape
    inside = tuple(
        slice(before, size - after)
        for before, size, after in zip(a["before"], out, a["after"], strict=True)
    )

    def run(x: Tensor) -> Tensor:
        padded = x.new_full(out, a["code"])
        padded[inside] = x
        return padded

    return run


_PREPARE: dict[str, Callable[[_Step], Function]] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "linear": _linear,
    "matmul": _matmul,
    "affine": _affine,
    "add": _add,
    "multiply": _multiply,
    "requantize": _requantize,
    "table": _table,
    "clip": _clip,
    "max_pool": _max_pool,
    "sum_pool": _sum_pool,
    "reduce_sum": _reduce_sum,
    "reduce_max": _reduce(torch.amax),
    "reduce_min": _reduce(torch.amin),
    "maximum": lambda step: torch.maximum,
    "minimum": lambda step: torch.minimum,
    "softmax": _softmax,
    "argmax": _argmax,
    "reshape": lambda step: lambda x: x.reshape(step.attributes["shape"]),
    "transpose": lambda step: lambda x: x.permute(step.attributes["perm"]),
    "expand": lambda step: lambda x: x.expand(step.attributes["shape"]),
    "slice": _slice,
    "concat": _concat,
    "pad": _pad,
    "gather": lambda step: lambda x, i: x.index_select(step.attributes["axis"], i),
}
