"""Every reader of untrusted bytes: seeds, mutations, and what is done with a case.

A reader gives nothing where it accepts a case, and raises SamebitsError where it refuses it: in a
message that names the file first. Whatever else it raises is a defect; so are a message about
memory, which an untrusted file has run out of, and a case that takes longer than SECONDS.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors.torch import load as load_tensors

from fuzzing import lite, models, seeds
from fuzzing.mutations import (
    Mutation,
    array_file,
    changed_value,
    chunks,
    document,
    flip,
    join_tensors,
    lines_of,
    members_of,
    mostly,
    one_of,
    records,
    sound,
    split_files,
    split_tensors,
    tensors,
    words,
)
from samebits.codegen.packaging.seal import check_seal, read_seal
from samebits.codegen.run.interface import REPORT, Interface
from samebits.data.archive import load_npz
from samebits.data.pictures import read_picture
from samebits.data.recordings import read_wav
from samebits.data.table import load_table
from samebits.data.text import load_text
from samebits.errors import PackageError, SamebitsError
from samebits.excerpt import Excerpt
from samebits.files import read_archive
from samebits.npu.concord.dataflow import data_flow
from samebits.npu.concord.source import module_text
from samebits.npu.concord.translate import load_concordant, translate
from samebits.npu.machine.assembly import parse, to_text
from samebits.npu.machine.chain import Loop, Send, Statement
from samebits.npu.machine.check import check
from samebits.npu.machine.image import read_program
from samebits.npu.machine.isa import INSTRUCTIONS
from samebits.npu.machine.program import Image, Program
from samebits.npu.machine.words import from_words, to_words
from samebits.npu.simulator.simulate import simulate
from samebits.onnx import facts
from samebits.onnx import load as load_onnx
from samebits.pytorch.exported import read_exported
from samebits.recipes.reading import Reading
from samebits.reports.summary import summarize
from samebits.tflite import load as load_tflite
from samebits.tflite import parse as parse_tflite
from samebits.tflite import to_bytes
from samebits.train.run import checkpoint as checkpoints
from samebits.train.run.checkpoint import read_checkpoint
from samebits.train.run.record import (
    CONFIG,
    LOCK,
    METRICS,
    RESULT,
    append_metrics,
    first_difference,
    read_json,
    repair_metrics,
    run_folder,
)
from samebits.train.run.restore import open_trained
from samebits.verification.trace import first_parting, read_trace
from samebits.verification.training_trace import audit, read_training_trace

SECONDS = 60  # of one case
VECTORS = 2000  # that chains of a program may move, for it to be run


@dataclass(frozen=True)
class Target:
    """One reader.

    seeds:  valid files
    mutate: changes a case
    read:   of a case, given an empty folder: SamebitsError where it is refused
    size:   bytes of a case that the corpus takes at most
    """

    name: str
    seeds: Callable[[], Iterator[bytes]]
    mutate: Mutation
    read: Callable[[Path, bytes], None]
    size: int = 2500


TARGETS: dict[str, Target] = {}


def target(
    mutate: Mutation, *, size: int = 2500
) -> Callable[[Callable[[Path, bytes], None]], Callable[[Path, bytes], None]]:
    """Enter the function that reads a case; its seeds are the function of its name."""

    def enter(read: Callable[[Path, bytes], None]) -> Callable[[Path, bytes], None]:
        name = read.__name__
        made: Callable[[], Iterator[bytes]] = getattr(seeds, name)
        TARGETS[name] = Target(name.replace("_", "-"), made, mostly(mutate), read, size)
        return read

    return enter


def written(folder: Path, name: str, data: bytes) -> Path:
    """A file of the case."""
    path = folder / name
    path.write_bytes(data)
    return path


# --- networks -------------------------------------------------------------------------------------


@target(mostly(models.fields, part=0.8), size=2000)
def onnx(folder: Path, data: bytes) -> None:
    """A real graph."""
    path = written(folder, "case.onnx", data)
    load_onnx(path)
    with contextlib.suppress(SamebitsError):
        facts(path)


@target(mostly(lite.fields, mostly(lite.aligned), part=0.6), size=2200)
def tflite(folder: Path, data: bytes) -> None:
    """A real graph, and one of the runtime's integers; what is read is written to bytes that are
    read to the same."""
    path = written(folder, "case.tflite", data)
    made = to_bytes(parse_tflite(data, "case"))
    assert to_bytes(parse_tflite(made, "case")) == made
    try:
        load_tflite(path, Excerpt(meaning="tflite"))
    except SamebitsError:
        load_tflite(path)
    else:
        with contextlib.suppress(SamebitsError):
            load_tflite(path)


@target(members_of({".json": document}), size=5000)
def pt2(folder: Path, data: bytes) -> None:
    """The graph of an exported program."""
    read_exported(written(folder, "case.pt2", data))


def stated(data: bytes, rng: random.Random) -> bytes:
    """A checkpoint with a few changes in its header's document or tensors, and its own hash."""
    header, body = split_tensors(data)
    held = json.loads(header["__metadata__"]["samebits"])
    held.pop("sha256", None)
    if rng.random() < 0.7:
        held = changed_value(held, rng)
    else:
        body = flip(body, rng)[: len(body)].ljust(len(body), b"\0")
    made = join_tensors({**header, "__metadata__": {}}, body)
    if isinstance(held, dict) and rng.random() < 0.95:
        held["sha256"] = checkpoints._content_sha256(load_tensors(made), held)
    return join_tensors({**header, "__metadata__": {"samebits": json.dumps(held)}}, body)


