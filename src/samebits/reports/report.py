"""`Report`: the same content as text for a terminal and as a page for a browser or notebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.errors import InputError, visible
from samebits.files import write_atomically
from samebits.reports.html import NUMBER, PageBlock, Paragraph, Section, Table, render_page
from samebits.settled import settled

PAGES, TEXTS = (".html", ".htm"), (".txt", "")  # endings of names of files, by what is written


@dataclass(frozen=True)
class Report:
    """A titled sequence of sections. `print` shows it as text, a notebook as a page.

    page: gives the sections of the page where they are others, once it is asked for
    """

    title: str
    summary: str = ""
    sections: Sequence[Section] = ()
    page: Callable[[], Sequence[Section]] | None = None

    def __str__(self) -> str:
        """Plain text without a trailing newline; tables are aligned and cut nothing off."""
        parts = [f"{self.title}\n{self.summary}" if self.summary else self.title]
        for section in self.sections:
            blocks = [text for text in map(_text, section.blocks) if text]
            parts.append("\n".join([section.title, *blocks] if section.title else blocks))
        return visible("\n\n".join(part for part in parts if part))

    @property
    @settled
    def html(self) -> str:
        """The page as text."""
        sections = self.sections if self.page is None else self.page()
        return render_page(self.title, self.summary, sections)

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that its style stays inside it."""
        import html

        page = html.escape(self.html, quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:36rem;border:0"></iframe>'

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        """The text, for IPython where it can show no page: not the fields of a dataclass."""
        return {"text/plain": str(self)}

    def save(self, path: str | Path) -> Path:
        """Write the report: a page where the name ends in .html or .htm, text where it ends in .txt
        or in nothing; its folder is made. Raises InputError for another ending, SamebitsError where
        it cannot be written."""
        path = Path(path)
        check_ending(path)
        text = self.html if path.suffix.lower() in PAGES else f"{self}\n"
        write_atomically(path, text.encode())
        return path


def check_ending(path: Path) -> None:
    """Raise InputError for the name of a report of a kind that is not written."""
    if path.suffix.lower() not in (*PAGES, *TEXTS):
        raise InputError(
            f"{path}: expected a name ending in .html, for a page, or .txt, for text, found "
            f"{path.suffix[:20]}; write the page, and print it from a browser"
        )


class Reported:
    """Something that has a report, and prints as it."""

    def report(self) -> Report:
        """This as text and as a page."""
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.report())

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        return {"text/plain": str(self)}


def section(*blocks: PageBlock | str, title: str = "") -> Section:
    """A section; texts become paragraphs."""
    return Section(title, [Paragraph(b) if isinstance(b, str) else b for b in blocks])


def _text(block: PageBlock) -> str:
    """A block for a terminal; drawings and what else only a page can show are left out."""
    if isinstance(block, Paragraph):
        return block.text
    return _aligned(block) if isinstance(block, Table) else ""


def _aligned(table: Table) -> str:
    """The rows under their titles; columns of numbers to the right."""
    rows = [[printable(cell) for cell in row] for row in table.rows]
    columns = list(zip(table.columns, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [bool(rows) and all(map(NUMBER.fullmatch, column[1:])) for column in columns]
    lines = [table.caption] if table.caption else []
    for row in (table.columns, *rows):
        cells = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def printable(text: str) -> str:
    """A text from an untrusted file without control characters."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
