"""The first sentence of a page, for every outcome of a comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from samebits.reports.html import Command, Fold, Status, Table
from samebits.reports.page.matrix import MatrixCell, matrix_of
from samebits.reports.page.verdict import BackendsCompared, verdict_section, verdict_sentence
from samebits.verification.compare import Verdict

SAME = Verdict("torch", total=3590, sample_count=359, sha256="ab" * 32)
C = replace(SAME, backend="c")
WRONG = replace(C, differing=7, samples=3)
MAY = Verdict("onnxruntime", 65, 3590, 13, 359, note="scale 0.3 is no power of two")
SKIPPED = Verdict("cortex-m3", skipped="expected arm-none-eabi-gcc; install it")


def sentence(*verdicts):
    return verdict_sentence(BackendsCompared("reference", 359, "digits", verdicts))


def test_the_sentence_of_every_outcome():
    assert sentence(SAME, C, SKIPPED) == (
        "good",
        "The same bits: reference, torch and c computed 3,590 outputs of 359 samples, and all are "
        "equal.",
    )
    assert sentence(SAME, WRONG) == (
        "bad",
        "Not the same bits: c in 7 of 3,590 outputs differ.",
    )
    assert sentence(SAME, MAY) == (
        "good",
        "2 backends computed the same 3,590 outputs of 359 samples; onnxruntime in 65 outputs may "
        "differ, and does.",
    )
    assert sentence(SKIPPED)[0] == "open"
    assert sentence()[0] == "open"


def blocks(source, kind, compared):
    return verdict_section(source, kind, "cd" * 32, compared).blocks


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A network in the current folder; pages name what is there alone."""
    monkeypatch.chdir(tmp_path)
    Path("my net.onnx").touch()
    return "my net.onnx"


def lines(found):
    return next(block for block in found if isinstance(block, Command)).lines


def test_a_comparison_names_the_command_that_repeats_it(file):
    compared = BackendsCompared("reference", 10, "random:10", [SAME, SKIPPED], seed=3)
    found = blocks(file, "quantized network", compared)
    assert lines(found) == [
        "samebits verify 'my net.onnx' --data random:10 --backends torch --seed 3"
    ]
    table = BackendsCompared("reference", 10, "t.csv", [SAME], {"target": ["p", "q q"]})
    assert lines(blocks(file, "quantized network", table)) == [
        "samebits verify 'my net.onnx' --data t.csv --backends torch --target 'p,q q'"
    ]
    comma = BackendsCompared("reference", 10, "t.csv", [SAME], {"target": ["p,q"]})
    assert lines(blocks(file, "quantized network", comma)) == [
        "network.verify(sb.read('t.csv', target=['p,q']), ['torch'])"
    ]
    assert found[0] == Status(*verdict_sentence(compared))
    (fold,) = (block for block in found if isinstance(block, Fold))
    assert fold.title == "Not compared: 1"
    tables = [block for block in found if isinstance(block, Table)]
    assert tables[0].rows == [("integer graph in PyTorch", "0 of 3,590", "0 of 359", "ab" * 8)]
    assert tables[1].rows[1] == ("SHA-256 of the quantized network", "cd" * 32)


def test_what_has_no_file_is_repeated_from_python(file):
    compared = BackendsCompared("reference", 10, "random:10", [SAME, SKIPPED], seed=3)
    found = blocks("Sequential", "quantized network", compared)
    assert lines(found) == ["network.verify('random:10', ['torch'], seed=3)"]
    arrays = BackendsCompared("reference", 10, "", [SAME])
    assert lines(blocks(file, "quantized network", arrays)) == [
        "network.verify(samples, ['torch'])"
    ]


def test_nothing_compared_is_said_with_the_command(file):
    found = blocks(file, "quantized network", None)
    assert found[0] == Status("open", "Nothing was compared for this page.")
    assert lines(found) == ["samebits report 'my net.onnx' --data random:100 --out page.html"]
    assert lines(blocks(file, "float network", None)) == [
        "samebits quantize 'my net.onnx' --data X.npz --out Q.onnx"
    ]
    assert lines(blocks("Sequential", "float network", None)) == ["sb.quantize(network, samples)"]
    assert lines(blocks("Sequential", "quantized network", None)) == [
        'network.report("random:100").save("page.html")'
    ]


def test_backends_by_models():
    found = matrix_of({"the CNN": [SAME, WRONG, SKIPPED], "the LSTM": [SAME, MAY]})
    assert found.columns == ["the CNN", "the LSTM"]
    names, cells = zip(*found.rows, strict=True)
    assert names[0] == "integer graph in PyTorch"
    assert [[cell.text for cell in row] for row in cells] == [
        ["same", "same"],
        ["differs", ""],
        ["not compared", ""],
        ["", "may differ"],
    ]
    assert cells[2][0] == MatrixCell("open", "not compared", SKIPPED.skipped)
