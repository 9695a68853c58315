"""Mixed precision: the tensors whose rounding costs the outputs most get twice the bits.

What a tensor costs is measured (`trial`): the float network with this one tensor rounded, all
others exact, on samples of the calibration.

A user asks for a number of them (`most_sensitive`). Where nobody asked and the plain result has
lost the network, it is `repaired`: so many of those that cost most get more bits that what the
others cost, added, is below the noise that is allowed, and more of them while the measured noise is
above it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from samebits import progress
from samebits.ir.signal import sqnr
from samebits.quantization.changes import LayerChange
from samebits.quantization.convert import Converted, output_groups
from samebits.quantization.placement import Placement
from samebits.quantization.settings import Settings, with_bits
from samebits.quantization.trial import Trial

SAMPLES = 8  # that each tensor is rounded on
ALLOWED = 0.005  # noise over signal of a repaired network: 23 dB
WORTH = 0.5  # of the noise before: a repair that leaves more is not worth its bits


@dataclass(frozen=True)
class Candidate:
    """A group of activations, or the weights of a layer, that could have twice the bits.

    key: of the group or constant; alone: the placement of these tensors
    """

    key: str
    op: str
    bits: int
    alone: Placement

    def change(self, cost: float) -> LayerChange:
        """The line of the report on a candidate that got them."""
        what = f"{2 * self.bits} bits; before: what it alone costs the outputs"
        return LayerChange("precision", self.key, self.op, what, sqnr(1.0, cost))


def most_sensitive(
    trial: Trial, converted: Converted, settings: Settings
) -> tuple[dict[str, int], tuple[LayerChange, ...]]:
    """Groups and weights, `settings.mixed` at most, of which each alone costs the outputs most, and
    the bits that they get.

    converted: the graph without them; the report's `before` is the ratio that each alone leaves
    """
    ranked = _ranked(trial, converted, settings)
    chosen = [(each, cost) for each, cost in ranked[: settings.mixed or 0] if cost > 0]
    widths = {each.key: 2 * each.bits for each, _ in chosen}
    return widths, tuple(each.change(cost) for each, cost in chosen)


def repaired(
    trial: Trial, converted: Converted, settings: Settings, noise: float
) -> tuple[Mapping[str, int], tuple[LayerChange, ...]]:
    """Bits of the tensors without which the outputs are lost; none where more bits gain nothing.

    noise: of the outputs over their signal, without them
    """
    progress.note("the plain result has lost the network; looking for the tensors that lose it")
    ranked = _ranked(trial, converted, settings)
    left = [sum(cost for _, cost in ranked[count:]) for count in range(len(ranked) + 1)]
    count = next((n for n, cost in enumerate(left) if cost <= ALLOWED), len(ranked))
    best, least = 0, noise
    while 0 < count <= len(ranked):
        found = trial.noise(trial.placement, _widths(ranked[:count]))
        if found < least:
            best, least = count, found
        if least <= ALLOWED or count == len(ranked):
            break
        count = min(2 * count, len(ranked))
    if least > WORTH * noise:
        return {}, ()
    changes = tuple(each.change(cost) for each, cost in ranked[:best])
    ends = sqnr(1.0, noise), sqnr(1.0, least)
    what = f"{best} tensors with twice the bits; the noise of all outputs added, before and after"
    return _widths(ranked[:best]), (
        *changes,
        LayerChange("repair", trial.graph.name, "", what, *ends),
    )


def _widths(ranked: Sequence[tuple[Candidate, float]]) -> dict[str, int]:
    return {each.key: 2 * each.bits for each, _ in ranked}


def _ranked(
    trial: Trial, converted: Converted, settings: Settings
) -> list[tuple[Candidate, float]]:
    """All candidates with what they cost, the most expensive first."""
    listed = [*_activations(trial, converted, settings), *_weights(trial, converted)]
    tracked = progress.track(listed, "measuring sensitivity", len(listed))
    found = [(each, trial.noise(each.alone)) for each in tracked]
    order = sorted(range(len(found)), key=lambda index: (-found[index][1], index))
    return [found[index] for index in order]


def _activations(trial: Trial, converted: Converted, settings: Settings) -> Iterator[Candidate]:
    """Groups of activations whose format has a wider one, and is not the one asked for."""
    placement = trial.placement
    given = set()
    if settings.output_bits is not None:
        given = output_groups(trial.graph, placement)
    seen = set[str]()
    for tensor in converted.tensors:
        group, fmt = placement.group[tensor.name], tensor.numbers.format
        wider = with_bits(fmt, 2 * fmt.bits)
        if tensor.features or wider is None or group in given or group in seen:
            continue
        seen.add(group)
        yield Candidate(group, tensor.op, fmt.bits, trial.only({group}))


def _weights(trial: Trial, converted: Converted) -> Iterator[Candidate]:
    """Weights whose format has a wider one, each once."""
    constants = {constant.dequantized: constant for constant in converted.constants}
    layers: dict[str, list[str]] = {}
    for layer in converted.layers:
        layers.setdefault(constants[layer.weights].name, []).append(layer.name)
    for layer in converted.layers:
        found = constants[layer.weights]
        fmt = found.codes.format
        wider = with_bits(fmt, 2 * fmt.bits, weights=True)
        if wider is None or found.name not in trial.graph.constants or found.name not in layers:
            continue
        alone = trial.only((), layers.pop(found.name))
        yield Candidate(found.name, layer.op, fmt.bits, alone)
