"""Memory of tensors that C reads and writes: its address, and the orders in which elements lie.

Images are NHWC in C ("channels last"), weights OHWI. `pointer` alone gives addresses away: what it
checks is all that C relies on. A kernel makes its own tensors from an operand (`new_empty`,
`empty_like`), so that a caller's default device or dtype is never that of a result.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from samebits.errors import InputError

I8, I16, I32, I64 = torch.int8, torch.int16, torch.int32, torch.int64
LAST = torch.channels_last
U8, BOOL, F32, F64 = torch.uint8, torch.bool, torch.float32, torch.float64
GRADIENT = (I16, I32)  # types of a gradient's codes
SUMS = (I32, I64)
INTEGERS = (I8, I16, I32, I64)
WATCHED: list[Callable[[Tensor], None]] = []
"""The last one is told of every tensor whose address is given away."""


def pointer(v: Tensor | None, count: int, *kinds: torch.dtype) -> int | None:
    """The address of a tensor's memory, for C; a null pointer for none.

    The memory must hold `count` elements of one of `kinds`, dense in the order of the axes or with
    channels last. Raises InputError for any other tensor.
    """
    if v is None:
        return None
    if WATCHED:
        WATCHED[-1](v)
    if (
        v.is_cpu
        and v.dtype in kinds
        and v.numel() == count
        and (v.is_contiguous() or is_last(v))  # a call less for most: there are hundreds a step
    ):
        address = v.data_ptr()
        if address and not address & 7:
            return address
        # Null where the storage was given up; a tensor in a buffer may begin at any byte.
        if not count or (address and not address % v.element_size()):
            return address
    raise _refused(v, f"{count} dense", kinds)


def mask_pointer(mask: Tensor | None, n: int) -> int | None:
    """`pointer` of a mask of n bits."""
    return pointer(mask, -(-n // 8), U8)


def word_pointer(v: Tensor | None, count: int, kind: torch.dtype) -> int | None:
    """`pointer` of a tensor whose elements lie in the order of random words."""
    if v is None:
        return None
    if is_in_word_order(v):
        if (
            v.is_cpu and not WATCHED and v.dtype is kind and v.numel() == count
        ):  # all of `pointer`, in fewer calls
            address = v.data_ptr()
            if address and not address & 7:
                return address
        return pointer(v, count, kind)
    raise _refused(v, f"{count} (channels last in memory, if it has four axes)", (kind,))


def _refused(v: Tensor, count: str, kinds: tuple[torch.dtype, ...]) -> InputError:
    names = " or ".join(str(kind).removeprefix("torch.") for kind in kinds)
    found = f"{str(v.dtype).removeprefix('torch.')} {list(v.shape)} on {v.device}"
    if v.layout is torch.strided:
        found += f" with strides {list(v.stride())}"
    else:
        found += f", {v.layout}"
    return InputError(
        f"native kernels: expected a tensor of {count} elements of {names} in memory of the CPU, "
        f"found {found}; give the model, its input and its targets one device and types as "
        "`samebits.train` makes them"
    )


def integers(v: Tensor, kind: torch.dtype) -> Tensor:
    """Integers as those of another type, which holds them. Raises InputError for other numbers."""
    if v.dtype is kind:
        return v
    if v.dtype not in INTEGERS:
        raise _refused(v, str(v.numel()), INTEGERS)
    return v.to(kind)


def is_in_word_order(v: Tensor) -> bool:
    """Whether elements lie in memory in the order in which random words count (training.md 1.5)."""
    return v.is_contiguous(memory_format=LAST) if v.dim() == 4 else v.is_contiguous()


def is_dense(v: Tensor) -> bool:
    """Whether elements fill the memory, in the order of the axes or with channels last."""
    return v.is_contiguous() or (v.dim() == 4 and v.is_contiguous(memory_format=LAST))


def is_last(v: Tensor) -> bool:
    """Whether the memory of an image has its channels last, and not also the order of its axes."""
    return v.dim() == 4 and not v.is_contiguous() and v.is_contiguous(memory_format=LAST)


def nhwc(v: Tensor) -> Tensor:
    """An image or weights [n, c, h, w] as dense [n, h, w, c]."""
    return v.permute(0, 2, 3, 1).contiguous()


def nchw(v: Tensor) -> Tensor:
    """The inverse of `nhwc`, a view."""
    return v.permute(0, 3, 1, 2)


def rows(v: Tensor) -> Tensor:
    """Channels last and dense: [n, h, w, c] or [n, c]."""
    return nhwc(v) if v.dim() == 4 else v.contiguous()


def unrows(v: Tensor) -> Tensor:
    """The inverse of `rows`, a view."""
    return nchw(v) if v.dim() == 4 else v


def dense(v: Tensor) -> Tensor:
    """A tensor whose elements fill its memory, in whatever order."""
    return v if is_dense(v) else v.contiguous()


def like(v: Tensor, order: Tensor) -> Tensor:
    """v in the memory order of `order` (same shape, dense)."""
    if v.stride() == order.stride():
        return v
    return torch.empty_like(order, dtype=v.dtype).copy_(v)


def address_of(v: Tensor) -> int:
    """The address of the first element of a tensor, in whatever order the others lie."""
    if WATCHED:
        WATCHED[-1](v)
    return v.data_ptr()


def storage_of(v: Tensor) -> tuple[int, int]:
    """Where the memory begins in which a tensor lies, and its bytes."""
    storage = v.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def addresses(tensors: list[Tensor]) -> list[int]:
    """Where tensors begin, to be compared: what moves them changes it."""
    return list(map(Tensor.data_ptr, tensors))


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors begin at the same place of memory: one is a view of the other."""
    return a.data_ptr() == b.data_ptr()
