"""Images and labels for training: bundled digits, image folders, NPZ archives."""

from samebits.data.dataset import Dataset
from samebits.data.load import load

__all__ = ["Dataset", "load"]
