"""Recipes of quantization after training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from samebits.errors import InputError
from samebits.recipes.record import Recipe, option

SCHEMES = tuple(
    name.format(bits)
    for bits in (8, 16)
    for name in (
        *("asymmetric-s{}", "asymmetric-u{}", "symmetric-s{}", "symmetric-s{}-full"),
        "power-of-two-s{}",
    )
)
WEIGHT_FORMATS = (
    *("symmetric-s8", "asymmetric-s8", "power-of-two-s8"),
    *("symmetric-s4", "symmetric-s16", "power-of-two-s16"),
)
METHODS = ("minmax", "percentile", "mse")
EQUALIZATIONS = ("weights", "activations")
EFFORTS = ("plain", "high")
ROUNDINGS = ("nearest", "least-error")
GATE_FORMATS = ("q0.15", "symmetric", "asymmetric")
STEP, WHOLE = "step", "whole"


class Formats(Recipe):
    """The integers of a quantized network. None stands for the default."""

    scheme: str | None = option(
        default=None,
        help="Of activations: asymmetric-s8 (the default), asymmetric-u8, symmetric-s8, "
        "symmetric-s8-full, power-of-two-s8, and the same with 16 bits.",
        choices=SCHEMES,
        metavar="FORMAT",
    )
    weights: str | None = option(
        default=None,
        help="Of weights: symmetric-s8 (the default), asymmetric-s8, power-of-two-s8, "
        "symmetric-s4, symmetric-s16, power-of-two-s16.",
        choices=WEIGHT_FORMATS,
        metavar="FORMAT",
    )
    output_bits: int | None = option(
        default=None, help="8 or 16 bits for the outputs [default: as activations]."
    )
    per_tensor: bool | None = option(
        default=None, help="One scale per weight, not per output channel."
    )
    mixed: int | None = option(
        default=None,
        help="So many tensors, activations and weights, get twice the bits: those whose rounding "
        "costs the outputs most [default: none].",
    )


def _floor(given: Any) -> float | str:
    """dB as a number, or "none". Raises InputError for another text or number."""
    if given == "none":
        return "none"
    try:
        floor = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        floor = math.nan
    if not math.isfinite(floor):
        raise InputError(f"--floor: expected a number of dB, or none, found {given!r:.80}")
    return floor


class Calibration(Recipe):
    """How scales and codes are found on samples, and what the integers have to keep.

    floor: below it FidelityError says what lost it. Without, a network that keeps less than 10 dB,
           or one decision of several, is a FidelityWarning
    """

    calibrate: str | None = option(
        default=None,
        help="minmax, percentile or mse [default: minmax, with attention the better of minmax and "
        "mse, of recurrent networks mse].",
        choices=METHODS,
        metavar="HOW",
    )
    percentile: float | None = option(
        default=None,
        help="Per cent of the elements kept, for --calibrate percentile [default: 99.99].",
    )
    stop_early: int | None = option(
        default=None,
        help="End calibration after so many samples in a row that changed no scale [default: read "
        "all].",
    )
    equalize: str | None = option(
        default=None,
        help="weights or activations: scale the channels between layers so that one scale fits "
        "them all.",
        choices=EQUALIZATIONS,
        metavar="WHAT",
    )
    weight_rounding: str | None = option(
        default=None,
        help="Of weights: nearest (the default), or least-error of their layer's outputs.",
        choices=ROUNDINGS,
        metavar="HOW",
    )
    bias_correction: bool | None = option(
        default=None, help="The mean error of each output channel goes into its bias."
    )
    effort: str | None = option(
        default=None,
        help="plain (the default); high: try clipping, equalization, bias correction and rounding,"
        " and keep what raises the signal-to-noise ratio of the outputs on every fourth "
        "sample.",
        choices=EFFORTS,
        metavar="HOW",
    )
    floor: float | str | None = option(
        default=None,
        help="What every output has to keep of the float network, in dB on every fourth sample, or"
        " nothing is written; none: whatever it keeps [default: of ship 10, else none].",
        take=_floor,
        metavar="DB",
    )


def _states(given: Any) -> dict[str, str | int] | str:
    """The pairs of texts such as h=hn, or the only text that is no pair. Raises InputError for
    another text and for an input that is named twice."""
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping) and all(
        isinstance(name, str) and isinstance(output, str | int) for name, output in given.items()
    ):
        return dict(given)
    if not isinstance(given, list | tuple) or not all(isinstance(text, str) for text in given):
        raise InputError(
            f"--state: expected pairs of names, INPUT=OUTPUT such as h=hn, found {given!r:.80}"
        )
    texts = list(given)
    if len(texts) == 1 and "=" not in texts[0]:
        return str(texts[0])
    pairs: dict[str, str | int] = {}
    for text in texts:
        name, _, output = text.rpartition("=")
        if not name or not output:
            raise InputError(
                f"--state: expected INPUT=OUTPUT such as h=hn, found {text!r}; samebits inspect "
                "MODEL lists inputs and outputs"
            )
        if name in pairs:
            raise InputError(f"--state: expected one output for the input {name!r}, found two")
        pairs[name] = output
    return pairs


class Recurrence(Recipe):
    """Recurrent networks, and those with states. None stands for the default."""

    bits: int | None = option(
        default=None, help="Recurrent networks: 8 or 16 bits for x and h [default: 8]."
    )
    symmetry: float | None = option(
        default=None,
        help="Recurrent networks: a weight matrix is symmetric where the smaller end of its range "
        "is at least this part of the larger one, else asymmetric [default: 0].",
    )
    gates: str | None = option(
        default=None,
        help="Recurrent networks, outputs of gates: q0.15 (the default), symmetric or asymmetric.",
        choices=GATE_FORMATS,
        metavar="FORMAT",
    )
    float_bias: bool | None = option(
        default=None,
        help="Recurrent networks: biases stay float32, for targets with a floating-point unit; "
        "without the promise of the same bits across targets.",
    )
    state: dict[str, str | int] | str | None = option(
        default=None,
        help="An output (its name, or its place from 0) that is fed back to an input in the next "
        "step: both get one format; once for each state. none: no input is a state [default: "
        "those that names or layers show].",
        take=_states,
        metavar="INPUT=OUTPUT",
        many=True,
    )
    sequence: str | None = option(
        default=None,
        help="Recurrent networks: one time step a call, or whole sequences of the length that the "
        "network has [default: step where each time step stands alone, else whole].",
        metavar="step|whole",
        names=lambda: (STEP, WHOLE),
    )


class FineTuning(Recipe):
    """Training of a quantized network in its integers, by Adam over whole epochs; the learning rate
    falls linearly to 0."""

    epochs: int = option(default=1, help="Of --finetune: passes over the data.", span="[1, inf)")
    batch: int = option(default=64, help="Of --finetune: samples per step.", span="[1, inf)")
    lr: float = option(
        default=0.001,
        help="Of --finetune: learning rate, in parts of a layer's largest code.",
        span="(0, inf)",
    )
    seed: int = option(default=0, help="Of --finetune: seed of the order.", span="[0, 4294967295]")
