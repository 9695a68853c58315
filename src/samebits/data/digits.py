"""The 1,797 handwritten digits (8x8, codes 0..16) that scikit-learn carries: works offline."""

from __future__ import annotations

import numpy as np
import torch

from samebits.data.dataset import Dataset, unsplit
from samebits.errors import InputError

NAME = "digits"


def load_digits() -> Dataset:
    """1,438 training and 359 test images [1, 8, 8]; every fifth sample is a test sample."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise InputError(
            "the digits data comes with scikit-learn, which is not installed; "
            "run: pip install scikit-learn"
        ) from error
    bunch = datasets.load_digits()
    images = torch.from_numpy(np.asarray(bunch.images).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(np.asarray(bunch.target).astype(np.int64))
    return unsplit(images, labels, tuple(map(str, range(10))), NAME, peak=16)
