"""Valid files of every kind that are small and become large: each is below 1 MB.

PYTHONPATH=tests python -m fuzzing.bombs [NAME ...]: what reading them takes, in a process whose
address space is bounded; exit code 1 where it is too much, or no sentence.
"""

from __future__ import annotations

import ctypes
import gc
import io
import json
import re
import resource
import struct
import sys
import tempfile
import time
import warnings
import wave
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pyarrow
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from pyarrow import parquet

from fuzzing.bounds import BEYOND, MEMORY, MEMORY_WORDS
from samebits import data
from samebits.errors import SamebitsError
from samebits.model import load
from samebits.recipes.reading import Reading
from samebits.samples import in_memory

LARGEST = 1_000_000  # bytes of a file
Reader = Callable[[], object]
Maker = Callable[[Path], Reader]  # writes files into a folder; gives what reads them
SIDE = 9000  # pixels


def pictures(
    kind: str, mode: str, size: tuple[int, int] = (SIDE, SIDE), **options: object
) -> Maker:
    """A folder of images of one colour, read as a folder of classes."""

    def make(folder: Path) -> Reader:
        stream = io.BytesIO()
        Image.new(mode, size).save(stream, kind, **options)
        for place in ("train/a", "train/b", "test/a", "test/b"):
            (folder / place).mkdir(parents=True)
            (folder / place / f"x.{kind.lower()}").write_bytes(stream.getvalue())
        return lambda: data.load(str(folder))

    return make


def masks(size: tuple[int, int] = (SIDE, SIDE)) -> Maker:
    """Masks of two classes, of which one is a pixel."""

    def make(folder: Path) -> Reader:
        for split in ("train", "test"):
            for name in ("images", "masks"):
                (folder / split / name).mkdir(parents=True)
                made = Image.new("L", size)
                made.putpixel((0, 0), 1)
                made.save(folder / split / name / "x.png")
        return lambda: data.load(str(folder))

    return make


def archive(**arrays: tuple[tuple[int, ...], str]) -> Maker:
    """An archive of zeros."""

    def make(folder: Path) -> Reader:
        made = {name: np.zeros(shape, kind) for name, (shape, kind) in arrays.items()}
        np.savez_compressed(folder / "x.npz", **made)
        return lambda: in_memory(str(folder / "x.npz"))

    return make


def arrow_table(kind: str) -> pyarrow.Table:
    """Tables that are small in a file of Parquet."""
    if kind == "a word":  # 1 MB of it, in every row
        words = pyarrow.DictionaryArray.from_arrays(np.zeros(700, np.int32), ["x" * (1 << 20)])
        return pyarrow.table({"w": words, "a": np.arange(700), "y": np.arange(700) % 2})
    if kind == "words":  # another one in every group of rows
        words = [letter * (1 << 20) for letter in "abcdefghijklmnopqrstuvwxyz" * 40]
        return pyarrow.table({"w": words, "y": np.arange(len(words)) % 2})
    if kind == "fixed":
        values = pyarrow.array([bytes(1 << 20)] * 700, pyarrow.binary(1 << 20))
        return pyarrow.table({"w": values, "y": np.arange(700) % 2})
    rows = 1 << 24
    return pyarrow.table({"a": np.zeros(rows), "y": np.zeros(rows, np.int64)})


def table(kind: str, **options: object) -> Maker:
    """A table of zeros, or of one long word."""

    def make(folder: Path) -> Reader:
        parquet.write_table(arrow_table(kind), folder / "x.parquet", compression="zstd", **options)
        return lambda: data.load(str(folder / "x.parquet"))

    return make


def varint(value: int, length: int = 1) -> bytes:
    """A signed number as Thrift's compact protocol writes it, of at least so many bytes."""
    left, found = 2 * value, bytearray()
    while left > 127 or len(found) < length - 1:
        found.append(left & 127 | 128)
        left >>= 7
    return bytes((*found, left))


