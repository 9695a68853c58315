"""Deployed arithmetic in plain Python integers and rationals (docs/spec/training.md section 11).

Nets are those of `spec.training.step`, with `narrow` (the rounding of a 32-bit value) as a node of
its own, as is `narrow16`; the attribute `codes` of a `table` gives its 256 codes for (e_x, e_site),
`powers` of a `softmax` its exponentials for (e_x, entries). A linear or conv2d that a layer takes
is a site; one that ends the net, or that `narrow` or `narrow16` alone take, has 32 bits. An input
without a frozen exponent is indices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product

from samebits.spec import formats
from samebits.spec.formats import power
from samebits.spec.training import deploy_attention as wide
from samebits.spec.training import layers, moves, pointwise, pooling, rows, transposed
from samebits.spec.training.layers import Array, Geometry, Pair, Parameter, channel_of
from samebits.spec.training.norm import coded
from samebits.spec.training.rows import each
from samebits.spec.training.step import (
    MOVES,
    Buffers,
    Net,
    Node,
    Parameters,
    geometry_of,
    is_wide,
    means_of,
    moved,
    needed,
    pair,
    parameter_name,
    pooling_of,
    taken_by_layers,
)


def sat8(value: Fraction) -> int:
    """rne, then saturate to [-128, 127]."""
    return wide.saturated(value, 8)


def evaluate(
    net: Net,
    parameters: Parameters,
    buffers: Buffers,
    images: Sequence[float],
    shape: tuple[int, ...],
    exponents: Mapping[str, int],
) -> dict[str, Array]:
    """Every node's output; `exponents` are the frozen ones of the nodes that round."""
    done: dict[str, Array] = {}
    norms = joined_norms(net)
    part = {norm.name: name for name, norm in norms.items()}
    taken = taken_by_layers([node for node in net if node.op not in ("narrow", "narrow16")], ())
    for node in net:
        x = [done[name] for name in node.inputs]
        site = exponents.get(node.name, 0)
        if node.op == "input" and node.name not in exponents:
            done[node.name] = Array([int(i) for i in images], shape, 0, 32)
        elif node.op == "input":
            codes = [sat8(r / power(site)) for r in formats.reals(images)]
            done[node.name] = Array(codes, shape, site, 8)
        elif node.op in ("layer_norm", "rms_norm", "group_norm", "own", "embedding"):
            done[node.name] = _of_vectors(node, x, site, parameters)
        elif node.name in part:
            done[node.name] = done[part[node.name]]
        elif node.op in ("linear", "conv2d", "conv_transpose2d", "batch_norm"):
            norm = norms.get(node.name)
            at = exponents[norm.name] if norm is not None else site
            rounds = node.name in taken
            done[node.name] = _with_parameters(node, x[0], at, rounds, parameters, buffers, norm)
        else:
            done[node.name] = _without(node, x, site)
    return done


def joined_norms(net: Net) -> dict[str, Node]:
    """The batch norm behind a product, which nothing else reads: one operation with it."""
    products = {
        node.name
        for node in net
        if node.op in ("linear", "conv2d")
        or (node.op == "conv_transpose2d" and (geometry_of(node) or Geometry()).groups == 1)
    }
    readers: dict[str, list[Node]] = {}
    for node in net:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    return {
        name: found[0]
        for name, found in readers.items()
        if name in products and [node.op for node in found] == ["batch_norm"]
    }


def _with_parameters(
    node: Node,
    x: Array,
    site: int,
    rounds: bool,
    parameters: Parameters,
    buffers: Buffers,
    norm: Node | None,
) -> Array:
    """The output of a product, with the batch norm that is part of it, or of a batch norm."""
    weight = parameters[parameter_name(node, "weight")]
    bias = parameters.get(parameter_name(node, "bias"))
    if node.op == "batch_norm":
        return batch_norm(x, *scalars(node, parameters, buffers), site)
    affine = None if norm is None else scalars(norm, parameters, buffers)
    if node.op == "conv_transpose2d":
        geometry, extra = geometry_of(node) or Geometry(), pair(node.attributes["output_padding"])
        at = site if rounds else None
        return transposed_products(x, weight, bias, geometry, extra, at, affine)
    return products(x, weight, bias, geometry_of(node), site if rounds else None, affine)


