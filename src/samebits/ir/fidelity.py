"""Does a quantized network still compute the network? What its outputs keep of the float ones.

Equal bits on every backend are half of a promise: the other half is that they are the network's. A
`Fidelity` compares the outputs of the integers with those of the float network on samples: for
every output the signal-to-noise ratio, and where it is a decision (the greatest of several numbers,
the side of the middle on which one lies) how often it is the same, and how many different ones
there are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from samebits.ir import Graph
from samebits.ir.signal import away, finite, power, sqnr

Array = np.ndarray[Any, Any]

LOST = 6.0  # dB: a tensor below is named
FLOOR = 10.0  # dB: an output below is bad: its noise has a tenth of the power of the signal
AGREED = 0.9  # a network that mostly decides one thing may do so with one decision left
DECIDED = 8  # samples from which one decision instead of several is no accident
STORED = 1 << 16  # characters of it in a file
HELD_OUT = 4  # every fourth sample is measured on, where there are as many as MEASURED of them
MEASURED = 8
MOST = 64  # samples of one measurement
WORK = 1 << 27  # elements of all values of those samples, about: fewer of large networks


@dataclass(frozen=True, eq=False)
class Held:
    """Samples that a quantized network is measured on, against the float network.

    graph:     the float network; of a recurrent one its step graph
    samples:   for its inputs, or sequences of them
    first:     the first samples of the calibration, for pages
    sequences: whether they are such
    last:      outputs that count at the last step of a sequence alone
    """

    graph: Graph
    samples: Sequence[Any]
    first: Sequence[Any] = ()
    sequences: bool = False
    last: frozenset[str] = frozenset()


@dataclass(frozen=True)
class OutputFidelity:
    """One output. sqnr_db: None where it is equal, -inf where the float network gives zeros alone.

    agreement: share of the samples with the same decision; None where there is no decision
    decisions, wanted: different decisions of the integers, and of the float network
    """

    name: str
    sqnr_db: float | None
    agreement: float | None = None
    decisions: int = 0
    wanted: int = 0

    @property
    def collapsed(self) -> bool:
        """Whether one decision is left of several, and it is often another one."""
        alone = self.decisions == 1 < self.wanted
        return alone and self.agreement is not None and self.agreement < AGREED


@dataclass(frozen=True)
class Fidelity:
    """How much a quantized network keeps of the float one.

    samples: that were measured on (steps, of a recurrent network)
    lost:    tensors that keep less than LOST dB
    cause:   where it is bad: weights, input, data (other activations) or a part of recurrent
             layers; advice: what helps
    """

    samples: int
    outputs: tuple[OutputFidelity, ...]
    lost: tuple[str, ...] = ()
    cause: str = ""
    advice: str = ""

    @property
    def worst_db(self) -> float:
        """The ratio of the worst output; infinite where all are equal."""
        ratios = [o.sqnr_db for o in self.outputs if o.sqnr_db is not None]
        return min(ratios, default=math.inf)

    @property
    def bad(self) -> bool:
        """Whether an output has lost the network."""
        return self.worst_db < FLOOR or any(output.collapsed for output in self.outputs)

    def below(self, floor: float) -> bool:
        """Whether it is below a floor in dB."""
        return self.worst_db < floor or any(output.collapsed for output in self.outputs)

    @property
    def words(self) -> str:
        """One sentence about the worst output."""
        collapsed = [output for output in self.outputs if output.collapsed]
        if collapsed and self.worst_db >= FLOOR:
            found = collapsed[0]
            return (
                f"output {found.name!r} has one decision left of {found.wanted} on {self.samples} "
                f"samples, the same as the float network's in {100 * (found.agreement or 0):.0f} %"
            )
        worst = min(self.outputs, key=lambda o: math.inf if o.sqnr_db is None else o.sqnr_db)
        ratio = -math.inf if worst.sqnr_db is None else worst.sqnr_db
        more = ""
        if worst.agreement is not None:
            more = f", and decides as the float network in {100 * worst.agreement:.0f} %"
        return f"output {worst.name!r} keeps {ratio:.1f} dB on {self.samples} samples{more}"

    def warning(self) -> str:
        """The sentence to warn with; "" where the network is kept."""
        if not self.bad:
            return ""
        cause = f"; the cause: {self.cause}" if self.cause else ""
        advice = f"; {self.advice}" if self.advice else ""
        return f"the integers have lost the network: {self.words}{cause}{advice}"

    def refusal(self, floor: float) -> str:
        """The sentence that refuses what is below a floor."""
        cause = f"; the cause: {self.cause}" if self.cause else ""
        advice = self.advice or "quantize it with more bits"
        return (
            f"expected outputs that keep at least {floor:g} dB of the float network, found "
            f"{self.words}{cause}; {advice}, and --floor none takes it as it is"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; ratios that are not finite become None."""
        found: dict[str, Any] = finite(asdict(self))
        return found

    def stored(self) -> str:
        """As text for the metadata of a file."""
        return json.dumps(self.to_dict(), ensure_ascii=True)


