"""Ordinary networks over whole sequences, from PyTorch to every backend with the same bits."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

import samebits as sb
from given_options import called
from samebits.errors import InputError, UnsupportedError
from sequence_nets import ANSWER, CLASSES, FEATURES, NETWORKS, STEPS, Packed

QUICK = ("CRNN",)
SAMPLES = 12


@functools.cache
def quantized(name: str, **options: Any) -> sb.Network:
    torch.manual_seed(0)
    module, rng = NETWORKS[name]().eval(), np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(SAMPLES, STEPS, FEATURES)).astype(np.float32)}
    example = (torch.zeros(1, STEPS, FEATURES),)
    if name == "seq2seq":
        before = rng.normal(size=(SAMPLES, ANSWER, CLASSES))
        arrays["before"] = before.astype(np.float32)
        example = (*example, torch.zeros(1, ANSWER, CLASSES))
    return called(
        sb.quantize, source=sb.load(module, example=example), calibration=arrays, **options
    )


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS]
)
def test_the_same_bits_on_every_backend(name: str) -> None:
    net = quantized(name)
    assert net.model.integer.states == ()
    assert net.fidelity is not None
    assert all(o.sqnr_db is None or o.sqnr_db > 20 for o in net.fidelity.outputs)
    assert net.verify("random:3", ["torch", "c", "onnxruntime-integer"])


def test_cells_of_one_layer_have_one_format() -> None:
    net = quantized("CRNN")
    integer = net.model.integer
    found: dict[str, set[Any]] = {}
    for name, value in integer.values.items():
        if ".t" in name and name.endswith(
            ("_sum.out.codes", "_gate.out.codes", "hidden.out.codes")
        ):
            key = name.rsplit(".t", 1)[1].split(".", 1)[1]
            found.setdefault(key, set()).add((value.dtype, value.quantization))
    assert len(found) == 7
    assert all(len(formats) == 1 for formats in found.values())
    assert [(gate.layer, gate.gate) for gate in net.quantization.gates] == [
        ("layer.gru.2", gate) for gate in "zrh"
    ]


def test_steps_or_whole_sequences_by_choice() -> None:
    torch.manual_seed(0)
    module = torch.nn.RNN(FEATURES, 2, batch_first=True).eval()
    x = np.random.default_rng(0).normal(size=(SAMPLES, STEPS, FEATURES)).astype(np.float32)
    found = [sb.quantize(module, x, sb.Recurrence(sequence=way)) for way in (None, "whole")]
    assert [len(net.model.integer.states) for net in found] == [1, 0]


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"--sequence step: .*; --sequence whole takes"):
        quantized("CRNN", sequence="step")
    module, x = NETWORKS["CRNN"](), np.zeros((SAMPLES, STEPS, FEATURES), np.float32)
    with pytest.raises(InputError, match="--sequence whole: expected a network without states"):
        sb.quantize(module, x, sb.Recurrence(sequence="whole", state={"x": 0}))
    x = np.zeros((SAMPLES, FEATURES), np.float32)
    with pytest.raises(InputError, match="--sequence does not apply to a feed-forward network"):
        sb.quantize(torch.nn.Linear(FEATURES, 2), x, sb.Recurrence(sequence="whole"))


def test_lengths_of_their_own_are_refused_with_what_to_do() -> None:
    example = (torch.zeros(1, STEPS, FEATURES), torch.tensor([STEPS]))
    with pytest.raises(sb.errors.SamebitsError) as caught:
        sb.load(Packed().eval(), example=example)
    assert "pack_padded_sequence" in str(caught.value)
