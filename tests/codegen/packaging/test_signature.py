"""Signatures of report.json by ssh-keygen: what holds, and each way in which one does not."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from samebits.codegen.packaging import signature
from samebits.codegen.packaging.package import replace_folder
from samebits.codegen.packaging.seal import check_seal, read_seal
from samebits.codegen.packaging.signature import given_key, sign, signer_of
from samebits.errors import InputError, PackageError

REPORT = b'{"generator": "samebits", "format": "samebits-package-2"}'
DATA = REPORT + b"\xff"  # any bytes, not text alone
needs_keys = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="needs ssh-keygen, of OpenSSH"
)


def new_key(place, passphrase=""):
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "", "-f", str(place)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    return place


def allowed(place, *lines):
    """A file of allowed signers: a line is the name, options and the key."""
    text = "".join(f"{who} {key.with_suffix('.pub').read_text()}" for who, key in lines)
    place.write_text(text)
    return place


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    root = tmp_path_factory.mktemp("keys")
    return new_key(root / "ours"), new_key(root / "-y other key")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pk").mkdir()
    return tmp_path / "pk"


def signed(folder, key, data=DATA):
    (folder / "report.json.sig").write_bytes(sign(data, key))


def refused(folder, signers, data=DATA):
    """The sentence; nothing more."""
    with pytest.raises(PackageError) as raised:
        signer_of(folder, "report.json", data, signers)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(f"{folder}/report.json.sig: expected ")
    return str(raised.value)


@needs_keys
def test_a_signature_holds_for_its_bytes_alone(folder, keys, tmp_path):
    ours, other = keys
    both = allowed(tmp_path / "who", ("a@x,b@x", other), ("maker@x", ours))
    signed(folder, ours)
    assert signer_of(folder, "report.json", DATA, both) == "maker@x"
    for data in (DATA + b" ", DATA[:-1], b""):
        assert "by somebody whom" in refused(folder, both, data)
    signed(folder, other)
    assert signer_of(folder, "report.json", DATA, both) == "a@x"
    assert "by somebody whom" in refused(folder, allowed(tmp_path / "one", ("maker@x", ours)))


@needs_keys
@pytest.mark.parametrize(
    ("who", "holds"),
    [
        ("maker@x", True),
        ("*@x", True),
        ("-I", True),
        ('maker@x namespaces="samebits"', True),
        ('maker@x namespaces="git"', False),
        ('maker@x valid-before="20200101"', False),
    ],
)
def test_what_a_line_of_allowed_signers_allows(folder, keys, tmp_path, who, holds):
    signers = allowed(tmp_path / "who", (who, keys[0]))
    signed(folder, keys[0])
    if holds:
        assert signer_of(folder, "report.json", DATA, signers) == who.split()[0]
    else:
        refused(folder, signers)


@needs_keys
def test_a_signature_of_another_purpose(folder, keys, tmp_path):
    (folder / "data").write_bytes(DATA)
    words = ["ssh-keygen", "-q", "-Y", "sign", "-n", "git", "-f", str(keys[0]), "data"]
    subprocess.run(words, check=True, cwd=folder, stderr=subprocess.DEVNULL)
    (folder / "data.sig").rename(folder / "report.json.sig")
    assert "by somebody whom" in refused(folder, allowed(tmp_path / "who", ("maker@x", keys[0])))


@needs_keys
@pytest.mark.parametrize("kind", ["none", "link", "pipe", "folder", "large", "empty", "text"])
def test_a_signature_that_is_none(folder, keys, tmp_path, kind, monkeypatch):
    signers = allowed(tmp_path / "who", ("maker@x", keys[0]))
    path = folder / "report.json.sig"
    signed(folder, keys[0])
    if kind == "link":
        path.rename(tmp_path / "sig")
        path.symlink_to(tmp_path / "sig")
    elif kind == "large":
        path.write_bytes(path.read_bytes() + b"\n" * (1 << 16))
    elif kind in ("empty", "text"):
        path.write_text("" if kind == "empty" else "\x1b[2J -Y sign\n")
    else:
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
    said = refused(folder, signers)
    assert "\x1b" not in said
    assert ("by somebody whom" in said) == (kind in ("empty", "text"))
    if kind == "none":
        assert "its author makes one: ssh-keygen -Y sign -n samebits -f KEY report.json" in said


def test_without_ssh_keygen(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(signature, "PROGRAM", "no-such-program")
    (tmp_path / "who").write_text("")
    (folder / "report.json.sig").write_text("")
    assert "expected no-such-program on $PATH" in refused(folder, tmp_path / "who")
    with pytest.raises(InputError, match="expected no-such-program on \\$PATH to sign with"):
        given_key(tmp_path / "who")


@needs_keys
def test_keys_that_do_not_sign(keys, tmp_path):
    locked = new_key(tmp_path / "locked", "secret")
    (tmp_path / "no key").write_text("text")
    for key in (locked, tmp_path / "no key", keys[0].with_suffix(".pub")):
        if key.suffix == ".pub" and "SSH_AUTH_SOCK" in os.environ:
            continue  # an agent may have it
        if key.suffix == ".pub":
            key = shutil.copy(key, tmp_path / "alone.pub")
        with pytest.raises(InputError, match="expected a key that ssh-keygen can sign with"):
            sign(DATA, key)
    for name, sentence in (
        ("none", "found none that can be read"),
        ("a\nb", "without control characters"),
        ("", "found a folder"),
    ):
        with pytest.raises(InputError, match=sentence) as raised:
            given_key(tmp_path / name)
        assert "\n" not in str(raised.value)


@needs_keys
def test_signers_that_cannot_be_read(folder, keys, tmp_path):
    signed(folder, keys[0])
    for name in ("none", "a\nb"):
        with pytest.raises(InputError, match="--signers"):
            signer_of(folder, "report.json", DATA, tmp_path / name)
    (tmp_path / "who").write_text("\x00 garbage\n")
    assert "by somebody whom" in refused(folder, tmp_path / "who")


@needs_keys
def test_nothing_of_the_environment_and_no_name_of_the_folder(folder, keys, tmp_path, monkeypatch):
    calls = []
    real = signature.run_to_end

    def seen(command, limit, **options):
        calls.append((command, dict(options["environment"])))
        return real(command, limit, **options)

    monkeypatch.setattr(signature, "run_to_end", seen)
    monkeypatch.setenv("SECRET", "x")
    signed(folder, keys[1])
    signer_of(folder, "report.json", DATA, allowed(tmp_path / "who", ("maker@x", keys[1])))
    assert [command[2] for command, _ in calls] == ["sign", "find-principals", "verify"]
    for command, environment in calls:
        assert environment.keys() <= {"PATH", "HOME", "SSH_AUTH_SOCK", "SSH_SK_PROVIDER"}
        assert not any(str(folder) in word or str(tmp_path / "who") == word for word in command)


@needs_keys
def test_one_that_does_not_answer(folder, keys, tmp_path, monkeypatch):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    signed(folder, keys[0])
    monkeypatch.setattr(signature, "PROGRAM", str(slow))
    monkeypatch.setattr(signature, "LIMIT", 0.2)
    with pytest.raises(PackageError, match=r"within 0\.2 seconds, found that it did not"):
        signer_of(folder, "report.json", DATA, allowed(tmp_path / "who", ("maker@x", keys[0])))


@needs_keys
def test_a_signed_folder_is_as_sealed_as_one_without(keys, tmp_path):
    """The signature is a file of the package, and of no seal: neither changed nor unknown."""
    files = {"report.json": REPORT, "a.c": b"int a;\n"}
    plain = replace_folder(tmp_path / "plain", files)
    assert replace_folder(tmp_path / "pk", files, keys[0]) == plain
    found = check_seal(tmp_path / "pk", read_seal(tmp_path / "pk")[1])
    assert found == check_seal(tmp_path / "plain", read_seal(tmp_path / "plain")[1])
    report = (tmp_path / "pk" / "report.json").read_bytes()
    who = allowed(tmp_path / "who", ("maker@x", keys[0]))
    assert signer_of(tmp_path / "pk", "report.json", report, who) == "maker@x"
    replace_folder(tmp_path / "pk", files)  # without a key no signature stays
    assert not (tmp_path / "pk" / "report.json.sig").exists()
    (tmp_path / "pk" / "report.json.sig").mkdir()
    (tmp_path / "pk" / "report.json.sig" / "evil.c").write_bytes(b"")
    with pytest.raises(PackageError, match=r"report\.json\.sig/evil\.c: not of the package"):
        check_seal(tmp_path / "pk", read_seal(tmp_path / "pk")[1])
