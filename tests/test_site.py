"""The site: its navigation, links and anchors, and the reference of every public name."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import zlib
from functools import cache
from pathlib import Path

import pytest
import yaml

import samebits as sb
from browsing import barriers, browser

__all__ = ["browser"]  # a fixture
ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TROUBLESHOOTING = ROOT / "src" / "samebits" / "troubleshooting.md"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    TROUBLESHOOTING,
    *sorted(DOCS.rglob("*.md")),
]
# Rooms whose exports are for users and those who extend samebits. The registries of rules and
# records in other rooms are tables, which docs/layout.md names.
ROOMS = [
    *("samebits", "samebits.train", "samebits.train.layers", "samebits.data", "samebits.kernels"),
    *("samebits.onnx", "samebits.tflite", "samebits.pytorch", "samebits.ir", "samebits.codegen"),
    *("samebits.quantization", "samebits.finetuning", "samebits.numerics", "samebits.tables"),
    "samebits.checkup",
]
TABLES = {
    *("samebits.api", "samebits.cli", "samebits.ir.integer", "samebits.ir.real"),
    *("samebits.onnx.reader.mapping", "samebits.onnx.reader.node", "samebits.pytorch.aten"),
    *("samebits.tflite.exact.mapping", "samebits.tflite.export", "samebits.recipes"),
}


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name Python functions."""


@cache
def config():
    return yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)


@cache
def outside():
    """The pages that the hook adds: their place in the site, and their file."""
    text = (ROOT / "tools" / "site.py").read_text(encoding="utf-8")
    return dict(re.findall(r'^    "(\S+\.md)": "(\S+)",$', text, flags=re.MULTILINE))


def places(nav):
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else places(value)


def test_the_navigation_holds_every_page():
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} | set(outside())
    found = list(places(config()["nav"]))
    assert len(found) == len(set(found))
    assert set(found) == pages


def test_pages_from_outside_are_files():
    assert len(outside()) >= 4
    assert [name for name in outside().values() if not (ROOT / name).is_file()] == []


# --- links ----------------------------------------------------------------------------------------


def prose(path):
    """A page without its code."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^    .*$", "", text, flags=re.M))


@cache
def anchors(path):
    """Anchors of a page that both GitHub and MkDocs give its headings."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.M):
        plain = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
        found |= {re.sub(r"[-\s]+", "-", plain)} & {re.sub(r"\s", "-", plain)}
    for name in re.findall(r"^::: (\S+)$", text, flags=re.M):
        found.add(name)
    return found


def target_of(path, link):
    """The file that a link leads to; the troubleshooting page has its place in the site."""
    start = DOCS / "guide" if path == TROUBLESHOOTING else path.parent
    target = Path(os.path.normpath(start / link)) if link else path
    return TROUBLESHOOTING if target == DOCS / "guide" / "troubleshooting.md" else target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        name, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = target_of(path, name)
        if target == DOCS / "changelog.md":
            target = ROOT / "CHANGELOG.md"
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


def test_sources_of_claims_are_links():
    """Every cell about another tool has a link, or says that it is not documented."""
    text = (DOCS / "guide" / "alternatives.md").read_text(encoding="utf-8")
    rows = [
        line.strip("|").split("|")
        for line in text.partition("## Side by side")[0].splitlines()
        if line.startswith("| ") and not line.startswith(("| tool", "| samebits"))
    ]
    assert len(rows) == 16
    wrong = [
        cell
        for row in rows
        for cell in row[1:]
        if "](" not in cell and not cell.strip().startswith("not documented")
    ]
    assert wrong == []


# --- the reference of the API -------------------------------------------------------------------


