"""Figures of docs/records in README.md and the pages, so that no figure is typed twice.

A page holds `<!-- record: FILE.json KEY FORMAT -->shown<!-- /record -->`; FORMAT has one `{}` for
the figure and may be left out. What is shown is the figure as it stands in `figures` of the record;
a hash is shown as code. `make docs` writes all pages anew, and a test compares them.

    python tools/figures.py           # write the pages
    python tools/figures.py --check   # exit code 1 where a page shows something else
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARK = re.compile(r"<!-- record: (\S+\.json) (\S+)( [^>]*?)? -->(.*?)<!-- /record -->")


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
        figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
        if key not in figures:
            raise SystemExit(f"{path}: no figure {key!r}; expected one of {', '.join(figures)}")
        start = found[0][: found.start(4) - found.start()]
        return f"{start}{form.format(shown(figures[key]))}<!-- /record -->"

    return MARK.sub(figure, text)


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
        wanted = filled(text, ROOT / "docs" / "records")
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
