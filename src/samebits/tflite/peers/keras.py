"""Keras models, by TensorFlow's own converter in a child process, where tensorflow is installed."""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from samebits.csrc import ANSWER, WORK, run_tool
from samebits.entrance import read
from samebits.errors import InputError
from samebits.tflite.peers import convert
from samebits.tflite.peers.process import PYTHON, SHOWN

SUFFIX = ".keras"
MAX_FILE = 2**31 - 1  # the longest that a converted one may be


def is_convertible() -> bool:
    """Whether tensorflow is in this Python, or in the one that is named."""
    return _has_tensorflow(os.environ.get(PYTHON, ""))


@cache
def _has_tensorflow(python: str) -> bool:
    if not python:
        return find_spec("tensorflow") is not None
    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('tensorflow') is None)"
    try:
        return run_tool([python, "-I", "-c", ask], ANSWER).returncode == 0
    except (OSError, InputError):
        return False


def converted(path: Path) -> bytes:
    """The bytes of a model as a TensorFlow Lite file, for one sample at a time.

    Raises InputError with the converter's words where it gives none, for a file that cannot be
    read, and as `run_tool`.
    """
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name) / f"model{SUFFIX}", Path(name) / "model.tflite"
        try:
            source.write_bytes(read(path, MAX_FILE))
        except OSError as error:
            raise InputError(
                f"{path}: expected a readable file, found {error}; give the path of a {SUFFIX} file"
            ) from None
        if not zipfile.is_zipfile(source):  # Keras would take it by its content, HDF5 among others
            raise InputError(
                f"{path}: expected a zip archive, as Keras 3 saves models, found another file; a "
                "model in HDF5 could run code: save it again, by model.save('model.keras'), where "
                "you trust it"
            )
        python = os.environ.get(PYTHON, "") or sys.executable
        try:
            run = run_tool([python, "-I", convert.__file__, str(source), str(target)], WORK)
        except InputError:  # its time is over
            raise InputError(
                f"{path}: expected TensorFlow to convert the model within {WORK:g} seconds, found "
                "it still at work; convert it to a .tflite file yourself"
            ) from None
        if run.returncode or not target.is_file():
            said = " ".join(run.stderr.split())[-SHOWN:] or "nothing"
            raise InputError(
                f"{path}: expected a model that TensorFlow converts, found exit code "
                f"{run.returncode}: {said}; convert it to a .tflite file yourself"
            )
        return read(target, MAX_FILE)
