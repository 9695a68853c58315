"""constraints.txt: every package with its version, its licence and the SHA-256 of its files.

`tools/lock.py` writes it, `tools/install.py` installs from it, `tools/sbom.py` lists it. It is a
requirements file of pip too. The standard library alone reads it: it is what an empty virtual
environment begins with.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "constraints.txt"
PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.+!]+)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
LICENCE = "# licence: "


@dataclass(frozen=True)
class Pin:
    """A package: its name, version, licence ("" where none is known), and the SHA-256 of the files
    of that version for all systems and versions of Python."""

    name: str
    version: str
    licence: str
    hashes: tuple[str, ...]

    @property
    def key(self) -> str:
        """The name as packages are compared."""
        return key(self.name)

    def text(self) -> str:
        """As constraints.txt holds it."""
        lines = [f"{self.name}=={self.version}", *(f"    --hash=sha256:{h}" for h in self.hashes)]
        licence = f"{LICENCE}{self.licence}\n" if self.licence else ""
        return licence + " \\\n".join(lines) + "\n"


def key(name: str) -> str:
    """A name as packages are compared: Jinja2 is jinja2, ml_dtypes is ml-dtypes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse(text: str) -> list[Pin | str]:
    """The packages, and the other lines (comments and empty ones) as they stand, in their order.

    Raises ValueError, which names the line, for anything else.
    """
    found: list[Pin | str] = []
    licence = ""
    for number, line in enumerate(re.sub(r" \\\n", " ", text).splitlines(), 1):
        words = line.split()
        if line.startswith(LICENCE):
            licence = line.removeprefix(LICENCE)
        elif not words or line.startswith("#"):
            found.append(line)
        else:
            pin = PIN.fullmatch(words[0])
            hashes = [HASH.fullmatch(word) for word in words[1:]]
            if pin is None or None in hashes:
                raise ValueError(
                    f"line {number}: expected NAME==VERSION and --hash=sha256:..., found {line!r}"
                )
            found.append(Pin(pin[1], pin[2], licence, tuple(h[1] for h in hashes if h)))
            licence = ""
    return found


def written(lines: list[Pin | str]) -> str:
    """The text of a lock: what `parse` reads."""
    return "".join(part.text() if isinstance(part, Pin) else part + "\n" for part in lines)


def pins(path: Path = LOCK) -> dict[str, Pin]:
    """Every package by its `key`."""
    parts = parse(path.read_text(encoding="utf-8"))
    return {part.key: part for part in parts if isinstance(part, Pin)}
