"""Sums of products as torch.einsum writes them, by one operation (training.md 14.1)."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.train.operations.broadcast import constant
from samebits.train.operations.indexing import permute
from samebits.train.operations.matmul import product
from samebits.train.operations.multiplication import multiply
from samebits.train.operations.pointwise import reshape
from samebits.train.operations.reduction import total
from samebits.train.tensor import BFPTensor, offer


def einsum(equation: str, *operands: Any) -> BFPTensor:
    """torch.einsum of one or two tensors, where one operation computes it.

    Of one tensor: its axes in another order, and their sum, as bfp8. Of two: `product`, summed over
    axes that both have, or `multiply`, where none is summed over. One of two may be a constant.
    Raises UnsupportedError where an axis occurs twice in a tensor, or is summed over in one of two
    alone, where `...` stands for axes of different sizes, and for other numbers of tensors.
    """
    sides, result = _written(equation, operands)
    axes = [set(side) for side in sides]
    shared, every = set.intersection(*axes), set.union(*axes)
    found = [
        pair
        for side, x in zip(sides, operands, strict=True)
        for pair in zip(side, x.shape, strict=True)
    ]
    sizes = dict(found)
    once = all(len(set(part)) == len(part) for part in (*sides, result))
    alike = all(sizes[c] == size for c, size in found)
    if not (once and alike and every - shared <= set(result) <= every):
        raise UnsupportedError(
            "einsum: expected every axis once in each tensor and of one size, of which some are "
            f"summed over that both have, found {_shown(equation, operands)}"
        )
    if len(operands) == 1:
        return _of_one(sides[0], result, operands[0])
    if shared <= set(result):
        a, b = (_placed(x, side, result) for side, x in zip(sides, operands, strict=True))
        return multiply(a, b)
    return _product(sides, result, operands, sizes)


def _shown(equation: str, operands: Sequence[Tensor]) -> str:
    return f"{equation!r} of shapes {', '.join(str(tuple(x.shape)) for x in operands)}"


def _written(equation: str, operands: Sequence[Tensor]) -> tuple[list[str], str]:
    """The axes of the operands and of the result, a letter each. Raises UnsupportedError."""
    given, arrow, result = equation.replace(" ", "").partition("->")
    sides = given.split(",")
    free = "".join(c for c in string.ascii_letters if c not in equation)
    counts = [x.dim() - len(s.replace("...", "")) for s, x in zip(sides, operands, strict=False)]
    fits = all(
        n >= 0 and (n > 0) <= s.count("...") <= 1 for s, n in zip(sides, counts, strict=False)
    )
    if not len(sides) == len(operands) <= 2 or not fits or "." in equation.replace("...", ""):
        raise UnsupportedError(
            "einsum: expected one or two tensors with a letter for every axis, found "
            f"{_shown(equation, operands)}"
        )
    most = max(counts)
    rest = free[:most]
    sides = [s.replace("...", rest[most - n :]) for s, n in zip(sides, counts, strict=True)]
    if not arrow:
        every = "".join(sides)
        result = "..." + "".join(sorted(c for c in every if every.count(c) == 1 and c not in rest))
    return sides, result.replace("...", rest)


def _of_one(side: str, result: str, x: BFPTensor) -> BFPTensor:
    """The axes of one tensor in the order of the result, summed over the others."""
    summed = [at for at, c in enumerate(side) if c not in result]
    y = total(x, summed) if summed else x
    kept = [c for c in side if c in result]
    return permute(y, [kept.index(c) for c in result]) if kept != list(result) else y


def _placed(x: Tensor, side: str, result: str) -> Tensor:
    """x with the axes of the result, those that it does not have of size 1."""
    y = x.permute([side.index(c) for c in result if c in side])
    sizes = dict(zip(side, x.shape, strict=True))
    return y.reshape([sizes.get(c, 1) for c in result])


def _product(
    sides: Sequence[str], result: str, operands: Sequence[Tensor], sizes: dict[str, int]
) -> BFPTensor:
    """The product of two tensors as matrices: [batch, own, summed] times [batch, own, summed]."""
    shared = [c for c in sides[0] if c in sides[1]]
    batch, summed = [c for c in result if c in shared], [c for c in shared if c not in result]
    beside = next(x for x in operands if isinstance(x, BFPTensor))
    matrices, free = [], []
    for side, x in zip(sides, operands, strict=True):
        own = [c for c in side if c not in shared]
        free += own
        moved = x.permute([side.index(c) for c in (*batch, *own, *summed)])
        flat = (math.prod(sizes[c] for c in own), math.prod(sizes[c] for c in summed))
        matrix = moved.reshape((*(sizes[c] for c in batch), *flat))
        matrices.append(constant(matrix, beside, "einsum"))
    y = product(matrices[0], matrices[1], transposed=True)
    order = [*batch, *free]
    y = reshape(y, tuple(sizes[c] for c in order))
    return permute(y, [order.index(c) for c in result])


offer(einsum, "einsum")
