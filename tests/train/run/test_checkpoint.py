import dataclasses
import errno
import hashlib
import json
import os
import re
import resource
import struct

import pytest
import torch
from safetensors.torch import save_file

from samebits.errors import CheckpointError, SamebitsError
from samebits.progress import listening
from samebits.train.deployed.deploy import Exponents, FrozenSite
from samebits.train.run import checkpoint as module
from samebits.train.run.checkpoint import (
    Checkpoint,
    check_same_tensors,
    checkpoint_path,
    list_checkpoints,
    newest_checkpoint,
    parameter_sha256,
    read_checkpoint,
    write_checkpoint,
)


def example(step=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-127, 128, (4, 3), dtype=torch.int8, generator=generator)
    return Checkpoint(
        step=step,
        model={
            "0.weight.codes": codes,
            "0.weight.delayed": torch.full((4, 3), -7, dtype=torch.int16),
            "0.weight.exponent": torch.tensor(-9),
            "1.running_mean": torch.tensor([0.1, 1e-300], dtype=torch.float64),
        },
        optimizer={
            "state": {
                0: {"momentum": torch.arange(5, dtype=torch.int16), "exponent": -4, "t": 2},
                1: {},
            },
            "param_groups": [
                {"lr": 0.1, "betas": (0.9, 0.999), "nesterov": False, "fused": None, "params": [0]}
            ],
        },
        config={"arch": "cnn", "lr": 1 / 3, "input_shape": [1, 8, 8]},
        progress={"epoch": 1, "loss_sum": 2.0**-1074},
        exponents=Exponents((FrozenSite("input", -7), FrozenSite("0 (Linear)", 3))),
    )


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_round_trip_is_exact(tmp_path):
    before = example()
    path = write_checkpoint(tmp_path, before)
    after = read_checkpoint(path)
    for field in ("step", "model", "optimizer", "config", "progress"):
        assert same(sorted_model(getattr(before, field)), sorted_model(getattr(after, field)))
    assert after.exponents == before.exponents
    path = write_checkpoint(tmp_path, dataclasses.replace(before, exponents=None))
    assert read_checkpoint(path).exponents is None
    assert b"exponents" not in path.read_bytes()


def sorted_model(value):
    return dict(sorted(value.items(), key=str)) if isinstance(value, dict) else value


def test_the_same_state_gives_the_same_file(tmp_path):
    first = write_checkpoint(tmp_path / ".", example()).read_bytes()
    (tmp_path / "other").mkdir()
    assert write_checkpoint(tmp_path / "other", example()).read_bytes() == first


def test_parameter_sha256_is_the_documented_one():
    state = {
        "b": torch.tensor([1.5, -2.0], dtype=torch.float64),
        "a": torch.tensor([[1, -2, 3]], dtype=torch.int16),
        "a.e": torch.tensor(-5),
    }
    text = (
        b"a\0int16\0" + b"1,3\0" + struct.pack("<3h", 1, -2, 3)
        + b"a.e\0int64\0" + b"\0" + struct.pack("<q", -5)
        + b"b\0float64\0" + b"2\0" + struct.pack("<2d", 1.5, -2.0)
    )  # fmt: skip
    assert parameter_sha256(state) == hashlib.sha256(text).hexdigest()


def test_parameter_sha256_ignores_strides():
    tensor = torch.arange(6, dtype=torch.int8).reshape(2, 3)
    turned = tensor.t().contiguous().t()
    assert turned.stride() != tensor.stride()
    assert parameter_sha256({"x": tensor}) == parameter_sha256({"x": turned})


def test_keeps_the_last_two(tmp_path):
    for step in (5, 10, 99, 100):
        write_checkpoint(tmp_path, example(step))
    assert list_checkpoints(tmp_path) == [checkpoint_path(tmp_path, s) for s in (99, 100)]
    assert sorted(os.listdir(tmp_path)) == [p.name for p in list_checkpoints(tmp_path)]


@pytest.mark.parametrize("left", [0, 5, 8, 100, "header", "file"], ids=str)
def test_truncated_file_is_reported_with_both_sizes(tmp_path, left):
    """Of a header or a file that lacks its last byte, too."""
    path = write_checkpoint(tmp_path, example())
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    left = {"header": header - 1, "file": len(data) - 1}.get(left, left)
    path.write_bytes(data[:left])
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    known = f"truncated: expected at least {9 if left < 8 else header} bytes"
    if left >= header:
        known = f"truncated or extended: expected {len(data)} bytes"
    advice = "delete it and run again with --resume"
    assert str(caught.value).startswith(f"{path}: {known}, found {left}; {advice}")