@target(mostly(stated, mostly(tensors, part=0.6), part=0.8), size=2600)
def checkpoint(folder: Path, data: bytes) -> None:
    """The state of a run; whether its network can be built is another question."""
    path = written(folder, "case.safetensors", data)
    read_checkpoint(path)
    with contextlib.suppress(SamebitsError):
        open_trained(path)


@target(one_of(document, mostly(records), document), size=1500)
def run(folder: Path, data: bytes) -> None:
    """A folder of a run that is resumed."""
    out = folder / "case"
    out.mkdir()
    for name, held in zip((CONFIG, METRICS, RESULT), split_files(data, 3), strict=True):
        written(out, name, held)
    stored = read_json(out / CONFIG)
    with run_folder(out, stored, resume=True, overwrite=False):
        first_difference({"arch": "mlp", "lr": 0.1}, stored)
        repair_metrics(out, 2)
        read_json(out / RESULT)


ENTRIES = (CONFIG, METRICS, RESULT, "checkpoint-00000002.safetensors", LOCK)
REPLACED: dict[str, Callable[[Path, Path], object]] = {
    "none": lambda path, outside: None,
    "pipe": lambda path, outside: os.mkfifo(path),
    "folder": lambda path, outside: path.mkdir(),
    "device": lambda path, outside: path.symlink_to("/dev/zero"),
    "dangling": lambda path, outside: path.symlink_to(outside / "new"),
    "link": lambda path, outside: path.symlink_to(outside / "file"),
}


@target(lines_of((*ENTRIES, *REPLACED), ("1",)), size=300)
def strange_folder(folder: Path, data: bytes) -> None:
    """A folder of a run, described and resumed; each line of a case replaces an entry by what is
    no file. Nothing outside is read or written."""
    out, outside = folder / "case", folder / "outside"
    out.mkdir()
    outside.mkdir()
    written(outside, "file", b"{}")
    for name, held in zip(ENTRIES, (*split_files(next(seeds_of("run")), 3), b"", b""), strict=True):
        written(out, name, held)
    written(out, ENTRIES[3], next(seeds_of("checkpoint")))
    for line in data.decode("utf-8", "replace").splitlines():
        name, _, kind = line.partition(" ")
        if name in ENTRIES and kind in REPLACED and (out / name).is_file():
            (out / name).unlink()
            REPLACED[kind](out / name, outside)
    try:
        stored = read_json(out / CONFIG)
        with run_folder(out, stored, resume=True, overwrite=False):
            repair_metrics(out, 2)
            append_metrics(out, {"step": 3})
            read_json(out / RESULT)
        summarize(out)
    finally:
        assert [path.read_bytes() for path in outside.iterdir()] == [b"{}"]


# --- firmware -------------------------------------------------------------------------------------

