"""Programs with their memory images as files; tensors as native vectors and tiles.

docs/spec/npu.md sections 3 and 4. `NAME.nnp` is text, `NAME.safetensors` beside it holds binary16
arrays: "MEMORY/TENSOR" in the logical shape of that tensor's hint, or "MEMORY@ADDRESS" raw, native
vectors [count, N] or tiles [count, N, N]. Neither file is trusted.

The header of the image states the format of both files; the text cannot, whose lines have numbers
that traces and messages name. People and other tools write such files too: a pair that states no
format is of the first.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from samebits.entrance import opened, read
from samebits.errors import InputError
from samebits.files import write_atomically
from samebits.npu.machine.assembly import TEXT_MAX, parse, to_text
from samebits.npu.machine.program import STORED, TILE_FILES, Hint, Image, Program

SUFFIX, IMAGE_SUFFIX = ".nnp", ".safetensors"
FORMAT = "samebits-nnp-1"
FOLDER_FORMAT = "samebits-firmware-1"  # of the report.json beside a compiled program
HEADER_KEY = "samebits"  # of the image's header, where safetensors keeps texts by name
HEADER_MAX = 100_000_000  # bytes; safetensors reads no longer one
IMAGE_MAX = 1 << 32  # bytes, of the file and of all native vectors and tiles
_RAW = re.compile(r"([a-z0-9]+)@([0-9]{1,7})", re.ASCII)

Array = np.ndarray[Any, Any]
Entries = dict[str, dict[int, Array]]


# --- layout -----------------------------------------------------------------------------------


def entry_count(shape: tuple[int, ...], memory: str, native: int) -> int:
    """Native vectors (tiles in mrf and mdram) that a logical shape takes in a memory."""
    if memory in TILE_FILES:
        outputs, inputs, *kernel = shape
        return -(-outputs // native) * -(-inputs // native) * math.prod(kernel)
    channels = shape[-1] if len(shape) == 2 else shape[0]
    return math.prod(shape) // channels * -(-channels // native)


def pack(array: Array, native: int) -> Array:
    """[C], [T, C] or [C, H, W] as native vectors [count, N], padded with zeros."""
    rows = np.moveaxis(array, 0, -1) if array.ndim == 3 else array
    rows = rows.reshape(-1, rows.shape[-1])
    blocks = -(-rows.shape[1] // native)
    packed = np.zeros((len(rows), blocks * native), array.dtype)
    packed[:, : rows.shape[1]] = rows
    return packed.reshape(-1, native)


def unpack(vectors: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `pack`: what lies in the padding is dropped."""
    channels = shape[-1] if len(shape) == 2 else shape[0]
    native = vectors.shape[1]
    rows = vectors.reshape(-1, -(-channels // native) * native)[:, :channels]
    if len(shape) == 3:
        return np.ascontiguousarray(rows.T).reshape(shape)
    return np.ascontiguousarray(rows).reshape(shape)


def fitted(array: Array, shape: tuple[int, ...]) -> Array:
    """An array [B, ...] as [B, *shape] where it differs from that in axes of 1 alone, as the image
    of a one-dimensional convolution does; else itself, for the caller to refuse."""
    plain = [size for size in shape if size > 1]
    if array.shape[1:] != shape and [size for size in array.shape[1:] if size > 1] == plain:
        return array.reshape(len(array), *shape) if array.ndim > 1 else array
    return array


def pack_tiles(array: Array, native: int) -> Array:
    """[O, I] or [O, I, H, W] as native tiles [count, N, N], padded with zeros.

    Row-major. A kernel has a column of tiles for every position (y, x) and N inputs, in the order
    in which a windowed read takes the vectors of an image.
    """
    outputs, inputs = array.shape[:2]
    rows, columns = -(-outputs // native), -(-inputs // native)
    kernel = array.reshape(outputs, inputs, -1)
    padded = np.zeros((rows * native, columns * native, kernel.shape[2]), array.dtype)
    padded[:outputs, :inputs] = kernel
    tiles = padded.reshape(rows, native, columns, native, -1).transpose(0, 4, 2, 1, 3)
    return np.ascontiguousarray(tiles).reshape(-1, native, native)


def unpack_tiles(tiles: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `pack_tiles`: what lies in the padding is dropped."""
    outputs, inputs, *kernel = shape
    native = tiles.shape[1]
    rows, columns = -(-outputs // native), -(-inputs // native)
    parts = tiles.reshape(rows, math.prod(kernel), columns, native, native)
    padded = parts.transpose(0, 3, 2, 4, 1).reshape(rows * native, columns * native, -1)
    return np.ascontiguousarray(padded[:outputs, :inputs]).reshape(shape)


def entry_shape(memory: str, native: int) -> tuple[int, ...]:
    """Shape of one entry of a memory: a vector [N] or a tile [N, N]."""
    return (native, native) if memory in TILE_FILES else (native,)


# --- reading ----------------------------------------------------------------------------------


def read_program(path: str | os.PathLike[str], within: Path | None = None) -> tuple[Program, Image]:
    """The program of a .nnp file and the memory image beside it (empty if there is none).

    within: the folder that a user named, where the program is one inside it

    Raises InputError for files that are damaged or do not fit each other. Whether the program is
    legal is samebits.npu.machine.check's business.
    """
    path = Path(path)
    advice = f"give the path of a {SUFFIX} file"
    if path.suffix != SUFFIX:
        raise InputError(f"{path}: expected a {SUFFIX} file, found {path.suffix!a}; {advice}")
    data = _bytes(path, TEXT_MAX, advice, within)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}:{line}: expected text in UTF-8, found byte 0x{data[error.start]:02X} at "
            f"{error.start}; {advice}"
        ) from None
    beside = path.with_suffix(IMAGE_SUFFIX)
    _check_format(beside)
    program = parse(text, path.name)
    return program, _read_image(beside, program) if os.path.lexists(beside) else Image()


def _check_format(image: Path) -> None:
    """InputError where an image states another format than this: the text is not read then, nor
    the rest of the image. A file that is none is left to `_read_image`."""
    try:
        with opened(image, within=image.parent) as file:
            length = int.from_bytes(file.read(8), "little")
            found = json.loads(file.read(min(length, HEADER_MAX)))["__metadata__"][HEADER_KEY]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return
    if found != FORMAT:
        raise InputError(
            f"{image}: expected format {FORMAT!r} of samebits, found {found!r:.60}; use the "
            "release of samebits that wrote it, or compile the network again"
        )


def _bytes(path: Path, most: int, advice: str, within: Path | None) -> bytes:
    try:
        return read(path, most, "use a smaller program", within=within)
    except FileNotFoundError:
        raise InputError(f"{path}: expected a file, found no such file; {advice}") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise InputError(f"{path}: expected a readable file, found {error}; {advice}") from None


def _read_image(path: Path, program: Program) -> Image:
    """The memory image of an untrusted file. Raises InputError for anything but binary16 tensors
    that fit the program's hints, or raw entries, each entry once and all of bounded size."""
    data = _bytes(path, IMAGE_MAX, "write the image again", path.parent)
    try:
        arrays = safetensors.numpy.load(data)
    except Exception as error:  # a damaged file may raise anything
        raise InputError(
            f"{path}: expected a safetensors file, found one that cannot be read "
            f"({str(error)[:200]!a}); write the image again"
        ) from None
    del data
    hints = {f"{h.memory}/{h.name}": h for h in program.hints if h.kind == "tensor"}
    entries: Entries = {}
    used = 0
    for key, array in sorted(arrays.items()):
        if array.dtype != np.float16:
            raise InputError(
                f"{path}: tensor {_short(key)}: expected float16, found {array.dtype}; convert it"
            )
        memory, address, count, hint = _place(path, program, hints, key, array)
        used += count * math.prod(entry_shape(memory, program.native)) * 2
        if used > IMAGE_MAX:
            raise InputError(
                f"{path}: expected at most {IMAGE_MAX} bytes of native vectors and tiles, found "
                "more; use a smaller native dimension or smaller tensors"
            )
        if hint is not None:
            array = (pack_tiles if memory in TILE_FILES else pack)(array, program.native)
        held = entries.setdefault(memory, {})
        for at, entry in enumerate(array, start=address):
            if at in held:
                raise InputError(
                    f"{path}: tensor {_short(key)}: expected every entry once, found {memory} {at} "
                    "again; leave out one of the tensors"
                )
            held[at] = entry
    return Image(entries)


def _short(key: str) -> str:
    return ascii(key if len(key) <= 100 else key[:97] + "...")


def _place(
    path: Path, program: Program, hints: Mapping[str, Hint], key: str, array: Array
) -> tuple[str, int, int, Hint | None]:
    """(memory, address, entries, hint or None of a raw tensor)."""
    hint, raw = hints.get(key), _RAW.fullmatch(key)
    if hint is not None:
        if array.shape != hint.shape:
            raise InputError(
                f"{path}: tensor {_short(key)}: expected shape {list(hint.shape)} as in line "
                f"{hint.line} of {program.name}, found {list(array.shape)}; correct either"
            )
        count = entry_count(hint.shape, hint.memory, program.native)
        return hint.memory, hint.address, count, hint
    if raw is None or raw[1] not in STORED:
        raise InputError(
            f"{path}: expected tensors named MEMORY/NAME, as the tensor hints of {program.name} "
            f"say, or MEMORY@ADDRESS, found {_short(key)}; correct the name or add a hint"
        )
    shape = entry_shape(raw[1], program.native)
    if array.shape[1:] != shape or array.ndim != len(shape) + 1:
        raise InputError(
            f"{path}: tensor {_short(key)}: expected shape [count, "
            f"{', '.join(map(str, shape))}], found {list(array.shape)}; pad it"
        )
    return raw[1], int(raw[2]), len(array), None


# --- identity ---------------------------------------------------------------------------------


def firmware_sha256(program: Program, image: Image) -> str:
    """SHA-256 of the program's text, as `to_text` writes it, and of the image: of every memory in
    the order of their names, and every entry in that of addresses, a line that names both and the
    binary16 numbers, little-endian."""
    digest = hashlib.sha256(to_text(program).encode())
    for memory, held in sorted(image.entries.items()):
        for address, entry in sorted(held.items()):
            digest.update(f"{memory} {address}\n".encode())
            digest.update(np.ascontiguousarray(entry, "<f2").tobytes())
    return digest.hexdigest()


# --- writing ----------------------------------------------------------------------------------


def program_files(path: Path) -> tuple[Path, Path]:
    """The files of a program: its text and, beside it, its image."""
    return path, path.with_suffix(IMAGE_SUFFIX)


def write_program(path: str | os.PathLike[str], program: Program, image: Image) -> None:
    """Write `path` (.nnp) and the image beside it; each file appears whole or not at all.

    Tensors with a hint are written in their logical shape where their padding is zero.
    """
    path = Path(path)
    if path.suffix != SUFFIX:
        raise InputError(
            f"{path}: expected a path that ends in {SUFFIX}, found {path.suffix!a}; rename it"
        )
    for target, data in encoded(path, program, image).items():
        write_atomically(target, data)


def encoded(path: Path, program: Program, image: Image) -> dict[Path, bytes]:
    """The files of a program in the order in which they are written: the image, then the text."""
    text, arrays = program_files(path)
    packed = safetensors.numpy.save(_tensors(program, image.entries), {HEADER_KEY: FORMAT})
    return {arrays: packed, text: to_text(program).encode()}


def _tensors(program: Program, entries: Mapping[str, Mapping[int, Array]]) -> dict[str, Array]:
    """The arrays of an image's file, by name: what no hint covers as runs of raw entries."""
    arrays: dict[str, Array] = {}
    left = {memory: dict(held) for memory, held in entries.items()}
    for hint in program.hints:
        count = entry_count(hint.shape, hint.memory, program.native)
        held = left.get(hint.memory, {})
        places = range(hint.address, hint.address + count)
        if hint.kind != "tensor" or count > len(held) or not all(at in held for at in places):
            continue
        native = np.stack([held[at] for at in places])
        tiled = hint.memory in TILE_FILES
        logical = (unpack_tiles if tiled else unpack)(native, hint.shape)
        again = (pack_tiles if tiled else pack)(logical, program.native)
        if np.array_equal(again.view(np.uint16), native.view(np.uint16)):
            arrays[f"{hint.memory}/{hint.name}"] = logical
            for at in places:
                del held[at]
    for memory, held in left.items():
        run: list[int] = []
        for at in sorted(held):
            if run and at != run[-1] + 1:
                arrays[f"{memory}@{run[0]}"] = np.stack([held[i] for i in run])
                run = []
            run.append(at)
        if run:
            arrays[f"{memory}@{run[0]}"] = np.stack([held[i] for i in run])
    return arrays
