"""Traces: written, read back, audited; and files forged to break the audit."""

from __future__ import annotations

import base64
import copy
import json
import re
import zlib

import numpy as np
import pytest

from samebits.errors import InputError
from samebits.ir.integer.layers import fnv1a, layers
from samebits.model import Model
from samebits.verification.backend import TracedValue
from samebits.verification.inputs import random_codes
from samebits.verification.registry import backend_named
from samebits.verification.trace import Parting, first_parting, read_trace, to_record
from tiny_models import quantized_graph


@pytest.fixture(scope="module")
def model():
    return Model("tiny", quantized_graph())


@pytest.fixture(scope="module")
def runs(model):
    return backend_named("reference").trace(model, random_codes(model.integer, 3))


@pytest.fixture
def record(model, runs):
    return to_record(model, "tiny.onnx", "reference", runs)


def written(path, record):
    path.write_text(json.dumps(record))
    return path


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


# --- round trip -----------------------------------------------------------------------------


def test_a_record_holds_every_layer_of_every_run(model, runs, record):
    graph = model.integer
    assert list(record) == ["format", "model", "backend", "layers", "runs", "codes"]
    assert (record["format"], record["model"]) == ("samebits-trace-1", "tiny.onnx")
    assert [entry["name"] for entry in record["layers"]] == list(layers(graph))
    assert record["layers"][0] == {
        "name": "h.codes",
        "op": "requantize",
        "dtype": "int8",
        "shape": [1, 5],
    }
    assert len(record["runs"]) == len(record["codes"]) == 3
    for run, hashes, texts in zip(runs, record["runs"], record["codes"], strict=True):
        assert hashes == [f"{fnv1a(layer.codes):016x}" for layer in run]
        for layer, text in zip(run, texts, strict=True):
            data = zlib.decompress(base64.b64decode(text))
            assert data == layer.codes.astype(layer.codes.dtype.newbyteorder("<")).tobytes()


def test_round_trip(tmp_path, record):
    path = written(tmp_path / "t.json", record)
    assert read_trace(path) == record
    assert first_parting(read_trace(path), record) is None


def test_without_codes(model, runs):
    bare = [[TracedValue(v.name, v.hash, v.count) for v in run] for run in runs]
    record = to_record(model, "m", "c", bare)
    assert "codes" not in record
    # Only some without: the file holds none, rather than gaps.
    assert "codes" not in to_record(model, "m", "c", [runs[0], bare[1]])


def test_codes_of_every_type_survive(tmp_path, model, runs):
    """Big-endian arrays are written as little-endian ones."""
    wide = np.array([[1, -2, 300, 4, 5]], ">i2")
    record = to_record(model, "m", "s390x", [[TracedValue("a", 1, 5, wide)]])
    data = zlib.decompress(base64.b64decode(record["codes"][0][0]))
    assert np.frombuffer(data, "<i2").tolist() == [1, -2, 300, 4, 5]


# --- audit ----------------------------------------------------------------------------------


def parted(model, runs, run, layer, changes):
    """A record in which some elements of one layer, and nothing else, are others."""
    other = [list(layers_) for layers_ in runs]
    known = other[run][layer]
    array = known.codes.copy()
    for index, code in changes.items():
        array[index] = code
    other[run][layer] = TracedValue(known.name, fnv1a(array), known.count, array)
    return to_record(model, "m", "torch", other)


def test_the_audit_names_run_layer_and_elements(model, runs, record):
    y = runs[1][2].codes
    changes = {(0, 2): y[0, 2] ^ 1, (0, 0): y[0, 0] ^ 64}
    other = parted(model, runs, 1, 2, changes)
    name = layers(model.integer)[2]
    hashes = (record["runs"][1][2], other["runs"][1][2])
    elements = (
        ((0, 0), int(y[0, 0]), int(y[0, 0]) ^ 64),
        ((0, 2), int(y[0, 2]), int(y[0, 2]) ^ 1),
    )
    found = first_parting(record, other)
    assert found == Parting(1, name, hashes, elements, 2)
    assert found.to_dict() == {
        "run": 1,
        "layer": name,
        "hashes": hashes,
        "elements": elements,
        "differing": 2,
    }
    json.dumps(found.to_dict(), allow_nan=False)
    swapped = tuple((index, b, a) for index, a, b in elements)
    assert first_parting(other, record).elements == swapped


