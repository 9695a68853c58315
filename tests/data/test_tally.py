"""Figures of tasks against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest

from samebits.data import from_arrays
from samebits.data.tally import Tally
from samebits.errors import InputError

metrics = pytest.importorskip("sklearn.metrics", reason="figures are compared with scikit-learn's")
RNG = np.random.default_rng(11)
X = RNG.normal(size=(50, 2))


def counted(data, outputs, size=7):
    tally, labels = Tally(data), data.test_labels.numpy()
    for start in range(0, len(labels), size):
        tally.add(outputs[start : start + size], labels[start : start + size])
    return tally.metrics()


def test_errors_of_a_regression():
    y = np.stack([30 + 5 * X[:, 0], X[:, 1] ** 2], axis=1)
    data = from_arrays([X], [y])
    outputs = RNG.normal(size=(10, 2))
    scales = data.preparation.targets
    guesses = np.stack([s.centre + s.spread * o for s, o in zip(scales, outputs.T, strict=True)], 1)
    found = counted(data, outputs)
    wanted = y[np.arange(50) % 5 == 4]
    assert (found.correct, found.accuracy, found.total) == (None, None, 10)
    assert found.figures["rmse"] == pytest.approx(metrics.root_mean_squared_error(wanted, guesses))
    assert found.figures["mae"] == pytest.approx(metrics.mean_absolute_error(wanted, guesses))
    assert found.figures["r2"] == pytest.approx(metrics.r2_score(wanted, guesses), abs=1e-4)
    assert found == counted(data, outputs, 3)  # whatever the batch


def test_a_target_without_spread():
    y = np.where(np.arange(50) % 5 == 4, 1.0, np.arange(50.0))
    data = from_arrays([X], [y])
    right = data.test_labels.numpy() * 2.0**-20
    assert counted(data, right).figures["r2"] == 1.0
    assert counted(data, right + 1).figures["r2"] == 0.0


def test_several_labels():
    y = (RNG.normal(size=(50, 4)) > [0, 0.5, -1, 9]).astype(np.int64)  # the last one never
    data = from_arrays([X], [y])
    outputs = RNG.normal(size=(10, 4)) - [0, 0, 0, 9]
    found, wanted = counted(data, outputs), y[np.arange(50) % 5 == 4]
    guesses = (outputs > 0).astype(int)
    assert found.accuracy == metrics.accuracy_score(wanted, guesses)
    f1 = metrics.f1_score(wanted, guesses, average="macro", zero_division=1.0)
    assert found.figures["mean_f1"] == pytest.approx(f1)
    assert found.figures["exact_match"] == found.accuracy


def test_pixels():
    masks = RNG.integers(0, 3, (50, 4, 5))
    masks[np.arange(50) % 5 == 4] %= 2  # one class is in no test mask
    data = from_arrays([RNG.integers(0, 256, (50, 4, 5), dtype=np.uint8)], [masks])
    outputs = RNG.normal(size=(10, 3, 4, 5))
    outputs[:, 2] -= 99
    found, wanted = counted(data, outputs), masks[np.arange(50) % 5 == 4].ravel()
    guesses = outputs.argmax(1).ravel()
    assert found.accuracy == metrics.accuracy_score(wanted, guesses)
    assert found.figures["mean_iou"] == pytest.approx(
        metrics.jaccard_score(wanted, guesses, average="macro")
    )


@pytest.mark.parametrize("y", [X[:, 0], (X > 0).astype(int)])
def test_too_few_or_too_many_outputs_are_named(y):
    data = from_arrays([X], [y])
    with pytest.raises(InputError, match=r"expected . outputs for each row .*, found 3; give"):
        counted(data, np.zeros((10, 3)))


def test_outputs_for_pixels_are_checked():
    masks = np.arange(50 * 4).reshape(50, 2, 2) % 2
    data = from_arrays([masks.astype(np.uint8)], [masks])
    with pytest.raises(InputError, match=r"expected outputs \[N, 2, 2, 2\], one for every class"):
        counted(data, np.zeros((10, 2)))


def test_a_network_may_know_classes_that_no_mask_shows():
    masks = RNG.integers(0, 2, (50, 4, 5))
    data = from_arrays([RNG.integers(0, 255, (50, 1, 4, 5)).astype(np.uint8)], [masks])
    outputs = RNG.normal(size=(10, 3, 4, 5))
    found, wanted = counted(data, outputs), data.test_labels.numpy().ravel()
    guesses = outputs.argmax(axis=1).ravel()
    union = metrics.jaccard_score(wanted, guesses, average="macro")
    assert found.figures["mean_iou"] == pytest.approx(union)
    assert found.accuracy == metrics.accuracy_score(wanted, guesses)
    with pytest.raises(InputError, match=r"expected outputs \[N, 2, 4, 5\]"):
        counted(data, outputs[:, :1])
