"""Backends of other packages: found by their entry points, held to the same bits, and refused by
name where they are broken or claim a name that is taken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from samebits.cli import main
from samebits.errors import InputError
from samebits.model import Model
from samebits.verification.registry import (
    GROUP,
    backend_named,
    check_needs,
    known_backends,
)
from tiny_models import quantized_file, quantized_graph

PACKAGE = Path(__file__).parent / "package"


def install(folder: Path, name: str, version: str, entries: dict[str, str]) -> None:
    """Writes what an installer leaves of a package's metadata."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"{key} = {value}\n" for key, value in entries.items()]
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{''.join(lines)}")


@pytest.fixture
def installed(tmp_path):
    """The folder of an installation of `package`."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    folder = tmp_path / "site"
    install(folder, project["name"], project["version"], project["entry-points"][GROUP])
    (folder / "other_chip").symlink_to(PACKAGE / "other_chip")
    return folder


@pytest.fixture
def other_chip(installed, monkeypatch):
    """This process with that package."""
    monkeypatch.syspath_prepend(installed)
    yield
    sys.modules.pop("other_chip", None)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs a package with these backends and, perhaps, a module `theirs`."""

    def add(name, entries, module=None):
        folder = tmp_path / name
        install(folder, name, "1.0", entries)
        if module is not None:
            (folder / "theirs.py").write_text(module)
        monkeypatch.syspath_prepend(folder)

    yield add
    sys.modules.pop("theirs", None)


def refused(name, message):
    with pytest.raises(InputError) as caught:
        backend_named(name)
    assert str(caught.value) == message


def test_the_command_line_finds_it_and_catches_a_wrong_bit(installed, tmp_path):
    """As a user runs it: another process, which knows of the package by its metadata alone."""
    model = quantized_file(tmp_path / "tiny.onnx")

    def verify(names):
        path = os.pathsep.join([str(installed), *sys.path])
        options = ("--data", "random:3", "--backends", names, "--json")
        return subprocess.run(
            [sys.executable, "-m", "samebits", "verify", str(model), *options],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    done = verify("other-chip,torch,faulty-chip")
    assert (done.returncode, done.stderr) == (1, "")
    right, torch, wrong = json.loads(done.stdout)["verdicts"]
    assert (right["equal"], right["sha256"]) == (True, torch["sha256"])
    assert (wrong["equal"], wrong["differing"]) == (False, 1)
    done = verify("no-chip")
    assert (done.returncode, json.loads(done.stdout).keys()) == (2, {"error", "explain"})
    listed = done.stderr.removeprefix("error: unknown backend 'no-chip'; expected one of ")
    assert {"reference", "torch", "c", "npu", "other-chip", "faulty-chip"} <= set(
        listed.strip().split(", ")
    )


def test_listing_the_names_imports_no_package(other_chip):
    assert list(known_backends()) == sorted(known_backends())
    assert "other-chip" in known_backends()
    assert "other_chip" not in sys.modules
    assert backend_named("other-chip", Path("work")).work == Path("work")


def test_a_backend_of_the_other_kind_names_those_that_fit(other_chip, package):
    package("broken-chip", {"broken": "not_there:Chip"})
    firmware = Model("lstm.nnp", firmware=(None, None))
    with pytest.raises(InputError, match=r"backend other-chip runs quantized models, not this"):
        check_needs(backend_named("other-chip"), firmware)
    with pytest.raises(
        InputError, match=r"among aarch64, broken \(cannot be made\), c, .*other-chip, .*torch"
    ):
        check_needs(backend_named("npu"), Model("tiny", quantized_graph()))


def test_a_broken_package_is_named_and_stands_in_nobodys_way(package):
    package("broken-chip", {"missing": "not_there:Chip", "raising": "theirs:make"}, "1 / 0")
    advice = "; repair or uninstall the package"
    refused(
        "missing",
        "backend 'missing' of package broken-chip 1.0 (not_there:Chip): cannot be loaded "
        f"(ModuleNotFoundError: No module named 'not_there'){advice}",
    )
    refused(
        "raising",
        "backend 'raising' of package broken-chip 1.0 (theirs:make): cannot be loaded "
        f"(ZeroDivisionError: division by zero){advice}",
    )
    assert backend_named("torch").name == "torch"
    assert {"missing", "raising"} <= set(known_backends())


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("make = lambda work: 3", "int"),
        ("class make:\n  def __init__(self, work): self.name = 'theirs'", "make"),
        (
            "from samebits.verification.backends.reference import Reference\n"
            "make = lambda work: Reference()",  # of another name
            "Reference",
        ),
        (
            "from samebits.verification.backends.reference import Reference\n"
            "class Make(Reference):\n  name, needs = 'theirs', 'everything'\n"
            "make = lambda work: Make()",
            "Make",
        ),
    ],
)
def test_what_is_no_backend_is_refused(package, module, found):
    package("some-chip", {"theirs": "theirs:make"}, module)
    refused(
        "theirs",
        "backend 'theirs' of package some-chip 1.0 (theirs:make): expected a backend (name "
        f"'theirs', needs 'graph' or 'firmware', unavailable, run, trace), found {found}; repair "
        "or uninstall the package",
    )


def test_names_that_collide_are_refused_by_name(package):
    package("one-chip", {"torch": "theirs:make", "twice": "theirs:make"}, "make = None")
    package("two-chip", {"twice": "theirs:make"})
    advice = "; uninstall or rename one"
    refused(
        "torch",
        "backend 'torch': expected one package to define it, found samebits and package one-chip "
        f"1.0{advice}",
    )
    refused(
        "twice",
        "backend 'twice': expected one package to define it, found package two-chip 1.0 and "
        f"package one-chip 1.0{advice}",
    )
    assert backend_named("c").name == "c"


def test_a_broken_package_is_an_error_of_the_command_that_asks_for_it(package, tmp_path, capsys):
    package("broken-chip", {"broken": "not_there:Chip"})
    model = quantized_file(tmp_path / "tiny.onnx")
    for names, code in (("torch,broken", 2), ("torch", 0)):
        with pytest.raises(SystemExit) as caught:
            main(["verify", str(model), "--data", "random:2", "--backends", names])
        assert (caught.value.code or 0) == code
        shown = capsys.readouterr()
        if code:
            assert shown.out == ""
            assert shown.err.startswith("error: backend 'broken' of package broken-chip 1.0 ")
