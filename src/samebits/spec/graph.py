"""Section 3 of docs/spec/graph.md restated in plain loops over Python integers.

Written from the specification alone: one function per integer operator, (arrays, attributes) ->
array of Python integers (dtype object). Nothing wraps, nothing is vectorised; the dtype of the
result is the operator's business, not this file's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.spec.fixed import Shares
from samebits.spec.rounding import code_of
from samebits.spec.vectors import logarithm, normalized, shares

Array = np.ndarray[Any, Any]
Attributes = Mapping[str, Any]

# Codes of a type.
_TYPES = ((8, False), (8, True), (16, False), (16, True), (32, False), (64, False))
LEAST = {f"{'u' * unsigned}int{n}": 0 if unsigned else -(2 ** (n - 1)) for n, unsigned in _TYPES}
GREATEST = {f"{'u' * unsigned}int{n}": 2 ** (n - 1 + unsigned) - 1 for n, unsigned in _TYPES}


def rne(value: Fraction) -> int:
    """Nearest integer, ties to even."""
    below = value.numerator // value.denominator
    rest = value - below
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2 == 1):
        return below + 1
    return below


def _clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def _empty(shape: Sequence[int]) -> Array:
    return np.empty(tuple(shape), dtype=object)


def _places(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return np.ndindex(*shape)


def _at(array: Array, place: tuple[int, ...]) -> int:
    """The element that broadcasting reads at `place` of the result."""
    own = place[len(place) - array.ndim :]
    return int(array[tuple(0 if n == 1 else i for i, n in zip(own, array.shape, strict=True))])


def _common(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that `shapes` broadcast to: 1 gives way, from the last axis on."""
    rank = max(map(len, shapes))
    out = []
    for axis in range(rank):
        sizes = {
            shape[axis - rank + len(shape)] for shape in shapes if axis - rank + len(shape) >= 0
        }
        sizes.discard(1)
        assert len(sizes) < 2, shapes
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


def _windows(size: int, kernel: int, stride: int, pads: int, dilation: int) -> int:
    """Number of windows that fit into the padded axis."""
    reach = (kernel - 1) * dilation + 1
    count = 0
    while count * stride + reach <= size + pads:
        count += 1
    return count


# --- products -------------------------------------------------------------------------------


def conv(arrays: Sequence[Array], a: Attributes) -> Array:
    """Sums w * x + b over windows of x [N, H, W, C]; outside the image x reads `pad_code`."""
    x, w, b = arrays
    batch, height, width, _ = x.shape
    filters, rows, columns, per_group = w.shape
    (stride_y, stride_x), (dil_y, dil_x) = a["strides"], a["dilations"]
    top, left, bottom, right = a["pads"]
    high = _windows(height, rows, stride_y, top + bottom, dil_y)
    wide = _windows(width, columns, stride_x, left + right, dil_x)
    out = _empty((batch, high, wide, filters))
    for n, i, j, o in _places(out.shape):
        first = o // (filters // a["groups"]) * per_group
        total = int(b[o])
        for p, q, c in _places((rows, columns, per_group)):
            y, z = i * stride_y + p * dil_y - top, j * stride_x + q * dil_x - left
            inside = 0 <= y < height and 0 <= z < width
            code = int(x[n, y, z, first + c]) if inside else a["pad_code"]
            total += int(w[o, p, q, c]) * code
        out[n, i, j, o] = total
    return out


def conv_transpose(arrays: Sequence[Array], a: Attributes) -> Array:
    """Sums w * (x - zero) + b at the output positions that each tap of each position reaches."""
    x, w, b = arrays
    filters, rows, columns, per_group = w.shape
    (stride_y, stride_x), (dil_y, dil_x) = a["strides"], a["dilations"]
    top, left = a["pads"][0], a["pads"][1]
    high, wide = a["size"]
    out = _empty((x.shape[0], high, wide, filters))
    for n, r, s, o in _places(out.shape):
        first = o // (filters // a["groups"]) * per_group
        total = int(b[o])
        for i, j, p, q in _places((x.shape[1], x.shape[2], rows, columns)):
            if i * stride_y + p * dil_y - top != r or j * stride_x + q * dil_x - left != s:
                continue
            for c in range(per_group):
                total += int(w[o, p, q, c]) * (int(x[n, i, j, first + c]) - a["zero"])
        out[n, r, s, o] = total
    return out


