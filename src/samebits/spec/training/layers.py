"""Training layers in plain Python integers: slow, obvious, no torch and no numpy.

A restatement of docs/spec/training.md, sections 5 and 7, for tensors small enough to loop over.
Every layer's forward and backward stand together; normalisations are in `norm`, the LSTM in `lstm`,
losses in `loss`, optimizers in `optimizer` and the step in `step`. The fast realisations are tested
against these for equality.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

from samebits.spec import formats
from samebits.spec.formats import EXPONENT_MAX, EXPONENT_MIN, Tensor, Weight

Pair = tuple[int, int]


@dataclass(frozen=True)
class Array:
    """A BFP tensor: value = code * 2**exponent. Codes are flat in row-major (NCHW) order."""

    codes: list[int]
    shape: tuple[int, ...]
    exponent: int
    bits: int  # 8, 16 or 32: the width its gradient or value is carried in

    def __post_init__(self) -> None:
        if len(self.codes) != math.prod(self.shape):
            raise ValueError(f"expected {self.shape} codes, found {len(self.codes)}")

    @property
    def values(self) -> list[float]:
        """The real values (exact unless they leave binary64)."""
        return [math.ldexp(float(c), self.exponent) for c in self.codes]


@dataclass(frozen=True)
class Parameter:
    """A parameter's lazy-update state (section 2) with its shape."""

    weight: Weight  # (W, A, e_W)
    shape: tuple[int, ...]

    @property
    def codes(self) -> list[int]:
        """W."""
        return self.weight[0]

    @property
    def exponent(self) -> int:
        """e_W."""
        return self.weight[2]

    @property
    def joint(self) -> Tensor:
        """(J, e_A)."""
        return formats.join(self.weight)

    @property
    def values(self) -> list[float]:
        """The real joint values, exactly."""
        joint, exponent = self.joint
        return [math.ldexp(float(j), exponent) for j in joint]


def initial_parameter(values: Sequence[float], shape: tuple[int, ...]) -> Parameter:
    """The parameter state of real initial values. Section 2."""
    return Parameter(formats.initial_weight(values), shape)


def quantize(
    values: Sequence[float],
    bits: int,
    low: int | None = EXPONENT_MIN,
    high: int | None = EXPONENT_MAX,
) -> Tensor:
    """Reals to BFP: smallest exponent from `low` up (None: no limit), rne; zeros: -128."""
    rational = formats.reals(values)
    largest = max((abs(v) for v in rational), default=Fraction(0))
    if largest == 0:
        return [0] * len(rational), EXPONENT_MIN
    floor = formats.floor_log2(largest) - 64 if low is None else low
    exponent = formats.smallest_exponent(largest, formats.CODE_MAX[bits], floor, high)
    return [formats.round_real(v / formats.power(exponent)) for v in rational], exponent


def quantize_input(values: Sequence[float], shape: tuple[int, ...]) -> Array:
    """Real inputs as bfp8. Section 5."""
    codes, exponent = quantize(values, 8)
    return Array(codes, shape, exponent, 8)


def narrow(
    acc: Sequence[int], shape: tuple[int, ...], exponent: int, bits: int, divisor: int = 1
) -> Array:
    """`requantize` (1.1) with a shape."""
    codes, out = formats.requantize(acc, exponent, bits, divisor)
    return Array(codes, shape, out, bits)


def wide(acc: Sequence[int], shape: tuple[int, ...], exponent: int) -> Array:
    """`shorten` (1.2) with a shape."""
    codes, out = formats.shorten(acc, exponent)
    return Array(codes, shape, out, 32)


def resolve(parts: Sequence[Array]) -> Array:
    """The gradient a node consumes. Section 1.3: one part is itself, several make a bfp32."""
    if len(parts) == 1:
        return parts[0]
    codes, exponent = formats.resolve([(p.codes, p.exponent) for p in parts])
    return Array(codes, parts[0].shape, exponent, 32)


# --- Linear and Conv2d (sections 5 and 7) ---------------------------------------------------
#
# Both are a list of taps (output index, input index, weight index): the output is the sum of
# x * w over its taps, and both gradients are sums over the same taps.

Tap = tuple[int, int, int]


def linear_taps(rows: int, inputs: int, outputs: int) -> Iterator[Tap]:
    """The products of y[r, o] = sum x[r, i] * w[o, i]."""
    for r, o, i in product(range(rows), range(outputs), range(inputs)):
        yield r * outputs + o, r * inputs + i, o * inputs + i


