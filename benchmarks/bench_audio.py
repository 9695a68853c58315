"""Time of log-mel features in integers against floating point, and their cost on boards.

Contenders, one thread, in the same run: the generated C (-O3) and numpy, both with the bits of
docs/spec/audio.md; and what a user would pick instead, torch.stft with a mel product and log2, in
float32. A minute of noise is turned into features; the least of several rounds counts.

    python benchmarks/bench_audio.py --out runs/bench_audio.json
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from machine import write_record
from samebits.codegen.packaging.audio import write_audio
from samebits.codegen.run import toolchain
from samebits.codegen.run.execute import build, instruction_count
from samebits.codegen.run.footprint import object_sizes
from samebits.codegen.run.interface import Interface
from samebits.codegen.run.targets import TARGETS
from samebits.data.audio import Codes, LogMel, log_mel
from samebits.ir import Value

SECONDS, ROUNDS = 60, 7
BOARDS = ("cortex-m0", "cortex-m3", "cortex-m55")
WRAPPER = """
#include "audio.h"
typedef int16_t model_input0_t;
typedef int16_t model_output0_t;
typedef struct {
    int unused;
} model_t;
#define MODEL_INSTANCE(name) static const model_t name = {0}
void model_run(const model_t *net, const model_input0_t *samples, model_output0_t *features);
"""
RUN = """
#include "model.h"
void model_run(const model_t *net, const model_input0_t *samples, model_output0_t *features) {
    static audio_state state;
    (void)net;
    audio_reset(&state);
    (void)audio_push(&state, samples, AUDIO_FRAME, features);
}
"""


def generated(settings: LogMel, samples: Codes, folder: Path) -> Callable[[], Codes]:
    """The package as a shared library."""
    write_audio(settings, folder / "audio")
    compiler = toolchain.host_compiler().path
    assert compiler is not None
    sources = [str(folder / "audio" / name) for name in ("audio.c", "samebits/samebits_audio.c")]
    library = folder / "audio.so"
    flags = ("-std=c99", "-O3", "-march=native", "-shared", "-fPIC")
    subprocess.run([compiler, *flags, "-o", str(library), *sources], check=True)
    loaded = ctypes.CDLL(str(library))
    state = ctypes.create_string_buffer(4 * settings.fft + 2 * settings.frame + 8)
    features = np.empty((settings.frames(len(samples)), settings.mels), np.int16)

    def run() -> Codes:
        loaded.audio_reset(state)
        loaded.audio_push(
            state,
            samples.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_uint32(len(samples)),
            features.ctypes.data_as(ctypes.c_void_p),
        )
        return features

    return run


def floating(settings: LogMel, samples: Codes) -> Callable[[], torch.Tensor]:
    """torch.stft, power, mel product, log2, in float32."""
    window = torch.hann_window(settings.frame)
    weights = torch.zeros(settings.mels, settings.fft // 2 + 1)
    for row, (first, codes) in zip(weights, settings.weights, strict=True):
        row[first : first + len(codes)] = torch.tensor(codes) * 2.0**-15
    x = torch.from_numpy(samples)

    def run() -> torch.Tensor:
        spectrum = torch.stft(
            x.float(), settings.fft, settings.hop, settings.frame, window,
            center=False, return_complex=True,
        )  # fmt: skip
        return torch.log2((weights @ spectrum.abs().square()).clamp_min(1e-6))

    return run


def least(contenders: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds of the fastest round of each."""
    times = {name: float("inf") for name in contenders}
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name] = min(times[name], time.perf_counter() - start)
    return times


def on_boards(settings: LogMel, frame: Codes, folder: Path) -> dict[str, Any]:
    """Instructions of one frame, and bytes of code and constants."""
    source = folder / "package"
    write_audio(settings, source)
    (source / "model.h").write_text(WRAPPER)
    (source / "model.c").write_text(RUN)
    interface = Interface(
        "model",
        (Value("x", "int16", (1, settings.frame)),),
        (Value("y", "int16", (1, settings.mels)),),
    )
    found: dict[str, Any] = {}
    for name in BOARDS:
        reason = TARGETS[name].unavailable()
        if reason is not None:
            found[name] = {"skipped": reason}
            continue
        program = build(source, TARGETS[name], folder / name, interface)
        sizes = object_sizes(program)
        found[name] = {
            "instructions": instruction_count(program, [frame[None]])[0],
            "flash": sum(sizes[f"{part}.o"].flash for part in ("audio", "samebits_audio")),
        }
    return found


def main() -> None:
    """Print a line per contender and board; write everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for rate in (8000, 16000):
        settings = LogMel.at(rate)
        samples = np.random.default_rng(0).integers(-9000, 9000, SECONDS * rate).astype(np.int16)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            c = generated(settings, samples, folder)
            if not np.array_equal(c(), log_mel(samples, settings)):
                raise SystemExit("the generated C and numpy differ")
            contenders: dict[str, Callable[[], Any]] = {
                "integer, C": c,
                "integer, numpy": partial(log_mel, samples, settings),
                "float32, torch.stft": floating(settings, samples),
            }
            seconds = least(contenders)
            boards = on_boards(settings, samples[: settings.frame], folder)
        results.append({"rate": rate, "audio_s": SECONDS, "seconds": seconds, "boards": boards})
        for contender, value in seconds.items():
            ratio = seconds["float32, torch.stft"] / value
            print(f"{rate:6} {contender:20} {1e3 * value:7.1f} ms   {ratio:4.2f} times torch")
        for board, entry in boards.items():
            text = entry.get("skipped") or f"{entry['instructions']:,} instructions a frame"
            print(f"{rate:6} {board:20} {text}, {entry.get('flash', 0):,} bytes of flash")
    if options.out is not None:
        write_record(options.out, results=results)


if __name__ == "__main__":
    main()
