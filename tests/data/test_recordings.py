"""Folders of WAV recordings, made here from integer sines and noise."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from compare import assert_same
from recordings import split_folder, tone, write_wav
from samebits.data import load, recordings
from samebits.data.audio import LogMel, log_mel
from samebits.data.folder import is_test_name
from samebits.data.recordings import MAX_SECONDS, fit, read_wav
from samebits.errors import InputError
from samebits.spec import audio


def message(root: Path, **options: int) -> str:
    with pytest.raises(InputError) as caught:
        load(str(root), **options)
    return str(caught.value)


# --- files --------------------------------------------------------------------------------------


def test_samples_come_back(tmp_path):
    x = tone(1)
    samples, rate = read_wav(write_wav(tmp_path / "a.wav", x, 16000))
    assert rate == 16000
    assert samples.dtype == np.int16
    assert samples.tolist() == x.tolist()


@pytest.mark.parametrize("channels", [2, 3, 8])
def test_channels_are_mixed(tmp_path, channels):
    x = np.random.default_rng(1).integers(-32768, 32768, (500, channels)).astype(np.int16)
    samples, _ = read_wav(write_wav(tmp_path / "a.wav", x, channels=channels))
    assert samples.tolist() == audio.mono(x.T.tolist())


def damaged(path: Path, change) -> str:
    data = bytearray(write_wav(path, tone(1)).read_bytes())
    path.write_bytes(bytes(change(data)))
    with pytest.raises(InputError) as caught:
        read_wav(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def patched(offset: int, code: str, value: int):
    def change(data: bytearray) -> bytearray:
        struct.pack_into(code, data, offset, value)
        return data

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda data: b"", "corrupt or not a WAV file of 16-bit PCM (EOFError"),
        (lambda data: b"hello", "corrupt or not a WAV file of 16-bit PCM"),
        (lambda data: data[:30], "corrupt or not a WAV file of 16-bit PCM"),
        (lambda data: data[:40], "corrupt or not a WAV file of 16-bit PCM"),
        (lambda data: data[:44], "expected 1500 samples as its header says, found 0: truncated"),
        (lambda data: data[:-3], "expected 1500 samples as its header says, found 1498: trunc"),
        (patched(20, "<H", 3), "corrupt or not a WAV file of 16-bit PCM (Error: unknown format: 3"),
        (patched(34, "<H", 8), "expected 16-bit PCM, found 8 bits; convert it"),
        (patched(34, "<H", 24), "expected 16-bit PCM, found 24 bits; convert it"),
        (patched(24, "<I", 44100), "expected 8000 or 16000 samples per second, found 44100"),
        (patched(22, "<H", 9), "expected 1..8 channels, found 9"),
        (patched(22, "<H", 0), "corrupt or not a WAV file of 16-bit PCM"),
        (patched(40, "<I", 0), "expected a recording, found no sample; remove it"),
        (patched(40, "<I", 0xFFFFFFFE), "expected at most 60 seconds, found 268435.5; cut it"),
    ],
)
def test_bad_files_are_named(tmp_path, change, text):
    assert damaged(tmp_path / "bad.wav", change).startswith(text)


def extended(data: bytes, kind: bytes) -> bytes:
    """A WAV file of 16-bit PCM with the header of WAVE_FORMAT_EXTENSIBLE."""
    plain = data[20:36]
    chunk = b"\xfe\xff" + plain[2:] + struct.pack("<HHI", 22, 16, 0) + kind
    body = b"WAVE" + b"junk\x03\0\0\0abc\0" + b"fmt \x28\0\0\0" + chunk + data[36:]
    return b"RIFF" + struct.pack("<I", len(body)) + body


GUID = bytes.fromhex("0100000000001000800000aa00389b71")


def test_an_extended_header(tmp_path):
    """As sound editors and phones write 16-bit PCM too."""
    path = write_wav(tmp_path / "a.wav", tone(3))
    expected = read_wav(path)
    path.write_bytes(extended(path.read_bytes(), GUID))
    found = read_wav(path)
    assert found[1] == expected[1] == 8000
    assert_same(found[0], expected[0], range(1500))
    path.write_bytes(extended(write_wav(path, tone(3)).read_bytes(), b"\3" + GUID[1:]))
    with pytest.raises(InputError, match=r"not a WAV file .* \(Error: unknown format: 6"):
        read_wav(path)


def test_a_file_beyond_the_longest_recording_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(recordings, "LARGEST_FILE", 1000)
    path = write_wav(tmp_path / "a.wav", tone(3))
    with pytest.raises(InputError, match=r"expected at most 1000 bytes \(60 seconds\), found 3044"):
        read_wav(path)


def test_every_cut_and_many_flips_end_in_a_message_or_samples(tmp_path):
    path = write_wav(tmp_path / "a.wav", tone(1, 20))
    whole = path.read_bytes()
    rng = np.random.default_rng(4)
    for case in range(len(whole) + 400):
        data = bytearray(whole[:case])
        if case >= len(whole):
            data = bytearray(whole)
            data[rng.integers(44)] = rng.integers(256)
        path.write_bytes(data)
        message = ""
        try:
            samples, rate = read_wav(path)
        except InputError as error:
            message = str(error)
        good = not message and 0 < len(samples) <= 20 and rate in (8000, 16000)
        assert good or message.startswith(f"{path}: "), (case, message)


def test_the_longest_recording(tmp_path):
    limit = MAX_SECONDS * 8000
    assert len(read_wav(write_wav(tmp_path / "a.wav", np.zeros(limit)))[0]) == limit
    with pytest.raises(InputError, match="expected at most 60 seconds"):
        read_wav(write_wav(tmp_path / "b.wav", np.zeros(limit + 1)))


# --- length -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 49, 50, 51, 99, 100, 101])
def test_length_that_98_percent_do_not_exceed(count):
    lengths = np.random.default_rng(count).permutation(count).tolist()
    steps = audio.steps_for(lengths)
    assert sum(n <= steps for n in lengths) * 100 >= 98 * count
    assert sum(n <= steps - 1 for n in lengths) * 100 < 98 * count


@pytest.mark.parametrize("length", range(1, 12))
def test_fit_is_the_definition(length):
    codes = np.arange(2 * length, dtype=np.int16).reshape(length, 2)
    for steps in range(1, 9):
        expected = audio.fitted(codes.tolist(), steps, 2)
        assert fit(codes, steps).tolist() == expected
        assert len(expected) == steps


# --- folders ------------------------------------------------------------------------------------


def test_split_folder(tmp_path):
    data = load(str(split_folder(tmp_path)))
    assert data.class_names == ("no", "yes")
    assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test_labels.tolist() == [0, 0, 1, 1]
    assert data.train_images.dtype == torch.int16
    assert data.input_shape == (10, 32)  # of the longest: 1456 samples
    codes = audio.log_mel(tone(12, 1328).tolist(), LogMel())
    assert data.train_images[1].tolist() == audio.fitted(codes, 10, 32)
    assert data.train_images[1, 0].tolist() == [-32639] * 32
    assert data.test_images[3].tolist() == audio.fitted(
        log_mel(tone(13, 1328), LogMel()).tolist(), 10, 32
    )
    assert load(str(tmp_path)).sha256() == data.sha256()


def test_batch_is_exact(tmp_path):
    data = load(str(split_folder(tmp_path)))
    batch = data.batch("train", torch.tensor([2, 0]))
    assert batch.dtype == torch.float32
    assert (batch.double() * 2**15).tolist() == data.train_images[[2, 0]].double().tolist()


def test_sixteen_kilohertz(tmp_path):
    data = load(str(split_folder(tmp_path, 16000)))
    assert data.input_shape == (4, 32)
    expected = log_mel(tone(12, 1328), LogMel.at(16000))
    assert data.train_images[1].tolist() == fit(expected, 4).tolist()


def test_unsplit_folder_splits_by_hash_of_the_name(tmp_path):
    names = [f"{index:03d}.WAV" for index in range(40)]
    for label in "ab":
        for index, name in enumerate(names):
            write_wav(tmp_path / label / name, tone(index, 300))
    data = load(str(tmp_path), limit=5)
    assert len(data.test_labels) == 2 * sum(map(is_test_name, names)) > 0
    assert len(data.train_labels) == 10


def test_frames_of_a_model(tmp_path):
    split_folder(tmp_path)
    for steps in (1, 8, 10, 30, 3749):
        data = load(str(tmp_path), input_shape=(steps, 32))
        codes = log_mel(tone(12, 1328), LogMel())
        assert data.train_images[1].tolist() == fit(codes, steps).tolist()
    assert load(str(tmp_path), input_shape=(1, 8, 8)).input_shape == (10, 32)
    for steps in (0, 3750):
        with pytest.raises(
            InputError, match=f"expected a model of 1..3749 frames, found one of {steps}"
        ):
            load(str(tmp_path), input_shape=(steps, 32))


def test_recordings_that_do_not_belong_are_named(tmp_path):
    split_folder(tmp_path)
    first, odd = tmp_path / "train/no/0.wav", tmp_path / "test/yes/0.wav"
    write_wav(odd, tone(1), 16000)
    assert message(tmp_path) == (
        f"{odd}: expected 8000 samples per second like {first}, found 16000; convert "
        "them, or give --resample to bring all recordings to 16000"
    )
    write_wav(odd, tone(1, 255))
    assert message(tmp_path) == (
        f"{odd}: expected at least one frame of 256 samples, found 255; remove it"
    )
    odd.write_bytes(b"RIFF")
    assert message(tmp_path).startswith(f"{odd}: corrupt or not a WAV file")


def test_folders_of_images_and_recordings_are_refused(tmp_path):
    split_folder(tmp_path)
    picture = tmp_path / "test/yes/9.png"
    picture.write_bytes(b"")
    first = tmp_path / "train/no/0.wav"
    assert message(tmp_path) == (
        f"{picture}: expected WAV audio like {first}, found an image; keep images and recordings "
        "in folders of their own"
    )
    first.with_name("-.png").write_bytes(b"")
    assert f"{first}: expected an image like {first.with_name('-.png')}, found WAV audio" in (
        message(tmp_path, limit=1)
    )


# --- spoken digits ------------------------------------------------------------------------------

DIGITS = Path(os.environ.get("SAMEBITS_DATA", "")) / "fsdd.tar"


@pytest.mark.slow
@pytest.mark.skipif(not DIGITS.is_file(), reason="needs fsdd.tar in the folder $SAMEBITS_DATA")
def test_spoken_digits_hash_the_same_in_every_process(tmp_path):
    with tarfile.open(DIGITS) as archive:
        archive.extractall(tmp_path, filter="data")
    program = "import sys; from samebits.data import load; print(load(sys.argv[1]).sha256())"
    found = [
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "fsdd")],
            env={**os.environ, "OMP_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "4")
    ]
    assert found[0] == found[1] != ""
    data = load(str(tmp_path / "fsdd"))
    assert data.input_shape == (50, 32)
    assert (len(data.train_labels), len(data.test_labels)) == (2050, 350)
