"""The meanings in which a quantized file is read. docs/spec/tflite.md."""

from __future__ import annotations

from dataclasses import dataclass

from samebits.errors import InputError
from samebits.excerpt import MEANING
from samebits.tflite.same.versions import NEWEST, RUNTIMES, Runtime
from samebits.tflite.schema import OWN

EXACT, SAME = "exact", "tflite"
STATED = f"{OWN}meaning"  # the metadata that states it


@dataclass(frozen=True)
class Meaning:
    """The meaning of every integer of a network.

    runtime: whose integers they are; None: each is the exact number, rounded once
    """

    runtime: Runtime | None = None

    @property
    def name(self) -> str:
        """As a user names it, with the version."""
        return EXACT if self.runtime is None else f"{SAME}:{self.runtime.name}"

    def __str__(self) -> str:
        if self.runtime is None:
            return f"{EXACT}, every result rounded once"
        return f"{self.name}, the bits of {self.runtime.package}"


def meaning_named(name: str, option: str = MEANING) -> Meaning:
    """The meaning of a name: exact, tflite (of the newest runtime) or tflite:RUNTIME.

    option: where the name stands, for the InputError of a name that is none.
    """
    kind, separator, runtime = name.partition(":")
    if kind == SAME and (runtime or not separator):
        runtime = runtime or NEWEST
        if runtime in RUNTIMES:
            return Meaning(RUNTIMES[runtime])
    elif name == EXACT:
        return Meaning()
    versions = ", ".join(f"{SAME}:{each}" for each in RUNTIMES)
    raise InputError(
        f"{option}: expected {EXACT}, {SAME} (which is {SAME}:{NEWEST}), or a version of "
        f"{versions}, found {name!r:.80}"
    )
