"""The compiled kernels as ctypes functions: every one is `samebits_<name>` in `csrc/training`.

What a function takes and which fields a struct has is declared in C alone (`declarations`). Tensors
go to C as pointers to memory (`memory.pointer`).
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Sequence
from ctypes import c_double, c_int, c_int32, c_int64, c_uint32, c_void_p
from struct import pack, unpack
from types import SimpleNamespace
from typing import Any, NoReturn

from torch import Tensor

from samebits.errors import RangeError
from samebits.kernels import build, declarations, softmax
from samebits.kernels.adam import AdamTerms
from samebits.kernels.geometry import ConvShape, Window, out_of_range
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
from samebits.kernels.protocol import BITS, SGDTerms
from samebits.kernels.rows import Exponent
from samebits.spec.philox import MASK
from samebits.spec.training.moments import TOP_FIELD

SCALARS: dict[str, Any] = {
    "int": c_int,
    "int32_t": c_int32,
    "int64_t": c_int64,
    "uint32_t": c_uint32,
    "double": c_double,
    "void": None,
}


@functools.cache
def text() -> str:
    """The C of the kernels, `declarations.plain`."""
    return declarations.plain(build.sources().values())


def functions() -> dict[str, declarations.Function]:
    """All functions of C by name."""
    return declarations.functions(text())


def fields(name: str) -> list[tuple[str, str]]:
    """Fields of a struct of C and their types there."""
    return declarations.fields(text(), name)


class StructTable(dict[str, type[ctypes.Structure]]):
    """Structs of C by their names there, each made when it is first asked for."""

    def __missing__(self, name: str) -> type[ctypes.Structure]:
        # Attributes are found faster by strings that are interned.
        passed = [(sys.intern(field), ctype(kind)) for field, kind in fields(name)]
        made = self[name] = type(name, (ctypes.Structure,), {"_fields_": passed})
        return made


STRUCTS = StructTable()


def ctype(kind: str) -> Any:
    """The ctypes form of a type of C: pointers to structs are typed, all others are addresses."""
    own, star, _ = kind.partition("*")
    if own[0].isupper():
        return ctypes.POINTER(STRUCTS[own]) if star else STRUCTS[own]
    return c_void_p if star else SCALARS[own]


def load(arch: str | None) -> SimpleNamespace:
    """The compiled kernels for an instruction set (`build.load`), as C declares them.

    ctypes would pass a plain integer as a C int, and cut a size of 64 bits; with its signature
    known a function converts its arguments, and refuses a wrong number of them. Functions that this
    instruction set does not have are left out.
    """
    library, made = build.load(arch), SimpleNamespace()
    for name, (result, taken) in functions().items():
        if (function := getattr(library, name, None)) is not None:
            function.restype, function.argtypes = ctype(result), [ctype(kind) for _, kind in taken]
            setattr(made, name, function)
    return made


def addends(count: int, *sides: tuple[Tensor, int]) -> ctypes.Array[ctypes.Structure]:
    """Dense codes in one memory order and their exponents as C reads them, while they live.

    count: elements of each
    """
    kind = STRUCTS["Addend"]
    made = (kind(pointer(v, count, *GRADIENT), BITS[v.dtype], by) for v, by in sides)
    return (kind * len(sides))(*made)


def draw_struct(draw: Draw | None) -> ctypes.Structure:
    """A draw as C reads it."""
    if draw is None:
        return STRUCTS["Draw"](0, 0, 0, 0)
    return STRUCTS["Draw"](draw.seed & MASK, draw.parameter & MASK, draw.step, 1)


def update_struct(update: Update, count: int | None = None) -> ctypes.Structure:
    """A lazy update of `count` elements as C reads it; None: without its directions."""
    p, m, shift, draw = update
    directions = None if count is None else word_pointer(p, count, I16)
    return STRUCTS["Update"](directions, m, max(shift, -900), draw_struct(draw))


def state_pointers(codes: Tensor, delayed: Tensor) -> tuple[int | None, int | None]:
    """Where C finds W and A."""
    count = codes.numel()
    return word_pointer(codes, count, I8), word_pointer(delayed, count, I16)


def terms_struct(
    terms: SGDTerms, g: Tensor, second: Tensor | None, shifts: tuple[int, int, int, Exponent, int]
) -> ctypes.Structure:
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
    made = STRUCTS["Terms"](
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


def adam_struct(t: AdamTerms) -> ctypes.Structure:
    """The operands of Adam as C reads them; the exponents of the results are still missing."""
    rows, e_a = _by_rows(t.e_a)
    g, count = integers(like(t.g, t.codes), I32), t.codes.numel()
    made = STRUCTS["AdamTerms"](
        word_pointer(g, count, I32),
        *state_pointers(t.codes, t.delayed),
        *(word_pointer(v, count, I16) for v in (t.first, t.root)),
        *_row_pointer(t.codes, rows),
        *(math.ldexp(1.0, e) for e in (t.e_g, e_a)),
        *(t.beta1, t.beta2, 1.0 - t.beta1, 1.0 - t.beta2),
        *(t.coupled, t.decoupled, t.c1, t.c2, t.eps),
        *(t.e_first - TOP_FIELD, t.e_root - TOP_FIELD, 0, 0),
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
    value: float = unpack("<d", pack("<q", bits))[0]
    return value


def bits_of(value: float) -> int:
    """The 64 bits of a binary64."""
    bits: int = unpack("<q", pack("<d", value))[0]
    return bits


OUT_OF_RANGE, NOT_FINITE = 1, 3  # of `Status` in csrc/training/exponent.h


def fail(status: int, found: int, unfit: Callable[[float], RangeError]) -> NoReturn:
    """Raise what the status of a kernel tells.

    found: the exponent above 127, or the bits of the number that is not finite, whose error is
    `unfit`
    """
    if status == OUT_OF_RANGE:
        raise out_of_range(found)
    if status == NOT_FINITE:
        error = unfit(real_of(found))
        raise error
    raise MemoryError("no memory for the scratch space of a kernel")


@functools.lru_cache(maxsize=4096)
def conv_struct(s: ConvShape) -> ctypes.Structure:
    """A convolution's geometry as C reads it."""
    return STRUCTS["Conv"](
        *(s.n, s.h, s.w, s.ci, s.oh, s.ow, s.co, s.kh, s.kw),
        *(*s.stride, *s.padding, *s.dilation, s.groups),
    )