def test_a_checkpoint_without_a_tensor_comes_back(tmp_path):
    """Its file ends with the header."""
    path = write_checkpoint(tmp_path, Checkpoint(4, {}, {}, {"arch": "own"}, {}))
    assert read_checkpoint(path) == Checkpoint(4, {}, {}, {"arch": "own"}, {})


def test_every_flipped_byte_is_noticed(tmp_path):
    path = write_checkpoint(tmp_path, example())
    data = path.read_bytes()
    for position in range(0, len(data), 7):
        changed = bytearray(data)
        changed[position] ^= 1
        path.write_bytes(changed)
        try:
            after = read_checkpoint(path)
        except CheckpointError:
            continue
        # padding of the header: nothing that is read has changed
        assert same(sorted_model(after.model), sorted_model(example().model))


def test_changed_content_names_both_hashes(tmp_path):
    path = write_checkpoint(tmp_path, example())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"expected content SHA-256 [0-9a-f]{64}, found"):
        read_checkpoint(path)


def test_foreign_and_missing_files_are_refused(tmp_path):
    path = tmp_path / "checkpoint-1.safetensors"
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_checkpoint(path)
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="without its header"):
        read_checkpoint(path)
    save_file({"x": torch.zeros(2)}, path, {"samebits": "[1]"})
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(path)
    save_file({"x": torch.zeros(2)}, path, {"samebits": "samebits-nnp-1"})  # a memory image
    with pytest.raises(CheckpointError, match="arithmetic, found 'samebits-nnp-1'; use the"):
        read_checkpoint(path)


NESTED = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("header", ["1", "null", '"x"', "[]", "{}", "{", NESTED], ids=range(7))
def test_header_that_is_no_object_is_damage(tmp_path, header):
    path = tmp_path / "checkpoint-1.safetensors"
    save_file({"x": torch.zeros(2)}, path, {"samebits": header})
    with pytest.raises(CheckpointError, match=r"checkpoint-1.safetensors: damaged"):
        read_checkpoint(path)
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode())
    with pytest.raises(CheckpointError):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "header",
    [
        "1",
        "null",
        "{}",
        '{"x": 1}',
        '{"x": {"data_offsets": [0, "9"]}}',
        '{"x": {"data_offsets": 1}}',
    ],
)
def test_file_header_of_another_shape_is_damage(tmp_path, header):
    path = tmp_path / "checkpoint-1.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode())
    with pytest.raises(CheckpointError):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"step": "3"},
        {"step": True},
        {"config": {"list": []}},
        {"config": {"map": [["arch", {"tensor": "x"}]]}},
        {"config": {"map": 1}},
        {"progress": None},
        {"progress": {"float": "0x1p+99999"}},
        {"optimizer": {"map": [[[], 1]]}},
        {"optimizer": {"a": 1, "b": 2}},
    ],
    ids=str,
)
def test_values_of_another_type_are_damage(tmp_path, changes):
    """The content hash is no protection against whoever computes it anew."""
    tensors = {"x": torch.zeros(2)}
    empty = {"map": []}
    document = {
        "format": module.FORMAT, "step": 3, "optimizer": empty, "config": empty, "progress": empty,
        **changes,
    }  # fmt: skip
    document["sha256"] = module._content_sha256(tensors, document)
    path = tmp_path / "checkpoint-1.safetensors"
    save_file(tensors, path, {"samebits": json.dumps(document)})
    with pytest.raises(CheckpointError, match=r"checkpoint-1.safetensors: damaged"):
        read_checkpoint(path)


@pytest.mark.parametrize("version", [0, 1, 2, 12])
def test_other_versions_are_refused_before_anything_else_is_read(tmp_path, version):
    """No earlier checkpoint takes the place of one that is not damaged."""
    write_checkpoint(tmp_path, example(1))
    path = tmp_path / "checkpoint-00000002.safetensors"
    stated = f"samebits-checkpoint-{version}"
    save_file({"y": torch.zeros(2)}, path, {"samebits": json.dumps({"format": stated})})
    message = (
        f"{path}: expected format 'samebits-checkpoint-3' of samebits, that of edition 3 of the "
        f"training arithmetic, found '{stated}'; use the release of samebits that wrote it, or "
        "train again in another folder"
    )
    said = []
    for read in (lambda: read_checkpoint(path), lambda: newest_checkpoint(tmp_path, said.append)):
        with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
            read()
    assert said == []


def test_a_format_that_no_version_has_is_damage(tmp_path):
    write_checkpoint(tmp_path, example(1))
    path = tmp_path / "checkpoint-00000002.safetensors"
    save_file({"y": torch.zeros(2)}, path, {"samebits": '{"format": "samebits-checkpoimt-1"}'})
    said = []
    found = newest_checkpoint(tmp_path, said.append)
    assert found is not None
    assert found.step == 1
    assert "expected format 'samebits-checkpoint-3' of samebits, that of edition 3" in said[0]


