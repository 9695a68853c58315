"""Tokens of a language model: the same on every backend, from every prompt."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from language_nets import CONTEXT, VOCABULARY, language_model
from samebits.errors import InputError, UnsupportedError
from samebits.ir import GraphBuilder
from samebits.model import Model
from samebits.network import Network
from samebits.verification.registry import backend_named

COUNT = 3 * CONTEXT


@functools.cache
def net() -> Network:
    return Network(Model("tiny", language_model(depth=1, width=32))).as_steps()


def test_backends_draw_the_same_tokens() -> None:
    """A prompt longer than a block of model_steps, the rings turned five times."""
    names = ["reference", "torch", "c", "cortex-m3"]
    able = [name for name in names if backend_named(name).unavailable() is None]
    prompt = np.random.default_rng(0).integers(0, VOCABULARY, 21).tolist()
    drawn = net().generate(prompt, COUNT, seed=(7 << 32) + 5, top_k=9, backends=able)
    assert drawn
    assert list(drawn.tokens) == able
    tokens = drawn.tokens["reference"]
    assert len(tokens) == COUNT
    assert len(set(tokens)) > 3
    assert drawn.to_dict()["same_tokens"] is True
    assert f"the same {COUNT} tokens on reference, torch" in str(drawn.report())


def test_seed_and_temperature_choose() -> None:
    def drawn(**options: object) -> list[int]:
        found = net().generate([1, 2], 12, **options).tokens  # type: ignore[arg-type]
        return found["torch"]

    assert drawn() == drawn(seed=0)
    assert drawn() != drawn(seed=1)
    assert drawn(temperature=0) == drawn(temperature=0, seed=4) == drawn(top_k=1, seed=9)
    assert drawn(temperature=1e-9) == drawn(temperature=0)


def test_what_does_not_fit_is_named() -> None:
    for prompt, options, message in (
        ([], {}, "at least one token"),
        ([3, 20], {}, "from 0 to 19, found 20"),
        ("a", {}, "from 0 to 19, found 97"),
        ([1.5], {}, "whole numbers as tokens, found 1.5"),
        ([1, None], {}, "whole numbers as tokens, found None"),
        ([1], {"top_k": 0}, "1 candidate"),
        ([1], {"tokens": 2**24 + 1}, "1 to 16777216 tokens, .* found 16777217"),
        ([1], {"tokens": 2.0}, "found 2.0"),
        ([1], {"temperature": -1.0}, "a temperature from 0 on, found -1.0"),
        ([1], {"seed": -1}, "a seed from 0"),
        ([1], {"backends": "onnxruntime"}, "expected one that draws tokens, among .*torch"),
    ):
        with pytest.raises(InputError, match=message):
            net().generate(prompt, **{"tokens": 3, **options})  # type: ignore[arg-type]


def test_other_networks_draw_nothing() -> None:
    builder = GraphBuilder("plain")
    x = builder.input("x", "float32", (1, 3))
    plain = builder.build([builder.add("Relu", [x])])
    with pytest.raises(InputError, match="a quantized language model"):
        Network(Model("plain", plain)).generate("a")
    scale = builder.constant("scale", np.array(0.5, np.float32))
    zero = builder.constant("zero", np.array(0, np.int8))
    codes = builder.add("QuantizeLinear", [x, scale, zero])
    coded = builder.build([builder.add("DequantizeLinear", [codes, scale, zero])])
    with pytest.raises(UnsupportedError, match="causal attention on whole sequences, found none"):
        Network(Model("coded", coded)).generate("a")


def test_where_backends_part(monkeypatch: pytest.MonkeyPatch) -> None:
    from samebits.verification.backends.pytorch import PyTorch

    monkeypatch.setattr(PyTorch, "generate", lambda self, model, request: [0, 1, 2])
    monkeypatch.setattr(
        "samebits.verification.backends.reference.Reference.generate",
        lambda self, model, request: [0, 1, 3],
    )
    drawn = net().generate([1], 3, backends=["reference", "torch"])
    assert not drawn
    assert "torch: another token than reference from token 2 on" in str(drawn.report())


@pytest.mark.slow
def test_a_thousand_tokens() -> None:
    """4 layers of width 128 and a ring of 128, turned eight times."""
    able = [n for n in ("torch", "c", "cortex-m3") if backend_named(n).unavailable() is None]
    model = Network(Model("gpt", language_model(128, 128, 4)))
    drawn = model.generate([1, 2, 3], 1000, seed=1, top_k=12, backends=able)
    assert drawn
    assert all(len(tokens) == 1000 for tokens in drawn.tokens.values())