def test_the_first_of_several_is_named(model, runs, record):
    first = parted(model, runs, 1, 0, {(0, 4): 9})
    for run, layer in ((1, 1), (1, 2), (2, 0)):
        first["runs"][run][layer] = "0" * 16
    found = first_parting(record, first)
    assert (found.run, found.layer, found.differing) == (1, "h.codes", 1)


def test_five_elements_are_shown(model, runs, record):
    codes = runs[0][0].codes
    assert codes.shape == (1, 5)
    flipped = {(0, i): ~codes[0, i] for i in range(5)}
    found = first_parting(record, parted(model, runs, 0, 0, flipped))
    assert (len(found.elements), found.differing) == (5, 5)


def test_traces_without_codes_name_the_layer(record):
    for drop in ("a", "b", "both"):
        a, b = copy.deepcopy(record), copy.deepcopy(record)
        b["runs"][2][1] = "f" * 16
        if drop in ("a", "both"):
            del a["codes"]
        if drop in ("b", "both"):
            del b["codes"]
        found = first_parting(a, b)
        hashes = (record["runs"][2][1], "f" * 16)
        assert found == Parting(2, record["layers"][1]["name"], hashes, (), None)


def test_traces_of_other_models_or_inputs(record):
    other = copy.deepcopy(record)
    other["layers"][1]["name"] = "other"
    message = "expected two traces of one model, found 't.q.codes' and 'other' as layer 1"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        first_parting(record, other)
    other = copy.deepcopy(record)
    other["layers"].append({"name": "more", "dtype": "int8", "shape": [1]})
    with pytest.raises(InputError, match=r"found nothing and 'more' as layer 3$"):
        first_parting(record, other)
    other = copy.deepcopy(record)
    other["runs"].pop()
    with pytest.raises(InputError, match=r"traces of the same inputs, found 3 and 2 runs$"):
        first_parting(record, other)


# --- forged files ---------------------------------------------------------------------------


def refused(path, text=""):
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: .*{text}"):
        read_trace(path)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"\xff\xfe", b"not json", b"[1, 2", b'{"a": }', b"\x00" * 100),
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"format": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda d: repr(d[:12]),
)
def test_what_is_no_json(tmp_path, data):
    path = tmp_path / "t.json"
    path.write_bytes(data)
    refused(path, "expected a trace in JSON, found: ")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        *((None, "NoneType"), (3, "int"), ("text", "str"), ([], "list"), ({}, "None")),
        ({"format": "samebits-trace-2"}, "'samebits-trace-2'"),
        ({"format": "\x1b" * 100}, "'" + "\\x1b" * 14 + "\\x1"),
    ],
)
def test_json_that_is_no_trace_of_this_format(tmp_path, value, found):
    path = written(tmp_path / "t.json", value)
    message = (
        f"{path}: expected a trace of format 'samebits-trace-1' of samebits, found {found}; make a "
        "trace with: samebits trace MODEL --data X.npz --out FILE"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        read_trace(path)


LAYER = {"name": "a", "op": "add", "dtype": "int8", "shape": [2, 3]}


@pytest.mark.parametrize(
    "entries",
    [
        *(None, {}, 3, "ab", [None], [[]], ["a"]),
        *([{**LAYER, "name": value}] for value in (None, 3, ["a"], True)),
        *([{**LAYER, "dtype": value}] for value in (None, "float32", "object", "|O", 8, ["int8"])),
        *([{**LAYER, "shape": value}] for value in (None, 3, "ab", {}, [-1], [1.0], ["2"], [True])),
        [{**LAYER, "shape": [1 << 29]}],
        [{**LAYER, "shape": [1 << 20, 1 << 20]}],
        [{**LAYER, "shape": [1 << 70]}],
        [{"name": "a", "dtype": "int8"}],
    ],
    ids=lambda e: repr(e)[:60],
)
def test_forged_layers(tmp_path, record, entries):
    path = written(tmp_path / "t.json", {**record, "layers": entries})
    refused(path, "expected a list of layers with name, dtype and shape; make a trace")


@pytest.mark.parametrize(
    "forged",
    [None, 3, {}, "ab", [3], ["abc"], [["a"]], [["a", "b", 3]], [["a", "b", "c", "d"]]],
    ids=repr,
)
def test_forged_runs_and_codes(tmp_path, record, forged):
    path = written(tmp_path / "t.json", {**record, "runs": forged})
    refused(path, "expected in 'runs' one text per layer and run; make a trace")
    path = written(tmp_path / "t.json", {**record, "codes": forged})
    refused(path, "expected in 'codes' one text per layer and run; make a trace")


def test_hashes_are_hexadecimal(tmp_path, record):
    """They are printed as they are."""
    for text in ("\x1b[31mred", "0", "g" * 16, "0" * 17):
        other = copy.deepcopy(record)
        other["runs"][0][0] = text
        refused(written(tmp_path / "t.json", other))


def test_codes_of_other_runs(tmp_path, record):
    path = written(tmp_path / "t.json", {**record, "codes": record["codes"][:1]})
    refused(path, "expected as many runs in 'codes' as in 'runs'; make a trace")


def test_files_too_large_are_not_read(tmp_path, monkeypatch, record):
    path = written(tmp_path / "t.json", record)
    monkeypatch.setattr("samebits.verification.trace.LARGEST_FILE", 100)
    refused(path, f"expected at most 100 bytes, found {path.stat().st_size}")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "none.json"))):
        read_trace(tmp_path / "none.json")
    with pytest.raises(InputError, match="expected a file, found a folder"):
        read_trace(tmp_path)


