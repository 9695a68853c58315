"""`samebits doctor`: on this machine, and on one without compilers, emulators and packages."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import samebits as sb
from samebits import kernels
from samebits.checkup import machine, selftest
from samebits.checkup.result import Checkup, FoundProgram, NativeKernels, SelfTest
from samebits.cli import main
from samebits.codegen.run.targets import TARGETS
from samebits.errors import InputError
from samebits.kernels.build import BuildError
from samebits.verification.registry import known_backends

OPTIONAL = ("onnxruntime", "tensorflow", "tensorboard", "sklearn")


@pytest.fixture(scope="module")
def here() -> Checkup:
    return sb.doctor()


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Checkup:
    """Of a machine with an empty PATH and without the optional packages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))
        patch.delenv("CC", raising=False)
        for name in OPTIONAL:
            patch.setitem(sys.modules, name, None)
        return sb.doctor()


def state(found: Checkup, name: str) -> str | None:
    return next(backend.why for backend in found.backends if backend.name == name)


# --- this machine -------------------------------------------------------------------------------


def test_the_self_test_is_right(here):
    """After a meant change of bits: selftest.EXPECTED gets what this test has found."""
    found = {(test.what, test.on): test.sha256 for test in here.selftest if test.sha256}
    assert found == {key: selftest.EXPECTED[key[0]] for key in found}
    assert {("training", "eager"), ("inference", "reference"), ("inference", "torch")} <= set(found)
    assert here
    assert str(here).endswith("\n\nself-test: right")


def test_every_backend_is_listed_as_it_says_of_itself(here):
    expected = {name: make(None).unavailable() for name, make in known_backends().items()}
    assert {backend.name: backend.why for backend in here.backends} == expected
    where = {backend.name: backend.where for backend in here.backends}
    assert where["torch"] == "this process"
    assert where["cortex-m3"] == "emulated board mps2-an385"
    assert where["s390x"] == "emulated by qemu-s390x"


def test_programs_are_those_of_the_targets(here):
    commands = {tool.command for target in TARGETS.values() for tool in target.tools}
    names = {program.name for program in here.programs} | {here.compiler.name}
    assert names == commands


def test_packages_are_those_of_the_project(here):
    """What is needed, and what an extra names."""
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    needed = {re.split("[>=]", name)[0] for name in project["dependencies"]}
    assert {package.name for package in here.packages if not package.use} == needed
    for package in here.packages:
        if package.use:
            extras = project["optional-dependencies"].values()
            assert any(n.startswith(package.name) for names in extras for n in names)
    versions = {package.name: package.version for package in here.packages}
    assert versions["torch"] == metadata.version("torch")


def test_the_library_of_kernels_is_a_file(here):
    if here.kernels.library is None:
        pytest.skip(f"no native kernels: {here.kernels.why}")
    assert os.path.isfile(here.kernels.library)


# --- a machine that has nothing -----------------------------------------------------------------


def test_without_compiler_emulators_and_packages(bare):
    assert bare
    ran = {(test.what, test.on): test.word for test in bare.selftest}
    assert ran == {
        ("training", "eager"): "right",
        ("training", "native"): "not run",
        ("training", "compiled"): "not run",
        ("inference", "reference"): "right",
        ("inference", "torch"): "right",
        ("inference", "c"): "not run",
        ("inference", "onnxruntime-integer"): "not run",
    }
    assert (bare.compiler.path, bare.kernels.library) == (None, None)
    assert bare.kernels.why == "the C compiler cc is not installed; name another by $CC"
    advice = "c: cc is not installed (install it, on Debian: apt install gcc)"
    assert state(bare, "c") == advice
    assert state(bare, "cortex-m3").startswith("cortex-m3: arm-none-eabi-gcc is not installed (")
    assert state(bare, "onnxruntime").endswith("pip install onnxruntime")
    assert state(bare, "concordant-tensorflow").endswith("pip install tensorflow")
    assert state(bare, "torch") is None