def floor_of(given: float | str | None) -> float | None:
    """A floor in dB; None where there is none."""
    return None if given in (None, "none") else float(given)


def lost_tensors(report: Any) -> tuple[str, ...]:
    """The activations, or states, of a report that keep less than LOST dB."""
    tensors = {each.name: each.sqnr_db for each in getattr(report, "tensors", ())}
    ratios = {**tensors, **getattr(report, "states", {})}
    return tuple(name for name, ratio in ratios.items() if ratio is not None and ratio < LOST)


def restored(text: str) -> Fidelity | None:
    """A `Fidelity` in an untrusted file's metadata; None where the text is none."""
    if len(text) > STORED:
        return None
    try:
        data = json.loads(text)
        outputs = tuple(
            OutputFidelity(
                str(each["name"]),
                _number(each["sqnr_db"]),
                _number(each["agreement"]),
                int(each["decisions"]),
                int(each["wanted"]),
            )
            for each in data["outputs"]
        )
        lost = tuple(map(str, data["lost"]))
        return Fidelity(
            int(data["samples"]), outputs, lost, str(data["cause"]), str(data["advice"])
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def thinned(samples: Sequence[Any], graph: Graph) -> Sequence[Any]:
    """As many samples, evenly spread, as work on all values of a graph allows."""
    size = sum(v.size for name, v in graph.values.items() if name not in graph.constants)
    most = max(MEASURED, WORK // max(1, size))
    return samples if len(samples) <= most else samples[:: -(-len(samples) // most)]


def _number(given: Any) -> float | None:
    return None if given is None else float(given)


def compared(
    names: Sequence[str], expected: Mapping[str, Array], found: Mapping[str, Array]
) -> tuple[OutputFidelity, ...]:
    """The outputs of the integers against those of the float network: [samples, *shape] each."""
    return tuple(_output(name, expected[name], found[name]) for name in names)


def _output(name: str, expected: Array, found: Array) -> OutputFidelity:
    """Compare one output; integers are indices, and decisions themselves."""
    if expected.dtype.kind != "f":
        same = (expected == found).reshape(len(expected), -1).all(1)
        kinds = [
            len(np.unique(array.reshape(len(array), -1), axis=0)) for array in (found, expected)
        ]
        return OutputFidelity(name, None, float(same.mean()), *kinds)
    ratio = sqnr(power([expected]), away([expected], [found]))
    decisions = [_decisions(array, expected) for array in (found, expected)]
    if decisions[0] is None or decisions[1] is None:
        return OutputFidelity(name, ratio)
    made, wanted = decisions[0], decisions[1]
    count = (len(np.unique(made)), len(np.unique(wanted)))
    if len(made) < DECIDED:
        count = (max(count), max(count))
    return OutputFidelity(name, ratio, float((made == wanted).mean()), *count)


def _decisions(array: Array, expected: Array) -> Array | None:
    """The decision of each sample: the greatest of its numbers, or on which side of the middle its
    one number is (of a probability 1/2, else 0); None where there is none."""
    rows = array.reshape(len(array), -1)
    longest = max(array.shape[1:], default=1)
    if rows.shape[1] != longest:  # several rows of numbers
        return None
    if longest > 1:
        return np.asarray(rows.argmax(1))
    probable = float(expected.min(initial=0.0)) >= 0 and float(expected.max(initial=0.0)) <= 1
    return np.asarray(rows[:, 0] > (0.5 if probable else 0.0))
