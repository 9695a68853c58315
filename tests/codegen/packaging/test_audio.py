"""Generated feature extractors against the numpy ones, on every target and for every chunk size."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from compare import assert_same
from hand_package import skip_unless_available
from samebits.codegen.packaging.audio import texts, write_audio
from samebits.codegen.run.execute import Executable, build, execute, instruction_count
from samebits.codegen.run.footprint import float_symbols, stack_bound
from samebits.codegen.run.interface import Interface
from samebits.codegen.run.targets import SANITIZERS, TARGETS, Target, host, valgrind
from samebits.data.audio import LogMel, log_mel, short_codes
from samebits.errors import InputError
from samebits.ir import Value

SETTINGS = {
    "8k": LogMel(),
    "16k": LogMel.at(16000),
    "padded": LogMel(8000, 200, 80, 512, 20, 0, 3000),
    "short": LogMel(8000, 16, 3, 16, 2, 60, 4000),
    "longest": LogMel(16000, 1024, 1024, 2048, 64, 0, 8000),
}
HOSTS = [
    host("gcc", "-O0"),
    host("gcc", "-O3", "-Wshadow", "-pedantic"),
    host("gcc", "-O1", *SANITIZERS),
    host("clang", "-O2"),
]
ALIKE = ("cortex-m4", "cortex-m7", "cortex-m33")  # the same C as for the M3
BOARDS = [
    pytest.param(target, marks=pytest.mark.slow) if target.name in ALIKE else target
    for target in TARGETS.values()
    if target.board
]
REST = [TARGETS["aarch64"], TARGETS["s390x"], TARGETS["riscv64"], valgrind()]


def stream(settings: LogMel, frames: int) -> np.ndarray:
    """Every level from silence to the ends of the range, steady and changing."""
    length = settings.frame + (frames - 1) * settings.hop + settings.hop // 2
    rng = np.random.default_rng(11)
    level = np.exp2(rng.integers(-1, 16, length // 50 + 1).repeat(50)[:length])
    samples = np.rint(rng.uniform(-1, 1, length) * level)
    loud = slice(length // 2, length // 2 + settings.frame)
    samples[loud] = np.where(np.arange(settings.frame) % 7 < 3, 40000, -40000)
    return np.clip(samples, -32768, 32767).astype(np.int16)


def package(settings: LogMel, folder: Path) -> Path:
    write_audio(settings, folder)
    return folder


def harness(settings: LogMel, samples: int, code: str = "int16") -> Interface:
    """The whole stream as one run of the package's own harness."""
    shape = (1, settings.frames(samples), settings.mels)
    return Interface("audio", (Value("x", "int16", (1, samples)),), (Value("y", code, shape),))


def check_on_host(
    target: Target, settings: LogMel, folder: Path, frames: int = 12, code: str = "int16"
) -> None:
    skip_unless_available(target)
    samples = stream(settings, frames)
    program = build(
        package(settings, folder / "package"), target, folder / "work",
        harness(settings, len(samples), code),
    )  # fmt: skip
    (found,) = execute(program, [samples[None]])
    expected = log_mel(samples, settings)
    expected = short_codes(expected) if code == "int8" else expected
    assert_same(found, expected, list(np.ndindex(expected.shape)))


# --- this machine -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("target", HOSTS, ids=lambda target: target.name)
def test_settings(target, name, tmp_path):
    check_on_host(target, SETTINGS[name], tmp_path)


@pytest.mark.parametrize("chunk", [1, 7, 127, 128, 129, 1000])
def test_chunks_change_nothing(chunk, tmp_path):
    target = TARGETS["c"].with_flags(f"-DCHUNK={chunk}", *SANITIZERS)
    check_on_host(target, LogMel(), tmp_path, frames=30)


def test_short_codes(tmp_path):
    check_on_host(TARGETS["c"].with_flags("-DSAMEBITS_SHORT"), LogMel(), tmp_path, code="int8")


@pytest.mark.slow
@pytest.mark.parametrize("target", REST, ids=lambda target: target.name)
def test_other_processors_and_unwritten_memory(target, tmp_path):
    check_on_host(target, LogMel.at(16000), tmp_path)


@pytest.mark.slow
def test_many_random_streams(tmp_path):
    target = TARGETS["c"]
    skip_unless_available(target)
    settings = LogMel()
    length = settings.frame + 99 * settings.hop
    interface = harness(settings, length)
    program = build(package(settings, tmp_path / "package"), target, tmp_path / "w", interface)
    for seed in range(100):
        rng = np.random.default_rng(seed)
        samples = rng.integers(-(1 << seed % 16), (1 << seed % 16), length).astype(np.int16)
        expected = log_mel(samples, settings)
        (found,) = execute(program, [samples[None]])
        assert_same(found, expected, [(seed, *index) for index in np.ndindex(expected.shape)])


