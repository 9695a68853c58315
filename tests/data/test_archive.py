import sys
from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest
import torch

from samebits.data import Dataset, load
from samebits.data.dataset import value_table
from samebits.errors import InputError, NonFiniteError
from samebits.spec.formats import round_binary32


def arrays(**changes):
    rng = np.random.default_rng(0)
    found = {
        "x_train": rng.integers(0, 256, (6, 3, 4, 4), dtype=np.uint8),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": rng.integers(0, 256, (3, 3, 4, 4), dtype=np.uint8),
        "y_test": np.array([0, 1, 2]),
    }
    found.update(changes)
    return {key: value for key, value in found.items() if value is not None}


def save(tmp_path, **found):
    path = tmp_path / "data.npz"
    np.savez(path, **found)
    return str(path)


def message(source, kind=InputError):
    with pytest.raises(kind) as caught:
        load(source)
    return str(caught.value)


def test_reads_the_four_arrays(tmp_path):
    found = arrays()
    data = load(save(tmp_path, **found))
    assert data.class_names == ("0", "1", "2")
    np.testing.assert_array_equal(data.train_images.numpy(), found["x_train"])
    np.testing.assert_array_equal(data.test_labels.numpy(), found["y_test"])


def test_x_and_y_keep_every_fifth_for_testing(tmp_path):
    images = np.arange(10 * 4, dtype=np.uint8).reshape(10, 2, 2)
    data = load(save(tmp_path, x=images, y=np.arange(10, dtype=np.uint8)[:, None] % 2))
    assert data.input_shape == (1, 2, 2)
    np.testing.assert_array_equal(data.test_images[:, 0].numpy(), images[[4, 9]])
    assert data.train_labels.tolist() == [0, 1, 0, 1, 1, 0, 1, 0]


def test_channels_last_is_recognised(tmp_path):
    found = arrays()
    last = {k: v.transpose(0, 2, 3, 1) if k[0] == "x" else v for k, v in found.items()}
    data = load(save(tmp_path, **last))
    np.testing.assert_array_equal(data.train_images.numpy(), found["x_train"])


def test_float_images_are_taken_as_they_are(tmp_path):
    images = np.random.default_rng(1).normal(size=(10, 1, 3, 3)).astype(np.float32)
    data = load(save(tmp_path, x=images, y=np.arange(10) % 2))
    np.testing.assert_array_equal(data.batch("test", torch.tensor([1]))[0].numpy(), images[9])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"y_test": None}, "expected the arrays x_train, y_train, x_test, y_test (or x, y), found"),
        ({"x_train": np.zeros((6, 3, 4, 4))}, "x_train: expected dtype uint8 or float32, found f"),
        ({"x_train": np.zeros((6, 48), np.uint8)}, "expected training and test rows of one length"),
        ({"x_train": np.zeros((6, 1, 2, 3, 4), np.uint8)}, "x_train: expected shape [N, C, H, W]"),
        ({"y_train": np.zeros(5, int)}, "y_train: expected shape [6], one label per sample, found"),
        ({"y_train": np.zeros((6, 1, 1, 1))}, "y_train: expected integers [N] (classes), reals"),
        ({"y_test": np.zeros(3)}, "array y_test: expected integer labels [N], found float64 [3]"),
        (
            {"y_test": np.zeros((3, 0), np.int64)},
            "array y_test: expected integer labels [N], found int64 [3, 0], for classification",
        ),
        ({"y_train": np.full(6, -1)}, "array y_train: expected labels in 0..16383, found -1..-1"),
        ({"y_train": np.zeros(6, int)}, "expected training images of at least 2 classes, found 1"),
        ({"x_test": np.zeros((0, 3, 4, 4), np.uint8), "y_test": np.zeros(0, int)}, "test image"),
        ({"x_test": np.zeros((3, 3, 4, 5), np.uint8)}, "[3, 4, 4] but test images are [3, 4, 5]"),
        ({"x_test": np.zeros((3, 3, 4, 4), np.float32)}, "expected one dtype"),
        (
            {"y_train": np.array([{}] * 6, dtype=object)},
            "array y_train: expected plain numbers, found object",
        ),
    ],
)
def test_bad_arrays_are_named(tmp_path, changes, text):
    source = save(tmp_path, **arrays(**changes))
    found = message(source)
    assert text in found
    assert found.startswith(source)


