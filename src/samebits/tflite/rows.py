"""Lists of rows, as converters write what a recurrent layer gives in every turn of its loop.

A turn t writes CONCATENATION(list[:t], row, list[t + 1:]), of slices whose ends it computes. Once t
is a number these are rows of tensors that are there, so that a list is known without an operator,
and after the last turn it is one CONCATENATION of the rows that were written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from samebits.errors import InputError
from samebits.tflite.file import LiteOperator, Tensor
from samebits.tflite.known import WHOLE
from samebits.tflite.reader import ADVICE, MAX_ELEMENTS


@dataclass(frozen=True)
class Rows:
    """The rows of a tensor, along its first axis, from `start` and before `stop`."""

    number: int
    start: int
    stop: int


Parts = tuple[Rows, ...]


def keeps_codes(given: Sequence[Tensor], to: Tensor) -> bool:
    """Whether tensors have axes, and all of them the type and the scales of the result."""
    kinds = {(tensor.dtype, tensor.quantization) for tensor in (*given, to)}
    return len(kinds) == 1 and all(tensor.shape for tensor in given)


def sliced(given: Sequence[Tensor], parts: Parts) -> Parts | None:
    """The rows that SLICE takes of a list; None where its ends are not known, or not rows'.

    given: its inputs. Raises InputError for rows that are not there.
    """
    x, *ends = given
    arrays = [end.array for end in ends if end.array is not None and end.dtype in WHOLE]
    if [array.shape for array in arrays] != [(len(x.shape),)] * 2:
        return None
    (first, *others), (count, *sizes) = (array.tolist() for array in arrays)
    inside = (size in (-1, n) for size, n in zip(sizes, x.shape[1:], strict=True))
    if any(others) or not all(inside):
        return None
    last = x.shape[0] if count == -1 else first + count
    if not 0 <= first <= last <= x.shape[0]:
        raise InputError(
            f"expected rows of {x}, which has {x.shape[0]}, found {first} to {last}; {ADVICE}"
        )
    found, at = [], 0
    for part in parts:
        size = part.stop - part.start
        start, stop = max(first - at, 0), min(last - at, size)
        if (start, stop) == (0, size):
            found.append(part)
        elif start < stop:
            found.append(Rows(part.number, part.start + start, part.start + stop))
        at += size
        if at >= last:
            break
    return tuple(found)


def joined(parts: Iterable[Rows]) -> Parts:
    """The same rows, those that follow each other in one tensor as one part."""
    found: list[Rows] = []
    for part in parts:
        if found and (found[-1].number, found[-1].stop) == (part.number, part.start):
            part = Rows(part.number, found.pop().start, part.stop)
        found.append(part)
    return tuple(found)


def is_joined(inner: LiteOperator, given: Sequence[Tensor], to: Tensor) -> bool:
    """Whether an operator joins tensors along their first axis and leaves their codes."""
    if inner.op != "CONCATENATION" or inner.options["activation"] or not keeps_codes(given, to):
        return False
    rows = {tensor.shape[1:] for tensor in given}
    return len(rows) == 1 and inner.options["axis"] in (0, -len(given[0].shape))


def shape_of(parts: Parts, like: Tensor, to: Tensor) -> tuple[int, ...]:
    """The shape of a list whose rows are those of `like`; files have 1 where a size is computed.

    Raises InputError where the file says otherwise, and for too many elements.
    """
    count = sum(part.stop - part.start for part in parts)
    shape = (count, *like.shape[1:])
    stated = len(to.shape) == len(shape) and all(
        size in (1, found) for size, found in zip(to.shape, shape, strict=True)
    )
    if not stated or prod(shape) > MAX_ELEMENTS:
        raise InputError(f"expected {to} of shape {list(shape)}, found {list(to.shape)}; {ADVICE}")
    return shape
