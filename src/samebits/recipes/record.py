"""`Recipe`: frozen options of one concern, each told once: its type, default, bounds and help.

Signatures, the command line and JSON are read off the record. A function takes any of the recipes
that it names, in any order, each at most once.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Self, TypeVar, cast, dataclass_transform

from samebits import entrance
from samebits.errors import InputError

R = TypeVar("R")
KEY = "option"  # of an option in a field's metadata
GIVEN = "_given"  # the attribute that says which options were given
LARGEST = 1 << 20  # bytes of a file of recipes
RECIPES: dict[str, type[Recipe]] = {}
"""All recipes that a user gives, by the name of their table in a file."""


@dataclass(frozen=True)
class Option:
    """Help, bounds and form of an option; its name, type and default are those of a field.

    help:    for the command line and the documentation
    span:    interval of a number, such as "[1, inf)" or "(0, 1)"
    choices: all texts that it may be
    names:   texts that a shell completes; by default `choices`
    metavar: what stands for its value in the help
    take:    brings what a user gives, a text of the command line included, into its one form
    many:    the command line takes it several times
    """

    help: str
    span: str = ""
    choices: tuple[str, ...] = ()
    names: Callable[[], Iterable[str]] | None = None
    metavar: str = ""
    take: Callable[[Any], Any] | None = None
    many: bool = False


def option(*, default: Any, help: str, **said: Any) -> Any:
    """A field of a recipe, with an `Option`."""
    return field(default=default, metadata={KEY: Option(help, **said)})


def again(*, default: Any, record: type[Recipe], name: str) -> Any:
    """A field with the option of another recipe and a default of its own."""
    return field(default=default, metadata=record.options()[name].metadata)


@dataclass_transform(frozen_default=True, field_specifiers=(option, again, field))
class Recipe:
    """Base of all recipes. Raises InputError, which names the option, for a value that is none."""

    def __init_subclass__(cls, listed: bool = True, **given: Any) -> None:
        """Make a frozen dataclass whose unknown options name the recipe that has them."""
        super().__init_subclass__(**given)
        dataclass(frozen=True)(cls)
        made = cls.__init__

        @functools.wraps(made)
        def checked(self: Any, *operands: Any, **values: Any) -> None:
            known = [each.name for each in fields(cast(Any, cls))]
            for name in values:
                if name not in known:
                    raise TypeError(
                        f"{cls.__name__}: expected its options {', '.join(cls.options())}, found "
                        f"{name}{holder(name)}"
                    )
            given = {**dict(zip(known, operands, strict=False)), **values}
            named = frozenset(name for name, value in given.items() if value is not None)
            object.__setattr__(self, GIVEN, named)
            made(self, *operands, **values)

        cls.__init__ = checked  # type: ignore[method-assign]
        told = (f"{name}: {option_of(place).help}" for name, place in cls.options().items())
        cls.__doc__ = "\n\n".join([f"{inspect.cleandoc(cls.__doc__ or '')}", *told])
        if listed:
            RECIPES[cls.__name__.lower()] = cls

    def __post_init__(self) -> None:
        """Bring every option into its one form."""
        for name, place in self.options().items():
            object.__setattr__(self, name, taken(place, getattr(self, name)))

    @classmethod
    def options(cls) -> dict[str, Field[Any]]:
        """Its fields that are options, by name."""
        return {each.name: each for each in fields(cast(Any, cls)) if KEY in each.metadata}

    def values(self) -> dict[str, Any]:
        """The options by name, each as given or at its default."""
        return {name: getattr(self, name) for name in self.options()}

    def chosen(self) -> dict[str, Any]:
        """The options that were given, at their default too; None, which stands for it, is none."""
        return {name: v for name, v in self.values().items() if name in vars(self)[GIVEN]}

    def but(self, **options: Any) -> Self:
        """The recipe with other options beside those that were chosen."""
        return type(self)(**{**self.chosen(), **options})

    def to_dict(self) -> dict[str, Any]:
        """The options that differ from their default, as JSON data."""
        return {name: _plain(value) for name, value in self.differing().items()}

    def differing(self) -> dict[str, Any]:
        """The options that differ from their default."""
        places = self.options()
        return {name: v for name, v in self.values().items() if v != places[name].default}

    @classmethod
    def from_dict(cls, record: object) -> Self:
        """The recipe of a record that `to_dict` made, or a user has written. Raises InputError."""
        if not isinstance(record, Mapping):
            raise InputError(f"expected options of {cls.__name__}, found {record!r:.80}")
        try:
            return cls(**record)
        except InputError:
            raise
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"{cls.__name__}: expected its options, found {error}") from None


def option_of(place: Field[Any]) -> Option:
    """The option of a field."""
    return cast(Option, place.metadata[KEY])


def kind_of(place: Field[Any]) -> str:
    """int, float, bool, str, or what else its annotation names first."""
    return str(place.type).split(" | ")[0]


def flag_of(name: str) -> str:
    """An option as the command line names it."""
    return f"--{name.replace('_', '-')}"


def taken(place: Field[Any], value: Any) -> Any:
    """A value of an option in its one form. Raises InputError, which names the option."""
    said, kind = option_of(place), kind_of(place)
    if value is place.default or (value is None and said.take is not None):
        return place.default
    if value is None and "None" in str(place.type):
        return None
    if said.take is not None:
        return said.take(value)
    good = {
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, int | float) and not isinstance(value, bool),
        "bool": isinstance(value, bool),
        "str": isinstance(value, str),
    }[kind]
    if said.choices:
        good = good and value in said.choices
    elif good and kind in ("int", "float"):
        good = within(said.span, value)
    if not good:
        raise InputError(f"{flag_of(place.name)}: expected {expected(place)}, found {value!r:.80}")
    return value


def within(span: str, value: float) -> bool:
    """Whether a number lies in an interval such as "(0, 1]"; in "" lie all finite ones."""
    if isinstance(value, float) and not math.isfinite(value):
        return False
    low, high = _ends(span)
    return (value > low if span.startswith("(") else value >= low) and (
        value < high if span.endswith(")") else value <= high
    )


def _ends(span: str) -> tuple[float, float]:
    low, high = (map(float, span[1:-1].split(", "))) if span else (-math.inf, math.inf)
    return low, high


def expected(place: Field[Any]) -> str:
    """Describe the values of an option in words."""
    said, kind = option_of(place), kind_of(place)
    if said.choices:
        return f"one of {', '.join(said.choices)}"
    if kind == "int":
        low, high = _ends(said.span)
        ends = ("from", low), ("to", high)
        parts = [f" {word} {end:.0f}" for word, end in ends if math.isfinite(end)]
        return f"a whole number{''.join(parts)}"
    if kind == "float":
        return f"a number in {said.span}" if said.span else "a number"
    return {"bool": "true or false", "str": "a text"}[kind]


def _plain(value: Any) -> Any:
    """As JSON data: a callable by its name."""
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, Path):
        return str(value)
    return getattr(value, "__qualname__", type(value).__name__) if callable(value) else value


# --- recipes given to a function ------------------------------------------------------------------


class Given:
    """The recipes that a function was given; those left out have their defaults."""

    def __init__(self, where: str, recipes: Sequence[Any], *kinds: type[Recipe]) -> None:
        """Raises TypeError for what is no recipe of `where`, and for one given twice."""
        self.where = where
        self._found: dict[type[Recipe], Recipe] = {}
        for recipe in recipes:
            if type(recipe) not in kinds or type(recipe) in self._found:
                twice = type(recipe) in kinds
                raise TypeError(
                    f"{where}: expected {listing(kinds)}{', each once' if twice else ''}, found "
                    f"{'another ' if twice else ''}{_described(recipe)}"
                )
            self._found[type(recipe)] = recipe

    def __getitem__(self, kind: type[R]) -> R:
        found = self._found.get(cast(Any, kind))
        return cast(R, kind() if found is None else found)

    def __contains__(self, kind: type[Recipe]) -> bool:
        """Whether it was given."""
        return kind in self._found

    def only(self, kind: type[Recipe], names: Sequence[str]) -> None:
        """Raise InputError for an option of a recipe that does not apply here."""
        for name, value in self[kind].chosen().items():
            if name not in names:
                raise InputError(
                    f"{self.where}: expected of {kind.__name__} {', '.join(names) or 'nothing'}, "
                    f"found {name}={value!r:.60}; leave it out"
                )

    def to_dict(self, *kinds: type[Recipe]) -> dict[str, Any]:
        """The recipes as they were asked for, all or those of some kinds, as JSON data."""
        chosen = {k: each for k, each in self._found.items() if not kinds or k in kinds}
        found = {kind.__name__.lower(): each.to_dict() for kind, each in chosen.items()}
        return {name: options for name, options in sorted(found.items()) if options}


def listing(kinds: Iterable[type[Recipe]]) -> str:
    """The names of recipes in words."""
    names = [kind.__name__ for kind in kinds]
    return f"the recipe{'s' * (len(names) > 1)} {', '.join(names)}" if names else "no recipe"


def holder(name: str, function: str = "") -> str:
    """Where an option is, as the end of a message. function: one that takes none of its recipes."""
    holders = [kind for kind in RECIPES.values() if name in kind.options()]
    if not holders:
        return ""
    reading = holders[0].__name__ == "Reading"
    of = "reading data" if reading else " and of ".join(kind.__name__ for kind in holders)
    if function:
        return f", an option of {of}, which {function} does not take; leave it out"
    if reading:
        return f", an option of {of}; give samebits.read(data, {name}=...)"
    ways = " or ".join(f"samebits.{kind.__name__}({name}=...)" for kind in holders)
    return f", an option of {of}; give {ways}"


def _described(found: object) -> str:
    if isinstance(found, Recipe):
        return f"{type(found).__name__}({', '.join(found.options())})"
    return f"{found!r:.60}" if isinstance(found, str | int | float) else type(found).__name__


# --- files ----------------------------------------------------------------------------------------


def from_record(record: object, where: str) -> dict[str, Recipe]:
    """Recipes by name of JSON data, a table for each. Raises InputError, which says `where`."""
    if not isinstance(record, Mapping) or not set(record) <= set(RECIPES):
        found = ", ".join(map(str, record)) if isinstance(record, Mapping) else repr(record)
        raise InputError(
            f"{where}: expected tables of options named {', '.join(RECIPES)}, found {found:.80}"
        )
    try:
        return {name: RECIPES[name].from_dict(options) for name, options in record.items()}
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def read_recipes(path: Path) -> dict[str, Recipe]:
    """The recipes of a TOML or JSON file. Raises InputError."""
    try:
        text = entrance.read(path, LARGEST).decode()
        record = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: expected recipes as TOML, or as JSON in a .json file, found what cannot be "
            f"read ({error})"
        ) from error
    return from_record(record, str(path))


def text_list(text: Any) -> tuple[str, ...]:
    """Names of a text with commas, or of a sequence."""
    parts = re.split(r"\s*,\s*", text.strip()) if isinstance(text, str) else list(text)
    return tuple(part for part in parts if part)
