"""All C written by hand: what inference, training, audio features and boards are compiled from."""

from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent


def source(path: str) -> str:
    """The text of one file, by its path in this folder ("inference/conv.c")."""
    return (FOLDER / path).read_text(encoding="utf-8")


def flat(paths: Sequence[str]) -> dict[str, str]:
    """Texts by file name alone: generated packages and builds are one folder."""
    return {path.rpartition("/")[2]: source(path) for path in paths}
