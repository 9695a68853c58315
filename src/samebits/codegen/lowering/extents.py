"""The bound under which no offset in C overflows, for everything that a kernel computes offsets in.

Kernels count elements in int32_t, and multiply indices by strides in it before they add the result
to a pointer. A tensor has less than 2**29 bytes. Whatever else an offset may lie in has less than
2**30 of them: packed weights, scratch memory, all rows of a block of steps, and an image with its
padding, whose rows and columns a kernel counts too where it does not read. An offset is a sum of
at most one of each, so that it stays below 2**31, and no kernel has a test or a wider number.
"""

from __future__ import annotations

from collections.abc import Mapping

from samebits.codegen.lowering.calls import Data, Field, KernelCall, Struct, Structs
from samebits.errors import UnsupportedError

LARGEST_TENSOR = 1 << 29  # bytes
LARGEST_EXTENT = 1 << 30  # bytes, or elements of a padded image
LANES = 16  # channels of a block of weights, in which conv8 counts whatever their number


def check_call(call: KernelCall, value: str) -> None:
    """UnsupportedError, which names the value that the call writes, for what is too large."""
    found = {"scratch memory": call.scratch or 0, **_extents(call.parameters)}
    for what, size in found.items():
        if size >= LARGEST_EXTENT:
            raise UnsupportedError(
                f"value {value!r} ({call.function}): expected {what} of less than "
                f"{LARGEST_EXTENT} bytes or elements, found {size}; use smaller tensors, pads or "
                "strides"
            )


def _extents(field: Field) -> dict[str, int]:
    """Sizes by what they are of, the largest of each, in a parameter and all that it holds."""
    if isinstance(field, Data):
        return {"constant data": field.array.nbytes}
    if isinstance(field, Structs):
        parts = [_extents(item) for item in field.items]
    elif isinstance(field, Struct):
        parts = [_extents(inner) for inner in field.fields.values()]
        parts.append(_image(field.fields))
    else:
        return {}
    names = {name for part in parts for name in part}
    return {name: max(part.get(name, 0) for part in parts) for name in sorted(names)}


def _image(fields: Mapping[str, Field]) -> dict[str, int]:
    """Elements of a padded image, and weights of a block, of a kernel with a window."""
    numbers = {key: number for key, number in fields.items() if isinstance(number, int)}
    if "kernel_height" not in numbers:
        return {}
    rows = _reach(numbers, "height", "y", "top")
    columns = _reach(numbers, "width", "x", "left")
    found = {"a padded image": rows * columns * numbers["channels"]}
    if "length" in numbers:
        quads = -(-numbers["length"] // 4)
        found["weights"] = numbers["kernel_height"] * numbers["runs"] * quads * 4 * LANES
    return found


def _reach(numbers: dict[str, int], size: str, axis: str, pad: str) -> int:
    """Places of an axis that a kernel may count: of the image, its padding and its windows."""
    stride, dilation = numbers[f"stride_{axis}"], numbers.get(f"dilation_{axis}", 1)
    before, last = abs(numbers[f"pad_{pad}"]), numbers[f"out_{size}"] - 1
    window = (numbers[f"kernel_{size}"] - 1) * dilation + 1
    outputs = before + last + window if numbers.get("transposed") else last * stride + window
    return max(numbers[size] + before, outputs, stride, dilation)
