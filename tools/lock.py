"""Writes the SHA-256 of every file of every package of constraints.txt into it, and the licences.

    make lock

The names, versions and order stay: change those by hand, then run this. uv asks the index for all
files of a version, for every system and version of Python. Licences are those that the installed
packages state. Files of torch's CPU builds lie on an index of PyTorch's own, which is not asked:
CPU_TORCH holds them, and a new version of torch needs new ones, or none.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from locked import LOCK, Pin, key, parse, written

# Of download.pytorch.org/whl/cpu, by version: CPython 3.11 to 3.13 on Linux, x86-64 and AArch64.
CPU_TORCH = {
    "2.13.0": (
        "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",  # 3.11 x86-64
        "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",  # 3.12
        "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",  # 3.13
        "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",  # 3.11 AArch64
        "6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604",  # 3.12
        "0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d",  # 3.13
    )
}
LONGEST = 40  # letters of a licence: a longer one is its text


def files(wanted: list[Pin]) -> dict[str, tuple[str, ...]]:
    """The SHA-256 of all files of these packages, by key, as the index has them."""
    python = "{}.{}.{}".format(*sys.version_info[:3])
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "-", "--no-deps"]
    every = ["--universal", "--python-version", python]
    done = subprocess.run(
        [*uv, *every, "--generate-hashes", "--no-annotate", "--no-header"],
        input="".join(f"{pin.name}=={pin.version}\n" for pin in wanted),
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"tools/lock.py: uv cannot list the files:\n{done.stderr}")
    return {part.key: part.hashes for part in parse(done.stdout) if isinstance(part, Pin)}


def licence(pin: Pin) -> str:
    """What the installed package states; what the lock says where it is not installed."""
    try:
        about = metadata.distribution(pin.name).metadata
    except metadata.PackageNotFoundError:
        return pin.licence
    classes = [c for c in about.get_all("Classifier") or [] if c.startswith("License :: ")]
    stated = about.get("License-Expression") or about.get("License") or ""
    if not stated or len(stated) > LONGEST or "\n" in stated:
        stated = classes[0].rpartition(" :: ")[2] if classes else pin.licence
    return re.sub(r"\s+", " ", stated)


def main() -> None:
    """Write constraints.txt anew."""
    parts = parse(LOCK.read_text(encoding="utf-8"))
    found = files([part for part in parts if isinstance(part, Pin)])
    lines: list[Pin | str] = []
    for part in parts:
        if isinstance(part, Pin):
            more = CPU_TORCH.get(part.version, ()) if key(part.name) == "torch" else ()
            hashes = tuple(sorted({*found[part.key], *more}))
            part = Pin(part.name, part.version, licence(part), hashes)
        lines.append(part)
    LOCK.write_text(written(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