ASSEMBLY_NUMBERS = (
    *("-1", "0", "1", "2", "3", "7", "8", "16", "31", "64", "512", "513", "1000", "4095"),
    *("65535", "65536", "1048575", "1048576", "4194303", "4194304", "999999999", "10000000000"),
    *("1.5", "0x10", "1e3", "+1", "", "nan", "\u0661"),
)
ASSEMBLY_WORDS = (
    *(*INSTRUCTIONS, "netq", "ivrf", "dram", "mrf", "mdram", "asvrf1", "mvrf0", "rows", "columns"),
    *("iterations", "iterations_x", "window", "window_run", "window_pitch", "requantize", ","),
    *(";", ";!", ";! input", ";! output", ";! tensor", ".native", ".depth", "class", "self"),
    *("__import__('os')", '"""', "'", "\\", "é", "\u2028", "\x00", "\x85", "x" * 65, "1x1", "0x0"),
)
PROGRAM = mostly(lines_of(ASSEMBLY_WORDS, ASSEMBLY_NUMBERS, ("loop {}", "end_loop")))


def stored_arrays(data: bytes, rng: random.Random) -> bytes:
    """A memory image: tensors dropped, renamed, reshaped, converted or filled with others."""
    arrays = safetensors.numpy.load(data)
    name = rng.choice(sorted(arrays))
    array, kind = arrays.pop(name), rng.randrange(6)
    if kind == 1:
        other = rng.choice((f"{name}_", "ivrf@0", "mrf@1", "x", "", "ivrf/x", "dram@9999999"))
        arrays[other] = array
    elif kind == 2:
        arrays[name] = array.reshape(rng.choice(((-1,), (1, *array.shape), array.shape[::-1])))
    elif kind == 3:
        arrays[name] = array.astype(rng.choice((np.float32, np.int16, np.bool_)))
    elif kind == 4:
        patterns = np.random.default_rng(rng.randrange(2**32)).integers(0, 2**16, array.shape)
        drawn = patterns.astype(np.uint16).view(np.float16)
        arrays[name] = drawn if rng.random() < 0.1 else np.nan_to_num(drawn)
    elif kind == 5:
        arrays[name] = array[: rng.randrange(len(array) + 1)]
    return bytes(safetensors.numpy.save({k: np.ascontiguousarray(v) for k, v in arrays.items()}))


@target(PROGRAM, size=2700)
def assembly(folder: Path, data: bytes) -> None:
    """A program, written again and read to the same."""
    text = data.decode("utf-8", "replace")
    program = parse(text, "case")
    _check_same_text(program)


def _check_same_text(program: Program) -> None:
    again = parse(to_text(program), "case")
    assert to_text(again) == to_text(program)
    assert to_words(again) == to_words(program)


