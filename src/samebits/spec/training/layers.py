"""BFP tensors, Linear and Conv2d in plain Python integers: slow, obvious, no torch and no numpy.

A restatement of docs/spec/training.md, sections 5 and 7, for tensors small enough to loop over.
Every layer's forward and backward stand together; activations and what moves codes are in
`pointwise`, pools in `pooling`, normalisations in `norm`, the LSTM in `lstm`, losses in `loss`,
optimizers in `optimizer` and the step in `step`. The fast realisations are tested against these for
equality.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

from samebits.errors import RangeError
from samebits.spec import formats
from samebits.spec.formats import EXPONENT_MAX, EXPONENT_MIN, Tensor, Weight
from samebits.spec.training import rows
from samebits.spec.training.rows import Exponent, each, plus, rows_of

Pair = tuple[int, int]


@dataclass(frozen=True)
class Array:
    """A BFP tensor: value = code * 2**exponent. Codes are flat in row-major (NCHW) order.

    exponent: one for the tensor, or a tuple with one for each element (section 12).
    shifts:   of every channel, which come on top of the exponents (section 12.4); none: ()
    layer_bits: to which a layer rounds codes of more than 8 (section 14)
    """

    codes: list[int]
    shape: tuple[int, ...]
    exponent: Exponent
    bits: int  # 8, 16 or 32: the width its gradient or value is carried in
    shifts: tuple[int, ...] = ()
    layer_bits: int = 8

    def __post_init__(self) -> None:
        if len(self.codes) != math.prod(self.shape):
            raise ValueError(f"expected {self.shape} codes, found {len(self.codes)}")

    @property
    def values(self) -> list[float]:
        """The real values (exact unless they leave binary64)."""
        return [math.ldexp(float(c), e) for c, e in zip(self.codes, self.exponents, strict=True)]

    @property
    def exponents(self) -> tuple[int, ...]:
        """The exponent of every element, with its shift."""
        own = each(self.exponent, len(self.codes))
        return own if not self.shifts else tuple(map(sum, zip(own, self.by_element, strict=True)))

    @property
    def by_element(self) -> list[int]:
        """The shift of every element."""
        return [self.shifts[c] if self.shifts else 0 for c in rows.channels_of(self.shape)]

    @property
    def by_rows(self) -> bool:
        """Whether rows have exponents of their own."""
        return not isinstance(self.exponent, int)

    @property
    def one_exponent(self) -> int:
        """The exponent of a tensor which has one; ValueError by rows."""
        return _only(self.exponent)


def _only(exponent: Exponent) -> int:
    if not isinstance(exponent, int):
        raise ValueError("expected one exponent, found exponents by rows")
    return exponent


@dataclass(frozen=True)
class Parameter:
    """A parameter's lazy-update state (section 2) with its shape."""

    weight: Weight  # (W, A, e_W)
    shape: tuple[int, ...]
    widths: tuple[int, ...] = (8, 16, 32)  # of its layer (section 13)

    @property
    def codes(self) -> list[int]:
        """W."""
        return self.weight[0]

    @property
    def exponent(self) -> Exponent:
        """e_W: one, or one for each row of the first axis."""
        return self.weight[2]

    @property
    def one_exponent(self) -> int:
        """The exponent of a parameter which has one; ValueError by rows."""
        return _only(self.exponent)

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


def quantize_input(
    values: Sequence[float], shape: tuple[int, ...], by_rows: bool = False, bits: int = 8
) -> Array:
    """Real inputs as bfp8. Sections 5, 12.2 and 13."""
    if not by_rows:
        return Array(*_with_shape(quantize(values, bits), shape), bits)
    codes, exponents = [0] * len(values), [0] * len(values)
    for at in rows.members(rows_of(shape)).values():
        own, exponent = quantize([values[i] for i in at], bits)
        for i, code in zip(at, own, strict=True):
            codes[i], exponents[i] = code, exponent
    return Array(codes, shape, tuple(exponents), bits)


def _with_shape(part: Tensor, shape: tuple[int, ...]) -> tuple[list[int], tuple[int, ...], int]:
    return part[0], shape, part[1]


