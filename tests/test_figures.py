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
GOLDEN = Path(__file__).parent / "golden" / "findings"
FINDINGS = sorted(GOLDEN.glob("*.json"))


@pytest.fixture
def load(monkeypatch):
    """A module of tools/ or benchmarks/ by name."""
    for folder in ("tools", "benchmarks"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    before = set(sys.modules)
    yield importlib.import_module
    for name in ("figures", "findings", "machine", "records"):
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


def test_no_figure_begins_a_line(load):
    """There Markdown reads a comment as a block of its own, which ends the paragraph."""
    for path in load("figures").pages():
        lines = path.read_text(encoding="utf-8").splitlines()
        first = [line for line in lines if re.match(r"\s*<!-- record: .*<!-- /record -->", line)]
        assert first == [], path.name


# A number with a unit of measurement or many decimals, a hash.
TYPED = re.compile(r"[0-9a-f]{12}|\b\d[\d,]*(\.\d+)? ?(%|(us|ms|dB|MiB|KiB|M|nats)\b)|\b\d+\.\d{3}")
ROW = re.compile(r"^\| .*\b\d+\.\d\d")
NOT_TEXT = re.compile(r"(?m)^(    .*|```[\s\S]*?^```)$|`[^`\n]*`|\]\([^)]*\)")
# What a sentence promises or asks for, not what was measured.
BOUNDS = (
    "differ by less than 1 %",
    "learning rate of 0.003",
    "by 30 %, and",
    "within 5 %",
    "by 5 % or more in",
    "16 ms of sound",
)


GUIDES = ("docs/guide/alternatives.md", "docs/guide/numerics.md")


@pytest.mark.parametrize("page", ["README.md", "docs/results.md", *GUIDES])
def test_pages_of_figures_type_none(load, page):
    """Neither in tables nor in sentences; code, and bounds of tests in words, may."""
    text = load("figures").MARK.sub("", (ROOT / page).read_text(encoding="utf-8"))
    lines = NOT_TEXT.sub("", text).splitlines()
    typed = [line for line in lines if TYPED.search(line) or ROW.search(line)]
    assert [line for line in typed if not any(bound in line for bound in BOUNDS)] == []
    if page == "docs/results.md":
        assert [line for line in text.splitlines() if line.startswith("| ")] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_record_says_where_it_comes_from(name, load):
    record = read(name)
    kind = name.removesuffix(".json")
    command = load("records").KINDS[kind][0]
    assert record["command"] == f".venv/bin/python {command}"
    first = command.removeprefix("-m pytest ").split()[0]
    assert first.startswith("-") or (ROOT / first).is_file()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["measured"])
    assert record["figures"] or record["tables"]
    assert {"cpu", "cores", "torch"} <= record["machine"].keys()
    assert not record["figures"].keys() & record["tables"].keys()
    for table in record["tables"].values():
        assert table["rows"]
        assert all(len(row) == len(table["columns"]) for row in table["rows"])


def test_every_record_is_shown(load):
    """On a page; one that none shows is dead."""
    figures = load("figures")
    text = "".join(path.read_text(encoding="utf-8") for path in figures.pages())
    assert {found[0] for found in figures.MARK.findall(text)} == set(NAMES)
    assert {name.removesuffix(".json") for name in NAMES} == set(load("records").KINDS)


# --- marks ----------------------------------------------------------------------------------------


@pytest.fixture
def records(tmp_path):
    record = {
        "measured": "2026-11-24",
        "machine": {"cpu": "C", "cores": 2, "torch": "2.13.0", "load_average": [1.5, 1, 1]},
        "figures": {"a": 1234, "b": "0.50", "c": "0a3f1325ed7e"},
        "tables": {"t": {"columns": ["net", "n", "s"], "rows": [["x|y", "1,000", "2.5 %"]]}},
    }
    (tmp_path / "x.json").write_text(json.dumps(record))
    (tmp_path / "y.json").write_text(json.dumps(record))
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


def test_tables_are_filled(load, records):
    """With a line of when and where, and numbers to the right."""
    filled = load("figures").filled
    wanted = (
        "<!-- record: x.json t -->\n\n| net | n | s |\n| --- | --: | --: |\n"
        "| x\\|y | 1,000 | 2.5 % |\n\n"
        "*2026-11-24; C, 2 cores, torch 2.13.0, load 1.5.*\n\n<!-- /record -->\n"
    )
    assert filled("<!-- record: x.json t -->\nold\n<!-- /record -->\n", records) == wanted
    assert filled(wanted, records) == wanted


