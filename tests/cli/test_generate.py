"""`samebits generate`: text, or what is wrong with the model or the prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from language_nets import language_model
from samebits.onnx import save_qdq
from samebits.verification.backends.pytorch import PyTorch
from tiny_models import quantized_file


@pytest.fixture
def model(tmp_path: Any) -> Any:
    """A language model of 20 tokens: control characters."""
    path = tmp_path / "model.onnx"
    save_qdq(language_model(4, 32, 1), path)
    return path


def test_tokens_of_several_backends(samebits: Any, model: Any) -> None:
    options = ("--prompt", "\x03\x04", "--tokens", "9", "--seed", "5", "--top-k", "4")
    done = samebits("generate", model, *options, "--backends", "reference,torch", "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert found["same_tokens"] is True
    assert found["prompt"] == [3, 4]
    assert len(found["tokens"]["torch"]) == 9
    text = samebits("generate", model, *options, "--temperature", "0").out
    assert "9 tokens, seed 5" in text


def test_another_token_ends_with_1(
    samebits: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PyTorch, "generate", lambda self, model, request: [19] * request.count)
    given = ("--prompt", "\x03", "--tokens", "3", "--backends", "reference,torch")
    done = samebits("generate", model, *given)
    assert done.code == 1
    assert "torch: another token than reference from token" in done.out


def test_what_is_wrong(samebits: Any, model: Any, tmp_path: Any) -> None:
    plain = quantized_file(tmp_path / "plain.onnx")
    for path, text, message in (
        (model, "a", "each from 0 to 19, found 97"),
        (model, "", "at least one token"),
        (plain, "a", "recurrent layers or causal attention on whole sequences, found none"),
    ):
        done = samebits("generate", path, "--prompt", text)
        assert (done.code, done.out) == (2, "")
        assert message in done.err
        assert done.err.count("\n") == 1


def test_the_c_of_a_step(samebits: Any, model: Any, tmp_path: Any) -> None:
    out = tmp_path / "c"
    done = samebits("compile", model, "--stream", "--no-sizes", "--out", out)
    assert done.code == 0
    assert "states from step to step: 280 bytes of RAM" in done.out
    header = (out / "model.h").read_text()
    assert "model_step(" in header
    assert json.loads((out / "report.json").read_text())["state"] == 8 + 4 * 4 + 2 * 4 * 32
    done = samebits("compile", model, "--stream", "--target", "npu", "--out", tmp_path / "npu")
    assert done.code == 2
    assert "--stream does not apply to --target npu" in done.err