def test_newest_falls_back_and_says_so(tmp_path):
    said = []
    assert newest_checkpoint(tmp_path, said.append) is None
    write_checkpoint(tmp_path, example(1, seed=1))
    newest = write_checkpoint(tmp_path, example(2, seed=2))
    newest.write_bytes(newest.read_bytes()[:-10])
    found = newest_checkpoint(tmp_path, said.append)
    assert found is not None
    assert found.step == 1
    assert len(said) == 1
    assert said[0].startswith(f"warning: {newest}: truncated")
    assert said[0].endswith("falling back to the checkpoint before it")
    checkpoint_path(tmp_path, 1).write_bytes(b"")
    with pytest.raises(CheckpointError, match="no intact checkpoint is left"):
        newest_checkpoint(tmp_path, said.append)


def test_other_architecture_names_the_first_tensor(tmp_path):
    model = example().model
    other = dict(model)
    other["0.weight.codes"] = torch.zeros(4, 5, dtype=torch.int8)
    with pytest.raises(CheckpointError) as caught:
        check_same_tensors(tmp_path / "c", other, model)
    assert (
        "belongs to another architecture: tensor '0.weight.codes': expected int8 [4, 5], found "
        "int8 [4, 3]" in str(caught.value)
    )
    del other["0.weight.codes"]
    with pytest.raises(CheckpointError, match=r"expected none, found int8 \[4, 3\]"):
        check_same_tensors(tmp_path / "c", other, model)
    check_same_tensors(tmp_path / "c", model, dict(reversed(model.items())))


def test_nothing_but_plain_values_is_stored(tmp_path):
    with pytest.raises(TypeError, match="cannot hold object"):
        write_checkpoint(tmp_path, Checkpoint(1, {}, {"state": object()}, {}, {}))


class Heard:
    """Listens to notes alone."""

    def __init__(self):
        self.notes = []

    def stage(self, what, total):
        pass

    def advance(self, done):
        pass

    def note(self, text):
        self.notes.append(text)


def refuse(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_full_disk_leaves_earlier_checkpoints(tmp_path, monkeypatch, call):
    write_checkpoint(tmp_path, example(1))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(SamebitsError) as caught:
        write_checkpoint(tmp_path, example(2))
    monkeypatch.undo()
    assert "checkpoint-00000002.safetensors: no space left to write" in str(caught.value)
    assert "earlier checkpoints are intact" in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_checkpoint_that_cannot_be_deleted_is_noted(tmp_path, monkeypatch):
    """The new one is written; the old one goes with the next."""
    for step in (1, 2):
        write_checkpoint(tmp_path, example(step))
    listener = Heard()
    monkeypatch.setattr(os, "unlink", refuse)
    with listening(listener):
        write_checkpoint(tmp_path, example(3))
    monkeypatch.undo()
    assert listener.notes == [
        f"{checkpoint_path(tmp_path, 1)}: cannot be deleted (No space left on device)"
    ]
    assert [read_checkpoint(path).step for path in list_checkpoints(tmp_path)] == [1, 2, 3]
    write_checkpoint(tmp_path, example(4))
    assert [read_checkpoint(path).step for path in list_checkpoints(tmp_path)] == [3, 4]


def test_a_checkpoint_that_somebody_else_deletes_meanwhile_is_no_matter(tmp_path, monkeypatch):
    for step in (1, 2):
        write_checkpoint(tmp_path, example(step))
    listener, unlink = Heard(), os.unlink

    def twice(path, **options):
        unlink(path, **options)
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", twice)
    with listening(listener):
        write_checkpoint(tmp_path, example(3))
    assert listener.notes == []
    assert [read_checkpoint(path).step for path in list_checkpoints(tmp_path)] == [2, 3]


def test_file_size_limit_of_the_system_leaves_earlier_checkpoints(tmp_path):
    """A write that the kernel really refuses half way."""
    earlier = write_checkpoint(tmp_path, example(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(SamebitsError, match="no space left to write"):
            write_checkpoint(tmp_path, example(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == [earlier.name]
    assert read_checkpoint(earlier).step == 1


def test_header_is_one_json_text(tmp_path):
    path = write_checkpoint(tmp_path, example())
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    document = json.loads(header["__metadata__"]["samebits"])
    assert document["format"] == "samebits-checkpoint-3"
    assert document["config"]["map"][1] == ["lr", {"float": (1 / 3).hex()}]
