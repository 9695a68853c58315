"""Pins: hashes of what every route computes, which tests/golden/bits.json holds.

    make pins

writes that file anew. A route is a function that returns hashes by name, registered by `@route`.
"""

from pins import (
    audio,
    deployment,
    few_bits,
    firmware,
    language,
    lookup,
    quantization,
    rows,
    states,
    training,
)
from pins.registry import ROUTES, Pins, Route, UnavailableError

__all__ = [
    "ROUTES",
    "Pins",
    "Route",
    "UnavailableError",
    "audio",
    "deployment",
    "few_bits",
    "firmware",
    "language",
    "lookup",
    "quantization",
    "rows",
    "states",
    "training",
]