def linear(arrays: Sequence[Array], a: Attributes) -> Array:
    """Sums w * x + b over the last axis: x [..., K], w [O, K], b [O]."""
    x, w, b = arrays
    out = _empty((*x.shape[:-1], w.shape[0]))
    for *place, o in _places(out.shape):
        terms = (int(w[o, k]) * int(x[(*place, k)]) for k in range(w.shape[1]))
        out[(*place, o)] = int(b[o]) + sum(terms)
    return out


def matmul(arrays: Sequence[Array], a: Attributes) -> Array:
    """Sums (a - a_zero) * (b - b_zero): a [..., M, K], b [..., K, N], leading axes broadcast."""
    left, right = arrays
    inner = left.shape[-1]
    leading = _common(left.shape[:-2], right.shape[:-2])
    out = _empty((*leading, left.shape[-2], right.shape[-1]))
    for *place, m, n in _places(out.shape):
        out[(*place, m, n)] = sum(
            (_at_matrix(left, place, m, k) - a["a_zero"])
            * (_at_matrix(right, place, k, n) - a["b_zero"])
            for k in range(inner)
        )
    return out


def _at_matrix(array: Array, place: Sequence[int], row: int, column: int) -> int:
    own = tuple(place)[len(place) - (array.ndim - 2) :] if array.ndim > 2 else ()
    leading = tuple(0 if n == 1 else i for i, n in zip(own, array.shape[:-2], strict=True))
    return int(array[(*leading, row, column)])


def affine(arrays: Sequence[Array], a: Attributes) -> Array:
    """x * m + b, with m and b [C] along the last axis."""
    x, m, b = arrays
    out = _empty(x.shape)
    for place in _places(x.shape):
        out[place] = int(x[place]) * int(m[place[-1]]) + int(b[place[-1]])
    return out


def add(arrays: Sequence[Array], a: Attributes) -> Array:
    """The sum of factors[i] * x_i, plus `offset`, broadcast."""
    out = _empty(_common(*(x.shape for x in arrays)))
    for place in _places(out.shape):
        terms = (f * _at(x, place) for f, x in zip(a["factors"], arrays, strict=True))
        out[place] = sum(terms) + a["offset"]
    return out


def multiply(arrays: Sequence[Array], a: Attributes) -> Array:
    """(a - a_zero) * (b - b_zero), broadcast."""
    left, right = arrays
    out = _empty(_common(left.shape, right.shape))
    for place in _places(out.shape):
        out[place] = (_at(left, place) - a["a_zero"]) * (_at(right, place) - a["b_zero"])
    return out


# --- codes to codes -------------------------------------------------------------------------


def requantize(arrays: Sequence[Array], a: Attributes) -> Array:
    """x rounded to a code, plus zero, clipped to [low, high]; by a ratio it is rne(x * ratio). One
    rounding, or one for each channel."""
    (acc,) = arrays
    ratios = a["ratios"]
    out = _empty(acc.shape)
    for place in _places(acc.shape):
        ratio = ratios[place[-1]] if len(ratios) > 1 else ratios[0]
        out[place] = _clamp(code_of(int(acc[place]), ratio) + a["zero"], a["low"], a["high"])
    return out