def test_make_test_finds_no_difference_and_a_planted_one(cc, tmp_path):
    folder = package(LogMel(), tmp_path / "out")
    command = ["make", "-C", str(folder), "test", f"CC={cc}", "OPTIMIZE=-O1 -Werror"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 512 features differ" in done.stdout
    source = folder / "samebits/samebits_audio_frame.h"
    text = source.read_text()
    rounded = "samebits_round64(v, 20)"
    assert text.count(rounded) == 1
    # halves up, not to even: no difference
    source.write_text(text.replace(rounded, "((v + 0x80000u) >> 20)"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    source.write_text(text.replace(rounded, "((v + 0xfffffu) >> 20)"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert re.search(r"^[1-9]\d* of 512 features differ$", done.stdout, re.MULTILINE)


# --- boards -------------------------------------------------------------------------------------

CHUNK = 100
WRAPPER_HEADER = """
#include "audio.h"
#define CHUNK {chunk}
typedef int16_t model_input0_t;
typedef int16_t model_output0_t;
typedef uint32_t model_output1_t;
typedef struct {{
    int unused;
}} model_t;
#define MODEL_INSTANCE(name) static const model_t name = {{0}}
void model_run(const model_t *net, const model_input0_t *samples, model_output0_t *features,
               model_output1_t *frames);
"""
WRAPPER = """
#include "model.h"
void model_run(const model_t *net, const model_input0_t *samples, model_output0_t *features,
               model_output1_t *frames) {
    static audio_state state;
    static int started;
    (void)net;
    if (!started) audio_reset(&state);
    started = 1;
    *frames = audio_push(&state, samples, CHUNK, features);
}
"""


def board_program(
    target: Target, settings: LogMel, folder: Path, chunk: int
) -> tuple[Executable, int]:
    """A program whose runs are the pieces of one stream, and the most frames of a piece."""
    skip_unless_available(target)
    most = -(-chunk // settings.hop)
    interface = Interface(
        "model",
        (Value("x", "int16", (1, chunk)),),
        (Value("y", "int16", (1, most, settings.mels)), Value("n", "uint32", (1, 1))),
    )
    source = package(settings, folder / "package")
    (source / "model.h").write_text(WRAPPER_HEADER.format(chunk=chunk))
    (source / "model.c").write_text(WRAPPER)
    return build(source, target, folder / "work", interface), most


@pytest.mark.parametrize("name", ["8k", "16k", "short"])
@pytest.mark.parametrize("target", BOARDS, ids=lambda target: target.name)
def test_boards(target, name, tmp_path):
    settings = SETTINGS[name]
    program, most = board_program(target, settings, tmp_path, CHUNK)
    samples = stream(settings, 12 + 6 * CHUNK // settings.hop)
    samples = samples[: len(samples) // CHUNK * CHUNK]
    features, counts = execute(program, [samples.reshape(-1, CHUNK)])
    assert 0 < int(counts.max()) <= most
    found = np.concatenate([f[:n] for f, (n,) in zip(features, counts.tolist(), strict=True)])
    expected = log_mel(samples, settings)
    assert_same(found, expected, list(np.ndindex(expected.shape)))
    assert float_symbols(program) == []
    assert stack_bound(program, "audio_push").bytes <= 512  # a quarter of the smallest board's


def test_instructions_of_a_frame_do_not_depend_on_its_size_in_the_stream(tmp_path):
    target = TARGETS["cortex-m3"]
    settings = LogMel()
    program, _ = board_program(target, settings, tmp_path, settings.hop)
    samples = stream(settings, 6)
    samples = samples[: len(samples) // settings.hop * settings.hop].reshape(-1, settings.hop)
    counts = instruction_count(program, [samples])
    assert counts[0] < 10_000 < min(counts[1:])  # the first piece completes no frame


# --- text ---------------------------------------------------------------------------------------


def test_files_and_report(tmp_path):
    folder = package(LogMel(), tmp_path / "out")
    found = [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()]
    assert sorted(found) == sorted(texts(LogMel()))
    report = json.loads((folder / "report.json").read_text())
    assert report["features"] == {
        "rate": 8000, "frame": 256, "hop": 128, "fft": 256, "mels": 32, "low": 60, "high": 4000,
    }  # fmt: skip
    assert (report["constants"], report["state"]) == (1258, 1544)
    for name, text in texts(LogMel()).items():
        assert not re.search("@[A-Za-z]+@", text), name
        assert "float" not in text.replace("no floating", ""), name
        assert "double" not in text, name
    for name in ("audio.h", "audio.c", "test/audio_main.c", "test/audio_vectors.h"):
        assert all(len(line) <= 100 for line in texts(LogMel())[name].splitlines()), name


def test_prefix(cc, tmp_path):
    write_audio(LogMel(), tmp_path / "out", prefix="ears")
    done = subprocess.run(
        ["make", "-C", str(tmp_path / "out"), "test", f"CC={cc}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "0 of 512 features differ" in done.stdout
    with pytest.raises(InputError, match="prefix of the generated C"):
        write_audio(LogMel(), tmp_path / "bad", prefix="9")
    write_audio(LogMel.at(16000), tmp_path / "out")  # an earlier package is replaced
    assert not (tmp_path / "out/ears.h").exists()
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("x")
    with pytest.raises(InputError, match="found other files"):
        write_audio(LogMel(), tmp_path / "out")
