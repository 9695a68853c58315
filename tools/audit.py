"""Asks osv.dev, in one request, whether anything in constraints.txt is known to be vulnerable.

    make audit
    python tools/audit.py --record FILE     # judge an earlier answer, which --save has written

Exit code 0: asked, and nothing is known but what ACCEPTED names with its reason. 1: something is
known. 2: it could not be asked, or the answer is of another constraints.txt; that is never a pass.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

from locked import LOCK, Pin, pins

ADDRESS = "https://api.osv.dev/v1/querybatch"
LIMIT = 60.0  # seconds
LARGEST = 1 << 24  # bytes of an answer
# Advisory: why it does not apply here.
ACCEPTED: dict[str, str] = {}


class UnansweredError(Exception):
    """There is no answer for this lock."""


def asked(lock: dict[str, Pin], address: str) -> dict[str, Any]:
    """The identifiers of advisories by package, as --save writes them. Raises UnansweredError."""
    queries = [{"package": {"purl": f"pkg:pypi/{p.key}@{p.version}"}} for p in lock.values()]
    request = urllib.request.Request(
        address, json.dumps({"queries": queries}).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            results = json.loads(answer.read(LARGEST))["results"]
        known = [sorted(v["id"] for v in result.get("vulns", [])) for result in results]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnansweredError(f"{address}: {type(error).__name__}: {error}") from error
    if len(known) != len(lock):
        raise UnansweredError(f"{address}: {len(known)} answers to {len(lock)} questions")
    found = {name: ids for name, ids in zip(lock, known, strict=True) if ids}
    return {"lock_sha256": lock_sha256(), "found": found}


def recorded(path: Path) -> dict[str, Any]:
    """An earlier answer. Raises UnansweredError for one of another lock."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        of, found = record["lock_sha256"], record["found"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnansweredError(f"{path}: {type(error).__name__}: {error}") from error
    if of != lock_sha256():
        raise UnansweredError(f"{path}: an answer for another constraints.txt")
    return {"lock_sha256": of, "found": found}


def lock_sha256() -> str:
    """The SHA-256 of constraints.txt."""
    return hashlib.sha256(LOCK.read_bytes()).hexdigest()


def judged(found: dict[str, list[str]], lock: dict[str, Pin]) -> int:
    """Print what is known; the exit code."""
    open_ones = 0
    for name, ids in found.items():
        for advisory in ids:
            why = ACCEPTED.get(advisory)
            open_ones += why is None
            print(
                f"{name} {lock[name].version}: {advisory}" + (f": accepted, {why}" if why else "")
            )
    print(f"{len(lock)} packages: {open_ones} advisories that nobody has judged")
    return 1 if open_ones else 0


def main() -> int:
    """Ask or read, judge, and say so."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="an earlier answer, instead of asking")
    parser.add_argument("--save", type=Path, help="write the answer")
    parser.add_argument("--address", default=ADDRESS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    lock = pins()
    try:
        record = recorded(options.record) if options.record else asked(lock, options.address)
        if options.save:
            options.save.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        return judged(record["found"], lock)
    except UnansweredError as error:
        print(
            f"tools/audit.py: could not be asked, so nothing is known of {len(lock)} packages: "
            f"{error}",
            file=sys.stderr,
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
