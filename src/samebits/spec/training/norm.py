"""BatchNorm and LayerNorm in plain Python integers (docs/spec/training.md, sections 5 and 7).

Per-channel and per-row scalars are binary64 and evaluated in the order written there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from samebits.spec import formats
from samebits.spec.formats import CODE_MAX, EXPONENT_MIN, fits
from samebits.spec.training.layers import Array, Parameter, channel_of, narrow, quantize, wide

ldexp = math.ldexp


def coded(value: float, exponent: int) -> int:
    """rne(value * 2**-exponent)."""
    return formats.round_real(ldexp(value, -exponent))


# --- BatchNorm ------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchNormSaved:
    """Per channel, for the backward pass."""

    n: int
    mean: list[float]  # in units of the input's codes
    inv: list[float]
    a: list[float]
    training: bool


@dataclass(frozen=True)
class BatchStatistics:
    """Exact sums of every channel over the n elements of the shard."""

    n: int
    s1: list[int]
    s2: list[int]


def batch_statistics(z: Array) -> BatchStatistics:
    """S1 and S2. Section 5."""
    s1, s2 = [0] * z.shape[1], [0] * z.shape[1]
    for code, c in zip(z.codes, channel_of(z.shape), strict=True):
        s1[c] += code
        s2[c] += code * code
    n = len(z.codes) // z.shape[1]
    if not 2 <= n <= 2**24:
        raise ValueError(f"batch norm: expected 2 to 2**24 elements a channel, found {n}")
    return BatchStatistics(n, s1, s2)


def batch_norm(
    z: Array,
    gamma: Parameter,
    beta: Parameter,
    eps: float,
    running: tuple[Sequence[float], Sequence[float]] | None = None,
) -> tuple[Array, BatchNormSaved]:
    """Section 5. With `running` (mean, variance): evaluation; without: training."""
    (j_gamma, e_gamma), (j_beta, e_beta) = gamma.joint, beta.joint
    channels = z.shape[1]
    n = len(z.codes) // channels
    mean, inv = [0.0] * channels, [0.0] * channels
    a, alpha, shift = [0.0] * channels, [0.0] * channels, [0.0] * channels
    statistics = batch_statistics(z) if running is None else None
    for c in range(channels):
        if statistics is not None:
            s1, s2 = statistics.s1[c], statistics.s2[c]
            mean[c] = float(s1) / float(n)
            variance = float(n * s2 - s1 * s1) / float(n * n)
            inv[c] = 1.0 / math.sqrt(ldexp(variance, 2 * z.exponent) + eps)
        elif running is not None:
            mean[c] = ldexp(running[0][c], -z.exponent)
            inv[c] = 1.0 / math.sqrt(running[1][c] + eps)
        a[c] = ldexp(float(j_gamma[c]), e_gamma) * inv[c]
        alpha[c] = ldexp(a[c], z.exponent)
        center = mean[c] * alpha[c] if running is None else running[0][c] * a[c]
        shift[c] = ldexp(float(j_beta[c]), e_beta) - center
    saved = BatchNormSaved(n, mean, inv, a, running is None)
    bound = max(127.0 * abs(m) + abs(b) for m, b in zip(alpha, shift, strict=True))
    if bound == 0.0:
        return Array([0] * len(z.codes), z.shape, EXPONENT_MIN, 8), saved
    e = fits(bound, 30)
    multiplier, offset = [coded(m, e) for m in alpha], [coded(b, e) for b in shift]
    where = channel_of(z.shape)
    acc = [code * multiplier[c] + offset[c] for code, c in zip(z.codes, where, strict=True)]
    return narrow(acc, z.shape, e, 8), saved


def running_statistics(
    z: Array, mean: Sequence[float], variance: Sequence[float], momentum: float
) -> tuple[list[float], list[float]]:
    """The buffers after one training shard. Section 5."""
    statistics = batch_statistics(z)
    n = statistics.n
    new_mean, new_variance = [], []
    for c, (s1, s2) in enumerate(zip(statistics.s1, statistics.s2, strict=True)):
        batch_mean = ldexp(float(s1) / float(n), z.exponent)
        unbiased = ldexp(float(n * s2 - s1 * s1) / float(n * (n - 1)), 2 * z.exponent)
        new_mean.append((1.0 - momentum) * mean[c] + momentum * batch_mean)
        new_variance.append((1.0 - momentum) * variance[c] + momentum * unbiased)
    return new_mean, new_variance


def batch_norm_backward(g: Array, z: Array, saved: BatchNormSaved) -> tuple[Array, Array, Array]:
    """(dz, dgamma, dbeta). Section 7."""
    where = channel_of(z.shape)
    channels, n = z.shape[1], float(saved.n)
    sum_g, sum_gz = [0] * channels, [0] * channels
    for gi, zi, c in zip(g.codes, z.codes, where, strict=True):
        sum_g[c] += gi
        sum_gz[c] += gi * zi
    dgamma, dbeta, slope, offset = [], [], [], []
    for c in range(channels):
        sg, mean, inv, a = float(sum_g[c]), saved.mean[c], saved.inv[c], saved.a[c]
        cov = float(sum_gz[c]) - mean * sg
        gg = ldexp(cov, z.exponent) * inv
        dgamma.append(ldexp(gg, g.exponent))
        dbeta.append(ldexp(sg, g.exponent))
        if saved.training:
            b0 = (gg / n) * inv
            beta_z = ldexp(-(a * b0), z.exponent)
            slope.append(beta_z)
            offset.append(-(a * (sg / n)) - mean * beta_z)
        else:
            slope.append(0.0)
            offset.append(0.0)
    at_gamma, at_beta = (
        Array(codes, (channels,), exponent, 32)
        for codes, exponent in (quantize(v, 32, low=None, high=None) for v in (dgamma, dbeta))
    )
    if not any(saved.a):
        return Array([0] * len(z.codes), z.shape, EXPONENT_MIN, 32), at_gamma, at_beta
    largest_g = float(CODE_MAX[g.bits])
    bound = max(
        abs(a) * largest_g + 127.0 * abs(b) + abs(d)
        for a, b, d in zip(saved.a, slope, offset, strict=True)
    )
    e = max(fits(max(map(abs, saved.a)), 24), fits(bound, 61))
    aq, bq, cq = ([coded(v, e) for v in values] for values in (saved.a, slope, offset))
    acc = [
        aq[c] * gi + bq[c] * zi + cq[c] for gi, zi, c in zip(g.codes, z.codes, where, strict=True)
    ]
    return wide(acc, z.shape, g.exponent + e), at_gamma, at_beta


# --- LayerNorm ------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerNormSaved:
    """For the backward pass: xhat (bfp8) and the row multipliers K with their exponent."""

    xhat: Array
    multiplier: list[int]
    exponent: int


def layer_norm(
    z: Array, gamma: Parameter, beta: Parameter, eps: float
) -> tuple[Array, LayerNormSaved]:
    """Section 5. Rows are the last D elements, D the size of gamma."""
    (j_gamma, e_gamma), (j_beta, e_beta) = gamma.joint, beta.joint
    size = len(j_gamma)
    centered, scale = [], []
    for start in range(0, len(z.codes), size):
        row = z.codes[start : start + size]
        s1, s2 = sum(row), sum(c * c for c in row)
        variance = float(size * s2 - s1 * s1) / float(size * size)
        inv = 1.0 / math.sqrt(ldexp(variance, 2 * z.exponent) + eps)
        scale.append(ldexp(inv / float(size), z.exponent))
        centered += [size * c - s1 for c in row]
    e_k = fits(max(scale), 24)
    multiplier = [coded(k, e_k) for k in scale]
    xhat32 = wide([c * multiplier[i // size] for i, c in enumerate(centered)], z.shape, e_k)
    xhat = narrow(xhat32.codes, z.shape, xhat32.exponent, 16)
    xhat8 = narrow(xhat32.codes, z.shape, xhat32.exponent, 8)
    scaled = [c * j_gamma[i % size] for i, c in enumerate(xhat.codes)]
    shift = [j_beta[i % size] for i in range(len(scaled))]
    acc, e = formats.combine([(scaled, xhat.exponent + e_gamma, 38), (shift, e_beta, 23)])
    return narrow(acc, z.shape, e, 8), LayerNormSaved(xhat8, multiplier, e_k)


def layer_norm_backward(
    g: Array, z: Array, gamma: Parameter, saved: LayerNormSaved
) -> tuple[Array, Array, Array]:
    """(dz, dgamma, dbeta). Section 7."""
    j_gamma, e_gamma = gamma.joint
    size, xhat = len(j_gamma), saved.xhat
    acc = [c * j_gamma[i % size] for i, c in enumerate(g.codes)]
    h = narrow(acc, g.shape, g.exponent + e_gamma, 16)
    direct, through = [], []
    dgamma, dbeta = [0] * size, [0] * size
    for start in range(0, len(g.codes), size):
        row = range(start, start + size)
        sum_h = sum(h.codes[i] for i in row)
        sum_hx = sum(h.codes[i] * xhat.codes[i] for i in row)
        for i in row:
            direct.append(size * h.codes[i] - sum_h)
            through.append(-(sum_hx * xhat.codes[i]))
            dgamma[i - start] += g.codes[i] * xhat.codes[i]
            dbeta[i - start] += g.codes[i]
    t, e = formats.combine(
        [(direct, h.exponent, 28), (through, h.exponent + 2 * xhat.exponent, 42)]
    )
    t16 = narrow(t, g.shape, e, 16)
    acc = [c * saved.multiplier[i // size] for i, c in enumerate(t16.codes)]
    return (
        wide(acc, z.shape, t16.exponent + saved.exponent - z.exponent),
        wide(dgamma, gamma.shape, g.exponent + xhat.exponent),
        wide(dbeta, gamma.shape, g.exponent),
    )
