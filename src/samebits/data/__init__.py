"""Samples and labels for training: tables, images, recordings, arrays, texts, data of one's own."""

from samebits.data.arrays import from_arrays
from samebits.data.dataset import Dataset
from samebits.data.load import load, load_files, load_samples, options_of

__all__ = [
    "Dataset",
    "from_arrays",
    "load",
    "load_files",
    "load_samples",
    "options_of",
]
