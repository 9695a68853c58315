"""Forms of samples, and what is refused. Images are tested through the loaders."""

from __future__ import annotations

import pytest
import torch

from samebits.data import Dataset
from samebits.errors import InputError

LABELS = torch.tensor([0, 1, 2])
NAMES = ("a", "b", "c")


def dataset(samples: torch.Tensor) -> Dataset:
    return Dataset(samples, LABELS, samples[:2], LABELS[:2], NAMES)


def test_sequences_of_every_code():
    codes = torch.arange(-(2**15), 2**15).short().repeat(3, 1)[:, :, None]
    data = dataset(codes)
    assert data.input_shape == (2**16, 1)
    batch = data.batch("train", torch.tensor([1]))
    assert (batch.double() * 2**15).flatten().tolist() == list(range(-(2**15), 2**15))


def test_texts():
    data = dataset(torch.tensor([[0, 2], [1, 1], [2, 0]], dtype=torch.uint8))
    assert data.input_shape == (2, 3)
    assert data.batch("test", torch.tensor([0])).tolist() == [[[1, 0, 0], [0, 0, 1]]]
    assert data.limited(1).train_images.tolist() == data.train_images.tolist()


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((3, 5), torch.int8, "uint8 or int16"),
        ((3, 5, 2), torch.uint8, "int16"),
        ((3, 5, 2), torch.float32, "int16"),
        ((3, 1, 5, 2), torch.int16, "uint8 or float32"),
    ],
)
def test_dtypes_of_another_form_are_refused(shape, dtype, expected):
    with pytest.raises(InputError) as caught:
        dataset(torch.zeros(shape, dtype=dtype))
    assert str(caught.value) == (
        f"data: expected train samples {list(shape)} of {expected}, found {dtype}"
    )


def test_axes_and_codes_are_checked():
    with pytest.raises(InputError) as caught:
        dataset(torch.zeros(3, dtype=torch.uint8))
    assert str(caught.value) == (
        "data: expected train images [N, C, H, W], sequences [N, T, F], rows [N, F] or texts "
        "[N, T] and int64 labels [N], or of each place of texts, found [3] and torch.int64 [3]"
    )
    with pytest.raises(InputError, match=r"data: expected train codes in 0\.\.2"):
        dataset(torch.full((3, 4), 3, dtype=torch.uint8))
