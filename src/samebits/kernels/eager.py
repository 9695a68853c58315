"""The torch realisation of the training kernels: any device, no compiler.

It says what every realisation does, and does it in the plainest way: products as float64 matrix
products of integers (`products`), all else in int64. Every method equals `samebits.spec.formats`
and `samebits.spec.training` bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from samebits.kernels import moments, rows, softmax
from samebits.kernels.adam import AdamTerms, adam
from samebits.kernels.averages import Averages, Factors, Spans
from samebits.kernels.geometry import Window
from samebits.kernels.moments import Update
from samebits.kernels.norm import BatchNorms, channel_sums, per_channel
from samebits.kernels.optimize import Roster, StepGradients, StepOptions
from samebits.kernels.protocol import (
    HASH_BLOCK,
    CellGradients,
    CellLayer,
    CellStates,
    Entropy,
    Found,
    Part,
    SGDTerms,
    Shares,
    State,
    Sum,
    WholePart,
)
from samebits.kernels.roundings import largest
from samebits.kernels.rows import Exponent
from samebits.kernels.tables import CODES, Tables
from samebits.kernels.update import combine_shifts, direction_exponent, update_rows
from samebits.numerics import philox
from samebits.numerics.realise import times_power
from samebits.spec import formats
from samebits.spec.training.attention import SOFTMAX_EXPONENT

SQUARES = 1 << 20  # elements whose squares are added at a time
BIAS_BITS = 55  # of the sums of a bias gradient (12.3)
DOT_BITS = 62  # of products of a gradient with codes


class Eager(BatchNorms):
    """The kernels in torch, by parts: `Roundings`, `Clamps`, `Products`, `Vectors`, `BatchNorms`.

    It has no state, so that `compiled` can fuse its point-wise methods. Sections are those of
    docs/spec/training.md.
    """

    # --- biases, sums and numbers -----------------------------------------------------------

    def add_bias(self, acc: Tensor, exponent: int, bias: Tensor) -> Sum:
        """rne(acc * 2**exponent) + bias[channel]; acc [n, co, ...], bias int64 [co]."""
        return self._sum(self.scale(acc, exponent) + per_channel(bias, acc))

    def with_bias(self, acc: Tensor, largest: int, exponent: Exponent, bias: State) -> Found:
        """(acc, largest, exponent) with a bias [co] added, J * 2**e of its state.

        The common exponent leaves J at most 30 bits, so that a sum below 2**30 and a bias below
        2**30 still fit int32. Both are rounded to it. A bias that is all zeros changes nothing.
        int32 `acc` may be written in place.
        """
        codes, delayed, e_b = bias
        value = self.joint(codes, delayed)
        length = self.largest_of(value).bit_length()
        if length == 0:
            return acc, largest, exponent
        least = e_b + length - 30
        if isinstance(exponent, Tensor):
            own = exponent.clamp(min=least)
            addend = rows.scale(per_channel(value, acc), e_b - own)
            return self.scale(acc, exponent - own) + addend, 0, own
        common = max(exponent, least)
        return *self.add_bias(acc, exponent - common, self.scale(value, e_b - common)), common

    def channel_sum(
        self, g: Tensor, exponent: Exponent, x: Tensor | None = None
    ) -> tuple[Tensor, int, int]:
        """The sum over all axes but the second, int64 [channels]; g of 16 or 32 bits.

        Its largest magnitude, and its exponent: where samples have their own it is that of `gather`
        with 55 bits (12.1). x: 8-bit codes by which g is multiplied first; then with 62 bits.
        """
        g = g if x is None else g.long() * x
        if isinstance(exponent, Tensor):
            of_samples = g.long().sum((2, 3)) if g.dim() == 4 else g
            bits = BIAS_BITS if x is None else DOT_BITS
            acc, exponent = rows.gathered(self, of_samples, exponent.flatten(1), bits)
        else:
            acc = channel_sums(g)
        return acc, self.largest_of(acc), exponent

    def times(self, v: Tensor, m: int, exponent: Exponent, bits: int) -> Part:
        """v * m * 2**exponent as codes of `bits`, one rounding; |v * m| < 2**62.

        8-bit codes v as at most 8 bits (1.1), codes v of 16 or 32 bits as bfp32 (1.2).
        """
        acc = v.long() * m
        top = largest(self, acc, exponent)
        if bits == 32:
            return self.shorten(acc, top, exponent)
        return self.requantize(acc, top, exponent, bits)

    def kept(
        self, count: int, least: int, draw: Sequence[int], device: torch.device | str
    ) -> Tensor:
        """bool [count]: whether random words are at least `least`.

        They are those of Philox of the draw (k0, k1, step, shard, call), training.md 1.5.
        """
        k0, k1, step, shard, call = draw
        return philox.words(count, (k0, k1), step, shard, device, call) >= least

    def summed(self, g: Tensor, size: Sequence[int]) -> Sum:
        """The sums of g, 16 to 64 bits, over the axes that have one place in `size`, int64."""
        axes = [axis for axis, n in enumerate(size) if n < g.shape[axis]]
        return self._sum(g.long().sum(axes, keepdim=True) if axes else g.long())

    # --- activations, addition, pooling -----------------------------------------------------

    def table(self, x: Tensor, exponent: Exponent, tables: Tables, bits: int) -> Part:
        """The entry of every 8-bit code x at an exponent, requantized to `bits` (1.1), at most 8.

        What is rounded depends on the largest entry of a code that occurs alone, of every row.

        With one exponent the table is rounded, and then looked up.
        """
        if isinstance(exponent, Tensor):
            values, of_values = tables.looked_up(x, exponent)
            return self.requantize(values, 0, of_values, bits)
        entries, e = tables.at(exponent)
        at = x.long() + 128
        used = torch.bincount(at.reshape(-1), minlength=CODES) > 0
        own = torch.where(used, entries.to(x.device), 0)
        codes, e_y = self.requantize(own, self.largest_of(own), e, bits)
        return codes[at], e_y

    def table_gradient(
        self, g: Tensor, e_g: Exponent, x: Tensor, exponent: Exponent, slopes: Tables
    ) -> Part:
        """g times the entry of x at an exponent, as bfp32, one rounding; entries of bfp16.

        g has 16 or 32 bits, so that products are below 2**46.
        """
        e: Exponent
        if isinstance(exponent, Tensor):
            found, e = slopes.looked_up(x, exponent)
        else:
            entries, e = slopes.at(exponent)
            found = entries.to(x.device)[x.long() + 128]
        acc, own = g.long() * found, e_g + e
        return self.shorten(acc, largest(self, acc, own), own)

    def side_by_side(self, parts: Sequence[WholePart], axis: int) -> WholePart:
        """8-bit codes along an axis, at the largest exponent of those that are not all zeros."""
        live = [e for codes, e in parts if self.largest_of(codes)]
        exponent = max(live, default=formats.EXPONENT_MIN)
        codes = [self.scale_to(c, min(e - exponent, 0), 8) for c, e in parts]
        return torch.cat(codes, axis), exponent

    def add(self, a: Tensor, ea: Exponent, b: Tensor, eb: Exponent, bits: int = 8) -> Part:
        """a + b of 8-bit codes, both rounded to one exponent E, requantized to `bits` (5).

        E is the smaller of their exponents, or 22 less than the larger; all zeros do not count.
        """
        return self.requantize(*self.add_sums(a, ea, b, eb), bits)

    def add_clamped(
        self, a: Tensor, ea: Exponent, b: Tensor, eb: Exponent, clip: int, bits: int
    ) -> tuple[Part, Tensor]:
        """a + b of 8-bit codes, the sums of `add`, `clamped`."""
        acc, _, exponent = self.add_sums(a, ea, b, eb)
        return self.clamped(acc, exponent, clip, bits)

    def add_sums(self, a: Tensor, ea: Exponent, b: Tensor, eb: Exponent) -> Found:
        """The sums of `add` themselves, their largest magnitude and exponent."""
        exponent: Exponent
        if isinstance(ea, int) and isinstance(eb, int):
            live = [e for codes, e in ((a, ea), (b, eb)) if self.largest_of(codes)]
            exponent = max(min(live), max(live) - rows.ROOM) if live else min(ea, eb)
        else:
            exponent = rows.common(a, ea, b, eb)
        acc = self._add_scaled(a, ea - exponent, b, eb - exponent)
        return acc, self.largest_of(acc), exponent

    def _add_scaled(self, a: Tensor, by_a: Exponent, b: Tensor, by_b: Exponent) -> Tensor:
        """rne(a * 2**by_a) + rne(b * 2**by_b) in int64."""
        return self.scale(a, by_a) + self.scale(b, by_b)

    def max_pool(self, x: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        """Window maxima [n, c, oh, ow] of 8-bit codes, and where each was found (uint8).

        The position is that of the first maximum in its window, row by row; padding never wins.
        """
        oh, ow = window.counts(*x.shape[2:])
        windows = _windows(F.pad(x.int(), _border(window, x.shape), value=-128), window)
        windows = windows.reshape(*x.shape[:2], oh, ow, window.size)
        best = windows.amax(-1, keepdim=True)
        position = torch.arange(window.size, device=x.device)
        where = torch.where(windows == best, position, window.size).amin(-1)
        return best.squeeze(-1).to(torch.int8), where.to(torch.uint8)

    def max_pool_grad(self, g: Tensor, where: Tensor, shape: torch.Size, window: Window) -> Sum:
        """g added at the saved positions of the input, int64 of `shape` [n, c, h, w]."""
        n, c, h, w = shape
        (_, width), stride, padding, _ = window
        oh, ow = g.shape[2:]
        rows = torch.arange(oh, device=g.device).view(-1, 1) * stride[0] - padding[0]
        cols = torch.arange(ow, device=g.device).view(1, -1) * stride[1] - padding[1]
        position = where.long()
        index = (rows + position // width) * w + cols + position % width
        acc = torch.zeros(n, c, h * w, dtype=torch.int64, device=g.device)
        acc.scatter_add_(2, index.flatten(2), g.long().flatten(2))
        return self._sum(acc.view(n, c, h, w))

    def window_sums(self, x: Tensor, means: Averages) -> Sum:
        """The sum over each window times L / d, int64 [n, c, oh, ow], of 8-bit codes."""
        acc = _span_sums(x.long(), means.rows, means.columns)
        return self._sum(acc if means.factors is None else acc * _outer(means.factors, acc))

    def window_sums_grad(self, g: Tensor, shape: torch.Size, means: Averages) -> Sum:
        """For each position the sum of g * L / d over windows that hold it, int64 of `shape`."""
        g = g.long() if means.factors is None else g.long() * _outer(means.factors, g)
        return self._sum(_span_sums(g, *means.holders(*shape[2:])))

    def divided(
        self, acc: Tensor, largest: int, exponent: Exponent, divisor: int, bits: int
    ) -> Part:
        """acc * 2**exponent / divisor as bfp32, of acc with at least `bits` bits (7), int64.

        acc is shifted to the left where it has less, `largest` = max|acc|, and must have room for
        that; the quotient is rounded, and then shortened.
        """
        if isinstance(exponent, Tensor):
            own = rows.bit_length(rows.largest(acc, exponent.shape))
            rows_up = (bits - own).clamp(min=0)
            return self.shorten(self.divide(acc << rows_up, divisor), 0, exponent - rows_up)
        up = max(0, bits - largest.bit_length())
        quotient = self.divide(acc << up, divisor)
        return self.shorten(quotient, self.largest_of(quotient), exponent - up)

    # --- loss -------------------------------------------------------------------------------

    def cross_entropy(
        self, z: Tensor, exponent: int | Tensor, target: Tensor, divisor: int
    ) -> Entropy:
        """The cross-entropy of class indices (6.2), divided by `divisor`; codes' exponent: -24.

        Logits [n, classes] of 8 or 32 bits, of one exponent or int64 [n, 1]; int64 targets [n], -1
        in rows that do not count, whose codes, logarithm and distance are 0.
        """
        d = z.amax(1, keepdim=True).long() - z
        p = softmax.exponentials(d, exponent)
        total = p.sum(1, keepdim=True)
        codes = self.divide(*softmax.gradient_codes(p, total, target, divisor)).to(torch.int32)
        chosen = d.gather(1, target.clamp(min=0).view(-1, 1)).view(-1)
        counted = target >= 0
        logs = softmax.logs(total.view(-1)) * counted.cpu()
        return Entropy(codes, logs, (chosen * counted).cpu())

    def hits(self, target: Tensor, classes: int, amount: int, beside: int = 0) -> Tensor:
        """int64 [n, classes]: an amount at the class of every row, else 0, and `beside` at all.

        -1 is no class, and takes no part where nothing is given beside.
        """
        rows, counted = target.view(-1, 1), (target >= 0).view(-1, 1)
        found = torch.zeros(len(target), classes, dtype=torch.int64, device=target.device)
        return found.scatter_(1, rows.clamp(min=0), counted.long() * amount) + beside

    def weighed_entropy(self, z: Tensor, exponent: int | Tensor, amounts: Tensor) -> Entropy:
        """The cross-entropy of logits as above, where int64 [n, classes] says how much of every
        class a row is (6.3): codes rne(P * A / S) - a.
        """
        d = z.amax(1, keepdim=True).long() - z
        p = softmax.exponentials(d, exponent)
        total, whole = p.sum(1, keepdim=True), amounts.sum(1, keepdim=True)
        codes = (self.divide(p * whole, total) - amounts).to(torch.int32)
        return Entropy(codes, softmax.logs(total.view(-1)), (amounts * d).sum(1).cpu())

    def softmax(self, z: Tensor, exponent: Exponent, allowed: Tensor | None) -> Shares:
        """rne(P * 2**30 / S) of vectors z [n, c], c <= 2**14, of 8 or 32 bits.

        One exponent, or int64 [n, 1]. Where bool `allowed` [n, c] is false, and in vectors
        without a place that is allowed, the result is 0.
        """
        v = z.long()
        if allowed is None:
            p = softmax.exponentials(v.amax(1, keepdim=True) - v, exponent)
        else:
            top = torch.where(allowed, v, -formats.Q32).amax(1, keepdim=True)
            d = torch.where(allowed, top - v, 0)
            p = torch.where(allowed, softmax.exponentials(d, exponent), 0)
        y = self.divide(p << 30, p.sum(1, keepdim=True).clamp(min=1)).to(torch.int32)
        return Shares(y, self.requantize_blocks(y, SOFTMAX_EXPONENT, 0, (len(y), 1), 8))

    def softmax_grad(self, g16: Tensor, e_g: Exponent, y: Tensor, e_y: Tensor) -> Part:
        """y * (S * g - sum(g * y)), S = sum y, of vectors [n, c]: int32, exponents [n, 1].

        g16 has 16 bits and one exponent or int64 [n, 1], y has 8 bits and int64 [n, 1]. What is in
        brackets is rounded to 16 bits, every vector with an exponent of its own; RangeError where
        that would be above 127.
        """
        g, codes = g16.long(), y.long()
        t = codes.sum(1, keepdim=True) * g - (g * codes).sum(1, keepdim=True)
        t16, e_t = self.requantize_blocks(t, e_g, 0, (len(y), 1), 16)
        return (t16 * codes).to(torch.int32), e_t + 2 * e_y

    # --- weights and optimizers -------------------------------------------------------------

    def square_sum(self, v: Tensor) -> int:
        """The sum of squares of codes of 8 to 32 bits, exactly.

        In halves of 16 bits, whose products' sums fit int64 by chunks.
        """
        total = 0
        for chunk in v.reshape(-1).split(SQUARES):
            low, high = chunk.long() & 0xFFFF, chunk.long() >> 16
            total += int((high * high).sum()) << 32
            total += (int((high * low).sum()) << 17) + int((low * low).sum())
        return total

    def direction(self, terms: SGDTerms, out: Tensor) -> tuple[int, int]:
        """out (e6m9) = G + decay * J + momentum * V; returns its exponent and largest code (4).

        G = resolve(gradient). Terms are rounded to a common exponent at which their sum is below
        2**52, the sum is exact, and then rounded once more, with the random bits of the terms or to
        nearest. `out` may be the momentum's own V.
        """
        t, (g, e_g) = terms, self.resolve(list(terms.gradient.parts))
        exponent, by_g, by_decay, by_momentum = combine_shifts(int(e_g), t)
        acc = self.scale(g, by_g)
        if t.decay is not None:
            acc += self.scale(self.joint(t.codes, t.delayed) * t.decay[0], by_decay)
        if t.momentum is not None:
            term = moments.scaled(t.momentum.v, t.momentum.coefficient[0], by_momentum)
            acc += torch.round(term).long()
        result = direction_exponent(exponent)
        random = None if t.draw is None else moments.moment_bits(t.draw, t.codes)
        out.copy_(moments.encode(acc.double(), result - exponent, random))
        largest = self.largest_of(out)
        return (result, largest) if largest else (formats.EXPONENT_MIN, 0)

    def adam(self, terms: AdamTerms, out: Tensor) -> tuple[int, int, int]:
        """The moments M and S of `terms`, in place, and out (e6m9) = their direction P (4).

        Returns the exponents of M, S and P.
        """
        joint = self.joint(terms.codes, terms.delayed)
        return adam(terms, times_power(joint.double(), terms.e_a), out)

    def optimize(
        self, roster: Roster, options: tuple[StepOptions, ...], gradients: StepGradients
    ) -> bool | None:
        """Steps of many parameters at once, by the options of their groups (2 to 4).

        False, and nothing is written, where some exponent does not surely stay in its range; None
        where the realisation has no such call, as here. Raises MemoryError, and nothing is written.
        """
        return None

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
        updated, rest = self._carried(codes, delayed, moments.moved(*update))
        tops = self.largest_of(updated), self.largest_of(self.joint(updated, rest))
        if commit:
            codes.copy_(updated)
            delayed.copy_(rest)
        return tops

    def _carried(self, codes: Tensor, delayed: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """W - r and t - r * 2**15 of `lazy_carry`, int64."""
        total = delayed.long() + u
        carry = self.scale(total, -formats.DELAYED_BITS)
        return codes.long() - carry, total - carry * 32768

    def lazy_resplit(self, codes: Tensor, delayed: Tensor, update: Update, by: int) -> None:
        """J = rne((J - u) * 2**-by), split again, in place (2.1, steps 2, 4 and 5).

        The exponent of the weight goes up by `by`; for by <= 0 the second rounding is exact.
        """
        value = self.joint(codes, delayed) - moments.moved(*update)
        new_codes, new_delayed = self.split(self.scale(value, -by))
        codes.copy_(new_codes)
        delayed.copy_(new_delayed)

    def lazy_rows(
        self, codes: Tensor, delayed: Tensor, exponent: Tensor, update: Update, limit: int
    ) -> Tensor:
        """The whole lazy update of rows with exponents of their own, in place; the new exponents.

        exponent: e_W, int64 [O, 1, ...]; limit: the largest code of W (13). The shift of the update
        is that against e_A = 0. The caller checks that no exponent has left its range.
        """
        state = (self.joint(codes, delayed), codes, delayed, exponent)
        new_codes, new_delayed, exponent = update_rows(*state, update, limit)
        codes.copy_(new_codes)
        delayed.copy_(new_delayed)
        return exponent

    # --- hashes -----------------------------------------------------------------------------

    def block_sums(self, data: Tensor, keys: Tensor) -> Tensor:
        """One 64-bit sum per block of bytes (uint8 [n], the last block filled with zeros), int64.

        The block as little-endian 32-bit words w, and keys k (int32 [1024]): the sum over j < 512
        of (w[j] + k[j]) * (w[512 + j] + k[512 + j]), each factor modulo 2**32, the sum modulo
        2**64. NH of J. Black et al., "UMAC: Fast and Secure Message Authentication", CRYPTO 1999.
        """
        rows = F.pad(data, (0, -data.numel() % HASH_BLOCK)).view(torch.int32).view(-1, 2, 512)
        words = (rows + keys.view(2, 512)).long() & 0xFFFFFFFF
        return (words[:, 0] * words[:, 1]).sum(1)

    # --- recurrent layers -------------------------------------------------------------------

    def recurrence(self, layer: CellLayer) -> CellStates | None:
        """The states of all steps; None where the realisation has no such pass.

        Torch goes step by step.
        """
        return None

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
        return None


def _border(window: Window, shape: torch.Size) -> tuple[int, int, int, int]:
    """A window's padding of images of `shape` as `F.pad` takes it: the last axis first."""
    (top, left), (bottom, right) = window.padding, window.ends(*shape[2:])
    return left, right, top, bottom


def _windows(padded: Tensor, window: Window) -> Tensor:
    """[n, c, oh, ow, kh, kw] of a padded image, a view."""
    (kh, kw), stride, _, _ = window
    return padded.unfold(2, kh, stride[0]).unfold(3, kw, stride[1])


def _span_sums(v: Tensor, rows: Spans, columns: Spans) -> Tensor:
    """The sum over each window of rows [first, last) and columns, int64 [n, c, oh, ow]."""
    for axis, spans in ((2, rows), (3, columns)):
        first, last = torch.tensor(spans, device=v.device).t()
        # Up to every position, and none. They may leave 64 bits; their differences do not.
        total = F.pad(v.cumsum(axis), (0, 0, 1, 0) if axis == 2 else (1, 0))
        v = total.index_select(axis, last) - total.index_select(axis, first)
    return v


def _outer(factors: tuple[Factors, Factors], like: Tensor) -> Tensor:
    """The products of factors of rows and of columns, on the device of `like`."""
    down, across = (torch.tensor(v, device=like.device) for v in factors)
    return down.view(-1, 1) * across
