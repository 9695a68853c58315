"""Integer graphs in torch, on a CPU or a GPU: the same codes as the reference interpreter.

Why this is exact. Every tensor is int64 between nodes, and `bounds` proves (RangeError otherwise)
that no value of the graph reaches 2**62 in magnitude. int64 arithmetic is exact modulo 2**64, so
sums of products may be taken in any order. Three kinds of nodes need more than that:

- Matrix products (conv, conv_transpose, linear, matmul) run in binary64, because torch has fast
  products of floating point only. Every integer up to 2**53 is a binary64 number, so sums of
  products are exact in whatever order, blocking or fusion a library takes them, as long as no
  partial sum can leave that range; `_product` cuts longer sums into pieces that stay within it and
  adds the pieces in int64. Codes and zero points have at most 16 bits, so their differences are
  below 2**17, a product is below 2**34 and a piece is at least 2**19 products long. No mode of
  torch lowers the precision of binary64 (TF32 and the like concern binary32). Nothing else is
  computed in floating point, but for a first guess of the roots of normalize.
- Requantizations multiply and divide (`requantized`). `requantization` finds fractions whose
  products stay below 2**62, or, where there are none, the accumulators at which the code changes.
- Softmax forms two products; where they could leave 64 bits, the operator's own meaning computes
  it in Python's integers.

Example: 3 x 3 windows of 64 uint8 channels and int8 weights. A product is at most 255 * 128 in
magnitude, below 2**15, and a sum of 576 products below 2**25: one piece. With int16 codes on both
sides a product is at most 2**30, and a piece holds 2**23 of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from samebits.errors import InputError, RangeError, UnsupportedError
from samebits.ir.graph import Array, Graph, Node
from samebits.ir.integer.bounds import Interval, bounds
from samebits.ir.integer.define import limits
from samebits.ir.integer.normalize import FRACTION_BITS, vector_length
from samebits.ir.integer.realise import positions, transposed_positions
from samebits.ir.integer.root import nearest_roots
from samebits.ir.integer.trees import THRESHOLDS, ensemble_of
from samebits.ir.integer.windows import balance_factors
from samebits.ir.ops import op_named
from samebits.pytorch.requantized import quotient, requantized
from samebits.spec.fixed import Shares

Tensor = torch.Tensor
Function = Callable[..., Tensor]
EXACT = 2**53  # every integer up to it is a binary64 number
LARGEST_COUNT, LARGEST_SIZE = 64, 2**20  # of batches side by side; of elements of their values


class TorchExecutor:
    """Runs an integer graph on a device of torch.

    unproved:     values whose intervals leave their declared types, for `check`
    vectorizable: whether `torch.vmap` takes all functions: none leaves torch

    Raises UnsupportedError for a real graph, RangeError where a value could reach 2**62; `run` and
    `trace` raise RangeError where a sum leaves the declared type of its accumulator.
    """

    def __init__(self, graph: Graph, device: str = "cpu") -> None:
        if not graph.integer:
            raise UnsupportedError(
                f"graph {graph.name!r}: expected an integer graph, found real operators; "
                "lower it first (samebits.ir.lowering.lower)"
            )
        self.graph = graph
        self.device = torch.device(device)
        intervals = bounds(graph)
        self.constants = {name: self.tensor(array) for name, array in graph.constants.items()}
        self._functions = [
            _PREPARE[node.op](_BoundedNode(self, node, intervals)) for node in graph.nodes
        ]
        self.unproved = {n.output for n in graph.nodes if not _is_held(n, graph, intervals)}
        self.vectorizable = not any(isinstance(each, _Reference) for each in self._functions)
        self._last_use = {name: i for i, node in enumerate(graph.nodes) for name in node.inputs}

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs as arrays of their declared types.

        inputs: integer codes, in order of graph.inputs; any multiple of the graph's batch along
        axis 0, which is cut into pieces of the graph's batch. Raises InputError for other types or
        shapes.
        """
        count, given = self._given(inputs)
        if count == 1:
            found = self._run(*(x[0] for x in given))
            self.check(found)
            return [self._array(name, found[name]) for name in self.graph.outputs]
        pieces = []
        for part in zip(*(x.split(self._side_by_side()) for x in given), strict=True):
            found = self.batched(self._run, *part)
            self.check(found)
            pieces.append([found[name] for name in self.graph.outputs])
        columns = zip(self.graph.outputs, zip(*pieces, strict=True), strict=True)
        arrays = [self._array(name, torch.cat(column)) for name, column in columns]
        return [array.reshape(-1, *array.shape[2:]) for array in arrays]

    def batched(
        self, function: Callable[..., dict[str, Tensor]], *tensors: Tensor
    ) -> dict[str, Tensor]:
        """A function of what one batch of the graph is, for several along a new axis 0."""
        if not self.vectorizable:
            found = [function(*each) for each in zip(*tensors, strict=True)]
            return {name: torch.stack([each[name] for each in found]) for name in found[0]}
        with warnings.catch_warnings():
            # vmap may put the new axis last: a copy, which torch tells of.
            warnings.filterwarnings("ignore", r"torch\.searchsorted.*non-contiguous")
            made: dict[str, Tensor] = torch.vmap(function)(*tensors)
            return made

    @property
    def functions(self) -> Iterator[tuple[Node, Function]]:
        """Each node, in order, with its function of int64 tensors, which `check` has not seen."""
        return zip(self.graph.nodes, self._functions, strict=True)

    def check(self, values: Mapping[str, Tensor]) -> None:
        """RangeError for integers that their declared type does not hold; of values that are
        `unproved`, since their intervals leave it."""
        for node in self.graph.nodes:
            if node.output not in self.unproved or not values[node.output].numel():
                continue
            dtype, out = self.graph.values[node.output].dtype, values[node.output]
            low, high = limits(dtype)
            if int(out.min()) < low or int(out.max()) > high:
                raise RangeError(
                    f"node {node.name!r} ({node.op}): expected integers of {dtype}, found "
                    f"{int(out.min())} to {int(out.max())}"
                )

    def trace(self, inputs: Sequence[Array]) -> dict[str, Array]:
        """Every value but the constants, by name, for inputs of the graph's own batch."""
        count, given = self._given(inputs)
        if count != 1:
            raise InputError(f"trace: expected one batch of the graph, found {count}")
        values = {**self.constants}
        values |= {name: x[0] for name, x in zip(self.graph.inputs, given, strict=True)}
        for node, function in self.functions:
            values[node.output] = function(*(values[name] for name in node.inputs))
        self.check(values)
        return {
            name: self._array(name, tensor)
            for name, tensor in values.items()
            if name not in self.graph.constants
        }

    def _run(self, *inputs: Tensor) -> dict[str, Tensor]:
        """The outputs, and what is to be checked, for inputs of the graph's own batch."""
        values = {**self.constants, **dict(zip(self.graph.inputs, inputs, strict=True))}
        kept = self.unproved.union(self.graph.outputs)
        for index, (node, function) in enumerate(self.functions):
            values[node.output] = function(*(values[name] for name in node.inputs))
            for name in set(node.inputs):
                if self._last_use[name] == index and name not in kept:
                    del values[name]
        return {name: values[name] for name in kept}

    def _side_by_side(self) -> int:
        """The number of batches that are computed at once: less for large values."""
        largest = max(value.size for value in self.graph.values.values())
        return max(1, min(LARGEST_COUNT, LARGEST_SIZE // max(1, largest)))

    def _given(self, inputs: Sequence[Array]) -> tuple[int, list[Tensor]]:
        """The number of batches of the graph's size, and the inputs, checked, [batches, ...]."""
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
        shapes = [graph.values[name].shape for name in graph.inputs]
        pairs = zip(inputs, shapes, strict=True)
        return count, [self.tensor(array).reshape(count, *shape) for array, shape in pairs]

    def tensor(self, array: Array) -> Tensor:
        """Integers as a tensor on the device."""
        return torch.from_numpy(np.array(array, np.int64)).to(self.device)

    def _array(self, name: str, tensor: Tensor) -> Array:
        array: Array = tensor.cpu().numpy()
        return array.astype(self.graph.values[name].dtype)


class _BoundedNode:
    """A node with the types and intervals of its inputs, from which its function is prepared.

    shape: that of its output. values: types of its inputs.
    """

    def __init__(self, executor: TorchExecutor, node: Node, intervals: dict[str, Interval]) -> None:
        graph, self.device, self.op = executor.graph, executor.device, node.op
        self.shape = graph.values[node.output].shape
        self.attributes: dict[str, Any] = dict(node.attributes)
        self.intervals = [intervals[name] for name in node.inputs]
        self.values = [graph.values[name] for name in node.inputs]
        self.arrays: list[Any] = [graph.constants.get(name) for name in node.inputs]

    def largest(self, index: int, zero: int = 0) -> int:
        """The greatest magnitude of an input less a zero point, max |x - zero|."""
        interval = self.intervals[index]
        return max(abs(v - zero) for v in (*interval.low, *interval.high))

    def tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.array(array, np.int64)).to(self.device)

    def image(self) -> tuple[int, int]:
        height, width = self.values[0].shape[1:3]
        return height, width


def _is_held(node: Node, graph: Graph, intervals: dict[str, Interval]) -> bool:
    """Whether the interval of a node's result proves that its declared type holds it."""
    low, high = limits(graph.values[node.output].dtype)
    interval = intervals[node.output].hull
    return low <= interval.low[0] and interval.high[0] <= high


# --- sums of products -------------------------------------------------------------------------


def _product(a: Tensor, b: Tensor, largest: int) -> Tensor:
    """a @ b of int64 [..., M, K] and [..., K, N], in int64.

    largest: a bound of the magnitude of one product. A sum of 2**53 // largest products, and each
    of its partial sums, is an integer of magnitude up to 2**53: binary64 holds it, so that no
    addition rounds. The pieces are added in int64.
    """
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


def _convolution(node: _BoundedNode, index: Tensor, outside: int, zero: int) -> Function:
    """Sums of products of windows and weights, for each group of channels, plus the bias.

    index [P, T]: the position in the image that tap T of window P reads. outside: the code that
    taps outside the image read. The weights [O, KH, KW, C / groups] multiply x - zero, and all
    windows of a group are one matrix [P, T * C / groups], whose product with the transposed weights
    [T * C / groups, O / groups] `_product` takes.
    """
    groups = node.attributes["groups"]
    out = node.shape
    largest = max(node.largest(0, zero), abs(outside - zero)) * node.largest(1)

    def run(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        windows = _gathered(x - zero, index, outside - zero)
        n, p, t, c = windows.shape
        rows = windows.reshape(n, p, t, groups, c // groups).permute(0, 3, 1, 2, 4)
        rows = rows.reshape(n, groups, p, t * c // groups)
        columns = w.reshape(groups, w.shape[0] // groups, -1).transpose(1, 2)
        sums = _product(rows, columns, largest)
        return sums.permute(0, 2, 1, 3).reshape(out) + b

    return run


def _conv(node: _BoundedNode) -> Function:
    kernel = node.values[1].shape[1:3]
    index = positions(node.image(), (kernel[0], kernel[1]), node.attributes)
    return _convolution(node, node.tensor(index), node.attributes["pad_code"], 0)


def _conv_transpose(node: _BoundedNode) -> Function:
    kernel = node.values[1].shape[1:3]
    index = transposed_positions(node.image(), (kernel[0], kernel[1]), node.attributes)
    zero = node.attributes["zero"]
    return _convolution(node, node.tensor(index), zero, zero)


def _linear(node: _BoundedNode) -> Function:
    largest = node.largest(0) * node.largest(1)
    return lambda x, w, b: _product(x.unsqueeze(-2), w.T, largest).squeeze(-2) + b


def _matmul(node: _BoundedNode) -> Function:
    a_zero, b_zero = node.attributes["a_zero"], node.attributes["b_zero"]
    largest = node.largest(0, a_zero) * node.largest(1, b_zero)
    return lambda a, b: _product(a - a_zero, b - b_zero, largest)


def _affine(node: _BoundedNode) -> Function:
    return lambda x, m, b: x * m + b


def _add(node: _BoundedNode) -> Function:
    factors, offset = node.attributes["factors"], node.attributes["offset"]

    def run(*terms: Tensor) -> Tensor:
        total = terms[0] * factors[0] + offset
        for term, factor in zip(terms[1:], factors[1:], strict=True):
            total = total + term * factor
        return total

    return run


def _multiply(node: _BoundedNode) -> Function:
    a_zero, b_zero = node.attributes["a_zero"], node.attributes["b_zero"]
    return lambda a, b: (a - a_zero) * (b - b_zero)


# --- requantization and tables ----------------------------------------------------------------


def _requantize(node: _BoundedNode) -> Function:
    def tensor(array: Array) -> Tensor:
        return node.tensor(array) if node.values[0].shape else node.tensor(array)[0]

    return requantized(node.intervals[0], node.attributes, tensor)


def _table(node: _BoundedNode) -> Function:
    offset = -limits(node.values[0].dtype)[0]
    if len(node.values[1].shape) == 1:
        return lambda x, t: t[x + offset]
    channels, entries = node.values[1].shape
    row = node.tensor(np.arange(channels) * entries + offset)
    return lambda x, t: t.reshape(-1)[x + row]


def _clip(node: _BoundedNode) -> Function:
    return lambda x: x.clamp(node.attributes["low"], node.attributes["high"])


def _softmax(node: _BoundedNode) -> Function:
    """Codes of softmax along the last axis: exponentials from a table, one rounded division."""
    a = node.attributes
    if isinstance(a["ratio"], Shares):
        return _Reference(node)
    (numerator, denominator), largest = a["ratio"].as_integer_ratio(), node.largest(1)
    length, least = node.values[0].shape[-1], limits(node.values[0].dtype)[0]
    if largest * numerator >= 1 << 62 or largest * length * denominator > 1 << 62:
        return _Reference(node)  # products beyond 64 bits: only for extreme scales

    def run(x: Tensor, t: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            powers = t[x.amax(-1, keepdim=True) - x]
        else:
            below = x.masked_fill(mask == 0, least).amax(-1, keepdim=True) - x
            powers = t[below.clamp(min=0)].masked_fill(mask == 0, 0)
        sums = powers.sum(-1, keepdim=True).clamp(min=1)
        codes = quotient(powers * numerator, sums * denominator)
        return (codes + a["zero"]).clamp(a["low"], a["high"])

    return run


def _divide(node: _BoundedNode) -> Function:
    a = node.attributes
    numerator, denominator = a["ratio"].as_integer_ratio()
    if node.largest(0) * numerator >= 1 << 62 or node.largest(1) * denominator > 1 << 62:
        return _Reference(node)

    def run(x: Tensor, y: Tensor) -> Tensor:
        codes = quotient(x * numerator, y.clamp(min=1) * denominator)
        return (codes + a["zero"]).clamp(a["low"], a["high"])

    return run


def _root(node: _BoundedNode) -> Function:
    """The nearest root bit by bit, as docs/spec/graph.md 3.3 says."""
    a = node.attributes

    def run(x: Tensor) -> Tensor:
        codes = nearest_roots(x.clamp(min=0) * (4 * a["p"]), a, torch.where) + a["zero"]
        return codes.clamp(a["low"], a["high"])

    return run


def _log_softmax(node: _BoundedNode) -> Function:
    """The logarithm of each row's sum bit by bit, as docs/spec/graph.md 3.2 says."""
    a = node.attributes
    powers = node.tensor(1 << np.arange(1, 62))
    one = node.tensor(np.array(1))

    def run(x: Tensor, t: Tensor) -> Tensor:
        below = x.amax(-1, keepdim=True) - x
        total = t[below].sum(-1, keepdim=True).clamp(min=1)
        whole = (total[..., None] >= powers).sum(-1)
        mantissa = (total << (30 - whole).clamp(min=0)) >> (whole - 30).clamp(min=0)
        level = whole - FRACTION_BITS
        for _ in range(FRACTION_BITS):
            mantissa = mantissa * mantissa >> 30
            bit = mantissa >> 31
            mantissa = mantissa >> bit
            level = 2 * level + bit
        codes = quotient(-(below * a["m"] + level * a["b"]), one << a["shift"])
        return (codes + a["zero"]).clamp(a["low"], a["high"])

    return run


def _normalize(node: _BoundedNode) -> Function:
    """Vectors without their mean, over their root mean square (docs/spec/graph.md 3.1).

    The root is that of binary64, within one of the integer, and then corrected: 62-bit numbers
    have no more than 53 bits there. s counts the powers of four that V is below.
    """
    a, shape = node.attributes, node.shape
    samples, groups = math.prod(shape[: a["batch"]]), a["groups"]
    grid = (samples, -1, groups, shape[-1] // groups)
    n = vector_length(shape, a)
    powers = node.tensor(4 ** np.arange(1, 31))
    one = node.tensor(np.array(1))

    def run(x: Tensor, m: Tensor, b: Tensor) -> Tensor:
        d = (x - a["x_zero"]).reshape(grid)
        total = d.sum((1, 3), keepdim=True) * int(a["centered"])
        spread = n * (d * d).sum((1, 3), keepdim=True) - total * total + a["epsilon"]
        spread = spread.clamp(min=1)
        half = (spread[..., None] < powers).sum(-1)
        scaled = spread << 2 * half
        root = scaled.double().sqrt().long()
        root = root - (root * root > scaled).long()
        root = root + ((root + 1) * (root + 1) <= scaled).long()
        inverse = torch.div(1 << 61, root, rounding_mode="floor")
        normal = ((n * d - total) * inverse >> 37 - half).reshape(shape)
        codes = quotient(normal * m + b, one << a["shift"])
        return (codes + a["zero"]).clamp(a["low"], a["high"])

    return run


class _Reference:
    """The operator's own meaning, as the reference interpreter runs it on the host."""

    def __init__(self, node: _BoundedNode) -> None:
        self.node = node
        self.dtypes = [value.dtype for value in node.values]

    def __call__(self, *tensors: Tensor) -> Tensor:
        arrays = [x.cpu().numpy().astype(d) for x, d in zip(tensors, self.dtypes, strict=True)]
        return self.node.tensor(op_named(self.node.op).meaning(arrays, self.node.attributes)[0])


# --- pools and reductions ---------------------------------------------------------------------


def _max_pool(node: _BoundedNode) -> Function:
    index = node.tensor(positions(node.image(), node.attributes["kernel"], node.attributes))
    out = node.shape
    least = limits(node.values[0].dtype)[0]
    return lambda x: _gathered(x, index, least).amax(2).reshape(out)


def _sum_pool(node: _BoundedNode) -> Function:
    a = node.attributes
    index = node.tensor(positions(node.image(), a["kernel"], a))
    out = node.shape
    balance = balance_factors(node.image(), a)[0] if a["balance"] else np.ones(out[1:3], np.int64)
    factors = node.tensor(balance.astype(np.int64)[:, :, None])
    return lambda x: _gathered(x - a["zero"], index, 0).sum(2).reshape(out) * factors


def _reduce_sum(node: _BoundedNode) -> Function:
    a = node.attributes
    if not a["axes"]:
        return lambda x: x - a["zero"]
    return lambda x: (x - a["zero"]).sum(a["axes"], keepdim=a["keepdims"])


def _reduce(function: Callable[..., Tensor]) -> Callable[[_BoundedNode], Function]:
    def prepare(node: _BoundedNode) -> Function:
        a = node.attributes
        if not a["axes"]:
            return lambda x: x
        return lambda x: function(x, a["axes"], keepdim=a["keepdims"])

    return prepare


def _top_k(node: _BoundedNode) -> Function:
    a = node.attributes

    def run(x: Tensor) -> Tensor:
        order = torch.argsort(x, dim=a["axis"], descending=a["largest"], stable=True)
        index = order.narrow(a["axis"], 0, a["k"])
        return index if node.op == "top_k_index" else x.gather(a["axis"], index)

    return run


def _resample(node: _BoundedNode) -> Function:
    """Weighted rows, then weighted columns of them, one tap after the other; all sums are below
    2**62."""
    zero = node.attributes["zero"]

    def weighted(x: Tensor, places: Tensor, weights: Tensor, axis: int) -> Tensor:
        shape = [-1 if i == axis else 1 for i in range(4)]
        taps = zip(places.unbind(1), weights.unbind(1), strict=True)
        terms = [x.index_select(axis, at) * w.reshape(shape) for at, w in taps]
        return torch.stack(terms).sum(0)

    return lambda x, rows, w, columns, v: weighted(weighted(x - zero, rows, w, 1), columns, v, 2)


def _trees(node: _BoundedNode) -> Function:
    """All trees one branch further at a time, as often as the longest way asks; leaves refer to
    themselves."""
    trees = ensemble_of(node.arrays)
    branches = trees.branches
    levels = trees.check(node.values[0].shape[1], node.attributes["targets"])
    *tables, yes, no = trees.closed(trees.features, node.arrays[THRESHOLDS])
    features, ends = map(node.tensor, tables)
    links = node.tensor(np.stack([no, yes]))
    dense, roots = node.tensor(trees.dense(node.attributes["targets"])), node.tensor(trees.roots)

    def run(x: Tensor, *tables: Tensor) -> Tensor:
        at = roots.expand(len(x), -1)
        for _ in range(levels):
            at = links[(x.gather(1, features[at]) <= ends[at]).long(), at]
        return dense[at - branches].sum(1)

    return run


def _argmax(node: _BoundedNode) -> Function:
    a = node.attributes
    return lambda x: torch.argmax(x, a["axis"], keepdim=a["keepdims"])


# --- data movement ----------------------------------------------------------------------------


def _slice(node: _BoundedNode) -> Function:
    a = node.attributes
    parts = tuple(map(slice, a["starts"], a["stops"], a["steps"]))
    return lambda x: x[parts]


def _concat(node: _BoundedNode) -> Function:
    return lambda *tensors: torch.cat(tensors, node.attributes["axis"])


def _pad(node: _BoundedNode) -> Function:
    a = node.attributes
    out = node.shape
    inside = tuple(
        slice(before, size - after)
        for before, size, after in zip(a["before"], out, a["after"], strict=True)
    )

    def run(x: Tensor) -> Tensor:
        padded = x.new_full(out, a["code"])
        padded[inside] = x
        return padded

    return run


def _gather(node: _BoundedNode) -> Function:
    axis = node.attributes["axis"]
    n = node.values[0].shape[axis]

    def run(x: Tensor, indices: Tensor) -> Tensor:
        places = torch.where(indices < 0, indices + n, indices).clamp(0, n - 1)
        return x.index_select(axis, places)

    return run


def _scatter(node: _BoundedNode) -> Function:
    axis = node.attributes["axis"]
    x, update, _ = node.values
    n, steps = x.shape[axis], torch.arange(update.shape[axis], device="cpu")
    ahead = [1] * len(x.shape)

    def run(past: Tensor, written: Tensor, starts: Tensor) -> Tensor:
        at = (starts[:, None].long() % n + steps.to(starts.device)) % n
        shape = [*ahead]
        shape[0], shape[axis] = at.shape
        return past.scatter(axis, at.reshape(shape).expand(update.shape), written)

    return run


_PREPARE: dict[str, Callable[[_BoundedNode], Function]] = {
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
    "maximum": lambda node: torch.maximum,
    "minimum": lambda node: torch.minimum,
    "softmax": _softmax,
    "divide": _divide,
    "root": _root,
    "log_softmax": _log_softmax,
    "normalize": _normalize,
    "argmax": _argmax,
    "top_k": _top_k,
    "top_k_index": _top_k,
    "resample": _resample,
    "tree_ensemble": _trees,
    "reshape": lambda node: lambda x: x.reshape(node.attributes["shape"]),
    "transpose": lambda node: lambda x: x.permute(node.attributes["perm"]),
    "expand": lambda node: lambda x: x.expand(node.attributes["shape"]),
    "slice": _slice,
    "concat": _concat,
    "pad": _pad,
    "gather": _gather,
    "scatter": _scatter,
}
