import json
import re

import pytest

from samebits import data
from samebits.cli import demo_steps
from samebits.recompute.plan.plan import read_plan
from samebits.reports.html import Figure, Paragraph, Section, Table, render_page
from samebits.reports.plots import Curve, line_plot


@pytest.fixture
def short_demo(monkeypatch):
    """One epoch of a part of the digits; 64 of them through every backend."""
    whole = data.load("digits")
    few = data.Dataset(
        *(whole.train_images[:640], whole.train_labels[:640]),
        *(whole.test_images[:64], whole.test_labels[:64]),
        *(whole.class_names, whole.source, whole.peak),
    )
    load = data.load
    monkeypatch.setattr(data, "load", lambda name, *a, **k: few if name == "digits" else load(name))
    for epochs in ("EPOCHS", "SMOOTH_EPOCHS", "LSTM_EPOCHS"):
        monkeypatch.setattr(demo_steps, epochs, 1)
    monkeypatch.setattr(demo_steps, "CALIBRATION", 64)
    monkeypatch.setattr(demo_steps, "STREAMED", 3)


def test_demo_writes_a_self_contained_report(samebits, short_demo, tmp_path):
    done = samebits("demo", "--out", tmp_path / "demo")
    assert done.code == 0, done.err
    page = (tmp_path / "demo/report.html").read_text()
    for numerics in ("bfp", "float32"):
        result = json.loads((tmp_path / "demo" / numerics / "result.json").read_text())
        assert result["sha256"] in page
        assert f"{100 * result['accuracy']:.2f} %" in done.out
        assert f"sha256 {result['sha256']} {numerics}\n" in done.out
        assert f"{result['bytes_per_parameter']:.2f}" in page
    assert "same bits: yes\n" in done.out
    assert "concordant PyTorch" in done.out
    assert "times faster, with the same bits" in page
    assert (tmp_path / "demo/npu/model.nnp").is_file()
    assert (tmp_path / "demo/npu/concordant.py").is_file()
    assert "The BFP run was computed in 3 ways: the hash is the same." in page
    assert page.count("data:image/svg+xml;base64,") == 3
    assert "no plan within" in page
    assert read_plan(tmp_path / "demo/plan.json").recompute_ps > 0
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "<script" not in page
    assert 'name="viewport"' in page


@pytest.mark.slow
def test_demo_can_run_again_and_speak_json(samebits, short_demo, tmp_path):
    first = json.loads(samebits("demo", "--out", tmp_path / "demo", "--json").out)
    second = json.loads(samebits("demo", "--out", tmp_path / "demo", "--json").out)
    assert first["runs"]["bfp"]["sha256"] == second["runs"]["bfp"]["sha256"]
    assert first["same_bits"] is True
    assert [v["backend"] for v in first["firmware"]["verdicts"]] == [
        "concordant-onnx",
        "concordant-torch",
    ]
    assert all(v["equal"] and v["total"] == 500 for v in first["firmware"]["verdicts"])
    lstm = first["deployments"][2]
    assert lstm["title"] == "From a float LSTM to C"
    compared = {v["backend"]: v for v in lstm["verdicts"] if v["skipped"] is None}
    assert {"torch", "c"} <= set(compared)
    assert all(v["equal"] or v["note"] for v in compared.values())
    assert compared["c"]["total"] == 3 * 8 * (10 + 4 * 64)  # images, rows, logits and states
    again = json.loads(samebits("eval", tmp_path / "demo/c-lstm", "--data", "digits", "--json").out)
    percent = dict(lstm["accuracy"])["integers, on every backend without a difference"]
    assert 100 * again["correct"] / again["test_count"] == percent
    assert set(first["hashes"].values()) == {first["runs"]["bfp"]["sha256"]}
    assert first["report"] == str(tmp_path / "demo/report.html")


def test_demo_fails_where_the_bits_differ(samebits, short_demo, tmp_path, monkeypatch):
    from samebits import kernels
    from samebits.kernels.eager import Eager

    if kernels.realisation() != "native":
        pytest.skip("no native kernels: both runs of the demo use the PyTorch kernels")
    relu = Eager.relu
    monkeypatch.setattr(Eager, "relu", lambda self, x, high=127: relu(self, x, min(high, 100)))
    monkeypatch.setattr(demo_steps, "BACKENDS", ("torch",))
    monkeypatch.setattr(demo_steps, "BOARDS", ())
    done = samebits("demo", "--out", tmp_path / "demo")
    assert done.code == 1
    assert "same bits: NO\n" in done.out
    assert "there are 2 different hashes" in (tmp_path / "demo/report.html").read_text()


def test_demo_deletes_no_other_run(samebits, short_demo, npz, tmp_path):
    out = tmp_path / "demo/bfp"
    samebits("train", "--data", npz, "--arch", "mlp", "--epochs", 1, "--out", out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    done = samebits("demo", "--out", tmp_path / "demo")
    assert done.code == 2
    assert f"error: {out}: holds another training run (arch: expected 'cnn', found" in done.err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_all_text_of_a_page_is_escaped():
    nasty = "<script>alert('x')</script>\"&"
    page = render_page(
        nasty,
        nasty,
        [
            Section(
                nasty,
                [
                    Paragraph(nasty),
                    Table((nasty,), [(nasty,)], caption=nasty, code=(nasty,)),
                    Figure(b"<svg/>", nasty, nasty),
                ],
            )
        ],
    )
    assert "<script>" not in page
    assert 'alt="&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&quot;&amp;"' in page


def test_plots_have_the_same_bytes_every_time():
    curves = [Curve("a", [1, 2], [0.5, 0.7]), Curve("b", [1, 2], [0.4, 0.8])]
    plots = {line_plot(curves, x_title="epoch", y_title="accuracy") for _ in range(2)}
    assert len(plots) == 1
    assert plots.pop().startswith(b"<?xml")
