"""The arithmetic of the neural processor in PyTorch. Every generated module begins with a copy of
what follows this docstring."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

Picked = TypeVar("Picked", Tensor, "Blocks")

# Tensors that vectors travel in are binary16 [batch, positions, lanes]. Blocks and tiles of the
# matrix-vector unit are `native` lanes wide; a block of fewer lanes has nothing but zeros beyond.
# In memory the lanes of a product come first, and what is made of it point by point keeps that.
FRACTION = 2.0**40  # dot products are sums of multiples of 2**-40
CHUNK = 3 << 16  # numbers of the left side of a product at a time: the cache of a CPU holds them


class Index(nn.Module):
    """Positions to pick. They come in runs of `run` neighbours."""

    def __init__(self, positions: Tensor) -> None:
        super().__init__()
        self.positions: Tensor
        self.register_buffer("positions", positions)
        ends = (positions.diff() != 1).nonzero() + 1
        self.run = math.gcd(len(positions), *ends.flatten().tolist())


class Blocks:
    """Quantized vectors, or those of them that `index` picks.

    values: binary32 [batch, positions, blocks * lanes], multiples of `unit` of at most `largest`.
    """

    def __init__(
        self, values: Tensor, largest: float, unit: float, index: Index | None = None
    ) -> None:
        self.values, self.largest, self.unit, self.index = values, largest, unit, index

    def __getitem__(self, positions: tuple[slice, slice]) -> Blocks:
        return Blocks(self.values[positions].contiguous(), self.largest, self.unit)

    def pick(self, index: Index) -> Blocks:
        """Vectors by their numbers; nothing is copied yet."""
        return Blocks(self.values, self.largest, self.unit, index)

    def all(self) -> Tensor:
        """The vectors picked, [batch, picked, lanes]."""
        return self.values if self.index is None else pick(self.values, self.index)

    # Rows are vectors of `width` lanes: so many of what is picked, one after the other.

    def count(self, width: int) -> int:
        """Number of rows of a sample."""
        _, positions, lanes = self.values.shape
        picked = positions if self.index is None else len(self.index.positions)
        return picked * lanes // width

    def rows(self, width: int, dtype: torch.dtype) -> Iterator[Tensor]:
        """All rows, some at a time: together they may be many times as large as the values. Each
        overwrites the ones before."""
        _, positions, lanes = self.values.shape
        step = max(1, (CHUNK if self.values.is_cpu else CHUNK << 9) // width)
        samples = max(1, step // self.count(width))
        parts = (part.to(dtype) for part in self.values.split(samples))
        if self.index is None:
            for values in parts:
                yield from values.view(-1, width).split(step)
            return
        # A run of neighbours is picked at once.
        run = math.gcd(width // lanes, self.index.run)
        first = torch.arange(samples, device=self.values.device) * positions
        starts = (first[:, None] + self.index.positions[::run]).view(-1)
        chunks = starts.split(step * (width // lanes // run))
        space = self.values.new_empty(len(chunks[0]), run * lanes, dtype=dtype)
        for values in parts:
            if len(values) < samples:  # the last part
                chunks = starts[: len(starts) // samples * len(values)].split(len(space))
            neighbours = values.view(-1).unfold(0, run * lanes, lanes)
            for index in chunks:
                picked = torch.index_select(neighbours, 0, index, out=space[: len(index)])
                yield picked.view(-1, width)

    def some(self, numbers: Tensor, width: int) -> Tensor:
        """Rows by their numbers."""
        _, positions, lanes = self.values.shape
        if self.index is None:
            return self.values.view(-1, width)[numbers]
        index = self.index.positions.view(-1, width // lanes)
        sample = numbers // len(index) * positions
        picked = sample[:, None] + index[numbers % len(index)]
        return self.values.view(-1, lanes)[picked].view(-1, width)

    def blank(self, width: int) -> Tensor:
        """Which rows are nothing but zeros."""
        empty = ~self.values.any(2)
        if self.index is not None:
            empty = empty.index_select(1, self.index.positions)
        return empty.view(-1, width // self.values.shape[2]).all(1)


def quantize(x: Tensor, native: int, mantissa: int) -> Blocks:
    """Block floating point of every native vector: binary16 [batch, positions, lanes].

    Codes have `mantissa` (at most 15) bits, so binary32 holds their values; these are multiples of
    2**-30. If there are several blocks the last one is filled up with zeros.
    """
    lanes = x.shape[-1]
    if lanes > native and lanes % native:
        x = nn.functional.pad(x, (0, -lanes % native))
    batch, positions, lanes = x.shape
    x = x.permute(2, 0, 1).unflatten(0, (-1, min(lanes, native)))  # blocks, lanes, batch, positions
    # The largest magnitude of a block is the largest of the bits without their sign.
    sizes = x.abs().view(torch.int16).amax(1, keepdim=True).view(torch.float16).float()
    limit = (2.0**mantissa - 1) * 2.0 ** (16 - mantissa)
    largest = float(sizes.max())
    saturates = not largest < limit  # or holds infinities or NaN
    wide = x.float()
    if saturates:
        wide = wide.nan_to_num(0.0, 2.0**17, -(2.0**17))
        sizes = wide.abs().amax(1, keepdim=True)
    # The exponent of binary32, which is E + 126 (E <= 16: at most 142, E >= -15: at least 111), one
    # higher where the largest would round to 2**mantissa codes; 0 of a block of zeros.
    exponent = (sizes.view(torch.int32) + (1 << (23 - mantissa))) >> 23
    lowest = int(((exponent - 1) & 255).min()) + 1  # of blocks that are not all zeros
    # Adding and subtracting 1.5 * 2**(23 + E - mantissa) rounds to multiples of 2**(E - mantissa).
    magic = exponent.clamp_(111, 142).bitwise_left_shift_(23)
    magic = magic.add_((24 - mantissa) << 23 | 1 << 22).view(torch.float32)
    wide = wide.add_(magic).sub_(magic)
    if saturates:
        wide = wide.clamp_(-limit, limit)
    values = wide.flatten(0, 1).flatten(1).T.contiguous().view(batch, positions, lanes)
    unit = 2.0 ** (min(max(lowest, 111), 142) - 126 - mantissa)
    return Blocks(values, limit if saturates else min(2.0 * largest, limit), unit)


class Tiles(nn.Module):
    """A matrix in the matrix register file. values: binary32 [tiles, lanes, outputs], quantized."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values: Tensor
        self.flat: Tensor
        self.short: Tensor
        tiles, lanes, _ = values.shape
        flat = values.flatten(0, 1).T.contiguous()  # [outputs, tiles * lanes]
        self.register_buffer("values", values.mT.double().contiguous(), persistent=False)
        self.register_buffer("flat", flat.double(), persistent=False)
        self.register_buffer("short", flat, persistent=False)
        size = self.flat.abs().sum(1)
        # How far the binary64 product of all tiles can be from the sum of the rounded tiles:
        # 2**-41 a tile, and 2**-53 a term in whatever order they are added (doubled here).
        self.rounding = tiles / (2 * FRACTION)
        self.spread = tiles * lanes * 2.0**-52 * float(size.max())
        # Weights are multiples of 2**-30; `unit` is the largest power of two that divides them all.
        codes = (self.flat * 2.0**30).long()
        units = torch.where(codes == 0, 1 << 50, codes & -codes).amin(1).double() * 2.0**-30
        self.unit = float(units.min())
        self.ratio = float((units / size.clamp(min=2.0**-30)).min())

    def forward(self, x: Blocks, requantize: bool = False) -> Tensor:
        """The vectors of a position, one after the other, are what the tiles are multiplied with.

        Result: binary16 [batch, positions, outputs].
        """
        if requantize:
            product = self.exact(x, True)
        elif self.fits(x, 24) and torch.get_float32_matmul_precision() == "highest":
            product = self.product(x, self.short).add_(0.0).half()
        elif self.fits(x, 53):
            product = to_binary16(self.product(x, self.flat).add_(0.0))
        else:
            product = self.certified(x, self.rounding + self.spread * x.largest)
        return product.view(len(product), len(x.values), -1).permute(1, 2, 0)

    def fits(self, x: Blocks, bits: int) -> bool:
        """Whether numbers of so many bits hold every sum: whether it is a multiple of one unit, at
        most 2**bits of them, and no dot product has anything below 2**-40.

        Then a product of all tiles is exact, in any order; adding +0 makes +0 of a zero.
        """
        whole = x.unit * self.unit * FRACTION >= 1
        return whole and x.largest <= 2.0**bits * x.unit * self.ratio

    def product(self, x: Blocks, matrix: Tensor) -> Tensor:
        """All tiles times the rows, in the precision of the matrix: [outputs, rows]."""
        outputs, width = matrix.shape
        total, at = matrix.new_empty(outputs, len(x.values) * x.count(width)), 0
        for rows in x.rows(width, matrix.dtype):
            torch.mm(matrix, rows.T, out=total[:, at : at + len(rows)])
            at += len(rows)
        return total

    def certified(self, x: Blocks, error: float) -> Tensor:
        """One product of all tiles, rounded; what rounds differently within its error is redone.

        Ziv's rounding test (ACM TOMS 17(3), 1991): the sum that the machine rounds lies between two
        numbers, and rounding is monotonic. `slack` covers the error of the product and three
        roundings to binary32: of the product, of these numbers and (2**-20 of it) of itself.
        """
        width = self.flat.shape[1]
        total = self.product(x, self.flat).float()
        slack = total.abs().mul_(1.125 * 2.0**-23).add_(error * (1 + 2.0**-20))
        low, result = (total - slack).half(), total.add_(slack).half()
        # As bits: whether a zero is negative counts. What comes from zeros alone is +0.
        unsure = low.view(torch.int16).bitwise_xor_(result.view(torch.int16)).bool()
        blank = x.blank(width) | ~self.flat.any(1, keepdim=True)
        result.masked_fill_(blank, 0.0)
        output, row = (unsure & ~blank).nonzero(as_tuple=True)
        if len(row) * 16 > unsure.numel():
            return self.exact(x, False)
        if len(row) == 0:
            return result
        step = max(1, (CHUNK << 3) // width)
        for to, at in zip(output.split(step), row.split(step), strict=True):
            dots = x.some(at, width).double().mul_(self.flat[to])
            dots = dots.unflatten(1, self.values.shape[::2]).sum(-1).T  # exact: see `exact`
            result[to, at] = sum_tiles(dots, False)
        return result

    def exact(self, x: Blocks, requantize: bool) -> Tensor:
        """Tile by tile. A dot product within a tile is exact in binary64, in any order.

        Its terms share one exponent, and 2 * mantissa + log2(native) <= 39 bits hold their sum.
        """
        tiles, _, lanes = self.values.shape
        parts = []
        for rows in x.rows(tiles * lanes, torch.float64):
            columns = rows.view(-1, tiles, lanes).permute(1, 2, 0)
            parts.append(sum_tiles(self.values @ columns, requantize))
        return torch.cat(parts, 1)


def multiply_tiles(x: Blocks, right: Blocks, tiles: int, requantize: bool) -> Tensor:
    """Quantized vectors times the quantized rows of tiles that are no constants, tile by tile.

    x: [batch, positions * tiles, lanes]. right: [batch, outputs * tiles, lanes].
    """
    left = x.all().unflatten(1, (-1, tiles)).movedim(2, 0).double()
    columns = right.all().unflatten(1, (-1, tiles)).movedim(2, 0).double()
    return sum_tiles(left @ columns.transpose(-1, -2), requantize)


def sum_tiles(dots: Tensor, requantize: bool) -> Tensor:
    """Exact dot products (binary64 [tiles, ...]), each rounded to 2**-40, summed exactly.

    requantize: each goes through binary16 first. Result: binary16, rounded once.
    """
    units = torch.round(dots * FRACTION)  # ties to even
    if requantize:
        short = to_binary16(units.div_(FRACTION))
        if len(short) <= 1 << 13 and bool(short.abs().max() < torch.inf):
            # Multiples of 2**-24 below 2**16: binary64 holds all sums.
            return to_binary16(short.sum(0, dtype=torch.float64).add_(0.0))
        units = short.double() * FRACTION
    elif len(units) * float(units.abs().max()) < 2.0**53:
        return to_binary16(units.sum(0).add_(0.0) / FRACTION)
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
    # What lies below 2**-32 only has to be told from nothing: half-way points end at 2**-25.
    total = (total & -256) + ((total & 255) != 0) * 128
    return to_binary16(total.double() / FRACTION)


def to_binary16(x: Tensor) -> Tensor:
    """Binary64 (0, or at least 2**-40 in magnitude) rounded once, to nearest, ties to even.

    First rounded to odd at the 24 bits of binary32, which makes the second rounding innocuous
    (S. Boldo, G. Melquiond, IEEE Trans. Computers 57(4), 2008).
    """
    bits, below = x.view(torch.int64), (1 << 29) - 1
    odd = (bits & below).add_(below).bitwise_or_(bits).bitwise_and_(~below)
    return odd.view(torch.float64).half()


# --- vectors ----------------------------------------------------------------------------------


def receive(x: Tensor, shape: Sequence[int]) -> Tensor:
    """An input [batch, *shape]; shape is C, T x C or C x H x W. A position is a step or pixel."""
    x = to_binary16(x) if x.dtype == torch.float64 else x.half()
    if len(shape) == 3:
        return x.flatten(2).transpose(1, 2)
    return x.view(len(x), -1, shape[-1])


def send(x: Tensor, shape: Sequence[int], batch: int) -> Tensor:
    """An output [batch, *shape]."""
    channels = shape[0] if len(shape) == 3 else shape[-1]
    positions = shape[1] * shape[2] if len(shape) == 3 else shape[0] if len(shape) == 2 else 1
    x = x.reshape(len(x), positions, -1)[..., :channels].expand(batch, -1, -1)
    return (x.transpose(1, 2) if len(shape) == 3 else x).reshape(batch, *shape)


# Point-wise operations round once, or through binary32 as if once: 24 >= 2 * 11 + 2 bits.


def add(a: Tensor, b: Tensor) -> Tensor:
    """vv_add."""
    return a + b


def subtract(a: Tensor, b: Tensor) -> Tensor:
    """vv_a_sub_b, and vv_b_sub_a the other way round."""
    return a - b


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """vv_mul."""
    return a * b


def larger(a: Tensor, b: Tensor) -> Tensor:
    """vv_max: a if a > b, else b."""
    above = (a > b).to(torch.int16).neg_()  # all bits, where it is
    a, b = a.view(torch.int16), b.view(torch.int16)
    return (b ^ ((a ^ b) & above)).view(torch.float16)


def relu(x: Tensor) -> Tensor:
    """v_relu: x if x > 0, else +0; NaN gives +0. Negative numbers have negative bits."""
    return x.nan_to_num(0.0, torch.inf, -torch.inf).view(torch.int16).clamp(0).view(torch.float16)


def look_up(x: Tensor, table: Tensor) -> Tensor:
    """v_sigm, v_exp, ...: the table (binary16 [65536]) at the bits of x."""
    return table[x.view(torch.int16).int() & 0xFFFF]


def total(x: Tensor, lanes: int) -> Tensor:
    """v_sum: binary64 holds the sum of 8192 numbers or fewer, in any order."""
    sums = x.double().reshape(len(x), -1, lanes).sum(-1, keepdim=True).add_(0.0)
    return to_binary16(sums).expand(-1, -1, lanes).reshape(x.shape)


def largest(x: Tensor, lanes: int) -> Tensor:
    """v_max: NaN if a lane is NaN; a zero is +0."""
    most = x.reshape(len(x), -1, lanes).amax(-1, keepdim=True) + 0.0
    return most.expand(-1, -1, lanes).reshape(x.shape)


def turn(x: Tensor, native: int) -> Tensor:
    """Tiles, whose rows are positions, transposed."""
    return x.unflatten(1, (-1, native)).transpose(-1, -2).flatten(1, 2)


def join(*parts: Tensor) -> Tensor:
    """The positions of several tensors, one after the other; constants have a batch of 1."""
    batch = max(len(part) for part in parts)
    lanes_first = [part.expand(batch, -1, -1).permute(2, 0, 1) for part in parts]
    return torch.cat(lanes_first, 2).permute(1, 2, 0)


def widen(x: Tensor, lanes: int, padding: float) -> Tensor:
    """Lanes are added that hold what the machine has there."""
    return nn.functional.pad(x, (0, lanes - x.shape[-1]), value=padding)


def split(x: Tensor, native: int) -> Tensor:
    """A position a native vector."""
    return x.reshape(len(x), -1, native)


def pick(x: Picked, index: Index) -> Picked:
    """Positions by their numbers."""
    return x.pick(index) if isinstance(x, Blocks) else x.index_select(1, index.positions)


class Program(nn.Module):
    """The arrays of the data file, by name: tiles w_, constants c_, indices i_, tables t_.

    inputs: shapes by name. samples: how many a CPU computes at a time, to stay in its cache.
    """

    inputs: Mapping[str, tuple[int, ...]] = {}
    samples = 1
    t_exponential: Tensor
    t_reciprocal: Tensor

    def __init__(self, data: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, array in data.items():
            if name.startswith("w_"):
                self.add_module(name, Tiles(array))
            elif name.startswith("i_"):
                self.add_module(name, Index(array))
            else:
                self.register_buffer(name, array[None] if name.startswith("c_") else array)

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Inputs [batch, *shape], rounded to binary16, to outputs in binary16."""
        batch = check_inputs({name: tuple(x.shape) for name, x in inputs.items()}, self.inputs)
        devices = {x.device.type for x in inputs.values()} or {"cpu"}
        step = batch
        if devices == {"cpu"}:
            step = math.ceil(batch / math.ceil(batch / self.samples))
        parts = []
        with torch.no_grad(), torch.autocast(devices.pop(), enabled=False):
            for at in range(0, batch, step):
                some = {name: x[at : at + step] for name, x in inputs.items()}
                parts.append(self.run(some, min(step, batch - at)))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def softmax(self, x: Tensor, scores: Tensor, lanes: int, kept: Tensor | None = None) -> Tensor:
        """exp(x - m) over its total, m the largest of `scores`: x, and the least number in lanes
        that do not count, which `kept` says (0; 1 in others). One rounding an operation."""
        centred = subtract(x, largest(scores, lanes))
        powers = look_up(centred if kept is None else multiply(centred, kept), self.t_exponential)
        summed = powers if kept is None else multiply(powers, kept)
        return multiply(powers, look_up(total(summed, lanes), self.t_reciprocal))

    def run(self, inputs: Mapping[str, Tensor], batch: int) -> dict[str, Tensor]:
        """The program itself."""
        raise NotImplementedError


def check_inputs(
    found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> int:
    """The batch, 1 if there are no inputs. ValueError for other names or shapes than expected."""
    batch = {shape[0] if shape else 0 for shape in found.values()} or {1}
    wanted = {name: (*batch, *shape) for name, shape in expected.items()}
    if len(batch) > 1 or dict(found) != wanted or 0 in batch:
        shapes = {name: ("batch", *shape) for name, shape in expected.items()}
        raise ValueError(f"expected inputs {shapes}, found {dict(found)}")
    return batch.pop()


def read_data(path: str | Path) -> dict[str, Tensor]:
    """The arrays of a .safetensors file."""
    return load_file(path)
