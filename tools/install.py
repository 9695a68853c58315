"""Installs packages of constraints.txt into this Python, each checked against its SHA-256.

    .venv/bin/python tools/install.py '.[test,lint]'
    .venv/bin/python tools/install.py --no-deps torchvision

pip first says which packages that takes here, installing none; those are then installed by
`pip install --require-hashes`, so that a file of other bytes ends it, and so does a package that
the list does not have. `.` is the project itself, editable, built by the setuptools of the list.
Only wheels are taken: no package runs code while it is installed. pip's own variables are honoured.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path

from locked import ROOT, Pin, key, pins

PROJECT = re.compile(r"\.(?:\[([a-z,-]+)\])?")
PIP = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
WHEELS = ["--only-binary", ":all:"]


def needs(extras: list[str]) -> list[str]:
    """What pyproject.toml asks for, with these extras, and what builds it."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = declared["project"]
    found = [*project["dependencies"], *declared["build-system"]["requires"]]
    for extra in extras:
        for need in project["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{project['name']}\[([a-z,-]+)\]", need)
            found += needs(own[1].split(",")) if own else [need]
    return list(dict.fromkeys(found))


def chosen(wanted: list[str], lock: dict[str, Pin], work: Path) -> dict[str, str]:
    """The packages that are still to be installed for these, by pip's choice, with versions that
    name the build: torch 2.13.0+cpu where pip finds it, which the list has as 2.13.0."""
    versions, report = work / "versions.txt", work / "report.json"
    versions.write_text("".join(f"{pin.name}=={pin.version}\n" for pin in lock.values()))
    command = [*PIP, *WHEELS, "--dry-run", "--report", str(report), "-c", str(versions), *wanted]
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"tools/install.py: pip finds no packages for {', '.join(wanted)}: see above")
    found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {key(item["metadata"]["name"]): item["metadata"]["version"] for item in found}


def install(versions: dict[str, str], lock: dict[str, Pin], work: Path) -> None:
    """Install packages, and nothing that they need, with their hashes."""
    unknown = [name for name in versions if name not in lock]
    if unknown:
        sys.exit(
            f"tools/install.py: expected every package in constraints.txt, found none for "
            f"{', '.join(unknown)}; add NAME==VERSION there and run make lock"
        )
    if not versions:
        return
    listed = work / "requirements.txt"
    pinned = [replace(lock[name], version=version) for name, version in versions.items()]
    listed.write_text("".join(pin.text() for pin in pinned))
    command = [*PIP, *WHEELS, "--no-deps", "--require-hashes", "-r", str(listed)]
    if subprocess.run(command, check=False).returncode:
        sys.exit(
            "tools/install.py: expected files with the SHA-256 that constraints.txt lists, and "
            "nothing was installed: see above. If a build of your own index is right, add its "
            "--hash there"
        )


def main() -> None:
    """Install what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="+", help=".[EXTRA,...] or names of constraints.txt")
    parser.add_argument("--no-deps", action="store_true", help="the named packages alone")
    options = parser.parse_args()
    own = [match for what in options.what if (match := PROJECT.fullmatch(what))]
    names = [what for what in options.what if not PROJECT.fullmatch(what)]
    for match in own:
        names += needs(match[1].split(",") if match[1] else [])
    lock = pins()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        alone = {key(n): lock[key(n)].version if key(n) in lock else "" for n in names}
        install(alone if options.no_deps else chosen(names, lock, work), lock, work)
    if own:
        editable = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
        sys.exit(subprocess.run([*PIP, *editable], check=False).returncode)


if __name__ == "__main__":
    main()
