"""Data sets that Hugging Face's datasets has saved; by that library itself where it is there."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image

from samebits.data import load, load_samples
from samebits.data.earlier import Earlier
from samebits.errors import InputError
from samebits.recipes.reading import Reading


def save(
    path: Path, table: Any, features: dict[str, Any], *, split: str | None = None, **options: Any
) -> Path:
    """A table as `save_to_disk` writes it, without that library. options: of the stream."""
    path.mkdir(parents=True)
    with pyarrow.ipc.new_stream(
        path / "data-00000-of-00001.arrow",
        table.schema,
        options=pyarrow.ipc.IpcWriteOptions(**options),
    ) as stream:
        stream.write_table(table)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": split}
    (path / "state.json").write_text(json.dumps(state))
    (path / "dataset_info.json").write_text(json.dumps({"features": features}))
    return path


FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": ["a", "b"], "_type": "ClassLabel"},
    "n": {"dtype": "int64", "_type": "Value"},
}
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def pictures(cells: list[dict[str, Any]]) -> Any:
    numbers = list(range(len(cells)))
    kind = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    image = pyarrow.array(cells, kind)
    return pyarrow.table({"image": image, "label": [i % 2 for i in numbers], "n": numbers})


def cells(count: int = 20, **last: Any) -> list[dict[str, Any]]:
    """Grey images of 6x5, of which the last one is as given."""
    plain = [
        {"bytes": encoded(Image.new("L", (6, 5), 9 * i)), "path": f"{i}.png"} for i in range(count)
    ]
    return [*plain[:-1], {**plain[-1], **last}]


def test_images_need_no_library_of_theirs(tmp_path: Path) -> None:
    data = load(str(save(tmp_path / "one", pictures(cells()), FEATURES)))
    assert (data.input_shape, data.class_names) == ((1, 5, 6), ("0", "1"))
    assert data.test_labels.tolist() == [0, 1, 0, 1]
    assert data.test_images[:, 0, 0, 0].tolist() == [9 * i for i in (4, 9, 14, 19)]
    for name in ("train", "test"):
        save(tmp_path / "two" / name, pictures(cells(10)), FEATURES, split=name)
    (tmp_path / "two" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    data = load(str(tmp_path / "two"))
    assert (len(data.train_images), len(data.test_images)) == (10, 10)


def test_images_are_upright_and_of_the_mode_of_their_column(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[Image.ExifTags.Base.Orientation] = 6
    turned = encoded(Image.new("RGB", (5, 6), (9, 9, 9)), exif=exif)
    features = FEATURES | {"image": {"_type": "Image", "mode": "L"}}
    data = load(str(save(tmp_path / "one", pictures(cells(bytes=turned)), features)))
    assert data.input_shape == (1, 5, 6)
    assert int(data.test_images[-1, 0, 0, 0]) == 9


def test_no_path_is_followed_and_no_other_format_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(encoded(Image.new("L", (6, 5), 77)))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    (tmp_path / "bin" / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for name, last, told in (
        ("path", {"bytes": None, "path": str(secret)}, "found the path of a file"),
        ("eps", {"bytes": EPS}, "corrupt or not a JPEG, PNG or WebP image"),
        ("gif", {"bytes": encoded(Image.new("L", (6, 5)), "GIF")}, "corrupt or not a JPEG"),
    ):
        found = message(save(tmp_path / name, pictures(cells(**last)), FEATURES))
        assert found.startswith(f"{tmp_path / name} (None): image 19: ")
        assert told in found
    found = message(save(tmp_path / "none", pictures([*cells(), None]), FEATURES))
    assert "image 20: expected the bytes of an image, found none" in found
    assert not (tmp_path / "started").exists()


def test_nothing_lies_outside_of_the_folder(tmp_path: Path) -> None:
    whole = save(tmp_path / "one", pictures(cells()), FEATURES)
    for name in ("state.json", "dataset_info.json", "data-00000-of-00001.arrow"):
        folder = tmp_path / f"linked {name}"
        shutil.copytree(whole, folder)
        (folder / name).unlink()
        (folder / name).symlink_to(whole / name)
        assert message(folder).startswith(f"{folder / name}: expected a file, found a link")
    for name in ("../one/data-00000-of-00001.arrow", f"{whole}/data-00000-of-00001.arrow"):
        folder = tmp_path / f"out {len(name)}"
        shutil.copytree(whole, folder)
        state = json.loads((folder / "state.json").read_text())
        state["_data_files"] = [{"filename": name}]
        (folder / "state.json").write_text(json.dumps(state))
        assert "found a path out of it" in message(folder)


def test_columns_that_become_larger_are_refused(tmp_path: Path) -> None:
    zeros = pyarrow.table({"a": np.zeros(1 << 20), "b": np.zeros(1 << 20, np.int64)})
    plain = pyarrow.table({"a": np.arange(99.0), "b": np.arange(99) % 2})
    assert load(str(save(tmp_path / "plain", plain, {}))).task == "classification"
    for kind in ("zstd", "lz4"):
        found = message(save(tmp_path / kind, zeros, {}, compression=kind))
        assert "expected plain columns, found packed ones" in found
    words = pyarrow.table({"w": pyarrow.array(["x"] * 99).dictionary_encode(), "y": [0, 1, 2] * 33})
    found = message(save(tmp_path / "words", words, {}, compression="zstd"))
    assert "expected plain columns, found packed ones" in found
    nulls = pyarrow.table({"a": pyarrow.nulls(1 << 30), "b": pyarrow.nulls(1 << 30)})
    assert "in memory" in message(save(tmp_path / "nulls", nulls, {}))
    lists = pyarrow.table({"a": [[1]] * 20, "b": [0, 1] * 10})
    assert "column 'a': expected numbers or words, found list" in message(
        save(tmp_path / "lists", lists, {})
    )


def test_without_pyarrow_an_error_says_what_to_install(tmp_path, monkeypatch):
    whole = save(tmp_path / "one", pictures(cells()), FEATURES)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="which is not installed; run: pip install pyarrow"):
        load(str(whole))


@pytest.fixture
def datasets():
    reason = "saves with Hugging Face's datasets, which is not installed"
    return pytest.importorskip("datasets", reason=reason)


def message(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(str(path), options=Reading(**options))
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
    data = load(str(tmp_path / "two"), options=Reading(target="a"))
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
    data = load(str(tmp_path / "one"), options=Reading(resize=4))
    assert (data.input_shape, data.classes) == ((1, 4, 4), 2)
    assert data.test_labels.tolist() == [0, 1, 0, 1]
    assert data.test_images[:, 0, 0, 0].tolist() == [9 * i for i in (4, 9, 14, 19)]


def test_a_damaged_folder_is_named(tmp_path, datasets):
    for name in ("dataset_info.json", "state.json"):
        (tmp_path / name).write_text("{")
    assert message(tmp_path).startswith(f"{tmp_path}: corrupt or not a data set saved by datasets")
