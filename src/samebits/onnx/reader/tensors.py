"""Tensors of an ONNX file as arrays; every size is checked before anything is allocated."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from samebits import ledger
from samebits.entrance import opened
from samebits.errors import InputError, UnsupportedError

Array = np.ndarray[Any, Any]

MAX_ELEMENTS = 2**28
BESIDE = "put it beside the model and export with a relative location"
MAX_RANK = 32  # below numpy's own limit of 64, with room for axes that operators add

DTYPES: dict[int, np.dtype[Any]] = {
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.UINT8: np.dtype(np.uint8),
    TensorProto.INT8: np.dtype(np.int8),
    TensorProto.UINT16: np.dtype(np.uint16),
    TensorProto.INT16: np.dtype(np.int16),
    TensorProto.INT32: np.dtype(np.int32),
    TensorProto.INT64: np.dtype(np.int64),
    TensorProto.BOOL: np.dtype(np.bool_),
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.DOUBLE: np.dtype(np.float64),
    TensorProto.UINT32: np.dtype(np.uint32),
    TensorProto.UINT64: np.dtype(np.uint64),
    TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    TensorProto.UINT4: np.dtype(ml_dtypes.uint4),
    TensorProto.INT4: np.dtype(ml_dtypes.int4),
    TensorProto.UINT2: np.dtype(ml_dtypes.uint2),
    TensorProto.INT2: np.dtype(ml_dtypes.int2),
    TensorProto.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    TensorProto.FLOAT8E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    TensorProto.FLOAT8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    TensorProto.FLOAT8E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    TensorProto.FLOAT8E8M0: np.dtype(ml_dtypes.float8_e8m0fnu),
    TensorProto.FLOAT4E2M1: np.dtype(ml_dtypes.float4_e2m1fn),
}
_BITS: dict[int, int] = {
    TensorProto.UINT4: 4,
    TensorProto.INT4: 4,
    TensorProto.UINT2: 2,
    TensorProto.INT2: 2,
    TensorProto.FLOAT4E2M1: 4,
}
_FIELDS: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
}  # all other types: int32_data


def dtype_of(element_type: int, where: str) -> np.dtype[Any]:
    """numpy's dtype of an ONNX element type; UnsupportedError for strings, complex, float6."""
    if element_type in DTYPES:
        return DTYPES[element_type]
    try:
        name = TensorProto.DataType.Name(element_type)
    except ValueError:
        name = f"type number {element_type}"
    raise UnsupportedError(
        f"{where}: expected integers, booleans or floating point of 4, 8 and 16 to 64 bits, found "
        f"{name}; convert the tensor"
    )


_NUMBERS = {dtype.name: number for number, dtype in DTYPES.items()}


def type_number(dtype: str) -> int:
    """The ONNX element type of a type by numpy's name."""
    return _NUMBERS[dtype]


def check_shape(shape: Sequence[int], where: str) -> tuple[int, ...]:
    """The shape, or InputError: too many axes, a negative size, or too many elements."""
    if len(shape) > MAX_RANK:
        raise InputError(
            f"{where}: expected at most {MAX_RANK} dimensions, found {len(shape)}; check the model"
        )
    if any(size < 0 for size in shape):
        raise InputError(
            f"{where}: expected sizes of at least 0, found {list(shape)}; check the model"
        )
    count = math.prod(shape)
    # A zero beside a huge size multiplies to nothing, but other operators may drop the zero.
    if count > MAX_ELEMENTS or any(size > MAX_ELEMENTS for size in shape):
        raise InputError(
            f"{where}: expected at most 2**28 elements, found shape {list(shape)}; check the model"
        )
    return tuple(shape)