DAMAGED = {
    "no base64": ("***", "damaged codes in the trace"),
    "base64 of wrong length": ("abc", "damaged codes in the trace"),
    "not ASCII": ("caf\u00e9", "damaged codes in the trace"),
    "no zlib": (base64.b64encode(b"hello").decode(), "damaged codes in the trace"),
    "nothing": ("", "expected 5 bytes of codes in the trace, found another number"),
    "too few": (packed(b"1234"), "expected 5 bytes of codes in the trace"),
    "too many": (packed(b"123456"), "expected 5 bytes of codes in the trace"),
    "cut off": (packed(b"12345")[:8], "damaged|expected 5 bytes"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_codes(tmp_path, record, kind):
    text, message = DAMAGED[kind]
    other = copy.deepcopy(record)
    other["runs"][0][0] = "0" * 16
    other["codes"][0][0] = text
    other = read_trace(written(tmp_path / "t.json", other))
    for pair in ((record, other), (other, record)):
        with pytest.raises(InputError, match=f"layer 'h.codes': .*({message})"):
            first_parting(*pair)


def test_a_zlib_bomb_is_not_unpacked(record):
    """64 MiB of zeros in a little text; only what the shape needs is unpacked."""
    squeezed = zlib.compressobj(9)
    data = b"".join(squeezed.compress(bytes(1 << 24)) for _ in range(4)) + squeezed.flush()
    other = copy.deepcopy(record)
    other["runs"][0][0] = "0" * 16
    other["codes"][0][0] = base64.b64encode(data).decode()
    with pytest.raises(InputError, match="expected 5 bytes of codes in the trace"):
        first_parting(record, other)


@pytest.mark.parametrize("shape", [[1] * 65, [1] * 1000, [0], [0, 1 << 70], [1 << 70, 0], []])
def test_shapes_that_no_array_has(tmp_path, record, shape):
    """An InputError when read or when audited, or an answer; never another exception."""
    count = 0 if 0 in shape else 1
    other = copy.deepcopy(record)
    other["layers"][0]["shape"] = shape
    for run in other["codes"]:
        run[0] = packed(bytes(count))
    twin = copy.deepcopy(other)
    twin["runs"][0][0] = "0" * 16
    twin["codes"][0][0] = packed(b"\x01" * count)
    try:
        a = read_trace(written(tmp_path / "a.json", other))
        b = read_trace(written(tmp_path / "b.json", twin))
        found = first_parting(a, b)
    except InputError:
        return
    assert (found.run, found.differing) == (0, count)
