"""Data sets that Hugging Face's datasets has saved, as far as that is installed."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from samebits.data import load, load_samples
from samebits.data.earlier import Earlier
from samebits.data.options import DataOptions
from samebits.errors import InputError


def test_without_datasets_an_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    for name in ("dataset_info.json", "state.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match="which is not installed; run: pip install datasets"):
        load(str(tmp_path))


@pytest.fixture
def datasets():
    reason = "saved data sets are read by Hugging Face's datasets"
    return pytest.importorskip("datasets", reason=reason)


def message(path, **options) -> str:
    with pytest.raises(InputError) as caught:
        load(str(path), options=DataOptions.of(**options))
    return str(caught.value)


def test_tables(tmp_path, datasets):
    rng = np.random.default_rng(0)
    columns = {"a": rng.normal(size=60).tolist(), "kind": ["xy"[i % 2] for i in range(60)]}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "one")
    data = load(str(tmp_path / "one"))
    assert (data.task, data.class_names, data.input_shape) == ("classification", ("x", "y"), (1,))
    assert "--resize does not apply to a table" in message(tmp_path / "one", resize=4)
    earlier = Earlier(data.options, data.preparation)
    wanted = data.whole().test_images * 2.0**-12
    for names in (("kind", "a"), ("a",)):
        source = tmp_path / "-".join(names)
        datasets.Dataset.from_dict({name: columns[name] for name in names}).save_to_disk(source)
        assert torch.equal(load_samples(str(source), earlier=earlier, whole=True), wanted)
    parts = {"train": datasets.Dataset.from_dict(columns)}
    parts["test"] = parts["train"].select(range(10))
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "two")
    data = load(str(tmp_path / "two"), options=DataOptions.of(target="a"))
    assert (data.task, len(data.train_labels), len(data.test_labels)) == ("regression", 60, 10)


def test_images(tmp_path, datasets):
    pictures = [Image.new("L", (6, 5 + i % 2), 9 * i) for i in range(20)]
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "digit": datasets.ClassLabel(names=["0", "1"]),
            "n": datasets.Value("int64"),
        }
    )
    columns = {"image": pictures, "digit": [i % 2 for i in range(20)], "n": list(range(20))}
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(tmp_path / "one")
    assert "give --resize HEIGHTxWIDTH" in message(tmp_path / "one")
    data = load(str(tmp_path / "one"), options=DataOptions.of(resize=4))
    assert (data.input_shape, data.classes) == ((1, 4, 4), 2)
    assert data.test_labels.tolist() == [0, 1, 0, 1]
    assert data.test_images[:, 0, 0, 0].tolist() == [9 * i for i in (4, 9, 14, 19)]


def test_a_damaged_folder_is_named(tmp_path, datasets):
    for name in ("dataset_info.json", "state.json"):
        (tmp_path / name).write_text("{")
    assert message(tmp_path).startswith(f"{tmp_path}: corrupt or not a data set saved by datasets")
