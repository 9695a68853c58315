"""Lines of the report on what quantization did beyond rounding to nearest."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerChange:
    """A line of the report: the change that a step of quantization made to a layer.

    before, after: signal-to-noise ratio of the layer's output in dB, before and after the step,
                   against the float network; None where the step does not measure it, or no noise
    """

    step: str
    layer: str
    op: str
    what: str
    before: float | None = None
    after: float | None = None
