"""Products of two activations: exact sums of 8-bit products (training.md 14.1)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.kernels.protocol import Part
from samebits.kernels.rows import Exponent
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.addition import add, times
from samebits.train.operations.broadcast import constant, expand
from samebits.train.operations.indexing import squeeze, unsqueeze
from samebits.train.operations.narrow import as_decided
from samebits.train.operations.pointwise import reshape
from samebits.train.tensor import BFPTensor, offer
from samebits.train.value import BFPValue, as_gradient, gradient_in


class _Operand(NamedTuple):
    """One side of a product: codes [matrices, vectors, k], and their exponents alike or one."""

    codes: Tensor
    exponent: Exponent


def _products(a: BFPValue, b: BFPValue, transposed: bool) -> tuple[BFPValue, tuple[Any, ...]]:
    """a [..., n, k] times b [..., k, m], or b [..., m, k] where it is transposed; bfp32."""
    bits = max(a.layer_bits, b.layer_bits)
    u, v = _vectors(a, True, bits), _vectors(b, transposed, bits)
    folded = not transposed and b.by_rows and b.bits <= 8 and b.dim() != 4
    rounded = None if a.bits <= 8 else u.codes, None if b.bits <= 8 else v.codes
    saved = *rounded, (u.exponent, v.exponent), (a.by_rows, b.by_rows), folded
    beside: Exponent = 0
    if folded:
        u = _Operand(*_by_vectors(u.codes, u.exponent + v.exponent, bits))
    else:
        beside = _across(v.exponent)
    acc, largest = kernels.of(u.codes).products(u.codes, v.codes)
    size, by_rows = (*a.shape[:-1], v.codes.shape[1]), a.by_rows or b.by_rows
    part = _of_kind(acc, largest, (u.exponent, beside), size, by_rows, 32)
    return BFPValue(*part, layer_bits=bits), saved


def _products_gradient(
    call: OperationCall, grad: BFPValue
) -> tuple[BFPValue | None, BFPValue | None]:
    """As of Linear: a's gradient from 16-bit codes, b's from those of full width."""
    a, b, transposed = call.arguments
    u, v, (e_u, e_v), by_rows, folded = call.saved
    u = _vectors(a, True, 8).codes if u is None else u
    v = _vectors(b, transposed, 8).codes if v is None else v
    g, e_g = grad.resolved()
    g = g.reshape(len(u), u.shape[1], v.shape[1])
    e_g = _flat(e_g, grad.shape, len(u))
    da = db = None
    if call.wanted[0]:
        da = _handed_down(*_sums_of_a(g, e_g, v, e_v, folded), a.shape, by_rows[0])
    if call.wanted[1]:
        sums, largest, exponent = _sums_of_b(g, e_g, u, e_u)
        sums = sums if transposed else sums.transpose(1, 2)
        db = _handed_down(sums, largest, exponent, b.shape, by_rows[1])
    return da, db


MAT_MUL = TrainingOperation("MatMul", _products, _products_gradient, reads=("8",), saves=True)

Two = tuple[Exponent, Exponent]  # exponents whose sum counts


def _sums_of_a(
    g: Tensor, e_g: Exponent, v: Tensor, e_v: Exponent, folded: bool
) -> tuple[Tensor, int, Two]:
    """The sums of a's gradient, their largest magnitude and exponent.

    folded: exponents of b's rows went into a
    """
    beside: Exponent = 0
    if isinstance(e_g, int) and isinstance(e_v, int):
        h, e_h = gradient_in(16, g, e_g)
        beside = e_v
    else:
        own = e_g if folded else e_g + _across(e_v)
        h, e_h = _by_vectors(g, own, 16)
        if folded:
            beside = e_v
    return *kernels.of(h).products_a(h, v), (e_h, beside)


def _sums_of_b(g: Tensor, e_g: Exponent, u: Tensor, e_u: Exponent) -> tuple[Tensor, int, Two]:
    """The sums of b's gradient, of b transposed, their largest magnitude and exponent."""
    if isinstance(e_g, int) and isinstance(e_u, int):
        return *kernels.of(g).products_b(g, u), (e_g, e_u)
    (own, beside), k = _paired(e_g, e_u), kernels.of(g)
    t, exponent = k.requantize_blocks(g, own, beside, (len(g), 1, 1), 32, limited=False)
    return *k.products_b(t, u), (exponent, 0)


def _handed_down(
    acc: Tensor, largest: int, exponent: Two, shape: torch.Size, by_rows: bool
) -> BFPValue:
    part = _of_kind(acc, largest, exponent, tuple(shape), by_rows, 16)
    return BFPValue(*as_gradient(part))


def _vectors(x: BFPValue, along_last: bool, bits: int) -> _Operand:
    """The matrices of x, with the vectors that are summed along their last axis, as 8-bit codes.

    Wide values are rounded, every such vector to an exponent of its own.
    """
    codes, exponent = x.resolved()
    if not along_last:
        codes = codes.transpose(-2, -1)
        exponent = rows.placed(exponent, lambda e: e.transpose(-2, -1))
    count = math.prod(codes.shape[:-2])
    own = _flat(exponent, codes.shape, count)
    codes = codes.reshape(count, *codes.shape[-2:])
    return _Operand(codes, own) if x.bits <= 8 else _Operand(*_by_vectors(codes, own, bits))


