"""An extension of Griffe for the site: lists and code of our docstrings, in Markdown.

Our docstrings align `name: what it is` line by line, which Markdown would run together.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

NAMED = re.compile(r"([a-z_]\w*(?:(?:, | and )[a-z_]\w*)*):\s+(.*)")


def listed(text: str) -> str:
    """A docstring whose paragraphs of names, with deeper lines that go on, are lists.

    A paragraph of deeper lines alone is code.
    """
    return "\n\n".join(map(_paragraph, text.split("\n\n")))


def _paragraph(text: str) -> str:
    lines = text.split("\n")
    if all(line.startswith("  ") for line in lines):
        return "\n".join(f"    {line.removeprefix('    ')}" for line in lines)
    if NAMED.fullmatch(lines[0]) and all(NAMED.fullmatch(x) or x.startswith("  ") for x in lines):
        return "\n".join(map(_item, lines))
    return text


def _item(line: str) -> str:
    found = NAMED.fullmatch(line)
    return f"- `{found[1]}`: {found[2]}" if found else f"    {line.strip()}"


class Docstrings(Extension):
    """Rewrites the docstring of every object that Griffe reads."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called once for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)
