"""Reports: one content as text for a terminal and as a page for a browser or notebook."""

from __future__ import annotations

import html
import re

import pytest

from samebits.errors import InputError, SamebitsError
from samebits.reports.html import Figure, Table
from samebits.reports.report import Report, Reported, printable, section

SVG = b"<svg xmlns='http://www.w3.org/2000/svg'/>"
TABLE = Table(
    ("layer", "bytes", "SQNR dB", "note"),
    [
        ("conv", "1,024", "41.3", "first"),
        ("a rather long name", "7", "-3", ""),
        ("x", "", "0", "<"),
    ],
    "What it costs",
)
REPORT = Report(
    "Net & more",
    "in <b>short</b>",
    [section("one", "two", TABLE), section(Figure(SVG, "a <drawing>"), "below", title="Pictures")],
)


class Named(Reported):
    def report(self):
        return REPORT


def test_the_text_is_aligned_and_whole():
    """Numbers to the right, texts to the left, no space at the end of a line."""
    assert str(REPORT) == (
        "Net & more\n"
        "in <b>short</b>\n"
        "\n"
        "one\n"
        "two\n"
        "What it costs\n"
        "layer               bytes  SQNR dB  note\n"
        "conv                1,024     41.3  first\n"
        "a rather long name      7       -3\n"
        "x                                0  <\n"
        "\n"
        "Pictures\n"
        "below"
    )


def test_long_cells_are_not_cut_off():
    sha = "0123456789abcdef" * 16
    text = str(Report("t", "", [section(Table(("hash", "n"), [(sha, "1"), ("b", "22")]))]))
    assert text.splitlines()[3] == f"{sha}   1"
    assert text.splitlines()[4] == "b" + " " * 257 + "22"


def test_little_is_shown_as_little():
    assert str(Report("only a title")) == "only a title"
    assert str(Report("", "", [section("text")])) == "text"
    assert str(Report("t", "", [section(), section("text")])) == "t\n\ntext"
    assert str(Report("t", "", [section(Table(("a", "bc"), []))])) == "t\n\na  bc"


def test_control_characters_of_files_do_not_reach_the_terminal():
    assert printable("größe 3\x1b[2J\r\n\u202e") == "größe 3\\x1b[2J\\r\\n\\u202e"
    table = Table(("name",), [("x\x1b]0;title\x07",)])
    assert str(Report("t", "", [section(table)])) == "t\n\nname\nx\\x1b]0;title\\x07"


def test_the_page_escapes_all_text(tmp_path):
    path = REPORT.save(tmp_path / "page.html")
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "<title>Net &amp; more</title>" in page
    assert "in &lt;b&gt;short&lt;/b&gt;" in page
    assert "a &lt;drawing&gt;" in page
    assert "&lt;</td>" in page
    assert "<b>" not in page
    assert page.count("<script") == 1  # the page's own
    words = {word for row in TABLE.rows for cell in row for word in cell.split()}
    assert words <= set(re.split(r"[\s<>]+", html.unescape(page))) | {"<"}


def test_other_names_are_text(tmp_path):
    for name in ("report.txt", "report", "REPORT.TXT"):
        path = REPORT.save(tmp_path / name)
        assert path == tmp_path / name
        assert path.read_text(encoding="utf-8") == f"{REPORT}\n"
    assert REPORT.save(str(tmp_path / "x.html")) == tmp_path / "x.html"
    assert REPORT.save(tmp_path / "x.htm").read_bytes() == (tmp_path / "x.html").read_bytes()


@pytest.mark.parametrize("ending", [".pdf", ".png", ".json", ".md"])
def test_no_file_has_an_ending_of_what_it_is_not(tmp_path, ending):
    with pytest.raises(InputError) as caught:
        REPORT.save(tmp_path / f"page{ending}")
    assert str(caught.value) == (
        f"{tmp_path}/page{ending}: expected a name ending in .html, for a page, or .txt, for text, "
        f"found {ending}; write the page, and print it from a browser"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path):
    assert REPORT.save(tmp_path / "new" / "page").is_file()
    with pytest.raises(SamebitsError, match=r"page/page\.html: cannot be written"):
        REPORT.save(tmp_path / "new" / "page" / "page.html")


def test_a_notebook_shows_the_page_in_a_frame():
    """The page's style does not reach the notebook."""
    shown = REPORT._repr_html_()
    match = re.fullmatch(r'<iframe srcdoc="([^"<>]*)" style="[^"]*"></iframe>', shown)
    assert match is not None
    page = html.unescape(match[1])
    assert page.startswith("<!doctype html>")
    assert "in &lt;b&gt;short&lt;/b&gt;" in page


def test_what_has_a_report_prints_as_it():
    assert str(Named()) == str(REPORT)
    assert Named()._repr_html_() == REPORT._repr_html_()
    for shown in (REPORT, Named()):  # in IPython's terminal too
        assert shown._repr_mimebundle_(include=None, exclude=None) == {"text/plain": str(REPORT)}
    with pytest.raises(NotImplementedError):
        Reported().report()
