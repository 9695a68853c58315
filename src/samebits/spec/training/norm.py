"""BatchNorm, LayerNorm and their kin in plain Python integers (docs/spec/training.md, 5 and 7).

Per-channel and per-row scalars are binary64 and evaluated in the order written there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from samebits.spec import formats
from samebits.spec.formats import CODE_MAX, EXPONENT_MIN, fits
from samebits.spec.training import rows
from samebits.spec.training.layers import (
    Array,
    ExactSums,
    Parameter,
    channel_of,
    lifted,
    narrow,
    narrowed,
    quantize,
    wide,
)
from samebits.spec.training.rows import Exponent, plus

ldexp = math.ldexp


def coded(value: float, exponent: int) -> int:
    """rne(value * 2**-exponent)."""
    return formats.round_real(ldexp(value, -exponent))


# --- BatchNorm ------------------------------------------------------------------------------
#
# Written for one exponent a sample (12.2, 12.3); where all are equal it is sections 5 and 7.

GUARD = 8  # bits below the largest exponent at which the statistics of samples of bfp8 are added


@dataclass(frozen=True)
class BatchNormSaved:
    """For the backward pass: z as a layer takes it, and numbers of every channel."""

    z: Array
    n: int
    centre: list[float]  # the mean, a real number
    inv: list[float]
    a: list[float]
    training: bool


@dataclass(frozen=True)
class BatchStatistics:
    """Sums of every channel over the n elements of the shard, S1 * 2**e and S2 * 2**(2 * e)."""

    n: int
    s1: list[int]
    s2: list[int]
    exponents: list[int]  # of every channel

    def mean(self, c: int) -> float:
        """The mean of channel c, a real number."""
        return ldexp(float(self.s1[c]) / float(self.n), self.exponents[c])

    def variance(self, c: int, divisor: int) -> float:
        """(n * S2 - S1 * S1) / (n * divisor) of channel c, at least 0."""
        spread = float(max(self.n * self.s2[c] - self.s1[c] * self.s1[c], 0))
        return ldexp(spread / float(self.n * divisor), 2 * self.exponents[c])


def batch_statistics(z: Array) -> BatchStatistics:
    """S1 and S2 of a bfp8 or bfp16. Sections 5 and 12.2."""
    n = len(z.codes) // z.shape[1]
    if not 2 <= n <= 2**24:
        raise ValueError(f"batch norm: expected 2 to 2**24 elements a channel, found {n}")
    exponents = sample_exponents(z)
    s1, s2 = sample_sums(z, z.codes), sample_sums(z, [c * c for c in z.codes])
    common = max((e for e, s in zip(exponents, s2, strict=True) if any(s)), default=EXPONENT_MIN)
    guard = GUARD if z.bits <= 8 else 0  # S2 stays below 2**55
    shifts = [e - common + guard for e in exponents]
    first = [
        [formats.scaled(v, by) if v else 0 for v in s] for s, by in zip(s1, shifts, strict=True)
    ]
    second = [
        [formats.scaled(v, 2 * by) if v else 0 for v in s] for s, by in zip(s2, shifts, strict=True)
    ]
    return BatchStatistics(
        n,
        [sum(column) for column in zip(*first, strict=True)],
        [sum(column) for column in zip(*second, strict=True)],
        [common - guard + s for s in channel_shifts(z)],
    )


def channel_shifts(x: Array) -> tuple[int, ...]:
    """The shift of every channel, 0 where x has none."""
    return x.shifts or (0,) * x.shape[1]


def sample_exponents(x: Array) -> list[int]:
    """The exponent of every sample of [N, C] or [N, C, H, W]."""
    inner = math.prod(x.shape[1:])
    return list(rows.each(x.exponent, len(x.codes))[::inner])


def sample_sums(x: Array, values: Sequence[int]) -> list[list[int]]:
    """Values shaped as x, summed over each sample's positions: [n][channel]."""
    inner = math.prod(x.shape[1:])
    sums = [[0] * x.shape[1] for _ in range(x.shape[0])]
    for i, (value, c) in enumerate(zip(values, channel_of(x.shape), strict=True)):
        sums[i // inner][c] += value
    return sums


def batch_norm(
    z: Array,
    gamma: Parameter,
    beta: Parameter,
    eps: float,
    running: tuple[Sequence[float], Sequence[float]] | None = None,
    peaks: Sequence[float] = (),
) -> tuple[ExactSums, BatchNormSaved, list[float]]:
    """Sections 5, 12.2 and 12.4: the sums, what the backward pass needs, and `rows.seen`.

    z: bfp8 or bfp16. With `running` (mean, variance): evaluation; without: training.
    peaks: `rows.shifts_of` them.
    """
    (j_gamma, e_gamma), (j_beta, e_beta) = gamma.joint, beta.joint
    channels = range(z.shape[1])
    if running is None:
        statistics = batch_statistics(z)
        centre = [statistics.mean(c) for c in channels]
        variance = [statistics.variance(c, statistics.n) for c in channels]
    else:
        centre, variance = list(running[0]), list(running[1])
    inv = [1.0 / math.sqrt(v + eps) for v in variance]
    a = [ldexp(float(j_gamma[c]), e_gamma) * inv[c] for c in channels]
    shift = [ldexp(float(j_beta[c]), e_beta) - centre[c] * a[c] for c in channels]
    count = len(z.codes) // z.shape[1]
    saved = BatchNormSaved(narrowed(z), count, centre, inv, a, running is None)
    largest = float(CODE_MAX[8 if z.bits <= 8 else 16])
    inner, where = math.prod(z.shape[1:]), channel_of(z.shape)
    acc, exponents = [0] * len(z.codes), [EXPONENT_MIN] * len(z.codes)
    for n, e_z in enumerate(sample_exponents(z)):
        alpha = [ldexp(v, e_z + s) for v, s in zip(a, channel_shifts(z), strict=True)]
        bound = max(largest * abs(m) + abs(b) for m, b in zip(alpha, shift, strict=True))
        if bound == 0.0:
            continue
        e = fits(bound, 30)
        multiplier, offset = [coded(m, e) for m in alpha], [coded(b, e) for b in shift]
        for i in range(n * inner, (n + 1) * inner):
            acc[i] = z.codes[i] * multiplier[where[i]] + offset[where[i]]
            exponents[i] = e
    own = like(z.exponent, exponents)
    y = ExactSums(acc, z.shape, own, gamma.widths[0], tuple(rows.shifts_of(peaks)))
    return y, saved, rows.seen(acc, own, z.shape)


def like(kind: Exponent, exponents: Sequence[int]) -> Exponent:
    """Exponents of all elements, or their one where `kind` is one."""
    return exponents[0] if isinstance(kind, int) else tuple(exponents)


def running_statistics(
    z: Array, mean: Sequence[float], variance: Sequence[float], momentum: float
) -> tuple[list[float], list[float]]:
    """The buffers after one training shard. Section 5."""
    statistics = batch_statistics(z)
    new_mean, new_variance = [], []
    for c in range(z.shape[1]):
        batch_mean, unbiased = statistics.mean(c), statistics.variance(c, statistics.n - 1)
        new_mean.append((1.0 - momentum) * mean[c] + momentum * batch_mean)
        new_variance.append((1.0 - momentum) * variance[c] + momentum * unbiased)
    return new_mean, new_variance


def batch_norm_backward(g: Array, saved: BatchNormSaved) -> tuple[Array, Array, Array]:
    """(dz, dgamma, dbeta). Sections 7 and 12.3."""
    z = saved.z
    channels, n = range(z.shape[1]), float(saved.n)
    e_z, e_g = sample_exponents(z), sample_exponents(g)
    e_gz = [[p + q] * z.shape[1] for p, q in zip(e_g, e_z, strict=True)]
    products = [p * q for p, q in zip(g.codes, z.codes, strict=True)]
    sum_g, e_1 = rows.gather(sample_sums(g, g.codes), [[e] * z.shape[1] for e in e_g], 55)
    sum_gz, e_2 = rows.gather(sample_sums(g, products), e_gz, 62)
    dbeta = [ldexp(float(v), e_1) for v in sum_g]
    dgamma, slope, offset = [], [], []
    for c in channels:
        sg, centre, inv, a = dbeta[c], saved.centre[c], saved.inv[c], saved.a[c]
        cov = ldexp(float(sum_gz[c]), e_2 + channel_shifts(z)[c]) - centre * sg
        gg = cov * inv
        dgamma.append(gg)
        if saved.training:
            beta_z = -(a * ((gg / n) * inv))
            slope.append(beta_z)
            offset.append(-(a * (sg / n)) - centre * beta_z)
        else:
            slope.append(0.0)
            offset.append(0.0)
    at_gamma, at_beta = (
        Array(codes, (z.shape[1],), exponent, 32)
        for codes, exponent in (quantize(v, 32, low=None, high=None) for v in (dgamma, dbeta))
    )
    largest_g = float(CODE_MAX[16 if g.bits <= 16 else 32])
    inner, where = math.prod(z.shape[1:]), channel_of(z.shape)
    acc, exponents = [0] * len(z.codes), [EXPONENT_MIN] * len(z.codes)
    for sample in range(z.shape[0]):
        a_n = [ldexp(v, e_g[sample]) for v in saved.a]
        beta_n = [ldexp(v, e_z[sample] + s) for v, s in zip(slope, channel_shifts(z), strict=True)]
        if not any(a_n):
            continue
        bound = max(
            abs(p) * largest_g + 127.0 * abs(q) + abs(r)
            for p, q, r in zip(a_n, beta_n, offset, strict=True)
        )
        e = max(fits(max(map(abs, a_n)), 24), fits(bound, 61))
        aq, bq, cq = ([coded(v, e) for v in values] for values in (a_n, beta_n, offset))
        for i in range(sample * inner, (sample + 1) * inner):
            c = where[i]
            acc[i] = aq[c] * g.codes[i] + bq[c] * z.codes[i] + cq[c]
            exponents[i] = e
    kind = g.exponent if isinstance(z.exponent, int) else z.exponent
    return wide(acc, z.shape, like(kind, exponents)), at_gamma, at_beta


# --- LayerNorm, RMSNorm, GroupNorm -----------------------------------------------------------


@dataclass(frozen=True)
class Vectors:
    """How elements are normalised together: along the last axis, or by groups of channels."""

    shape: tuple[int, ...]
    groups: int | None

    @property
    def view(self) -> tuple[int, ...]:
        """The shape in which every vector is along the last axis; the order stays."""
        if self.groups is None:
            return self.shape
        return (self.shape[0], self.groups, math.prod(self.shape[1:]) // self.groups)

    @property
    def channels(self) -> list[int]:
        """The element of gamma that every element meets."""
        if self.groups is not None:
            inner = math.prod(self.shape[2:])
            return [i // inner % self.shape[1] for i in range(math.prod(self.shape))]
        return [i % self.shape[-1] for i in range(math.prod(self.shape))]

    @property
    def channels_last(self) -> list[int]:
        """The places of elements in the order in which channels come last."""
        if self.groups is None:
            return list(range(math.prod(self.shape)))
        n, c, *sides = self.shape
        inner = math.prod(sides)
        return [(s * c + k) * inner + p for s in range(n) for p in range(inner) for k in range(c)]


@dataclass(frozen=True)
class LayerNormSaved:
    """For the backward pass: xhat (bfp8) and the multipliers K of each vector, by element."""

    xhat: Array
    multiplier: list[int]
    exponent: Exponent
    centred: bool
    vectors: Vectors


def layer_norm(
    z: Array,
    gamma: Parameter | None,
    beta: Parameter | None,
    eps: float,
    peaks: Sequence[float] = (),
    centred: bool = True,
    groups: int | None = None,
) -> tuple[Array, LayerNormSaved, list[float]]:
    """Sections 5, 12.2, 12.4 and 14.6. Not centred: RMSNorm. groups: of channels, GroupNorm.

    peaks, and the third of the results: as `batch_norm`.
    """
    bits = z.bits if gamma is None else gamma.widths[0]
    z, of = lifted(z), Vectors(z.shape, groups)
    size = of.view[-1]
    own = rows.each(z.exponent, len(z.codes))
    centered, scale = [], []
    for start in range(0, len(z.codes), size):
        vector, e_z = z.codes[start : start + size], own[start]
        s1, s2 = sum(vector) if centred else 0, sum(c * c for c in vector)
        variance = float(size * s2 - s1 * s1) / float(size * size)
        inv = 1.0 / math.sqrt(ldexp(variance, 2 * e_z) + eps)
        scale += [ldexp(inv / float(size), e_z)] * size
        centered += [size * c - s1 for c in vector]
    e_k = like(z.exponent, [fits(k if z.by_rows else max(scale), 24) for k in scale])
    multiplier = [coded(k, e) for k, e in zip(scale, rows.each(e_k, len(scale)), strict=True)]
    acc = [c * m for c, m in zip(centered, multiplier, strict=True)]
    xhat32 = wide(acc, of.view, e_k)
    xhat = narrow(xhat32.codes, of.view, xhat32.exponent, 16)
    xhat8 = narrow(xhat32.codes, of.view, xhat32.exponent, 8)
    terms: list[tuple[Sequence[int], Exponent, int]] = [(xhat.codes, xhat.exponent, 16)]
    if gamma is not None:
        j_gamma, e_gamma = gamma.joint
        scaled = [c * j_gamma[k] for c, k in zip(xhat.codes, of.channels, strict=True)]
        terms = [(scaled, plus(xhat.exponent, e_gamma), 38)]
    if beta is not None:
        j_beta, e_beta = beta.joint
        terms.append(([j_beta[k] for k in of.channels], e_beta, 23))
    acc, e = rows.combine(terms)
    y = narrow(acc, z.shape, e, bits, shifts=rows.shifts_of(peaks))
    return y, LayerNormSaved(xhat8, multiplier, e_k, centred, of), rows.seen(acc, e, z.shape)


def layer_norm_backward(
    g: Array, z: Array, gamma: Parameter | None, saved: LayerNormSaved
) -> tuple[Array, Array, Array]:
    """(dz, dgamma, dbeta). Sections 7, 12.3 and 14.6."""
    of, xhat = saved.vectors, saved.xhat
    size = of.view[-1]
    codes, exponent = g.codes, g.exponent
    if gamma is not None:
        j_gamma, e_gamma = gamma.joint
        codes = [c * j_gamma[k] for c, k in zip(codes, of.channels, strict=True)]
        exponent = plus(exponent, e_gamma)
    h = narrow(codes, of.view, exponent, 16)
    direct, through = [], []
    for start in range(0, len(g.codes), size):
        vector = range(start, start + size)
        sum_h = sum(h.codes[i] for i in vector) if saved.centred else 0
        sum_hx = sum(h.codes[i] * xhat.codes[i] for i in vector)
        direct += [size * h.codes[i] - sum_h for i in vector]
        through += [-(sum_hx * xhat.codes[i]) for i in vector]
    more = max(12, (size - 1).bit_length())
    twice = plus(h.exponent, plus(xhat.exponent, xhat.exponent))
    t, e = rows.combine([(direct, h.exponent, 16 + more), (through, twice, 30 + more)])
    t16 = narrow(t, of.view, e, 16)
    acc = [c * m for c, m in zip(t16.codes, saved.multiplier, strict=True)]
    down = plus(plus(t16.exponent, saved.exponent), negative(z.exponent))
    products = [p * q for p, q in zip(g.codes, xhat.codes, strict=True)]
    count = len(set(of.channels))
    return (
        wide(acc, z.shape, down),
        over_vectors(of, products, plus(g.exponent, xhat.exponent), count, 62),
        over_vectors(of, g.codes, g.exponent, count, 55),
    )


def negative(exponent: Exponent) -> Exponent:
    """-e of every element."""
    return -exponent if isinstance(exponent, int) else tuple(-e for e in exponent)


def over_vectors(
    of: Vectors, acc: Sequence[int], exponent: Exponent, count: int, bits: int
) -> Array:
    """The sum over all but the channels, a gradient of gamma or beta: `gather`, then `shorten`."""
    acc = [acc[i] for i in of.channels_last]
    starts = range(0, len(acc), count)
    vectors = [acc[i : i + count] for i in starts]
    if isinstance(exponent, int):
        return wide([sum(column) for column in zip(*vectors, strict=True)], (count,), exponent)
    exponent = tuple(exponent[i] for i in of.channels_last)
    total, e = rows.gather(vectors, [exponent[i : i + count] for i in starts], bits)
    return wide(total, (count,), e)
