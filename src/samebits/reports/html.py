"""Pages: what one consists of, as data, and its text, which Jinja2 makes of `templates`.

One self-contained file: no network, the one script named by its hash, all text escaped. A kind of
block is a dataclass and the template of its `kind`; other modules add their own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from samebits.errors import visible

if TYPE_CHECKING:
    import jinja2

_DIGITS = r"[-+]?[\d,.]+(e[-+]?\d+)?"
NUMBER = re.compile(rf"({_DIGITS}( %| dB| (of|\.\.) {_DIGITS})?|exact|scalar)?")
"""Cells that are set to the right where a column holds nothing else."""


class PageBlock(Protocol):
    """A part of a section. kind: the name of its template."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of plain text."""

    kind: ClassVar[str] = "paragraph"
    text: str


@dataclass(frozen=True)
class Command:
    """Lines to be typed in a shell."""

    kind: ClassVar[str] = "command"
    lines: Sequence[str]


@dataclass(frozen=True)
class Status:
    """The sentence that a page begins with. state: good, bad or open (nothing is known)."""

    kind: ClassVar[str] = "status"
    state: str
    text: str


@dataclass(frozen=True)
class Links:
    """Files beside the page: (what they are, their name)."""

    kind: ClassVar[str] = "links"
    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Figures:
    """Single figures (what, value, more about it), large."""

    kind: ClassVar[str] = "figures"
    items: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Table:
    """Rows of text under column titles.

    code: the columns set in a fixed-width face; keys: what links to the rows name, if any does
    """

    kind: ClassVar[str] = "table"
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    code: Sequence[str] = ()
    keys: Sequence[str] = ()

    @property
    def classes(self) -> list[str]:
        """The class of every column: code, number or text."""
        cells = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        return [
            "code"
            if title in self.code
            else "number"
            if any(column) and all(map(NUMBER.fullmatch, column))
            else "text"
            for title, column in zip(self.columns, cells, strict=True)
        ]


@dataclass(frozen=True)
class Figure:
    """An SVG drawing of `plots`; `alt` says in words what it shows."""

    kind: ClassVar[str] = "figure"
    svg: bytes
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Fold:
    """Blocks that are shown when their title is clicked. key: what links to it name."""

    kind: ClassVar[str] = "fold"
    title: str
    blocks: Sequence[PageBlock]
    key: str = ""


@dataclass(frozen=True)
class Section:
    """A titled card of blocks."""

    title: str
    blocks: Sequence[PageBlock]


def render_page(title: str, summary: str, sections: Sequence[Section]) -> str:
    """The whole page as text. Same input, same text."""
    from markupsafe import Markup

    environment = _environment()
    script = _source(environment, "page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    keyed = [(f"part-{number}", part) for number, part in enumerate(sections, 1)]
    numbers = itertools.count(1)
    page = environment.get_template("page.html").render(
        title=title,
        summary=summary,
        sections=keyed,
        contents=[(key, part.title) for key, part in keyed if part.title],
        # Both are files of this package.
        style=Markup(_source(environment, "style.css")),
        script=Markup(script),
        digest=digest,
        number=lambda: next(numbers),
        drawn=lambda figure: Markup(_drawn(figure, next(numbers))),
    )
    return visible(page)


def _drawn(figure: Figure, number: int) -> str:
    from samebits.reports.plots import inline

    return inline(figure.svg, f"figure-{number}", figure.alt)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("samebits.reports"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["number"] = _number
    return environment


def _source(environment: jinja2.Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _number(value: Any) -> str:
    """A coordinate of a drawing, to a hundredth."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