def narrow(
    acc: Sequence[int],
    shape: tuple[int, ...],
    exponent: Exponent,
    bits: int,
    divisor: int = 1,
    shifts: Sequence[int] = (),
) -> Array:
    """`requantize` (1.1, 12.1, 12.4) with a shape."""
    if isinstance(exponent, int):
        return Array(*_with_shape(formats.requantize(acc, exponent, bits, divisor), shape), bits)
    if not any(shifts):
        codes, own = rows.requantize(acc, exponent, rows_of(shape), bits, divisor)
        return Array(codes, shape, own, bits)
    up = [shifts[c] for c in rows.channels_of(shape)]
    fine = tuple(e - s for e, s in zip(exponent, up, strict=True))
    codes, own = rows.requantize(acc, fine, rows_of(shape), bits, divisor)
    if max(own) + max(shifts) > EXPONENT_MAX:
        raise RangeError(f"expected an exponent of at most {EXPONENT_MAX} with its shift")
    return Array(codes, shape, own, bits, tuple(shifts))


@dataclass(frozen=True)
class ExactSums:
    """acc * 2**exponent, whose width is that of their use. Section 5.

    bits:   of the codes that layers but batch norm take
    shifts: of the channels of codes (section 12.4)
    """

    acc: list[int]
    shape: tuple[int, ...]
    exponent: Exponent
    bits: int
    shifts: tuple[int, ...] = ()

    def narrow(self) -> Array:
        """The codes that a layer takes."""
        return narrow(self.acc, self.shape, self.exponent, self.bits, shifts=self.shifts)

    def short(self) -> Array:
        """The bfp16 that batch norm takes."""
        y = narrow(self.acc, self.shape, self.exponent, 16, shifts=self.shifts)
        return replace(y, layer_bits=self.bits)

    def wide(self) -> Array:
        """The bfp32 that a loss takes."""
        return replace(wide(self.acc, self.shape, self.exponent), layer_bits=self.bits)

    def clamped(self, clip: int) -> tuple[ExactSums, Array]:
        """`clamped` sums, and the mask."""
        own = each(self.exponent, len(self.acc))
        acc, mask = clamped(self.acc, own, clip)
        return replace(self, acc=acc), Array(mask, self.shape, 0, 8)


def clamped(acc: Sequence[int], exponents: Sequence[int], clip: int) -> tuple[list[int], list[int]]:
    """min(max(v, 0), limit), and 1 where 0 < v < limit: rne(clip / 2**e), none for 0. Section 5."""
    found, mask = [], []
    for v, e in zip(acc, exponents, strict=True):
        limit = formats.round_real(clip / formats.power(e)) if clip else v + 1
        found.append(min(max(v, 0), limit) if limit >= 0 else 0)
        mask.append(int(0 < v < limit))
    return found, mask


def unshifted(x: Array) -> Array:
    """The same without shifts: `align`. Section 12.4."""
    if not x.shifts:
        return x
    codes, own = rows.align(x.codes, x.exponents, rows_of(x.shape))
    return Array(codes, x.shape, own, x.bits)


def lifted(x: Array) -> Array:
    """The same values, their shifts in the codes, which may have 12 bits more."""
    codes = [c << s for c, s in zip(x.codes, x.by_element, strict=True)]
    return replace(x, codes=codes, shifts=())


def narrowed(x: Array, bits: int = 8) -> Array:
    """x as a layer takes it: codes of at most 8 bits, or 16 of a batch norm, with its shifts."""
    if x.bits <= bits:
        return x
    exponent = x.exponents if x.shifts else x.exponent
    own = x.layer_bits if bits == 8 else bits
    y = narrow(x.codes, x.shape, exponent, own, shifts=x.shifts)
    return y if bits == 8 else replace(y, layer_bits=x.layer_bits)


def wide(acc: Sequence[int], shape: tuple[int, ...], exponent: Exponent) -> Array:
    """`shorten` (1.2, 12.1) with a shape."""
    if isinstance(exponent, int):
        return Array(*_with_shape(formats.shorten(acc, exponent), shape), 32)
    codes, own = rows.shorten(acc, exponent, rows_of(shape))
    return Array(codes, shape, own, 32)


