"""`Plan`, the results that a training step keeps and those it computes again, and its JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from samebits.entrance import read
from samebits.errors import InputError
from samebits.files import write_atomically
from samebits.recipes.training import ORDERS
from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.plan.rule import UNREAD
from samebits.recompute.plan.schedule import Action, compile_schedule

FORMAT = "samebits-plan-2"
SEARCHES = ("none", "complete", "steps", "time")  # how the search for a plan came to its end
LARGEST_FILE = 1 << 26  # bytes of a plan file
LARGEST = 10**18  # of any number in it
LONGEST = 500  # characters of a text in it


@dataclass(frozen=True)
class Decision:
    """The decision about one sub-layer's output. Sizes in bytes, times in picoseconds.

    tier:   where the output lives from its forward to its backward pass if it is stored, else where
            it lives until its last use
    fetch_ps, recompute_ps, load_ps: what the inequality load(input) + time < load(output) consists
            of; 0 where there is nothing to decide
    reason: why, in words
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    bytes: int
    stored: bool
    tier: str
    fetch_ps: int
    recompute_ps: int
    load_ps: int
    reason: str

    @property
    def gain_ps(self) -> int:
        """Time saved by dropping it, negative where that loses; 0 where no load is avoided."""
        if self.reason == UNREAD:
            return 0
        return self.load_ps - self.fetch_ps - self.recompute_ps


@dataclass(frozen=True)
class Plan:
    """A plan for one pass of a model: a batch (float32) or a shard of it (BFP).

    samples:  number of samples of a pass
    budget:   bytes it was made for, None for the local rule
    peak, store_all, smallest: bytes of this plan, of storing everything, of the smallest plan known
    recompute_ps, bound_ps: time of what is computed again in a pass; no plan of this budget takes
              less than bound_ps
    search:   how the search came to its end: complete (recompute_ps is proven to be the least), at
              its limit of steps or of time; none for the local rule
    backward: order of the backward pass, sequential or paired (weight gradients in a second thread)
    work_ps, span_ps: time of the backward pass on one unit, and on two
    """

    arch: str
    numerics: str
    samples: int
    device: str
    budget: int | None
    peak: int
    store_all: int
    smallest: int
    recompute_ps: int
    bound_ps: int
    search: str
    backward: str
    work_ps: int
    span_ps: int
    layers: tuple[Decision, ...]

    @property
    def avoided_ps(self) -> int:
        """Time of the loads that the backward pass does without, as the values are not stored."""
        gone = (x for x in self.layers if not x.stored and x.reason != UNREAD)
        return sum(layer.load_ps for layer in gone)

    def dropped(self, network: PassNetwork) -> tuple[int, ...]:
        """The values of `network` that this plan drops; InputError at the first difference."""
        for i, (have, layer) in enumerate(zip(self.layers, network.layers, strict=False)):
            for field, expected, found in (
                ("name", have.name, layer.name),
                ("kind", have.kind, layer.kind),
                ("shape", list(have.shape), list(layer.shape)),
                ("bytes", have.bytes, layer.size),
            ):
                if expected != found:
                    raise InputError(
                        f"this plan is for another model or batch: sub-layer {i} ({layer.name}): "
                        f"expected {field} {expected}, found {found}; plan again with samebits plan"
                    )
        if len(self.layers) != len(network.layers):
            raise InputError(
                f"this plan is for another model: expected {len(self.layers)} sub-layers, found "
                f"{len(network.layers)}; plan again with samebits plan"
            )
        choices = set(network.choices())
        for i, have in enumerate(self.layers):
            if not have.stored and i not in choices:
                raise InputError(
                    f"this plan drops sub-layer {i} ({have.name}), which has no result of its "
                    "own; plan again with samebits plan"
                )
        return tuple(i for i, have in enumerate(self.layers) if not have.stored)

    def schedule(self, network: PassNetwork) -> tuple[Action, ...]:
        """The actions of a pass of `network`; InputError if the plan is for another."""
        return compile_schedule(network, self.dropped(network), self.backward == "paired")

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {"format": FORMAT, **asdict(self)}


def write_plan(path: Path, plan: Plan) -> None:
    """Replace `path` atomically by the plan's JSON."""
    write_atomically(path, (json.dumps(plan.to_dict(), indent=1) + "\n").encode())


def read_plan(path: Path) -> Plan:
    """The plan in an untrusted file. InputError names the field that is missing or wrong."""
    try:
        data = read(path, LARGEST_FILE, "write one with samebits plan")
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror or error}); expected none, auto or a file "
            "written by samebits plan"
        ) from error
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a plan: {error}; write one with samebits plan") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        found = record.get("format") if isinstance(record, dict) else type(record).__name__
        raise InputError(
            f"{path}: field format: expected {FORMAT!r} of samebits, found {found!r:.60}; "
            "plan again with samebits plan, or use the release of samebits that wrote it"
        )
    layers = record.get("layers")
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        raise InputError(f"{path}: field layers: expected a list of objects")
    decisions = (
        _read(Decision, layer, f"{path}: field layers[{i}].") for i, layer in enumerate(layers)
    )
    plan: Plan = _read(Plan, {**record, "layers": tuple(decisions)}, f"{path}: field ")
    if plan.store_all == 0:
        raise InputError(
            f"{path}: field store_all: expected at least one byte, found 0; write the plan again "
            "with samebits plan"
        )
    for name, value, known in (
        ("backward", plan.backward, ORDERS),
        ("search", plan.search, SEARCHES),
    ):
        if value not in known:
            raise InputError(
                f"{path}: field {name}: expected {' or '.join(known)}, found {value[:60]!r}; "
                "write the plan again with samebits plan"
            )
    return plan


_KINDS = {
    "str": ((str,), f"printable text of at most {LONGEST} characters"),
    "int": ((int,), f"a whole number in 0..{LARGEST}"),
    "int | None": ((int, type(None)), f"a whole number in 0..{LARGEST} or null"),
    "bool": ((bool,), "true or false"),
    "tuple[int, ...]": ((list,), f"a list of whole numbers in 0..{LARGEST}"),
    "tuple[Decision, ...]": ((tuple,), "a list of objects"),
}


def _read(cls: Any, record: Mapping[str, Any], place: str) -> Any:
    """A Plan or a Decision from JSON data, each field checked by its annotation (_KINDS)."""
    values = {}
    for field in fields(cls):
        kinds, expected = _KINDS[str(field.type)]
        value = record.get(field.name)
        wrong = type(value) not in kinds
        if type(value) is str:
            wrong |= not value.isprintable() or len(value) > LONGEST
        if type(value) is int:
            wrong |= not 0 <= value <= LARGEST
        if type(value) is list:
            wrong |= any(type(item) is not int or not 0 <= item <= LARGEST for item in value)
            value = tuple(value)
        if wrong:
            raise InputError(
                f"{place}{field.name}: expected {expected}, found {str(value)[:60]!r}; write the "
                "plan again with samebits plan"
            )
        values[field.name] = value
    return cls(**values)