def root(arrays: Sequence[Array], a: Attributes) -> Array:
    """rne(sqrt(x * p / q)) + zero, clipped; the root of the exact rational, of 0 where x < 0."""
    (acc,) = arrays
    out = _empty(acc.shape)
    for place in _places(acc.shape):
        square = Fraction(max(int(acc[place]), 0) * a["p"], a["q"])
        below = math.isqrt(square.numerator // square.denominator)
        middle = Fraction(2 * below + 1, 2) ** 2
        up = square > middle or (square == middle and below % 2 == 1)
        out[place] = _clamp(below + up + a["zero"], a["low"], a["high"])
    return out


def table(arrays: Sequence[Array], a: Attributes) -> Array:
    """t[x - min(type of x)]; with t [C, E], row c for channel c."""
    x, t = arrays
    least = LEAST[x.dtype.name]
    out = _empty(x.shape)
    for place in _places(x.shape):
        row = t if t.ndim == 1 else t[place[-1]]
        out[place] = int(row[int(x[place]) - least])
    return out


def clip(arrays: Sequence[Array], a: Attributes) -> Array:
    """x clipped to [low, high]."""
    (x,) = arrays
    out = _empty(x.shape)
    for place in _places(x.shape):
        out[place] = _clamp(int(x[place]), a["low"], a["high"])
    return out


def divide(arrays: Sequence[Array], a: Attributes) -> Array:
    """x * ratio / y, rounded once, as codes; y is at least 1."""
    x, y = arrays
    out = _empty(_common(x.shape, y.shape))
    for place in _places(out.shape):
        quotient = _at(x, place) * Fraction(a["ratio"]) / max(_at(y, place), 1)
        out[place] = _clamp(rne(quotient) + a["zero"], a["low"], a["high"])
    return out


def softmax(arrays: Sequence[Array], a: Attributes) -> Array:
    """Shares of P_j = t[max x - x_j] in their sum, as codes: rounded once, then clipped; none where
    the mask is 0. By a reciprocal in fixed point where the ratio is one."""
    x, t, *rest = arrays
    mask = rest[0] if rest else np.ones(1, np.uint8)
    out = _empty(x.shape)
    for place in _places(x.shape[:-1]):
        row = {j: int(code) for j, code in enumerate(x[place]) if _at(mask, (*place, j))}
        if isinstance(a["ratio"], Shares):
            powers = [int(t[max(row.values()) - code]) for code in row.values()]
            total = sum(a["ratio"].part(power) for power in powers)
            found = [a["ratio"].codes(power, total) for power in powers]
        else:
            found = shares(row, [int(v) for v in t], a["ratio"], range(x.shape[-1]))
        for j, share in enumerate(found):
            out[(*place, j)] = _clamp(share + a["zero"], a["low"], a["high"])
    return out


def log_softmax(arrays: Sequence[Array], a: Attributes) -> Array:
    """Less the distance from the greatest code and the logarithm of the sum of the P_j, as codes:
    section 3.2."""
    x, t = arrays
    out = _empty(x.shape)
    for place in _places(x.shape[:-1]):
        row = [int(code) for code in x[place]]
        below = [max(row) - code for code in row]
        level = logarithm(max(sum(int(t[d]) for d in below), 1)) - 24 * 2**24
        for j, d in enumerate(below):
            value = Fraction(-(d * a["m"] + level * a["b"]), 2 ** a["shift"])
            out[(*place, j)] = _clamp(rne(value) + a["zero"], a["low"], a["high"])
    return out


def normalize(arrays: Sequence[Array], a: Attributes) -> Array:
    """x without its mean (if `centered`), over its root mean square, times m + b: section 3.1."""
    x, m, b = arrays
    batch, groups, channels = a["batch"], a["groups"], x.shape[-1]
    out = _empty(x.shape)
    vectors: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for place in _places(x.shape):
        group = place[-1] // (channels // groups)
        vectors.setdefault((*place[:batch], group), []).append(place)
    for places in vectors.values():
        codes = [int(x[place]) - a["x_zero"] for place in places]
        normals = normalized(codes, a["centered"], a["epsilon"])
        for place, normal in zip(places, normals, strict=True):
            value = Fraction(normal * int(m[place[-1]]) + int(b[place[-1]]), 2 ** a["shift"])
            out[place] = _clamp(rne(value) + a["zero"], a["low"], a["high"])
    return out


# --- pools, reductions, comparisons ---------------------------------------------------------


def _pooled(x: Array, a: Attributes) -> tuple[Array, Callable[[int, int, int, int], list[int]]]:
    """The empty result, and the codes of a window that lie inside the image."""
    batch, height, width, channels = x.shape
    (rows, columns), (stride_y, stride_x) = a["kernel"], a["strides"]
    top, left, bottom, right = a["pads"]
    dil_y, dil_x = a["dilations"]
    high = _windows(height, rows, stride_y, top + bottom, dil_y)
    wide = _windows(width, columns, stride_x, left + right, dil_x)

    def window(n: int, i: int, j: int, c: int) -> list[int]:
        codes = []
        for p, q in _places((rows, columns)):
            y, z = i * stride_y - top + p * dil_y, j * stride_x - left + q * dil_x
            if 0 <= y < height and 0 <= z < width:
                codes.append(int(x[n, y, z, c]))
        return codes

    return _empty((batch, high, wide, channels)), window


def max_pool(arrays: Sequence[Array], a: Attributes) -> Array:
    """The maximum over the positions of each window that lie inside the image."""
    out, window = _pooled(arrays[0], a)
    for place in _places(out.shape):
        out[place] = max(window(*place))
    return out


def sum_pool(arrays: Sequence[Array], a: Attributes) -> Array:
    """The sum of x - zero over those positions; with `balance`, times L / count."""
    out, window = _pooled(arrays[0], a)
    common = math.lcm(*(len(window(*place)) for place in _places(out.shape)))
    for place in _places(out.shape):
        codes = window(*place)
        total = sum(code - a["zero"] for code in codes)
        out[place] = total * (common // len(codes)) if a["balance"] else total
    return out


def _reduced(x: Array, axes: Sequence[int], keepdims: bool, f: Callable[[list[int]], int]) -> Array:
    """f of the elements along `axes`, in row-major order, for every place of the other axes."""
    axes = [axis % x.ndim for axis in axes]
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    if keepdims:
        out = _empty([1 if axis in axes else n for axis, n in enumerate(x.shape)])
    else:
        out = _empty([x.shape[axis] for axis in kept])
    groups: dict[tuple[int, ...], list[int]] = {}
    for place in _places(x.shape):
        if keepdims:
            target = tuple(0 if axis in axes else i for axis, i in enumerate(place))
        else:
            target = tuple(place[axis] for axis in kept)
        groups.setdefault(target, []).append(int(x[place]))
    for target, codes in groups.items():
        out[target] = f(codes)
    return out


def reduce_sum(arrays: Sequence[Array], a: Attributes) -> Array:
    """The sum of x - zero over `axes`."""
    return _reduced(
        arrays[0], a["axes"], a["keepdims"], lambda codes: sum(code - a["zero"] for code in codes)
    )


def reduce_max(arrays: Sequence[Array], a: Attributes) -> Array:
    """The maximum over `axes`."""
    return _reduced(arrays[0], a["axes"], a["keepdims"], max)


def reduce_min(arrays: Sequence[Array], a: Attributes) -> Array:
    """The minimum over `axes`."""
    return _reduced(arrays[0], a["axes"], a["keepdims"], min)


def argmax(arrays: Sequence[Array], a: Attributes) -> Array:
    """The first index of the maximum along `axis`."""
    return _reduced(arrays[0], (a["axis"],), a["keepdims"], lambda codes: codes.index(max(codes)))


def _ranked(x: Array, a: Attributes, f: Callable[[list[int], int], int]) -> Array:
    """f(codes, i) of the k places i that rank first along `axis`, of equals the lower first."""
    axis, k = a["axis"] % x.ndim, a["k"]
    out = _empty([k if i == axis else n for i, n in enumerate(x.shape)])
    for place in _places([1 if i == axis else n for i, n in enumerate(x.shape)]):
        line = [int(x[(*place[:axis], i, *place[axis + 1 :])]) for i in range(x.shape[axis])]
        order = sorted(range(len(line)), key=lambda i: (-line[i] if a["largest"] else line[i], i))
        for i in range(k):
            out[(*place[:axis], i, *place[axis + 1 :])] = f(line, order[i])
    return out


def top_k(arrays: Sequence[Array], a: Attributes) -> Array:
    """The k greatest or least codes along `axis`, in order."""
    return _ranked(arrays[0], a, lambda line, i: line[i])


def top_k_index(arrays: Sequence[Array], a: Attributes) -> Array:
    """Where they lie."""
    return _ranked(arrays[0], a, lambda line, i: i)


def resample(arrays: Sequence[Array], a: Attributes) -> Array:
    """Sums of w * v * (x - zero) over the rows and columns that an output reads, of weights w for
    each row and v for each column."""
    x, rows, w, columns, v = arrays
    batch, _, _, channels = x.shape
    out = _empty((batch, len(rows), len(columns), channels))
    for n, r, s, c in _places(out.shape):
        out[n, r, s, c] = sum(
            int(w[r, p]) * int(v[s, q]) * (int(x[n, rows[r, p], columns[s, q], c]) - a["zero"])
            for p, q in _places((rows.shape[1], columns.shape[1]))
        )
    return out


def tree_ensemble(arrays: Sequence[Array], a: Attributes) -> Array:
    """Sums of the weights of leaves that the rows of x [N, F] reach, one leaf in each tree."""
    x, roots, features, thresholds, yes, no, first, weights = arrays
    out = _empty((x.shape[0], a["targets"]))
    for n in range(x.shape[0]):
        sums = [0] * a["targets"]
        for root in roots:
            at = int(root)
            while at < len(features):
                small = int(x[n, int(features[at])]) <= int(thresholds[at])
                at = int(yes[at]) if small else int(no[at])
            leaf = at - len(features)
            for j in range(weights.shape[1]):
                sums[int(first[leaf]) + j] += int(weights[leaf, j])
        for k, total in enumerate(sums):
            out[n, k] = total
    return out


def maximum(arrays: Sequence[Array], a: Attributes) -> Array:
    """The larger of a and b, broadcast."""
    left, right = arrays
    out = _empty(_common(left.shape, right.shape))
    for place in _places(out.shape):
        out[place] = max(_at(left, place), _at(right, place))
    return out


def minimum(arrays: Sequence[Array], a: Attributes) -> Array:
    """The smaller of a and b, broadcast."""
    left, right = arrays
    out = _empty(_common(left.shape, right.shape))
    for place in _places(out.shape):
        out[place] = min(_at(left, place), _at(right, place))
    return out


# --- data movement --------------------------------------------------------------------------


def reshape(arrays: Sequence[Array], a: Attributes) -> Array:
    """The same elements in row-major order in another shape."""
    codes = [int(arrays[0][place]) for place in _places(arrays[0].shape)]
    out = _empty(a["shape"])
    for code, place in zip(codes, _places(a["shape"]), strict=True):
        out[place] = code
    return out


def transpose(arrays: Sequence[Array], a: Attributes) -> Array:
    """Axis i of the result is axis perm[i] of x."""
    (x,) = arrays
    out = _empty([x.shape[axis] for axis in a["perm"]])
    for place in _places(x.shape):
        out[tuple(place[axis] for axis in a["perm"])] = int(x[place])
    return out


def expand(arrays: Sequence[Array], a: Attributes) -> Array:
    """x broadcast to `shape`."""
    out = _empty(a["shape"])
    for place in _places(out.shape):
        out[place] = _at(arrays[0], place)
    return out


def slice_(arrays: Sequence[Array], a: Attributes) -> Array:
    """From `starts` up to `stops` by `steps`, axis by axis."""
    (x,) = arrays
    taken = [
        list(range(start, stop, step))
        for start, stop, step in zip(a["starts"], a["stops"], a["steps"], strict=True)
    ]
    out = _empty([len(indices) for indices in taken])
    for place in _places(out.shape):
        out[place] = int(x[tuple(t[i] for t, i in zip(taken, place, strict=True))])
    return out


def concat(arrays: Sequence[Array], a: Attributes) -> Array:
    """The inputs one after the other along `axis`."""
    axis = a["axis"] % arrays[0].ndim
    shape = list(arrays[0].shape)
    shape[axis] = sum(x.shape[axis] for x in arrays)
    out, start = _empty(shape), 0
    for x in arrays:
        for place in _places(x.shape):
            target = list(place)
            target[axis] += start
            out[tuple(target)] = int(x[place])
        start += x.shape[axis]
    return out


def pad(arrays: Sequence[Array], a: Attributes) -> Array:
    """x with `before` and `after` positions of `code` around it."""
    (x,) = arrays
    sizes = zip(a["before"], x.shape, a["after"], strict=True)
    out = _empty([before + n + after for before, n, after in sizes])
    for place in _places(out.shape):
        source = tuple(i - before for i, before in zip(place, a["before"], strict=True))
        inside = all(0 <= i < n for i, n in zip(source, x.shape, strict=True))
        out[place] = int(x[source]) if inside else a["code"]
    return out


def gather(arrays: Sequence[Array], a: Attributes) -> Array:
    """The positions `indices` of `axis`, from its end below 0; outside: the first or the last."""
    x, indices = arrays
    axis = a["axis"] % x.ndim
    n = x.shape[axis]
    places = [_clamp(int(i) + n if i < 0 else int(i), 0, n - 1) for i in indices]
    shape = list(x.shape)
    shape[axis] = len(places)
    out = _empty(shape)
    for place in _places(shape):
        source = list(place)
        source[axis] = places[place[axis]]
        out[place] = int(x[tuple(source)])
    return out


def scatter(arrays: Sequence[Array], a: Attributes) -> Array:
    """x, where position (starts[n] + k) mod size of `axis` of sample n is position k of update."""
    x, update, starts = arrays
    axis, size = a["axis"], x.shape[a["axis"]]
    out = _empty(x.shape)
    for place in _places(x.shape):
        out[place] = int(x[place])
    for place in _places(update.shape):
        target = list(place)
        target[axis] = (int(starts[place[0]]) + place[axis]) % size
        out[tuple(target)] = int(update[place])
    return out


_ALL = (
    *(conv, conv_transpose, linear, matmul, affine, add, multiply, requantize, table, clip),
    *(divide, root),
    *(softmax, normalize, max_pool, sum_pool, reduce_sum, reduce_max, reduce_min, argmax),
    *(maximum, minimum, log_softmax, top_k, top_k_index, resample),
    *(reshape, transpose, expand, slice_, concat, pad, gather, scatter, tree_ensemble),
)
REFERENCE: dict[str, Callable[[Sequence[Array], Attributes], Array]] = {
    operator.__name__.rstrip("_"): operator for operator in _ALL
}
