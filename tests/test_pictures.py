"""The pictures of docs/guide/numerics.md are what tools/draw_numerics.py computes and draws now."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "guide" / "img"
HASHES = json.loads((FOLDER / "hashes.json").read_text(encoding="utf-8"))
LARGEST = 60_000  # bytes of a file
GREY = "fill: #808080"
NAMES = ["block", "lazy", "moments", "small", "outliers"]


@pytest.fixture(scope="module")
def drawing() -> Iterator[ModuleType]:
    place = ROOT / "tools" / "draw_numerics.py"
    spec = importlib.util.spec_from_file_location("draw_numerics", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["draw_numerics"] = module  # where its dataclasses look for their types
    spec.loader.exec_module(module)
    yield module
    del sys.modules["draw_numerics"]


def words(svg: str) -> list[str]:
    """Texts of a picture without the numbers at its axes, which matplotlib chooses."""
    found = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
    return sorted(text for text in found if re.search("[A-Za-z]{2}", text))


def texts(element: ElementTree.Element, style: str = "") -> Iterator[tuple[str, str]]:
    """Every text with its style and those of all that it lies in."""
    style += element.get("style", "")
    if element.tag.endswith("}text"):
        yield "".join(element.itertext()), style
    for inner in element:
        yield from texts(inner, style)


@pytest.mark.parametrize("name", [*NAMES, pytest.param("widths", marks=pytest.mark.slow)])
def test_a_picture_shows_what_is_computed(drawing, name):
    panels = drawing.PICTURES[name]()
    assert drawing.sha256(panels) == HASHES[name], "run tools/draw_numerics.py, look at the picture"
    committed = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert words(committed) == words(drawing.svg(panels))
    assert {panel.x_title for panel in panels} <= set(words(committed))


def test_the_pictures_are_those_of_the_guide(drawing):
    guide = (ROOT / "docs" / "guide" / "numerics.md").read_text(encoding="utf-8")
    shown = re.findall(r"\]\(img/(\w+)\.svg\)", guide)
    assert shown == list(drawing.PICTURES) == list(HASHES)
    assert {path.name for path in FOLDER.iterdir()} == {*(f"{n}.svg" for n in shown), "hashes.json"}


@pytest.mark.parametrize("name", HASHES)
def test_a_picture_is_small_and_read_on_any_background(name):
    """Text is text, in grey; nothing is filled behind it."""
    svg = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert len(svg.encode()) < LARGEST
    assert len(words(svg)) >= 3
    assert re.findall("#ffffff|#000000", svg) == []
    black = [text for text, style in texts(ElementTree.fromstring(svg)) if GREY not in style]
    assert black == []


def test_float32_is_in_no_hash(drawing):
    """Its digits differ from machine to machine."""
    curve = drawing.Curve("ours", [0, 1], [0.5, 0.25])
    other = drawing.Curve("float32", [0, 1], [0.5, 0.26], exact=False)
    panel = drawing.Panel("step", "loss", [curve])
    with_other = drawing.Panel("step", "loss", [curve, other])
    assert drawing.sha256([panel]) == drawing.sha256([with_other])
    changed = drawing.Panel("step", "loss", [drawing.Curve("ours", [0, 1], [0.5, 0.2500000001])])
    assert drawing.sha256([panel]) != drawing.sha256([changed])
