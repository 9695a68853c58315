"""The kernels of training: what each takes, gives and rounds, and why its sums are exact.

`Kernels` is what a realisation must have; docs/spec/training.md says what each integer is. The
realisations are `eager.Eager` (torch, any device), and two that inherit from it what they do not do
faster: `native.Native` (C on the CPU) and `compiled.Compiled` (torch.compile). Which one serves may
change the time of a step, never a bit of it.

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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from samebits.kernels.adam import AdamTerms
from samebits.kernels.averages import Averages
from samebits.kernels.geometry import ConvShape, Window
from samebits.kernels.moments import Draw, Update
from samebits.kernels.optimize import Roster, StepGradients, StepOptions
from samebits.kernels.rows import Exponent
from samebits.kernels.tables import Tables
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


class Kernels(Protocol):
    """The operations of a realisation. Sections are those of docs/spec/training.md."""

    # --- scaling and rounding ---------------------------------------------------------------

    def largest_of(self, v: Tensor) -> int:
        """max|v| of integers of 8 to 64 bits; 0 for an empty tensor."""

    def are_below(self, index: Tensor, count: int) -> bool:
        """Whether all integers, int64, are in [0, count)."""

    def quantize(self, x: Tensor, bits: int, by_rows: bool = False) -> Part:
        """Real numbers as codes with the smallest exponent in [-128, 127], one rounding (1.1, 5).

        by_rows: each row of an activation has its own (12.2).

        Raises RangeError for numbers that are not finite, or ask for a larger exponent.
        """

    def scale(self, v: Tensor, exponent: Exponent) -> Tensor:
        """rne(v * 2**exponent) as int64. |v| <= 2**62; the caller knows that a left shift fits."""

    def scale_to(self, v: Tensor, exponent: Exponent, bits: int) -> Tensor:
        """rne(v * 2**exponent) as codes of 8, 16 or 32 bits; the caller knows that they fit."""

    def saturated(self, v: Tensor, exponent: Exponent, limit: int) -> Tensor:
        """rne(v * 2**exponent) as int64, at most `limit` in magnitude; limit < 2**15."""

    def divide(self, v: Tensor, divisor: Tensor | int) -> Tensor:
        """rne(v / divisor) as int64; divisor > 0, and twice the divisor fits int64."""

    def requantize(
        self, acc: Tensor, largest: int, exponent: Exponent, bits: int, divisor: int = 1
    ) -> Part:
        """acc * 2**exponent / divisor as bfp8 or bfp16, one rounding (1.1).

        The smallest exponent in [-128, 127] with which `largest` = max|acc| does not saturate; all
        zeros have -128. Raises RangeError where it would be above 127.
        """

    def shorten(self, acc: Tensor, largest: int, exponent: Exponent) -> Part:
        """acc * 2**exponent as bfp32 (1.2), shifted right only as far as it must be.

        Exact where `largest` = max|acc| <= Q32, else one rounding. All zeros have exponent -128.
        """

    def resolve(self, parts: list[Part]) -> Part:
        """The sum of gradient parts, aligned to the largest exponent among those not zero (1.3).

        One part is returned as it is; the sum of several is bfp32. Each part is rounded to the
        common exponent, the sum is exact and then shortened: the order of the parts is free.
        """

    def stacked(self, parts: Sequence[Part], bits: int, room: int) -> Part:
        """Codes of one shape, each with an exponent, one after the other as codes of `bits`.

        Their exponent is the largest of those that are not all zero, less `room`: those that are
        more than `room` below it are rounded. All zeros have the exponent -128. Vectors with
        exponents of their own keep them, less `room`, unless they are all zero.
        """

    def aligned(self, v: Tensor, exponent: Tensor, size: Sequence[int], keep: bool) -> Part:
        """`align` (12.1): codes of the same type, and exponents of the shape `size`.

        exponent: broadcasts against v. keep: exponents stay as they are where no row has several
        """

    # --- convolution and matrix product -----------------------------------------------------

    def conv(self, x: Tensor, w: Tensor, s: ConvShape) -> Sum:
        """Sums of products of bfp8 codes x [n, ci, h, w] and w [co, ci/groups, kh, kw].

        [n, co, oh, ow], below 2**30: at most MAX_PRODUCTS products of at most 127**2. A matrix
        product is the 1x1 convolution of one image whose pixels are the rows.
        """

    def conv_input_grad(self, g16: Tensor, w: Tensor, s: ConvShape) -> Sum:
        """The input gradient's sums [n, ci, h, w] of a 16-bit gradient g16 [n, co, oh, ow].

        Each is over the outputs that its pixel reaches, co/groups * kh * kw products below 2**22:
        below 2**47 for 2**16 output channels and 2**9 taps, and so exact in binary64 too.
        """

    def input_gradient(
        self, g16: Tensor, w: Tensor, s: ConvShape, exponent: Exponent, bits: int
    ) -> Part:
        """`conv_input_grad` at an exponent as codes of `bits` bits in int16, requantized (1.1).

        By rows: exponents of samples, or where the pixels of one image are the rows, theirs [n, 1].
        """

    def conv_weight_grad(self, g: Tensor, x: Tensor, s: ConvShape) -> Sum:
        """The weight gradient's sums [co, ci/groups, kh, kw] of g [n, co, oh, ow], 16 or 32 bits.

        Over at most MAX_SUMMED positions: below 2**31 * 2**7 * 2**24 = 2**62.
        """

    def add_bias(self, acc: Tensor, exponent: int, bias: Tensor) -> Sum:
        """rne(acc * 2**exponent) + bias[channel]; acc [n, co, ...], bias int64 [co]."""

    def with_bias(self, acc: Tensor, largest: int, exponent: Exponent, bias: State) -> Found:
        """(acc, largest, exponent) with a bias [co] added, J * 2**e of its state.

        The common exponent leaves J at most 30 bits, so that a
        sum below 2**30 and a bias below 2**30 still fit int32. Both are rounded to it. A bias that
        is all zeros changes nothing. int32 `acc` may be written in place.
        """

    def channel_sum(
        self, g: Tensor, exponent: Exponent, x: Tensor | None = None
    ) -> tuple[Tensor, int, int]:
        """The sum over all axes but the second, int64 [channels]; g of 16 or 32 bits.

        Its largest magnitude, and its exponent: where samples have their own it is that of `gather`
        with 55 bits (12.1). x: 8-bit codes by which g is multiplied first; then with 62 bits.
        """

    # --- batch normalisation (5 and 7) ------------------------------------------------------

    # For each channel over n codes z float64 [3, channels] on the CPU: the centre (a real number),
    # the inverse of the standard deviation, and `a`, which is gamma times it. By rows both kernels
    # give None where the realisation has no such pass.

    def batch_norm(
        self,
        z: Tensor,
        exponent: Exponent,
        gamma: State,
        beta: State,
        running: tuple[Tensor, Tensor] | None,
        eps: float,
    ) -> tuple[MultiplyAdds, Tensor, Tensor, int] | None:
        """The multiply-adds that normalise z, of 8 bits, by channels, scalars, and sums of z.

        running: mean and variance, float64 [channels], of which the centre is made; None: those of
        z, at most 2**24 codes a channel. Sums are int64 [2, channels] on the CPU, of z and of
        z * z, and have an exponent: that of z, or by rows one with `GUARD` bits (12.2). Raises
        RangeError where the scale of a channel is not finite.
        """

    def affine(self, z: Tensor, by: MultiplyAdds, bits: int) -> Part:
        """The multiply-adds of z, requantized to `bits` (1.1)."""

    def affine_clamped(
        self, z: Tensor, by: MultiplyAdds, clip: int, bits: int
    ) -> tuple[Part, Tensor]:
        """The multiply-adds of z, `clamped`."""

    def affine_sums(self, z: Tensor, by: MultiplyAdds) -> Tensor:
        """The multiply-adds of z themselves."""

    def batch_norm_gradient(
        self,
        g: Tensor,
        e_g: Exponent,
        z: Tensor,
        e_z: Exponent,
        scalars: Tensor,
        training: bool,
        wants_input: bool,
    ) -> tuple[Part | None, WholePart, WholePart] | None:
        """The gradients of z, where it is wanted, of gamma and of beta, as bfp32.

        scalars: those of the forward pass; training: whether they are statistics of z. Raises
        RangeError where a number is not finite.
        """

    def running_statistics(
        self,
        running: tuple[Tensor, Tensor],
        sums: tuple[Tensor, Tensor],
        n: int,
        e_z: int,
        by: float,
    ) -> None:
        """(1 - by) * old + by * new of mean and variance, float64 [channels], in place.

        New ones are those of n codes, of which `sums` are the sum and that of squares, int64.
        """

    def channel_grad_sums(self, g: Tensor, z: Tensor) -> Tensor:
        """int64 [2, channels] on the CPU: the sum of g, and of g * z; below 2**62."""

    # --- normalisation of vectors (5 and 7) -------------------------------------------------
    #
    # Vectors are rows [..., d]; what belongs to one is [..., 1].

    def vector_stats(self, z: Tensor) -> Tensor:
        """int64 [4, ..., 1]: sum, sum of squares, smallest and largest of every row of integers."""

    def vector_norm(
        self,
        z: Tensor,
        exponent: Exponent,
        gamma: State | None,
        beta: State | None,
        eps: float,
        centred: bool,
        bits: int,
    ) -> VectorNorm:
        """Every row of 8-bit codes z normalised, times gamma plus beta, as codes of `bits`.

        Rows have at most MAX_GROUP codes; not centred, their sum counts as 0. gamma, beta: of the
        places of a row [d], or of as many rows in turn [1, rows, d]. Exponents by rows may be those
        of several vectors each; the result has such, the other two have one a vector. Raises
        RangeError where an exponent would be above 127.
        """

    def vector_norm_gradient(
        self,
        g: Tensor,
        e_g: Exponent,
        xhat: Part,
        factor: Part,
        gamma: State | None,
        centred: bool,
        size: Sequence[int] | None,
    ) -> Part:
        """The gradient of z as bfp32, from g of 16 or 32 bits and what `vector_norm` found.

        g * gamma, and the difference of the sums over rows, are rounded to 16 bits. size: the shape
        of the exponents of the result; None: one, where all are numbers.
        """

    # --- exponents of vectors (12.1 and 14) -------------------------------------------------
    #
    # Integers of several axes, of vectors along the last, as codes whose exponents have the shape
    # `size`; None: one for all. Exponents of the integers broadcast; `beside` is added to them.

    def requantize_blocks(
        self,
        v: Tensor,
        exponent: Exponent,
        beside: int,
        size: Sequence[int] | None,
        bits: int,
        limited: bool = True,
    ) -> Part:
        """As codes of `bits` with the smallest exponents in [-128, 127]; not limited: in none.

        Raises RangeError where one would be above 127.
        """

    def shorten_blocks(
        self, v: Tensor, exponent: Exponent, beside: int, size: Sequence[int] | None
    ) -> Part:
        """As bfp32 with the smallest exponents that are no less than those of the integers."""

    # --- products of activations (14.1) -----------------------------------------------------
    #
    # Matrices a [count, n, k] and b [count, m, k] of 8-bit codes, k <= MAX_PRODUCTS; their sums are
    # bounded as those of a layer.

    def products(self, a: Tensor, b: Tensor) -> Sum:
        """a * b^T, [count, n, m]."""

    def products_a(self, g16: Tensor, b: Tensor) -> Sum:
        """The gradient of a, g16 * b, [count, n, k], of a 16-bit gradient [count, n, m]."""

    def products_b(self, g: Tensor, a: Tensor) -> Sum:
        """The gradient of b, g^T * a, [count, m, k], of one of 16 or 32 bits."""

    def times(self, v: Tensor, m: int, exponent: Exponent, bits: int) -> Part:
        """v * m * 2**exponent as codes of `bits`, one rounding; |v * m| < 2**62.

        8-bit codes v as at most 8 bits (1.1), codes v of 16 or 32 bits as bfp32 (1.2).
        """

    def kept(
        self, count: int, least: int, draw: Sequence[int], device: torch.device | str
    ) -> Tensor:
        """bool [count]: whether random words are at least `least`.

        They are those of Philox of the draw (k0, k1, step, shard, call), training.md 1.5.
        """

    def at_one(self, v: Tensor, exponent: Tensor, bits: int) -> WholePart:
        """Addends of `gather` (12.1), int64: v of 16 to 64 bits, whose rows have exponents, at one.

        bits: of the sums that they will be added to.
        """

    def where(self, mask: Tensor, v: Tensor) -> Tensor:
        """Codes v where a bool mask of their shape is true, 0 elsewhere."""

    def summed(self, g: Tensor, size: Sequence[int]) -> Sum:
        """The sums of g, 16 to 64 bits, over the axes that have one place in `size`, int64."""

    # --- activations, addition, pooling -----------------------------------------------------

    # A clamp is min(max(v, 0), limit), the limit rne(clip / 2**exponent), none for a clip of 0. Its
    # mask has a bit, on the device of v, for every element with 0 < v < limit (`clamps`).

    def clamp(self, v: Tensor, exponent: Exponent, clip: int) -> tuple[Tensor, Tensor]:
        """Codes or sums, |v| < 2**48, clamped as they are, and the mask."""

    def clamped(self, acc: Tensor, exponent: Exponent, clip: int, bits: int) -> tuple[Part, Tensor]:
        """Sums, int32 or int64 below 2**48, clamped, and then requantized to `bits` (1.1)."""

    def behind_mask(self, g: Tensor, mask: Tensor) -> Tensor:
        """g (16 or 32 bits) where the mask of a tensor of its shape has a bit, else 0."""

    def unpacked(self, mask: Tensor, shape: torch.Size) -> Tensor:
        """The bits of a mask as a bool tensor of the shape that it was made for."""

    def table(self, x: Tensor, exponent: Exponent, tables: Tables, bits: int) -> Part:
        """The entry of every 8-bit code x at an exponent, requantized to `bits` (1.1), at most 8.

        What is rounded depends on the largest entry of a code that occurs alone, of every row.
        """

    def table_gradient(
        self, g: Tensor, e_g: Exponent, x: Tensor, exponent: Exponent, slopes: Tables
    ) -> Part:
        """g times the entry of x at an exponent, as bfp32, one rounding; entries of bfp16.

        g has 16 or 32 bits, so that products are below 2**46.
        """

    def side_by_side(self, parts: Sequence[WholePart], axis: int) -> WholePart:
        """8-bit codes along an axis, at the largest exponent of those that are not all zeros."""

    def add(self, a: Tensor, ea: Exponent, b: Tensor, eb: Exponent, bits: int = 8) -> Part:
        """a + b of 8-bit codes, both rounded to one exponent E, requantized to `bits` (5).

        E is the smaller of their exponents, or 22 less than the larger; all zeros do not count.
        """

    def add_clamped(
        self, a: Tensor, ea: Exponent, b: Tensor, eb: Exponent, clip: int, bits: int
    ) -> tuple[Part, Tensor]:
        """a + b of 8-bit codes, the sums of `add`, `clamped`."""

    def add_sums(self, a: Tensor, ea: Exponent, b: Tensor, eb: Exponent) -> Found:
        """The sums of `add` themselves, their largest magnitude and exponent."""

    def max_pool(self, x: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        """Window maxima [n, c, oh, ow] of 8-bit codes, and where each was found (uint8).

        The position is that of the first maximum in its window, row by row; padding never wins.
        """

    def max_pool_grad(self, g: Tensor, where: Tensor, shape: torch.Size, window: Window) -> Sum:
        """g added at the saved positions of the input, int64 of `shape` [n, c, h, w]."""

    def window_sums(self, x: Tensor, means: Averages) -> Sum:
        """The sum over each window times L / d, int64 [n, c, oh, ow], of 8-bit codes."""

    def window_sums_grad(self, g: Tensor, shape: torch.Size, means: Averages) -> Sum:
        """For each position the sum of g * L / d over windows that hold it, int64 of `shape`."""

    def divided(
        self, acc: Tensor, largest: int, exponent: Exponent, divisor: int, bits: int
    ) -> Part:
        """acc * 2**exponent / divisor as bfp32, of acc with at least `bits` bits (7), int64.

        acc is shifted to the left where it has less, `largest` = max|acc|, and must have room for
        that; the quotient is rounded, and then shortened.
        """

    # --- loss (6) ---------------------------------------------------------------------------

    def cross_entropy(
        self, z: Tensor, exponent: int | Tensor, target: Tensor, divisor: int
    ) -> Entropy:
        """The cross-entropy of class indices (6.2), divided by `divisor`; codes' exponent: -24.

        Logits [n, classes] of 8 or 32 bits, of one exponent or int64 [n, 1]; int64 targets [n], -1
        in rows that do not count, whose codes, logarithm and distance are 0.
        """

    def hits(self, target: Tensor, classes: int, amount: int) -> Tensor:
        """int64 [n, classes]: an amount at the class of every row, else 0; -1 is no class."""

    def weighed_entropy(self, z: Tensor, exponent: int | Tensor, amounts: Tensor) -> Entropy:
        """The cross-entropy of logits as above, where int64 [n, classes] says how much of every
        class a row is (6.3): codes rne(P * A / S) - a.
        """

    # --- softmax (14.3) ---------------------------------------------------------------------

    def softmax(self, z: Tensor, exponent: Exponent, allowed: Tensor | None) -> Shares:
        """rne(P * 2**30 / S) of vectors z [n, c], c <= 2**14, of 8 or 32 bits.

        One exponent, or int64 [n, 1]. Where bool `allowed` [n, c] is false, and in vectors
        without a place that is allowed, the result is 0.
        """

    def softmax_grad(self, g16: Tensor, e_g: Exponent, y: Tensor, e_y: Tensor) -> Part:
        """y * (S * g - sum(g * y)), S = sum y, of vectors [n, c]: int32, exponents [n, 1].

        g16 has 16 bits and one exponent or int64 [n, 1], y has 8 bits and int64 [n, 1]. What is in
        brackets is rounded to 16 bits, every vector with an exponent of its own; RangeError where
        that would be above 127.
        """

    # --- weights and optimizers (2 to 4) ----------------------------------------------------

    def joint(self, codes: Tensor, delayed: Tensor) -> Tensor:
        """J = W * 2**15 - A, the exact value of a weight state, int64; |J| < 2**23."""

    def split(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """(W, A) of joint values, int64: W = rne(J / 2**15), A = W * 2**15 - J, |A| <= 2**14."""

    def square_sum(self, v: Tensor) -> int:
        """The sum of squares of codes of 8 to 32 bits, exactly."""

    def direction(self, terms: SGDTerms, out: Tensor) -> tuple[int, int]:
        """out (e6m9) = G + decay * J + momentum * V; returns its exponent and largest code (4).

        G = resolve(gradient). Terms are rounded to a common exponent at which their sum is below
        2**52, the sum is exact, and then rounded once more, with the random bits of the terms or to
        nearest. `out` may be the momentum's own V.
        """

    def adam(self, terms: AdamTerms, out: Tensor) -> tuple[int, int, int]:
        """The moments M and S of `terms`, in place, and out (e6m9) = their direction P (4).

        Returns the exponents of M, S and P.
        """

    def optimize(
        self, roster: Roster, options: tuple[StepOptions, ...], gradients: StepGradients
    ) -> bool | None:
        """Steps of many parameters at once, by the options of their groups (2 to 4).

        False, and nothing is written, where some exponent does not surely stay in its range; None
        where the realisation has no such call. Raises MemoryError, and nothing is written.
        """

    def lazy_carry(
        self, codes: Tensor, delayed: Tensor, update: Update, commit: bool
    ) -> tuple[int, int]:
        """max|W - r| and max|J - u| of one lazy update, where t = A + u, r = rne(t / 2**15).

        With `commit` it writes W - r and t - r * 2**15 in place (2.1, step 3). The update is
        rounded once, to the integer u, and then only moved: J = W * 2**15 - A goes down by exactly
        u, because (W - r) * 2**15 - (t - r * 2**15) = W * 2**15 - A - u. Nothing is lost below an
        8-bit code: what does not reach W waits in A. For example W = 3, A = 16000 (J = 82304) and
        u = 1000: t = 17000, r = 1, so W = 2, A = -15768 (J = 81304). An optimizer that rounded to W
        itself would lose u, 0.03 of a code, in every step.
        """

    def lazy_resplit(self, codes: Tensor, delayed: Tensor, update: Update, by: int) -> None:
        """J = rne((J - u) * 2**-by), split again, in place (2.1, steps 2, 4 and 5).

        The exponent of the weight goes up by `by`; for by <= 0 the second rounding is exact.
        """

    def lazy_rows(
        self, codes: Tensor, delayed: Tensor, exponent: Tensor, update: Update, limit: int
    ) -> Tensor:
        """The whole lazy update of rows with exponents of their own, in place; the new exponents.

        exponent: e_W, int64 [O, 1, ...]; limit: the largest code of W (13). The shift of the update
        is that against e_A = 0. The caller checks that no exponent has left its range.
        """

    # --- hashes (9) -------------------------------------------------------------------------

    def block_sums(self, data: Tensor, keys: Tensor) -> Tensor:
        """One 64-bit sum per block of bytes (uint8 [n], the last block filled with zeros), int64.

        The block as little-endian 32-bit words w, and keys k (int32 [1024]): the sum over j < 512
        of (w[j] + k[j]) * (w[512 + j] + k[512 + j]), each factor modulo 2**32, the sum modulo
        2**64. NH of J. Black et al., "UMAC: Fast and Secure Message Authentication", CRYPTO 1999.
        """

    # --- recurrent layers (5 and 7) ---------------------------------------------------------

    def recurrence(self, layer: CellLayer) -> CellStates | None:
        """The states of all steps; None where the realisation has no such pass."""

    def recurrence_gradient(
        self,
        layer: CellLayer,
        states: CellStates,
        grad: Part | None,
        at_last: Part | None,
        bits: int,
        wanted: Sequence[bool],
    ) -> CellGradients | None:
        """The gradients from that of h, [T, N, H], and of the last state; None as above.

        By rows their exponents are [T, N, 1] and [N, 1]. states: of which h is read for an LSTM.
        bits: of D where it meets the weight; wanted: whether those of the first h and state are.
        """
