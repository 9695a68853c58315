"""The compiled kernels as ctypes functions: what each takes and returns.

Tensors go to C as pointers to memory (`memory.pointer`). Every function is `samebits_<name>` of the
C sources in `csrc/training`.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Sequence
from ctypes import c_double, c_int, c_int32, c_int64, c_uint32, c_void_p

from torch import Tensor

from samebits.kernels import build, softmax
from samebits.kernels.adam import AdamTerms
from samebits.kernels.geometry import ConvShape, Window
from samebits.kernels.memory import (
    GRADIENT,
    I8,
    I16,
    I32,
    I64,
    integers,
    like,
    pointer,
    word_pointer,
)
from samebits.kernels.moments import Draw, Update
from samebits.kernels.protocol import BITS, Entropy, SGDTerms
from samebits.kernels.rows import Exponent
from samebits.spec.formats import EXPONENT_MIN
from samebits.spec.philox import MASK
from samebits.spec.training.moments import TOP_FIELD

_CTYPES = {"p": c_void_p, "n": c_int64, "i": c_int, "-": None}
_TYPES = ("i8", "i16", "i32", "i64")
SIGNATURES = {  # the result, and the arguments: p a pointer, n int64_t, i int, - none
    "product": "n ppnnnpi",
    **dict.fromkeys(("conv", "depthwise", "depthwise_input_grad"), "n ppppi"),
    "conv_input_grad": "n ppppii",
    "conv_weight_grad": "n ppippii",
    "depthwise_weight_grad": "n ppippi",
    "reach": "n pnnn",
    **dict.fromkeys((f"max_{a}" for a in _TYPES), "n pni"),
    **dict.fromkeys((f"scale_{a}_{b}" for a in ("i32", "i64") for b in _TYPES), "- pnnpi"),
    **dict.fromkeys(("scale_rows_i32", "scale_rows_i64"), "- ppnnnnnnpi"),
    **dict.fromkeys(("max_rows_i32", "max_rows_i64"), "- pnnnnnnpi"),
    **dict.fromkeys(("row_ends_i32", "row_ends_i64"), "n ppnnnnnnnnnppi"),
    "with_bias": "n pnnnppppi",
    "channel_sum": "- pinnp",
    "channel_stats": "i pnnpi",
    "channel_affine": "- pnnppnpi",
    "channel_grad_sums": "i pipnnpi",
    "batch_norm_grad": "n pipnnpnpi",
    "vector_stats": "- pnnpi",
    "vector_normalized": "- pnnppnnnppi",
    "column_affine": "n pinnppnnpii",
    "vector_dots": "- ppnnpi",
    "vector_grad": "n ppnnpnnnpi",
    "vector_times": "n pnnpnpi",
    "relu": "- pnipi",
    "relu_grad": "- pipnipi",
    "used": "- pnpi",
    **dict.fromkeys(("lookup_i8", "lookup_i32"), "- pnppi"),
    "lookup_grad": "n pipnpnpi",
    "add_i8": "n ppnnnnpi",
    "add_grad": "n pnnnpi",
    "max_pool": "- ppppi",
    "max_pool_grad": "- ppippi",
    "entropy": "- pnnnpnppppppp",
    "softmax": "- pnnpippppi",
    "softmax_grad": "- ppnnpi",
    "combine": "n ppnnpi",
    "sgd": "- pppppnnpi",
    "adam_tops": "- pnpi",
    "adam_store": "- ppni",
    "adam_direction": "n pnnpi",
    "lazy_update": "- pppnipi",
    "lazy_resplit": "- pppnni",
    "lazy_rows": "- pppppnnni",
    "block_sums": "- pnppi",
    "lstm_gates": "- pppnnnnnppi",
    "lstm_state": "n ppnnnnp",
    "lstm_hidden": "- ppnnnpp",
    "lstm_hidden_grad": "n pipinnnp",
    "lstm_state_grad": "n pppnnnpppnnp",
    "lstm_gate_grads": "n ppppnnnppnnnnp",
}


def load(arch: str | None) -> ctypes.CDLL:
    """The compiled kernels for an instruction set (`build.load`), their signatures declared.

    ctypes would pass a plain integer as a C int, and cut a size of 64 bits; with its signature
    declared a function converts its arguments, and refuses a wrong number of them.
    """
    library = build.load(arch)
    for name, signature in SIGNATURES.items():
        result, arguments = signature.split()
        function = getattr(library, f"samebits_{name}")
        function.restype = _CTYPES[result]
        function.argtypes = [_CTYPES[argument] for argument in arguments]
    return library


class ConvStruct(ctypes.Structure):
    """`Conv` of conv.h: the geometry of a convolution."""

    _fields_ = [
        (name, c_int64)
        for name in (
            *("n", "h", "w", "ci", "oh", "ow", "co", "kh", "kw"),
            *("stride_h", "stride_w", "pad_h", "pad_w", "dil_h", "dil_w", "groups"),
        )
    ]


class PoolStruct(ctypes.Structure):
    """`Pool` of pointwise.c: the geometry of a max pool."""

    _fields_ = [
        (name, c_int64)
        for name in (
            *("n", "h", "w", "c", "oh", "ow", "kh", "kw"),
            *("stride_h", "stride_w", "pad_h", "pad_w"),
        )
    ]


class AddendStruct(ctypes.Structure):
    """`Addend` of pointwise.c: codes of 16 or 32 bits, and the exponent that scales them."""

    _fields_ = [("codes", c_void_p), ("width", c_int64), ("by", c_int64)]


def addends(count: int, *sides: tuple[Tensor, int]) -> ctypes.Array[AddendStruct]:
    """Dense codes in one memory order and their exponents as C reads them, while they live.

    count: elements of each
    """
    made = (AddendStruct(pointer(v, count, *GRADIENT), BITS[v.dtype], by) for v, by in sides)
    return (AddendStruct * len(sides))(*made)


class TermsStruct(ctypes.Structure):
    """`Terms` of update.c: the addends of a direction; a null pointer leaves one out."""

    _fields_ = [
        *((name, c_void_p) for name in ("g", "second", "w", "a", "v", "rows")),
        *(
            (name, c_int64)
            for name in (
                *("row_size", "decay", "momentum", "shift_first", "shift_second"),
                *("shift_g", "shift_decay", "shift_momentum"),
            )
        ),
    ]
    tensors: tuple[Tensor | None, ...]  # made for the struct alone, and to live as long


class DrawStruct(ctypes.Structure):
    """`Draw` of moment.h; `on` is 0 where nothing is random."""

    _fields_ = [*((name, c_uint32) for name in ("seed", "parameter", "step")), ("on", c_int32)]


class UpdateStruct(ctypes.Structure):
    """`Update` of update.c."""

    _fields_ = [("p", c_void_p), ("m", c_int64), ("shift", c_int64), ("draw", DrawStruct)]


class AdamStruct(ctypes.Structure):
    """`AdamTerms` of adam.c."""

    _fields_ = [
        *((name, c_void_p) for name in ("g", "w", "a", "first", "root", "rows")),
        ("row_size", c_int64),
        *(
            (name, c_double)
            for name in (
                *("scale_g", "scale_a", "beta1", "beta2", "rest1", "rest2"),
                *("coupled", "decoupled", "c1", "c2", "eps"),
            )
        ),
        *((name, c_int64) for name in ("base_first", "base_root", "bias_first", "bias_root")),
    ]
    tensors: tuple[Tensor | None, ...]  # as of TermsStruct


def draw_struct(draw: Draw | None) -> DrawStruct:
    """A draw as C reads it."""
    if draw is None:
        return DrawStruct(0, 0, 0, 0)
    return DrawStruct(draw.seed & MASK, draw.parameter & MASK, draw.step, 1)


def update_struct(update: Update, count: int | None = None) -> UpdateStruct:
    """A lazy update of `count` elements as C reads it; None: without its directions."""
    p, m, shift, draw = update
    directions = None if count is None else word_pointer(p, count, I16)
    return UpdateStruct(directions, m, max(shift, -900), draw_struct(draw))


def state_pointers(codes: Tensor, delayed: Tensor) -> tuple[int | None, int | None]:
    """Where C finds W and A."""
    count = codes.numel()
    return word_pointer(codes, count, I8), word_pointer(delayed, count, I16)


def terms_struct(
    terms: SGDTerms, g: Tensor, second: Tensor | None, shifts: tuple[int, int, int, Exponent, int]
) -> TermsStruct:
    """The terms of a direction as C reads them, their gradient g or the sum of g and `second`.

    shifts: of both, of their sum, of the decay (one, or by rows) and of the momentum
    """
    count = terms.codes.numel()
    g = integers(like(g, terms.codes), I32)
    second = None if second is None else like(second, terms.codes)
    decay, momentum = terms.decay, terms.momentum
    v = None if momentum is None else momentum.v
    *others, by_decay, by_momentum = shifts
    rows, by_decay = _by_rows(by_decay)
    made = TermsStruct(
        *(word_pointer(v, count, I32) for v in (g, second)),
        *state_pointers(terms.codes, terms.delayed),
        word_pointer(v, count, I16),
        *_row_pointer(terms.codes, rows),
        0 if decay is None else decay[0],
        0 if momentum is None else momentum.coefficient[0],
        # Beyond 900 binades down everything rounds to 0, as it does there.
        *(max(shift, -900) for shift in (*others, by_decay, by_momentum)),
    )
    made.tensors = (g, second, rows)
    return made


def adam_struct(t: AdamTerms) -> AdamStruct:
    """The operands of Adam as C reads them; the exponents of the results are still missing."""
    rows, e_a = _by_rows(t.e_a)
    g, count = integers(like(t.g, t.codes), I32), t.codes.numel()
    made = AdamStruct(
        word_pointer(g, count, I32),
        *state_pointers(t.codes, t.delayed),
        *(word_pointer(v, count, I16) for v in (t.first, t.root)),
        *_row_pointer(t.codes, rows),
        *(math.ldexp(1.0, e) for e in (t.e_g, e_a)),
        *(t.beta1, t.beta2, 1.0 - t.beta1, 1.0 - t.beta2),
        *(t.coupled, t.decoupled, t.c1, t.c2, t.eps),
        *(t.e_first - TOP_FIELD, t.e_root - TOP_FIELD),
    )
    made.tensors = (g, rows)
    return made


def _by_rows(exponent: Exponent) -> tuple[Tensor | None, int]:
    """Exponents by rows as C reads them, at least -900, or None; else the one, or 0."""
    if isinstance(exponent, Tensor):
        return exponent.clamp(min=-900).contiguous(), 0
    return None, exponent


def _row_pointer(codes: Tensor, rows: Tensor | None) -> tuple[int | None, int]:
    """Where C finds the exponents of the rows of codes, and the elements of a row."""
    count = 0 if rows is None else codes.shape[0]
    return pointer(rows, count, I64), codes.numel() // count if count else 0


def real_of(bits: int) -> float:
    """The binary64 of 64 bits."""
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value


def in_two_passes(
    call: Callable[[int, int | None], int],
    out: Tensor,
    exponent: int,
    shift_of: Callable[[int], int],
) -> tuple[Tensor, int]:
    """Codes whose largest magnitude decides their exponent, which is that of the sums and a shift.

    call(0, None) gives the largest magnitude, and call(-shift, address) writes. All zeros have the
    exponent -128.
    """
    largest = call(0, None)
    if largest == 0:
        return out.zero_(), EXPONENT_MIN
    shift = shift_of(largest)
    call(-shift, pointer(out, out.numel(), out.dtype))
    return out, exponent + shift


@functools.lru_cache(maxsize=4096)
def conv_struct(s: ConvShape) -> ConvStruct:
    """A convolution's geometry as C reads it."""
    return ConvStruct(
        *(s.n, s.h, s.w, s.ci, s.oh, s.ow, s.co, s.kh, s.kw),
        *(*s.stride, *s.padding, *s.dilation, s.groups),
    )


