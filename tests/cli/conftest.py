from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from samebits.cli import main
from samebits.explanations import explanations
from samebits.ir import GraphBuilder
from samebits.onnx import save_qdq
from tiny_models import float_file, quantized_file, trained_folder

FIRMWARE = Path(__file__).resolve().parents[2] / "examples" / "firmware"


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str  # without the line below an error that says where it is explained
    explained: str | None = None  # the topic in that line


def outcome(code, out, err):
    """What a command printed. Exactly one line of every error names a topic that is explained."""
    head, line, rest = err.rpartition("\nexplain: samebits explain ")
    failed = any(each.startswith("error: ") for each in err.splitlines())
    assert bool(line) == failed, err
    if not failed:
        return Outcome(code, out, err)
    assert rest.removesuffix("\n") in explanations(), err
    return Outcome(code, out, head + "\n", rest.removesuffix("\n"))


@pytest.fixture
def samebits(capsys):
    """Runs the command line in this process."""

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return outcome(caught.value.code or 0, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def npz(tmp_path_factory):
    """96 training and 24 test images [1, 6, 6] of 3 classes that their brightness tells apart."""
    rng = np.random.default_rng(5)
    labels = np.arange(120) % 3
    images = rng.integers(0, 120, (120, 6, 6)) + 60 * labels[:, None, None]
    path = tmp_path_factory.mktemp("data") / "three.npz"
    images = images.astype(np.uint8)
    np.savez(path, x_train=images[:96], y_train=labels[:96], x_test=images[96:], y_test=labels[96:])
    return path


def lstm_file(path):
    """x [8, 1, 3] -> LSTM of 5 cells, float."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder("lstm")
    x = builder.input("x", "float32", (8, 1, 3))
    shapes = ((1, 20, 3), (1, 20, 5), (1, 40))
    weights = [builder.constant("w", rng.normal(size=s).astype(np.float32)) for s in shapes]
    y, _, _ = builder.add_all("LSTM", [x, *weights], {"hidden_size": 5})
    save_qdq(builder.build([y]), path)
    return path


@pytest.fixture(scope="session")
def shelf(tmp_path_factory, npz):
    """A small file of each kind, by name; all are only read."""
    folder = tmp_path_factory.mktemp("shelf")
    rng = np.random.default_rng(2)
    np.savez(folder / "samples.npz", x=rng.normal(size=(6, 4)).astype(np.float32))
    np.savez(folder / "sequences.npz", x=rng.normal(size=(4, 8, 1, 3)).astype(np.float32))
    np.savez(folder / "wrong.npz", x=np.zeros((6, 5), np.float32))
    (folder / "text").write_text("hello")
    (folder / "broken.onnx").write_text("hello")
    (folder / "own.py").write_text("NUMBER = 3\n")
    return {
        "float": float_file(folder / "float.onnx", (1, 4)),
        "open": float_file(folder / "open.onnx", ("N", 4)),
        "images": float_file(folder / "images.onnx", (1, 1, 8, 8), 10),
        "quantized": quantized_file(folder / "quantized.onnx"),
        "speech": lstm_file(folder / "speech.onnx"),
        "firmware": FIRMWARE / "gru.nnp",
        "run": trained_folder(tmp_path_factory),
        "floatrun": trained_folder(tmp_path_factory, "float32"),
        "data": npz,
        "samples": folder / "samples.npz",
        "sequences": folder / "sequences.npz",
        "wrong": folder / "wrong.npz",
        "text": folder / "text",
        "broken": folder / "broken.onnx",
        "own": folder / "own.py",
        "none": folder / "none",
    }
