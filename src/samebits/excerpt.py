"""The part of a network that is taken: shapes and constants of its inputs, the tensors at which it
starts and ends, and the meaning of its integers."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypedDict

from samebits.errors import InputError

COMPARED, LONGEST = 4096, 200  # names, and their characters, among which near ones are looked for

Shapes = Mapping[str, Sequence[int]]
Settings = Mapping[str, Any]
Tensors = str | Sequence[str]


@dataclass(frozen=True)
class Excerpt:
    """The part of a network that is taken, by the names of its tensors.

    shapes:   of inputs whose dimensions the file leaves open, and of tensors at which it is cut
    set:      inputs that become constants, and their numbers: of a tensor, of every element
    start_at: the tensors that are the inputs, in this order; () for those of the file
    end_at:   the tensors that are the outputs; () for those of the file
    meaning:  of a quantized .tflite file's integers, "" for that of the file or, if it states none,
              exact
    """

    shapes: Shapes = field(default_factory=dict)
    set: Settings = field(default_factory=dict)
    start_at: Sequence[str] = ()
    end_at: Sequence[str] = ()
    meaning: str = ""

    @property
    def is_cut(self) -> bool:
        """Whether it has other ends than the network."""
        return bool(self.start_at or self.end_at)

    def check_applies(self, options: Collection[str], where: str, what: str) -> None:
        """Raise InputError for the first option that is given and not among these.

        where: the model. what: those models that take the other options, but for --meaning"""
        given = {
            "--shape": self.shapes,
            "--set": self.set,
            "--start-at": self.start_at,
            "--end-at": self.end_at,
            MEANING: self.meaning,
        }
        for option, value in given.items():
            if value and option not in options:
                those = "quantized .tflite files" if option == MEANING else what
                raise InputError(
                    f"{where}: {option} applies to {those}, found one for another model; leave it "
                    "out"
                )


WHOLE = Excerpt()
MEANING = "--meaning"
CUTS = ("--start-at", "--end-at")


class Part(TypedDict, total=False):
    """The options of a function that takes a part of a network, as keywords: those of `Excerpt`."""

    shapes: Shapes | None
    set: Settings | None
    start_at: Tensors | None
    end_at: Tensors | None
    meaning: str | None


def excerpt_of(
    shapes: Shapes | None = None,
    set: Settings | None = None,
    start_at: Tensors | None = None,
    end_at: Tensors | None = None,
    meaning: str | None = None,
) -> Excerpt:
    """The part that a user asks for. Raises InputError for what are no names."""
    if set is not None and not (isinstance(set, Mapping) and all(isinstance(n, str) for n in set)):
        raise InputError(f"--set: expected numbers by the names of inputs, found {set!r:.60}")
    if meaning is not None and not (isinstance(meaning, str) and meaning):
        raise InputError(f"{MEANING}: expected the name of a meaning, found {meaning!r:.60}")
    ends = _names(start_at, CUTS[0]), _names(end_at, CUTS[1])
    return Excerpt(shapes or {}, set or {}, *ends, meaning or "")


def _names(given: Tensors | None, option: str) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given or ())
    if not all(isinstance(name, str) and name for name in names):
        raise InputError(f"{option}: expected names of tensors, found {given!r:.60}")
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise InputError(f"{option}: expected different tensors, found {twice!r} twice")
    return names


def unknown_tensor(option: str, name: str, known: Iterable[str]) -> str:
    """The message for a tensor that the network has not; it names those with a similar name."""
    names = list(itertools.islice((n for n in known if n and len(n) <= LONGEST), COMPARED))
    near = difflib.get_close_matches(name[:LONGEST], names, cutoff=0.5)
    near += [other for other in names if name in other and other not in near]
    meant = f"did you mean {' or '.join(map(repr, near[:3]))}? " if near else ""
    return (
        f"{option}: expected a tensor of the network, found no {name[:LONGEST]!r}; {meant}samebits "
        "inspect MODEL --nodes lists those of a network that can be read whole"
    )


def check_known(part: Excerpt, known: Collection[str]) -> None:
    """Raise InputError for a tensor of the cuts that is not among these."""
    for option, names in zip(CUTS, (part.start_at, part.end_at), strict=True):
        for name in names:
            if name not in known:
                raise InputError(unknown_tensor(option, name, known))


def check_needed(part: Excerpt, inputs: Iterable[str], read: Collection[str]) -> None:
    """Raise InputError for a tensor of --start-at that nothing reads, and for one of the inputs
    that something reads although it is neither there nor set."""
    for name in part.start_at:
        if name not in read:
            raise InputError(
                f"--start-at {name}: expected tensors that the outputs need, found one that none "
                "does; leave it out"
            )
    for name in inputs:
        if name in read and name not in part.start_at and name not in part.set:
            raise InputError(
                f"--start-at: expected all inputs that the outputs need, found {name!r} missing; "
                f"name it too, or give --set {name}=VALUE where it is a constant"
            )


def refuse_states() -> NoReturn:
    """Raise the InputError for a time step that is to be cut, or whose states are to be set."""
    raise InputError(
        "expected a network without states to cut or to set them, found a time step; take the "
        "network that it was made from"
    )
