"""Folders of firmware and of training runs against the SHA-256 that they state, and signed ones."""

from __future__ import annotations

import json
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from torch import nn

import samebits as sb
from samebits.errors import InputError
from samebits.verification.sealed import check_folder
from tiny_models import quantized_file, trained_folder

needs_keys = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="needs ssh-keygen, of OpenSSH"
)


@pytest.fixture(scope="module")
def firmware(tmp_path_factory):
    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("firmware") / "npu"
    net = sb.load(nn.Sequential(nn.Linear(4, 3)), example=torch.ones(1, 4))
    made = net.compile(out, sb.Accelerator(native_dim=8), target="npu")
    assert made.report_sha256 == sha256((out / "report.json").read_bytes()).hexdigest()
    assert f"sha256 {made.report_sha256}" in str(made)
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained_folder(tmp_path_factory)


@pytest.fixture(params=["firmware", "run"])
def folder(request, tmp_path):
    return shutil.copytree(request.getfixturevalue(request.param), tmp_path / "folder")


def report_of(folder):
    return folder / ("report.json" if (folder / "model.nnp").exists() else "result.json")


def own(folder):
    return json.loads(report_of(folder).read_text())["files"]


def refused(folder, *lines):
    """These lines, below a first one that counts them; nothing is compared."""
    found = sb.load(folder).verify("random:1")
    assert (bool(found), found.verdicts, found.sealed) == (False, (), "")
    first, *below = found.refused.split("\n")
    count = "1 file that differs" if len(lines) == 1 else f"{len(lines)} files that differ"
    assert first.startswith(
        f"{folder}: expected the files that {report_of(folder).name} states, found {count};"
    )
    assert below == [f"  {line}" for line in lines]


def test_a_folder_states_its_files(folder):
    stated = own(folder)
    names = {path.name for path in folder.iterdir()} - {report_of(folder).name}
    assert stated.keys() == names
    for name in names:
        assert stated[name] == sha256((folder / name).read_bytes()).hexdigest()
    found = check_folder(sb.load(folder).model)
    assert found.sha256 == sha256(report_of(folder).read_bytes()).hexdigest()
    assert f"the {len(stated)} files that {report_of(folder).name} states are unchanged" in (
        found.found
    )
    assert "not looked at" not in found.found


def test_verify_says_what_was_not_checked(firmware, run):
    found = sb.load(firmware).verify("random:2")
    assert found
    assert "what network the program was made of cannot be seen; report.json: sha256" in str(found)
    assert found.to_dict()["report_sha256"] == found.sealed
    found = sb.load(run).verify("random:2", ["torch"])
    assert found
    assert "the training was not repeated; result.json: sha256" in str(found)


def test_a_changed_file_is_named(folder):
    """Other names for its checkpoints are no way out, nor are links."""
    report = report_of(folder)
    for name in own(folder):
        if name.endswith(".safetensors"):
            continue  # what cannot be read any more is no model at all
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(kept + b"\n")
        refused(folder, f"{name}: another SHA-256 than {report.name} states")
        (folder / name).write_bytes(kept)
    record = json.loads(report.read_text())
    first, *_ = record["files"]
    report.write_text(json.dumps({**record, "files": {"../x": "", "é": "", **record["files"]}}))
    refused(
        folder,
        f"../x: missing, though {report.name} states it",
        f"'\\xe9': missing, though {report.name} states it",
    )
    left = {name: h for name, h in record["files"].items() if name != first}
    report.write_text(json.dumps({**record, "files": left}))
    refused(folder, f"{first}: not of the folder, as {report.name} does not state it")