def test_what_is_missing_and_what_installs_it(bare):
    commands = {missing.name: missing.command for missing in bare.missing}
    assert commands["onnxruntime"] == "pip install onnxruntime"
    assert commands["scikit-learn"] == "pip install scikit-learn"
    assert commands["cc"] == "apt install gcc"
    assert commands["qemu-system-arm"] == "apt install qemu-system-arm"
    text = str(bare)
    for missing in bare.missing:
        assert missing.command in text


def test_json(bare):
    record = json.loads(json.dumps(bare.to_dict(), allow_nan=False))
    assert record["right"] is True
    assert record["compiler"]["path"] is None
    assert [test["right"] for test in record["selftest"]].count(None) == 4
    assert {"torch", "numpy", "onnxruntime"} <= {package["name"] for package in record["packages"]}


@pytest.mark.slow
@pytest.mark.parametrize("package", ["torch", "numpy", "onnx"])
def test_without_what_is_needed(package):
    """Nothing is raised: exit code 1, one JSON object, and the command that installs it."""
    code = (
        f"import sys; sys.modules[{package!r}] = None; from samebits.cli import main; "
        "main(['doctor', '--json'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    record = json.loads(done.stdout)
    assert (done.returncode, record["right"]) == (1, False)
    assert record["missing"][0] == {
        "name": package,
        "use": "everything",
        "command": f"pip install {package}",
    }
    assert any(package in str(test["why"]) for test in record["selftest"]) or record["faults"]


# --- what is broken -----------------------------------------------------------------------------


def test_a_difference_is_told(bare):
    wrong = tuple(
        dataclasses.replace(test, sha256="0" * 64) if test.on == "torch" else test
        for test in bare.selftest
    )
    found = dataclasses.replace(bare, selftest=wrong)
    assert not found
    assert found.to_dict()["right"] is False
    assert str(found).endswith("self-test: inference on torch: WRONG")


def test_an_error_is_no_difference(bare, monkeypatch):
    def fails(kernels):
        raise RuntimeError("no such\n instruction")

    monkeypatch.setattr(selftest, "training", fails)
    test = selftest.on_kernels("eager", None)
    assert (test.right, test.word, test.why) == (
        False,
        "FAILED",
        "RuntimeError: no such instruction",
    )
    found = dataclasses.replace(bare, selftest=(test, *bare.selftest[1:]))
    assert str(found).endswith("self-test: training on eager: FAILED")


def test_a_self_test_that_did_not_run_is_not_right(bare):
    found = dataclasses.replace(bare, selftest=())
    assert not found
    assert str(found).endswith("self-test: NOT RUN")


def test_a_question_that_breaks_is_a_fault(monkeypatch):
    def breaks():
        raise OSError("the disk\nis gone")

    for name in ("versions", "packages", "compiler", "kernels", "backends", "programs"):
        monkeypatch.setattr(machine, name, breaks)
    monkeypatch.setattr(selftest, "on_backends", list)
    monkeypatch.setattr(selftest, "on_kernels", lambda name, why: SelfTest("training", name, "0"))
    found = sb.doctor()
    assert found.kernels == NativeKernels(why="they cannot be examined")
    assert len(found.faults) == 6
    assert "backends: cannot be told: OSError: the disk is gone" in str(found)


def test_broken_backends_of_others(monkeypatch):
    def fails(work):
        raise ValueError("no chip")

    def refused(work):
        raise InputError("backend 'two': expected one package to define it")

    known = {"one": fails, "two": refused, "torch": known_backends()["torch"]}
    monkeypatch.setattr("samebits.verification.registry.known_backends", lambda: known)
    assert [(found.needs, found.why) for found in machine.backends()] == [
        ("unknown", "one: ValueError: no chip"),
        ("unknown", "backend 'two': expected one package to define it"),
        ("graph", None),
    ]


def test_a_compiler_that_compiles_nothing(monkeypatch, tmp_path):
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'fatal error: no room' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    found = machine.compiler()
    assert (found.path, found.why) == (str(broken), "fatal error: no room")
    shown = Checkup({}, (), found, NativeKernels(why="no"), (), (), (), ())
    assert f"compiler: {broken} (no version), DOES NOT WORK: fatal error: no room" in str(shown)


def test_a_compiler_whose_programs_do_not_run(monkeypatch, tmp_path):
    liar = tmp_path / "cc"
    script = '#!/bin/sh\nfor last; do :; done\n[ "$last" = --version ] && exit\n'
    liar.write_text(script + 'echo "exit 3" >"$last"\nchmod +x "$last"\n')
    liar.chmod(0o755)
    monkeypatch.setenv("CC", str(liar))
    assert "a program that it compiled" in str(machine.compiler().why)


@pytest.mark.slow
def test_tools_that_never_end(monkeypatch, tmp_path):
    """Each is waited for a few times, whatever the number of backends that use it."""
    for name in ("endless", "qemu-system-arm", "arm-none-eabi-gcc"):
        tool = tmp_path / name
        tool.write_text("#!/bin/sh\nsleep 1000\n")
        tool.chmod(0o755)
    (tmp_path / "sleep").symlink_to(str(shutil.which("sleep")))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "endless")
    for module in ("csrc", "checkup.machine", "codegen.run.toolchain", "kernels.build"):
        monkeypatch.setattr(f"samebits.{module}.ANSWER", 0.5)
    kernels._native.cache_clear()
    found = sb.doctor()
    assert found
    assert kernels._native.cache_info().currsize == 0  # nothing else tried to compile them
    told = "to end within 0.5 seconds, found it still running"
    assert told in str(found.compiler.why)
    assert told in str(found.kernels.why)
    for name in ("c", "cortex-m0", "cortex-m3"):
        assert told in str(state(found, name))
    broken = {program.name for program in found.programs if told in str(program.why)}
    assert broken == {"qemu-system-arm", "arm-none-eabi-gcc"}
    assert f"{tmp_path}/qemu-system-arm DOES NOT WORK: expected" in str(found)


