"""`DataOptions`: how data is read where a source leaves a choice, and which sources take what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from samebits.errors import InputError

TASKS = ("classification", "regression", "multilabel", "segmentation")
COLOURS = ("grey", "rgb")
LARGEST_SIDE = 4096  # pixels of a resized image


@dataclass(frozen=True)
class DataOptions:
    """Choices of a reader; None, () and False leave them to the data.

    target:   columns of a table that are its labels
    task:     one of TASKS
    resize:   height and width of all images: scaled to cover them, the middle kept
    resample: recordings of any rate are brought to 16 kHz
    colour:   grey or rgb, for all images
    """

    target: tuple[str, ...] = ()
    task: str | None = None
    resize: tuple[int, int] | None = None
    resample: bool = False
    colour: str | None = None

    @staticmethod
    def of(
        target: str | Sequence[str] | None = None,
        task: str | None = None,
        resize: int | str | Sequence[int] | None = None,
        resample: bool = False,
        colour: str | None = None,
    ) -> DataOptions:
        """Options as a user gives them: `target` a text with commas or names (spaces around one
        do not count), `resize` a number N, a text HxW or a pair. Raises InputError that names the
        option."""
        names = tuple(target.split(",")) if isinstance(target, str) else tuple(target or ())
        good = all(isinstance(name, str) and name.strip() for name in names)
        names = tuple(name.strip() for name in names) if good else ()
        if target is not None and (not good or len(set(names)) < len(names)):
            raise InputError(
                "--target: expected different names of columns with commas between them, found "
                f"{target!r}"
            )
        for option, found, known in (("--task", task, TASKS), ("--colour", colour, COLOURS)):
            if found is not None and found not in known:
                raise InputError(f"{option}: expected one of {', '.join(known)}, found {found!r}")
        return DataOptions(names, task, _size(resize), bool(resample), colour)

    def chosen(self) -> dict[str, Any]:
        """The choices that were made, as JSON data."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if value != getattr(PLAIN, key)
        }

    @staticmethod
    def from_chosen(record: object) -> DataOptions:
        """The options of a record that `chosen` made. Raises InputError for any other."""
        if not isinstance(record, Mapping) or not set(record) <= _NAMES:
            raise InputError(f"expected options of reading data, found {record!r:.80}")
        try:
            return DataOptions.of(**record)
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"expected options of reading data, found {record!r:.80}") from error

    def apart_from(self, source: str, what: str, takes: Sequence[str]) -> None:
        """Raise InputError for a choice that the reader of `source` does not know.

        what: the kind of data that `source` is; takes: the options that apply to it
        """
        for name in self.chosen():
            if name not in takes:
                known = " and ".join(f"--{each}" for each in takes) or "no such option"
                raise InputError(
                    f"{source}: --{name} does not apply to {what}, which takes {known}; leave it "
                    "out"
                )

    def beside(self, recorded: DataOptions, takes: Sequence[str]) -> DataOptions:
        """These options, and those of an earlier reading that were not given again and apply.

        Raises InputError for the earlier targets in another order: outputs would change places.
        """
        if sorted(self.target) == sorted(recorded.target) and self.target != recorded.target:
            raise InputError(
                f"--target: expected {','.join(recorded.target)}, the order of training, found "
                f"{','.join(self.target)}; give them in that order, or leave --target out"
            )
        chosen = {name: v for name, v in vars(recorded).items() if name in takes}
        return DataOptions(**(chosen | {k: getattr(self, k) for k in self.chosen()}))


PLAIN = DataOptions()
_NAMES = {field.name for field in fields(DataOptions)}


def _size(given: int | str | Sequence[int] | None) -> tuple[int, int] | None:
    """Height and width of a number N, a text N or HxW, or a pair."""
    if given is None:
        return None
    if isinstance(given, str):
        sides: list[Any] = given.lower().split("x")
        sides = [int(side) if side.isascii() and side.isdecimal() else None for side in sides]
    else:
        sides = [given] if isinstance(given, int) else list(given)
    sides = sides * 2 if len(sides) == 1 else sides
    if len(sides) != 2 or not all(
        type(side) is int and 1 <= side <= LARGEST_SIDE for side in sides
    ):
        raise InputError(
            f"--resize: expected a side N, or HEIGHTxWIDTH such as 32x48, of 1 to {LARGEST_SIDE} "
            f"pixels, found {given!r}"
        )
    return sides[0], sides[1]
