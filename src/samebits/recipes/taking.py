"""Functions that take recipes, and single options by their names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, cast

from samebits.recipes.reading import Reading, around
from samebits.recipes.record import Recipe, holder, listing

P = ParamSpec("P")
R = TypeVar("R")


def takes(
    *kinds: type[Recipe], data: str = "", shorter: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that takes these recipes, or single options of them by name, as the command line
    does, and options of reading for its argument `data`: of any other keyword it says which recipe
    holds it. shorter: names of options that say enough here."""

    def made(function: Callable[P, R]) -> Callable[P, R]:
        """Take options by name."""
        signature = inspect.signature(function)
        own = signature.parameters
        names = [name for name in own if name not in ("self", "recipes")]
        several = "recipes" in own
        options = {name for kind in kinds for name in kind.options()} - set(own)

        @functools.wraps(function)
        def call(*operands: P.args, **given: P.kwargs) -> R:
            """Sort keywords into arguments, options of recipes and those of reading."""
            for name in shorter:
                if name in given and shorter[name] in given:
                    raise TypeError(
                        f"{function.__name__}: expected {name} or {shorter[name]}, which are one "
                        "option, found both; leave one out"
                    )
            given = cast(Any, {shorter.get(name, name): value for name, value in given.items()})
            others = given.keys() - own.keys() - options
            reads = others & Reading.options().keys() if data and others else set()
            for name in given:
                if name in others - reads:
                    also = f" and {listing(kinds)}" if kinds else ""
                    raise TypeError(
                        f"{function.__name__}: expected {', '.join(names)}{also}, found {name}="
                        f"{holder(name, function.__name__)}"
                    )
            flat = {name: value for name, value in given.items() if name in options}
            apart = [each for each in operands if several and isinstance(each, Recipe)]
            if not flat and not reads and not apart:
                return function(*operands, **given)
            rest = {name: value for name, value in given.items() if name in own}
            plain = [each for each in operands if not any(each is recipe for recipe in apart)]
            bound = signature.bind(*plain, **rest)
            bound.apply_defaults()
            if several:
                made = by_options(call, flat) if flat else ()
                bound.arguments["recipes"] = (*bound.arguments["recipes"], *apart, *made)
            if reads:
                reading = {name: given[name] for name in given if name in reads}
                bound.arguments[data] = around(bound.arguments[data], reading)
            return function(*bound.args, **bound.kwargs)

        cast(Any, call).recipes = kinds
        return call

    return made


def by_options(function: Any, options: Mapping[str, Any]) -> list[Recipe]:
    """Options by name as recipes of a function, each in the first that has it. Raises TypeError for
    one that none has."""
    made, left = [], dict(options)
    for kind in function.recipes:
        own = {name: left.pop(name) for name in options if name in kind.options() and name in left}
        if own:
            made.append(kind(**own))
    if left:
        raise TypeError(f"expected options of {listing(function.recipes)}, found {', '.join(left)}")
    return made
