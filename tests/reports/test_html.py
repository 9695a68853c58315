"""Pages: all text is escaped, nothing comes from elsewhere, ids are named once."""

from __future__ import annotations

import base64
import hashlib
import re

from samebits.reports.html import (
    Command,
    Figure,
    Figures,
    Fold,
    Links,
    Paragraph,
    Section,
    Status,
    Table,
    render_page,
)
from samebits.reports.page.arena import ArenaBar, ArenaMap
from samebits.reports.page.drawing import Item, drawing
from samebits.reports.page.histogram import Histogram, Histograms, NamedHistogram
from samebits.reports.page.matrix import Matrix, MatrixCell
from samebits.reports.page.rows import LayerRow, LayerTable
from samebits.reports.plots import Curve, line_plot
from samebits.reports.report import Report

# What turns the direction of writing: U+061C, 200E, 200F, 202A to 202E, 2066 to 2069.
TURNING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
NASTY = "<script>alert('x')</script>\"&"


def every_block(text=NASTY):
    """One block of every kind, all of whose texts are this one."""
    histogram = Histogram([1, 0, 2], text, text)
    blocks = [
        Paragraph(text),
        Command([text, text]),
        Status("bad", text),
        Links([(text, text)]),
        Figures([(text, text, text)]),
        Table((text, "n"), [(text, "1")], caption=text, code=(text,), keys=["row-1"]),
        Figure(line_plot([Curve(NASTY, [1], [2])], x_title=NASTY, y_title="y"), text, text),
        drawing(text, {"a": Item(text, text, "row-1"), "b": Item(text)}, [("a", "b")]),
        ArenaMap([ArenaBar((text,), 0, 1, 0, 8, 1)], [8, 8], 8, 8),
        Histograms([NamedHistogram(text, text, histogram)]),
        Matrix([text], [(text, [MatrixCell("good", text, text)])]),
        LayerTable([(text, False)], [LayerRow("k", text, text, [text], histogram)], [""], True, 1),
    ]
    return [*blocks, Fold(text, blocks[:1], "fold-1")]


def page(text=NASTY):
    return render_page(text, text, [Section(text, every_block(text))])


def test_all_text_of_a_page_is_escaped():
    text = page()
    assert text.count("<script") == 1  # the page's own
    assert "<script>alert" not in text
    assert 'aria-label="&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&quot;&amp;"' in text


def test_nothing_turns_the_direction_of_writing():
    """Names that look like others, and control characters."""
    text = page(f"abc{TURNING}\x1b[2J\x85")
    assert not set(text) & set(f"{TURNING}\x1b\x85")
    assert "abc\\u061c\\u200e\\u200f\\u202a\\u202b\\u202c\\u202d\\u202e\\u2066" in text
    assert str(Report(f"größe\n{TURNING[-2:]}")) == "größe\n\\u2068\\u2069"


def test_the_policy_allows_the_script_of_the_page_and_no_other():
    text = page()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}';" in policy
    assert "base-uri 'none'" in policy


def test_nothing_comes_from_elsewhere():
    """Links lead into the page, to files beside it, or are data."""
    text = page()
    targets = re.findall(r'\b(?:src|href|action)="([^"]*)"', text)
    assert targets
    assert [t for t in targets if re.match(r"(?!data:)[a-z]+:|//", t)] == []
    assert "url(http" not in text
    assert "@import" not in text


def test_ids_are_named_once_and_links_find_them():
    figure = Figure(line_plot([Curve("a", [1, 2], [3, 4])], x_title="x", y_title="y"), "alt")
    text = render_page("t", "", [Section("a", [figure, figure]), Section("b", every_block())])
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    used = re.findall(r'href="#([^"]+)"', text) + re.findall(r"url\(#([^)]+)\)", text)
    assert set(used) <= set(ids)
    labels = re.findall(r'aria-labelledby="([^"]*)"', text)
    assert set(labels) <= set(ids)


def test_plots_have_the_colours_of_the_page():
    figure = Figure(line_plot([Curve("a", [1, 2], [3, 4])], x_title="x", y_title="y"), "alt")
    text = render_page("t", "", [Section("a", [figure])])
    drawn = text[text.index('<figure class="plot">') : text.index("</figure>")]
    assert "var(--series-1)" in drawn
    assert not re.search(r"#[0-9a-f]{6}", drawn)


def test_columns_of_numbers_are_told_from_others():
    table = Table(("name", "bytes", "hash"), [("a", "1,024", "ff"), ("b", "", "0")], code=("hash",))
    assert table.classes == ["text", "number", "code"]
    assert Table(("a", "b"), []).classes == ["text", "text"]


def test_the_same_content_is_the_same_page():
    assert page() == page()
