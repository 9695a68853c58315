"""tests/golden/bits.json: read, compared with what a route gives, and written anew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from pins.registry import Pins, Route, UnavailableError
from samebits.files import write_atomically

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "bits.json"
Book = dict[str, Pins]
ADVICE = (
    "If a computed bit is meant to change, list it under Bits in CHANGELOG.md and raise the "
    "edition, then regenerate by `make pins`; else undo what changed it."
)


def read(path: Path = GOLDEN) -> Book:
    """Route -> name -> hash; empty where there is no file yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(path: Path, book: Mapping[str, Pins]) -> None:
    """Sorted; the whole file or nothing."""
    write_atomically(path, (json.dumps(book, indent=2, sort_keys=True) + "\n").encode())


def differences(expected: Pins, found: Pins) -> Iterator[str]:
    """A line for each pin that is not the same in both."""
    for name in sorted(expected.keys() | found.keys()):
        before, after = expected.get(name), found.get(name)
        if before is None:
            yield f"added    {name!r}: expected none, found {after}"
        elif after is None:
            yield f"removed  {name!r}: expected {before}, found none"
        elif before != after:
            yield f"changed  {name!r}: expected {before}, found {after}"


def check(route: str, expected: Pins, found: Pins) -> None:
    """AssertionError, for its reader, unless a route gives its pins."""
    lines = list(differences(expected, found))
    if lines:
        raise AssertionError(
            f"route {route!r}: expected the {len(expected)} pins of tests/golden/{GOLDEN.name}, "
            f"found {len(lines)} others:\n  " + "\n  ".join(lines) + f"\n{ADVICE}"
        )


def regenerate(path: Path, routes: Mapping[str, Route]) -> Iterator[str]:
    """Compute every route and write the file; yields what differs from the file before, then a
    summary. Raises UnavailableError, and writes nothing, where a route cannot be computed."""
    before, after = read(path), {}
    for name, route in routes.items():
        try:
            after[name] = route.compute()
        except UnavailableError as error:
            raise UnavailableError(f"route {name!r}: {error}; nothing was written") from error
    count = 0
    for name in sorted(before.keys() | after.keys()):
        for line in differences(before.get(name, {}), after.get(name, {})):
            count += 1
            yield f"{name}: {line}"
    write(path, after)
    total = sum(map(len, after.values()))
    yield f"{path.name}: {total} pins of {len(after)} routes, {count} other than before"
