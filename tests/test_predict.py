"""From raw rows, pictures and recordings to named answers: the same from every backend, one for
every sample that is given."""

from __future__ import annotations

import json
import os
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

import recordings
import samebits as sb
from samebits.data import from_arrays
from samebits.errors import InputError

BACKENDS = ("reference", "torch", "c")
DATA = Path(os.environ.get("SAMEBITS_DATA", ""))


def frame(rows: int = 160, seed: int = 0) -> pd.DataFrame:
    """A class, a number and two labels, beside three features, one of them of words."""
    rng = np.random.default_rng(seed)
    x = rng.normal(500, 100, (rows, 2))
    hue = np.where(x[:, 0] > 600, "red", "blue")
    state = np.where(x[:, 0] > x[:, 1], "faulty", "healthy")
    load = (x[:, 0] - x[:, 1]) / 7 + 40
    return pd.DataFrame(
        {"torque": x[:, 0], "hue": hue, "speed": x[:, 1], "state": state, "load": load}
        | {"hot": (x[:, 0] > 500).astype(int), "loud": (x[:, 1] > 480).astype(int)}
    )


TARGETS = {"state": ["state"], "load": ["load"], "hot,loud": ["hot", "loud"]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run for each kind of target, each on a table of its own."""
    folder, made = tmp_path_factory.mktemp("runs"), {}
    for target, labels in TARGETS.items():
        table = folder / f"{labels[0]}.csv"
        frame()[["torque", "hue", "speed", *labels]].to_csv(table, index=False)
        made[target] = sb.fit(
            sb.read(table, target=target),
            "mlp",
            folder / labels[0],
            sb.Training(epochs=10),
            sb.Execution(threads=1),
        )
    return made


def raw(rows: int = 40) -> pd.DataFrame:
    return frame(rows, seed=1)[["torque", "hue", "speed"]]


# --- tables -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_every_row_has_the_answer_that_follows_from_the_outputs(runs, target, tmp_path):
    """From the run, its ONNX file and its C, on three backends, columns in any order, labels or
    not, a frame or a file: the same."""
    run, rows = runs[target], raw()
    wanted = run.predict(rows)
    assert len(wanted) == len(wanted.answers) == len(rows)
    net = sb.load(run.folder)
    (outputs,) = net.run(rows).values()
    assert np.array_equal(wanted.scores, outputs)
    if target == "state":
        assert wanted.names == ("faulty", "healthy")
        assert wanted.answers == [wanted.names[row.argmax()] for row in outputs]
        truth = frame(40, seed=1).state
        assert np.mean(np.array(wanted.answers) == truth) > 0.7
    elif target == "load":
        (scale,) = net.contract.outputs[0].scales
        reals = outputs[:, 0].astype(np.float64)
        assert np.allclose(wanted.answers, scale.centre + scale.spread * reals, rtol=1e-6)
        assert np.corrcoef(wanted.answers, frame(40, seed=1).load)[0, 1] > 0.7
    else:
        named = np.array(("hot", "loud"), object)
        assert wanted.answers == [tuple(named[row > 0]) for row in outputs]
    file, _ = sb.load(net.save(tmp_path / "net.onnx")), net.compile(tmp_path / "c")
    turned = rows[["speed", "hue", "torque"]]
    for other in (net, file, sb.load(tmp_path / "c")):
        for backend in BACKENDS:
            found = other.predict(turned, backend)
            assert found.answers == wanted.answers
            assert np.array_equal(found.scores, wanted.scores)
    frame(40, seed=1)[["speed", *TARGETS[target], "hue", "torque"]].to_csv(
        tmp_path / "t.csv", index=False
    )
    assert file.predict(sb.read(tmp_path / "t.csv", target=target)).answers == wanted.answers
    assert run.predict(tmp_path / "t.csv").answers == wanted.answers


def test_an_array_is_of_raw_rows_or_is_said_to_be_prepared(runs):
    net, rows = sb.load(runs["state"].folder), raw()
    wanted = net.predict(rows).answers
    array = rows.to_numpy(object)
    assert net.predict(array).answers == wanted
    assert net.predict(array[0]).answers == wanted[:1]
    columns = net.contract.inputs[0].columns
    scaled = np.stack(
        [
            (rows.torque - columns[0].scale.centre) / columns[0].scale.spread,
            rows.hue == "blue",
            rows.hue == "red",
            (rows.speed - columns[2].scale.centre) / columns[2].scale.spread,
        ],
        axis=1,
    ).astype(np.float32)
    assert net.predict(sb.prepared(scaled)).answers == wanted
    with pytest.raises(
        InputError, match=r"rows of the 3 columns torque, hue, speed, in this order"
    ):
        net.predict(scaled)
    with pytest.raises(InputError, match="expected rows that are standardised as in training"):
        net.run(rows.assign(blue=0.0).drop(columns="hue").to_numpy().repeat(2, 1)[:, :4])


def test_numbers_that_are_standardised_already_are_not_so_again(tmp_path):
    frame()[["torque", "speed", "state"]].to_csv(tmp_path / "t.csv", index=False)
    run = sb.fit(
        tmp_path / "t.csv", "mlp", tmp_path / "run", sb.Training(epochs=1), sb.Execution(threads=1)
    )
    rows = frame(40, seed=1)[["torque", "speed"]].to_numpy()
    assert run.predict(rows).answers == run.predict(torch.tensor(rows)).answers
    assert run.predict(rows.tolist()).answers == run.predict(rows).answers
    with pytest.raises(InputError, match="look standardised already; give prepared=True"):
        run.predict((rows - 500) / 100)


def test_columns_that_lack_and_that_are_besides_are_one_error(runs):
    run, rows = runs["state"], raw()
    bad = rows.drop(columns=["hue", "speed"]).assign(a=1, b=2)
    for net in (run, sb.load(run.folder)):
        with pytest.raises(InputError) as caught:
            net.predict(bad)
        assert str(caught.value) == (
            "data: expected the columns of training, found no 'hue', 'speed' and 'a', 'b' besides; "
            "give each the name that it had in training"
        )
    with pytest.raises(InputError, match=r"found no 'hue'; add what is missing$"):
        run.predict(rows.drop(columns="hue"))
    twice = pd.concat([rows, rows[["hue"]]], axis=1)
    with pytest.raises(InputError, match="columns of different names, found 'hue' twice"):
        run.predict(twice)


def test_cells_without_a_value_follow_the_rule_of_the_contract(runs, tmp_path):
    net, rows = sb.load(runs["state"].folder), raw(6)
    wanted = net.predict(rows).scores
    rows.loc[1, "speed"], rows.loc[2, "hue"] = np.nan, None
    with pytest.raises(InputError, match="row 3, column 'hue': expected a value, found none"):
        net.predict(rows)
    name = net.inputs[0].name
    ruled = net.with_contract({"inputs": [{"name": name, "missing": "mean"}]})
    assert ruled.contract.inputs[0].columns == net.contract.inputs[0].columns
    found = ruled.predict(rows)
    assert len(found) == 6
    assert np.array_equal(np.delete(found.scores, (1, 2), 0), np.delete(wanted, (1, 2), 0))
    centre = net.contract.inputs[0].columns[2].scale.centre
    filled = net.predict(rows.fillna({"speed": centre, "hue": "red"})).scores
    assert np.array_equal(found.scores[1], filled[1])
    nothing = pd.DataFrame({"torque": [np.nan], "hue": [None], "speed": [pd.NA]})
    zeros = np.zeros((1, 4), np.float32)
    assert np.array_equal(ruled.predict(nothing).scores, net.predict(sb.prepared(zeros)).scores)
    file = sb.load(ruled.save(tmp_path / "r.onnx"))
    assert np.array_equal(file.predict(rows).scores, found.scores)
    assert "cells without a value: a number counts as its column's mean" in str(file.report())
    with pytest.raises(InputError, match="expected missing to be one of refuse, mean, found 'zero"):
        net.with_contract({"inputs": [{"name": name, "missing": "zero"}]})


def test_what_has_no_meaning_has_no_answer(runs, tmp_path):
    torch.manual_seed(0)
    net = sb.quantize(nn.Linear(3, 2), torch.rand(20, 3))
    with pytest.raises(InputError, match="expected a contract with the rule of one output, found "):
        net.predict(torch.rand(4, 3))
    made = net.outputs[0].name
    net = net.with_contract({"outputs": [{"name": made, "rule": "argmax", "names": ["a", "b"]}]})
    assert set(net.predict(torch.rand(4, 3)).answers) <= {"a", "b"}
    raw().to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match="expected a network that knows the columns of its table"):
        net.predict(tmp_path / "t.csv")
    plain = sb.load(nn.Linear(3, 2), example=torch.zeros(1, 3))
    made = plain.outputs[0].name
    plain = plain.with_contract({"outputs": [{"name": made, "rule": "argmax"}]})
    assert set(plain.predict(torch.rand(4, 3)).answers) <= {"0", "1"}
    with pytest.raises(InputError, match="expected a quantized network for a backend"):
        plain.predict(torch.rand(4, 3), "c")


# --- pictures and recordings --------------------------------------------------------------------


def test_pictures_in_folders_files_arrays_and_memory(tmp_path):
    rng = np.random.default_rng(0)
    for name, low in (("cat", 0), ("dog", 100)):
        (tmp_path / "pics" / name).mkdir(parents=True)
        for i in range(12):
            image = rng.integers(low, low + 156, (6, 5, 3), np.uint8)
            Image.fromarray(image).save(tmp_path / f"pics/{name}/{i:02}.png")
    run = sb.fit(
        tmp_path / "pics",
        "mlp",
        tmp_path / "run",
        sb.Training(epochs=4, batch=8),
        sb.Execution(threads=1),
    )
    net = sb.load(tmp_path / "run")
    found = run.predict(tmp_path / "pics")
    assert found.rows[:2] == ("cat/00.png", "cat/01.png")
    assert (
        np.mean([row.startswith(a) for row, a in zip(found.rows, found.answers, strict=True)]) > 0.8
    )
    (outputs,) = net.run(tmp_path / "pics").values()
    assert np.array_equal(found.scores, outputs)
    files = [tmp_path / "pics" / row for row in found.rows]
    flat = tmp_path / "flat"
    flat.mkdir()
    for place, file in enumerate(files):
        (flat / f"{place:02}.png").write_bytes(file.read_bytes())
    images = [Image.open(file) for file in files]
    arrays = np.stack([np.asarray(image) for image in images])
    quantized = sb.load(net.save(tmp_path / "n.onnx"))
    for other in (net, quantized):
        for given in (flat, files, images, arrays, arrays.transpose(0, 3, 1, 2)):
            assert np.array_equal(other.predict(given).scores, found.scores)
        assert other.predict(files[3]).answers == found.answers[3:4]
        assert other.predict(images[3]).answers == found.answers[3:4]
    assert np.array_equal(quantized.predict(flat, "c").scores, found.scores)
    with pytest.raises(InputError, match="expected pixels as in training, -1 to 1"):
        quantized.predict(arrays.transpose(0, 3, 1, 2).astype(np.float32))
    with pytest.raises(InputError, match=r"expected samples of shape \[3, 6, 5\]"):
        quantized.predict(arrays[:, :4])


def test_classes_without_names_are_numbers(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (60, 1, 4, 4), np.uint8)
    for name, labels in (("c", np.arange(60) % 3), ("l", np.eye(3, dtype=int)[np.arange(60) % 3])):
        data = from_arrays([images], [labels])
        run = sb.fit(
            data, "mlp", tmp_path / name, sb.Training(epochs=1, batch=16), sb.Execution(threads=1)
        )
        found = run.predict(images)
        (outputs,) = sb.load(run.folder).run(values_of(images)).values()
        assert found.names == ("0", "1", "2")
        wanted = outputs.argmax(1) if name == "c" else outputs > 0
        assert np.array_equal(found.chosen, wanted)


def values_of(images):
    return (images / np.float32(255) - np.float32(0.5)) / np.float32(0.5)


def test_recordings(tmp_path):
    root = recordings.split_folder(tmp_path / "words")
    run = sb.fit(
        root, "mlp", tmp_path / "run", sb.Training(epochs=1, batch=4), sb.Execution(threads=1)
    )
    found = run.predict(root)
    assert found.rows == tuple(
        f"{split}/{word}/{i}.wav"
        for split, count in (("test", 2), ("train", 3))
        for word in ("no", "yes")
        for i in range(count)
    )
    one = root / "test/yes/1.wav"
    net = sb.load(sb.load(tmp_path / "run").save(tmp_path / "n.onnx"))
    for backend in BACKENDS:
        assert np.array_equal(net.predict(root, backend).scores, found.scores)
    assert np.array_equal(net.predict(one).scores, found.scores[3:4])
    with pytest.raises(InputError, match="8000"):
        net.predict(recordings.write_wav(tmp_path / "o.wav", recordings.tone(1), 16000))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "each"), [("cifar10_jpeg.tar", 20), ("fsdd.tar", 12)])
def test_real_pictures_and_spoken_digits(name, each, tmp_path):
    """As many answers as files, the same from C; of pictures from raw bytes too."""
    if not (DATA / name).is_file():
        pytest.skip(f"needs {name} in the folder $SAMEBITS_DATA")
    taken = Counter()
    with tarfile.open(DATA / name) as archive:
        for member in archive:
            label = Path(member.name).parent.name
            if member.isfile() and taken[label] < each:
                taken[label] += 1
                (tmp_path / "data" / label).mkdir(parents=True, exist_ok=True)
                kept = tmp_path / "data" / label / Path(member.name).name
                kept.write_bytes(archive.extractfile(member).read())
    run = sb.fit(
        tmp_path / "data",
        "mlp",
        tmp_path / "run",
        sb.Training(epochs=1, batch=32),
        sb.Execution(threads=1),
    )
    found, net = run.predict(tmp_path / "data"), sb.load(tmp_path / "run")
    assert len(found) == taken.total() == 10 * each
    assert set(found.answers) <= set(taken)
    other = net.predict(tmp_path / "data", "c")
    assert other.answers == found.answers
    assert np.array_equal(other.scores, found.scores)
    if name.startswith("cifar"):
        assert net.verify(tmp_path / "data", ["torch", "c"], raw=True)


def test_a_class_for_every_place(tmp_path):
    torch.manual_seed(0)
    module = nn.Conv2d(1, 3, 1)
    net = sb.quantize(module, torch.rand(8, 1, 4, 3))
    name = net.outputs[0].name
    net = net.with_contract(
        {"outputs": [{"name": name, "rule": "argmax", "names": ["road", "sky", "tree"]}]}
    )
    images = torch.rand(5, 1, 4, 3)
    found = net.predict(images)
    assert found.chosen.shape == (5, 4, 3)
    assert np.array_equal(found.chosen, net.run(images)[name].argmax(1))
    assert set(np.concatenate(found.answers).ravel()) <= {"road", "sky", "tree"}
    json.dumps(found.to_dict())
    with pytest.raises(InputError, match="expected one answer for each sample for a table"):
        found.save(tmp_path / "x.csv")


# --- files ------------------------------------------------------------------------------------


def test_values_in_their_unit(runs, tmp_path):
    net = sb.load(runs["load"].folder)
    name = net.outputs[0].name
    net = net.with_contract({"outputs": [{"name": name, "unit": "kW"}]})
    found = net.predict(raw(3))
    found.save(tmp_path / "v.csv")
    head, *rows = (tmp_path / "v.csv").read_text().splitlines()
    assert head == "row,load (kW)"
    assert [float(row.split(",")[1]) for row in rows] == found.answers
    assert found.to_dict()["unit"] == "kW"
    assert "load (kW)" in str(found)
