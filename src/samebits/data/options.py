"""`DataOptions`: how data is read where a source leaves a choice, and which sources take what."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral
from typing import Any, TypedDict

from samebits.errors import InputError
from samebits.excerpt import Part

TASKS = ("classification", "regression", "multilabel", "segmentation")
COLOURS = ("grey", "rgb")
LARGEST_SIDE = 4096  # pixels of a resized image
MOST_CHANNELS, LARGEST_MEAN, SMALLEST_STD = 4, 1e6, 1e-6


class FileReading(TypedDict, total=False):
    """How a file or folder is read.

    target:    columns of a table that are its labels and no inputs, by default the last one: a text
               with commas, or names
    resize:    images become N x N, or HEIGHTxWIDTH: scaled to cover that, and the middle kept
    resample:  recordings of any rate become those of 16 kHz
    colour:    images become grey or rgb
    mean, std: the value of a pixel of 0..255 is (pixel / 255 - mean) / std, in binary32: a number,
               or one for each channel, with commas or as a list; by default 0.5 each, which gives
               values of -1..1
    """

    target: str | Sequence[str] | None
    resize: int | str | Sequence[int] | None
    resample: bool
    colour: str | None
    mean: float | str | Sequence[float] | None
    std: float | str | Sequence[float] | None


class Reading(FileReading, total=False):
    """How samples are read: options of all functions that take samples. Files and folders as above,
    and

    prepared: arrays hold what the network was trained on, such as rows that are standardised as its
              run standardised its own: they are taken as they are, without a look at their values
    """

    prepared: bool


class PartReading(Part, Reading, total=False):
    """The options of a function that takes a network, as a `Part` of it, and samples."""


class LabelledReading(FileReading, total=False):
    """How data with labels is read: files and folders as above, and

    task: classification, regression, multilabel or segmentation, by default what the labels say
    """

    task: str | None


@dataclass(frozen=True)
class DataOptions:
    """Choices of a reader; None, () and False leave them to the data.

    target:   columns of a table that are its labels
    task:     one of TASKS
    resize:   height and width of all images: scaled to cover them, the middle kept
    resample: recordings of any rate are brought to 16 kHz
    colour:   grey or rgb, for all images
    mean, std: of the values of pixels (`pixel_values`): a number each, or one for each channel
    prepared: arrays are taken as they are
    """

    target: tuple[str, ...] = ()
    task: str | None = None
    resize: tuple[int, int] | None = None
    resample: bool = False
    colour: str | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    prepared: bool = False

    @staticmethod
    def of(
        target: str | Sequence[str] | None = None,
        task: str | None = None,
        resize: int | str | Sequence[int] | None = None,
        resample: bool = False,
        colour: str | None = None,
        mean: float | str | Sequence[float] | None = None,
        std: float | str | Sequence[float] | None = None,
        prepared: bool = False,
    ) -> DataOptions:
        """Options as a user gives them: `target` a text with commas or names (spaces around one
        do not count), `resize` a number N, a text HxW or a pair, `mean` and `std` a number, a text
        with commas or numbers. Raises InputError that names the option."""
        given = target if isinstance(target, Sequence) or target is None else [target]
        names = tuple(given.split(",")) if isinstance(given, str) else tuple(given or ())
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
        for option, flag in (("--resample", resample), ("--prepared", prepared)):
            if not isinstance(flag, bool):
                raise InputError(f"{option}: expected true or false, found {flag!r:.80}")
        scales = _numbers("mean", mean), _numbers("std", std)
        if len(scales[0]) != len(scales[1]):
            raise InputError(
                f"--mean, --std: expected both, with as many numbers, found {len(scales[0])} and "
                f"{len(scales[1])}; give for each channel its mean and its deviation"
            )
        if any(number < SMALLEST_STD for number in scales[1]):
            raise InputError(
                f"--std: expected numbers of at least {SMALLEST_STD}, found "
                f"{', '.join(map(str, scales[1]))}"
            )
        return DataOptions(names, task, _size(resize), resample, colour, *scales, prepared)

    def chosen(self) -> dict[str, Any]:
        """The choices that were made, as JSON data."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if value != getattr(PLAIN, key)
        }

    def among(self, takes: Sequence[str]) -> DataOptions:
        """These options, but for those whose names are not in `takes`."""
        return DataOptions(**{name: getattr(self, name) for name in self.chosen() if name in takes})

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
        taken = [name for name in takes if name not in ("mean", "std")]  # they are of pixels alone
        chosen = {name: v for name, v in vars(recorded).items() if name in taken}
        return DataOptions(**(chosen | {k: getattr(self, k) for k in self.chosen()}))

    def with_values_of(self, recorded: DataOptions) -> DataOptions:
        """These options, with the values of pixels of an earlier reading where none were given."""
        if self.mean:
            return self
        return replace(self, mean=recorded.mean, std=recorded.std)