def pool_struct(shape: Sequence[int], window: Window) -> PoolStruct:
    """The geometry of a max pool of images of `shape` [n, c, h, w] as C reads it."""
    n, c, h, w = shape
    sizes = (*window.counts(h, w), *window.kernel, *window.stride, *window.padding)
    return PoolStruct(n, h, w, c, *sizes)


def entropy(
    c: ctypes.CDLL,
    z: Tensor,
    exponent: int,
    target: Tensor | None,
    divisor: int,
    amounts: Tensor | None,
) -> Entropy:
    """`Kernels.cross_entropy` of targets, or without them `Kernels.weighed_entropy` of amounts."""
    z = integers(z, I32).contiguous()
    n, classes = z.shape
    chosen, given = (None if v is None else v.contiguous() for v in (target, amounts))
    scratch, logs, distances = (z.new_empty(size, dtype=I64) for size in (classes, n, n))
    found = Entropy(z.new_empty(z.shape), logs, distances)
    of_z, of_classes = pointer(z, n * classes, I32), pointer(chosen, n, I64)
    places = (
        pointer(given, n * classes, I64),
        *table_pointers(),
        pointer(scratch, classes, I64),
        pointer(found.codes, n * classes, I32),
        *(pointer(v, n, I64) for v in (logs, distances)),
    )
    c.samebits_entropy(of_z, n, classes, exponent, of_classes, divisor, *places)
    return found