def width(x: Array) -> int:
    """Width of the codes that a layer takes."""
    return x.bits if x.bits <= 8 else x.layer_bits


def as_wide_as(x: Array, acc: Sequence[int], by: int) -> Array:
    """acc with the exponents of x and `by`: codes of its width, or bfp32. Sections 5 and 14.2."""
    exponent = plus(x.exponents if x.by_rows else x.exponent, by)
    if x.bits > 8:
        return replace(wide(acc, x.shape, exponent), layer_bits=x.layer_bits)
    return narrow(acc, x.shape, exponent, x.bits, shifts=x.shifts)


def wide_whole(acc: Sequence[int], shape: tuple[int, ...], exponent: Exponent) -> Array:
    """`shorten` of a parameter's gradient, which has one exponent."""
    if isinstance(exponent, int):
        return wide(acc, shape, exponent)
    return Array(*_with_shape(rows.shorten_whole(acc, exponent), shape), 32)


def resolve(parts: Sequence[Array]) -> Array:
    """The gradient a node consumes. Section 1.3: one part is itself, several make a bfp32."""
    if len(parts) == 1:
        return parts[0]
    shape = parts[0].shape
    pairs = [(p.codes, p.exponent) for p in parts if isinstance(p.exponent, int)]
    if len(pairs) == len(parts):
        return Array(*_with_shape(formats.resolve(pairs), shape), 32)
    codes, own = rows.resolve([(p.codes, p.exponent) for p in parts], rows_of(shape))
    return Array(codes, shape, own, 32)


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
    shifts: Sequence[int] = (),
) -> Array:
    """Linear (`geometry=None`) or Conv2d, forward, as 8 or as 32 bits. Section 5."""
    sums = exact_sums(x, weight, bias, geometry)
    return narrow(*sums, weight.widths[0], shifts=shifts) if out_width == 8 else wide(*sums)


def exact_sums(
    x: Array, weight: Parameter, bias: Parameter | None, geometry: Geometry | None
) -> tuple[list[int], tuple[int, ...], Exponent]:
    """The sums of a Linear or Conv2d, their shape and exponent."""
    if geometry is None:
        shape = (*x.shape[:-1], weight.shape[0])
        channels = [i % shape[-1] for i in range(math.prod(shape))]
    else:
        shape = conv_shape(x.shape, weight.shape, geometry)
        channels = channel_of(shape)
    acc, inputs = [0] * math.prod(shape), lifted(x).codes
    for o, i, w in taps_of(x, weight, geometry):
        acc[o] += inputs[i] * weight.codes[w]
    exponent = plus(by_row(x, len(acc)), by_output(weight, channels))
    acc, exponent = with_bias(acc, exponent, bias, channels)
    return acc, shape, exponent


def with_bias(
    acc: list[int], exponent: Exponent, bias: Parameter | None, channels: Sequence[int]
) -> tuple[list[int], Exponent]:
    """Sums and a bias at a common exponent; `channels`: of every sum. Section 5."""
    if bias is None or not any(bias.joint[0]):
        return acc, exponent
    joint, e_b = bias.joint
    least = e_b + max(map(abs, joint)).bit_length() - 30
    total = [
        formats.scaled(a, e - max(e, least)) + formats.scaled(joint[c], e_b - max(e, least))
        for a, e, c in zip(acc, each(exponent, len(acc)), channels, strict=True)
    ]
    return total, larger(exponent, least)


