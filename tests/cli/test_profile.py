"""`samebits profile`."""

from __future__ import annotations

import json

import pytest

import samebits as sb
from hand_package import skip_unless_available
from samebits.codegen.run.targets import TARGETS
from tiny_models import quantized_file


@pytest.fixture
def tiny(tmp_path):
    return quantized_file(tmp_path / "tiny.onnx")


def test_a_table_and_a_page(samebits, tiny, tmp_path):
    skip_unless_available(TARGETS["cortex-m3"])
    out = tmp_path / "page.html"
    done = samebits("profile", tiny, "--out", out)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Instructions of {tiny} on cortex-m3\n")
    assert "linear8_packed" in done.out
    assert done.out.endswith(f"written: {out}\n")
    assert '<svg viewBox="' in out.read_text()
    assert 'aria-label="instructions by layer on cortex-m3"' in out.read_text()


def test_json_adds_up(samebits, tiny):
    skip_unless_available(TARGETS["cortex-m0"])
    done = samebits("profile", tiny, "--board", "cortex-m0", "--json")
    record = json.loads(done.out)
    assert record["board"] == "cortex-m0"
    assert [layer["op"] for layer in record["layers"]] == ["requantize", "table", "requantize"]
    assert 0 < sum(layer["instructions"] for layer in record["layers"]) < 2 * record["total"]


@pytest.mark.parametrize("board", ["c", "s390x", "cortex-m99"])
def test_other_names(samebits, tiny, board):
    done = samebits("profile", tiny, "--board", board)
    assert done.code == 2
    assert done.err.startswith("error: --board: expected one of cortex-m0, ")
    assert f"found {board!r}" in done.err


def test_a_float_network(samebits, tmp_path):
    from tiny_models import float_file

    done = samebits("profile", float_file(tmp_path / "f.onnx"))
    assert done.code == 2
    assert "expected a quantized model" in done.err


def test_in_python(tiny):
    skip_unless_available(TARGETS["cortex-m3"])
    found = sb.load(tiny).profile("cortex-m3", "random:3", seed=2)
    assert found.total > 100
    assert str(found) == str(found.report())


def test_a_training_step_on_this_machine(samebits, tmp_path):
    """Its layers in a table, a page and JSON; the run stays as it is."""
    run, out = tmp_path / "run", tmp_path / "page.html"
    sb.fit("digits", "mlp", run, sb.Training(epochs=1, batch=32, limit=8))
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    done = samebits("profile", run, "--train", "--out", out)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"A training step of {run}\n")
    assert "layer '1' (Linear)" in done.out
    assert 'aria-label="time of each layer"' in out.read_text()
    record = json.loads(samebits("profile", run, "--train", "--json").out)
    assert (record["batch"], record["shards"]) == (32, 1)
    assert record["whole"] > 0
    assert record["update"] > 0
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("--board", "cortex-m3"), "--board"),
        (("--data", "random:1"), "--data"),
        (("--seed", "0"), "--seed"),
        (("--resize", "8"), "--resize"),
    ],
)
def test_what_does_not_apply_to_a_training_step(samebits, tmp_path, options, name):
    done = samebits("profile", tmp_path / "run", "--train", *options)
    assert done.code == 2
    assert f"{name} does not apply to --train" in done.err
    assert "Traceback" not in done.err


def test_a_float_run_has_no_profile_of_kernels(samebits, tmp_path):
    run = tmp_path / "run"
    sb.fit(
        "digits",
        "mlp",
        run,
        sb.Training(epochs=1, batch=32, limit=8),
        sb.Numerics(numerics="float32"),
    )
    done = samebits("profile", run, "--train")
    assert done.code == 2
    assert "expected a run in BFP, found one in float32" in done.err


def test_a_run_with_another_loss_has_no_list_of_calls(samebits, tmp_path):
    """A loss of one's own is not measured as another one."""
    run = tmp_path / "own"
    (tmp_path / "own_loss.py").write_text(
        "from samebits.train import cross_entropy\n\n\ndef own(y, t):\n"
        "    return cross_entropy(y, t)\n"
    )
    loss = f"{tmp_path / 'own_loss.py'}:own"
    options = ("--epochs", "1", "--limit", "8", "--batch", "32", "--quiet")
    done = samebits(
        *("train", "--data", "digits", "--arch", "mlp", "--out", run, "--loss", loss), *options
    )
    assert done.code == 0, done.err
    done = samebits("profile", run, "--train")
    assert done.code == 2
    assert f"expected the mean cross-entropy of classes, found the loss {loss}" in done.err
