"""Where a training step's time goes, as tables and a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from samebits.reports.html import Figure, Table
from samebits.reports.plots import Bars, bar_plots
from samebits.reports.report import Report, printable, section
from samebits.train.graph import BACKWARD, FORWARD
from samebits.train.run.profile import StepProfile, TimedCall

OTHER = "(no layer)"  # calls of operations that none asks for
LONGEST = 24  # characters of a layer's name in the chart


@dataclass
class _Sum:
    """Calls together; seconds of each phase."""

    calls: int = 0
    products: int = 0
    forward: float = 0.0
    backward: float = 0.0

    def add(self, call: TimedCall) -> None:
        self.calls += 1
        self.products += call.products
        if call.phase == BACKWARD:
            self.backward += call.seconds
        else:
            self.forward += call.seconds

    @property
    def seconds(self) -> float:
        return self.forward + self.backward


def step_report(source: str, profile: StepProfile) -> Report:
    """Time by layer, in their order, and by kernel, the longest first."""
    layers = _sums(_in_order(profile.calls), lambda call: printable(call.layer) or OTHER)
    kernels = _sums(profile.calls, lambda call: call.kernel)
    passes = sum(call.seconds for call in profile.calls)
    whole = profile.shards * passes + profile.update
    by_layer = [
        (
            *(name, _ms(own.forward), _ms(own.backward), _share(own.seconds, passes)),
            *(f"{own.products:,}" if own.products else "", _speed(own.products, own.seconds)),
        )
        for name, own in layers.items()
    ]
    by_kernel = [
        (
            *(name, f"{own.calls}", _ms(own.seconds), _share(own.seconds, passes)),
            _speed(own.products, own.seconds),
        )
        for name, own in sorted(kernels.items(), key=lambda item: -item[1].seconds)
    ]
    columns = ("layer", "forward, ms", "backward, ms", "share", "products", "billions a second")
    chart = bar_plots(
        [name[-LONGEST:] for name in layers],
        [
            Bars(FORWARD, [1e3 * own.forward for own in layers.values()]),
            Bars(BACKWARD, [1e3 * own.backward for own in layers.values()]),
        ],
        x_title="ms",
    )
    told = (
        f"A step of {profile.batch} samples takes {_ms(profile.whole)} ms, the least of several: "
        f"{profile.shards} x {_ms(passes)} ms in the passes of a shard, {len(profile.calls)} "
        f"kernel calls, and {_ms(profile.update)} ms in the optimizer's update "
        f"({_share(profile.update, whole)}). Calls are timed one by one, with some microseconds of "
        "Python each. Products are those of matrix products and convolutions, without those inside "
        "recurrent cells."
    )
    return Report(
        f"A training step of {printable(source)}",
        told,
        [
            section(Table(columns, by_layer), title="Layers"),
            section(Figure(chart, "time of each layer", "From the first layer down.")),
            section(
                Table(("kernel", "calls", "ms", "share", "billions a second"), by_kernel),
                title="Kernels",
            ),
        ],
    )


def _sums(calls: Iterable[TimedCall], key: Callable[[TimedCall], str]) -> dict[str, _Sum]:
    """Calls together by a key, in the order in which keys come."""
    found: dict[str, _Sum] = {}
    for call in calls:
        found.setdefault(key(call), _Sum()).add(call)
    return found


def _in_order(calls: Sequence[TimedCall]) -> list[TimedCall]:
    """Calls by their layers, from the first down: the backward pass meets them from the last up.
    What it does not meet is not trained, and comes before."""
    met = dict.fromkeys(call.layer for call in reversed(calls) if call.phase == BACKWARD)
    place = {layer: at for at, layer in enumerate(met)}
    return sorted(calls, key=lambda call: place.get(call.layer, -1))


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f}"


def _share(seconds: float, whole: float) -> str:
    return f"{100 * seconds / whole:.1f} %" if whole else ""


def _speed(products: int, seconds: float) -> str:
    return f"{products / seconds / 1e9:.1f}" if products and seconds else ""
