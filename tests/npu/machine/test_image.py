"""Layout of tensors in native vectors and tiles; programs and images as files."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import safetensors.numpy

from npu.programs import random_case
from samebits.errors import InputError, SamebitsError
from samebits.npu.machine import image as image_module
from samebits.npu.machine.assembly import to_text
from samebits.npu.machine.image import (
    entry_count,
    entry_shape,
    pack,
    pack_tiles,
    read_program,
    unpack,
    unpack_tiles,
    write_program,
)
from samebits.npu.machine.program import Hint, Image, Program

VECTORS = [(1,), (8,), (9,), (20,), (1, 8), (5, 3), (4, 17), (1, 1, 1), (3, 4, 5), (9, 2, 3)]
TILES = [(1, 1), (8, 8), (9, 3), (20, 17), (3, 9, 1, 1), (5, 10, 3, 2), (16, 8, 1, 3)]


def numbers(shape):
    return np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(np.float16)


# --- layout -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", VECTORS)
def test_vectors_by_the_definition(shape):
    array, native = numbers(shape), 8
    packed = pack(array, native)
    assert packed.shape == (entry_count(shape, "ivrf", native), native)
    channels = shape[-1] if len(shape) == 2 else shape[0]
    blocks = -(-channels // native)
    wanted = np.zeros_like(packed)
    for index in itertools.product(*map(range, shape)):
        if len(shape) == 3:
            c, position = index[0], index[1] * shape[2] + index[2]
        else:
            c, position = index[-1], index[0] if len(shape) == 2 else 0
        wanted[position * blocks + c // native, c % native] = array[index]
    assert np.array_equal(packed, wanted)
    assert np.array_equal(unpack(packed, shape), array)


@pytest.mark.parametrize("shape", TILES)
def test_tiles_by_the_definition(shape):
    array, native = numbers(shape), 8
    packed = pack_tiles(array, native)
    assert packed.shape == (entry_count(shape, "mrf", native), native, native)
    outputs, inputs, height, width = (*shape, 1, 1)[:4]
    columns = -(-inputs // native)
    wanted = np.zeros_like(packed)
    for o, i, y, x in itertools.product(*map(range, (outputs, inputs, height, width))):
        row = o // native * height * width * columns
        tile = row + (y * width + x) * columns + i // native
        wanted[tile, o % native, i % native] = array.reshape(outputs, inputs, height, width)[
            o, i, y, x
        ]
    assert np.array_equal(packed, wanted)
    assert np.array_equal(unpack_tiles(packed, shape), array)


def test_a_kernel_meets_a_windowed_read():
    """Tiles of one row of tiles times the packed vectors of the window: the convolution."""
    native, channels, outputs, size = 8, 11, 5, 3
    rng = np.random.default_rng(0)
    window = rng.integers(-4, 5, (channels, size, size))
    kernel = rng.integers(-4, 5, (outputs, channels, size, size))
    tiles, vectors = pack_tiles(kernel, native), pack(window, native)
    assert len(tiles) == len(vectors)
    found = sum(tile @ vector for tile, vector in zip(tiles, vectors, strict=True))
    assert np.array_equal(found[:outputs], (kernel * window).sum((1, 2, 3)))


def test_what_lies_in_the_padding_is_dropped():
    packed = np.full((4, 8), 7, np.float16)
    assert unpack(packed, (2, 9)).tolist() == [[7] * 9] * 2


# --- files ------------------------------------------------------------------------------------


def same(a: Image, b: Image) -> bool:
    kept_a, kept_b = ({m: e for m, e in i.entries.items() if e} for i in (a, b))
    return kept_a.keys() == kept_b.keys() and all(
        kept_a[m].keys() == kept_b[m].keys()
        and all(kept_a[m][k].tobytes() == kept_b[m][k].tobytes() for k in kept_a[m])
        for m in kept_a
    )


@pytest.mark.parametrize("seed", range(8))
def test_file_round_trip(tmp_path, seed):
    case = random_case(seed)
    path = tmp_path / "net.nnp"
    write_program(path, case.program, case.image)
    program, image = read_program(path)
    assert to_text(program) == to_text(case.program)
    assert program.name == "net.nnp"
    assert same(image, case.image)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.nnp", "net.safetensors"]


HINTS = (
    Hint("tensor", "w", (9, 3), "mrf", 2),
    Hint("tensor", "k", (2, 3, 1, 2), "mdram", 0),
    Hint("tensor", "b", (9,), "asvrf0", 1),
    Hint("tensor", "s", (3, 2, 2), "dram", 0),
)
DEPTHS = {"mrf": 4, "mdram": 4, "asvrf0": 8, "dram": 8}
PROGRAM = Program(8, 15, DEPTHS, (), HINTS)


def entries(program=PROGRAM):
    found = {}
    for hint in program.hints:
        packer = pack_tiles if hint.memory in ("mrf", "mdram") else pack
        packed = packer(numbers(hint.shape), program.native)
        found[hint.memory] = dict(enumerate(packed, start=hint.address))
    return found


def test_tensors_are_stored_in_their_logical_shapes(tmp_path):
    held = entries()
    held["asvrf0"][7] = np.full(8, 2, np.float16)
    write_program(tmp_path / "net.nnp", PROGRAM, Image(held))
    stored = safetensors.numpy.load_file(tmp_path / "net.safetensors")
    assert {key: array.shape for key, array in stored.items()} == {
        "mrf/w": (9, 3),
        "mdram/k": (2, 3, 1, 2),
        "asvrf0/b": (9,),
        "dram/s": (3, 2, 2),
        "asvrf0@7": (1, 8),
    }
    for hint in HINTS:
        assert np.array_equal(stored[f"{hint.memory}/{hint.name}"], numbers(hint.shape))
    assert same(read_program(tmp_path / "net.nnp")[1], Image(held))


@pytest.mark.parametrize("value", [1.0, -0.0, np.nan])
def test_padding_that_is_not_zero_is_kept(tmp_path, value):
    held = entries()
    held["asvrf0"][2] = held["asvrf0"][2].copy()
    held["asvrf0"][2][7] = value
    write_program(tmp_path / "net.nnp", PROGRAM, Image(held))
    assert "asvrf0@1" in safetensors.numpy.load_file(tmp_path / "net.safetensors")
    assert same(read_program(tmp_path / "net.nnp")[1], Image(held))


def test_partial_tensors_and_gaps_are_kept(tmp_path):
    held = entries()
    del held["asvrf0"][1]
    held["asvrf0"][4] = held["asvrf0"][5] = np.ones(8, np.float16)
    write_program(tmp_path / "net.nnp", PROGRAM, Image(held))
    stored = safetensors.numpy.load_file(tmp_path / "net.safetensors")
    assert {k: v.shape for k, v in stored.items() if k.startswith("asv")} == {
        "asvrf0@2": (1, 8),
        "asvrf0@4": (2, 8),
    }
    assert same(read_program(tmp_path / "net.nnp")[1], Image(held))


def test_no_image_is_an_empty_one(tmp_path):
    (tmp_path / "net.nnp").write_text(".native 8\n")
    program, image = read_program(tmp_path / "net.nnp")
    assert program.native == 8
    assert image.entries == {}


# --- messages ---------------------------------------------------------------------------------


def message(path):
    with pytest.raises(InputError) as caught:
        read_program(path)
    return str(caught.value)


def test_bad_paths(tmp_path):
    advice = "; give the path of a .nnp file"
    text = tmp_path / "net.txt"
    assert message(text) == f"{text}: expected a .nnp file, found '.txt'{advice}"
    none = tmp_path / "none.nnp"
    assert message(none) == f"{none}: expected a file, found no such file{advice}"
    folder = tmp_path / "folder.nnp"
    folder.mkdir()
    assert (
        message(folder) == f"{folder}: expected a file, found a folder; put the file itself there"
    )
    assert "expected a" in message("a\0b.nnp")


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "net.nnp"
    path.write_bytes(b".native 8\n\xff")
    assert message(path) == (
        f"{path}:2: expected text in UTF-8, found byte 0xFF at 10; give the path of a .nnp file"
    )


def test_messages_of_the_text_name_the_file_alone(tmp_path):
    path = tmp_path / "net.nnp"
    path.write_text(".native 8\nnop\n")
    assert message(path).startswith("net.nnp:2:1: expected an instruction, found 'nop'")


def test_a_text_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(image_module, "TEXT_MAX", 9)
    path = tmp_path / "net.nnp"
    path.write_text(".native 8\n")
    assert message(path) == f"{path}: expected at most 9 bytes, found 10; use a smaller program"


def with_image(tmp_path, arrays):
    path = tmp_path / "net.nnp"
    path.write_text(to_text(PROGRAM))
    safetensors.numpy.save_file(arrays, tmp_path / "net.safetensors")
    return path, tmp_path / "net.safetensors"


@pytest.mark.parametrize(
    ("key", "array", "wanted"),
    [
        (
            "mrf/w",
            np.zeros((3, 9), np.float16),
            "tensor 'mrf/w': expected shape [9, 3] as in line 7 of net.nnp, found [3, 9]; "
            "correct either",
        ),
        (
            "mrf/w",
            np.zeros((9, 3), np.float32),
            "tensor 'mrf/w': expected float16, found float32; convert it",
        ),
        (
            "mrf/v",
            np.zeros((9, 3), np.float16),
            "expected tensors named MEMORY/NAME, as the tensor hints of net.nnp say, or "
            "MEMORY@ADDRESS, found 'mrf/v'; correct the name or add a hint",
        ),
        (
            "netq@0",
            np.zeros((1, 8), np.float16),
            "expected tensors named MEMORY/NAME, as the tensor hints of net.nnp say, or "
            "MEMORY@ADDRESS, found 'netq@0'; correct the name or add a hint",
        ),
        (
            "ivrf@\n" + "x" * 200,
            np.zeros((1, 8), np.float16),
            "expected tensors named MEMORY/NAME, as the tensor hints of net.nnp say, or "
            "MEMORY@ADDRESS, found 'ivrf@\\n" + "x" * 91 + "...'; correct the name or add a hint",
        ),
        (
            "ivrf@0",
            np.zeros((1, 9), np.float16),
            "tensor 'ivrf@0': expected shape [count, 8], found [1, 9]; pad it",
        ),
        (
            "mrf@0",
            np.zeros((1, 8), np.float16),
            "tensor 'mrf@0': expected shape [count, 8, 8], found [1, 8]; pad it",
        ),
        (
            "ivrf@0",
            np.zeros((), np.float16),
            "tensor 'ivrf@0': expected shape [count, 8], found []; pad it",
        ),
    ],
)
def test_messages_of_tensors(tmp_path, key, array, wanted):
    path, beside = with_image(tmp_path, {key: array})
    assert message(path) == f"{beside}: {wanted}"


def test_an_entry_given_twice(tmp_path):
    arrays = {"asvrf0/b": np.ones(9, np.float16), "asvrf0@2": np.ones((1, 8), np.float16)}
    path, beside = with_image(tmp_path, arrays)
    assert message(path) == (
        f"{beside}: tensor 'asvrf0@2': expected every entry once, found asvrf0 2 again; "
        "leave out one of the tensors"
    )


def test_small_tensors_that_would_take_much_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(image_module, "IMAGE_MAX", 1000)
    path, beside = with_image(tmp_path, {"dram/s": numbers((3, 2, 2))})
    assert read_program(path)[1].entries["dram"][3].tolist() == [4, 8, 12, 0, 0, 0, 0, 0]
    monkeypatch.setattr(image_module, "IMAGE_MAX", 400)  # 4 tiles of 128 bytes
    path, beside = with_image(tmp_path, {"mdram@0": np.ones((1, 8, 8), np.float16)})
    assert read_program(path)
    path, beside = with_image(tmp_path, {"mdram/k": numbers((2, 3, 1, 2))})
    monkeypatch.setattr(image_module, "IMAGE_MAX", 255)
    assert message(path) == (
        f"{beside}: expected at most 255 bytes of native vectors and tiles, found more; use a "
        "smaller native dimension or smaller tensors"
    )


def test_the_image_states_the_format(tmp_path):
    path = tmp_path / "net.nnp"
    write_program(path, PROGRAM, Image(entries()))
    assert path.read_text() == to_text(PROGRAM)
    with safetensors.safe_open(path.with_suffix(".safetensors"), "numpy") as file:
        assert file.metadata() == {"samebits": "samebits-nnp-1"}


@pytest.mark.parametrize("stated", ["samebits-nnp-2", "", '{"format": "samebits-checkpoint-1"}'])
def test_programs_of_another_format_are_refused_before_they_are_read(tmp_path, stated):
    path, beside = with_image(tmp_path, {"dram/s": numbers((3, 2, 2))})
    arrays = safetensors.numpy.load_file(beside)
    safetensors.numpy.save_file(arrays, beside, {"format": "pt"})  # of another tool
    assert read_program(path)[1].entries.keys() == {"dram"}
    path.write_text("v_new_instruction")
    safetensors.numpy.save_file(arrays, beside, {"samebits": stated})
    assert message(path) == (
        f"{beside}: expected format 'samebits-nnp-1' of samebits, found {stated!r}; use the "
        "release of samebits that wrote it, or compile the network again"
    )


@pytest.mark.parametrize("cut", [0, 4, 8, 40, -1])
def test_damaged_images(tmp_path, cut):
    path, beside = with_image(tmp_path, {"dram/s": numbers((3, 2, 2))})
    beside.write_bytes(beside.read_bytes()[:cut])
    assert message(path).startswith(
        f"{beside}: expected a safetensors file, found one that cannot be read ("
    )


def test_random_damage_ends_in_a_message(tmp_path):
    path, beside = with_image(tmp_path, {"dram/s": numbers((3, 2, 2))})
    whole = bytearray(beside.read_bytes())
    rng = np.random.default_rng(6)
    for _ in range(150):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), 3):
            damaged[at] = rng.integers(0, 256)
        beside.write_bytes(damaged)
        try:
            read_program(path)
        except InputError as error:
            assert "expected" in str(error)  # noqa: PT017


def test_paths_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError) as caught:
        write_program(tmp_path / "net.txt", PROGRAM, Image())
    assert "expected a path that ends in .nnp, found '.txt'; rename it" in str(caught.value)
    (tmp_path / "file").touch()
    with pytest.raises(SamebitsError, match=r"net\.safetensors: cannot be written"):
        write_program(tmp_path / "file" / "net.nnp", PROGRAM, Image())


def test_entry_shapes():
    assert entry_shape("mrf", 16) == entry_shape("mdram", 16) == (16, 16)
    assert entry_shape("dram", 16) == (16,)
