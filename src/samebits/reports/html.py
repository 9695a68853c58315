"""One self-contained HTML page of sections: no network, no script, all text escaped."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass

CSS = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5a6675; --line: #dfe4ea;
  --page: #f5f7f9; --card: #ffffff; --accent: #0b6e6e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaef; --soft: #9aa7b5; --line: #2f3944;
  --page: #12171d; --card: #1a2129; --accent: #5cc4c0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
header { margin-bottom: 2rem; }
h1 { font-size: clamp(1.6rem, 5vw, 2.3rem); line-height: 1.15; margin: 0 0 .4rem; }
header p { color: var(--soft); margin: 0; max-width: 44rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 1.25rem clamp(1rem, 3vw, 1.75rem); margin: 0 0 1.25rem; }
h2 { font-size: 1.2rem; margin: 0 0 .75rem; color: var(--accent); }
p { margin: 0 0 1rem; max-width: 44rem; }
.table { overflow-x: auto; margin: 0 0 1rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); font-size: .9rem; padding-bottom: .4rem; }
th, td { text-align: right; padding: .5rem .75rem; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td.code { font: .8rem/1.4 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  overflow-wrap: anywhere; min-width: 10rem; }
thead th { color: var(--soft); font-weight: 600; font-size: .9rem; }
figure { margin: 0 0 1rem; }
figure img { display: block; width: 100%; height: auto; background: #fff; border-radius: 8px;
  border: 1px solid var(--line); }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .4rem; }
section > :last-child { margin-bottom: 0; }
footer { color: var(--soft); font-size: .85rem; }
@media print { body { background: #fff; } section { break-inside: avoid; } }
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of plain text."""

    text: str

    def render(self) -> str:
        """This block as HTML, its text escaped."""
        return f"<p>{html.escape(self.text)}</p>"


@dataclass(frozen=True)
class Table:
    """Rows of text under column titles; `code` names the columns set in a fixed-width face."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    code: Sequence[str] = ()

    def render(self) -> str:
        """This block as HTML, its text escaped."""
        head = "".join(f'<th scope="col">{html.escape(title)}</th>' for title in self.columns)
        body = "".join(f"<tr>{self._cells(row)}</tr>" for row in self.rows)
        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
        return (
            f'<div class="table"><table>{caption}<thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def _cells(self, row: Sequence[str]) -> str:
        return "".join(
            f"<td class='{'code' if title in self.code else 'text'}'>{html.escape(cell)}</td>"
            for title, cell in zip(self.columns, row, strict=True)
        )


@dataclass(frozen=True)
class Figure:
    """An SVG drawing, embedded; `alt` says in words what it shows."""

    svg: bytes
    alt: str
    caption: str = ""

    def render(self) -> str:
        """This block as HTML, its text escaped."""
        data = base64.b64encode(self.svg).decode()
        caption = f"<figcaption>{html.escape(self.caption)}</figcaption>" if self.caption else ""
        return (
            f'<figure><img src="data:image/svg+xml;base64,{data}" '
            f'alt="{html.escape(self.alt, quote=True)}">{caption}</figure>'
        )


Block = Paragraph | Table | Figure


@dataclass(frozen=True)
class Section:
    """A titled card of blocks."""

    title: str
    blocks: Sequence[Block]

    def render(self) -> str:
        """This block as HTML, its text escaped."""
        body = "\n".join(block.render() for block in self.blocks)
        return f"<section>\n<h2>{html.escape(self.title)}</h2>\n{body}\n</section>"


def render_page(title: str, summary: str, sections: Sequence[Section]) -> str:
    """The whole page as text."""
    body = "\n".join(section.render() for section in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{html.escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<main>
<header>
<h1>{html.escape(title)}</h1>
<p>{html.escape(summary)}</p>
</header>
{body}
<footer>Written by samebits.</footer>
</main>
</body>
</html>
"""
