"""A voice-activity detector that a package of PyPI ships, and streams of spoken digits for it."""

from __future__ import annotations

import importlib.util
import io
import os
import tarfile
import wave
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samebits.data.resample import resampled

Array = np.ndarray[Any, Any]

DIGITS = Path(os.environ.get("SAMEBITS_DATA", "")) / "fsdd.tar"
CHUNK, CONTEXT = 512, 64  # samples of a call at 16 kHz, and those of the call before
OPTIONS: dict[str, Any] = {
    "set": {"sr": 16000},
    "shapes": {"input": (1, CONTEXT + CHUNK), "state": (2, 1, 128)},
}


def path() -> Path:
    """The file of silero-vad; skips where the package or the recordings are not there."""
    found = importlib.util.find_spec("silero_vad")
    if found is None or not found.submodule_search_locations:
        pytest.skip("silero-vad is not installed; `make .venv/.stamp-detector` installs it")
    if not DIGITS.is_file():
        pytest.skip("needs fsdd.tar in the folder $SAMEBITS_DATA")
    return Path(found.submodule_search_locations[0]) / "data/silero_vad.onnx"


@cache
def _recordings() -> list[Array]:
    """Spoken digits at 16 kHz, binary64 in [-1, 1]."""
    found = []
    with tarfile.open(DIGITS) as archive:
        for name in sorted(archive.getnames()):
            if name.endswith(".wav"):
                file = archive.extractfile(name)
                assert file is not None
                with wave.open(io.BytesIO(file.read())) as recording:
                    codes = np.frombuffer(recording.readframes(recording.getnframes()), "<i2")
                    found.append(
                        resampled(codes.astype(np.int16), recording.getframerate()) / 2**15
                    )
    return found


def streams(count: int, steps: int, seed: int) -> Array:
    """Digits of several volumes with pauses and noise: float32 [count, steps, 1, 576]."""
    rng, digits = np.random.default_rng(seed), _recordings()
    found = np.empty((count, steps, 1, CONTEXT + CHUNK), np.float32)
    for stream in found:
        parts, length = [], 0
        while length < steps * CHUNK:
            digit = digits[rng.integers(len(digits))]
            digit = digit * (10 ** rng.uniform(-1.5, 0) / max(np.abs(digit).max(), 1e-9))
            parts += [digit, np.zeros(int(rng.uniform(0.2, 1.2) * 16000))]
            length += sum(map(len, parts[-2:]))
        sound = np.concatenate(parts)[: steps * CHUNK]
        sound = sound + rng.standard_normal(len(sound)) * 10 ** rng.uniform(-4, -2)
        padded = np.concatenate([np.zeros(CONTEXT), np.clip(sound, -1, 1)])
        for step in range(steps):
            stream[step, 0] = padded[step * CHUNK : (step + 1) * CHUNK + CONTEXT]
    return found