def table_pointers() -> tuple[int | None, ...]:
    """Where C finds the two tables of powers."""
    return tuple(pointer(table, 256, I64) for table in softmax.power_tables())


def grid_of(
    shape: Sequence[int], *owners: Sequence[int], last: bool = False
) -> tuple[int, ...] | None:
    """A shape as [a, b, c] and the steps of each of its owners, as `Grid` of rows.c has them.

    owners: shapes of what belongs to rows, as exponents, 1 along axes that share one. last: whether
    memory is that of an image whose channels are last. None where axes that share owners and axes
    that do not take turns too often for three, or an owner is larger than the shape.
    """
    if any(
        count not in (1, size) for owner in owners for size, count in zip(shape, owner, strict=True)
    ):
        return None
    order = (0, 2, 3, 1) if last else range(len(shape))
    sizes: list[int] = []
    own: list[tuple[bool, ...]] = []
    for axis in order:
        if shape[axis] == 1:
            continue
        kind = tuple(owner[axis] > 1 for owner in owners)
        if own and own[-1] == kind:
            sizes[-1] *= shape[axis]
        else:
            sizes.append(shape[axis])
            own.append(kind)
    if len(sizes) > 3:
        return None
    missing = 3 - len(sizes)
    sizes, own = [1] * missing + sizes, [(False,) * len(owners)] * missing + own
    steps: list[int] = []
    for index in range(len(owners)):
        step, found = 1, [0, 0, 0]
        for axis in (2, 1, 0):
            if own[axis][index]:
                found[axis] = step
                step *= sizes[axis]
        steps += found
    return *sizes, *steps