def test_nan_is_refused(tmp_path):
    images = np.zeros((10, 1, 2, 2), np.float32)
    images[3] = np.nan
    source = save(tmp_path, x=images, y=np.arange(10) % 2)
    assert "train images hold NaN or infinity" in message(source, NonFiniteError)


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04 broken"])
def test_damaged_archive_is_named(tmp_path, content):
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    assert message(str(path)).startswith(f"{path}: not a readable .npz archive")


def rewrite(path, change):
    """The archive with every member's directory entry changed in place."""
    data = bytearray(path.read_bytes())
    position = data.find(b"PK\x01\x02")
    while position >= 0:
        change(data, position)
        position = data.find(b"PK\x01\x02", position + 1)
    path.write_bytes(data)


def encrypted(data, entry):
    data[entry + 8] |= 1


def unknown_method(data, entry):
    data[entry + 10] = 77


def claims_deflate(data, entry):
    data[entry + 10] = 8


def claims_lzma(data, entry):
    data[entry + 10] = 14


def foreign_header(data, entry):
    start = int.from_bytes(data[entry + 42 : entry + 46], "little")
    data[start] ^= 1


def no_shape(data, entry):
    position = data.find(b"'shape': (", 0, entry)
    while position >= 0:
        data[position + 9 : position + 11] = b"[["
        position = data.find(b"'shape': (", position)


@pytest.mark.parametrize(
    "change",
    [encrypted, unknown_method, claims_deflate, claims_lzma, foreign_header, no_shape],
    ids=lambda change: change.__name__,
)
def test_damaged_member_is_named(tmp_path, change):
    source = save(tmp_path, **arrays())
    rewrite(tmp_path / "data.npz", change)
    assert message(source).startswith(f"{source}: ")


def test_damage_gives_no_other_error(tmp_path):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, **arrays())
    data = path.read_bytes()
    for position in range(0, len(data), 3):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x5A]) + data[position + 1 :])
        with suppress(InputError):  # some bytes do not matter
            load(str(path))


def test_single_array_and_other_files_are_refused(tmp_path):
    path = tmp_path / "data.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    assert "not a readable .npz archive" in message(str(path))
    other = tmp_path / "data.xls"
    other.write_text("1,2")
    assert "found a file ending in .xls" in message(str(other))


def test_digits_are_split_once_and_for_all():
    data = load("digits")
    assert (len(data.train_labels), len(data.test_labels)) == (1438, 359)
    assert data.input_shape == (1, 8, 8)
    assert data.train_labels[:8].tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert data.test_labels[:3].tolist() == [4, 9, 4]
    codes = data.train_images[:50].numpy().astype(np.float32)
    np.testing.assert_array_equal(data.batch("train", torch.arange(50)).numpy(), codes / 8 - 1)


def test_digits_limit_and_hash():
    data = load("digits", limit=3)
    assert torch.bincount(data.train_labels).tolist() == [3] * 10
    assert len(data.test_labels) == 359
    assert data.sha256() != load("digits").sha256()
    assert data.sha256() == load("digits", limit=3).sha256()


def test_digits_without_scikit_learn_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert "run: pip install scikit-learn" in message("digits")


def test_value_table_ends_are_exact():
    for peak in (16, 255):
        (table,) = value_table(peak)
        assert (float(table[0]), float(table[-1])) == (-1.0, 1.0)
        assert table.dtype == torch.float32


@pytest.mark.parametrize("peak", [16, 255])
def test_values_are_rounded_once_an_operation(peak):
    means, stds = (0.485, 0.456, -3.0), (0.229, 1e-3, 7.5)
    table = value_table(peak, means, stds)
    assert table.shape == (3, peak + 1)

    def binary32(x):
        return -round_binary32(-x) if x < 0 else round_binary32(x)

    for line, mean, std in zip(table.tolist(), means, stds, strict=True):
        m, s = (Fraction(binary32(Fraction(number))) for number in (mean, std))
        for code, found in enumerate(line):
            moved = Fraction(binary32(Fraction(code, peak))) - m
            assert found == binary32(Fraction(binary32(moved)) / s), (code, mean, std)


def test_labels_outside_the_classes_are_refused():
    images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    labels = torch.tensor([0, 1, 2, 1])
    with pytest.raises(InputError, match=r"expected train labels in 0\.\.1, found 0\.\.2"):
        Dataset(images, labels, images, labels, ("a", "b"))