Scalars = tuple[list[float], list[float]]


def scalars(node: Node, parameters: Parameters, buffers: Buffers) -> Scalars:
    """The scale and the shift of every channel of a batch norm by running statistics, in binary64
    as section 5 writes them."""
    gamma, beta = (parameters[parameter_name(node, name)] for name in ("weight", "bias"))
    means, variances = (buffers[f"{node.name}.running_{name}"] for name in ("mean", "var"))
    eps, scale, shift = node.attributes.get("eps", 1e-5), [], []
    for g, b, mean, var in zip(gamma.values, beta.values, means, variances, strict=True):
        a = g * (1.0 / math.sqrt(var + eps))
        scale.append(a)
        shift.append(b - mean * a)
    return scale, shift


def _of_vectors(node: Node, x: list[Array], site: int, parameters: Parameters) -> Array:
    """A norm of vectors, a parameter of a user's module, or rows of an embedding."""
    weight = parameters.get(parameter_name(node, "weight"))
    if node.op in ("own", "embedding"):
        table = wide.entered(needed(weight))
        return table if node.op == "own" else rows_of(table, x[0])
    bias, a = parameters.get(parameter_name(node, "bias")), node.attributes
    kind = (node.op != "rms_norm", a.get("groups"))
    return wide.layer_norm(x[0], weight, bias, a.get("eps", 1e-5), site, *kind)


def rows_of(table: Array, index: Array) -> Array:
    """Rows of a table [count, d] at indices [...]."""
    d = table.shape[1]
    codes = [c for i in index.codes for c in table.codes[i * d : (i + 1) * d]]
    return replace(table, codes=codes, shape=(*index.shape, d))


def products(
    x: Array,
    weight: Parameter,
    bias: Parameter | None,
    geometry: Geometry | None,
    site: int | None,
    affine: Scalars | None = None,
) -> Array:
    """Linear (no geometry) or Conv2d; the sums themselves, at one exponent, without a site.

    affine: of the batch norm that is part of it
    """
    outputs = weight.shape[0]
    if geometry is None:
        shape: tuple[int, ...] = (*x.shape[:-1], outputs)
        channels = [i % outputs for i in range(math.prod(shape))]
    else:
        shape = layers.conv_shape(x.shape, weight.shape, geometry)
        channels = channel_of(shape)
    taps = layers.taps_of(x, weight, geometry)
    own = each(weight.exponent, outputs)
    return _sums(x, weight.codes, own, bias, shape, channels, taps, site, affine)


