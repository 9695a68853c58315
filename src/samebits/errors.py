"""The errors samebits raises on purpose. Every message says what was expected, what was found,
where, and what to do; the command line prints it and exits with code 2."""

from __future__ import annotations

import re
from collections.abc import Sequence

LISTED = 50  # lines of one message

# Options of the command line whose arguments in Python have other names.
_ARGUMENTS = {
    "data": "data=, calibration= or samples=",
    "shape": "shapes=",
    "input": "input_shape=",
    "memory-limit": "samebits.memory_limit(...)",
}
_OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")  # a command, or what another program said
# Control characters but tabs and line ends, and what turns the direction of writing: they let a
# terminal do things, or a name look like another.
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_COMMAND = re.compile(r"\b(samebits|torchrun) [a-zA-Z-]")


def visible(text: str) -> str:
    """A text in which names of files may stand, with escapes for what would not be seen."""
    if text.isprintable():
        return text
    return _HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


def listed(lines: Sequence[str]) -> str:
    """Lines of one message, each indented below the first: the first LISTED, and how many more."""
    more = [f"and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    return "\n".join(f"  {line}" for line in (*lines[:LISTED], *more))


class SamebitsError(Exception):
    """Base class of every error whose message is written for a user.

    Where a message names options of the command line, a traceback, which only Python shows, adds
    what they are called there.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        message = _QUOTED.sub("", str(self))
        options = [] if _COMMAND.search(message) else dict.fromkeys(_OPTION.findall(message))
        named = [
            f"--{option} is {_ARGUMENTS.get(option, option.replace('-', '_') + '=')}"
            for option in options
        ]
        if named:
            self.add_note(f"in Python {', '.join(named)}")


class InputError(SamebitsError):
    """Data, a file or an argument is not what was asked for."""


class NonFiniteError(InputError):
    """A tensor holds NaN or infinity."""


class RangeError(SamebitsError):
    """A value or exponent leaves the range its format can hold (training diverged)."""


class UnsupportedError(SamebitsError):
    """A layer, function or shape that samebits does not realise."""


class FidelityError(SamebitsError):
    """A network was quantized, and keeps less of the float network than the floor allows."""


class FidelityWarning(UserWarning):
    """A network was quantized, and its integers have lost the float network."""


class CheckpointError(SamebitsError):
    """A checkpoint is missing, damaged, or belongs to another model or run."""


class PackageError(SamebitsError):
    """The files of a folder are not those that its report states or samebits writes, or that were
    signed."""


class WorkerError(SamebitsError):
    """Another worker of a distributed run died, gave no answer in time, or was stopped."""