def tensor_to_array(tensor: TensorProto, where: str, folder: Path | None) -> Array:
    """The array of a TensorProto, in native byte order; ml_dtypes hold codes of 2 and 4 bits and
    the floating-point types that numpy lacks.

    folder: where external data may lie; None if there is none. Raises InputError where the data
    does not have the size that the shape asks for, UnsupportedError for types without arithmetic.
    """
    shape = check_shape(tensor.dims, where)
    dtype = dtype_of(tensor.data_type, where)
    if tensor.HasField("segment"):
        raise UnsupportedError(f"{where}: expected a whole tensor, found a segment of one")
    count = math.prod(shape)
    bits = _BITS.get(tensor.data_type, dtype.itemsize * 8)
    size = -(-count * bits // 8)
    if tensor.data_location == TensorProto.EXTERNAL:
        stored = _external(tensor, size, where, folder)
    elif tensor.HasField("raw_data"):
        stored = tensor.raw_data
        if len(stored) != size:
            raise InputError(
                f"{where}: expected {size} bytes of data for {dtype.name}{list(shape)}, "
                f"found {len(stored)}; export the model again"
            )
    else:
        return _typed(tensor, count, bits, dtype, where).reshape(shape)
    if bits < 8:
        return _unpack(np.frombuffer(stored, np.uint8), count, bits, dtype).reshape(shape)
    if dtype == np.bool_:
        return (np.frombuffer(stored, np.uint8) != 0).reshape(shape)
    little = np.frombuffer(stored, dtype.newbyteorder("<") if dtype.kind != "V" else dtype)
    return little.astype(dtype).reshape(shape)


def _typed(tensor: TensorProto, count: int, bits: int, dtype: np.dtype[Any], where: str) -> Array:
    """The flat array of a tensor whose numbers lie in a typed field, such as int32_data.

    Each number of the field holds one element; codes of 2 and 4 bits lie packed in bytes, 16-bit
    floats as bit patterns. Raises InputError for another count, or a number outside the type.
    """
    field = _FIELDS.get(tensor.data_type, "int32_data")
    values = getattr(tensor, field)
    expected = -(-count * bits // 8) if bits < 8 else count
    if len(values) != expected:
        raise InputError(
            f"{where}: expected {expected} numbers in {field} for {dtype.name}{list(tensor.dims)}, "
            f"found {len(values)}; export the model again"
        )
    if field in ("float_data", "double_data"):
        return np.array(values, dtype)
    wide = np.array(values, np.uint64 if field == "uint64_data" else np.int64)
    if bits < 8:
        return _unpack(_fit(wide, np.dtype(np.uint8), where), count, bits, dtype)
    if dtype == np.bool_:
        return wide != 0
    if dtype.kind not in "iu":  # the bit pattern of a narrow float
        return _fit(wide, np.dtype(f"uint{bits}"), where).view(dtype)
    return _fit(wide, dtype, where)


def _fit(wide: Array, dtype: np.dtype[Any], where: str) -> Array:
    info = np.iinfo(dtype)
    if wide.size and not (int(wide.min()) >= info.min and int(wide.max()) <= info.max):
        raise InputError(
            f"{where}: expected numbers from {info.min} to {info.max}, found "
            f"{int(wide.min())} to {int(wide.max())}; export the model again"
        )
    return wide.astype(dtype)


def _unpack(data: Array, count: int, bits: int, dtype: np.dtype[Any]) -> Array:
    """Codes of 2 or 4 bits, the lowest bits of a byte first; of floats the bit patterns."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = ((data[:, None] >> shifts) & (2**bits - 1)).reshape(-1)[:count]
    if dtype.name.startswith("float"):
        return codes.view(dtype)
    half, full = 2 ** (bits - 1), 2**bits
    if dtype.name.startswith("int"):
        codes = np.where(codes >= half, codes.astype(np.int16) - full, codes)
    return codes.astype(np.int8).astype(dtype)


def _external(tensor: TensorProto, size: int, where: str, folder: Path | None) -> bytes:
    """The `size` bytes of a tensor that lie in another file, below the model's folder.

    Raises InputError where the file is elsewhere, missing, unreadable or too short.
    """
    if folder is None:
        raise InputError(
            f"{where}: expected data in the model, found a reference to another file; "
            "load the model from its folder"
        )
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    offset = _whole(entries.get("offset", "0"), "offset", where)
    length = _whole(entries.get("length", str(size)), "length", where)
    if length != size:
        raise InputError(
            f"{where}: expected {size} bytes of external data, found length {length}; "
            "export the model again"
        )
    file = _inside(folder, location, where)
    try:
        stream = opened(file, within=folder)
    except (OSError, InputError) as error:
        found = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"{where}: expected external data in a file below the model's folder, found "
            f"{location!r}: {found}; {BESIDE}"
        ) from None
    with stream:
        length = os.fstat(stream.fileno()).st_size
        if offset + size > length:
            raise InputError(
                f"{where}: expected {size} bytes at {offset} of {location!r}, found a file of "
                f"{length} bytes; copy the data file whole"
            )
        ledger.keep(size, where)
        stream.seek(offset)
        data = stream.read(size)
    if len(data) != size:
        raise InputError(f"{where}: the data file {location!r} became shorter while it was read")
    return data


def _inside(folder: Path, location: str, where: str) -> Path:
    """The path that `location` names below `folder`. Raises InputError for one that leaves it."""
    parts = Path(location).parts
    odd = "\0" in location or "\\" in location or Path(location).is_absolute()
    if odd or not parts or ".." in parts:
        raise InputError(
            f"{where}: expected external data in a file below the model's folder, found location "
            f"{location!r}; {BESIDE}"
        )
    return folder / location


def _whole(text: str, what: str, where: str) -> int:
    # isdecimal also accepts digits of other scripts; 19 digits hold every file offset.
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise InputError(
            f"{where}: expected a whole number as {what} of external data, found {text!r}; "
            "export the model again"
        )
    return int(text)
