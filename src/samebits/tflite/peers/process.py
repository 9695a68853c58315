"""A runtime of TensorFlow Lite files in a child process: where it is, and what it computes.

Runtimes are peers, not dependencies: another Python may hold them (`PYTHON`), and a file that ends
their process ends no other.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from samebits.csrc import ANSWER, WORK, run_tool
from samebits.errors import InputError, UnsupportedError
from samebits.files import read_archive
from samebits.tflite.file import Array
from samebits.tflite.peers import child
from samebits.tflite.peers.child import PACKAGES

PYTHON = "SAMEBITS_TFLITE_PYTHON"  # the variable that names a Python which has the runtimes
SHOWN = 400  # characters of what a runtime said
MODULES = {"tflite-micro": "tflite_micro", "ai-edge-litert": "ai_edge_litert"}


def missing(peer: str) -> str | None:
    """Why a runtime cannot run here, and what to do; None if it can."""
    found = _version(peer, os.environ.get(PYTHON, ""))
    return found if found.startswith(peer) else None


def version(peer: str) -> str:
    """The version of an available runtime's package, as its installer states it."""
    return _version(peer, os.environ.get(PYTHON, ""))


@cache
def _version(peer: str, python: str) -> str:
    """The version of the package, or a sentence that begins with the peer's name."""
    package = PACKAGES[peer]
    advice = f"pip install {package}, or name a Python that has it by ${PYTHON}"
    if not python and find_spec(MODULES[package]) is None:
        return f"{peer}: expected the package {package}; {advice}"
    try:
        run = run_tool([python or sys.executable, "-I", child.__file__, peer], ANSWER)
    except (OSError, InputError) as error:
        return f"{peer}: expected ${PYTHON} to be a Python, found {python!r} ({error}); {advice}"
    if run.returncode or not run.stdout:
        where = f"the Python {python}" if python else "this Python"
        return f"{peer}: expected the package {package} in {where}, found none; {advice}"
    return run.stdout


def computed(
    peer: str, data: bytes, inputs: Sequence[Array], wanted: Sequence[int], work: Path | None = None
) -> dict[int, Array]:
    """The wanted tensors of every run [runs, ...], by number.

    inputs: [runs, *shape] of every input of the file; what it keeps from run to run is kept.
    work:   a folder for what is exchanged; None for the system's

    Raises UnsupportedError with the runtime's words where it refuses the file or ends its process.
    """
    with tempfile.TemporaryDirectory(dir=work) as name:
        folder = Path(name)
        (folder / "model.tflite").write_bytes(data)
        np.save(folder / "wanted.npy", np.array(wanted, np.int64))
        for index, array in enumerate(inputs):
            np.save(folder / f"input{index}.npy", np.ascontiguousarray(array))
        python = os.environ.get(PYTHON, "") or sys.executable
        run = run_tool([python, "-I", child.__file__, peer, name], WORK)
        found = folder / "found.npz"
        if run.returncode or not found.is_file():
            said = " ".join((run.stdout + run.stderr).split())[-SHOWN:] or "nothing"
            raise UnsupportedError(
                f"{peer} {version(peer)} refuses the file: exit code {run.returncode}, said: {said}"
            )
        return {int(number): array for number, array in read_archive(found).items()}