@dataclass(frozen=True)
class Geometry:
    """The settings of a convolution, each (vertical, horizontal)."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1


def output_size(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Positions of a window along one axis."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def conv_shape(x: tuple[int, ...], w: tuple[int, ...], geometry: Geometry) -> tuple[int, ...]:
    """The [N, O, H, W] of a convolution's output."""
    g = geometry
    height, width = (
        output_size(x[2 + a], w[2 + a], g.stride[a], g.padding[a], g.dilation[a]) for a in (0, 1)
    )
    return (x[0], w[0], height, width)


def conv_taps(x: tuple[int, ...], w: tuple[int, ...], geometry: Geometry) -> Iterator[Tap]:
    """The products of a convolution; those with padded zeros are left out."""
    (_, channels, height, width), (outputs, inputs, kernel_h, kernel_w) = x, w
    y = conv_shape(x, w, geometry)
    g = geometry
    for out, (n, o, row, column) in enumerate(product(*map(range, y))):
        group = o // (outputs // g.groups)
        for c, i, j in product(range(inputs), range(kernel_h), range(kernel_w)):
            h = row * g.stride[0] - g.padding[0] + i * g.dilation[0]
            v = column * g.stride[1] - g.padding[1] + j * g.dilation[1]
            if 0 <= h < height and 0 <= v < width:
                source = ((n * channels + group * inputs + c) * height + h) * width + v
                yield out, source, ((o * inputs + c) * kernel_h + i) * kernel_w + j


