"""Exported programs in .pt2 files: the graph of the module, and files that would run code."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from samebits.errors import InputError, SamebitsError, UnsupportedError
from samebits.ir import interpreter
from samebits.ir.printer import text
from samebits.pytorch import exported, import_module
from samebits.pytorch.exported import read_exported

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


class Small(nn.Module):
    """A layer, a buffer, a constant, and several inputs and outputs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("offset", torch.ones(3))
        self.drop = nn.Dropout()

    def forward(self, x, y):
        z = torch.relu(self.linear(x)) + self.offset + torch.tensor([1.0, 2.0, 3.0])
        return self.drop(z), {"sum": z.sum(1) + y}


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """The members of a good file, below its one folder."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("exported") / "good.pt2"
    program = torch.export.export(Small().eval(), (torch.rand(2, 4), torch.rand(2)))
    torch.export.save(program, path)
    with zipfile.ZipFile(path) as archive:
        return {m.filename.partition("/")[2]: archive.read(m) for m in archive.infolist()}


@pytest.fixture
def write(tmp_path):
    def write(members):
        path = tmp_path / "file.pt2"
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(f"file/{name}", data)
        return path

    return write


@pytest.fixture(autouse=True)
def quiet(capfd):
    """Nothing that is read is printed: no traceback of torch's own either."""
    yield
    found = capfd.readouterr()
    assert (found.out, found.err) == ("", "")


def refused(path, message, error=InputError):
    with pytest.raises(error) as caught:
        read_exported(path)
    assert type(caught.value) is error
    assert str(caught.value) == f"{path}: {message}"


def changed(members, name, change):
    """The members with the JSON of one changed in place."""
    data = json.loads(members[name])
    change(data)
    return {**members, name: json.dumps(data).encode()}


def nodes(program):
    return program["graph_module"]["graph"]["nodes"]


# --- good files ---------------------------------------------------------------------------------