def by_row(x: Array, count: int) -> Exponent:
    """Exponents of the rows of x for a tensor of `count` elements with as many rows."""
    if isinstance(x.exponent, int):
        return x.exponent
    own = [x.exponent[at[0]] for at in rows.members(rows_of(x.shape)).values()]
    return tuple(own[i * len(own) // count] for i in range(count))


def by_output(weight: Parameter, channels: Sequence[int]) -> Exponent:
    """Exponents of the weight for elements of these output channels."""
    e = weight.exponent
    return e if isinstance(e, int) else tuple(e[c] for c in channels)


def larger(exponent: Exponent, least: int) -> Exponent:
    """The exponent, or `least` where that is larger."""
    if isinstance(exponent, int):
        return max(exponent, least)
    return tuple(max(e, least) for e in exponent)


def affine_input_gradient(
    g: Array, x: Array, weight: Parameter, geometry: Geometry | None = None
) -> Array:
    """The gradient handed down by Linear or Conv2d: narrow g times W. Sections 7, 12.3 and 13."""
    bits = weight.widths[1]
    if g.by_rows or not isinstance(weight.exponent, int):
        exponent = plus(g.exponent, by_output(weight, channels_of(g, geometry)))
        g16 = narrow(g.codes, g.shape, each(exponent, len(g.codes)), bits)
        down = by_row(g16, len(x.codes))
    else:
        fits = g.bits <= 16 and max(map(abs, g.codes)) <= formats.CODE_MAX[bits]
        g16 = g if fits else narrow(g.codes, g.shape, g.exponent, bits)
        down = plus(g16.exponent, weight.exponent)
    acc = [0] * len(x.codes)
    for o, i, w in taps_of(x, weight, geometry):
        acc[i] += g16.codes[o] * weight.codes[w]
    return narrow(acc, x.shape, down, bits)


def arriving(g: Array, weight: Parameter) -> Array:
    """The gradient as a product takes it: in 16 bits where intermediates have 16. Section 13."""
    is_short = weight.widths[2:] == (16,) and g.bits > 16
    return narrow(g.codes, g.shape, g.exponent, 16) if is_short else g


def channels_of(g: Array, geometry: Geometry | None) -> list[int]:
    """The output channel of every element of a gradient."""
    return channel_of(g.shape) if geometry else [i % g.shape[-1] for i in range(len(g.codes))]


def affine_weight_gradient(
    g: Array, x: Array, weight: Parameter, geometry: Geometry | None = None
) -> Array:
    """The weight gradient of Linear or Conv2d: full-width g times x. Sections 7 and 12.3."""
    codes, exponent = g.codes, plus(g.exponent, by_row(x, len(g.codes)))
    if not isinstance(exponent, int):
        channels = channels_of(g, geometry)
        codes, exponent = rows.requantize(codes, exponent, channels, 32, limited=False)
        own = dict(zip(channels, exponent, strict=True))
        size = len(weight.codes) // weight.shape[0]
        exponent = tuple(own[w // size] for w in range(len(weight.codes)))
    acc, up, shifts = [0] * len(weight.codes), x.by_element, [0] * len(weight.codes)
    for o, i, w in taps_of(x, weight, geometry):
        acc[w] += codes[o] * x.codes[i]
        shifts[w] = up[i]
    if x.shifts:
        exponent = plus(exponent, tuple(shifts))
    return wide_whole(acc, weight.shape, exponent)


def bias_gradient(g: Array, geometry: Geometry | None = None) -> Array:
    """The sum of g over all but the channel axis. Sections 7 and 12.3."""
    size = g.shape[-1] if geometry is None else g.shape[1]
    return summed(g, channels_of(g, geometry), size)


def summed(g: Array, places: Sequence[int], size: int) -> Array:
    """The sum of g over the elements of every place, with one exponent: `gather` of its rows."""
    row_of = rows_of(g.shape) if g.by_rows else [0] * len(g.codes)
    acc = [[0] * size for _ in range(row_of[-1] + 1)]
    own = [[EXPONENT_MIN] * size for _ in acc]
    exponents = each(g.exponent, len(g.codes))
    for row, code, exponent, place in zip(row_of, g.codes, exponents, places, strict=True):
        acc[row][place] += code
        own[row][place] = exponent
    if isinstance(g.exponent, int):
        return wide(acc[0], (size,), g.exponent)
    total, common = rows.gather(acc, own, 55)
    return wide(total, (size,), common)


def channel_of(shape: tuple[int, ...]) -> list[int]:
    """The channel (axis 1) of every element."""
    inner = math.prod(shape[2:])
    return [i // inner % shape[1] for i in range(math.prod(shape))]
