"""Figures of pages: taken from records, which say where they come from."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "docs" / "records"
NAMES = sorted(path.name for path in RECORDS.glob("*.json"))


@pytest.fixture
def load(monkeypatch):
    """A module of tools/ or benchmarks/ by name."""
    for folder in ("tools", "benchmarks"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    before = set(sys.modules)
    yield importlib.import_module
    for name in ("figures", "records"):
        if name not in before:
            sys.modules.pop(name, None)


def read(name):
    return json.loads((RECORDS / name).read_text(encoding="utf-8"))


def test_every_page_shows_the_figures_of_its_records(load):
    figures = load("figures")
    stale = [
        str(path.relative_to(ROOT))
        for path in figures.pages()
        if figures.filled(text := path.read_text(encoding="utf-8"), RECORDS) != text
    ]
    assert stale == [], "run: python tools/figures.py"


def test_every_mark_is_read(load):
    """One that is written wrongly would stay as it is."""
    figures = load("figures")
    for path in figures.pages():
        text = path.read_text(encoding="utf-8")
        assert text.count("<!-- record:") == len(figures.MARK.findall(text)), path.name
        assert text.count("<!-- record:") == text.count("<!-- /record -->"), path.name


def test_readme_types_no_figure(load):
    """Neither in the table of hashes nor in that of figures; names of nets and boards may."""
    text = load("figures").MARK.sub("", (ROOT / "README.md").read_text(encoding="utf-8"))
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) >= 13
    typed = r"[0-9a-f]{12}|\d+(?:\.\d+)? ?(?:%|us|ms|MiB|M\b)|\d\.\d\d"
    assert [row for row in rows if re.search(typed, row)] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_record_says_where_it_comes_from(name, load):
    record = read(name)
    kind = name.removesuffix(".json")
    command = load("records").KINDS[kind][0]
    assert record["command"] == f".venv/bin/python {command}"
    assert (ROOT / command.split()[0]).is_file()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["measured"])
    assert record["machine"]
    assert record["figures"]


@pytest.mark.parametrize("name", NAMES)
def test_transcribed_figures_stand_in_the_results(name):
    record = read(name)
    if "transcribed" not in record:
        assert record["machine"]["cpu"]
        return
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert [
        key
        for key, value in record["figures"].items()
        if not re.search(rf"(?<![\d.]){re.escape(str(value))}(?![\d.]*\d)", results)
    ] == []


# --- marks ----------------------------------------------------------------------------------------


@pytest.fixture
def records(tmp_path):
    figures = {"a": 1234, "b": "0.50", "c": "0a3f1325ed7e"}
    (tmp_path / "x.json").write_text(json.dumps({"figures": figures}))
    return tmp_path


def test_marks_are_filled(load, records):
    filled = load("figures").filled
    text = (
        "| <!-- record: x.json a {} us -->old<!-- /record --> | "
        "<!-- record: x.json b --><!-- /record --> <!-- record: x.json c -->d<!-- /record --> |"
    )
    wanted = (
        "| <!-- record: x.json a {} us -->1,234 us<!-- /record --> | "
        "<!-- record: x.json b -->0.50<!-- /record --> "
        "<!-- record: x.json c -->`0a3f1325ed7e`<!-- /record --> |"
    )
    assert filled(text, records) == wanted
    assert filled(wanted, records) == wanted


def test_a_mark_of_nothing_is_refused(load, records):
    filled = load("figures").filled
    with pytest.raises(SystemExit, match=r"y\.json: no such record; expected one of x\.json"):
        filled("<!-- record: y.json a --><!-- /record -->", records)
    with pytest.raises(SystemExit, match="no figure 'd'; expected one of a, b, c"):
        filled("<!-- record: x.json d --><!-- /record -->", records)


# --- records of what benchmarks found -----------------------------------------------------------


FOUND = {
    "same_bits": {
        "rows": [
            {"numerics": "bfp", "name": "2 threads", "sha256": "ab" * 32},
            {"numerics": "float32", "name": "2 threads", "sha256": "cd" * 32},
            {"numerics": "float32", "name": "1 thread", "sha256": "ef" * 32},
        ]
    },
    "inference": {
        "results": [
            {
                "model": "cnn",
                "seconds": {"ours int8": 48.4e-6, "onnxruntime int8 QDQ": 57e-6},
                "verdicts": [
                    {"backend": "c", "samples": 0, "sample_count": 50, "skipped": None},
                    {"backend": "torch", "samples": 0, "sample_count": 50, "skipped": None},
                    {"backend": "onnxruntime", "samples": 6, "sample_count": 50, "skipped": None},
                    {"backend": "x", "samples": 0, "sample_count": 0, "skipped": "no"},
                ],
            }
        ]
    },
    "train": {
        "results": [
            {
                "model": "mlp",
                "time": {"1": {"variants": {"bfp": {"ratio": {"median": 1.204}}}}},
                "memory": {"bfp": {"persistent_bytes_per_parameter": 5.0}},
            }
        ]
    },
    "evidence": {
        "lines": [
            {
                "line": "digits",
                "table": [
                    {"numerics": "bfp", "accuracy": 0.98761, "seeds": 5},
                    {"numerics": "msfp12", "accuracy": None, "seeds": 5},
                ],
            }
        ]
    },
    "cortex": {
        "rows": [
            {
                "network": "resnet8",
                "board": "cortex-m4",
                "ours": {"instructions": 13_500_000},
                "cmsis-nn": {"instructions": 27_000_000},
            },
            {"network": "tiny", "board": "cortex-m3", "ours": {"instructions": 1000}},
        ]
    },
    "edge": {
        "results": [
            {
                "net": "resnet8",
                "seconds": {"ours, native": 40e-6, "ours, avx2": 1.0, "LiteRT int8": 50e-6},
                "missing": {"onnxruntime int8": "not installed"},
            }
        ]
    },
}
FIGURES = {
    "same_bits": {
        "bfp.2-threads": "ab" * 6,
        "bfp.different": 1,
        "float32.2-threads": "cd" * 6,
        "float32.1-thread": "ef" * 6,
        "float32.different": 2,
    },
    "inference": {
        "cnn.ours.us": 48,
        "cnn.onnxruntime.us": 57,
        "cnn.differing.plain": 12,
        "cnn.differing.ours": 0,
    },
    "train": {"mlp.bfp.ratio": "1.20", "mlp.bfp.bytes": "5.00"},
    "evidence": {"digits.bfp": "98.76", "digits.seeds": 5},
    "cortex": {
        "resnet8.m4.ours": "13.500",
        "resnet8.m4.cmsis-nn": "27.000",
        "resnet8.m4.ratio": "0.500",
        "tiny.m3.ours": "0.001",
    },
    "edge": {
        "resnet8.ours.us": "40.0",
        "resnet8.ours.ratio": "1.00",
        "resnet8.litert.us": "50.0",
        "resnet8.litert.ratio": "1.25",
    },
}


@pytest.mark.parametrize("kind", FIGURES)
def test_a_record_of_what_was_found(load, kind):
    records = load("records")
    machine = {"date": "2026-11-24", "cpu": "x"}
    made = records.record(kind, {"machine": machine, **FOUND[kind]})
    assert made["figures"] == FIGURES[kind]
    assert (made["measured"], made["machine"]) == ("2026-11-24", machine)
    assert set(FIGURES) == set(records.KINDS)


def test_a_record_is_written(load, monkeypatch, tmp_path, capsys):
    records = load("records")
    monkeypatch.setattr(records, "RECORDS", tmp_path)
    found = tmp_path / "found.json"
    found.write_text(json.dumps({"machine": {"date": "2026-11-24"}, **FOUND["train"]}))
    monkeypatch.setattr(sys, "argv", ["records.py", "train", str(found)])
    records.main()
    assert json.loads((tmp_path / "train.json").read_text())["figures"] == FIGURES["train"]
    assert "make docs" in capsys.readouterr().out
