"""Tables of point-wise functions, the constants of audio features, number formats, Philox."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch

from pins.registry import Pins, digest, route
from pins.samples import fractions, integers
from samebits.numerics import FORMATS, Rounding, philox, quantize_real
from samebits.spec.philox import philox4x32
from samebits.tables import (
    ACTIVATIONS,
    Variable,
    activation_table,
    apply,
    audio,
    binary16,
    exp_table,
    transfer_table,
)

BYTE = (Fraction(3, 64), -5, -128, 127)
SHORT = (Fraction(1, 1 << 12), 0, -32768, 32767)
GATE = (Fraction(1, 1 << 15), 0, -32768, 32767)
FINE = (Fraction(1, 40), 3, -128, 127)
FUNCTIONS = (
    *("Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Reciprocal", "Erf", "Softplus", "Softsign"),
    *("Gelu", "Swish", "HardSwish", "HardSigmoid", "Mish", "Elu", "Selu", "Celu", "LeakyRelu"),
    *("Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"),
)


@route("tables-transfer")
def transfer() -> Pins:
    functions = {name: apply(name, Variable()) for name in FUNCTIONS}
    functions["Gelu tanh"] = apply("Gelu", Variable(), approximate="tanh")
    found = {}
    for name, function in functions.items():
        table = transfer_table(function, BYTE, FINE)
        found[name] = digest(table.codes, table.undefined)
    for op in ("Sigmoid", "Tanh"):
        table = transfer_table(apply(op, Variable()), SHORT, GATE)
        found[f"{op}, 16 bits"] = digest(table.codes, table.undefined)
    found["softmax"] = digest(exp_table(Fraction(3, 64), 256))
    return found


@route("tables-activation")
def activation() -> Pins:
    found = {}
    for name in ACTIVATIONS:
        parameter = Fraction(1, 8) if ACTIVATIONS[name].parameter else None
        tables = [activation_table(name, exponent, parameter) for exponent in (-20, -9, -6, -4, 1)]
        found[name] = digest(
            *(
                part
                for t in tables
                for part in (t.codes, t.exponent, t.derivative_codes, t.derivative_exponent)
            )
        )
    return found


@route("tables-binary16")
def npu_tables() -> Pins:
    return {
        "sigmoid": digest(binary16.sigmoid_table()),
        "tanh": digest(binary16.tanh_table()),
    }


@route("tables-audio")
def audio_tables() -> Pins:
    weights = audio.mel_weights(16000, 512, 32, 60, 8000)
    return {
        "window": digest(audio.hann_window(512)),
        "cosine": digest(audio.cosine_table(512)),
        "logarithm": digest(audio.log2_table()),
        "edges": digest(audio.mel_edges(32, 60, 4000)),
        "weights": digest(*(part for band in weights for part in band)),
    }


@route("philox")
def random_words() -> Pins:
    block = philox4x32((1, 2, 3, 0xFFFFFFFF), (0xFFFFFFFF, 7))
    return {
        "block": digest(block),
        "words": digest(philox.words(4099, (2, 3), step=5, shard=7).numpy()),
        "last shard": digest(philox.words(33, (2**32 - 1, 1), 2**32 - 1, 2**32 - 1).numpy()),
    }


@route("formats")
def formats() -> Pins:
    """Numbers of many sizes in every format, and with every rounding in one."""
    spread = 2.0 ** integers(50, (12, 48), -9, 3)
    x = torch.from_numpy((fractions(51, (12, 48), 16, -13) * spread).astype(np.float32))
    random = torch.from_numpy(integers(52, (12, 48), 0, 2**32 - 1))
    found = {}
    roundings = {r.value: replace(FORMATS["q3.12"], rounding=r) for r in Rounding}
    for name, fmt in (FORMATS | roundings).items():
        given = random if fmt.rounding is Rounding.STOCHASTIC else None
        q = quantize_real(x, fmt, random=given)
        scale = q.exponent if q.exponent is not None else q.scale
        assert scale is not None
        found[name] = digest(q.codes.numpy(), scale.numpy(), q.zero_point)
    return found
