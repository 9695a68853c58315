"""What numbers mean: from a run, a calibration or its author, in files, C and pages, checked."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace

import numpy as np
import onnx
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

import samebits as sb
from samebits.api import inspect_record
from samebits.codegen.meaning import meaning_lines, meaning_text
from samebits.contract import (
    LARGEST,
    UNKNOWN,
    Contract,
    InputMeaning,
    OutputMeaning,
    given_contract,
)
from samebits.data import from_arrays
from samebits.data.columns import ColumnScale
from samebits.data.preparation import Feature
from samebits.errors import InputError
from samebits.ir import Value
from samebits.reports.meaning import contract_lines

ODD = 'a "b" ?? \\ \u202e\x1b é, ${x} */ `c`'
WHOLE = Contract(
    (
        InputMeaning(
            "x",
            (Feature("torque", ColumnScale(1 / 3, 1e-300)), Feature("hue", None, ("blue", ODD))),
            unit="Nm",
        ),
    ),
    (OutputMeaning("y", "regression", ("load", ODD), (ColumnScale(0.1, 2.0),) * 2, "kPa"),),
    "pump",
    "1.2-rc1",
)


def frame(rows: int = 200, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(500, 100, (rows, 2))
    hue = np.where(x[:, 0] > 600, "red", "blue")
    state = np.where(x[:, 0] > x[:, 1], "faulty", "healthy")
    return pd.DataFrame({"torque": x[:, 0], "hue": hue, "speed": x[:, 1], "state": state})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    frame().to_csv(folder / "t.csv", index=False)
    sb.fit(folder / "t.csv", "mlp", folder / "run", sb.Training(epochs=4), sb.Execution(threads=1))
    return folder


# --- the record ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "contract",
    [
        WHOLE,
        UNKNOWN,
        Contract(name="only a name"),
        Contract((InputMeaning("x", mean=(0.485, 0.456, 0.406), std=(0.1, 0.2, 0.3)),)),
        Contract(outputs=(OutputMeaning("y", "argmax", ("a", "b")), OutputMeaning("z"))),
        Contract(outputs=(OutputMeaning("y", "regression", (), (ColumnScale(-0.0, 1.0),)),)),
    ],
)
def test_it_is_read_back_as_it_was(contract):
    text = contract.to_json()
    assert Contract.from_json(text) == contract
    assert Contract.from_json(text).to_json() == text
    assert (text == "") == (contract == UNKNOWN)


def record(**changes):
    return {**json.loads(WHOLE.to_json()), **changes}


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "null", '"x"', "[" * 100_000, "{}x",
        json.dumps(record(format="samebits-contract-2")),
        json.dumps(record(more=1)),
        json.dumps(record(name=3)),
        json.dumps(record(name="x" * 1001)),
        json.dumps(record(inputs=[{"name": "x"}] * 65)),
        json.dumps(record(inputs=[{"name": "x"}] * 2)),
        json.dumps(record(inputs=[{"columns": []}])),
        json.dumps(record(inputs=[{"name": "x", "column": []}])),
        json.dumps(record(inputs=[{"name": "x", "mean": [0.5]}])),
        json.dumps(record(inputs=[{"name": "x", "mean": [0.5], "std": [0.0]}])),
        json.dumps(record(inputs=[{"name": "x", "mean": [1e300], "std": [1.0]}])),
        json.dumps(record(inputs=[{"name": "x", "mean": [True], "std": [1.0]}])),
        json.dumps(record(inputs=[{"name": "x", "mean": [1.0] * 5, "std": [1.0] * 5}])),
        json.dumps(record(inputs=[{"name": "x", "columns": [{"name": "c"}]}])),
        json.dumps(record(inputs=[{"name": "x", "columns": [{"name": "c", "categories": []}]}])),
        json.dumps(record(outputs=[{"name": "y", "rule": "largest"}])),
        json.dumps(record(outputs=[{"name": "y", "names": ["a", "a"]}])),
        json.dumps(record(outputs=[{"name": "y", "names": "ab"}])),
        json.dumps(record(outputs=[{"name": "y", "names": ["a"] * 70_000}])),
        json.dumps(record(outputs=[
            {"name": "y", "names": ["a", "b"], "scales": [{"centre": 0.0, "spread": 1.0}]}])),
        json.dumps(record(outputs=[{"name": "y", "scales": [{"centre": 0.0, "spread": -1.0}]}])),
        json.dumps(record()).replace("1e-300", "NaN"),
        json.dumps(record()).replace("1e-300", "1e999"),
        " " * (LARGEST + 1),
    ],
)  # fmt: skip
def test_what_is_no_contract_is_refused_in_one_sentence(text):
    with pytest.raises(InputError) as caught:
        Contract.from_json(text)
    message = str(caught.value)
    assert message.startswith("expected a contract samebits-contract-1 in the metadata, found ")
    assert len(message) < 400
    assert "\n" not in message


def test_what_a_user_gives(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"name": "kws", "inputs": [{"name": "x", "mean": [0], "std": [1]}]}))
    wanted = Contract((InputMeaning("x", mean=(0.0,), std=(1.0,)),), name="kws")
    assert given_contract(path) == given_contract(str(path)) == wanted
    assert given_contract(json.loads(path.read_text())) == given_contract(wanted) == wanted
    path.write_text("")
    for bad, said in ((path, "in .*c.json, found"), (tmp_path / "none", "cannot be read")):
        with pytest.raises(InputError, match=f"expected a contract samebits-contract-1 .*{said}|"
                           f"expected a contract samebits-contract-1 {said}"):  # fmt: skip
            given_contract(bad)


def test_a_later_one_goes_over_an_earlier_one():
    later = Contract((InputMeaning("z"),), (OutputMeaning("y", unit="bar"),), version="2")
    merged = (replace(WHOLE.outputs[0], unit="bar"),)
    assert later.over(WHOLE) == Contract((InputMeaning("z"), *WHOLE.inputs), merged, "pump", "2")
    other = Contract(outputs=(OutputMeaning("y", "argmax", ("a", "b")),))
    assert other.over(WHOLE).outputs == other.outputs  # nothing of another rule stays
    assert UNKNOWN.over(WHOLE) == WHOLE


# --- in C and in words --------------------------------------------------------------------------


def test_the_header_compiles_and_holds_every_text_and_number(tmp_path):
    """Whatever a name is: C reads back its bytes, and numbers are equal."""
    ports = [("input0", Value("x", "int8", (1, 3))), ("output0", Value("y", "int32", (1, 2)))]
    lines = meaning_lines(WHOLE, ports, "net")
    (tmp_path / "net.h").write_text("\n".join(lines) + "\n")
    assert max(map(len, lines)) <= 200
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "net.h"\n'
        "int main(void) {\n"
        "    const char *columns[] = NET_INPUT0_COLUMNS, *words[] = NET_INPUT0_CATEGORIES;\n"
        "    const double centres[] = NET_INPUT0_CENTRES, spreads[] = NET_INPUT0_SPREADS;\n"
        "    const char *targets[NET_OUTPUT0_TARGETS_COUNT] = NET_OUTPUT0_TARGETS;\n"
        "    const double zeros[] = NET_OUTPUT0_CENTRES, units[] = NET_OUTPUT0_SPREADS;\n"
        "    int i;\n"
        '    printf("%s %s %s %s\\n", NET_MODEL_NAME, NET_MODEL_VERSION, NET_INPUT0_UNIT,\n'
        "           NET_OUTPUT0_UNIT);\n"
        "    for (i = 0; i < 3; i++)\n"
        '        printf("%s|%s|%a|%a\\n", columns[i], words[i], centres[i], spreads[i]);\n'
        '    for (i = 0; i < 2; i++) printf("%s|%a|%a\\n", targets[i], zeros[i], units[i]);\n'
        "    return 0;\n"
        "}\n"
    )
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run(["cc", *flags, "main.c", "-o", "app"], cwd=tmp_path, check=True)
    said = subprocess.run([tmp_path / "app"], capture_output=True, check=True).stdout.decode()
    first, *rows = said.splitlines()
    assert first == "pump 1.2-rc1 Nm kPa"
    found = [row.split("|") for row in rows]
    assert [row[:2] for row in found[:3]] == [["torque", ""], ["hue", "blue"], ["hue", ODD]]
    numbers = [tuple(map(float.fromhex, row[-2:])) for row in found]
    assert numbers == [(1 / 3, 1e-300), (0.0, 1.0), (0.0, 1.0), (0.1, 2.0), (0.1, 2.0)]
    assert [row[0] for row in found[3:]] == ["load", ODD]


def test_nothing_known_is_nothing_said():
    ports = [("input0", Value("x", "int8", (1, 3)))]
    assert meaning_lines(UNKNOWN, ports, "net") == contract_lines(UNKNOWN) == []
    assert meaning_text(UNKNOWN, ports) == ""


def test_control_characters_reach_no_terminal():
    ports = [("input0", Value("x", "int8", (1, 3))), ("output0", Value("y", "int32", (1, 2)))]
    for text in (*contract_lines(WHOLE), meaning_text(WHOLE, ports)):
        assert all(c.isprintable() or c == "\n" for c in text)
    assert "`c`" not in meaning_text(WHOLE, ports)


# --- on its way ---------------------------------------------------------------------------------


def test_a_run_on_a_table_says_it_everywhere(run, tmp_path):
    net = sb.load(run / "run")
    recorded = json.loads((run / "run/config.json").read_text())["preparation"]
    (given,), (made,) = net.contract.inputs, net.contract.outputs
    assert [column.name for column in given.columns] == ["torque", "hue", "speed"]
    assert given.columns[0].scale.centre == recorded["features"][0]["centre"]
    assert (made.rule, made.names) == ("argmax", ("faulty", "healthy"))
    net = net.with_contract({"name": "pump", "version": "1.2"})
    file = sb.load(net.save(tmp_path / "net.onnx"))
    net.compile(tmp_path / "c")
    folder = sb.load(tmp_path / "c")
    assert net.contract == file.contract == folder.contract
    assert inspect_record(tmp_path / "c")["contract"] == net.contract.to_dict()
    header = (tmp_path / "c/model.h").read_text()
    assert '#define MODEL_MODEL_VERSION "1.2"' in header
    assert '{"faulty", "healthy"}' in header
    assert given.columns[2].scale.spread.hex() in header
    assert "`faulty`, `healthy`; the answer: the class of" in (tmp_path / "c/README.md").read_text()
    for text in (str(sb.inspect(run / "run")), str(sb.inspect(tmp_path / "c")), str(net)):
        assert "gives 2 classes: faulty, healthy" in text
    assert re.search(r"What it means.*torque.*healthy", net.report().html, re.DOTALL)
    assert folder.verify("random:20", ["c"])
    assert folder.rebuild(tmp_path / "again")
    assert (tmp_path / "again/model.h").read_text() == header


def test_a_file_reads_tables_as_its_run_did(run, tmp_path):
    """The same answer for every row, from the run and from its ONNX file, labels or not, whatever
    the order of columns and rows; raw numbers are refused."""
    net = sb.load(run / "run")
    file = sb.load(net.save(tmp_path / "net.onnx"))
    other = frame(50, seed=1)
    (wanted,) = net.run(other).values()
    (found,) = file.run(sb.read(other, target="state")).values()
    assert len(found) == 50
    assert np.array_equal(wanted, found)
    turned = other[["speed", "hue", "torque"]].iloc[::-1]
    (back,) = file.run(turned).values()
    assert np.array_equal(back[::-1], wanted)
    other[["hue", "torque", "state", "speed"]].to_csv(tmp_path / "o.csv", index=False)
    mine, its = (sb.evaluate(n, sb.read(tmp_path / "o.csv", target="state")) for n in (net, file))
    assert (mine.total, mine.correct) == (its.total, its.correct)
    raw = np.stack([other.torque, other.hue == "blue", other.hue == "red", other.speed], 1)
    with pytest.raises(InputError, match="expected rows that are standardised as in training"):
        file.run(raw.astype(np.float32))


def test_regression_has_its_scale(run, tmp_path):
    sb.fit(
        sb.read(run / "t.csv", target="speed"),
        "mlp",
        tmp_path / "r",
        sb.Training(epochs=1),
        sb.Execution(threads=1),
    )
    (made,) = sb.load(tmp_path / "r").contract.outputs
    recorded = json.loads((tmp_path / "r/config.json").read_text())["preparation"]["targets"][0]
    assert (made.rule, made.names) == ("regression", ("speed",))
    assert (made.scales[0].centre, made.scales[0].spread) == (
        recorded["centre"],
        recorded["spread"],
    )


def test_pictures_keep_their_values_and_classes(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "pics" / name).mkdir(parents=True)
        for i in range(10):
            image = rng.integers(0, 256, (6, 6, 3), np.uint8)
            Image.fromarray(image).save(tmp_path / f"pics/{name}/{i}.png")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(108, 2))
    net = sb.quantize(
        module, sb.read(tmp_path / "pics", mean=0.4, std=0.2), sb.Calibration(floor="none")
    )
    (given,) = net.contract.inputs
    assert (given.mean, given.std) == ((0.4,), (0.2,))
    assert net.contract.outputs == ()  # nobody says that its classes are those, in that order
    file = sb.load(net.save(tmp_path / "q.onnx"))
    (ours,), (theirs,) = (n.run(tmp_path / "pics").values() for n in (net, file))
    (wanted,) = net.run(sb.read(tmp_path / "pics", mean=0.4, std=0.2)).values()
    assert np.array_equal(ours, wanted)
    assert np.array_equal(theirs, wanted)
    sb.fit(
        tmp_path / "pics",
        "mlp",
        tmp_path / "run",
        sb.Training(epochs=1, batch=8),
        sb.Execution(threads=1),
    )
    (made,) = sb.load(tmp_path / "run").contract.outputs
    assert (made.rule, made.names) == ("argmax", ("cat", "dog"))


def test_a_dataset_says_how_it_is_fed():
    rng = np.random.default_rng(0)
    data = from_arrays([rng.normal(5, 2, (60, 3))], [rng.integers(0, 2, 60)])
    torch.manual_seed(0)
    net = sb.quantize(nn.Linear(3, 2), data, sb.Calibration(floor="none"))
    assert net.contract.inputs[0].columns == data.preparation.features
    assert net.contract.outputs == ()


def test_a_contract_of_another_network_is_refused_or_left_out_with_a_note(tmp_path, caplog):
    torch.manual_seed(0)
    net = sb.quantize(nn.Linear(3, 2), torch.rand(20, 3))
    given, made = net.inputs[0].name, net.outputs[0].name
    for bad in (
        {"inputs": [{"name": "other"}]},
        {"outputs": [{"name": made, "rule": "argmax", "names": ["a", "b", "c"]}]},
        {"inputs": [{"name": given, "columns": [{"name": "c", "centre": 0.0, "spread": 1.0}]}]},
    ):
        with pytest.raises(InputError, match="expected a contract of its inputs and outputs"):
            net.with_contract(bad)
    path = net.save(tmp_path / "q.onnx")
    file = onnx.load(path)
    entry = file.metadata_props.add()
    entry.key, entry.value = "samebits.contract", WHOLE.to_json()
    onnx.save(file, path)
    with caplog.at_level("INFO", "samebits"):
        assert sb.load(path).contract == Contract(name="pump", version="1.2-rc1")
    notes = [text for text in caplog.messages if "a contract in its metadata is left out" in text]
    assert [text.partition("in part: ")[2] for text in notes] == [
        "it has no input 'x'",
        "it has no output 'y'",
    ]
    entry.value = "{"
    onnx.save(file, path)
    with pytest.raises(InputError, match=r"q\.onnx: expected a contract samebits-contract-1 in"):
        sb.load(path)


def test_ship_takes_one(tmp_path, monkeypatch):
    monkeypatch.setattr("samebits.codegen.run.requirements.BOARDS", ())
    torch.manual_seed(0)
    contract = {"name": "kws", "version": "3"}
    made = sb.ship(
        nn.Linear(3, 2), torch.rand(20, 3), tmp_path / "o", backends=["torch"], contract=contract
    )
    assert made.network.contract == Contract(name="kws", version="3")
    assert '#define MODEL_MODEL_NAME "kws"' in (tmp_path / "o/model.h").read_text()