def transposed_products(
    x: Array,
    weight: Parameter,
    bias: Parameter | None,
    geometry: Geometry,
    extra: Pair,
    site: int | None,
    affine: Scalars | None = None,
) -> Array:
    """ConvTranspose2d: the same with weights whose output channels have exponents. Section 14.7."""
    shape = transposed.output_shape(x.shape, weight.shape, geometry, extra)
    inputs, per_group, *window = weight.shape
    size, outputs = math.prod(window), per_group * geometry.groups
    # Of every weight its output channel, and its place behind those of the channels before.
    channels, places = [], []
    for i, o, t in product(range(inputs), range(per_group), range(size)):
        group, inside = divmod(i, inputs // geometry.groups)
        channels.append(group * per_group + o)
        places.append((channels[-1] * (inputs // geometry.groups) + inside) * size + t)
    codes, own = weight.codes, each(weight.exponent, outputs)
    if not isinstance(weight.exponent, int):
        exponents = layers.by_output(weight, [i // (per_group * size) for i in range(len(codes))])
        of = channels if geometry.groups == 1 else [0] * len(codes)
        codes, found = rows.requantize(codes, exponents, of, 8)
        own = tuple(dict(zip(channels, found, strict=True))[o] for o in range(outputs))
    taps = ((o, i, places[w]) for o, i, w in transposed.taps(shape, weight, geometry))
    placed = [codes[p] for p in moves.inverse(places)]
    return _sums(x, placed, own, bias, shape, channel_of(shape), taps, site, affine)


def _sums(
    x: Array,
    codes: Sequence[int],
    exponents: Sequence[int],
    bias: Parameter | None,
    shape: tuple[int, ...],
    channels: Sequence[int],
    taps: Iterable[layers.Tap],
    site: int | None,
    affine: Scalars | None,
) -> Array:
    """The sums of weights [O, ...], whose output channels have these exponents, at a site."""
    grids = tuple(x.one_exponent + e for e in exponents)
    biases = [0 * power(0)] * len(grids) if bias is None else wide.real_values(bias)
    factors = [power(0)] * len(grids)
    if affine is not None:
        codes, biases, factors = normed(codes, biases, affine)
        codes, grids = own_grids(codes, grids, biases, bounded=False)
    else:
        codes, grids = (one_grid if site is None else own_grids)(codes, grids, biases)
    offsets = offsets_of(biases, grids)
    acc = [offsets[c] for c in channels]
    for o, i, w in taps:
        acc[o] += x.codes[i] * codes[w]
    own = [grids[c] for c in channels]
    if site is None:
        common = min(grids)
        return Array([a << (e - common) for a, e in zip(acc, own, strict=True)], shape, common, 32)
    terms = zip(acc, own, channels, strict=True)
    rounded = [sat8(a * factors[c] * power(e - site)) for a, e, c in terms]
    return Array(rounded, shape, site, 8)


def normed(
    codes: Sequence[int], biases: Sequence[Fraction], affine: Scalars
) -> tuple[list[int], list[Fraction], list[Fraction]]:
    """Weights [O, ...] and biases of sums that a batch norm follows, and what is left of it: the
    magnitudes of its scales as binary32 numbers."""
    inner = len(codes) // len(biases)
    weights, offsets, factors = [], [], []
    for o, (scale, shift) in enumerate(zip(*affine, strict=True)):
        factor = formats.round_binary32(Fraction(abs(scale)))
        sign = 0 if factor < power(-126) else -1 if scale < 0 else 1
        factors.append(factor if sign else power(0))
        weights += [sign * w for w in codes[o * inner : (o + 1) * inner]]
        offsets.append(sign * biases[o] + Fraction(shift) / factors[o])
    return weights, offsets, factors


Grids = tuple[int, ...]  # the exponents of the sums of every output channel


def offsets_of(biases: Sequence[Fraction], grids: Grids) -> list[int]:
    """The bias of every output channel on the grid of its sums."""
    return [formats.round_real(v / power(grid)) for v, grid in zip(biases, grids, strict=True)]


def reaches(codes: Sequence[int], grids: Grids, biases: Sequence[Fraction]) -> list[int]:
    """128 * sum |w| + |b| of every output channel."""
    inner = len(codes) // len(grids)
    sums = [sum(map(abs, codes[o * inner : (o + 1) * inner])) for o in range(len(grids))]
    return [128 * s + abs(b) for s, b in zip(sums, offsets_of(biases, grids), strict=True)]


def raised(codes: Sequence[int], grids: Grids, to: Grids) -> list[int]:
    """Weights of channels whose grids become coarser ones."""
    inner = len(codes) // len(grids)
    return [formats.scaled(w, grids[i // inner] - to[i // inner]) for i, w in enumerate(codes)]


def own_grids(
    codes: Sequence[int], grids: Grids, biases: Sequence[Fraction], bounded: bool = True
) -> tuple[list[int], Grids]:
    """Weights and grids of sums that fit 32 bits, channels that do not fit theirs raised.

    Raises OverflowError where one fits none up to the coarsest, if grids are bounded by it.
    """
    to = grids
    while True:
        found = raised(codes, grids, to)
        over = [r >= 1 << 31 for r in reaches(found, to, biases)]
        if not any(over):
            return found, to
        to = tuple(grid + o for grid, o in zip(to, over, strict=True))
        if bounded and max(to) > max(grids):
            raise OverflowError("expected sums that fit 32 bits")


def one_grid(
    codes: Sequence[int], grids: Grids, biases: Sequence[Fraction]
) -> tuple[list[int], Grids]:
    """Weights and grids of sums that 32 bits hold on the finest of these grids.

    Channels that are too fine for that are raised to it. Raises OverflowError where the coarsest
    does not fit.
    """
    for common in range(min(grids), max(grids) + 1):
        to = tuple(max(grid, common) for grid in grids)
        found = raised(codes, grids, to)
        reach = reaches(found, to, biases)
        if all(max(r, 1) << (e - common) < 1 << 31 for r, e in zip(reach, to, strict=True)):
            return found, to
    raise OverflowError("expected sums that fit 32 bits")


def batch_norm(z: Array, scale: list[float], shift: list[float], site: int) -> Array:
    """By running statistics, whose scale and shift of every channel are given."""
    alpha = [math.ldexp(a, z.one_exponent) for a in scale]
    bound = max(128.0 * abs(m) + abs(b) for m, b in zip(alpha, shift, strict=True))
    if bound == 0:
        return Array([0] * len(z.codes), z.shape, site, 8)
    e = formats.fits(bound, 23)
    ms, bs = [coded(v, e) for v in alpha], [coded(v, e) for v in shift]
    acc = [code * ms[c] + bs[c] for code, c in zip(z.codes, channel_of(z.shape), strict=True)]
    return Array([sat8(v * power(e - site)) for v in acc], z.shape, site, 8)


def _without(node: Node, x: list[Array], site: int) -> Array:
    """The output of an operator without parameters; `site` is the frozen exponent if it rounds."""
    first, exponent, shape = x[0], x[0].one_exponent, x[0].shape
    match node.op:
        case "relu" | "relu6":
            return pointwise.clamp(first, pointwise.CLIPS[node.op])[0]
        case "table":
            table = node.attributes["codes"](exponent, site)
            return Array([table[c + 128] for c in first.codes], shape, site, 8)
        case "max_pool":
            return pooling.max_pool(first, *pooling_of(node, shape))[0]
        case "avg_pool" | "adaptive_avg_pool" | "global_avg_pool":
            shape, members, divisors = means_of(node, shape)
            sums = [sum(first.codes[i] for i in m) for m in members]
            unit = power(exponent - site)
            codes = [sat8(total * unit / d) for total, d in zip(sums, divisors, strict=True)]
            return Array(codes, shape, site, 8)
        case "interpolate":
            size, corners = node.attributes["size"], node.attributes.get("corners", False)
            acc, shape, by, _ = pooling.weighted_sums(first, size, corners)
            unit = power(exponent - site) / by
            return Array([sat8(total * unit) for total in acc], shape, site, 8)
        case "add" if is_wide(*x):
            return wide.added(*x)
        case "scale" if is_wide(*x):
            return wide.scaled(first, node.attributes["factor"])
        case "multiply" if is_wide(*x):
            return wide.multiplied(*x)
        case "matmul":
            return wide.matmul(x[0], x[1], node.attributes.get("transposed", False))
        case "where":
            return wide.where(node.attributes["chosen"], *x)
        case "softmax":
            a = node.attributes
            return wide.softmax(first, a["powers"], a.get("allowed"))
        case "add":
            pairs = zip(*(_values(t) for t in x), strict=True)
            return Array([sat8((a + b) / power(site)) for a, b in pairs], shape, site, 8)
        case "multiply":
            whole = tuple(map(max, zip(shape, x[1].shape, strict=True)))
            both = ([_values(t)[i] for i in pointwise.repeated(t.shape, whole)] for t in x)
            found = [sat8(a * b / power(site)) for a, b in zip(*both, strict=True)]
            return Array(found, whole, site, 8)
        case "scale":
            m, by = formats.signed_coefficient(node.attributes["factor"])
            values = _values(first)
            return Array([sat8(v * m * power(by) / power(site)) for v in values], shape, site, 8)
        case "concat":
            return replace(pointwise.concat([wide.narrow(t, site) for t in x]), exponent=site)
        case "narrow" | "narrow16":
            return wide.narrow(first, site, 8 if node.op == "narrow" else 16)
        case "expand":
            return moves.expand(first, node.attributes["shape"])
        case op if op in MOVES:
            return moved(node, first)
        case _:
            raise ValueError(f"{node.op}: no deployed form")


def _values(x: Array) -> list[Fraction]:
    return [c * power(x.one_exponent) for c in x.codes]