def test_a_compiler_that_does_not_work_is_not_asked_for_kernels(monkeypatch, tmp_path):
    calls = tmp_path / "calls"
    broken = tmp_path / "cc"
    broken.write_text(f'#!/bin/sh\necho "$@" >>{calls}\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    assert str(machine.kernels(False).why).startswith("the cache holds no library of these sources")
    assert calls.read_text() == "--version\n"


def test_wrong_kernels_are_none(monkeypatch):
    monkeypatch.setattr("samebits.kernels.selftest.failures", lambda kernels, device: ["conv"])
    monkeypatch.setattr("samebits.kernels.native.Native", lambda: None)
    assert machine.kernels(True).why == "they differ from plain integers in conv"


def test_kernels_that_were_not_built(monkeypatch):
    def no(self, arch=None):
        raise BuildError("no room")

    monkeypatch.setattr("samebits.kernels.native.Native.__init__", no)
    assert machine.kernels(True) == NativeKernels(why="no room")


# --- the command --------------------------------------------------------------------------------


@pytest.mark.parametrize("right", [True, False])
def test_the_command(monkeypatch, capsys, bare, right):
    found = bare if right else dataclasses.replace(bare, selftest=())
    monkeypatch.setattr("samebits.checkup.doctor", lambda: found)
    for extra in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["doctor", *extra])
        out = capsys.readouterr().out
        assert (ended.value.code or 0) == (0 if right else 1)
        if extra:
            assert json.loads(out) == found.to_dict()
        else:
            assert out == f"{found}\n"


def test_programs_say_what_uses_them(bare):
    (board,) = (program for program in bare.programs if program.name == "qemu-system-arm")
    assert board == FoundProgram(
        "qemu-system-arm",
        None,
        None,
        "apt install qemu-system-arm",
        "cortex-m0, cortex-m0-large, cortex-m3, cortex-m4, cortex-m7, cortex-m33, cortex-m55",
    )
