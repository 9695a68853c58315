"""Transposed convolution in plain Python integers: a Conv2d with its roles swapped.

A restatement of docs/spec/training.md, section 14.7, like `layers`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from samebits.spec.formats import CODE_MAX
from samebits.spec.training import rows
from samebits.spec.training.layers import (
    Array,
    Geometry,
    Pair,
    Parameter,
    Tap,
    by_output,
    by_row,
    channel_of,
    conv_taps,
    narrow,
    wide_whole,
    with_bias,
)
from samebits.spec.training.rows import Exponent, plus


def output_shape(
    x: tuple[int, ...], w: tuple[int, ...], geometry: Geometry, extra: Pair
) -> tuple[int, ...]:
    """The [N, O, H, W] of the output; `extra` is output_padding."""
    g = geometry
    height, width = (
        (x[2 + a] - 1) * g.stride[a]
        - 2 * g.padding[a]
        + g.dilation[a] * (w[2 + a] - 1)
        + extra[a]
        + 1
        for a in (0, 1)
    )
    return (x[0], w[1] * g.groups, height, width)


def taps(y: tuple[int, ...], weight: Parameter, geometry: Geometry) -> Iterator[Tap]:
    """(output, input, weight) of every product: those of the Conv2d of y, the other way round."""
    for at_input, at_output, w in conv_taps(y, weight.shape, geometry):
        yield at_output, at_input, w


def exact_sums(
    x: Array, weight: Parameter, bias: Parameter | None, geometry: Geometry, extra: Pair
) -> tuple[list[int], tuple[int, ...], Exponent]:
    """The sums, their shape and exponent."""
    shape = output_shape(x.shape, weight.shape, geometry, extra)
    h, count = x, math.prod(shape)
    if isinstance(x.exponent, int) and isinstance(weight.exponent, int):
        exponent: Exponent = x.exponent + weight.exponent
    else:
        own = plus(x.exponents, by_output(weight, channel_of(x.shape)))
        h = narrow(x.codes, x.shape, own, weight.widths[1])
        exponent = by_row(h, count)
    acc = [0] * count
    for o, i, w in taps(shape, weight, geometry):
        acc[o] += h.codes[i] * weight.codes[w]
    acc, exponent = with_bias(acc, exponent, bias, channel_of(shape))
    return acc, shape, exponent


def input_gradient(g: Array, x: Array, weight: Parameter, geometry: Geometry) -> Array:
    """The gradient handed down: narrow g times W."""
    bits = weight.widths[1]
    fits = g.bits <= 16 and max(map(abs, g.codes)) <= CODE_MAX[bits]
    h = g if fits else narrow(g.codes, g.shape, g.exponent, bits)
    acc = [0] * len(x.codes)
    for o, i, w in taps(g.shape, weight, geometry):
        acc[i] += h.codes[o] * weight.codes[w]
    own = plus(by_row(h, len(acc)), by_output(weight, channel_of(x.shape)))
    return narrow(acc, x.shape, own, bits)


def weight_gradient(g: Array, x: Array, weight: Parameter, geometry: Geometry) -> Array:
    """Full-width g times x; exponents of samples go into g, one output channel after the other."""
    codes, channels = g.codes, channel_of(g.shape)
    exponent = plus(g.exponent, by_row(x, len(codes)))
    if not isinstance(exponent, int):
        codes, exponent = rows.requantize(codes, exponent, channels, 32, limited=False)
    acc, own, up = [0] * len(weight.codes), [0] * len(weight.codes), x.by_element
    for o, i, w in taps(g.shape, weight, geometry):
        acc[w] += codes[o] * x.codes[i]
        own[w] = up[i] + (exponent if isinstance(exponent, int) else exponent[o])
    whole = exponent if isinstance(exponent, int) else tuple(own)
    return wide_whole(acc, weight.shape, whole)
