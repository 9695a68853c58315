"""Deployed arithmetic in plain Python integers and rationals (docs/spec/training.md section 11).

Nets are those of `spec.training.step`, with `narrow` (the rounding of a 32-bit value) as a node of
its own; the attribute `codes` of a `table` gives its 256 codes for (e_x, e_site).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from samebits.spec import formats
from samebits.spec.formats import power
from samebits.spec.training import layers
from samebits.spec.training.layers import Array, Geometry, Parameter, channel_of
from samebits.spec.training.norm import coded
from samebits.spec.training.step import (
    Buffers,
    Net,
    Node,
    Parameters,
    geometry_of,
    parameter_name,
    pooling_of,
)


def sat8(value: Fraction) -> int:
    """rne, then saturate to [-128, 127]."""
    return min(max(formats.round_real(value), -128), 127)


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
    for node in net:
        x = [done[name] for name in node.inputs]
        site = exponents.get(node.name, 0)
        if node.op == "input":
            codes = [sat8(r / power(site)) for r in formats.reals(images)]
            done[node.name] = Array(codes, shape, site, 8)
        elif node.op in ("linear", "conv2d", "batch_norm"):
            done[node.name] = _with_parameters(node, x[0], site, parameters, buffers)
        else:
            done[node.name] = _without(node, x, site)
    return done


def _with_parameters(
    node: Node, x: Array, site: int, parameters: Parameters, buffers: Buffers
) -> Array:
    weight = parameters[parameter_name(node, "weight")]
    bias = parameters.get(parameter_name(node, "bias"))
    if node.op != "batch_norm":
        return products(x, weight, bias, geometry_of(node), node.attributes.get("out_width"), site)
    assert bias is not None
    running = (buffers[f"{node.name}.running_mean"], buffers[f"{node.name}.running_var"])
    return batch_norm(x, weight, bias, running, node.attributes.get("eps", 1e-5), site)


def products(
    x: Array,
    weight: Parameter,
    bias: Parameter | None,
    geometry: Geometry | None,
    out_width: int | None,
    site: int,
) -> Array:
    """Linear (no geometry) or Conv2d."""
    exponent = x.exponent + weight.exponent
    if geometry is None:
        shape: tuple[int, ...] = (x.shape[0], weight.shape[0])
    else:
        shape = layers.conv_shape(x.shape, weight.shape, geometry)
    offsets = [0] * weight.shape[0]
    if bias is not None:
        joint, e_b = bias.joint
        offsets = [formats.scaled(j, e_b - exponent) for j in joint]
    acc = [offsets[c] for c in channel_of(shape)]
    for o, i, w in layers.taps_of(x, weight, geometry):
        acc[o] += x.codes[i] * weight.codes[w]
    if out_width == 32:
        return Array(acc, shape, exponent, 32)
    return Array([sat8(a * power(exponent - site)) for a in acc], shape, site, 8)


def batch_norm(
    z: Array,
    gamma: Parameter,
    beta: Parameter,
    running: tuple[Sequence[float], Sequence[float]],
    eps: float,
    site: int,
) -> Array:
    """Running statistics; scalars in binary64 as section 5 writes them."""
    alpha, shift = [], []
    for g, b, mean, var in zip(gamma.values, beta.values, *running, strict=True):
        a = g * (1.0 / math.sqrt(var + eps))
        alpha.append(math.ldexp(a, z.exponent))
        shift.append(b - mean * a)
    bound = max(128.0 * abs(m) + abs(b) for m, b in zip(alpha, shift, strict=True))
    if bound == 0:
        return Array([0] * len(z.codes), z.shape, site, 8)
    e = formats.fits(bound, 23)
    ms, bs = [coded(v, e) for v in alpha], [coded(v, e) for v in shift]
    acc = [code * ms[c] + bs[c] for code, c in zip(z.codes, channel_of(z.shape), strict=True)]
    return Array([sat8(v * power(e - site)) for v in acc], z.shape, site, 8)


def _without(node: Node, x: list[Array], site: int) -> Array:
    """The output of an operator without parameters; `site` is the frozen exponent if it rounds."""
    first, exponent, shape = x[0], x[0].exponent, x[0].shape
    match node.op:
        case "relu":
            return layers.relu(first)
        case "relu6":
            high = min(127, layers.relu6_clip(exponent))
            return replace(first, codes=[min(max(c, 0), high) for c in first.codes])
        case "table":
            table = node.attributes["codes"](exponent, site)
            return Array([table[c + 128] for c in first.codes], shape, site, 8)
        case "max_pool":
            return layers.max_pool(first, *pooling_of(node, shape))[0]
        case "avg_pool" | "global_avg_pool":
            kernel, stride, padding = pooling_of(node, shape)
            shape, members = layers.windows(shape, kernel, stride, padding)
            unit = power(exponent - site) / (kernel[0] * kernel[1])
            codes = [sat8(sum(first.codes[i] for i in m) * unit) for m in members]
            return Array(codes, shape, site, 8)
        case "add":
            pairs = zip(*(_values(t) for t in x), strict=True)
            return Array([sat8((a + b) / power(site)) for a, b in pairs], shape, site, 8)
        case "concat":
            return replace(layers.concat([_narrow(t, site) for t in x]), exponent=site)
        case "narrow":
            return _narrow(first, site)
        case "flatten":
            return replace(first, shape=(shape[0], math.prod(shape[1:])))
        case _:
            raise ValueError(f"{node.op}: no deployed form")


def _values(x: Array) -> list[Fraction]:
    return [c * power(x.exponent) for c in x.codes]


def _narrow(x: Array, site: int) -> Array:
    return Array([sat8(v / power(site)) for v in _values(x)], x.shape, site, 8)
