"""An extension of Griffe for the site: what a docstring says of each name becomes a list.

Our docstrings align `name: what it is` line by line, which Markdown would run together.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

NAMED = re.compile(r"([a-z_]\w*(?:(?:, | and )[a-z_]\w*)*):\s+(.*)")


def listed(text: str) -> str:
    """A docstring whose paragraphs of names, with deeper lines that go on, are lists."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.split("\n")
        if not all(NAMED.fullmatch(line) or line.startswith("  ") for line in lines):
            paragraphs.append(paragraph)
        elif not NAMED.fullmatch(lines[0]):
            paragraphs.append(paragraph)  # code
        else:
            paragraphs.append("\n".join(map(_item, lines)))
    return "\n\n".join(paragraphs)


def _item(line: str) -> str:
    found = NAMED.fullmatch(line)
    return f"- `{found[1]}`: {found[2]}" if found else f"    {line.strip()}"


class Docstrings(Extension):
    """Rewrites the docstring of every object that Griffe reads."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called once for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)
