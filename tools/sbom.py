"""Writes what constraints.txt lists as a bill of materials: CycloneDX 1.6, JSON.

    make sbom        # dist/samebits.cdx.json

Names, versions, package URLs, the SHA-256 of the files of each version and, where it is known, the
licence. The same lock gives the same bytes: no time and no serial number are in it.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

from locked import ROOT, Pin, pins

SPDX = {
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "MIT-CMU",
    "MPL-2.0",
    "PSF-2.0",
}


def licences(stated: str) -> list[dict[str, Any]]:
    """A licence as CycloneDX has it: an identifier or expression of SPDX, or a name."""
    if not stated:
        return []
    if stated in SPDX:
        return [{"license": {"id": stated}}]
    if set(stated.split()) - {"OR", "AND"} <= SPDX:
        return [{"expression": stated}]
    return [{"license": {"name": stated}}]


def component(pin: Pin) -> dict[str, Any]:
    """A package."""
    url = f"pkg:pypi/{pin.key}@{pin.version}"
    found = {"type": "library", "bom-ref": url, "name": pin.name, "version": pin.version}
    found |= {"hashes": [{"alg": "SHA-256", "content": h} for h in pin.hashes]}
    if stated := licences(pin.licence):
        found |= {"licenses": stated}
    return found | {"purl": url}


def bill(lock: dict[str, Pin], project: dict[str, Any]) -> dict[str, Any]:
    """The document, with packages in the order of their names."""
    about = {
        "type": "library",
        "bom-ref": project["name"],
        "name": project["name"],
        "version": project["version"],
        "licenses": licences(project["license"]),
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": about},
        "components": [component(lock[name]) for name in sorted(lock)],
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    text = json.dumps(bill(pins(), declared["project"]), indent=2) + "\n"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    print(f"written: {out}")


if __name__ == "__main__":
    main()