def test_a_mark_of_nothing_is_refused(load, records):
    filled = load("figures").filled
    with pytest.raises(
        SystemExit, match=r"z\.json: no such record; expected one of x\.json, y\.json"
    ):
        filled("<!-- record: z.json a --><!-- /record -->", records)
    with pytest.raises(SystemExit, match="no figure 'd'; expected one of a, b, c, t"):
        filled("<!-- record: x.json d --><!-- /record -->", records)


@pytest.mark.parametrize(
    "text",
    [
        "<!-- record: x.json a -->9 A paragraph. <!-- record: x.json b --><!-- /record -->",
        "<!-- record: x.json a -->9 <!-- /record --> A paragraph. <!-- /record -->",
    ],
)
def test_a_mark_without_its_end_swallows_no_text(load, records, text):
    with pytest.raises(SystemExit, match="each mark with its end, found"):
        load("figures").filled(text, records)


# --- records of what benchmarks found -----------------------------------------------------------


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.stem)
def test_a_record_of_what_was_found(load, path):
    """Of what the benchmark wrote, shortened: figures and tables as they are kept here."""
    case = json.loads(path.read_text(encoding="utf-8"))
    made = load("records").record(path.stem, *case["found"])
    assert made["figures"] == case["figures"]
    assert made["tables"] == case["tables"]
    machine = case["found"][0]["machine"]
    assert (made["measured"], made["machine"]) == (machine["date"], machine)


def test_a_record_is_written(load, monkeypatch, tmp_path, capsys):
    records = load("records")
    monkeypatch.setattr(records, "RECORDS", tmp_path)
    case = json.loads((GOLDEN / "inference.json").read_text(encoding="utf-8"))
    found = tmp_path / "found.json"
    found.write_text(json.dumps(case["found"][0]))
    monkeypatch.setattr(sys, "argv", ["records.py", "inference", str(found)])
    records.main()
    assert json.loads((tmp_path / "inference.json").read_text())["figures"] == case["figures"]
    assert "make docs" in capsys.readouterr().out


def test_what_pytest_writes_is_read(load, tmp_path):
    """Counts, seconds, and properties of tests, which are JSON."""
    path = tmp_path / "found.xml"
    path.write_text(
        '<testsuites><testsuite tests="4" failures="1" errors="0" skipped="1" time="62.4">'
        '<testcase name="a[1]" time="1.5"><properties><property name="bits.8" value="[1, 2]"/>'
        '</properties></testcase><testcase name="b" time="2"/></testsuite></testsuites>'
    )
    records = load("records")
    found = records.read(path)
    assert found["properties"] == {"bits.8": [1, 2]}
    assert found["seconds"] == {"a[1]": 1.5, "b": 2.0}
    figures = records.record("suite", found)["figures"]
    assert figures == {"passed": 2, "failed": 1, "skipped": 1, "time": "1:02"}
    again = {**found, "total_seconds": 3600.0}  # another piece of the run
    figures = records.record("suite", found, again)["figures"]
    assert figures == {"passed": 4, "failed": 2, "skipped": 2, "time": "1:01:02"}


def test_what_failed_makes_no_record(load):
    records = load("records")
    found = {"counts": {"passed": 5, "failed": 2}}
    with pytest.raises(SystemExit, match="exponents: expected tests that pass, found 2 that"):
        records.check("exponents", found)
    records.check("suite", found)  # which says how many


def test_tallies_of_fuzzing_are_read(load, tmp_path):
    path = tmp_path / "report.json"
    tallies = [
        {"name": "wav", "accepted": 1500, "refused": 500, "defects": {"memory": "a file"}},
        {"name": "pt2", "accepted": 2, "refused": 3, "defects": {}},
    ]
    path.write_text(json.dumps(tallies))
    records = load("records")
    made = records.record("fuzz", records.read(path))
    assert made["figures"] == {"defects": 1}
    rows = [["wav", "2,000", "1,500"], ["pt2", "5", "2"], ["all", "2,005", "1,502"]]
    assert made["tables"]["readers"]["rows"] == rows
