# ruff: noqa: D100
# The text below the line is what every generated PyTorch module begins with.
# ----------------------------------------------------------------------------------------------
from __future__ import annotations

import torch
from torch import Tensor, nn

# Tensors that vectors travel in are binary16 [batch, positions, lanes]. Blocks and tiles of the
# matrix-vector unit are `native` lanes wide; a block of fewer lanes has nothing but zeros beyond.
FRACTION = 2.0**40  # dot products are sums of multiples of 2**-40
CHUNK = 1 << 16  # numbers worked on at a time, so that they stay in the cache


def quantize(x: Tensor, native: int, mantissa: int) -> Tensor:
    """Block floating point of every native vector, as its values.

    x: binary16 [batch, positions, lanes]. Result: binary32 [batch, positions, blocks * lanes], the
    last block filled up with zeros if there are several. Codes have `mantissa` (at most 15) bits,
    so binary32 holds the values, and the smallest is 2**-30.
    """
    lanes = x.shape[-1]
    if lanes > native and lanes % native:
        x = nn.functional.pad(x, (0, -lanes % native))
    wide = x.float().unflatten(-1, (-1, min(lanes, native)))
    largest = wide.abs().amax(-1, keepdim=True)
    limit = (2.0**mantissa - 1) * 2.0 ** (16 - mantissa)
    if not bool((largest < limit).all()):  # an infinity, NaN, or a block at the upper end
        wide = wide.nan_to_num(0.0, 2.0**17, -(2.0**17))
        largest = wide.abs().amax(-1, keepdim=True)
    # The exponent E of binary32, one higher where the largest would round to 2**mantissa codes.
    exponent = (largest.view(torch.int32) + (1 << (23 - mantissa))) >> 23
    exponent = exponent.clamp(127 - 16, 127 + 15) - 126
    # Adding and subtracting 1.5 * 2**(23 + E - mantissa) rounds to multiples of 2**(E - mantissa).
    magic = ((exponent + (127 + 23 - mantissa)) << 23 | 1 << 22).view(torch.float32)
    return ((wide + magic) - magic).clamp_(-limit, limit).flatten(-2)


