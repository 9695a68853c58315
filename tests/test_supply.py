"""What is installed: the lock, its hashes, the bill of materials, the question after advisories.

All of it without a network."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import subprocess
import sys
import threading
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "tools"
sys.path.insert(0, str(TOOLS))

import audit  # noqa: E402
import lock as writer  # noqa: E402
import sbom  # noqa: E402
from install import needs  # noqa: E402
from locked import LOCK, Pin, key, parse, pins, written  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def locked():
    return pins()


# --- the lock -----------------------------------------------------------------------------------


def test_the_lock_is_as_it_is_written(locked):
    text = LOCK.read_text(encoding="utf-8")
    parts = parse(text)
    assert written(parts) == text
    names = [part.key for part in parts if isinstance(part, Pin)]
    assert len(names) == len(set(names)) == len(locked)
    for title in ("# direct", "# what those need"):
        assert title in parts


def test_every_package_has_hashes(locked):
    assert [pin.name for pin in locked.values() if not pin.hashes] == []
    for pin in locked.values():
        assert list(pin.hashes) == sorted(set(pin.hashes))
    assert set(writer.CPU_TORCH[locked["torch"].version]) < set(locked["torch"].hashes)


def test_the_lock_has_all_that_is_asked_for(locked):
    wanted = needs(list(PROJECT["optional-dependencies"]))
    assert {"torch", "mypy", "mkdocs-material", "tensorflow-cpu", "setuptools"} <= {
        key(re.split(r"[\[<>=!~; ]", need, maxsplit=1)[0]) for need in wanted
    }
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = re.findall(r"\$\(INSTALL\)(?: --no-deps)? ([^';\n]+)", makefile)
    wanted += [name for words in named for name in words.split()]
    for need in wanted:
        assert key(re.split(r"[\[<>=!~; ]", need, maxsplit=1)[0]) in locked, need


def test_nothing_is_installed_without_hashes():
    """By anything that the project itself runs."""
    for path in (ROOT / "Makefile", ROOT / "Dockerfile"):
        text = path.read_text(encoding="utf-8")
        assert "pip install" not in text
        assert "tools/install.py" in text


@pytest.mark.parametrize(
    "line", ["numpy>=2", "numpy==2 --hash=md5:00", "-r other.txt", "numpy @ https://x/y.whl"]
)
def test_lines_that_are_no_lock(line):
    with pytest.raises(ValueError, match=r"^line 2: expected NAME==VERSION and --hash=sha256"):
        parse(f"# a comment\n{line}\n")


def test_a_pin_is_read_as_it_was_written():
    pin = Pin("Ab_c.d", "1.0+cpu", "MIT", ("0" * 64, "1" * 64))
    assert parse(pin.text()) == [pin]
    assert pin.key == "ab-c-d"
    assert needs(["demo"]) == [*PROJECT["dependencies"], "setuptools>=77", "onnxruntime",
                               "scikit-learn"]  # fmt: skip


# --- installing ---------------------------------------------------------------------------------


def wheel(folder, version):
    """A wheel of a package of nothing; its SHA-256."""
    path = folder / f"samebits_nothing-{version}-py3-none-any.whl"
    info = f"samebits_nothing-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("samebits_nothing.py", f"version = {version!r}\n")
        about = f"Metadata-Version: 2.1\nName: samebits-nothing\nVersion: {version}\n"
        archive.writestr(f"{info}/METADATA", about)
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path):
    """A folder that pip may look in."""
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


def installed(tmp_path, index, hashes, *words):
    """The tool, of a project whose lock has one package, into a folder."""
    project = tmp_path / "project"
    (project / "tools").mkdir(parents=True)
    for tool in ("install.py", "locked.py"):
        (project / "tools" / tool).write_bytes((TOOLS / tool).read_bytes())
    pin = Pin("samebits-nothing", "1.0", "", tuple(hashes))
    (project / "constraints.txt").write_text(pin.text())
    return subprocess.run(
        [sys.executable, project / "tools" / "install.py", *words],
        env={
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(index),
            "PIP_TARGET": str(tmp_path / "target"),
            "PIP_CONFIG_FILE": "/dev/null",
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("alone", [["--no-deps"], []])
def test_a_file_with_its_hash_is_installed(tmp_path, index, alone):
    done = installed(tmp_path, index, [wheel(index, "1.0")], *alone, "samebits-nothing")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "target" / "samebits_nothing.py").exists()


def test_the_build_that_pip_chooses_is_the_one_that_is_checked(tmp_path, index):
    """As of torch: a local build of the version, of which the list has the hash, or has not."""
    known, other = wheel(index, "1.0"), wheel(index, "1.0+cpu")
    done = installed(tmp_path, index, [known, other], "samebits-nothing")
    assert done.returncode == 0, done.stderr
    assert "1.0+cpu" in (tmp_path / "target" / "samebits_nothing.py").read_text()
    (tmp_path / "again").mkdir()
    done = installed(tmp_path / "again", index, [known], "samebits-nothing")
    assert done.returncode == 1
    assert f"Got        {other}" in done.stderr


@pytest.mark.parametrize("alone", [["--no-deps"], []])
def test_a_file_of_other_bytes_is_not(tmp_path, index, alone):
    wheel(index, "1.0")
    done = installed(tmp_path, index, ["0" * 64], *alone, "samebits-nothing")
    assert done.returncode == 1
    assert "expected files with the SHA-256 that constraints.txt lists" in done.stderr
    assert "Expected sha256 " + "0" * 64 in done.stderr  # pip's own words
    assert not (tmp_path / "target").exists()


def test_a_package_that_the_lock_does_not_have(tmp_path, index):
    done = installed(tmp_path, index, ["0" * 64], "--no-deps", "another")
    assert done.returncode == 1
    assert "found none for another; add NAME==VERSION there and run make lock" in done.stderr


# --- the bill of materials ----------------------------------------------------------------------


def test_the_bill_lists_the_lock(locked, tmp_path):
    for out in ("a.json", "b.json"):
        command = [sys.executable, TOOLS / "sbom.py", "--out", tmp_path / out]
        subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    bill = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert bill["metadata"]["component"]["version"] == PROJECT["version"]
    assert [part["bom-ref"] for part in bill["components"]] == [
        f"pkg:pypi/{name}@{locked[name].version}" for name in sorted(locked)
    ]
    for part in bill["components"]:
        pin = locked[key(part["name"])]
        assert part["purl"] == part["bom-ref"]
        assert [h["content"] for h in part["hashes"]] == list(pin.hashes)
        assert ("licenses" in part) == bool(pin.licence)


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        ("", []),
        ("MIT", [{"license": {"id": "MIT"}}]),
        ("Apache-2.0 OR BSD-2-Clause", [{"expression": "Apache-2.0 OR BSD-2-Clause"}]),
        ("BSD License", [{"license": {"name": "BSD License"}}]),
    ],
)
def test_licences(stated, found):
    assert sbom.licences(stated) == found


# --- advisories ---------------------------------------------------------------------------------


@pytest.fixture
def answering():
    """A server on this machine that gives one answer; what it was asked."""
    questions = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            questions.append(asked["queries"])
            data = json.dumps(server.answer(asked["queries"])).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *words):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    server.questions = questions
    server.address = f"http://127.0.0.1:{server.server_port}/"
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run_audit(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["audit.py", *map(str, words)])
    return audit.main()


def test_nothing_known_is_a_pass(answering, monkeypatch, capsys, locked, tmp_path):
    answering.answer = lambda queries: {"results": [{} for _ in queries]}
    record = tmp_path / "answer.json"
    assert run_audit(monkeypatch, "--address", answering.address, "--save", record) == 0
    assert f"{len(locked)} packages: 0 advisories" in capsys.readouterr().out
    (asked,) = answering.questions
    assert asked[0] == {"package": {"purl": "pkg:pypi/axe-playwright-python@0.1.8"}}
    assert run_audit(monkeypatch, "--record", record) == 0
    record.write_text(json.dumps({"lock_sha256": "0" * 64, "found": {}}))
    assert run_audit(monkeypatch, "--record", record) == 2
    assert "an answer for another constraints.txt" in capsys.readouterr().err


def test_an_advisory_is_no_pass_until_it_is_judged(answering, monkeypatch, capsys, locked):
    def answer(queries):
        known = {"vulns": [{"id": "PYSEC-1"}]}
        return {"results": [known if "/numpy@" in q["package"]["purl"] else {} for q in queries]}

    answering.answer = answer
    assert run_audit(monkeypatch, "--address", answering.address) == 1
    assert f"numpy {locked['numpy'].version}: PYSEC-1\n" in capsys.readouterr().out
    monkeypatch.setitem(audit.ACCEPTED, "PYSEC-1", "no array of others is read by it")
    assert run_audit(monkeypatch, "--address", answering.address) == 0
    assert "PYSEC-1: accepted, no array of others is read by it" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["nobody", "short", "no object", "no file"])
def test_what_could_not_be_asked_is_never_a_pass(kind, answering, monkeypatch, capsys, tmp_path):
    answers = {"short": {"results": [{}]}, "no object": []}
    answering.answer = lambda queries: answers[kind]
    address = "http://127.0.0.1:9/" if kind == "nobody" else answering.address
    words = ["--record", tmp_path / "none"] if kind == "no file" else ["--address", address]
    assert run_audit(monkeypatch, *words) == 2
    assert "could not be asked, so nothing is known of" in capsys.readouterr().err
