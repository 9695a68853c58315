"""Integers for tests of kernels: edges and ties, memory orders, and comparison for equality."""

from __future__ import annotations

import math
import random

import torch

import compare
import drawn

DTYPES = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
LARGE = 16384  # elements from which the native kernels use several threads


@drawn.once
def spread(count: int, limit: int, seed: int) -> list[int]:
    """Integers of every magnitude up to `limit`, with ties for every right shift, and the ends."""
    rng = random.Random(seed)
    values = [0, 0, 1, -1, limit, -limit, limit - 1, 1 - limit]
    while len(values) < count:
        size = rng.randint(0, limit.bit_length() - 1)
        kind = rng.randrange(4)
        if kind == 0:  # halfway between two multiples of 2**size, or next to it
            value = ((rng.getrandbits(10) << size) + (1 << size >> 1)) + rng.choice((-1, 0, 0, 1))
        elif kind == 1:
            value = 1 << size
        else:
            value = rng.getrandbits(size + 1)
        values.append(rng.choice((-1, 1)) * min(value, limit))
    rng.shuffle(values := values[:count])
    return values


def tensor(values, bits: int, shape=None) -> torch.Tensor:
    out = torch.tensor(values, dtype=DTYPES[bits])
    return out if shape is None else out.view(shape)


@drawn.once
def codes(shape, limit: int, bits: int, seed: int) -> torch.Tensor:
    return tensor(spread(math.prod(shape), limit, seed), bits, shape)


def flat(v: torch.Tensor) -> list[int]:
    return v.reshape(-1).tolist()


def layouts(v: torch.Tensor):
    """One tensor in several memory orders."""
    yield v.contiguous()
    if v.numel() >= LARGE:
        if v.dim() == 4:
            yield v.contiguous(memory_format=torch.channels_last)
        return
    yield v.repeat_interleave(3, dim=-1)[..., ::3]  # gaps
    yield v.transpose(0, -1).contiguous().transpose(0, -1)
    if v.dim() == 4:
        yield v.contiguous(memory_format=torch.channels_last)
        yield v.permute(1, 0, 3, 2).contiguous().permute(1, 0, 3, 2)


def paired_layouts(a: torch.Tensor, b: torch.Tensor):
    """Both in the same memory order, and in different ones."""
    u, v = list(layouts(a)), list(layouts(b))
    return [*zip(u, v, strict=True), *zip(u, v[1:], strict=False), (u[-1], v[0])]


def assert_same(actual, expected, inputs):
    """`compare.assert_same`, faster where nothing differs."""
    actual = flat(actual) if isinstance(actual, torch.Tensor) else actual
    if actual != expected:
        compare.assert_same(actual, expected, inputs)


def same_codes(actual, expected, inputs, what=""):
    (codes, exponent), (wanted, wanted_exponent) = actual, expected
    assert_same(codes, wanted, inputs)
    assert exponent == wanted_exponent, f"{what}: exponent {exponent}, expected {wanted_exponent}"
