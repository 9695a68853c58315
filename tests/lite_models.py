"""Random models of one operator, for every type of codes that a runtime takes it in."""

from __future__ import annotations

from typing import Any

import numpy as np

from samebits.tflite.file import Scaling
from tflite_files import LIMITS, Net

f32 = np.float32
TOP = {"int8": 74, "int16": 19000}  # the deviation of random codes


class Build(Net):
    """A network of one operator under construction."""

    def __init__(self, rng: np.random.Generator, kind: str) -> None:
        super().__init__(0, kind)
        self.rng = rng

    def real(self, low: float = -9, high: float = 0) -> float:
        return float(f32(2.0 ** self.rng.uniform(low, high)))

    def codes(
        self, shape: Any, dtype: str = "", scale: float = 0, zero: int | None = None, **more: Any
    ) -> int:
        dtype = dtype or self.dtype
        if zero is None:
            zero = 0 if dtype != "int8" else int(self.rng.integers(-128, 128))
        found = Scaling((float(f32(scale or self.real())),), (zero,))
        return self.tensor(shape, dtype, quantization=found, **more)

    def like(self, shape: Any, x: int) -> int:
        return self.tensor(shape, quantization=self.tensors[x].quantization)

    def unit(self, x: int) -> float:
        found = self.tensors[x].quantization
        assert found is not None
        return max(found.scales)

    def rows(
        self, shape: Any, axis: int, dtype: str = "int8", each: bool = True, low: float = -12
    ) -> int:
        least, most = LIMITS[dtype]
        count = shape[axis] if each else 1
        scales = tuple(self.real(low, -4) for _ in range(count))
        array = self.rng.integers(least + 1, most + 1, shape).astype(np.int8)
        found = Scaling(scales, (0,) * count, axis)
        return self.tensor(shape, dtype, array=array, quantization=found)

    def offset(self, x: int, w: int, count: int, wide: bool = True) -> int:
        kind = "int64" if self.dtype == "int16" and wide else "int32"
        found = self.tensors[w].quantization
        assert found is not None
        scales = tuple(float(f32(self.unit(x)) * f32(s)) for s in found.scales)
        array = self.rng.integers(-2000, 2000, count).astype(kind)
        return self.tensor((count,), kind, array=array, quantization=Scaling(scales, (0,)))

    def matched(self, x: int, w: int, taps: float) -> float:
        """A scale of the result under which codes vary."""
        spread = 74 * taps**0.5 * self.unit(x) * self.unit(w)
        return spread / 2.0 ** self.rng.uniform(-1.5, 1.5)

    def given(self, *names: int) -> None:
        self.inputs += names


