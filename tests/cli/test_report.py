"""`samebits report`, and `--report` of the commands that make something."""

from __future__ import annotations

import json

import pytest

PLAN = ("plan", "--arch", "mlp", "--batch", 4, "--input", "1,6,6", "--classes", 3)


def page_of(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    return text


def test_a_page_and_a_text(samebits, shelf, tmp_path):
    page = tmp_path / "page.html"
    done = samebits("report", shelf["quantized"], "--out", page)
    assert (done.code, done.out) == (0, f"written: {page}\n")
    assert "Layer by layer" in page_of(page)
    done = samebits("report", shelf["quantized"], "--data", "random:4")
    assert done.code == 0
    assert "same bits: yes" in done.out


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("run", "Weights over the epochs"),
        ("floatrun", "A run in float32 has no codes"),
        ("firmware", "What waits for what"),
        ("float", "A float network has no bits to compare"),
    ],
)
def test_every_kind_has_a_page(kind, wanted, samebits, shelf, tmp_path):
    done = samebits("report", shelf[kind], "--out", tmp_path / "page.html")
    assert done.code == 0, done.err
    assert wanted in page_of(tmp_path / "page.html")


def test_bad_input_is_a_sentence(samebits, shelf):
    done = samebits("report", shelf["none"])
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    done = samebits("report", shelf["quantized"], "--board", "abacus")
    assert done.code == 2
    assert "expected one of cortex-m0" in done.err
    done = samebits("report", shelf["quantized"], "--seed", 3)
    assert done.code == 2
    assert "--seed 3: expected samples random:N, which it draws, found none" in done.err


@pytest.mark.parametrize("command", ["report", "profile"])
@pytest.mark.parametrize("name", ["page.pdf", "page.png", "page.html.gz"])
def test_an_ending_of_something_else_is_told_before_the_work(command, name, samebits, tmp_path):
    done = samebits(command, tmp_path / "none.onnx", "--out", tmp_path / name)
    assert done.code == 2
    assert "expected a name ending in .html or .htm or .txt or nothing" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("report",), ("profile",), ("trace", "--data", "random:1")])
def test_a_file_that_cannot_be_written_is_told_before_the_work(command, samebits, tmp_path):
    """No model is there, which would be told first otherwise."""
    (tmp_path / "file").touch()
    told = {
        tmp_path / "file" / "deep" / "x.html": f"expected a folder {tmp_path / 'file'}, found a",
        tmp_path: f"expected a file to write, found the folder {tmp_path}",
    }
    for out, text in told.items():
        done = samebits(command[0], tmp_path / "none.onnx", *command[1:], "--out", out)
        assert (done.code, done.out) == (2, "")
        assert text in " ".join(done.err.replace("│", " ").split())


def test_plans(samebits, tmp_path):
    made = samebits(*PLAN, "--out", tmp_path / "plan.json", "--report", tmp_path / "made.html")
    assert made.code == 0, made.err
    assert made.out.endswith(f"written: {tmp_path / 'made.html'}\n")
    page = page_of(tmp_path / "made.html")
    assert "Memory over the time of a pass" in page
    read = samebits("report", tmp_path / "plan.json", "--out", tmp_path / "read.html")
    assert read.code == 0
    assert "The file of a plan holds no times" in page_of(tmp_path / "read.html")


def test_quantize_and_compile(samebits, shelf, tmp_path):
    options = ("--data", shelf["samples"], "--out", tmp_path / "q.onnx")
    made = samebits("quantize", shelf["float"], *options, "--report", tmp_path / "q.html")
    assert made.code == 0, made.err
    page = page_of(tmp_path / "q.html")
    assert "SQNR is against the float network" in page
    assert f"samebits report {tmp_path / 'q.onnx'} --data" in page
    options = ("--no-sizes", "--out", tmp_path / "c", "--report", tmp_path / "c.html")
    made = samebits("compile", tmp_path / "q.onnx", *options, "--json")
    assert json.loads(made.out)["out"] == str(tmp_path / "c")
    assert "Generated C" in page_of(tmp_path / "c.html")
    options = ("--target", "npu", "--out", tmp_path / "npu", "--report", tmp_path / "npu.html")
    assert samebits("compile", shelf["float"], *options).code == 0
    assert "What waits for what" in page_of(tmp_path / "npu.html")


def test_train(samebits, shelf, tmp_path):
    options = ("--epochs", 1, "--out", tmp_path / "run", "--report", tmp_path / "run.html")
    made = samebits("train", "--data", shelf["data"], "--arch", "mlp", *options)
    assert made.code == 0, made.err
    assert f"written: {tmp_path / 'run.html'}" in made.err
    assert "Weights after every epoch" in page_of(tmp_path / "run.html")


def test_another_ending_is_refused_before_any_work(samebits, shelf, tmp_path):
    options = ("--out", tmp_path / "c", "--report", tmp_path / "page.txt")
    done = samebits("compile", shelf["quantized"], *options)
    assert done.code == 2
    assert "expected a name ending in .html" in done.err
    assert not (tmp_path / "c").exists()
