import html
import json
import re

import pytest

import samebits as sb
from samebits import data, demo
from samebits.codegen.run import requirements
from samebits.errors import InputError
from samebits.recompute.plan.plan import read_plan


@pytest.fixture
def short(monkeypatch):
    """One epoch of a part of the digits; 64 of them through every backend."""
    whole = data.load("digits")
    few = data.Dataset(
        *(whole.train_images[:320], whole.train_labels[:320]),
        *(whole.test_images[:64], whole.test_labels[:64]),
        *(whole.class_names, whole.source, whole.peak),
    )
    load = data.load
    monkeypatch.setattr(
        data, "load", lambda name, *a, **k: few if name == "digits" else load(name, *a, **k)
    )
    for epochs in ("EPOCHS", "SMOOTH_EPOCHS", "LSTM_EPOCHS"):
        monkeypatch.setattr(demo, epochs, 1)
    monkeypatch.setattr(demo, "CALIBRATION", 64)
    for name, size in (("TEXT_BYTES", 3000), ("WIDTH", 32), ("DEPTH", 1), ("TOKENS", 12)):
        monkeypatch.setattr(demo, name, size)
    monkeypatch.setattr(demo, "STREAMED", 3)
    monkeypatch.setattr(demo, "SIMULATED", 8)


def only(monkeypatch, backends, boards):
    """Fewer backends, and fewer boards to build for."""
    monkeypatch.setattr(demo, "BACKENDS", backends)
    monkeypatch.setattr(requirements, "BOARDS", boards)


def test_the_demo_computes_the_same_bits_and_writes_a_self_contained_page(
    short, tmp_path, monkeypatch
):
    only(monkeypatch, ("torch", "c", "cortex-m3", "onnxruntime"), ("cortex-m3",))
    titles = []
    result = demo.run(tmp_path / "demo", reporter_of=titles.append)
    assert result
    assert titles == [
        *("cnn bfp", "cnn float32", "cnn bfp, within a memory budget", "cnn bfp, PyTorch kernels"),
        *("smooth float32", "lstm float32", "gpt bfp"),
    ]
    text, page = str(result), (tmp_path / "demo/report.html").read_text()
    assert result.page == tmp_path / "demo/report.html"
    for numerics in ("bfp", "float32"):
        stored = json.loads((tmp_path / "demo" / numerics / "result.json").read_text())
        assert stored["sha256"] in page
        assert f"{100 * stored['accuracy']:.2f} %" in text
        assert f"\nsha256 {stored['sha256']} {numerics}\n" in text
        assert f"{stored['bytes_per_parameter']:.2f}" in page
    assert text.splitlines()[-1] == result.verdict
    assert result.verdict.startswith("same bits: yes")
    assert "Same bits: yes," in page
    assert all(text[1:] in html.unescape(page) for text in result.unproved)
    assert "concordant PyTorch" in text
    assert "the same 12 tokens on torch, c, cortex-m3" in text
    assert "not of CPython 3.11.7" in text  # a part of the documentation is another text
    assert "times faster, with the same bits" in page
    assert "The BFP run was computed in 3 ways: the hash is the same." in page
    assert page.count('role="img"') == 3
    assert "No plan within" in page
    assert read_plan(tmp_path / "demo/plan.json").recompute_ps > 0
    beside = {"c-bfp.html", "c-smooth.html", "c-lstm.html", "npu.html"}
    links = set(re.findall(r'(?:src|href)="([^"#]+)"', page)) - {"data:,"}
    assert links == beside
    assert all((tmp_path / "demo" / name).stat().st_size < 3 << 20 for name in beside)
    assert "What waits for what" in (tmp_path / "demo/npu.html").read_text()
    assert "The same bits: reference" in (tmp_path / "demo/c-bfp.html").read_text()
    assert 'name="viewport"' in page
    names = {str(path.relative_to(tmp_path / "demo")) for path in (tmp_path / "demo").rglob("*")}
    assert names >= {
        *("bfp/result.json", "float32/result.json", "smooth/result.json", "lstm/result.json"),
        *("smooth-int8.onnx", "lstm-int8.onnx", "plan.json"),
        *("c-bfp/model.c", "c-smooth/model.c", "c-lstm/model.c"),
        *("npu/model.nnp", "npu/concordant.py", "npu/concordant.onnx"),
    }


@pytest.mark.slow
def test_the_demo_can_run_again_and_be_json(short, tmp_path, monkeypatch):
    first = demo.run(tmp_path / "demo").to_dict()
    only(monkeypatch, ("torch",), ())
    second = demo.run(tmp_path / "demo").to_dict()
    assert json.loads(json.dumps(first))["report"] == str(tmp_path / "demo/report.html")
    assert first["runs"]["bfp"]["sha256"] == second["runs"]["bfp"]["sha256"]
    assert first["same_bits"] is True
    assert [v["backend"] for v in first["firmware"]["verdicts"]] == [
        "concordant-onnx",
        "concordant-torch",
    ]
    assert all(v["equal"] and v["total"] == 80 for v in first["firmware"]["verdicts"])
    lstm = first["deployments"][2]
    assert lstm["title"] == "From a float LSTM to C"
    compared = {v["backend"]: v for v in lstm["verdicts"] if v["skipped"] is None}
    assert {"torch", "c"} <= set(compared)
    assert all(v["equal"] or v["note"] for v in compared.values())
    assert compared["c"]["total"] == 3 * 8 * (10 + 4 * 64)  # images, rows, logits and states
    again = sb.evaluate(tmp_path / "demo/c-lstm", data.load("digits"))
    assert 100 * again.accuracy == lstm["accuracy"]["integers"]
    assert set(first["hashes"].values()) == {first["runs"]["bfp"]["sha256"]}


@pytest.mark.slow
def test_the_demo_says_where_the_bits_differ(short, tmp_path, monkeypatch):
    from samebits import kernels
    from samebits.kernels.eager import Eager

    if kernels.realisation() != "native":
        pytest.skip("no native kernels: both runs of the demo use the PyTorch kernels")
    only(monkeypatch, ("torch",), ())
    relu = Eager.relu
    monkeypatch.setattr(Eager, "relu", lambda self, x, high=127: relu(self, x, min(high, 100)))
    result = demo.run(tmp_path / "demo")
    assert not result
    assert result.verdict.startswith("same bits: NO")
    page = (tmp_path / "demo/report.html").read_text()
    assert "there are 2 different hashes" in page
    assert "Same bits: NO." in page


def test_the_demo_deletes_no_other_run(tmp_path):
    out = tmp_path / "demo/bfp"
    sb.fit("digits", "mlp", out, sb.Training(epochs=1, limit=20))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(InputError, match=r"holds another training run \(arch: expected 'cnn', fo"):
        demo.run(tmp_path / "demo")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