def pool_struct(shape: Sequence[int], window: Window) -> ctypes.Structure:
    """The geometry of a max pool of images of `shape` [n, c, h, w] as C reads it."""
    n, c, h, w = shape
    sizes = (*window.counts(h, w), *window.kernel, *window.stride, *window.padding)
    return STRUCTS["Pool"](n, h, w, c, *sizes)


def windows_struct(
    sizes: Sequence[int], spans: Tensor, before: Tensor | None, after: Tensor | None
) -> ctypes.Structure:
    """Windows of images as C reads them; sizes: n, h, w, c, oh, ow."""
    _, h, w, _, oh, ow = sizes
    tables = ((spans, 2 * (oh + ow)), (before, h + w), (after, oh + ow))
    return STRUCTS["Windows"](*sizes, *(pointer(v, count, I64) for v, count in tables))


def table_pointers() -> tuple[int | None, ...]:
    """Where C finds the two tables of powers."""
    return tuple(pointer(table, 256, I64) for table in softmax.power_tables())


@functools.lru_cache(maxsize=4096)
def rows_struct(
    shape: Sequence[int], exponents: Sequence[int], rows: Sequence[int], last: bool
) -> ctypes.Structure | None:
    """`Rows` of rows.h of a tensor of `shape`, whose exponents and rows have these shapes.

    These are 1 along axes that share them. last: whether memory is that of an image whose channels
    are last. None where axes that share them and axes that do not take turns too often for three,
    or a shape is larger than the tensor's.
    """
    owners = (exponents, rows)
    if any(
        len(shape) != len(owner)
        or any(count not in (1, size) for size, count in zip(shape, owner, strict=True))
        for owner in owners
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
    while len(sizes) < 3:  # the first axis is shared among threads, and the last vectorised
        at = min(len(sizes), 1) if len(sizes) > 1 else 0
        sizes.insert(at, 1)
        own.insert(at, (False,) * len(owners))
    steps: list[int] = []
    for index in range(len(owners)):
        step, found = 1, [0, 0, 0]
        for axis in (2, 1, 0):
            if own[axis][index]:
                found[axis] = step
                step *= sizes[axis]
        steps += found
    return STRUCTS["Rows"](*sizes, *steps)