def test_the_graph_is_that_of_the_module(tmp_path):
    torch.manual_seed(1)
    module = Small().eval()
    examples = (torch.rand(2, 4), torch.rand(2))
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(module, examples), path)
    found, expected = read_exported(path), import_module(module, examples)
    first, *rest = text(found).splitlines()
    assert str(path) in first
    assert rest == text(expected).splitlines()[1:]
    inputs = [example.numpy() for example in examples]
    for a, b in zip(interpreter.run(found, inputs), interpreter.run(expected, inputs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_pickles_are_not_needed(members, write):
    """The example inputs of a file are pickled; they are not read."""
    bomb = pickle.dumps(Bomb())
    graph = read_exported(write({**members, "data/sample_inputs/model.pt": bomb}))
    assert graph.inputs == ("x", "y")


# --- damaged files ------------------------------------------------------------------------------


def test_no_file(tmp_path):
    refused(
        tmp_path / "absent.pt2",
        "expected an exported program (.pt2), found no such file; give the path of one",
    )


def test_no_archive(tmp_path):
    path = tmp_path / "file.pt2"
    path.write_bytes(b"no archive")
    refused(
        path,
        "expected an exported program (.pt2), found a file that is no archive (File is not a zip "
        "file); save it again with torch.export.save",
    )


def test_an_archive_of_something_else(tmp_path):
    path = tmp_path / "file.pt2"
    with path.open("wb") as file:
        np.savez(file, x=np.zeros(3))
    refused(
        path,
        "expected an exported program, found no model in it; save it again with torch.export.save",
    )


@pytest.mark.parametrize("name", [WEIGHTS, CONSTANTS, "archive_version", "data/weights/weight_0"])
def test_a_missing_member(members, write, name):
    path = write({key: data for key, data in members.items() if key != name})
    refused(
        path, f"expected {name!r} in the archive, found none; save it again with torch.export.save"
    )


@pytest.mark.parametrize("name", [MODEL, WEIGHTS, CONSTANTS])
def test_members_that_are_no_json(members, write, name):
    for data in (b"{", b"\xff\xfe\xff", b"[" * 100_000):
        with pytest.raises(InputError, match=r"file\.pt2: expected JSON in '.*', found none \("):
            read_exported(write({**members, name: data}))


@pytest.mark.parametrize("data", [b"[]", b"3", b"null", b"{}", b'{"graph_module": {}}'])
def test_json_of_something_else(members, write, data):
    for name in (MODEL, WEIGHTS):
        if name == WEIGHTS and data == b'{"graph_module": {}}':
            continue
        with pytest.raises(InputError, match=r"torch\.export\.save$"):
            read_exported(write({**members, name: data}))


def test_tensors_that_do_not_fit_the_program(members, write):
    def change(config):
        config["config"]["linear.bias"]["tensor_meta"]["sizes"] = [{"as_int": 2}]

    with pytest.raises(SamebitsError, match=r"file\.pt2: expected "):
        read_exported(write(changed(members, WEIGHTS, change)))


def test_truncated_files(members, write):
    whole = write(members).read_bytes()
    for length in range(0, len(whole), len(whole) // 20):
        path = write({})
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            read_exported(path)


def test_changed_bytes(members, write):
    """The graph, or an error that tells the user what to do; never a traceback."""
    whole = write(members).read_bytes()
    rng = np.random.default_rng(0)
    path = write({})
    for _ in range(40):
        data = bytearray(whole)
        for place in rng.integers(0, len(whole), 3):
            data[place] = rng.integers(256)
        path.write_bytes(data)
        with contextlib.suppress(SamebitsError):
            read_exported(path)


# --- files that would run code ------------------------------------------------------------------

RAN: list[str] = []


def ran(what="a pickle"):
    RAN.append(what)
    return nn.Parameter(torch.zeros(3))


class Bomb:
    def __reduce__(self):
        return (ran, ())


@pytest.fixture(autouse=True)
def unharmed():
    RAN.clear()
    yield
    assert RAN == []


def entry(name, **more):
    meta = {
        "dtype": 7, "sizes": [{"as_int": 3}], "requires_grad": False, "layout": 7,
        "device": {"type": "cpu", "index": None}, "strides": [{"as_int": 1}],
        "storage_offset": {"as_int": 0},
    }  # fmt: skip
    return {"path_name": name, "is_param": False, "use_pickle": False, "tensor_meta": meta} | more


@pytest.mark.parametrize(
    "name", ["custom_obj_0", "opaque_obj_0", "opaque_obj_0/tensor_0", "../weights/weight_0"]
)
@pytest.mark.parametrize("pickled", [True, False])
def test_pickled_objects(members, write, name, pickled):
    data = pickle.dumps(Bomb())
    files = changed(
        members, CONSTANTS, lambda c: c["config"].update(bomb=entry(name, use_pickle=pickled))
    )
    files[f"data/constants/{name}"] = data + bytes(-len(data) % 4)
    refused(
        write(files),
        f"expected plain tensors, found the pickled object {name!r}, which could run code; export "
        "the module without it",
    )


def test_pickled_weights(members, write):
    stream = io.BytesIO()
    torch.save(Bomb(), stream)
    files = changed(members, WEIGHTS, lambda c: c["config"]["linear.bias"].update(use_pickle=True))
    name = json.loads(members[WEIGHTS])["config"]["linear.bias"]["path_name"]
    files[f"data/weights/{name}"] = stream.getvalue()
    refused(
        write(files),
        f"expected plain tensors, found the pickled object {name!r}, which could run code; export "
        "the module without it",
    )


@pytest.mark.parametrize(
    "target",
    [
        *("torch.os.system", "torch.ops.load_library", "torch.ops.aten.", "torch.load", "math.sin"),
        *("_operator.add", "#extension:op", "torch.ops.own.op", "torch.ops.aten.relu(", 3, None),
    ],
)
def test_calls_of_anything_but_operators(members, write, target):
    files = changed(members, MODEL, lambda p: nodes(p)[1].update(target=target))
    refused(
        write(files),
        f"expected calls of ATen operators, found {str(target)!r}; save "
        "program.run_decompositions({}), or export the module without it",
        UnsupportedError,
    )


def test_calls_in_parts_of_a_program(members, write):
    """Of sub-graphs too, wherever they stand."""
    files = changed(
        members, MODEL,
        lambda p: nodes(p)[0]["inputs"].append(
            {"name": "g", "kind": 1, "arg": {"as_graph": {"name": "g", "graph": {"nodes": [
                {"target": "torch.os.system", "inputs": [], "outputs": [], "metadata": {}}]}}}}
        ),
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"found 'torch\.os\.system'"):
        read_exported(write(files))


def test_other_models_in_the_archive_are_not_read(members, write):
    """torch reads every file in the folder of models, and loads libraries beside them."""
    evil = changed(members, MODEL, lambda p: nodes(p)[1].update(target="torch.os.system"))[MODEL]
    graph = read_exported(
        write(
            {
                **members,
                "models/model.jsox": evil,
                "models/other.json": evil,
                "data/aotinductor/model/x.so": b"a library",
                "data/constants/custom_obj_0": pickle.dumps(Bomb()),
            }
        )
    )
    assert graph.inputs == ("x", "y")


def test_two_members_of_one_name(members, tmp_path):
    """What is checked is what torch reads."""
    evil = changed(members, MODEL, lambda p: nodes(p)[1].update(target="torch.os.system"))[MODEL]
    for first, second in ((evil, members[MODEL]), (members[MODEL], evil)):
        path = tmp_path / "twice.pt2"
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in {**members, MODEL: first}.items():
                archive.writestr(f"file/{name}", data)
            with pytest.warns(UserWarning, match="Duplicate"):
                archive.writestr(f"file/{MODEL}", second)
        if second is evil:
            with pytest.raises(UnsupportedError, match=r"found 'torch\.os\.system'"):
                read_exported(path)
        else:
            assert read_exported(path).inputs == ("x", "y")


def structure(kind, context):
    leaf = {"type": None, "context": None, "children_spec": []}
    return json.dumps([1, {"type": kind, "context": context, "children_spec": [leaf]}])


@pytest.mark.parametrize(
    ("kind", "context"),
    [
        (
            "collections.defaultdict",
            {
                "default_factory_module": "never_imported",
                "default_factory_name": "f",
                "dict_context": ["sum"],
            },
        ),
        ("builtins.dict", '[{"__enum__": true, "fqn": "never_imported:Enum", "name": "A"}]'),
        ("own.Type", "null"),
    ],
)
def test_structures_that_name_modules(members, write, tmp_path, monkeypatch, kind, context):
    (tmp_path / "never_imported.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.syspath_prepend(tmp_path)

    def change(program):
        for call in program["graph_module"]["module_call_graph"]:
            if call["signature"]:
                call["signature"]["out_spec"] = structure(kind, context)

    refused(
        write(changed(members, MODEL, change)),
        f"expected arguments and results in tuples, lists and dicts, found {kind!r}; export a "
        "module without it",
        UnsupportedError,
    )
    assert "never_imported" not in sys.modules


def test_open_dimensions(tmp_path):
    path = tmp_path / "open.pt2"
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        nn.Linear(4, 3), (torch.rand(2, 4),), dynamic_shapes=({0: batch},)
    )
    torch.export.save(program, path)
    refused(
        path,
        "expected fixed shapes, found an open dimension; export without dynamic_shapes",
        UnsupportedError,
    )


def test_shapes_are_not_evaluated(members, write, tmp_path):
    """sympy would evaluate this text."""
    made = tmp_path / "made"
    code = f"open({str(made)!r}, 'w')"

    def change(program):
        for value in program["graph_module"]["graph"]["tensor_values"].values():
            value["sizes"] = [{"as_expr": {"expr_str": code, "hint": {"as_int": 2}}}]

    path = write(changed(members, MODEL, change))
    with pytest.raises(UnsupportedError, match="found an open dimension"):
        read_exported(path)
    assert not made.exists()


# --- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [True, False])
def test_tensors_larger_than_their_bytes(members, write, empty):
    """torch would fill an empty member with zeros, and a stride of 0 repeats one element."""
    size = 1 << 40

    def change(config):
        meta = config["config"]["linear.bias"]["tensor_meta"]
        meta["sizes"], meta["strides"] = [{"as_int": size}], [{"as_int": 0}]

    files = changed(members, WEIGHTS, change)
    if empty:
        files["data/weights/weight_1"] = b""
    total = size + 3 * 4 + 3  # the layer's weights and the buffer
    refused(write(files), f"expected at most {1 << 30} elements of tensors, found {total}")


@pytest.mark.parametrize(
    "sizes", [*([{"as_int": size}] for size in (-3, "3", None, 3.0)), [3], 3, None, "3", {"0": 3}]
)
def test_sizes_that_are_none(members, write, sizes):
    def change(config):
        config["config"]["linear.bias"]["tensor_meta"]["sizes"] = sizes

    with pytest.raises(InputError, match="expected names and sizes of tensors, found others"):
        read_exported(write(changed(members, WEIGHTS, change)))


def test_too_much(members, write, monkeypatch):
    path = write(members)
    size = sum(map(len, members.values()))
    monkeypatch.setattr(exported, "LARGEST_JSON", len(members[MODEL]) - 1)
    refused(path, f"expected at most {len(members[MODEL]) - 1} bytes of 'file/{MODEL}'")
    monkeypatch.setattr(exported, "LARGEST", size - 1)
    refused(path, f"expected at most {size - 1} bytes, found {size}")


def test_a_file_from_a_path_as_text(members, write):
    from samebits.model import load

    path = write(members)
    assert load(Path(str(path))).graph.inputs == ("x", "y")