def taps_of(x: Array, weight: Parameter, geometry: Geometry | None) -> Iterator[Tap]:
    """The taps of a Linear (no geometry) or Conv2d layer."""
    if geometry is not None:
        return conv_taps(x.shape, weight.shape, geometry)
    outputs, inputs = weight.shape
    return linear_taps(len(x.codes) // inputs, inputs, outputs)


def affine(
    x: Array,
    weight: Parameter,
    bias: Parameter | None = None,
    geometry: Geometry | None = None,
    out_width: int = 8,
) -> Array:
    """Linear (`geometry=None`) or Conv2d, forward. Section 5."""
    if geometry is None:
        shape = (*x.shape[:-1], weight.shape[0])
        channels = [i % shape[-1] for i in range(math.prod(shape))]
    else:
        shape = conv_shape(x.shape, weight.shape, geometry)
        channels = channel_of(shape)
    acc = [0] * math.prod(shape)
    for o, i, w in taps_of(x, weight, geometry):
        acc[o] += x.codes[i] * weight.codes[w]
    exponent = x.exponent + weight.exponent
    if bias is not None and any(bias.joint[0]):
        joint, e_b = bias.joint
        common = max(exponent, e_b + max(map(abs, joint)).bit_length() - 30)
        acc = [
            formats.scaled(a, exponent - common) + formats.scaled(joint[c], e_b - common)
            for a, c in zip(acc, channels, strict=True)
        ]
        exponent = common
    return narrow(acc, shape, exponent, 8) if out_width == 8 else wide(acc, shape, exponent)


def affine_input_gradient(
    g: Array, x: Array, weight: Parameter, geometry: Geometry | None = None
) -> Array:
    """The gradient handed down by Linear or Conv2d: 16-bit g times W. Section 7."""
    g16 = g if g.bits == 16 else narrow(g.codes, g.shape, g.exponent, 16)
    acc = [0] * len(x.codes)
    for o, i, w in taps_of(x, weight, geometry):
        acc[i] += g16.codes[o] * weight.codes[w]
    return narrow(acc, x.shape, g16.exponent + weight.exponent, 16)


def affine_weight_gradient(
    g: Array, x: Array, weight: Parameter, geometry: Geometry | None = None
) -> Array:
    """The weight gradient of Linear or Conv2d: full-width g times x. Section 7."""
    acc = [0] * len(weight.codes)
    for o, i, w in taps_of(x, weight, geometry):
        acc[w] += g.codes[o] * x.codes[i]
    return wide(acc, weight.shape, g.exponent + x.exponent)


def bias_gradient(g: Array, geometry: Geometry | None = None) -> Array:
    """The sum of g over all but the channel axis. Section 7."""
    axis = len(g.shape) - 1 if geometry is None else 1
    acc = [0] * g.shape[axis]
    inner = math.prod(g.shape[axis + 1 :])
    for i, code in enumerate(g.codes):
        acc[i // inner % len(acc)] += code
    return wide(acc, (len(acc),), g.exponent)


def channel_of(shape: tuple[int, ...]) -> list[int]:
    """The channel (axis 1) of every element."""
    inner = math.prod(shape[2:])
    return [i // inner % shape[1] for i in range(math.prod(shape))]


# --- activations ----------------------------------------------------------------------------


def relu(x: Array) -> Array:
    """Section 5."""
    return replace(x, codes=[max(c, 0) for c in x.codes])


def relu_backward(g: Array, y: Array) -> Array:
    """Section 7; `y` is the layer's output."""
    return replace(g, codes=[c if o > 0 else 0 for c, o in zip(g.codes, y.codes, strict=True)])


def relu6_clip(exponent: int) -> int:
    """rne(6 / 2**exponent)."""
    return formats.round_real(6 / formats.power(exponent))


def relu6(x: Array) -> Array:
    """Section 5."""
    clip = relu6_clip(x.exponent)
    return replace(x, codes=[min(max(c, 0), clip) for c in x.codes])


def relu6_backward(g: Array, y: Array) -> Array:
    """Section 7; `y` is the layer's output."""
    clip = relu6_clip(y.exponent)
    codes = [c if 0 < o < clip else 0 for c, o in zip(g.codes, y.codes, strict=True)]
    return replace(g, codes=codes)


def table_activation(x: Array, table: Tensor) -> Array:
    """Section 5. `table`: 255 codes, for x = -127..127 at x's exponent, and their exponent."""
    codes, exponent = table
    return narrow([codes[c + 127] for c in x.codes], x.shape, exponent, 8)


def table_backward(g: Array, x: Array, derivative: Tensor) -> Array:
    """Section 7. `derivative`: 255 bfp16 codes and their exponent."""
    codes, exponent = derivative
    acc = [a * codes[c + 127] for a, c in zip(g.codes, x.codes, strict=True)]
    return wide(acc, g.shape, g.exponent + exponent)


# --- pooling --------------------------------------------------------------------------------


def windows(
    shape: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair
) -> tuple[tuple[int, ...], list[list[int]]]:
    """The output shape, and for every output the input indices inside the image, row-major."""
    n, c, height, width = shape
    rows = output_size(height, kernel[0], stride[0], padding[0])
    columns = output_size(width, kernel[1], stride[1], padding[1])
    members = []
    for plane, row, column in product(range(n * c), range(rows), range(columns)):
        top, left = row * stride[0] - padding[0], column * stride[1] - padding[1]
        members.append(
            [
                (plane * height + h) * width + v
                for h, v in product(range(top, top + kernel[0]), range(left, left + kernel[1]))
                if 0 <= h < height and 0 <= v < width
            ]
        )
    return (n, c, rows, columns), members


def max_pool(x: Array, kernel: Pair, stride: Pair, padding: Pair) -> tuple[Array, list[int]]:
    """The output, and the input index of the first maximum of every window. Section 5."""
    shape, members = windows(x.shape, kernel, stride, padding)
    position = [max(m, key=lambda i: x.codes[i]) for m in members]  # max: the first of equals
    return Array([x.codes[i] for i in position], shape, x.exponent, x.bits), position


def max_pool_backward(g: Array, shape: tuple[int, ...], position: Sequence[int]) -> Array:
    """g added at the saved positions. Section 7."""
    acc = [0] * math.prod(shape)
    for code, i in zip(g.codes, position, strict=True):
        acc[i] += code
    return wide(acc, shape, g.exponent)


def avg_pool(x: Array, kernel: Pair, stride: Pair, padding: Pair) -> Array:
    """Section 5. The global average is `kernel = (H, W)`."""
    shape, members = windows(x.shape, kernel, stride, padding)
    acc = [sum(x.codes[i] for i in m) for m in members]
    return narrow(acc, shape, x.exponent, 8, kernel[0] * kernel[1])


def avg_pool_backward(
    g: Array, shape: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair
) -> Array:
    """Section 7; `shape` is the input's."""
    acc = [0] * math.prod(shape)
    for code, members in zip(g.codes, windows(shape, kernel, stride, padding)[1], strict=True):
        for i in members:
            acc[i] += code
    t = max(0, 30 - max((abs(a) for a in acc), default=0).bit_length())
    acc = [formats.round_ratio(a << t, kernel[0] * kernel[1]) for a in acc]
    return wide(acc, shape, g.exponent - t)


# --- structure ------------------------------------------------------------------------------


def add(a: Array, b: Array) -> Array:
    """Section 5. Its backward hands g to both."""
    live = [t.exponent for t in (a, b) if any(t.codes)]
    if not live:
        return narrow(a.codes, a.shape, 0, 8)
    common = max(min(live), max(live) - 22)
    terms = [
        [formats.scaled(c, t.exponent - common) for c in t.codes] if any(t.codes) else t.codes
        for t in (a, b)
    ]
    return narrow([p + q for p, q in zip(*terms, strict=True)], a.shape, common, 8)


def concat(inputs: Sequence[Array]) -> Array:
    """Along the channel axis (1). Section 5. All zero: exponent -128."""
    common = max((x.exponent for x in inputs if any(x.codes)), default=EXPONENT_MIN)
    first = inputs[0].shape
    codes: list[int] = []
    for n in range(first[0]):
        for x in inputs:
            size = math.prod(x.shape[1:])
            part = x.codes[n * size : (n + 1) * size]
            codes += [formats.scaled(c, x.exponent - common) if c else 0 for c in part]
    return Array(codes, (first[0], sum(x.shape[1] for x in inputs), *first[2:]), common, 8)


def concat_backward(g: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """The slices of g, one an input. Section 7."""
    pieces: list[list[int]] = [[] for _ in shapes]
    start = 0
    for _ in range(g.shape[0]):
        for piece, shape in zip(pieces, shapes, strict=True):
            size = math.prod(shape[1:])
            piece += g.codes[start : start + size]
            start += size
    return [replace(g, codes=c, shape=s) for c, s in zip(pieces, shapes, strict=True)]


def places(shape: tuple[int, ...], axis: int, index: int) -> list[int]:
    """The flat indices of x at one index of an axis, row-major."""
    inner, size = math.prod(shape[axis + 1 :]), shape[axis]
    return [
        (outer * size + index % size) * inner + i
        for outer in range(math.prod(shape[:axis]))
        for i in range(inner)
    ]


def select(x: Array, axis: int, index: int) -> Array:
    """Indexing of one axis by one integer. Section 5."""
    codes = [x.codes[i] for i in places(x.shape, axis, index)]
    return replace(x, codes=codes, shape=x.shape[:axis] + x.shape[axis + 1 :])


def select_backward(g: Array, shape: tuple[int, ...], axis: int, index: int) -> Array:
    """Section 7; `shape` is the input's."""
    codes = [0] * math.prod(shape)
    for i, code in zip(places(shape, axis, index), g.codes, strict=True):
        codes[i] = code
    return replace(g, codes=codes, shape=shape)


def dropout_factors(probability: float, words: Sequence[int]) -> Tensor:
    """m where kept, 0 where dropped, and the exponent x. Section 5; one Philox word an element."""
    threshold = formats.round_real(math.ldexp(probability, 32))
    m, x = formats.coefficient(1.0 / (1.0 - probability))
    return [m if word >= threshold else 0 for word in words], x


def dropout(x: Array, factors: Tensor) -> Array:
    """Section 5, training only."""
    acc = [c * f for c, f in zip(x.codes, factors[0], strict=True)]
    return narrow(acc, x.shape, x.exponent + factors[1], 8)


def dropout_backward(g: Array, factors: Tensor) -> Array:
    """Section 7."""
    acc = [c * f for c, f in zip(g.codes, factors[0], strict=True)]
    return wide(acc, g.shape, g.exponent + factors[1])


def embedding(index: Array, weight: Parameter) -> Array:
    """Rows of W. Section 5. The codes of `index` are row numbers."""
    size = weight.shape[1]
    codes = [weight.codes[i * size + d] for i in index.codes for d in range(size)]
    return Array(codes, (*index.shape, size), weight.exponent, 8)


def embedding_weight_gradient(g: Array, index: Array, weight: Parameter) -> Array:
    """Rows of g summed at their index. Section 7."""
    size = weight.shape[1]
    acc = [0] * len(weight.codes)
    for position, i in enumerate(index.codes):
        for d in range(size):
            acc[i * size + d] += g.codes[position * size + d]
    return wide(acc, weight.shape, g.exponent)
