"""From recordings to answers in C: the same as in Python, whatever their length."""

from __future__ import annotations

import subprocess
import wave

import numpy as np
import pytest
import torch
from torch import nn

import samebits as sb
from samebits.codegen import sound
from samebits.codegen.raw import raw_of
from samebits.data.audio import LogMel, log_mel
from samebits.data.recordings import fit
from samebits.errors import InputError

LENGTHS = (256, 300, 900, 2000, 2176, 2177, 4000, 7001)  # of frames of 256 every 128; 16 are taken


def write(path, samples, rate):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())


@pytest.fixture(scope="module", params=[8000, 16000])
def heard(request, tmp_path_factory):
    """A network of tones at a rate, trained in block floating point, and the folder of new ones."""
    folder, rng = tmp_path_factory.mktemp("sound"), np.random.default_rng(0)
    rate = request.param
    per = rate // 8000

    def tone(hertz, count):
        wave_ = np.sin(2 * np.pi * hertz * np.arange(count) / rate) * rng.uniform(500, 20000)
        return np.rint(wave_ + rng.normal(0, 100, count)).clip(-32768, 32767)

    for number in range(12):
        for name, hertz in (("low", 300), ("high", 1900)):
            part = "train" if number < 9 else "test"
            count = 2176 * per - 128 * per * (number % 3)
            write(folder / "data" / part / name / f"{number}.wav", tone(hertz, count), rate)
    for number, count in enumerate(LENGTHS):
        write(folder / "new" / f"{number}.wav", tone(300 + 1600 * (number % 2), count * per), rate)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(16 * 32, 8), nn.ReLU(), nn.Linear(8, 2))
    run = sb.fit(folder / "data", module, folder / "run", epochs=4, batch=6, threads=1)
    return sb.load(run.folder, arch=module), folder / "new"


def test_recordings_in_c_are_those_of_python(heard, tmp_path):
    """Short ones behind silence, the middle of long ones; 0 differences in codes and answers."""
    net, new = heard
    found = net.verify(new, ["torch", "c"], raw=True)
    assert found.same_bits, str(found)
    assert found.samples == len(LENGTHS)
    answer = net.predict(new)
    assert np.array_equal(found.outputs["answer"][:, 1], answer.chosen)
    assert set(answer.answers) <= {"high", "low"}
    net.compile(tmp_path / "c")
    again = sb.load(tmp_path / "c").verify(new, ["c"], raw=True)
    assert again.same_bits
    assert np.array_equal(again.outputs["answer"], found.outputs["answer"])


def test_a_package_tests_itself_and_refuses_less_than_a_frame(heard, tmp_path):
    net, _ = heard
    net.compile(tmp_path / "c")
    made = subprocess.run(
        ["make", "-sC", tmp_path / "c", "test", "OPTIMIZE=-O0 -Werror"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert made.stdout.startswith("0 of "), made.stderr
    frame = LogMel.at(net.model.rate).frame
    (tmp_path / "c/test/model_main.c").write_text(
        '#include <stdio.h>\n#include "../model.h"\nMODEL_INSTANCE(net);\n'
        "static model_answer_t answer;\nstatic int16_t samples[1024];\nint main(void) {\n"
        f'    printf("%d %d %d %d\\n", model_predict(&net, samples, {frame - 1}u, &answer),\n'
        f"           model_predict(&net, samples, {frame}u, &answer), MODEL_RAW_RATE,\n"
        "           model_predict_selftest(&net, &answer));\n    return 0;\n}\n"
    )
    subprocess.run(["make", "-sC", tmp_path / "c", "model", "OPTIMIZE=-O0"], check=True)
    done = subprocess.run([tmp_path / "c/model"], capture_output=True, text=True, check=True)
    assert done.stdout == f"1 0 {net.model.rate} 0\n"


def test_what_is_no_recording_is_refused(heard):
    net, _ = heard
    with pytest.raises(InputError, match="expected recordings as files, in the units of the contr"):
        net.verify(np.zeros((2, 16, 32), np.float32), ["c"], raw=True)


def test_rows_hold_recordings_of_any_length():
    settings = LogMel.at(8000)
    rng = np.random.default_rng(1)
    long = rng.integers(-3000, 3000, 70_000).astype(np.int16)  # more than 16 bits can count
    rows = sound.packed([long, long[:400]], len(long))
    found = sound.features(rows, settings, 20)
    for made, samples in zip(found, (long, long[:400]), strict=True):
        assert np.array_equal(made, fit(log_mel(samples, settings), 20))


def test_the_noise_of_a_self_test_is_heard():
    """Of any rate neither silence nor clipped."""
    for rate in (8000, 16000):
        codes = log_mel(sound.noise(LogMel.at(rate)), LogMel.at(rate))
        assert len(codes) == sound.MORE + 1
        assert len(np.unique(codes)) > 80


def test_a_network_of_other_features_has_none(heard):
    net, _ = heard
    assert "recordings" in str(raw_of(net.model.integer, net.contract, None))
    assert "recordings" in str(raw_of(net.model.integer, net.contract, 44100))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cortex-m0-large", "cortex-m3", "cortex-m55"])
def test_recordings_on_boards_are_those_of_python(heard, backend):
    net, new = heard
    assert net.verify(new, [backend], raw=True)
