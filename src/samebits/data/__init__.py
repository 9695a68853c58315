"""Samples and labels for training: digits, folders of images or recordings, archives, texts."""

from samebits.data.dataset import Dataset
from samebits.data.load import load

__all__ = ["Dataset", "load"]
