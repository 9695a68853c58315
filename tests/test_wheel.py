"""The wheel holds all that the package needs, and works where nothing else of the project is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "samebits"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SHIP = """
import numpy as np, torch
from torch import nn
import samebits as sb

print(sb.__file__)
net = sb.quantize(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), np.eye(4, dtype=np.float32))
for package in ("make", "cmake", "arduino", "zephyr", "espidf", "platformio"):
    net.compile(f"out/{package}", sb.Packaging(package=package))
assert sb.load("out/zephyr").verify("random:4", ["torch"])
"""

pytestmark = pytest.mark.slow


def ran(*words: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that what an earlier build left beside the sources is not in it."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    copy.mkdir()
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    for path in SOURCES.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            place = copy / path.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    # Without isolation nothing is downloaded.
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    ran(*pip, "wheel", *options, copy, cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder with nothing but the wheel's packages."""
    folder = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    ran(*pip, "install", "--quiet", "--no-deps", "--target", folder, wheel, cwd=folder)
    return folder


def test_it_is_pure_python_with_every_file(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    sources = {
        path.relative_to(SOURCES.parent).as_posix()
        for path in SOURCES.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == sources
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    lines = text.splitlines()
    assert f"License-Expression: {PROJECT['license']}" in lines
    assert f"Requires-Python: {PROJECT['requires-python']}" in lines
    for extra in PROJECT["optional-dependencies"]:
        assert f"Provides-Extra: {extra}" in lines


def test_the_doctor_from_the_wheel(installed, tmp_path):
    done = ran(
        sys.executable, "-m", "samebits", "doctor", "--json",
        cwd=tmp_path, PYTHONPATH=str(installed),
    )  # fmt: skip
    record = json.loads(done.stdout)
    assert record["right"] is True
    assert record["versions"]["samebits"] == PROJECT["version"]


def test_a_network_from_the_wheel(installed, tmp_path):
    done = ran(sys.executable, "-c", SHIP, cwd=tmp_path, PYTHONPATH=str(installed))
    assert Path(done.stdout.splitlines()[0]).is_relative_to(installed)
    assert (tmp_path / "out" / "zephyr" / "zephyr" / "module.yml").is_file()
