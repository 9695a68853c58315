"""Arrays as data: rows of numbers, and the labels of every task."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from samebits.data import from_arrays, load
from samebits.data.columns import ColumnScale
from samebits.data.earlier import Earlier
from samebits.errors import InputError
from samebits.recipes.reading import Reading

RNG = np.random.default_rng(5)
X = RNG.normal(size=(40, 3))
IMAGES = RNG.integers(0, 256, (40, 6, 5), dtype=np.uint8)


def message(x, y, **options) -> str:
    with pytest.raises(InputError) as caught:
        from_arrays([x], [y], options=Reading(**options))
    return str(caught.value)


def test_rows_are_standardised_by_those_of_training():
    data = from_arrays([X], [np.arange(40) % 3])
    train = np.arange(40) % 5 != 4
    for column in range(3):
        scale = ColumnScale.of(X[train, column])
        assert data.train_images[:, column].tolist() == scale.features(X[train, column]).tolist()
        assert data.test_images[:, column].tolist() == scale.features(X[~train, column]).tolist()
    assert (data.input_shape, data.noun, data.rows, data.language) == ((3,), "row", True, False)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.int8])
def test_types_of_rows(dtype):
    rows = (100 * X).astype(dtype)
    data = from_arrays([rows], [np.arange(40) % 2])
    wide = from_arrays([rows.astype(np.float64)], [np.arange(40) % 2])
    assert data.train_images.equal(wide.train_images)


@pytest.mark.parametrize(
    ("y", "task", "names", "shape"),
    [
        (np.arange(40) % 3, "classification", ("0", "1", "2"), (32,)),
        (X[:, 0], "regression", ("0",), (32, 1)),
        (X[:, :2].astype(np.float32), "regression", ("0", "1"), (32, 2)),
        ((X > 0).astype(np.int64), "multilabel", ("0", "1", "2"), (32, 3)),
        (X > 0, "multilabel", ("0", "1", "2"), (32, 3)),
    ],
)
def test_labels_say_the_task(y, task, names, shape):
    data = from_arrays([X], [y])
    assert (data.task, data.class_names) == (task, names)
    assert tuple(data.train_labels.shape) == shape


def test_labels_of_pixels():
    masks = (IMAGES // 100).astype(np.uint8)
    data = from_arrays([IMAGES], [masks])
    assert (data.task, data.classes, data.input_shape) == ("segmentation", 3, (1, 6, 5))
    targets = data.targets("test", torch.arange(2))
    assert targets.tolist() == masks[[4, 9]].astype(int).tolist()


def test_targets_are_in_the_units_of_training():
    y = 100 + 7 * X[:, 0]
    data = from_arrays([X], [y])
    (scale,) = data.preparation.targets
    again = data.targets("train", torch.arange(32))[:, 0].double() * scale.spread + scale.centre
    assert np.abs(again.numpy() - y[np.arange(40) % 5 != 4]).max() < 1e-4


def test_integers_may_be_numbers():
    data = from_arrays([X], [np.arange(40)], options=Reading(task="regression"))
    assert (data.task, data.classes) == ("regression", 1)


@pytest.mark.parametrize(
    ("x", "y", "options", "text"),
    [
        (X, np.zeros((40, 2, 2, 2)), {}, "labels: expected integers [N] (classes), reals [N] or"),
        (X, X[:, 0], {"task": "classification"}, "expected integer labels [N], found float64 [40]"),
        (X, X, {"task": "multilabel"}, "expected labels of 0 and 1, found"),
        (X, np.full(40, np.nan), {}, "labels: row 1: expected a finite number, found no value"),
        (np.where(X > 2, np.inf, X), np.arange(40) % 2, {}, "samples: row"),
        (X.astype(np.float16), np.arange(40) % 2, {}, "expected rows of float32, float64 or int"),
        (np.int64(3), np.arange(40), {}, "samples: expected samples [N, ...], found a single"),
        (IMAGES, np.full((40, 6, 5), 300), {}, "expected labels in 0..254, found 300..300"),
        (IMAGES, np.zeros((40, 5, 6), int), {}, "expected train labels [32, 6, 5] of torch.uint8"),
        (np.zeros((40, 0)), np.arange(40) % 2, {}, "expected rows of 1 to 16384 numbers, found 0"),
    ],
)
def test_what_is_wrong_is_named(x, y, options, text):
    assert text in message(np.asarray(x), np.asarray(y), **options)


def test_no_sample_for_training_is_named():
    with pytest.raises(InputError, match="array samples: expected at least one sample for train"):
        from_arrays([X[:0], X], [X[:0, 0], X[:, 0]])


def test_limits_are_of_classes(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=X, y=np.arange(40) % 2)
    assert len(load(str(path), limit=3).train_labels) == 6
    np.savez(path, x=X, y=X[:, 0])
    with pytest.raises(InputError, match="found labels for regression; leave --limit out"):
        load(str(path), limit=3)


def test_an_archive_is_prepared_as_a_run_has_it(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=X, y=X[:, 0])
    data = load(str(path))
    np.savez(path, x=2 * X, y=X[:, 0])
    again = load(str(path), earlier=Earlier(data.options, data.preparation))
    assert again.preparation == data.preparation
    np.savez(path, x=X[:, :2], y=X[:, 0])
    with pytest.raises(InputError, match="found no '2'; add what is missing"):
        load(str(path), earlier=Earlier(data.options, data.preparation))


def test_hashes_tell_scales_apart():
    one, other = (from_arrays([X * factor], [np.arange(40) % 2]) for factor in (1, 2))
    assert one.train_images.equal(other.train_images)
    assert one.sha256() != other.sha256()
