"""The guides, executed: every block of Python and every command, in the order of the page.

A page runs in a folder of its own and in this process. A block ```LANGUAGE NAME is a file. A block
```text after a block of Python or a command holds exactly what that prints. Commands are the
indented lines that begin with `samebits` or `make -sC`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import samebits as sb
from recordings import tone, write_wav
from samebits.cli import main
from samebits.data.digits import load_digits
from samebits.verification.inputs import random_codes
from samebits.verification.registry import backend_named
from tflite_files import image_net

RNG = np.random.default_rng(0)
ROOT = Path(__file__).resolve().parents[1]
GUIDES = ROOT / "docs" / "guide"


@dataclass(frozen=True)
class Piece:
    """Something on a page that runs, or that the piece before it must print."""

    kind: str  # python, the name of a file, text or a command
    line: int
    text: str


def pieces(page: Path) -> Iterator[Piece]:
    """Blocks between fences, and indented commands, with their continuation lines."""
    lines = page.read_text(encoding="utf-8").splitlines()
    fence, start = "", 0
    for number, line in enumerate(lines, 1):
        if fence and line == "```":
            yield Piece(fence, start, "\n".join(lines[start : number - 1]) + "\n")
            fence = ""
        elif not fence and line.startswith("```"):
            fence, start = line[3:].rpartition(" ")[2], number
        elif not fence and re.match(r"    ((\.venv/bin/)?samebits|make -sC) ", line):
            whole = line.strip()
            while whole.endswith("\\"):
                whole = whole[:-1] + lines[number].strip()
                number += 1
            yield Piece("command", number, whole.removeprefix(".venv/bin/"))
    assert not fence, f"{page.name}:{start}: a fence is not closed"


def run_page(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the pieces of a page in the current folder."""
    names: dict[str, object] = {"__name__": page.stem}
    printed = ""
    for piece in pieces(page):
        where = f"{page.name}:{piece.line}"
        if piece.kind == "text":
            assert printed == piece.text, f"{where}: a block printed something else"
            continue
        capsys.readouterr()
        if piece.kind == "python":
            source = "\n" * piece.line + piece.text  # so that an error names the page's line
            exec(compile(source, str(page), "exec"), names)
        elif "." in piece.kind or piece.kind.endswith("Makefile"):
            Path(piece.kind).write_text(piece.text, encoding="utf-8")
        elif piece.text.startswith("make "):
            made = subprocess.run(
                shlex.split(piece.text), capture_output=True, text=True,
                env={**os.environ, "OPTIMIZE": "-O0"},
            )  # fmt: skip
            assert made.returncode == 0, f"{where}: {piece.text}\n{made.stderr}"
            printed = made.stdout
            continue
        elif piece.kind == "command":
            with pytest.raises(SystemExit) as ended:
                main([os.path.expanduser(word) for word in shlex.split(piece.text)[1:]])
            err = capsys.readouterr().err
            assert not ended.value.code, f"{where}: {piece.text}\n{err}"
        else:
            raise AssertionError(f"{where}: expected a block of python or text")
        printed = capsys.readouterr().out


@pytest.fixture
def page_folder(tmp_path, monkeypatch):
    """An empty current folder, where Python finds modules too; forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    torch.set_num_threads(1)
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", None) == str(tmp_path / f"{name}.py"):
            del sys.modules[name]


def needs(*backends: str) -> None:
    """Skip where a backend that the page names cannot run."""
    for backend in backends:
        reason = backend_named(backend).unavailable()
        if reason is not None:
            pytest.skip(reason)


SLOW = ("compare", "deploy", "language", "lstm", "on-device", "report", "train")


def params(pages: Iterable[str]) -> list[object]:
    """Pages to test, some of them slowly."""
    return [
        pytest.param(page, marks=[pytest.mark.slow] if Path(page).stem in SLOW else [])
        for page in pages
    ]


SHORT = (
    "c",
    "compare",
    "data",
    "faq",
    "numerics",
    "on-device",
    "predict",
    "python",
    "report",
    "start",
    "train",
    "why",
)


@pytest.mark.parametrize("name", params(f"{page}.md" for page in SHORT))
def test_a_guide(name, page_folder, capsys):
    needs("c", *(("cortex-m4",) if name in ("c.md", "start.md") else ()))
    if name == "train.md":
        pytest.importorskip("tensorboard")
    run_page(GUIDES / name, capsys)


# --- pages whose files are a user's own: made here, small -----------------------------------------


def readme():
    """Weights of the network in net.py, and pictures in folders of classes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    torch.save(net.state_dict(), "net.pt")
    for place in range(20):
        file = Path("pictures") / f"digit {place % 2}" / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 256, (8, 8), np.uint8)).save(file)