def options_given(reading: Mapping[str, Any], kind: type = Reading) -> DataOptions:
    """The options of keywords that are those of `kind`, checked. Raises TypeError for others."""
    unknown = [name for name in reading if name not in kind.__annotations__]
    if unknown:
        raise TypeError(f"got an unexpected keyword argument {unknown[0]!r}")
    return DataOptions.of(**reading)


def as_arguments(chosen: Mapping[str, Any]) -> list[str]:
    """The arguments by which the command line gives the options that `DataOptions.chosen` gave."""
    arguments = []
    for name, value in chosen.items():
        arguments.append(f"--{name}")
        if isinstance(value, list):
            arguments.append(("x" if name == "resize" else ",").join(map(str, value)))
        elif value is not True:
            arguments.append(str(value))
    return arguments


PLAIN = DataOptions()
_NAMES = {field.name for field in fields(DataOptions)}


def _numbers(option: str, given: float | str | Sequence[float] | None) -> tuple[float, ...]:
    """The numbers of an option: one, a text of some with commas, or some."""
    if given is None:
        return ()
    found: Any = given.tolist() if hasattr(given, "tolist") else given  # an array or a tensor
    found = found.split(",") if isinstance(found, str) else found
    listed = found if isinstance(found, list | tuple) else [found]
    try:
        numbers = () if any(isinstance(n, bool) for n in listed) else tuple(map(float, listed))
    except (TypeError, ValueError, OverflowError):
        numbers = ()
    good = all(math.isfinite(number) and abs(number) <= LARGEST_MEAN for number in numbers)
    if not (good and 1 <= len(numbers) <= MOST_CHANNELS):
        raise InputError(
            f"--{option}: expected a number, or one for each channel such as 0.485,0.456,0.406, "
            f"found {given!r:.80}"
        )
    return numbers


def _size(given: int | str | Sequence[int] | None) -> tuple[int, int] | None:
    """Height and width of a number N, a text N or HxW, or a pair."""
    if given is None:
        return None
    if isinstance(given, str):
        sides: list[Any] = given.lower().split("x")
        whole = [side.isascii() and side.isdecimal() and len(side) < 10 for side in sides]
        sides = [int(side) if good else None for side, good in zip(sides, whole, strict=True)]
    else:
        sides = [*given] if isinstance(given, list | tuple) else [given]
        sides = [
            int(side) if isinstance(side, Integral) and not isinstance(side, bool) else None
            for side in sides
        ]
    sides = sides * 2 if len(sides) == 1 else sides
    if len(sides) != 2 or not all(
        type(side) is int and 1 <= side <= LARGEST_SIDE for side in sides
    ):
        raise InputError(
            f"--resize: expected a side N, or HEIGHTxWIDTH such as 32x48, of 1 to {LARGEST_SIDE} "
            f"pixels, found {given!r:.80}"
        )
    return sides[0], sides[1]
