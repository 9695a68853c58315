"""`Reading`: how data is read where a source leaves a choice, and which sources take what."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from samebits.errors import InputError
from samebits.recipes.record import Recipe, option

TASKS = ("classification", "regression", "multilabel", "segmentation")
COLOURS = ("grey", "rgb")
LARGEST_SIDE = 4096  # pixels of a resized image
MOST_CHANNELS, LARGEST_MEAN, SMALLEST_STD = 4, 1e6, 1e-6


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


def _targets(given: Any) -> tuple[str, ...]:
    """Names of columns, of a text with commas or a sequence; spaces around one do not count."""
    listed = given if isinstance(given, Sequence) else [given]
    names = tuple(listed.split(",")) if isinstance(listed, str) else tuple(listed)
    good = all(isinstance(name, str) and name.strip() for name in names)
    names = tuple(name.strip() for name in names) if good else ()
    if not good or len(set(names)) < len(names):
        raise InputError(
            "--target: expected different names of columns with commas between them, found "
            f"{given!r}"
        )
    return names


class Reading(Recipe):
    """How data is read; None leaves it to the data.

    target:    columns of a table that are its labels and no inputs: a text with commas, or names
    resize:    a side N, a text HxW or a pair
    mean, std: the value of a pixel of 0..255 is (pixel / 255 - mean) / std, in binary32: a number,
               or one for each channel, with commas or as a list; by default 0.5 each, which gives
               values of -1..1
    prepared:  arrays hold what the network was trained on, such as rows that are standardised as
               its run standardised its own: they are taken without a look at their values
    """

    target: tuple[str, ...] = option(
        default=(),
        help="Of a table: its labels, which are no inputs, with commas between them [default: the "
        "last column].",
        take=_targets,
        metavar="COLUMNS",
    )
    task: str | None = option(
        default=None,
        help="classification, regression, multilabel or segmentation [default: what the labels "
        "say].",
        choices=TASKS,
        metavar="TASK",
    )
    resize: tuple[int, int] | None = option(
        default=None,
        help="Bring images to N pixels each way, or HEIGHTxWIDTH: scaled to cover it, the middle "
        "kept.",
        take=_size,
        metavar="SIZE",
    )
    resample: bool = option(default=False, help="Bring recordings of any rate to 16 kHz.")
    colour: str | None = option(
        default=None, help="Bring images to grey or rgb.", choices=COLOURS, metavar="NAME"
    )
    mean: tuple[float, ...] = option(
        default=(),
        help="Values of pixels are (pixel / 255 - mean) / std: a number, or one for each channel "
        "such as 0.485,0.456,0.406 [default: 0.5].",
        take=lambda given: _numbers("mean", given),
        metavar="NUMBERS",
    )
    std: tuple[float, ...] = option(
        default=(),
        help="See --mean [default: 0.5].",
        take=lambda given: _numbers("std", given),
        metavar="NUMBERS",
    )
    prepared: bool = option(
        default=False,
        help="Arrays of an archive are what the network was trained on, standardised and so on: "
        "take them as they are.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.mean) != len(self.std):
            raise InputError(
                f"--mean, --std: expected both, with as many numbers, found {len(self.mean)} and "
                f"{len(self.std)}; give for each channel its mean and its deviation"
            )
        if any(number < SMALLEST_STD for number in self.std):
            raise InputError(
                f"--std: expected numbers of at least {SMALLEST_STD}, found "
                f"{', '.join(map(str, self.std))}"
            )

    def among(self, takes: Sequence[str]) -> Reading:
        """These options, but for those whose names are not in `takes`."""
        return Reading(**{name: v for name, v in self.chosen().items() if name in takes})

    def apart(self, name: str) -> Reading:
        """These options without one."""
        return self.among([other for other in self.chosen() if other != name])

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

    def beside(self, recorded: Reading, takes: Sequence[str]) -> Reading:
        """These options, and those of an earlier reading that were not given again and apply.

        Raises InputError for the earlier targets in another order: outputs would change places.
        """
        if sorted(self.target) == sorted(recorded.target) and self.target != recorded.target:
            raise InputError(
                f"--target: expected {','.join(recorded.target)}, the order of training, found "
                f"{','.join(self.target)}; give them in that order, or leave --target out"
            )
        taken = [name for name in takes if name not in ("mean", "std")]  # they are of pixels alone
        chosen = {name: v for name, v in recorded.chosen().items() if name in taken}
        return Reading(**(chosen | self.chosen()))

    def with_values_of(self, recorded: Reading) -> Reading:
        """These options, with the values of pixels of an earlier reading where none were given."""
        if self.mean or not recorded.mean:
            return self
        return self.but(mean=recorded.mean, std=recorded.std)


def as_arguments(chosen: Mapping[str, Any]) -> list[str]:
    """The arguments by which the command line gives the options that `Reading.to_dict` gave."""
    arguments = []
    for name, value in chosen.items():
        arguments.append(f"--{name}")
        if isinstance(value, list):
            arguments.append(("x" if name == "resize" else ",").join(map(str, value)))
        elif value is not True:
            arguments.append(str(value))
    return arguments


PLAIN = Reading()


@dataclass(frozen=True)
class DataSource:
    """Data that `read` was given, and how it is read; what takes it reads it for its own purpose:
    calibration needs no labels, `predict` takes columns by the network's contract."""

    source: Any
    reading: Reading = PLAIN


def read(source: Any, **options: Any) -> DataSource:
    """Data for any function that takes some, with options of reading.

    source: a file, a folder or a frame of pandas
    options: those of `Reading` but `prepared`: target, task, resize, resample, colour, mean, std

    What does not apply to the source is an InputError of the function that reads it.
    """
    return DataSource(source, Reading(**{k: v for k, v in options.items() if v is not None}))


_OPTIONS = [name for name in Reading.options() if name != "prepared"]
read.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        inspect.Parameter("source", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
            for name in _OPTIONS
        ),
    ]
)


def prepared(source: Any) -> DataSource:
    """Arrays that are what a network takes, such as rows that are standardised already: of a
    network whose contract knows raw rows, values are taken without a look at them."""
    given, reading = reading_of(source)
    return DataSource(given, reading.but(prepared=True))


def around(given: Any, options: Mapping[str, Any]) -> DataSource:
    """Data with options of reading, beside those that it has."""
    source, reading = reading_of(given)
    return DataSource(source, reading.but(**options))


def reading_of(given: Any) -> tuple[Any, Reading]:
    """The source of data, and how it is read."""
    return (given.source, given.reading) if isinstance(given, DataSource) else (given, PLAIN)
