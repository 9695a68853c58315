"""Sentences for what goes wrong: usage, files, memory, warnings. None of them has a traceback."""

from __future__ import annotations

import re
import sys
from typing import Any, TextIO

import typer

from samebits.errors import SamebitsError, visible
from samebits.explanations import MEMORY, USAGE, topic_of

# The parent of all errors of usage; typer names it no more publicly than so.
UsageError: type[Any] = typer.BadParameter.__mro__[1]

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130  # exit codes

_ASKED = re.compile(r"(?:[Tt]ried|[Uu]nable) to allocate:? ([\d.]+ \w+)")
_MEMORY = re.compile(
    # The last two are protobuf's words; files above its limit are refused before.
    r"out of memory|not enough memory|can(?:'t|not) allocate memory|bad_alloc|ALLOC_FAILED"
    r"|Failed to serialize proto|Arena alloc failed",
    re.IGNORECASE,
)
# What Python says of C code that failed and did not say why: seen where numpy, or Python's own
# compiler, got no memory.
_SILENT = re.compile(r"without (setting an exception|exception set)$")
_ORIGIN = re.compile(r" ?\(Triggered internally at .*?\)\.?")  # of torch's warnings


class Interrupted(Exception):
    """Ctrl-C, where a command has more to say about it."""


def sentence(error: Exception) -> str | None:
    """The message of an error that a user can mend; None for one that is a fault of the program."""
    if (shortage := _shortage(error)) is not None:
        return _memory(shortage)
    if isinstance(error, SamebitsError):
        return str(error)
    if isinstance(error, UsageError):
        return _usage(error)
    if isinstance(error, OSError):
        where = "" if error.filename is None else f"{error.filename}: "
        return (
            f"{where}expected a file that can be read or written, found: "
            f"{error.strerror or error}; check the path and its permissions"
        )
    return None


def told(error: Exception) -> dict[str, str] | None:
    """The sentence of an error that a user can mend, and the topic that `explain` takes; None for a
    fault of the program."""
    text = sentence(error)
    if text is None:
        return None
    if _shortage(error) is not None:
        topic: str | None = MEMORY
    else:
        topic = USAGE if isinstance(error, UsageError) else topic_of(error)
    return {"error": text, "explain": str(topic)}


def _usage(error: Any) -> str:
    """A usage error as expected, found and what to do, whatever typer's own words are."""
    kind = type(error).__name__
    command = error.ctx.command_path if error.ctx else "samebits COMMAND"
    advice = f"see {command} --help"
    if kind == "NoSuchOption":
        if error.possibilities:
            advice = f"did you mean {' or '.join(sorted(error.possibilities))}? {advice}"
        return f"expected an option of {command}, found {error.option_name}; {advice}"
    if kind == "BadOptionUsage":
        lacking = "requires" in error.message
        form = "a value, found none" if lacking else "no value, found one"
        return f"{error.option_name}: expected {form}; {advice}"
    parameter = getattr(error, "param", None)
    if parameter is None:
        usage = error.ctx.get_usage().partition(": ")[2] if error.ctx else command
        return f"expected {usage}, found: {error.message.rstrip('.?')}; {advice}"
    name = max(parameter.opts, key=len)
    if not name.startswith("-"):
        name = parameter.metavar or parameter.name
    if kind == "MissingParameter":
        return f"{command}: expected {name}, found none; {advice}"
    return f"{name}: {error.message}; {advice}"


def _shortage(error: BaseException | None) -> BaseException | None:
    """The error, or that which caused it, by which numpy, torch or a library of it says that it got
    no memory; None where there is none. Code of a user's own, whose errors are reported as bad
    input, may be where memory ends."""
    while error is not None:
        told = not isinstance(error, SamebitsError) and _MEMORY.search(str(error))
        silent = isinstance(error, SystemError) and _SILENT.search(str(error))
        if told or silent or isinstance(error, MemoryError):
            return error
        error = error.__cause__
    return None


def _memory(error: BaseException) -> str:
    """The sentence for memory that ends: how much was asked for, if that is known, and advice."""
    asked = _ASKED.search(str(error))
    amount = f"{asked[1]} more of free memory" if asked else "enough free memory"
    return (
        f"expected {amount}, found less; lower --batch, recompute with --memory-budget, use fewer "
        "samples, or a machine with more memory"
    )


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of Python as one sentence, without its line of source code."""
    text = _ORIGIN.sub("", " ".join(str(message).split()))
    print(f"warning: {visible(text)}", file=sys.stderr)