def lying(path: Path, stated: int) -> None:
    """Let the footer of a Parquet file of one row group say that it holds `stated` bytes."""
    real = varint(parquet.read_metadata(path).row_group(0).total_byte_size)
    content = path.read_bytes()
    (length,) = struct.unpack("<I", content[-8:-4])
    pages, footer = content[: -8 - length], content[-8 - length :]
    path.write_bytes(pages + footer.replace(real, varint(stated, len(real))))


def lying_table(rows: int = 1900, word: int = 1 << 20, stated: int = 100) -> Maker:
    """A table that is one page of a long word in all rows, of which the footer says few bytes."""

    def make(folder: Path) -> Reader:
        words = pyarrow.array(["x" * word] * rows)
        made = pyarrow.table({"w": words, "i": np.arange(rows), "y": np.arange(rows) % 2})
        options = {"compression": "zstd", "use_dictionary": False, "data_page_size": 1 << 30}
        parquet.write_table(made, folder / "x.parquet", **options)
        lying(folder / "x.parquet", stated)
        return lambda: data.load(str(folder / "x.parquet"))

    return make


def csv(text: str) -> Maker:
    """A table of a row that is repeated."""

    def make(folder: Path) -> Reader:
        names = ",".join(f"c{i}" for i in range(text.count(",") + 1))
        rows = LARGEST // (len(text) + 1) - 20
        (folder / "x.csv").write_text(f"{names}\n" + f"{text}\n" * rows)
        return lambda: data.load(str(folder / "x.csv"))

    return make


def text(size: int = LARGEST) -> Maker:
    """Windows of a text."""

    def make(folder: Path) -> Reader:
        (folder / "x.txt").write_bytes(bytes(range(256)) * (size // 256))
        return lambda: data.load(str(folder / "x.txt"))

    return make


def recordings(rate: int, channels: int = 1) -> Maker:
    """Recordings of another rate than 16 kHz."""

    def make(folder: Path) -> Reader:
        for place in ("train/a", "train/b", "test/a", "test/b"):
            (folder / place).mkdir(parents=True)
            with wave.open(str(folder / place / "x.wav"), "wb") as file:
                file.setparams((channels, 2, rate, 0, "NONE", ""))
                file.writeframes(bytes(min(LARGEST - 1000, 120 * rate)))
        return lambda: data.load(str(folder), options=Reading(resample=True))

    return make


def network(*operators: str, count: int = 1 << 27) -> Maker:
    """Constants that a few operators make of a few numbers."""
    nodes = {
        "ConstantOfShape": helper.make_node("ConstantOfShape", ["size"], ["c"]),
        "Expand": helper.make_node("Expand", ["one", "size"], ["c"]),
        "Tile": helper.make_node("Tile", ["one", "size"], ["c"]),
        "Range": helper.make_node("Range", ["zero", "count", "step"], ["c"]),
    }

    def make(folder: Path) -> Reader:
        size = np.array([count], np.int64)
        constants = {
            "size": size,
            "one": np.ones(1, np.float32),
            "zero": np.array(0.0, np.float32),
            "count": np.array(float(count), np.float32),
            "step": np.array(1.0, np.float32),
        }
        made = [nodes[operator] for operator in operators]
        made.append(helper.make_node("ReduceSum", ["c"], ["s"], keepdims=0))
        made.append(helper.make_node("Add", ["x", "s"], ["y"]))
        graph = helper.make_graph(
            made,
            "bomb",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        )
        imports = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=imports), folder / "x.onnx")
        return lambda: load(folder / "x.onnx")

    return make