def test_a_checkpoint_that_the_run_did_not_write(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    (newest,) = sorted(folder.glob("checkpoint-*"))[-1:]
    shutil.copy(newest, folder / "checkpoint-99999999.safetensors")
    found = sb.load(newest).verify("random:1", ["torch"])  # of a file alone nothing is said
    assert (found.checked, found.sealed) == ("", "")
    lines = "checkpoint-99999999.safetensors: not of the folder, as result.json does not state it"
    assert lines in check_folder(sb.load(folder).model).refused


def test_another_program_than_was_read(firmware, tmp_path):
    """The files change places between reading and checking."""
    folder = shutil.copytree(firmware, tmp_path / "npu")
    model = sb.load(folder).model
    record = json.loads((folder / "report.json").read_text())
    (folder / "report.json").write_text(json.dumps({**record, "sha256": "0" * 64}))
    assert "states the SHA-256 of another program than was read" in check_folder(model).refused


def test_other_files_of_the_folder_are_counted(folder):
    (folder / "concordant.py").write_text("")
    assert "not looked at: 1 other in the folder;" in check_folder(sb.load(folder).model).found
    (folder / "more").mkdir()
    assert "not looked at: 2 others in the folder;" in check_folder(sb.load(folder).model).found


def test_a_folder_that_states_nothing(folder):
    """Written by hand, by an earlier version, or before the run ended: it is said, not hidden."""
    report = report_of(folder)
    record = json.loads(report.read_text())
    report.write_text(json.dumps({key: record[key] for key in record if key != "files"}))
    for _ in range(2):
        found = sb.load(folder).verify("random:1")
        assert found
        assert found.checked == f"no file was compared with a SHA-256: {report.name} states none"
        report.unlink(missing_ok=True)
    assert "expected the SHA-256 of the files of the folder" in (
        check_folder(sb.load(folder).model, Path("who")).refused
    )


def test_a_report_of_another_format(folder):
    report = report_of(folder)
    record = json.loads(report.read_text())
    report.write_text(json.dumps({**record, "format": "x" * 100}))
    refusal = check_folder(sb.load(folder).model).refused
    assert refusal.startswith(f"{report}: expected format 'samebits-")
    assert len(refusal) < 250 + len(str(report))


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_report_that_is_no_file(firmware, tmp_path, kind):
    folder = shutil.copytree(firmware, tmp_path / "npu")
    (folder / "report.json").rename(tmp_path / "report.json")
    if kind == "link":
        (folder / "report.json").symlink_to(tmp_path / "report.json")
    else:
        subprocess.run(["mkfifo", folder / "report.json"], check=True)
    refusal = check_folder(sb.load(folder).model).refused
    assert refusal.startswith(f"{folder}/report.json: expected a file, found a {kind}")


# --- writing ------------------------------------------------------------------------------------


def test_firmware_replaces_firmware_and_no_package(firmware, tmp_path):
    folder = shutil.copytree(firmware, tmp_path / "npu")
    net = sb.load(nn.Sequential(nn.Linear(4, 2)), example=torch.ones(1, 4))
    (folder / "report.json.sig").write_text("of the earlier report")
    (folder / "notes.txt").write_text("mine")
    net.compile(folder, sb.Accelerator(native_dim=8), target="npu")
    assert sb.load(folder).verify("random:1")
    assert not (folder / "report.json.sig").exists()
    assert (folder / "notes.txt").read_text() == "mine"
    sb.load(quantized_file(tmp_path / "tiny.onnx")).compile(tmp_path / "c")
    with pytest.raises(InputError, match=r"expected a folder without a report\.json, or with that"):
        net.compile(tmp_path / "c", sb.Accelerator(native_dim=8), target="npu")
    with pytest.raises(InputError, match="expected a new or empty folder or an earlier package"):
        sb.load(tmp_path / "tiny.onnx").compile(folder)


def test_only_packages_of_c_are_built_again(folder, tmp_path):
    with pytest.raises(InputError, match="expected a folder that samebits compile or ship wrote"):
        sb.load(folder).rebuild(tmp_path / "again")


# --- signatures ---------------------------------------------------------------------------------


@pytest.fixture
def key(tmp_path):
    place = tmp_path / "key"
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(place)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    (tmp_path / "who").write_text(f"maker@x {place.with_suffix('.pub').read_text()}")
    return place


@needs_keys
@pytest.mark.parametrize("target", ["c", "npu"])
def test_compile_signs_and_verify_checks(target, key, tmp_path):
    out = tmp_path / "out"
    if target == "c":
        net = sb.load(quantized_file(tmp_path / "tiny.onnx"))
    else:
        net = sb.load(nn.Sequential(nn.Linear(4, 3)), example=torch.ones(1, 4))
    made = net.compile(out, target=target, sign=key)
    assert made.signature == out / "report.json.sig"
    assert made.to_dict()["signature"] == str(made.signature)
    backends = ["torch"] if target == "c" else None
    assert sb.load(out).verify("random:1", backends)  # a signature is no file too many
    found = sb.load(out).verify("random:1", backends, signers=tmp_path / "who")
    assert found
    assert found.to_dict()["signer"] == "maker@x"
    assert "\nsigned by maker@x" in str(found)
    report = (out / "report.json").read_bytes()
    (out / "report.json").write_bytes(report.replace(b'"version"', b'"versiom"'))
    found = sb.load(out).verify("random:1", backends, signers=tmp_path / "who")
    assert not found
    assert "expected a signature of this report.json by somebody whom" in found.refused
    (out / "report.json").write_bytes(report)
    if target == "c":
        sb.load(out).rebuild(tmp_path / "again")  # the same report, so the same signature
        again = sb.load(tmp_path / "again")
        assert again.verify("random:1", ["torch"], signers=tmp_path / "who")
    (out / "report.json.sig").unlink()
    assert (
        "found none that can be read" in check_folder(sb.load(out).model, tmp_path / "who").refused
    )


@needs_keys
def test_a_run_is_signed_by_hand(run, key, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    words = ["ssh-keygen", "-q", "-Y", "sign", "-n", "samebits", "-f", key, folder / "result.json"]
    subprocess.run(words, check=True, capture_output=True)
    found = check_folder(sb.load(folder).model, tmp_path / "who")
    assert (found.signer, found.refused) == ("maker@x", "")
    assert "not looked at" not in found.found


def test_a_key_is_looked_at_before_any_work(tmp_path):
    net = sb.load(quantized_file(tmp_path / "tiny.onnx"))
    for call in (
        lambda: net.compile(tmp_path / "out", sign=tmp_path / "none"),
        lambda: sb.ship(tmp_path / "tiny.onnx", out=tmp_path / "out", sign=tmp_path / "none"),
    ):
        with pytest.raises(InputError, match="--sign"):
            call()
    assert not (tmp_path / "out").exists()


def test_signers_of_a_file_alone(tmp_path):
    net = sb.load(quantized_file(tmp_path / "tiny.onnx"))
    with pytest.raises(InputError, match="expected a folder that samebits wrote, whose report"):
        net.verify("random:1", ["torch"], signers=tmp_path / "who")


@needs_keys
def test_the_command_line(key, tmp_path, capsys):
    from samebits.cli import main

    def code(*words):
        with pytest.raises(SystemExit) as raised:
            main([str(word) for word in words])
        return raised.value.code

    model, out = quantized_file(tmp_path / "tiny.onnx"), tmp_path / "out"
    assert code("compile", model, "--out", out, "--no-sizes", "--sign", key) == 0
    assert f"signed: {out}/report.json.sig" in capsys.readouterr().out
    verify = ("verify", out, "--data", "random:1", "--backends", "torch", "--signers")
    assert code(*verify, tmp_path / "who") == 0
    assert "signed by maker@x" in capsys.readouterr().out
    (tmp_path / "nobody").write_text("")
    assert code(*verify, tmp_path / "nobody") == 1
    assert "expected a signature of this report.json" in capsys.readouterr().out
    assert code(*verify, tmp_path / "none") == 2
    assert code("verify", model, *verify[2:], tmp_path / "who") == 2
