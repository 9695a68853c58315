"""Data sets of a user's own functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from samebits.data import from_arrays, load
from samebits.errors import InputError
from samebits.recipes.reading import Reading

SOURCE = """
import numpy as np
import torch
from PIL import Image
from torch.utils.data import TensorDataset
from samebits.data import from_arrays

x = torch.arange(60.0).reshape(20, 3)
y = torch.arange(20) % 2

def pair():
    return TensorDataset(x[:15], y[:15]), TensorDataset(x[15:], y[15:])

def whole():
    return [(row.numpy(), int(label)) for row, label in zip(x, y)]

def pictures():
    image = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return [(Image.fromarray(image + i), i % 2) for i in range(20)]

def ready():
    return from_arrays([x.numpy()], [y.numpy()])

def uneven():
    return [(np.zeros(3 + i), 0) for i in range(5)]

def alone():
    return [x[0], x[1]]

def fails():
    raise RuntimeError("no disk")

def number():
    return 3

def empty():
    return []
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return str(path)


def test_two_datasets_are_training_and_test(file):
    data = load(f"{file}:pair")
    assert (len(data.train_labels), len(data.test_labels), data.input_shape) == (15, 5, (3,))
    x = np.arange(60.0).reshape(20, 3)
    wanted = from_arrays([x[:15], x[15:]], [np.arange(15) % 2, np.arange(15, 20) % 2])
    assert data.train_images.equal(wanted.train_images)
    assert data.test_labels.equal(wanted.test_labels)


def test_one_dataset_is_split(file):
    data = load(f"{file}:whole")
    assert (len(data.train_labels), len(data.test_labels)) == (16, 4)


def test_images_of_pillow(file):
    data = load(f"{file}:pictures")
    assert (data.input_shape, data.train_images.dtype) == ((3, 4, 5), torch.uint8)


def test_a_dataset_is_taken_as_it_is(file):
    assert load(f"{file}:ready").input_shape == (3,)
    with pytest.raises(InputError, match=r"--task does not apply to a samebits\.data\.Dataset"):
        load(f"{file}:ready", options=Reading(task="regression"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("uneven", "samples: expected float64 [3] as the first, found float64 [4] at 1"),
        ("alone", "expected pairs (sample, label), found Tensor at 0"),
        ("fails", "calling it failed (RuntimeError: no disk)"),
        ("number", "expected a map-style dataset of (sample, label) pairs, two of them"),
        ("empty", "samples: expected at least one, found none"),
        ("nothing", "expected a callable in"),
    ],
)
def test_what_is_wrong_is_named(file, name, text):
    with pytest.raises(InputError) as caught:
        load(f"{file}:{name}")
    assert str(caught.value).startswith(f"--data {file}:{name}")
    assert text in str(caught.value)