def exported(folder: Path) -> Reader:
    """A module with weights of zeros, packed."""
    module = torch.nn.Linear(1 << 14, 1 << 13, bias=False)
    torch.nn.init.zeros_(module.weight)
    program = torch.export.export(module.eval(), (torch.zeros(1, 1 << 14),))
    stream = io.BytesIO()
    torch.export.save(program, stream)
    with (
        zipfile.ZipFile(stream) as plain,
        zipfile.ZipFile(folder / "x.pt2", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for member in plain.infolist():
            packed.writestr(member.filename, plain.read(member))
    del module, program, stream
    return lambda: load(folder / "x.pt2")


def packed(compression: int) -> Maker:
    """An archive packed in another way than numpy packs it."""

    def make(folder: Path) -> Reader:
        stream = io.BytesIO()
        np.save(stream, np.zeros(1 << 28, np.uint8))
        with zipfile.ZipFile(folder / "x.npz", "w", compression) as made:
            made.writestr("x.npy", stream.getvalue())
        del stream
        return lambda: in_memory(str(folder / "x.npz"))

    return make


def saved(rows: int = 1 << 28) -> Maker:
    """A data set of Hugging Face of columns without a value."""

    def make(folder: Path) -> Reader:
        made = pyarrow.table({"a": pyarrow.nulls(rows), "b": pyarrow.nulls(rows)})
        with pyarrow.ipc.new_stream(folder / "x.arrow", made.schema) as stream:
            stream.write_table(made)
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "x.arrow"}]}))
        (folder / "dataset_info.json").write_text("{}")
        return lambda: data.load(str(folder))

    return make


BOMBS: dict[str, Maker] = {
    "webp": pictures("WEBP", "RGB", lossless=True),
    "png": pictures("PNG", "RGBA"),
    "png palette": pictures("PNG", "P"),
    "jpeg": pictures("JPEG", "L"),
    "masks": masks(),
    "npz": archive(x=((1 << 29,), "uint8")),
    "npz rows": archive(x=((1 << 16, 1 << 12), "uint8"), y=((1 << 16,), "int64")),
    "npz of bzip2": packed(zipfile.ZIP_BZIP2),
    "npz of LZMA": packed(zipfile.ZIP_LZMA),
    "parquet": table("zeros"),
    "parquet with a word": table("a word"),
    "parquet with words": table("words", row_group_size=1),
    "parquet with prefixes": table("words", use_dictionary=False, column_encoding={
        "w": "DELTA_BYTE_ARRAY", "y": "PLAIN"}),
    "parquet of fixed length": table("fixed"),
    "parquet that lies": lying_table(),
    "csv of nothing": csv("," * 2000),
    "csv of digits": csv(",".join("1234567890" * 100)),
    "csv of words": csv("a,b,c"),
    "text": text(),
    "recordings of 8 kHz": recordings(8000),
    "recordings of 44.1 kHz": recordings(44100),
    "onnx constant": network("ConstantOfShape"),
    "onnx expand": network("Expand"),
    "onnx tile": network("Tile"),
    "onnx range": network("Range"),
    "pt2": exported,
    "saved by Hugging Face": saved(),
}  # fmt: skip


def resident(field: str) -> int:
    """Bytes that this process has now (VmRSS), or had at most (VmHWM), or names (VmSize)."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def taken(read: Reader) -> tuple[int, str]:
    """Bytes of memory that reading takes at most, and the sentence that it ends in."""
    gc.collect()
    gc.freeze()  # what is left is torch and the like: the next call need not look at it again
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before, said = resident("VmRSS"), ""
    try:
        read()
    except SamebitsError as error:
        said = str(error)
    return resident("VmHWM") - before, said


@contextmanager
def bounded() -> Iterator[None]:
    """An address space of BEYOND bytes more than now: making a bomb may take what it becomes."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (resident("VmSize") + BEYOND, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def main(names: list[str]) -> int:
    """Exit code 1 where a bomb takes too much."""
    warnings.simplefilter("ignore")
    bad = 0
    for name in names or list(BOMBS):
        with tempfile.TemporaryDirectory() as place:
            read = BOMBS[name](Path(place))
            sizes = [path.stat().st_size for path in Path(place).rglob("*") if path.is_file()]
            assert max(sizes) <= LARGEST, f"{name}: {max(sizes)} bytes"
            began = time.monotonic()
            with bounded():
                size, said = taken(read)
            seconds = time.monotonic() - began
        fault = size > MEMORY or any(word in said for word in MEMORY_WORDS)
        bad |= fault
        print(
            f"{name:24} {sum(sizes):8} bytes: {size >> 20:4} MiB, {seconds:5.1f} s "
            f"{said.replace(place, '')[:120] or 'read'}" + ("   <== FAULT" if fault else ""),
            flush=True,
        )
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
