"""Pages in a browser: what is seen at the width of a desk and of a telephone, in light and in dark.

Chromium of the system, driven by Playwright; axe-core looks for barriers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import samebits as sb
from browsing import barriers, browser
from edge_nets import edge_net

__all__ = ["browser"]  # a fixture
pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "firmware"
LARGEST = 3 << 20  # bytes of a page
# Boxes of texts that meet by more than a pixel each way, of elements that are shown. Letters may
# touch those of the line above: the box of a line is higher than they are.
OVERLAPS = """() => {
  const found = [];
  const shown = (e) => e.checkVisibility() && !e.closest(".skip");
  const texts = [...document.querySelectorAll("svg text")].filter(shown);
  for (const svg of new Set(texts.map((text) => text.ownerSVGElement))) {
    const boxes = texts.filter((text) => text.ownerSVGElement === svg)
      .map((text) => [text.textContent, text.getBoundingClientRect()])
      .filter(([, box]) => box.width);
    boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
      const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (wide > 1 && high > Math.min(p.height, q.height) / 3) found.push([a, b]);
    }));
  }
  for (const list of document.querySelectorAll("dl, ul, section, tr")) {
    const boxes = [...list.children].filter(shown).map((e) => [e, e.getBoundingClientRect()]);
    boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
      if (getComputedStyle(a).position === "sticky") return;
      const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (wide > 1 && high > 1) found.push([a.outerHTML.slice(0, 90), b.outerHTML.slice(0, 90)]);
    }));
  }
  return found;
}"""
OUTSIDE = """() => [...document.querySelectorAll(".box")].filter((box) => {
  const frame = box.querySelector("rect:not(.behind)").getBBox();
  return [...box.querySelectorAll("text")].some((text) => {
    const inner = text.getBBox();
    return inner.x < frame.x || inner.x + inner.width > frame.x + frame.width;
  });
}).map((box) => box.textContent.trim())"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages by name: a residual network, an LSTM, a plan, firmware; how good a run is, in
    pictures of digits and in targets."""
    folder = tmp_path_factory.mktemp("pages")
    torch.manual_seed(0)
    lstm = sb.quantize(nn.LSTM(6, 8, batch_first=True), torch.randn(16, 10, 6))
    plan = sb.plan(
        "resnet8",
        None,
        sb.Training(batch=4),
        sb.Numerics(numerics="float32"),
        input_shape=(1, 8, 8),
    )
    digits = sb.fit(
        "digits", "mlp", folder / "digits", sb.Training(epochs=1), sb.Execution(threads=1)
    )
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=90), "b": rng.normal(size=90)})
    table.assign(y=table.a - table.b).to_csv(folder / "t.csv", index=False)
    targets = sb.fit(
        folder / "t.csv", "mlp", folder / "targets", sb.Training(epochs=2), sb.Execution(threads=1)
    )
    reports = {
        "digits": sb.report(digits.folder, "digits"),
        "targets": sb.report(targets.folder),
        "resnet8": sb.report(sb.Network(edge_net("resnet8")[1]), "random:4"),
        "lstm": lstm.report("random:4"),
        "plan": plan.report(),
        "firmware": sb.report(EXAMPLES / "lstm.nnp", "random:2"),
    }
    return {name: report.save(folder / f"{name}.html") for name, report in reports.items()}


@pytest.fixture
def visit(browser, pages):
    """Opens a page; at the end nothing may have been told on the console."""
    told, opened = [], []

    def see(name, width=1280, scheme="light"):
        tab = browser.new_page()
        opened.append(tab)
        tab.on("console", lambda message: told.append(message.text))
        tab.on("pageerror", lambda error: told.append(str(error)))
        tab.on("request", lambda r: told.append(r.url) if "://" in r.url[4:] else None)
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme)
        told.clear()
        tab.goto(pages[name].as_uri())
        return tab

    yield see
    for tab in opened:
        tab.close()
    assert [text for text in told if not text.startswith("file://")] == []


@pytest.mark.parametrize("name", ["resnet8", "lstm", "plan", "firmware", "digits", "targets"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_in_order(visit, pages, name, width, scheme):
    assert pages[name].stat().st_size < LARGEST
    tab = visit(name, width, scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    for fold in tab.locator("summary").all():
        fold.click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(OVERLAPS) == []
    assert tab.evaluate(OUTSIDE) == []
    assert barriers(tab) == []


def test_a_layer_leads_to_its_row(visit):
    tab = visit("lstm")
    box = tab.locator("a.box", has_text="lstm.2.hidden").first
    row = tab.locator(box.get_attribute("href"))
    box.click()
    assert tab.evaluate("document.activeElement.id") == row.get_attribute("id")
    assert "lstm.2.hidden" in row.inner_text()
    shown = "row => { const b = row.getBoundingClientRect(); return b.top >= 0 && b.top < 900; }"
    assert row.evaluate(shown)


def test_any_address_is_none_of_a_script(visit, pages):
    tab = visit("lstm")
    for hash in ("%", "%E0%A4%A", "nowhere"):
        tab.evaluate("hash => { location.hash = hash; }", hash)
        tab.goto(f"{pages['lstm'].as_uri()}#{hash}")
    assert tab.evaluate("location.hash") == "#nowhere"


def test_a_block_unfolds_and_folds(visit):
    tab = visit("resnet8", 390)
    inner = tab.locator("details .canvas").first
    assert not inner.is_visible()
    tab.locator("a.box.several").first.click()
    assert inner.is_visible()
    layer = inner.locator("a.box").last
    layer.click()
    target = layer.get_attribute("href")
    assert tab.evaluate("location.hash") == target
    assert tab.locator(target).inner_text().strip()
    tab.locator("section:has(a.box) summary").first.click()
    assert not inner.is_visible()


def test_a_drawing_can_be_made_larger_and_smaller(visit):
    tab = visit("lstm", 390)
    drawn = tab.locator(".canvas svg").first
    sizes = []
    for label in ("Actual size", "Larger", "Fit the width"):
        tab.get_by_role("button", name=label, exact=True).first.click()
        sizes.append(drawn.bounding_box()["width"])
    actual, larger, fitting = sizes
    assert larger == pytest.approx(1.25 * actual, rel=0.01)
    assert fitting <= 390


def test_all_can_be_reached_by_keys(visit):
    tab = visit("firmware")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "content"
    box = tab.locator("a.box").nth(2)
    box.focus()
    tab.keyboard.press("Enter")
    assert tab.evaluate("'#' + document.activeElement.id") == box.get_attribute("href")


def test_without_scripts_all_is_there(browser, pages):
    """Folds are the browser's own, links too."""
    text = pages["resnet8"].read_text(encoding="utf-8")
    tab = browser.new_page()
    tab.set_content(text[: text.index("<script>")])
    tab.locator("summary", has_text="Block").first.click()
    assert tab.locator("details[open] .canvas").first.is_visible()
    assert not tab.locator(".tools").first.is_visible()
    tab.close()
