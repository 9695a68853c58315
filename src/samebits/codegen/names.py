"""Names in generated C: a checked prefix and an index, never text of a model; lists of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from samebits.errors import InputError

WIDTH = 100  # of a line
KEYWORDS = frozenset(
    (
        *("auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else"),
        *("enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "register"),
        *("restrict", "return", "short", "signed", "sizeof", "static", "struct", "switch"),
        *("typedef", "union", "unsigned", "void", "volatile", "while"),
    )
)
CTYPES = {name: f"{name}_t" for name in ("int8", "uint8", "int16", "uint16", "int32", "int64")}


def checked_prefix(prefix: str) -> str:
    """The prefix, if it can start C identifiers and name files; else InputError."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,39}", prefix) and not (
        prefix in KEYWORDS or prefix == "main" or prefix.lower().startswith("samebits")
    ):
        return prefix
    raise InputError(
        "prefix of the generated C: expected a C identifier of at most 40 letters, digits and "
        "underscores that is no keyword, neither main nor samebits..., "
        f"found {prefix[:60]!r}; choose another, such as 'model'"
    )


def c_string(text: str) -> str:
    """A C string literal of a model's text: printable ASCII, the rest and what C or C++ could read
    as something else (quotes, backslashes, trigraphs) as octal escapes of its UTF-8 bytes."""
    kept = frozenset(range(32, 127)) - frozenset(b'"\\?')
    data = text.encode(errors="replace")
    escaped = "".join(chr(byte) if byte in kept else f"\\{byte:03o}" for byte in data)
    return f'"{escaped}"'


def c_comment(text: str) -> str:
    """A model's text inside a comment: letters, digits and a few signs, at most 60."""
    return re.sub(r"[^A-Za-z0-9_.,: -]", "?", text)[:60].strip() or "without a name"


def wrapped_list(texts: Sequence[str], column: int) -> str:
    """A list that begins at `column`; lines that would be too long go on at that column."""
    lines = [""]
    for index, text in enumerate(texts):
        item = text + ("," if index + 1 < len(texts) else "")
        if lines[-1] and column + len(lines[-1]) + 1 + len(item) > WIDTH - 3:
            lines.append(item)
        else:
            lines[-1] += (" " if lines[-1] else "") + item
    return ("\n" + " " * column).join(lines)


def continued(lines: Sequence[str]) -> list[str]:
    """Lines of a macro, with the backslashes in one column."""
    width = max(map(len, lines[:-1])) + 1
    return [*(f"{line:<{width}}\\" for line in lines[:-1]), lines[-1]]
