"""The kernels of training: what each takes, gives and rounds, and why its sums are exact.

docs/spec/training.md says what each integer is, `eager.Eager` (torch, any device) what each kernel
does. Two realisations inherit from it what they do not do faster: `native.Native` (C on the CPU)
and `compiled.Compiled` (torch.compile). Which one serves may change the time of a step, never a bit
of it.

An exponent is one integer for a tensor, or an int64 tensor that broadcasts against the codes: one
for each row (training.md 12; `rows`). Where it is a tensor, a largest magnitude that is handed in
beside it is not read, and results have exponents by rows.

Conventions. Tensors have PyTorch's shapes (images NCHW, weights OIHW, rows [n, k]) in any memory
order. A code is an integer of int8, int16 or int32 whose magnitude is at most Q8, Q16 or Q32 (127,
32639, 2139062143). A *sum* is a tensor of exact integers, int32 or int64 as the realisation likes,
beside the largest magnitude in it, so that it is not read again to find its exponent. Rounding is
rne, to the nearest integer and ties to even; a kernel that rounds says so, all others are exact.

Why sums are exact. Q8, Q16 and Q32 are one, two and four balanced base-256 digits of 127, so every
code of 16 or 32 bits is that many digits in [-128, 127], and its product with an 8-bit code is as
many products of 8 by 8 bits, each shifted by whole bytes. 32639 = 127 * 256 + 127, for example, and
32639 * 100 = 12700 * 256 + 12700. No digit overflows, because no code is beyond digits of 127 (the
next one, 32640 = 127 * 256 + 128, would need the digit 128): a machine that multiplies 8-bit
integers alone can train. Most realisations here cut less: 16-bit codes are multiplied whole, and
32-bit codes as high * 2**16 + low, two halves that fit 16 bits for the same reason. Tiles of bytes
(csrc/training/amx.c) take the bytes as they lie in memory, all unsigned but the highest.

The number of terms of every sum is bounded so that it and all its partial sums fit the accumulator
(int64, or binary64 below 2**53). Then the order of the terms does not matter, and with it neither
threads, nor vector width, nor the blocking of a matrix product.

    sum                         largest term           terms    below
    forward                     2**7 * 2**7            2**16    2**30   MAX_PRODUCTS; 1 bit: a bias
    input gradient              2**15 * 2**7           2**25    2**47   16-bit gradient
    weight gradient             2**31 * 2**7           2**24    2**62   MAX_SUMMED
    bias gradient               2**31                  2**24    2**55
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from samebits.kernels.moments import Draw
from samebits.kernels.rows import Exponent
from samebits.spec.formats import CODE_MAX

Part = tuple[Tensor, Exponent]  # codes and their exponent
WholePart = tuple[Tensor, int]  # of a tensor that has one exponent
State = tuple[Tensor, Tensor, int]  # W and A of a weight, and the exponent of their joint value
Sum = tuple[Tensor, int]  # exact integers and their largest magnitude
Found = tuple[Tensor, int, Exponent]  # sums, their largest magnitude, and their exponent
CODE_TYPE = {
    bits: torch.int8 if bits <= 8 else torch.int16 if bits <= 16 else torch.int32
    for bits in CODE_MAX
}
BITS = {torch.int8: 8, torch.int16: 16, torch.int32: 32}
HASH_BLOCK = 4096  # bytes of a block of `block_sums`

# Of recurrent cells: gate values and their tables' arguments have magnitudes of at most Q_GATE.
Q_GATE = 32767
ARGUMENT_EXPONENT, GATE_EXPONENT, HIDDEN_EXPONENT = -12, -15, -7
GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
"""Kinds of recurrent cells, in their order in C, and their numbers of gates."""


@dataclass(frozen=True)
class Term:
    """The momentum of a direction: e6m9 codes `v`, of magnitudes up to `largest`, times a 16-bit
    coefficient m * 2**x."""

    v: Tensor
    exponent: int
    coefficient: tuple[int, int]
    largest: int


class CellLayer(NamedTuple):
    """A layer of recurrent cells in one direction, and what its passes over T steps of N samples
    are given.

    kind:     of its cells, of `GATES`
    products: sums of x with its weight, int32 [T, N, gates * H]; exponents by rows are [T, N, 1],
              or [T, N, gates * H] where outputs of the weight have their own
    weight:   of h, int8 [gates * H, H]
    biases:   of the products of x and of h, [gates * H]
    h:        of an LSTM before the first step, int8 [N, H]; None: zero
    state:    before it, of the type of `CellStates.states`, [N, H]; None: zero
    reverse:  whether the last step comes first
    lookup:   int16 [2, 65535], the sigmoid and tanh of the arguments -32767..32767
    """

    kind: str
    products: Part
    weight: Part
    biases: tuple[State | None, State | None]
    h: Part | None
    state: Part | None
    reverse: bool
    lookup: Tensor

    @property
    def by_rows(self) -> bool:
        """Whether samples have exponents of their own."""
        return isinstance(self.products[1], Tensor)


class CellStates(NamedTuple):
    """h of all steps, int8 [T, N, H] (None where it is not read: it follows from the states); the
    states, int16, of an RNN int8; the exponents of these, int64 [T] on the CPU or by rows [T, N,
    1], and that of the last.
    """

    h: Part | None
    states: Tensor
    exponents: Tensor
    last: Exponent


class CellGradients(NamedTuple):
    """d_x, d_h: of the pre-activations at the products of x and of h, bfp32 [T, N, gates * H], the
    same where they are equal; past: h before every step, int8 [T, N, H]; first: of h and of the
    state before the first step, bfp32 [N, H], where they are wanted.
    """

    d_x: Part
    d_h: Part
    past: Part
    first: tuple[Part | None, Part | None]


class MultiplyAdds(NamedTuple):
    """The multiply-adds z * m + b of batch norm: m and b, int32 [samples, channels], one sample
    where a tensor has one exponent; the exponent of the sums, which are below 2**31.

    ends: of every sample the largest magnitude of its sums and the largest sum, at least 0, int64
    [samples, 2] on the CPU; largest: the magnitude of the first.
    """

    m: Tensor
    b: Tensor
    exponent: Exponent
    ends: Tensor
    largest: int


class VectorNorm(NamedTuple):
    """Vectors that were normalised, and what their gradient reads: the normalised rows as codes of
    8 bits, and the factor of every row, int32 [..., 1].
    """

    output: Part
    xhat: Part
    factor: Part


class Shares(NamedTuple):
    """A softmax: int32 codes of the exponent -30, and codes of 8 bits with exponents [n, 1]."""

    codes: Tensor
    narrow: Part


class Entropy(NamedTuple):
    """The gradient's codes of a cross-entropy, int32 [n, classes], and of every row what its loss
    is made of (6.1), int64 [n] on the CPU: log2(S) - 24, and the sum of distances D.
    """

    codes: Tensor
    logs: Tensor
    distances: Tensor


@dataclass(frozen=True)
class Gradient:
    """The parts of a gradient, and for each an upper bound of max|codes| where one is known.

    A bound of 0 says that the part is all zeros.
    """

    parts: tuple[WholePart, ...]
    bounds: tuple[int | None, ...]


@dataclass(frozen=True)
class SGDTerms:
    """The operands of one step of SGD for a parameter.

    codes, delayed: W and A, whose joint value J has the exponent e_a, one or by rows [O, 1, ...]
    decay:          weight decay, a coefficient (m, x); None: without
    momentum:       None: without, or there is none yet
    draw:           random bits of the step; None: to nearest
    """

    gradient: Gradient
    codes: Tensor
    delayed: Tensor
    e_a: Exponent
    decay: tuple[int, int] | None
    momentum: Term | None
    draw: Draw | None
