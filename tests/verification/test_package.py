"""Packages of C as a function of their model.onnx: each changed byte is named, nothing of a changed
folder is built, and every package is made again byte for byte."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from hashlib import sha256

import pytest
import torch
from torch import nn

import samebits as sb
from samebits.codegen.packaging.package import replace_folder
from samebits.codegen.packaging.projects import PROJECTS
from samebits.errors import InputError, PackageError
from samebits.verification.backends import generated_c
from samebits.verification.backends.generated_c import GeneratedC
from tiny_models import quantized_file, trained_folder


def content(folder):
    """Every file of a folder by path."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def no_compiler(monkeypatch):
    """`ship` without the C on this machine, and without measuring boards."""
    monkeypatch.setattr("samebits.codegen.run.requirements.BOARDS", ())
    monkeypatch.setattr(GeneratedC, "unavailable", lambda self: "not here")


@pytest.fixture
def nothing_runs(monkeypatch):
    """Fails where generated C is built, or any backend computes."""

    def never(*given, **options):
        raise AssertionError("something was built or run")

    monkeypatch.setattr(generated_c, "build", never)
    monkeypatch.setattr("samebits.network.Network.interface", property(never))
    for room in ("predictions", "verification.run"):  # the first takes it from the second
        monkeypatch.setattr(f"samebits.{room}.verify_model", never)


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A small network in the layout of every build system."""
    root = tmp_path_factory.mktemp("packages")
    net = sb.load(quantized_file(root / "tiny.onnx"))
    for project in PROJECTS:
        net.compile(root / project, sb.Packaging(package=project, prefix="kws"))
    return root


@pytest.fixture(params=PROJECTS)
def package(request, packages, tmp_path):
    return shutil.copytree(packages / request.param, tmp_path / "pk")


def why(folder):
    """Why `verify` refuses the folder, as the exit code of the command line follows from it."""
    try:
        found = sb.load(folder).verify("random:1", ["torch", "c"])
    except PackageError as error:  # of model.onnx, which is read first
        return str(error)
    assert (bool(found), found.verdicts, found.sealed) == (False, (), "")
    return found.refused


def resealed(folder, name, data):
    """Change a file, and state its new SHA-256 in the report."""
    replace_folder(folder, {**content(folder), name: data})


def flipped(data, place=None):
    at = len(data) // 2 if place is None else place
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


# --- what differs is named ----------------------------------------------------------------------


def test_a_changed_byte_of_every_file_is_named(package, nothing_runs):
    files = content(package)
    assert len(files) > 15
    for name, data in files.items():
        (package / name).write_bytes(flipped(data))
        assert name in why(package)
        (package / name).write_bytes(data)


def test_a_changed_file_with_its_new_hash_is_named(packages, tmp_path, nothing_runs):
    """A seal can be made by anybody; what this version generates cannot."""
    folder = shutil.copytree(packages / "cmake", tmp_path / "pk")
    files = content(folder)
    for name in files.keys() - {"report.json", "model.onnx"}:
        resealed(folder, name, files[name] + b"\n")
        found = why(folder)
        assert f"  {name}: not what samebits" in found
        assert "report.json: not what samebits" in found
        replace_folder(folder, files)


def places(report):
    """Of every line of a report, the last letter or digit."""
    ends, at = [], 0
    for line in report.splitlines(keepends=True):
        found = [i for i, byte in enumerate(line) if chr(byte).isalnum()]
        ends += [at + found[-1]] if found else []
        at += len(line)
    return ends


def test_a_changed_byte_of_the_report_is_named(packages, tmp_path, nothing_runs):
    """Here in a part of its lines; another SHA-256, option or version is not taken for granted."""
    folder = shutil.copytree(packages / "make", tmp_path / "pk")
    report = (folder / "report.json").read_bytes()
    for place in places(report)[::4]:
        (folder / "report.json").write_bytes(flipped(report, place))
        assert "report.json" in why(folder)


@pytest.mark.slow
def test_every_changed_byte_of_the_report_is_named(packages, tmp_path, nothing_runs):
    folder = shutil.copytree(packages / "make", tmp_path / "pk")
    report = (folder / "report.json").read_bytes()
    for place in range(len(report)):
        (folder / "report.json").write_bytes(flipped(report, place))
        assert "report.json" in why(folder)


def test_files_more_or_less_are_named(packages, tmp_path, nothing_runs):
    folder = shutil.copytree(packages / "make", tmp_path / "pk")
    (folder / "evil.c").write_bytes(b"")
    assert "  evil.c: not of the package, as report.json does not state it" in why(folder)
    resealed(folder, "evil.c", b"int main(void) { return 0; }\n")
    assert "  evil.c: not what samebits" in why(folder)
    (folder / "evil.c").unlink()
    assert "  evil.c: missing, though report.json states it" in why(folder)
    kept = {name: data for name, data in content(folder).items() if name != "kws.c"}
    replace_folder(folder, kept)
    assert "  kws.c: not what samebits" in why(folder)
    (folder / "report.json").unlink()
    assert "report.json: expected a file of a package, found none" in why(folder)


def test_files_that_are_links_are_named(packages, tmp_path, nothing_runs):
    folder = shutil.copytree(packages / "make", tmp_path / "pk")
    for name in content(packages / "make"):
        (folder / name).unlink()
        (folder / name).symlink_to(packages / "make" / name)
    with pytest.raises(InputError, match=r"model.onnx: expected a file, found a link"):
        sb.load(folder)
    shutil.copy(packages / "make" / "report.json", tmp_path / "report.json")
    (folder / "report.json").unlink()
    shutil.move(tmp_path / "report.json", folder / "report.json")
    assert "model.onnx: expected a regular file" in why(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prefix", "a;b"),
        ("prefix", ""),
        ("prefix", []),
        ("cpu", "z80"),
        ("package", "../make"),
        ("cpu", 3),
    ],
)
def test_options_that_nothing_was_made_with(packages, tmp_path, nothing_runs, field, value):
    folder = shutil.copytree(packages / "make", tmp_path / "pk")
    report = json.loads((folder / "report.json").read_text())
    (folder / "report.json").write_text(json.dumps({**report, field: value}))
    assert f"{folder}/report.json: expected the prefix, cpu and package" in why(folder)


def test_the_package_of_another_network(packages, tmp_path, nothing_runs):
    """Its C was made for another model.onnx than that of the folder."""
    other = quantized_file(tmp_path / "other.onnx", batch=2)
    folder = shutil.copytree(packages / "make", tmp_path / "pk")
    resealed(folder, "model.onnx", other.read_bytes())
    assert "  kws.c: not what samebits" in why(folder)


# --- versions, and other ways to run it -----------------------------------------------------------


def test_another_version(packages, tmp_path, nothing_runs, monkeypatch):
    """Its hashes are checked, and its C is not run."""
    folder = shutil.copytree(packages / "make", tmp_path / "pk")
    report = json.loads((folder / "report.json").read_text())
    ours = report["version"]
    (folder / "report.json").write_text(json.dumps({**report, "version": "0.0.9"}))
    assert why(folder) == (
        f"{folder}/report.json: samebits '0.0.9' wrote this package, and this is {ours}: its files "
        "were compared with the SHA-256 of the report alone, and its C was not run; verify it with "
        "that version, or compile again"
    )
    with pytest.raises(PackageError, match=r"samebits '0\.0\.9' wrote this package"):
        sb.load(folder).rebuild(tmp_path / "again")
    (folder / "kws.c").write_bytes(b"")
    assert "  kws.c: another SHA-256 than report.json states" in why(folder)


def test_its_c_is_what_runs(packages, tmp_path, monkeypatch):
    """With its prefix and kernels, from memory: the folder may change meanwhile."""
    if not shutil.which("cc"):
        pytest.skip("needs cc")
    net = sb.load(packages / "zephyr")
    built = []

    def build(folder, target, work, interface, trace):
        built.append((interface.prefix, content(folder)))
        return real(folder, target, work, interface, trace)

    real = generated_c.build
    monkeypatch.setattr(generated_c, "build", build)
    found = net.verify("random:3", ["torch", "c"])
    assert found
    assert found.samples == 3
    report = (packages / "zephyr" / "report.json").read_bytes()
    assert found.sealed == found.to_dict()["report_sha256"] == sha256(report).hexdigest()
    assert f"for its model.onnx; report.json: sha256 {found.sealed}" in str(found)
    ((prefix, sources),) = built
    assert prefix == "kws"
    for name in ("kws.c", "kws_constants.c", "samebits/samebits_kernels.c"):
        assert sources[name] == (packages / "zephyr" / name).read_bytes()


def test_other_calls_run_no_strangers_c_either(packages, tmp_path, nothing_runs):
    folder = shutil.copytree(packages / "make", tmp_path / "pk")
    (folder / "kws.c").write_bytes(b"")
    model = sb.load(folder).model
    for call in (GeneratedC("c").run, GeneratedC("c").trace):
        with pytest.raises(PackageError, match=r"kws\.c: another SHA-256"):
            call(model, [])


def test_a_network_that_only_began_as_a_package(packages):
    """A part of it, or its steps, are other networks: no folder stands for them."""
    whole = sb.load(packages / "make")
    assert whole.model.package == packages / "make"
    assert sb.load(packages / "make" / "model.onnx").model.package is None
    assert sb.load(packages / "make", end_at=["h.codes"]).model.package is None
    with pytest.raises(InputError, match="expected a folder that samebits compile or ship wrote"):
        sb.load(packages / "make" / "model.onnx").rebuild(packages / "again")


# --- the same bytes again -------------------------------------------------------------------------


def again(folder, out):
    """The package made again, which is the same."""
    sha = sb.load(folder).rebuild(out)
    assert content(out) == content(folder)
    assert sha == sha256((folder / "report.json").read_bytes()).hexdigest()


@pytest.mark.parametrize("project", PROJECTS)
def test_what_compile_writes_is_made_again(project, packages, tmp_path):
    again(packages / project, tmp_path / "again")


@pytest.mark.parametrize("project", PROJECTS)
def test_what_ship_writes_is_made_again(project, tmp_path, no_compiler):
    """With its page, which only people read."""
    made = sb.ship(
        quantized_file(tmp_path / "tiny.onnx"),
        None,
        tmp_path / "a",
        sb.Packaging(package=project, cpu="cortex-m4"),
        backends=["torch"],
    )
    folder = made.folder
    report = (folder / "report.json").read_bytes()
    assert made.compiled.report_sha256 == sha256(report).hexdigest()
    assert "report.html" in json.loads(report)["files"]
    again(folder, tmp_path / "b")
    assert sb.load(folder).verify("random:2", ["torch"])
    (folder / "report.html").write_bytes(b"<script>")
    assert "report.html: another SHA-256 than report.json states" in why(folder)


@pytest.mark.slow
def test_a_trained_network_with_features_and_one_of_steps(tmp_path, tmp_path_factory):
    trained = trained_folder(tmp_path_factory)
    sb.load(trained).compile(tmp_path / "mlp", sb.Packaging(package="cmake"))
    again(tmp_path / "mlp", tmp_path / "mlp2")

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)

        def forward(self, x):
            return self.out(self.lstm(x)[0])

    torch.manual_seed(0)
    steps = sb.quantize(Tagger().eval(), torch.randn(4, 6, 4))
    steps.compile(tmp_path / "lstm")
    again(tmp_path / "lstm", tmp_path / "lstm2")


def test_sound_is_made_again(packages, tmp_path):
    """A network of recordings has the C of their features beside it, of its own report."""
    from dataclasses import replace

    net = sb.load(packages / "make" / "model.onnx")
    heard = sb.load(replace(net.model, rate=8000))
    for project in ("make", "arduino"):
        heard.compile(tmp_path / project, sb.Packaging(package=project))
        assert any(name.startswith("audio/") for name in content(tmp_path / project))
        again(tmp_path / project, tmp_path / f"{project}2")


def test_a_folder_is_mended_in_its_place(packages, tmp_path):
    folder = shutil.copytree(packages / "make", tmp_path / "pk")
    (folder / "kws.c").write_bytes(b"")
    sb.load(folder).rebuild(folder)
    assert content(folder) == content(packages / "make")


def test_nothing_of_the_machine_is_in_a_package(packages):
    """No path, no time, no name of a version of Python."""
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    words = [str(packages), os.getcwd(), sys.version.split()[0], f"{now:%Y-%m-%d}", f"{now:%b %d}"]
    for project in PROJECTS:
        for name, data in content(packages / project).items():
            assert not [word for word in words if word.encode() in data], name


AGAIN = """
import sys
import samebits as sb
for name in sys.argv[2:]:
    print(sb.load(f"{sys.argv[1]}/{name}").rebuild(f"{sys.argv[1]}/{name}-again"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "1", "77"])
def test_another_process_and_hash_seed(packages, tmp_path, seed):
    root = shutil.copytree(packages, tmp_path / "packages")
    done = subprocess.run(
        [sys.executable, "-c", AGAIN, root, *PROJECTS],
        env={**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": "C", "TZ": "Asia/Tokyo"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for project in PROJECTS:
        assert content(root / f"{project}-again") == content(root / project)
