"""WAV recordings as log-mel features of one length. docs/spec/audio.md sections 2 and 6."""

from __future__ import annotations

import io
import os
import struct
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from samebits import ledger
from samebits.data.audio import RATES, SILENCE, Codes, LogMel, log_mel, mono
from samebits.data.decode import decoding, in_threads
from samebits.data.resample import HIGHEST, LOWEST, ratio, resampled
from samebits.entrance import opened
from samebits.errors import InputError
from samebits.spec.audio import steps_for

MAX_SECONDS, MAX_CHANNELS = 60, 8
LARGEST_FILE = MAX_SECONDS * MAX_CHANNELS * 2 * HIGHEST + (1 << 20)
TAKES = ("resample",)
WORK = 16  # bytes of memory for one of a file, while features are made of it
RESAMPLE = "convert them, or give --resample to bring all recordings to 16000"
# Of the chunk "fmt ": its tag, and in an extended one the GUID of the samples' kind (mmreg.h).
PCM, EXTENSIBLE = b"\x01\x00", b"\xfe\xff"
PCM_KIND = bytes.fromhex("0100000000001000800000aa00389b71")


def read_wav(path: Path, resample: bool = False, within: Path | None = None) -> tuple[Codes, int]:
    """int16 samples [n] of a 16-bit PCM WAV file, its channels mixed to one, and their rate.

    resample: bring it to 16 kHz from any rate that `ratio` takes (audio.md 7)
    within: the folder that a user named, where the file is one inside it

    Raises InputError naming the file if it is anything else, damaged, empty or longer than 60 s.
    """
    with (
        decoding(path, "a WAV file of 16-bit PCM", "convert, replace or remove it"),
        opened(path, within=within) as stored,
        ledger.hold(WORK * os.fstat(stored.fileno()).st_size, str(path)),
        _plain(path, stored) as file,
        wave.open(file) as sound,
    ):
        rate, count = sound.getframerate(), sound.getnframes()
        channels, width = sound.getnchannels(), sound.getsampwidth()
        _check_header(path, rate, count, channels, width, resample)
        data = sound.readframes(count)
    if len(data) != count * channels * width:
        raise InputError(
            f"{path}: expected {count} samples as its header says, found "
            f"{len(data) // (channels * width)}: truncated; replace or remove it"
        )
    samples = np.frombuffer(data, "<i2").astype(np.int16).reshape(count, channels)
    if resample:
        return resampled(mono(samples), rate), max(RATES)
    return mono(samples), rate


def _plain(path: Path, stored: BinaryIO) -> BinaryIO:
    """A WAV file with an extended header (WAVE_FORMAT_EXTENSIBLE) of PCM as one with a plain
    header, which is all that `wave` reads; other files as they are. Raises InputError for a file
    larger than the longest recording."""
    size = os.fstat(stored.fileno()).st_size
    if size > LARGEST_FILE:
        raise InputError(
            f"{path}: expected at most {LARGEST_FILE} bytes ({MAX_SECONDS} seconds), found {size}; "
            "cut it"
        )
    data = bytearray(stored.read())
    at = 12  # after RIFF, its size and WAVE: chunks of a name, a size and so many bytes
    while at + 8 <= len(data):
        name, length = struct.unpack_from("<4sI", data, at)
        if name == b"fmt ":
            tag, kind = data[at + 8 : at + 10], data[at + 32 : at + 48]
            if tag == EXTENSIBLE and kind == PCM_KIND:
                data[at + 8 : at + 10] = PCM
            break
        at += 8 + length + length % 2
    return io.BytesIO(data)


def _check_header(
    path: Path, rate: int, count: int, channels: int, width: int, resample: bool
) -> None:
    """Raise InputError for a recording of a kind, rate or length that features are not made of."""
    if width != 2:
        raise InputError(f"{path}: expected 16-bit PCM, found {8 * width} bits; convert it")
    if resample and ratio(rate) is None:
        raise InputError(
            f"{path}: expected {LOWEST} to {HIGHEST} samples per second in a ratio of numbers up "
            f"to 1000 to {max(RATES)}, found {rate}; resample it"
        )
    if not resample and rate not in RATES:
        raise InputError(
            f"{path}: expected {' or '.join(map(str, RATES))} samples per second, found {rate}; "
            f"{RESAMPLE}"
        )
    if not 1 <= channels <= MAX_CHANNELS:
        raise InputError(f"{path}: expected 1..{MAX_CHANNELS} channels, found {channels}")
    if count > MAX_SECONDS * rate:
        raise InputError(
            f"{path}: expected at most {MAX_SECONDS} seconds, found {count / rate:.1f}; cut it"
        )
    if count == 0:
        raise InputError(f"{path}: expected a recording, found no sample; remove it")


def load_recordings(
    train: Sequence[Path],
    test: Sequence[Path],
    steps: int | None = None,
    resample: bool = False,
    within: Path | None = None,
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Features of the files of each split, q0.15 codes int16 [N, T, mels], and their rate.

    The settings are those of `LogMel.at` the rate; T is `steps`, or what the training files suggest
    (`spec.audio.steps_for`).

    Raises InputError naming the first file that is bad, of another rate, or shorter than a frame.
    """
    paths = [*train, *test]
    settings = LogMel.at(read_wav(paths[0], resample, within)[1])
    longest = settings.frames(MAX_SECONDS * settings.rate)
    if steps is not None and not 1 <= steps <= longest:
        raise InputError(
            f"{paths[0]}: expected a model of 1..{longest} frames, found one of {steps}; give data "
            "of the kind the model was trained on"
        )

    def features(path: Path) -> Codes:
        samples, rate = read_wav(path, resample, within)
        if rate != settings.rate:
            raise InputError(
                f"{path}: expected {settings.rate} samples per second like {paths[0]}, found "
                f"{rate}; {RESAMPLE}"
            )
        if len(samples) < settings.frame:
            raise InputError(
                f"{path}: expected at least one frame of {settings.frame} samples, found "
                f"{len(samples)}; remove it"
            )
        codes = log_mel(samples, settings)
        ledger.keep(2 * codes.nbytes, str(path))  # they are kept, and made one array
        return codes

    codes = in_threads(features, paths)
    steps = steps or steps_for([len(c) for c in codes[: len(train)] or codes])
    fitted = torch.stack([torch.from_numpy(fit(c, steps)) for c in codes])
    return fitted[: len(train)], fitted[len(train) :], settings.rate


def fit(codes: Codes, steps: int) -> Codes:
    """Features [steps, mels]: silence before a short recording, the middle of a long one."""
    start = max(0, (len(codes) - steps) // 2)
    kept = codes[start : start + steps]
    silence = np.full((steps - len(kept), codes.shape[1]), SILENCE, np.int16)
    return np.concatenate([silence, kept])
