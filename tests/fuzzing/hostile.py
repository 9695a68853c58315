"""Targets of more than one file, or of one that becomes large: a case is a text that says what to
make, so that mutations reach what no change of bytes would."""

from __future__ import annotations

import io
import json
import random
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
from PIL import Image

from fuzzing import bombs
from fuzzing.bounds import MEMORY
from fuzzing.mutations import lines_of, mostly
from fuzzing.targets import REPLACED, seeds_of, target
from samebits import data
from samebits.codegen.packaging.seal import check_seal, read_seal
from samebits.codegen.run.interface import REPORT
from samebits.errors import InputError
from samebits.model import load
from samebits.reports.summary import summarize

# --- bombs ----------------------------------------------------------------------------------------

SIDES = (1, 16383)  # pixels; WebP takes no more
AREA = 30_000_000  # pixels that are made
TO_MAKE = 200 << 20  # bytes that making an array takes
MODES = ("L", "RGB", "RGBA", "P", "1", "LA", "I;16", "CMYK")
KINDS = ("uint8", "bool", "float32", "int64", "float64", "int16")
OPERATORS = ("ConstantOfShape", "Expand", "Tile", "Range")


def between(number: int, low: int, high: int) -> int:
    """The nearest number that can be made."""
    return max(low, min(number, high))


