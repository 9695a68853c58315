"""The two meanings of a quantized .tflite file beside each other (docs/spec/tflite.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.model import Model
from samebits.verification.inputs import given_codes, step
from samebits.verification.registry import backend_named
from samebits.verification.run import reference_of


def other_meaning(model: Model, given: Any, seed: int | None) -> str:
    """The number of samples whose outputs would have other codes in the other meaning, as a
    sentence; "" for a network that has no other, or of which only a part was taken.

    given, seed: as `given_codes` takes them
    """
    lite = model.lite
    if lite is None or lite.meaning is None:
        return ""
    codes = given_codes(given, model, seed)
    try:
        found = lite.in_other_meaning()
        other = replace(model, graph=found.graph, lite=found)
        if other.interface.outputs != model.interface.outputs:
            return ""
        own, others = (
            backend_named(reference_of(each)).run(each, codes) for each in (model, other)
        )
    except (InputError, UnsupportedError) as error:
        return f"The other meaning does not take this network: {error}."
    samples = len(codes[0]) // step(model.interface.values[model.interface.inputs[0]])
    differ = np.zeros(samples, bool)
    for a, b in zip(own, others, strict=True):
        differ |= (a != b).reshape(samples, -1).any(axis=1)
    return (
        f"In the meaning {found.meaning} the outputs of {int(differ.sum()):,} of {samples:,} "
        "samples would have other codes."
    )
