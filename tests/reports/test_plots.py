import re

import pytest

from samebits.reports.plots import Bars, Curve, bar_plots, inline, line_plot, line_plots

CURVES = [Curve("a", [1, 2], [0.5, 0.7]), Curve("b", [1, 2], [0.4, 0.8])]


def drawings():
    yield line_plot(CURVES, x_title="epoch", y_title="accuracy")
    yield line_plots([CURVES, CURVES[:1]], x_title="x", y_titles=["y", "error"])
    bars = [Bars("kept", [1, 0]), Bars("dropped", [0, 2])]
    yield bar_plots(["first", "second"], bars, x_title="bytes")


def test_plots_have_the_same_bytes_every_time():
    for one, another in zip(drawings(), drawings(), strict=True):
        assert one == another
        assert one.startswith(b"<?xml")


def test_texts_stay_texts():
    """They can be read by those who cannot see them, and found."""
    texts = re.findall(r">([^<>\n]+)</text>", next(drawings()).decode())
    assert {"epoch", "accuracy", "a", "b"} <= set(texts)


@pytest.mark.parametrize("name", ["x_$1", "$\\frac$", "a & b <c>"])
def test_names_from_files_are_no_formulas(name):
    text = line_plot([Curve(name, [1], [1])], x_title="x", y_title="y").decode()
    assert name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in text


def test_a_drawing_in_a_page():
    svg = next(drawings())
    one, other = inline(svg, "figure-1", 'what "it" shows'), inline(svg, "figure-2", "")
    assert one.startswith('<svg viewBox="')
    assert one.rstrip().endswith("</svg>")
    assert 'role="img" aria-label="what &quot;it&quot; shows"' in one
    ids = [set(re.findall(r'\bid="([^"]*)"', text)) for text in (one, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
    used = re.findall(r'href="#([^"]*)"', one) + re.findall(r"url\(#([^)]*)\)", one)
    assert set(used) <= ids[0]
    assert "var(--series-1)" in one
    assert not re.search(r"#[0-9a-f]{6}", one)
    assert "metadata" not in one