def sides(numbers: list[int]) -> tuple[int, int]:
    """Width and height of an image, of so many pixels that it can be made."""
    width = between(numbers[0], *SIDES)
    return width, between(numbers[1], 1, min(SIDES[1], AREA // width))


def picture(words: list[str], numbers: list[int]) -> bombs.Maker:
    """FORMAT MODE, width and height."""
    kind = words[0] if words[0] in ("PNG", "JPEG", "WEBP") else "PNG"
    return bombs.pictures(kind, words[1] if words[1] in MODES else "L", sides(numbers))


def array(words: list[str], numbers: list[int]) -> bombs.Maker:
    """Kind of x, kind of y, rows, columns."""
    x, y = (word if word in KINDS else "uint8" for word in words[:2])
    rows = between(numbers[0], 0, TO_MAKE // 8)
    columns = between(numbers[1], 0, TO_MAKE // 8 // max(rows, 1))
    return bombs.archive(x=((rows, columns), x), y=((rows,), y))


def table(words: list[str], numbers: list[int]) -> bombs.Maker:
    """Rows, and bytes of a word in each; what the footer says, and whether it is a dictionary."""
    rows = between(numbers[0], 1, 5000)
    word = between(numbers[1], 1, TO_MAKE // rows)
    return bombs.lying_table(rows, word, between(numbers[2], 0, 1 << 40))


def constant(words: list[str], numbers: list[int]) -> bombs.Maker:
    """Operators, and the number of elements."""
    chosen = [word for word in words if word in OPERATORS][:1] or ["Expand"]
    return bombs.network(*chosen, count=between(numbers[0], 0, 1 << 40))


def cells(words: list[str], numbers: list[int]) -> bombs.Maker:
    """A word, how often it stands in a cell, and cells of a row."""
    text = words[0][:20] * between(numbers[0], 0, 5000)
    return bombs.csv(",".join([text[:5000]] * between(numbers[1], 1, 3000))[:100_000])


BOMBS: dict[str, Callable[[list[str], list[int]], bombs.Maker]] = {
    "picture": picture,
    "masks": lambda words, numbers: bombs.masks(sides(numbers)),
    "array": array,
    "table": table,
    "constant": constant,
    "cells": cells,
    "text": lambda words, numbers: bombs.text(between(numbers[0], 256, bombs.LARGEST)),
    "sound": lambda words, numbers: bombs.recordings(
        between(numbers[0], 1, 192_000), between(numbers[1], 1, 10)
    ),
    "saved": lambda words, numbers: bombs.saved(between(numbers[0], 0, 1 << 40)),
}
WORDS = (*BOMBS, "PNG", "JPEG", "WEBP", *MODES, *KINDS, *OPERATORS, "a", "1", '"', "-9")
AMOUNTS = (
    *("0", "1", "2", "100", "256", "1000", "4000", "8000", "16000", "65536", "1000000"),
    *("16777216", "33554432", "134217728", "268435456", "2147483647", "4294967296"),
)


@target(mostly(lines_of(WORDS, AMOUNTS), part=0.97), size=100)
def bomb(folder: Path, given: bytes) -> None:
    """Valid files of less than 1 MB of what becomes large: at most MEMORY bytes more, or refused.

    The first line says which: its kind, two words, three numbers.
    """
    place = folder / "case"
    place.mkdir()
    line = given.decode("utf-8", "replace").partition("\n")[0].split(" ")
    words = [*(word for word in line[1:] if not word.isdecimal()), "", "", ""]
    numbers = [*(int(word[:18]) for word in line if word.isascii() and word.isdigit()), 1, 1, 1]
    if line[0] not in BOMBS:
        raise InputError(f"{place}: expected a kind of file, found {line[0]!r}")
    try:
        read = BOMBS[line[0]](words, numbers)(place)
    except Exception as error:  # of what no library writes
        raise InputError(f"{place}: expected what can be written: {error}") from None
    largest = max(path.stat().st_size for path in place.rglob("*") if path.is_file())
    if largest > bombs.LARGEST:
        raise InputError(f"{place}: expected a small file, found {largest} bytes")
    size, said = bombs.taken(read)
    assert size <= MEMORY, f"{size >> 20} MiB, {said or 'read'}"
    if said:
        raise InputError(said)


# --- folders --------------------------------------------------------------------------------------


def encoded(kind: str) -> bytes:
    """A small file of a kind."""
    stream = io.BytesIO()
    if kind == "png":
        made = Image.new("L", (3, 2))
        made.putpixel((0, 0), 1)
        made.save(stream, "PNG")
    elif kind == "arrow":
        rows = pyarrow.table({"a": np.arange(40.0), "y": np.arange(40) % 2})
        with pyarrow.ipc.new_stream(stream, rows.schema) as sink:
            sink.write_table(rows)
    elif kind in STATES:
        return json.dumps(STATES[kind]).encode()
    elif kind == "wav":
        with wave.open(stream, "wb") as sound:
            sound.setparams((1, 2, 16000, 0, "NONE", ""))
            sound.writeframes(np.arange(2000, dtype="<i2").tobytes())
    else:
        return b"a,y\n1.0,p\n2.5,q\n3.0,p\n"
    return stream.getvalue()


STATES = {"state": {"_data_files": [{"filename": "x.arrow"}]}, "info": {}}
PLACES = ("train/a", "train/b", "test/a", "test/b")
LAID: dict[str, dict[str, str]] = {
    "images": {f"{place}/0.png": "png" for place in PLACES},
    "recordings": {f"{place}/0.wav": "wav" for place in PLACES},
    "masks": {
        f"{split}/{part}/0.png": "png"
        for split in ("train", "test")
        for part in ("images", "masks")
    },
    "tables": {"train.csv": "csv", "test.csv": "csv"},
    "saved": {"x.arrow": "arrow", "state.json": "state", "dataset_info.json": "info"},
    "flat": {f"{name}.png": "png" for name in "abcd"},
    "network": {"x.onnx": "onnx"},
    "package": {REPORT: "report", "model.onnx": "onnx", "model.c": "csv"},
}


def content(kind: str) -> bytes:
    """The bytes of a file that is laid."""
    if kind == "onnx":
        return next(seeds_of("onnx"))
    return next(seeds_of("package")) if kind == "report" else encoded(kind)


def read_folder(name: str, out: Path) -> None:
    """What reads a folder of a kind."""
    if name == "network":
        load(out / "x.onnx")
    elif name == "package":
        summarize(out)
        check_seal(out, read_seal(out)[1])
    elif name == "flat":
        data.load_samples(str(out))
    else:
        data.load(str(out))


ENTRIES = {
    name: sorted(
        {str(place) for path in files for place in (Path(path), *Path(path).parents)} - {"."}
    )
    for name, files in LAID.items()
}  # files and folders


def one_replaced(given: bytes, rng: random.Random) -> bytes:
    """Any folder, of which any entry becomes anything."""
    name = rng.choice(sorted(LAID))
    return f"{name}\n{rng.choice(ENTRIES[name])} {rng.choice(sorted(REPLACED))}\n".encode()


@target(mostly(one_replaced, lines_of((*REPLACED, *LAID), ("1",)), part=0.7), size=300)
def strange_data(folder: Path, given: bytes) -> None:
    """A folder of data, a network or a package; each line of a case but the first, which names it,
    replaces an entry by what is no file, until one is. Nothing waits, and nothing outside is read
    or written."""
    first, *lines = given.decode("utf-8", "replace").splitlines() or [""]
    out, outside = folder / "case", folder / "outside"
    if first not in LAID:
        raise InputError(f"{out}: expected a kind of folder, found {first!r}")
    outside.mkdir()
    out.mkdir()
    replaced = out
    for path, kind in LAID[first].items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_bytes(content(kind))
    for line in lines:
        path, _, kind = line.partition(" ")
        place = out / path
        if path in ENTRIES[first] and kind in REPLACED and kind != "none":
            place.rename(outside / "file")
            REPLACED[kind](place, outside)
            replaced = place
            break
    before = contents(outside)
    try:
        read_folder(first, out)
        # A path that a user names may be a link; what a package does not read is not looked at.
        assert not replaced.is_symlink() or first in ("network", "package"), "a link was read"
    finally:
        assert contents(outside) == before, "outside has changed"


def contents(folder: Path) -> dict[str, bytes | None]:
    """What lies in a folder, with the bytes of files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }
