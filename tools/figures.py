"""Figures and tables of docs/records in README.md and the pages, so that none is typed.

A page holds `<!-- record: FILE.json KEY FORMAT -->shown<!-- /record -->`; FORMAT has one `{}` for
the figure and may be left out. What is shown is the figure as it stands in `figures` of the record;
a hash is shown as code. A KEY of `tables` gives that table, with a line of when and where it was
measured. `make docs` writes all pages anew, and a test compares them.

    python tools/figures.py           # write the pages
    python tools/figures.py --check   # exit code 1 where a page shows something else
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MARK = re.compile(
    r"<!-- record: (\S+\.json) (\S+)( [^>]*?)? -->((?:(?!<!-- record:).)*?)<!-- /record -->",
    flags=re.DOTALL,
)


def pages(root: Path = ROOT) -> list[Path]:
    """README and everything in docs/."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def filled(text: str, records: Path) -> str:
    """A page with the figures that its marks name. Raises SystemExit for one that is missing."""

    def figure(found: re.Match[str]) -> str:
        name, key, form = found[1], found[2], (found[3] or "").strip() or "{}"
        path = records / name
        if not path.is_file():
            raise SystemExit(f"{path}: no such record; expected one of {names(records)}")
        record = json.loads(path.read_text(encoding="utf-8"))
        figures, tables = record["figures"], record.get("tables", {})
        if key in tables:
            made = f"\n\n{table(tables[key])}\n\n{source(record)}\n\n"
        elif key in figures:
            made = form.format(shown(figures[key]))
        else:
            known = ", ".join((*figures, *tables))
            raise SystemExit(f"{path}: no figure {key!r}; expected one of {known}")
        start = found[0][: found.start(4) - found.start()]
        return f"{start}{made}<!-- /record -->"

    marks, ends = text.count("<!-- record:"), text.count("<!-- /record -->")
    if not marks == ends == len(MARK.findall(text)):
        raise SystemExit(
            f"expected as many marks as ends, each mark with its end, found {marks} marks and "
            f"{ends} ends"
        )
    return MARK.sub(figure, text)


def table(content: dict[str, list[Any]]) -> str:
    """Markdown; columns of numbers alone are set to the right."""
    columns, rows = content["columns"], content["rows"]
    number = re.compile(r"[-+]?[\d,.]+( ?%)?|")
    right = [all(number.fullmatch(row[i]) for row in rows) for i in range(len(columns))]
    rule = ["--:" if each else "---" for each in right]
    lines = ([cell.replace("|", r"\|") for cell in line] for line in (columns, *rows))
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join((head, f"| {' | '.join(rule)} |", *body))


def source(record: dict[str, Any]) -> str:
    """When and where the figures of a record were measured, as a line below a table."""
    machine = record["machine"]
    devices = ", ".join((machine["cpu"], f"{machine['cores']} cores", *machine.get("gpus", ())))
    where = f"{devices}, torch {machine['torch']}"
    if "load_average" in machine:
        where += f", load {machine['load_average'][0]}"
    text = f"*{record['measured']}; {where}.*"
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def names(records: Path) -> str:
    """The records there are."""
    return ", ".join(path.name for path in sorted(records.glob("*.json"))) or "none"


def shown(value: str | int | float) -> str:
    """A figure as a reader sees it."""
    if isinstance(value, str):
        return f"`{value}`" if re.fullmatch(r"[0-9a-f]{12,64}", value) else value
    return f"{value:,}" if isinstance(value, int) else str(value)


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check say which differ."""
    stale = []
    for path in pages():
        text = path.read_text(encoding="utf-8")
        try:
            wanted = filled(text, ROOT / "docs" / "records")
        except SystemExit as error:
            raise SystemExit(f"{path.relative_to(ROOT)}: {error}") from None
        if wanted == text:
            continue
        stale.append(path.relative_to(ROOT))
        if "--check" not in arguments:
            path.write_text(wanted, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'figures differ' if '--check' in arguments else 'written'}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
