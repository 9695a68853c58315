"""`--meaning` of commands that read a quantized .tflite file."""

from __future__ import annotations

import json

import pytest

from tflite_files import Net

OWN = "tflite:tflm-2026-10"
PRINTED = f"{OWN}, the bits of tflite-micro 0.dev20261013214400 to 0.dev20261023182759"


@pytest.fixture
def path(tmp_path):
    net = Net(5)
    flat = net.reshape(net.input(1, 1, 8, 8), 1, 64)
    file = tmp_path / "f.tflite"
    file.write_bytes(net.bytes(net.dense(flat, 10)))
    return file


def test_commands_print_the_meaning(path, samebits, tmp_path):
    given = [path, "--meaning", "tflite"]
    shown = samebits("inspect", *given)
    assert f"\nmeaning: {PRINTED}\n" in shown.out
    assert shown.err == f"note: {path}: read in the meaning {PRINTED}\n"
    assert json.loads(samebits("inspect", *given, "--json").out)["meaning"] == OWN
    assert "\nmeaning: exact, every result rounded once\n" in samebits("inspect", path).out
    assert samebits("report", *given, "--out", tmp_path / "page.html").code == 0
    assert f"Read in the meaning {PRINTED}." in (tmp_path / "page.html").read_text()


def test_commands_compute_in_the_meaning(path, samebits, tmp_path):
    given = [path, "--meaning", "tflite"]
    checked = samebits("verify", *given, "--data", "random:2")
    assert checked.code == 0
    assert "onnxruntime-integer" in checked.out
    assert "integer" in samebits("eval", *given, "--data", "digits").out
    trace = samebits("trace", *given, "--data", "random:1", "--out", tmp_path / "t.json")
    assert "2 layers, 1 runs" in trace.out


def test_a_meaning_that_does_not_apply(samebits, tmp_path):
    found = samebits("eval", tmp_path, "--data", "digits", "--meaning", "tflite")
    assert found.code == 2
    assert "meaning does not apply to such a source, found tflite; leave it out" in found.err
