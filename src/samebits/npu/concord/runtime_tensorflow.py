"""The arithmetic of the neural processor in TensorFlow. Every generated module begins with a copy
of what follows this docstring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

# Tensors that vectors travel in are binary16 [batch, positions, lanes]. Blocks and tiles of the
# matrix-vector unit are `native` lanes wide; a block of fewer lanes has nothing but zeros beyond.
# All numbers in between are normal binary32 and binary64 numbers: flushing others changes nothing.
FRACTION = 2.0**40  # dot products are sums of multiples of 2**-40
CHUNK = 1 << 20  # numbers worked on at a time


def quantize(x: tf.Tensor, native: int, mantissa: int) -> tf.Tensor:
    """Block floating point of every native vector, as its values.

    x: binary16 [batch, positions, lanes]. Result: binary32 [batch, positions, blocks * lanes], the
    last block filled up with zeros if there are several. Codes have `mantissa` (at most 15) bits,
    so binary32 holds their values.
    """
    batch, positions, lanes = x.shape
    if lanes > native and lanes % native:
        x = tf.pad(x, [[0, 0], [0, 0], [0, -lanes % native]])
    wide = tf.reshape(tf.cast(x, tf.float32), [batch, positions, -1, min(lanes, native)])
    wide = tf.where(tf.math.is_nan(wide), tf.zeros_like(wide), wide)
    wide = tf.clip_by_value(wide, -(2.0**17), 2.0**17)
    sizes = tf.reduce_max(tf.abs(wide), axis=-1, keepdims=True)
    # The exponent E of binary32, one higher where the largest would round to 2**mantissa codes.
    exponent = tf.bitwise.right_shift(tf.bitcast(sizes, tf.int32) + (1 << (23 - mantissa)), 23)
    exponent = tf.clip_by_value(exponent, 127 - 16, 127 + 15) - 126
    # Scaling by powers of two is exact: of the operations here only the rounding, ties to even.
    scale = tf.bitcast(tf.bitwise.left_shift(127 + mantissa - exponent, 23), tf.float32)
    unit = tf.bitcast(tf.bitwise.left_shift(127 - mantissa + exponent, 23), tf.float32)
    limit = 2.0**mantissa - 1
    codes = tf.clip_by_value(tf.round(wide * scale), -limit, limit)
    return tf.reshape(codes * unit, [batch, positions, -1])


class Tiles:
    """A matrix in the matrix register file. values: binary32 [tiles, lanes, outputs], quantized."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = tf.constant(values.astype(np.float64))

    def __call__(self, x: tf.Tensor, requantize: bool = False) -> tf.Tensor:
        """x: quantized, the vectors of a position one after the other: [batch, any, lanes].

        Result: binary16 [batch, positions, outputs]. A dot product within a tile is exact in
        binary64, in any order: its terms share one exponent, and 2 * mantissa + log2(native) <= 39
        bits hold their sum.
        """
        tiles, lanes, outputs = self.values.shape
        rows = tf.reshape(x, [-1, tiles, lanes])
        step = max(1, CHUNK // (tiles * max(lanes, outputs)))
        parts = []
        for at in range(0, rows.shape[0], step):
            some = tf.transpose(tf.cast(rows[at : at + step], tf.float64), [1, 0, 2])
            parts.append(sum_tiles(tf.matmul(some, self.values), requantize))
        return tf.reshape(tf.concat(parts, 0), [x.shape[0], -1, outputs])


def multiply_tiles(x: tf.Tensor, right: tf.Tensor, tiles: int, requantize: bool) -> tf.Tensor:
    """Quantized vectors times the quantized rows of tiles that are no constants, tile by tile.

    x: [batch, positions * tiles, lanes]. right: [batch, outputs * tiles, lanes].
    """
    lanes = x.shape[2]
    batch = max(x.shape[0], right.shape[0])
    both = []
    for part in (x, right):
        rows = tf.reshape(tf.cast(part, tf.float64), [part.shape[0], -1, tiles, lanes])
        rows = tf.transpose(rows, [2, 0, 1, 3])
        both.append(tf.broadcast_to(rows, [tiles, batch, rows.shape[2], lanes]))
    return sum_tiles(tf.matmul(both[0], both[1], transpose_b=True), requantize)


def sum_tiles(dots: tf.Tensor, requantize: bool) -> tf.Tensor:
    """Exact dot products (binary64 [tiles, ...]), each rounded to 2**-40, summed exactly.

    requantize: each goes through binary16 first. Result: binary16, rounded once.
    """
    units = tf.round(dots * FRACTION)  # ties to even
    if requantize:
        units = tf.cast(to_binary16(units / FRACTION), tf.float64) * FRACTION
    infinite = tf.math.is_inf(units)
    sign = tf.sign(units)
    units = tf.where(infinite, tf.zeros_like(units), units)
    # Two limbs, high * 2**40 + low, are exact in int64 for up to 2**22 tiles. An infinity is
    # 2**74 - 1 units.
    high = tf.floor(units / FRACTION)
    low = units - high * FRACTION
    high = tf.reduce_sum(tf.cast(tf.where(infinite, sign * 2.0**34, high), tf.int64), 0)
    low = tf.reduce_sum(tf.cast(tf.where(infinite, -sign, low), tf.int64), 0)
    high += tf.bitwise.right_shift(low, tf.constant(40, tf.int64))
    # Binary16 ends at 2**16.
    most = tf.constant(2**18, tf.int64)
    high = tf.minimum(tf.maximum(high, -most), most)
    rest = tf.bitwise.bitwise_and(low, tf.constant((1 << 40) - 1, tf.int64))
    total = high * tf.constant(1 << 40, tf.int64) + rest
    # What lies below 2**-32 only has to be told from nothing: half-way points end at 2**-25.
    below = tf.bitwise.bitwise_and(total, tf.constant(255, tf.int64))
    total = total - below + tf.cast(below > 0, tf.int64) * 128
    return to_binary16(tf.cast(total, tf.float64) / FRACTION)


def to_binary16(x: tf.Tensor) -> tf.Tensor:
    """Binary64 (0, or at least 2**-40 in magnitude) rounded once, to nearest, ties to even.

    First rounded to odd at the 24 bits of binary32, which makes the second rounding innocuous
    (S. Boldo, G. Melquiond, IEEE Trans. Computers 57(4), 2008).
    """
    bits = tf.bitcast(x, tf.int64)
    below = tf.constant((1 << 29) - 1, tf.int64)
    carried = tf.bitwise.bitwise_and(bits, below) + below
    odd = tf.bitwise.bitwise_and(tf.bitwise.bitwise_or(bits, carried), tf.bitwise.invert(below))
    return tf.cast(tf.cast(tf.bitcast(odd, tf.float64), tf.float32), tf.float16)


# --- vectors ----------------------------------------------------------------------------------


def receive(x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """An input [batch, *shape]; shape is C, T x C or C x H x W. A position is a step or pixel."""
    x = to_binary16(x) if x.dtype == tf.float64 else tf.cast(x, tf.float16)
    if len(shape) == 3:
        return tf.transpose(tf.reshape(x, [x.shape[0], shape[0], -1]), [0, 2, 1])
    return tf.reshape(x, [x.shape[0], -1, shape[-1]])


def send(x: tf.Tensor, shape: Sequence[int], batch: int) -> tf.Tensor:
    """An output [batch, *shape]."""
    channels = shape[0] if len(shape) == 3 else shape[-1]
    positions = shape[1] * shape[2] if len(shape) == 3 else shape[0] if len(shape) == 2 else 1
    x = tf.reshape(x, [x.shape[0], positions, -1])[:, :, :channels]
    x = tf.broadcast_to(x, [batch, positions, channels])
    return tf.reshape(tf.transpose(x, [0, 2, 1]) if len(shape) == 3 else x, [batch, *shape])


# Point-wise operations go through binary32, which rounds as if once: 24 >= 2 * 11 + 2 bits.


def add(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """vv_add."""
    return tf.cast(tf.cast(a, tf.float32) + tf.cast(b, tf.float32), tf.float16)


def subtract(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """vv_a_sub_b, and vv_b_sub_a the other way round."""
    return tf.cast(tf.cast(a, tf.float32) - tf.cast(b, tf.float32), tf.float16)


def multiply(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """vv_mul."""
    return tf.cast(tf.cast(a, tf.float32) * tf.cast(b, tf.float32), tf.float16)


def larger(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """vv_max: a if a > b, else b."""
    return tf.where(a > b, a, b)


def relu(x: tf.Tensor) -> tf.Tensor:
    """v_relu: x if x > 0, else +0; NaN gives +0."""
    zero = tf.zeros_like(x)
    return tf.where(x > zero, x, zero)


def look_up(x: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """v_sigm, v_exp, ...: the table (binary16 [65536]) at the bits of x."""
    return tf.gather(table, tf.cast(tf.bitcast(x, tf.uint16), tf.int32))


def total(x: tf.Tensor, lanes: int) -> tf.Tensor:
    """v_sum: binary64 holds the sum of 8192 numbers or fewer, in any order."""
    rows = tf.reshape(tf.cast(x, tf.float64), [x.shape[0], -1, lanes])
    return _every_lane(to_binary16(tf.reduce_sum(rows, -1, keepdims=True) + 0.0), rows, x)


def largest(x: tf.Tensor, lanes: int) -> tf.Tensor:
    """v_max: NaN if a lane is NaN; a zero is +0."""
    rows = tf.reshape(tf.cast(x, tf.float32), [x.shape[0], -1, lanes])
    nothing = tf.reduce_any(tf.math.is_nan(rows), -1, keepdims=True)
    most = tf.reduce_max(rows, -1, keepdims=True)
    most = tf.where(most == 0.0, tf.zeros_like(most), most)
    most = tf.where(nothing, tf.fill(tf.shape(most), np.float32(np.nan)), most)
    return _every_lane(tf.cast(most, tf.float16), rows, x)


def _every_lane(numbers: tf.Tensor, rows: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.broadcast_to(numbers, rows.shape), like.shape)


def turn(x: tf.Tensor, native: int) -> tf.Tensor:
    """Tiles, whose rows are positions, transposed."""
    tiles = tf.reshape(x, [x.shape[0], -1, native, native])
    return tf.reshape(tf.transpose(tiles, [0, 1, 3, 2]), x.shape)


def join(*parts: tf.Tensor) -> tf.Tensor:
    """The positions of several tensors, one after the other; constants have a batch of 1."""
    batch = max(part.shape[0] for part in parts)
    return tf.concat([tf.broadcast_to(part, [batch, *part.shape[1:]]) for part in parts], 1)


def widen(x: tf.Tensor, lanes: int, padding: float) -> tf.Tensor:
    """Lanes are added that hold what the machine has there."""
    # An array: of scalars TensorFlow takes -0 for the +0 that it has seen before.
    more = np.full((*x.shape[:-1], lanes - x.shape[-1]), padding, np.float16)
    return tf.concat([x, more], -1)


def split(x: tf.Tensor, native: int) -> tf.Tensor:
    """A position a native vector."""
    return tf.reshape(x, [x.shape[0], -1, native])


def pick(x: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Positions by their numbers; of blocks too."""
    return tf.gather(x, index, axis=1)


class Program:
    """The arrays of the data file, by name: tiles w_, constants c_, indices i_, tables t_.

    inputs: shapes by name. samples: how many are computed at a time.
    """

    inputs: Mapping[str, tuple[int, ...]] = {}
    samples = 1
    t_exponential: tf.Tensor
    t_reciprocal: tf.Tensor

    def __init__(self, data: Mapping[str, np.ndarray[Any, Any]]) -> None:
        for name, array in data.items():
            if name.startswith("w_"):
                setattr(self, name, Tiles(array))
            else:
                setattr(self, name, tf.constant(array[None] if name.startswith("c_") else array))

    def __call__(self, inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Inputs [batch, *shape], rounded to binary16, to outputs in binary16."""
        batch = check_inputs({name: tuple(x.shape) for name, x in inputs.items()}, self.inputs)
        step = self.samples
        parts = [
            self.run({name: x[at : at + step] for name, x in inputs.items()}, min(step, batch - at))
            for at in range(0, batch, step)
        ]
        return {name: tf.concat([part[name] for part in parts], 0) for name in parts[0]}

    def softmax(
        self, x: tf.Tensor, scores: tf.Tensor, lanes: int, kept: tf.Tensor | None = None
    ) -> tf.Tensor:
        """exp(x - m) over its total, m the largest of `scores`: x, and the least number in lanes
        that do not count, which `kept` says (0; 1 in others). One rounding an operation."""
        centred = subtract(x, largest(scores, lanes))
        powers = look_up(centred if kept is None else multiply(centred, kept), self.t_exponential)
        summed = powers if kept is None else multiply(powers, kept)
        return multiply(powers, look_up(total(summed, lanes), self.t_reciprocal))

    def run(self, inputs: Mapping[str, tf.Tensor], batch: int) -> dict[str, tf.Tensor]:
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


def read_data(path: str | Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a .npz file."""
    with np.load(path, allow_pickle=False) as data:
        return dict(data)