@cache
def directives():
    """Everything that a page of the reference describes, by its dotted name."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCS.glob("api/*.md"))
    return set(re.findall(r"^::: (\S+)$", text, flags=re.M)), text


def test_every_room_with_exports_is_described_or_a_table():
    rooms = set()
    sources = Path(sb.__file__).parent
    for path in sources.rglob("*.py"):
        if re.search(r"^__all__ = ", path.read_text(encoding="utf-8"), flags=re.M):
            parts = path.relative_to(sources.parent).with_suffix("").parts
            rooms.add(".".join(part for part in parts if part != "__init__"))
    assert rooms == set(ROOMS) | TABLES
    assert set(ROOMS) <= directives()[0]


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_described(room):
    """With its room if it has a docstring and no module of its name hides it; else alone."""
    described, text = directives()
    module = importlib.import_module(room)
    lacking = []
    for name in module.__all__:
        value = getattr(module, name)
        alone = any(each.startswith(f"{room}.") and each.endswith(f".{name}") for each in described)
        hidden = importlib.util.find_spec(f"{room}.{name}") if hasattr(module, "__path__") else None
        plain = inspect.isclass(value) or inspect.isroutine(value)
        listed = plain and inspect.getdoc(value) and hidden is None
        if not (alone or listed or f"`sb.{name}`" in text):
            lacking.append(name)
    assert lacking == []


def test_every_method_of_a_network_is_described():
    assert "samebits.network.Network" in directives()[0]
    fields = {field.name for field in dataclasses.fields(sb.Network)}  # the class describes them
    methods = [name for name in vars(sb.Network) if name[0] != "_" and name not in fields]
    assert [name for name in methods if not inspect.getdoc(getattr(sb.Network, name))] == []


# --- built --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("MkDocs is not installed; run: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
def test_every_name_has_a_place_in_the_site(site):
    data = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    names = {line.split()[0] for line in zlib.decompress(data).decode().splitlines()}
    lacking = []
    for room in ROOMS:
        for name in importlib.import_module(room).__all__:
            known = f"{room}.{name}" in names
            alone = any(each.startswith(room) and each.endswith(f".{name}") for each in names)
            if not known and not alone and name not in ("__version__", "train"):
                lacking.append(f"{room}.{name}")
    methods = {f"samebits.network.Network.{name}" for name in vars(sb.Network) if name[0] != "_"}
    assert lacking == []
    assert methods <= names


CUT = """() => [...document.querySelectorAll("pre")]
  .filter((pre) => pre.scrollWidth > pre.clientWidth + 1).map((pre) => pre.textContent)"""
BROKEN = """() => [...document.querySelectorAll("td code")]
  .filter((code) => /^[0-9a-f]{12,}$/.test(code.textContent) && code.getClientRects().length > 1)
  .map((code) => code.textContent)"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_site_in_a_browser(site, browser, width, scheme):
    """No code is cut and no hash broken, nothing is wider than the window; no serious barrier."""
    for name in ("index.html", "guide/predict.html", "api/network.html", "results.html"):
        tab = browser.new_page()
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme)
        tab.goto((site / name).as_uri())
        tab.wait_for_function("document.readyState == 'complete'")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, name
        assert tab.evaluate(CUT) == [], name
        assert tab.evaluate(BROKEN) == [], name
        if name != "results.html":  # whose many tables take a minute
            assert barriers(tab, "serious", "critical") == [], name
        tab.close()


@pytest.mark.slow
def test_the_first_view_is_the_picture_and_three_lines(site, browser):
    tab = browser.new_page()
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.goto((site / "index.html").as_uri())
    box = tab.locator("img[src$='matrix.svg']").bounding_box()
    assert box["y"] + box["height"] < 900
    assert box["width"] > 500
    text = tab.locator("article p").first
    assert text.bounding_box()["y"] < box["y"]
    tab.close()


def test_the_picture_is_that_of_the_record():
    """tools/draw_matrix.py draws it from docs/records/targets.json."""
    place = ROOT / "tools" / "draw_matrix.py"
    spec = importlib.util.spec_from_file_location("draw_matrix", place)
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    table = json.loads(drawing.RECORD.read_text(encoding="utf-8"))["tables"]["backends"]
    assert drawing.PICTURE.read_text(encoding="utf-8") == drawing.svg(table)
    wrong = {"rows": [[row[0], "3 of 9", *row[2:]] for row in table["rows"]]}
    assert drawing.svg(wrong).count(drawing.OTHER) == len(drawing.ROWS)


@pytest.mark.slow
def test_no_page_asks_another_machine(site):
    asked = set()
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        asked |= set(re.findall(r'<(?:script|img|iframe)[^>]* src="(https?:[^"]+)"', text))
        asked |= {
            link
            for tag in re.findall(r"<link [^>]+>", text)
            for link in re.findall(r'href="(https?:[^"]+)"', tag)
        }
    assert asked == set()
    assert (site / "search" / "search_index.js").is_file()


@pytest.mark.slow
def test_the_home_page_shows_the_records(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    assert "<code>0a3f1325ed7e</code>" in text
    assert "&lt;!--" not in text


@pytest.mark.slow
def test_pages_name_pages_and_files(site):
    """Links by titles instead of paths, blocks by file names, names in docstrings as lists."""
    home = (site / "index.html").read_text(encoding="utf-8")
    assert '<a href="guide/train.html">Train</a>' in home
    assert "docs/guide" not in home
    guide = (site / "guide" / "c.html").read_text(encoding="utf-8")
    assert '<span class="filename">device/main.c</span>' in guide
    network = (site / "api" / "network.html").read_text(encoding="utf-8")
    assert "<li><code>model</code>: as data</li>" in network
