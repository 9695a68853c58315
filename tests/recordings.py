"""WAV files that tests share: triangle waves with noise, made of integers."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np


def tone(seed: int, length: int = 1500) -> np.ndarray:
    """A triangle wave with noise, in integers."""
    rng = np.random.default_rng(seed)
    n = np.arange(length) * (7 + seed % 11)
    return (abs(n % 400 - 200) * 90 - 9000 + rng.integers(-300, 300, length)).astype(np.int16)


def write_wav(path: Path, samples: np.ndarray, rate: int = 8000, channels: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(samples.astype("<i2").tobytes())
    return path


def split_folder(root: Path, rate: int = 8000) -> Path:
    """3 training and 2 test recordings of 2 classes, of different lengths."""
    for split, count in (("train", 3), ("test", 2)):
        for label in ("no", "yes"):
            for i in range(count):
                samples = tone(10 * i + len(label), 1200 + 128 * i)
                write_wav(root / split / label / f"{i}.wav", samples, rate)
    return root
