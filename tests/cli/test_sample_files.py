"""Files and folders as samples: tables with `--target`, folders without classes, `eval --whole`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from recordings import tone, write_wav
from tiny_models import float_file

ROWS = 60


@pytest.fixture
def table(tmp_path):
    """Four features, of which b stands last, after the labels p and q."""
    pytest.importorskip("pandas", reason="tables are read by pandas")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 4))
    columns = [*x[:, :3].T, x[:, 0] + 0.5, x[:, 1] - x[:, 2], x[:, 3]]
    lines = [",".join(f"{v:.4f}" for v in row) for row in np.array(columns).T]
    path = tmp_path / "t.csv"
    path.write_text("a1,a2,a3,p,q,b\n" + "\n".join(lines) + "\n")
    return path


def test_a_table_as_samples(samebits, tmp_path, table):
    model, q = float_file(tmp_path / "net.onnx", (1, 4)), tmp_path / "q.onnx"
    how = ("--calibration", table, "--out", q)
    done = samebits("quantize", model, *how)
    assert done.code == 2
    assert "expected samples of shape [4] for the input 'x', found [5]" in done.err
    left = f"note: {table}: all columns but {{}}, its labels (--target names others), in the scales"
    assert left.format("b") in done.err

    done = samebits("quantize", model, *how, "--target", "p, q")
    assert done.code == 0, done.err
    assert left.format("p, q") in done.err
    named = (q, "--inputs", table, "--target", "p,q")
    done = samebits("verify", *named, "--backends", "torch")
    assert (done.code, done.out.splitlines()[-1]) == (0, "same bits: yes"), done.err
    assert left.format("p, q") in done.err
    assert samebits("trace", *named, "--out", tmp_path / "new" / "t.json").code == 0
    done = samebits("report", *named, "--out", tmp_path / "other" / "page.html")
    assert done.code == 0, done.err
    page = (tmp_path / "other" / "page.html").read_text(encoding="utf-8")
    assert f"samebits verify {q} --inputs {table} --backends torch" in page
    assert "--target p,q" in page
    done = samebits(
        *("ship", model, "--calibration", table, "--target", "p,q", "--backends", "torch"),
        *("--out", tmp_path / "c"),
    )
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ("samples", "--target does not apply to an archive of inputs"),
        ("random:3", "random:3: --target does not apply to random samples"),
        ("digits", "digits: --target does not apply to digits"),
    ],
)
def test_a_target_of_other_samples(samebits, shelf, inputs, told):
    done = samebits("verify", shelf["quantized"], "--inputs", shelf.get(inputs, inputs),
                    "--target", "y")  # fmt: skip
    assert done.code == 2
    assert told in done.err


def test_a_quantized_network_takes_no_target(samebits, shelf, tmp_path):
    done = samebits("ship", shelf["quantized"], "--target", "y", "--out", tmp_path / "c")
    assert done.code == 2
    assert done.err.startswith("error: --target does not apply to ")


@pytest.mark.parametrize("kind", ["images", "recordings"])
def test_a_folder_without_classes(samebits, tmp_path, kind):
    folder = tmp_path / "unsorted"
    folder.mkdir()
    for index in range(5):
        if kind == "images":
            pixels = np.random.default_rng(index).integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.png")
        else:
            write_wav(folder / f"{index}.wav", tone(index))
    shape = (1, 1, 8, 8) if kind == "images" else (1, 7, 32)
    model, q = float_file(tmp_path / "net.onnx", shape), tmp_path / "q.onnx"
    done = samebits("quantize", model, "--calibration", folder, "--out", q)
    assert done.code == 0, done.err
    assert "5 samples" in done.out
    done = samebits("verify", q, "--inputs", folder, "--backends", "torch", "--json")
    assert json.loads(done.out)["samples"] == 5
    done = samebits(
        *("ship", model, "--calibration", folder, "--backends", "torch"),
        *("--out", tmp_path / "c"),
    )
    assert done.code == 0, done.err
    done = samebits("train", "--data", folder, "--arch", "mlp", "--out", tmp_path / "run")
    assert "expected at least 2 class folders of images or recordings, found 0" in done.err


def test_eval_says_which_part_it_counts(samebits, tmp_path, table):
    run = ("train", "--data", table, "--target", "p,q", "--arch", "mlp", "--batch", 8)
    done = samebits(*run, "--epochs", 2, "--lr", 0.01, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    other = tmp_path / "other.csv"
    lines = table.read_text().splitlines()
    other.write_text("\n".join([lines[0], *lines[:20:-1]]) + "\n")  # 40 of the rows
    done = samebits("eval", tmp_path / "run", "--data", other, "--json")
    part = json.loads(done.out)["test_count"]
    assert 0 < part < 20
    note = f"note: {other}: {part} of 40 rows are for testing, and counted; --whole counts all\n"
    assert note in done.err
    done = samebits("eval", tmp_path / "run", "--data", other, "--whole", "--json")
    assert json.loads(done.out)["test_count"] == 40
    assert "--whole" not in done.err
    other.write_text("\n".join(lines[:2]) + "\n")
    done = samebits("eval", tmp_path / "run", "--data", other, "--whole", "--json")
    assert json.loads(done.out)["test_count"] == 1
    done = samebits("eval", tmp_path / "run", "--data", other, "--target", "q, p")
    assert done.code == 2
    assert done.err.endswith(
        "error: --target: expected p,q, the order of training, found q,p; give them in that order, "
        "or leave --target out\n"
    )