class Tiles(nn.Module):
    """A matrix in the matrix register file. values: binary32 [tiles, lanes, outputs], quantized."""

    def __init__(self, values: Tensor, requantize: bool) -> None:
        super().__init__()
        self.requantize = requantize
        self.values: Tensor
        self.flat: Tensor
        self.register_buffer("values", values.double(), persistent=False)
        self.register_buffer("flat", self.values.flatten(0, 1).contiguous(), persistent=False)
        tiles, lanes, _ = values.shape
        # How far the binary64 product of all tiles can be from the sum of the rounded tiles:
        # 2**-41 a tile, and 2**-53 a term in whatever order they are added (doubled here).
        self.rounding = tiles / (2 * FRACTION)
        self.spread = tiles * lanes * 2.0**-52 * float(self.flat.abs().sum(0).max())

    def forward(self, x: Tensor) -> Tensor:
        """x: quantized [batch, positions, tiles * lanes]. Result: binary16 [.., outputs]."""
        rows = x.flatten(0, -2)
        product = self.exact(rows) if self.requantize else self.certified(rows)
        return product.view(*x.shape[:-1], -1)

    def certified(self, rows: Tensor) -> Tensor:
        """One product of all tiles, rounded; what rounds differently within its error is redone.

        Ziv's rounding test (ACM TOMS 17(3), 1991).
        """
        error = self.rounding + self.spread * float(rows.abs().max())
        outputs = self.flat.shape[1]
        result = rows.new_empty(len(rows), outputs, dtype=torch.float16)
        unsure = rows.new_empty(len(rows), outputs, dtype=torch.bool)
        step = max(1, CHUNK // max(rows.shape[1], outputs))
        for at in range(0, len(rows), step):
            total = (rows[at : at + step].double() @ self.flat).float()
            slack = total.abs().mul_(2.0**-22).add_(error * (1 + 2.0**-20))
            low, high = (total - slack).half(), (total + slack).half()
            result[at : at + step] = high
            # As bits: whether a zero is negative counts.
            torch.ne(
                low.view(torch.int16), high.view(torch.int16), out=unsure[at : at + step]
            )
        row, output = unsure.nonzero(as_tuple=True)
        if len(row) * 64 > unsure.numel():
            return self.exact(rows)
        step = max(1, 16 * CHUNK // rows.shape[1])
        for at in range(0, len(row), step):
            r, o = row[at : at + step], output[at : at + step]
            dots = rows[r].double().mul_(self.flat.T[o])
            dots = dots.unflatten(1, self.values.shape[:2]).sum(-1).T  # exact: see `exact`
            result[r, o] = sum_tiles(dots, self.requantize)
        return result

    def exact(self, rows: Tensor) -> Tensor:
        """Tile by tile. A dot product within a tile is exact in binary64, in any order.

        Its terms share one exponent, and 2 * mantissa + log2(native) <= 39 bits hold their sum.
        """
        tiles, lanes, outputs = self.values.shape
        step = max(1, 16 * CHUNK // (tiles * max(lanes, outputs)))
        parts = []
        for part in rows.split(step):
            x = part.double().view(-1, tiles, lanes).transpose(0, 1)
            parts.append(sum_tiles(x @ self.values, self.requantize))
        return torch.cat(parts)


def sum_tiles(dots: Tensor, requantize: bool) -> Tensor:
    """Exact dot products (binary64 [tiles, ...]), each rounded to 2**-40, summed exactly.

    requantize: each goes through binary16 first. Result: binary16, rounded once.
    """
    units = torch.round(dots * FRACTION)  # ties to even
    if requantize:
        units = to_binary16(units / FRACTION).double() * FRACTION
    infinite = units.isinf()
    sign = units.sign()
    units = units.masked_fill(infinite, 0.0)
    # Two limbs, high * 2**40 + low, are exact in int64 for up to 2**22 tiles. An infinity is
    # 2**74 - 1 units.
    high = torch.floor(units / FRACTION)
    low = units - high * FRACTION
    high = torch.where(infinite, sign * 2.0**34, high).long().sum(0)
    low = torch.where(infinite, -sign, low).long().sum(0)
    high = (high + (low >> 40)).clamp(-(2**18), 2**18)  # binary16 ends at 2**16
    total = (high << 40) + (low & ((1 << 40) - 1))
    # What lies below 2**-32 only has to be told from nothing: binary16 halfway points end at 2**-25.
    total = (total & -256) + ((total & 255) != 0) * 128
    return to_binary16(total.double() / FRACTION)


def to_binary16(x: Tensor) -> Tensor:
    """Binary64 (0, or at least 2**-40 in magnitude) rounded once, to nearest, ties to even.

    First rounded to odd at the 24 bits of binary32, which makes the second rounding innocuous
    (S. Boldo, G. Melquiond, IEEE Trans. Computers 57(4), 2008).
    """
    bits, below = x.view(torch.int64), (1 << 29) - 1
    odd = (bits | ((bits & below) + below)) & ~below
    return odd.view(torch.float64).float().half()


def larger(a: Tensor, b: Tensor) -> Tensor:
    """vv_max: a if a > b, else b."""
    return torch.where(a > b, a, b)


def relu(x: Tensor) -> Tensor:
    """v_relu: x if x > 0, else +0; NaN gives +0."""
    return torch.where(x > 0, x, 0.0)


def look_up(x: Tensor, table: Tensor) -> Tensor:
    """v_sigm, v_tanh: the table (binary16 [65536]) at the bits of x."""
    return table[x.view(torch.int16).int() & 0xFFFF]


def join(*parts: Tensor) -> Tensor:
    """The positions of several tensors, one after the other; constants have a batch of 1."""
    batch = max(len(part) for part in parts)
    return torch.cat([part.expand(batch, -1, -1) for part in parts], 1)


def widen(x: Tensor, lanes: int, padding: float) -> Tensor:
    """Lanes are added that hold what the machine has there."""
    return nn.functional.pad(x, (0, lanes - x.shape[-1]), value=padding)