@target(words, size=700)
def binary(folder: Path, data: bytes) -> None:
    """A program in words: no others give the same instructions."""
    found = struct.unpack(f"<{len(data) // 4}I", data[: len(data) // 4 * 4])
    program = from_words(found, 16, 5, {"ivrf": 64, "mrf": 64}, "case")
    assert to_words(program) == found
    _check_same_text(program)


@target(one_of(PROGRAM, mostly(stored_arrays, mostly(tensors))), size=6800)
def firmware(folder: Path, data: bytes) -> None:
    """A legal program with its image: its simulator and PyTorch have the same bits."""
    text, image = split_files(data, 2)
    path = written(folder, "case.nnp", text)
    written(folder, "case.safetensors", image)
    program, held = read_program(path)
    steps = check(program, held)
    if _moved(steps) <= VECTORS:
        _check_same_bits(program, held, folder)
    else:
        ast.parse(module_text(data_flow(program, held), "torch", "case.safetensors"))


def _moved(steps: Sequence[Statement]) -> int:
    """Vectors that all chains read and write, counting a tile of the queue once."""
    total = 0
    for step in steps:
        if isinstance(step, Loop):
            total += step.count * (1 + _moved(step.body))
        elif isinstance(step, Send):
            total += 1
        else:
            total += step.iterations * (step.read_count + step.write_count)
    return total


def _bits(array: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(array), np.float16(np.nan), array).view(np.uint16)


def _check_same_bits(program: Program, image: Image, folder: Path) -> None:
    """The simulator's bits from PyTorch, for two samples."""
    numbers = np.random.default_rng(5)
    inputs = {
        hint.name: numbers.standard_normal((2, *hint.shape)).astype(np.float16)
        for hint in program.hints
        if hint.kind == "input"
    }
    expected = simulate(program, image, inputs).outputs
    translate(program, image, "torch", folder / "model.py")
    found = load_concordant(folder / "model.py")(inputs)
    assert set(found) == set(expected)
    for name, array in expected.items():
        wanted = array if inputs else array[np.newaxis]
        assert found[name].shape == wanted.shape, name
        assert np.array_equal(_bits(found[name]), _bits(wanted)), name


# --- data -----------------------------------------------------------------------------------------


@target(members_of({".npy": array_file}), size=1500)
def npz(folder: Path, data: bytes) -> None:
    """All arrays of an archive; those of a data set, if it is one."""
    path = written(folder, "case.npz", data)
    read_archive(path)
    load_npz(path)


@target(sound, size=2600)
def wav(folder: Path, data: bytes) -> None:
    """A recording."""
    read_wav(written(folder, "case.wav", data))


@target(chunks, size=1000)
def image(folder: Path, data: bytes) -> None:
    """An image."""
    read_picture(written(folder, "case.png", data))


@target(flip, size=1200)
def text(folder: Path, data: bytes) -> None:
    """Windows of a text."""
    load_text(written(folder, "case.txt", data))


CELLS = (
    *("", "NA", "nan", "inf", "-0", "1e400", "1e-400", "9007199254740993", "1_0", "0x10", "\u0661"),
    *('"', '""', '"a,b"', '"a\n', "a\tb", ";", "=1+1", "\x00", "\r", "é", "true", "2020-01-01"),
    *("x" * 300, "1" * 400, ",,,,", "1e308,-1e308"),
)


def cells(data: bytes, rng: random.Random) -> bytes:
    """A table with cells replaced, moved and dropped."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(lines))
        row = lines[at].split(",")
        place, kind = rng.randrange(len(row)), rng.randrange(6)
        if kind < 3:
            row[place] = rng.choice(CELLS)
        elif kind == 3:
            row[place : place + 1] = []
        elif kind == 4:
            row[place] = rng.choice(rng.choice(lines).split(","))
        else:
            lines.insert(at, lines[rng.randrange(len(lines))])
        lines[at] = ",".join(row)
    return "\n".join(lines).encode("utf-8", "surrogateescape")


@target(mostly(cells, flip, part=0.9), size=1800)
def csv(folder: Path, data: bytes) -> None:
    """A table, as what its last column says and as a regression."""
    path = written(folder, "case.csv", data)
    with contextlib.suppress(SamebitsError):
        load_table(path, Reading(task="regression"))
    load_table(path)


# --- records --------------------------------------------------------------------------------------


@target(document, size=2500)
def trace(folder: Path, data: bytes) -> None:
    """A trace, described and compared with itself and with the first seed."""
    path = written(folder, "case.json", data)
    record = read_trace(path)
    summarize(path)
    assert first_parting(record, record) is None
    other = read_trace(written(folder, "seed.json", next(seeds_of("trace"))))
    with contextlib.suppress(SamebitsError):
        first_parting(record, other)


@target(records, size=2500)
def training_trace(folder: Path, data: bytes) -> None:
    """A training trace, described and compared with itself and with the seed."""
    path = written(folder, "case.jsonl", data)
    read_training_trace(path)
    summarize(path)
    assert audit(path, path).parting is None
    with contextlib.suppress(SamebitsError):
        audit(path, written(folder, "seed.jsonl", next(seeds_of("training_trace"))))


@target(document, size=2500)
def plan(folder: Path, data: bytes) -> None:
    """A plan, described."""
    summarize(written(folder, "case.json", data))


TOML_WORDS = ("[[tier]]", "[tier]", "=", "name", '"x"', "nan", "inf", "1e400", "'", "true", "{}")
TOML_NUMBERS = ("-1", "0", "1_0", "0x10", "1.5", "99999999999999999999", "1e308", "")


@target(lines_of(TOML_WORDS, TOML_NUMBERS), size=1500)
def device(folder: Path, data: bytes) -> None:
    """A device, described."""
    summarize(written(folder, "case.toml", data))


@target(document, size=4000)
def package(folder: Path, data: bytes) -> None:
    """The report of a package of C, as a seal and described."""
    (folder / "case").mkdir()
    written(folder / "case", REPORT, data)
    with contextlib.suppress(PackageError):
        check_seal(folder / "case", read_seal(folder / "case")[1])
    Interface.read(folder / "case")
    summarize(folder / "case")


def seeds_of(name: str) -> Iterator[bytes]:
    """The seeds of a target, made once."""
    if name not in _MADE:
        _MADE[name] = list(TARGETS[name].seeds())
    return iter(_MADE[name])


_MADE: dict[str, list[bytes]] = {}