def sized(size: int, kernel: int, stride: int, dilation: int, same: bool) -> int:
    reach = (kernel - 1) * dilation + 1
    return -(-size // stride) if same else (size - reach) // stride + 1


def make(op: str, kind: str, rng: np.random.Generator) -> tuple[Net, tuple[int, ...]] | None:
    """A random model and its outputs; None where the kind has no such form."""
    if kind == "int4" and op not in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
        return None
    if kind == "int16" and op in NARROW:
        return None
    b = Build(rng, "int8" if kind == "int4" else kind)
    n = [int(v) for v in rng.integers(1, 9, 8)]
    found = _MADE[op](op, b, n, "int4" if kind == "int4" else "int8")
    return None if found is None else (b, found)


NARROW = (
    *("REDUCE_MAX", "REDUCE_MIN", "HARD_SWISH", "RESIZE_BILINEAR", "SPACE_TO_DEPTH", "MIRROR_PAD"),
    *("DEPTH_TO_SPACE", "ELU", "DIV", "ARG_MAX", "ARG_MIN", "GATHER", "BROADCAST_TO"),
    *("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND", "ADD_N"),
)


def _image(op: str, b: Build, n: list[int], weights: str) -> tuple[int, ...] | None:
    rng, act = b.rng, str(b.rng.choice(["NONE", "NONE", "RELU", "RELU6"]))
    h, w, same, c = n[0] + 5, n[1] + 5, bool(rng.integers(2)), n[2]
    (kh, kw), (sh, sw) = ((int(v) for v in rng.integers(1, top, 2)) for top in (5, 4))
    options = {"padding": 0 if same else 1, "stride_h": sh, "stride_w": sw, "activation": act}
    x = b.codes((1, h, w, c))
    b.given(x)
    if "POOL" in op:
        y = b.like((1, sized(h, kh, sh, 1, same), sized(w, kw, sw, 1, same), c), x)
        return (b.add(op, [x], y, filter_h=kh, filter_w=kw, **options),)
    if op == "TRANSPOSE_CONV":
        rows = b.rows((n[3], kh, kw, c), 0)
        sizes = (h * sh, w * sw) if same else ((h - 1) * sh + kh, (w - 1) * sw + kw)
        out = (1, *sizes, n[3])
        y = b.codes(out, scale=b.matched(x, rows, c * kh * kw / sh / sw))
        inputs = [b.integers(out), rows, x] + ([b.offset(x, rows, n[3])] if rng.integers(2) else [])
        return (b.add(op, inputs, y, **{**options, "activation": "NONE"}, version=len(inputs) - 1),)
    dh, dw = (int(v) for v in rng.integers(1, 3, 2)) if sh == sw == 1 else (1, 1)
    out = (1, sized(h, kh, sh, dh, same), sized(w, kw, sw, dw, same))
    if min(out) < 1:
        return None
    options |= {"dilation_h": dh, "dilation_w": dw}
    if op == "CONV_2D":
        rows = b.rows((n[3], kh, kw, c), 0, weights)
        y = b.codes((*out, n[3]), scale=b.matched(x, rows, c * kh * kw))
        wide = bool(rng.integers(2))
        inputs = [x, rows] + ([b.offset(x, rows, n[3], wide)] if rng.integers(4) else [])
        return (b.add(op, inputs, y, **options),)
    multiple = int(rng.integers(1, 4))
    rows = b.rows((1, kh, kw, c * multiple), 3, weights)
    y = b.codes((*out, c * multiple), scale=b.matched(x, rows, kh * kw))
    inputs = [x, rows, b.offset(x, rows, c * multiple)]
    return (b.add(op, inputs, y, multiplier=multiple, **options),)


def _dense(op: str, b: Build, n: list[int], weights: str) -> tuple[int, ...]:
    rng, taps = b.rng, n[1] * 5
    x = b.codes((n[0], taps))
    b.given(x)
    rows = b.rows((n[2], taps), 0, weights, bool(rng.integers(2)) and weights != "int4")
    y = b.codes((n[0], n[2]), scale=b.matched(x, rows, taps))
    wide = bool(rng.integers(2))
    inputs = [x, rows, b.offset(x, rows, n[2], wide)] if rng.integers(4) else [x, rows]
    return (b.add(op, inputs, y, activation=str(rng.choice(["NONE", "RELU", "RELU6"]))),)


def _matrices(op: str, b: Build, n: list[int], weights: str) -> tuple[int, ...]:
    turned = [bool(v) for v in b.rng.integers(0, 2, 2)]
    shapes = [(n[0], n[1], n[2]), (n[0], n[2], n[3])]
    pair = [b.codes((s[0], s[2], s[1]) if t else s) for s, t in zip(shapes, turned, strict=True)]
    b.given(*pair)
    spread = b.unit(pair[0]) * b.unit(pair[1]) * TOP[b.dtype] * n[2] ** 0.5
    y = b.codes((n[0], n[1], n[3]), scale=spread * 2.0 ** b.rng.uniform(-1, 1))
    return (b.add(op, pair, y, adj_x=turned[0], adj_y=turned[1]),)


def _two(op: str, b: Build, n: list[int], weights: str) -> tuple[int, ...]:
    rng, shape = b.rng, (n[0], n[1], n[2])
    other = shape if rng.integers(2) else (1, n[1] if rng.integers(2) else 1, n[2])
    x = b.codes(shape)
    if op == "ADD_N":
        names = [x, *(b.like(shape, x) for _ in range(int(rng.integers(1, 4))))]
        b.given(*names)
        y = b.codes(shape, scale=b.unit(x) * 2.0 ** rng.uniform(-1, 2))
        return (b.add(op, names, y),)
    if op in ("MAXIMUM", "MINIMUM"):
        z = b.like(other, x)
        b.given(x, z)
        return (b.add(op, [x, z], b.like(shape, x)),)
    more = {} if op == "SQUARED_DIFFERENCE" else {"activation": str(rng.choice(["NONE", "RELU"]))}
    scale = b.unit(x) * 2.0 ** rng.uniform(-4, 4)
    constant = rng.integers(4) == 0
    z = b.codes(other, scale=scale)
    if constant:
        low, high = LIMITS[b.dtype]
        array = rng.integers(low, high + 1, other).astype(b.dtype)
        z = b.tensor(other, array=array, quantization=b.tensors[z].quantization)
    b.given(*([x] if constant else [x, z]))
    y = max(b.unit(x), b.unit(z)) * 2.0 ** rng.uniform(-1.5, 1.5)
    if op == "MUL":
        y = b.unit(x) * b.unit(z) * TOP[b.dtype] * 2.0 ** rng.uniform(-1, 1)
    if op == "SQUARED_DIFFERENCE":
        y = y * y * TOP[b.dtype]
    return (b.add(op, [x, z], b.codes(shape, scale=y), **more),)


def _quotient(op: str, b: Build, n: list[int], weights: str) -> tuple[int, ...]:
    x = b.codes((n[0], 40, n[2]))
    b.given(x)
    count = n[2] if b.rng.integers(2) else 1
    zero = int(b.rng.integers(-128, -20))
    array = b.rng.integers(-10, 128, (count,)).astype(np.int8)
    found = Scaling((b.real(-7, -2),), (zero,))
    z = b.tensor((count,), array=array, quantization=found)
    y = b.codes((n[0], 40, n[2]), scale=b.unit(x) / b.unit(z) / 200)
    return (b.add(op, [x, z], y, activation=str(b.rng.choice(["NONE", "RELU6"]))),)


def _reduced(op: str, b: Build, n: list[int], weights: str) -> tuple[int, ...]:
    x = b.codes(n[:4])
    b.given(x)
    if op.startswith("REDUCE"):
        y = b.like((n[0], 1, n[2], n[3]), x)
        return (b.add(op, [x, b.integers([1])], y, keep_dims=True),)
    if op.startswith("ARG"):
        y = b.tensor((n[0], n[1], n[3]), "int32")
        return (b.add(op, [x, b.integers([2])], y),)
    chosen = b.rng.choice(4, b.rng.integers(1, 4), replace=False)
    axes, keep = sorted(int(v) for v in chosen), bool(b.rng.integers(2))
    out = [1 if i in axes else n[i] for i in range(4) if keep or i not in axes]
    count = int(np.prod([n[i] for i in axes])) if op == "SUM" else 1
    y = b.codes(out, scale=b.unit(x) * count**0.5 * 2.0 ** b.rng.uniform(-2, 1))
    return (b.add(op, [x, b.integers(axes)], y, keep_dims=keep),)


def _curve(op: str, b: Build, n: list[int], weights: str) -> tuple[int, ...]:
    rng, shape = b.rng, (n[0], 5, 8, n[2])
    if op in ("LOGISTIC", "TANH"):
        narrow = b.dtype == "int8"
        power = rng.integers(2) and not narrow
        x = b.codes(shape, scale=2.0**-12 if power else b.real(*((-9, 0) if narrow else (-17, -9))))
        steps = 2.0**-15 if not narrow else 2.0 ** (-8 if op == "LOGISTIC" else -7)
        y = b.codes(shape, scale=steps, zero=-128 if narrow and op == "LOGISTIC" else 0)
        b.given(x)
        return (b.add(op, [x], y),)
    x = b.codes(shape, scale=b.real(-7, -1))
    b.given(x)
    if op == "RELU6":
        return (b.add(op, [x], b.like(shape, x)),)
    y = b.codes(shape, scale=b.unit(x) * 2.0 ** rng.uniform(-1.5, 1))
    if op == "PRELU":
        array = rng.integers(-128, 128, (1, 1, n[2])).astype(np.int8)
        zero = int(rng.integers(-20, 20)) if b.dtype == "int8" else 0
        found = Scaling((b.real(-9, -6),), (zero,))
        return (b.add(op, [x, b.tensor(array.shape, "int8", array=array, quantization=found)], y),)
    alpha = {"alpha": float(f32(rng.choice([0.01, 0.2, 1.5])))} if op == "LEAKY_RELU" else {}
    return (b.add(op, [x], y, **alpha),)


def _softmax(op: str, b: Build, n: list[int], weights: str) -> tuple[int, ...]:
    shape, narrow = (n[0], n[1] * 4), b.dtype == "int8"
    x = b.codes(shape, scale=b.real(-12, 1) if narrow else b.real(-16, -9))
    b.given(x)
    y = b.codes(shape, scale=2.0**-8 if narrow else 2.0**-15, zero=-128 if narrow else 0)
    if narrow and b.rng.integers(2):
        y = b.codes(shape, "int16", 2.0**-16, -32768)
    return (b.add(op, [x], y, beta=float(b.rng.choice([1.0, 0.5, 2.0]))),)


def _other(op: str, b: Build, n: list[int], weights: str) -> tuple[int, ...]:
    kinds = ("int8", "int16", "uint8") if b.dtype == "int8" else ("int8", "int16")
    to = str(b.rng.choice(kinds))
    x = b.codes((n[0], 64))
    b.given(x)
    ratio = (2.0**-8 if to == "int16" else 1) / (2.0**-8 if b.dtype == "int16" else 1)
    zero = int(b.rng.integers(0, 256)) if to == "uint8" else None
    scale = b.unit(x) * ratio * 2.0 ** b.rng.uniform(-1, 1)
    return (b.add(op, [x], b.codes((n[0], 64), to, scale, zero)),)


def _resized(op: str, b: Build, n: list[int], weights: str) -> tuple[int, ...]:
    x = b.codes((1, n[0] + 1, n[1] + 1, n[2]))
    b.given(x)
    size, mode = [int(v) for v in b.rng.integers(1, 20, 2)], int(b.rng.integers(3))
    flags = {"align_corners": mode == 1, "half_pixel_centers": mode == 2}
    return (b.add(op, [x, b.integers(size)], b.like((1, *size, n[2]), x), **flags),)


def _filters(op: str, b: Build, n: list[int], weights: str) -> tuple[int, ...]:
    """Weights of time small enough that no sum of 32 bits may wrap."""
    state, b.dtype = b.dtype, "int8"
    rank, units, memory, taps = int(b.rng.integers(1, 3)), n[1], n[2] + 1, n[3] * 4
    x, top = b.codes((1, taps)), TOP[state]
    b.given(x)
    features = b.rows((units * rank, taps), 0, each=False)
    most = 127 if state == "int8" else 2000
    shape = (units * rank, memory)
    array = b.rng.integers(-most, most + 1, shape).astype(state)
    found = Scaling((b.real(-12, -8) if state == "int8" else b.real(-20, -16),), (0,))
    times = b.tensor(shape, state, array=array, quantization=found)
    unit = b.unit(x) * b.unit(features) * 74 * 74 * taps**0.5 / top
    held = b.codes((1, units * rank * memory), state, unit, 0, variable=True)
    to = b.unit(held) * b.unit(times) * top * most / 2 * (memory * rank) ** 0.5 / 74
    array = b.rng.integers(-500, 500, units).astype(np.int32)
    scale = float(f32(b.unit(held) * b.unit(times)))
    bias = b.tensor((units,), "int32", array=array, quantization=Scaling((scale,), (0,)))
    y = b.codes((1, units), scale=to)
    inputs = [x, features, times, bias, held]
    return (b.add(op, inputs, y, rank=rank, activation="RELU"),)


def _recurrent(op: str, b: Build, n: list[int], weights: str) -> tuple[int, ...]:
    rng, d, h, batch, steps = b.rng, n[0] * 4, n[1] * 4, int(b.rng.integers(1, 3)), n[2]
    major = bool(rng.integers(2))
    lead = (steps, batch) if major else (batch, steps)
    unit = 2.0**-7 if b.dtype == "int8" else 2.0**-15
    x = b.codes((*lead, d), scale=unit * rng.uniform(0.5, 2))
    b.given(x)
    zero, scale = (
        int(rng.integers(-20, 20)) if b.dtype == "int8" else 0,
        unit * rng.uniform(0.7, 1.1),
    )
    hidden = b.codes((batch, h), "", scale, zero, variable=True)
    cell = b.codes((batch, h), "int16", 2.0 ** -int(rng.integers(9, 16)), 0, variable=True)
    own = [b.rows((h, d), 0, each=False) for _ in range(4)]
    past = [b.rows((h, h), 0, each=False) for _ in range(4)]
    biases = [b.offset(x, w, h) for w in own]
    y = b.codes((*lead, h), "", scale, zero)
    inputs = [x, *own, *past, -1, -1, -1, *biases, -1, -1, hidden, cell, -1, -1, -1, -1]
    clip = float(rng.choice([0.0, 0.0, 0.7]))
    return (b.add(op, inputs, y, activation="TANH", cell_clip=clip, time_major=major),)


def _moved(op: str, b: Build, n: list[int], weights: str) -> tuple[int, ...]:
    rng = b.rng
    x = b.codes((2, n[1] * 2 + 2, n[2] * 2 + 2, n[3] * 4))
    b.given(x)
    shape = b.tensors[x].shape
    c, h, w = shape[3], shape[1], shape[2]
    pads = [[0, 0], *(rng.integers(0, 3, 2).tolist() for _ in range(2)), [0, 0]]
    padded = [size + sum(pair) for size, pair in zip(shape, pads, strict=True)]
    if op in ("PAD", "MIRROR_PAD"):
        mode = {"mode": int(rng.integers(2))} if op == "MIRROR_PAD" else {}
        return (b.add(op, [x, b.integers(pads)], b.like(padded, x), **mode),)
    if op == "CONCATENATION":
        z = b.like((2, h, 3, c), x)
        b.given(z)
        return (b.add(op, [x, z], b.like((2, h, w + 3, c), x), axis=2),)
    if op == "TRANSPOSE":
        order = [int(v) for v in rng.permutation(4)]
        return (b.add(op, [x, b.integers(order)], b.like([shape[i] for i in order], x)),)
    if op == "SPACE_TO_DEPTH":
        return (b.add(op, [x], b.like((2, h // 2, w // 2, c * 4), x), block_size=2),)
    if op == "DEPTH_TO_SPACE":
        return (b.add(op, [x], b.like((2, h * 2, w * 2, c // 4), x), block_size=2),)
    if op == "STRIDED_SLICE":
        ends = [b.integers(v) for v in ((0, 1, -w, 1), (2, -1, w, 4), (1, 2, 1, 1))]
        y = b.like((2, (h - 1) // 2, c - 1), x)
        ends[0] = b.integers((0, 1, 1, 1))
        return (b.add(op, [x, *ends], y, end_mask=8, shrink_axis_mask=4),)
    if op == "SLICE":
        places = [b.integers(v) for v in ((1, 0, 2, 1), (1, -1, 2, c - 1))]
        return (b.add(op, [x, *places], b.like((1, h, 2, c - 1), x)),)
    if op == "SPLIT":
        parts = [b.like((2, h // 2, w, c), x) for _ in range(2)]
        b.add(op, [b.integers(1), x], parts, num_splits=2)
        return tuple(parts)
    if op == "SPLIT_V":
        parts = [b.like((2, h, size, c), x) for size in (1, w - 1)]
        b.add(op, [x, b.integers([1, w - 1]), b.integers(2)], parts, num_splits=2)
        return tuple(parts)
    if op == "UNPACK":
        parts = [b.like((h, w, c), x) for _ in range(2)]
        b.add(op, [x], parts, num=2, axis=0)
        return tuple(parts)
    if op == "GATHER":
        places = rng.integers(0, h, 5)
        return (b.add(op, [x, b.integers(places)], b.like((2, 5, w, c), x), axis=1),)
    if op == "REVERSE_V2":
        return (b.add(op, [x, b.integers([2])], b.like(shape, x)),)
    if op == "BROADCAST_TO":
        z = b.like((1, h, 1, c), x)
        b.inputs[:] = [z]
        return (b.add(op, [z, b.integers(shape)], b.like(shape, x)),)
    blocks, one = b.integers([2, 2]), b.integers([[0, 2], [2, 0]])
    if op == "SPACE_TO_BATCH_ND":
        y = b.like((8, h // 2, w // 2, c), x)
        return (b.add(op, [x, blocks, b.integers([[0, 0], [0, 0]])], y),)
    z = b.like((8, h, w, c), x)
    b.inputs[:] = [z]
    y = b.like((2, 2 * h - 2, 2 * w - 2, c), x)
    return (b.add(op, [z, blocks, one], y),)


_MADE = {
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV"), _image),
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D"), _image),
    "FULLY_CONNECTED": _dense,
    "BATCH_MATMUL": _matrices,
    **dict.fromkeys(("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE"), _two),
    "ADD_N": _two,
    "DIV": _quotient,
    **dict.fromkeys(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "ARG_MAX", "ARG_MIN"), _reduced),
    "SOFTMAX": _softmax,
    **dict.fromkeys(("LOGISTIC", "TANH", "HARD_SWISH", "RELU", "RELU6"), _curve),
    **dict.fromkeys(("LEAKY_RELU", "PRELU", "ELU", "ABS"), _curve),
    "QUANTIZE": _other,
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), _resized),
    "SVDF": _filters,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _recurrent,
    **dict.fromkeys(("CONCATENATION", "PAD", "MIRROR_PAD", "TRANSPOSE", "SPACE_TO_DEPTH"), _moved),
    **dict.fromkeys(("DEPTH_TO_SPACE", "STRIDED_SLICE", "SLICE", "SPLIT", "SPLIT_V"), _moved),
    **dict.fromkeys(("UNPACK", "GATHER", "REVERSE_V2", "BROADCAST_TO"), _moved),
    **dict.fromkeys(("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"), _moved),
}
OPERATORS = tuple(_MADE)