def quantize():
    sb.load(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), example=torch.ones(1, 4)).save("model.onnx")
    np.savez("samples.npz", x=RNG.random((20, 4)).astype(np.float32))
    torch.manual_seed(0)
    digits = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    sb.load(digits, example=torch.ones(1, 1, 8, 8)).save("digits.onnx")


def deploy():
    """What `quantize` has, a key at home, which is a folder of the page's, and whose it is."""
    quantize()
    key = Path("home/.ssh/id_ed25519").absolute()
    key.parent.mkdir(parents=True)
    made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
    subprocess.run(made, check=True)
    Path("allowed_signers").write_text(f"me {key.with_suffix('.pub').read_text()}")


def recurrent():
    sb.load(nn.LSTM(4, 3, batch_first=True), example=torch.zeros(1, 5, 4)).save("speech.onnx")
    np.savez("sequences.npz", x=RNG.normal(size=(6, 5, 4)).astype(np.float32))
    for index in range(72):
        for split in ("train", "test")[: 1 + (index < 4)]:
            place = Path("recordings", split, ("no", "yes")[index % 2], f"{index}.wav")
            write_wav(place, tone(index, 700))


def firmware():
    Path("examples").symlink_to(ROOT / "examples")
    np.savez("x.npz", x=RNG.normal(size=(2, 12, 20)).astype(np.float32))
    sb.fit("digits", "mlp", "runs/digits", sb.Training(epochs=1))


def language():
    words = RNG.choice(["The ", "same ", "bits\n", "of "], 330).tolist()
    Path("notes.txt").write_text("".join(words)[:1400])


def tflite():
    for kind, name in (("int8", "model"), ("float32", "float")):
        net, y = image_net(1, kind)
        Path(f"{name}.tflite").write_bytes(net.bytes(y))
    np.savez("samples.npz", x=RNG.normal(size=(20, 8, 8, 3)).astype(np.float32))


def troubleshooting():
    quantize()
    Path("examples").symlink_to(ROOT / "examples")
    Path("nets.py").write_text(
        "from torch import nn\n\n\ndef small(input_shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    sb.quantize("model.onnx", "samples.npz").save("model.q.onnx")
    sb.load("model.q.onnx").compile("build/model", sizes=False)


PAGES = {
    "README.md": readme,
    "src/samebits/troubleshooting.md": troubleshooting,
    "docs/guide/quantize.md": quantize,
    "docs/guide/language.md": language,
    "docs/guide/lstm.md": recurrent,
    "docs/guide/deploy.md": deploy,
    "docs/guide/firmware.md": firmware,
    "docs/guide/tflite.md": tflite,
}


@pytest.mark.parametrize("name", params(PAGES))
def test_a_page(name, page_folder, monkeypatch, capsys):
    """On a few of the digits, and without measuring boards."""
    monkeypatch.setattr("samebits.codegen.run.requirements.BOARDS", ())
    needs("c", "cortex-m0", "cortex-m3", "onnxruntime")
    digits = load_digits()
    few = replace(
        digits.limited(7), test_images=digits.test_images[:20], test_labels=digits.test_labels[:20]
    )
    monkeypatch.setattr(sys.modules["samebits.data.load"], "load_digits", lambda: few)
    PAGES[name]()
    if Path("home").exists():
        monkeypatch.setenv("HOME", str(Path("home").absolute()))
    run_page(ROOT / name, capsys)


def test_pieces_of_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        textwrap.dedent("""\
            # Title

                samebits train --data digits \\
                    --arch mlp
                make demo

            ```python
            x = 1
            ```

            ```text
            y
            ```
            """)
    )
    assert list(pieces(page)) == [
        Piece("command", 4, "samebits train --data digits --arch mlp"),
        Piece("python", 7, "x = 1\n"),
        Piece("text", 11, "y\n"),
    ]


def test_the_backend_of_contributing_computes_the_bits(page_folder):
    """What a contributor is shown is a backend, and runs beside the others."""
    (piece,) = [p for p in pieces(ROOT / "CONTRIBUTING.md") if p.kind == "python"]
    names: dict[str, object] = {}
    exec(piece.text, names)
    torch.manual_seed(0)
    net = sb.quantize(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), torch.randn(30, 4))
    inputs = random_codes(net.model.integer, 5)
    backend = names["BACKENDS"]["backwards"](None)
    expected = backend_named("reference").run(net.model, inputs)
    found = backend.run(net.model, inputs)
    assert [(a.dtype, a.tolist()) for a in found] == [(a.dtype, a.tolist()) for a in expected]
