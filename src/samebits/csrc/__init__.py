"""All C written by hand: what inference, training, audio features and boards are compiled from.

And the compiler of this machine.
"""

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from samebits.errors import InputError

FOLDER = Path(__file__).parent


def source(path: str) -> str:
    """The text of one file, by its path in this folder ("inference/conv.c")."""
    return (FOLDER / path).read_text(encoding="utf-8")


def flat(paths: Sequence[str]) -> dict[str, str]:
    """Texts by file name alone: generated packages and builds are one folder."""
    return {path.rpartition("/")[2]: source(path) for path in paths}


def compiler() -> tuple[str, ...]:
    """The command of this machine's C compiler, in words: $CC as the shell splits it ("gcc -m64"),
    else the first of cc, gcc and clang that is there, else cc.

    Whether there is such a program is for the caller to see. Raises InputError where $CC cannot be
    split.
    """
    given = os.environ.get("CC", "")
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise InputError(
            f"$CC: expected a compiler and its arguments, found {given!r} ({error}); correct or "
            "unset it"
        ) from error
    if words:
        return tuple(words)
    return (next(filter(shutil.which, ("cc", "gcc", "clang")), "cc"),)