def _flat(exponent: Exponent, shape: torch.Size, count: int) -> Exponent:
    """Exponents that broadcast against [..., n, k] as such against [matrices, n, k]."""
    return rows.placed(
        exponent, lambda e: e.expand(*shape[:-2], -1, -1).reshape(count, *e.shape[-2:])
    )


def _across(exponent: Exponent) -> Exponent:
    """Exponents of the vectors of b as they meet the columns of the result."""
    return rows.placed(exponent, lambda e: e.transpose(1, 2))


def _paired(a: Exponent, b: Exponent) -> tuple[Exponent, int]:
    """Two exponents as one that may be those of vectors, and one integer."""
    if isinstance(b, int):
        return a, b
    return (b, a) if isinstance(a, int) else (a + b, 0)


def _by_vectors(codes: Tensor, exponent: Exponent, bits: int) -> Part:
    """Codes of `bits`, every vector along the last axis with an exponent of its own."""
    size = (*codes.shape[:-1], 1)
    return kernels.of(codes).requantize_blocks(codes, exponent, 0, size, bits)


def _of_kind(
    acc: Tensor,
    largest: int,
    exponent: Two,
    shape: tuple[int, ...],
    by_rows: bool,
    bits: int,
) -> Part:
    """Sums [matrices, n, m] in a shape, as codes with exponents by its rows, or with one.

    `shorten` to 32 bits, `requantize` to fewer.
    """
    k, (own, beside) = kernels.of(acc), _paired(*exponent)
    if isinstance(own, int) or by_rows:
        if isinstance(own, Tensor):
            own = own.expand(len(acc), *own.shape[1:])
            own = own.reshape(*shape[:-2], *own.shape[1:])
        acc, e = acc.reshape(shape), own + beside
        return k.shorten(acc, largest, e) if bits == 32 else k.requantize(acc, largest, e, bits)
    if bits == 32:
        codes, one = k.shorten_blocks(acc, own, beside, None)
    else:
        codes, one = k.requantize_blocks(acc, own, beside, None, bits)
    return codes.reshape(shape), one


def _checked(a: BFPTensor, b: BFPTensor, transposed: bool) -> None:
    """Shapes [..., n, k] and [..., k, m]. Raises UnsupportedError."""
    k = b.shape[-1 if transposed else -2] if b.dim() > 1 else None
    alike = a.dim() == b.dim() and a.shape[:-2] == b.shape[:-2] and k == a.shape[-1]
    if not alike or 0 in (*a.shape, *b.shape):
        raise UnsupportedError(
            f"matmul: expected matrices [..., n, k] and [..., k, m], found {tuple(a.shape)} and "
            f"{tuple(b.shape)}"
        )


def product(a: BFPTensor, b: BFPTensor, transposed: bool = False) -> BFPTensor:
    """a [..., n, k] times b [..., k, m], or [..., m, k] where it is transposed, bfp32.

    Raises UnsupportedError for other shapes, k above 2**16 and n above 2**24.
    """
    x, y = as_decided(a, "matmul"), as_decided(b, "matmul")
    _checked(x, y, transposed)
    return MAT_MUL(x, y, transposed)


def matmul(a: Any, b: Any) -> BFPTensor:
    """a @ b of two activations, or of one and a constant, as torch.matmul has their shapes; bfp32.

    A vector is a matrix of one row as a, and of one column as b. Raises UnsupportedError as
    `product`.
    """
    beside = a if isinstance(a, BFPTensor) else b
    x, y = (as_decided(constant(t, beside, "matmul"), "matmul") for t in (a, b))
    if min(x.dim(), y.dim()) < 1:
        raise UnsupportedError(
            f"matmul: expected matrices or vectors, found shapes {tuple(x.shape)} and "
            f"{tuple(y.shape)}; multiply by a number with *"
        )
    if x.dim() == 1:
        return squeeze(matmul(unsqueeze(x, 0), y), 0 if y.dim() == 1 else -2)
    if y.dim() == 1:
        return squeeze(matmul(x, unsqueeze(y, 1)), -1)
    if y.dim() == 2 and x.dim() > 2:
        rows_of_x = reshape(x, (-1, x.shape[-1]))
        return reshape(product(rows_of_x, y), (*x.shape[:-1], y.shape[1]))
    try:
        batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except RuntimeError:
        _checked(x, y, False)
        raise
    x, y = expand(x, (*batch, *x.shape[-2:])), expand(y, (*batch, *y.shape[-2:]))
    return product(x, y)


def bmm(a: BFPTensor, b: BFPTensor) -> BFPTensor:
    """matmul of two tensors of three axes. Raises UnsupportedError for others."""
    if a.dim() != 3 or b.dim() != 3:
        raise UnsupportedError(
            f"bmm: expected [b, n, k] and [b, k, m], found {tuple(a.shape)} and {tuple(b.shape)}"
        )
    return matmul(a, b)


def addmm(bias: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> BFPTensor:
    """beta * bias + alpha * mat1 @ mat2; beta = 0 leaves the bias out."""
    y = times(matmul(mat1, mat2), alpha)
    return add(y, bias, alpha=beta) if beta else y


offer(addmm, "addmm", "baddbmm")
offer(matmul, "matmul", "__matmul__", "mm", "mv", "dot")
offer(lambda a, b: matmul(b, a), "__rmatmul__")
offer(bmm, "bmm")
