"""Options by name as the recipes of a function, for tests that draw or list them."""

from __future__ import annotations

import inspect
from typing import Any

from samebits.recipes import Reading, Recipe, by_options


def recipes_from(function: Any, **options: Any) -> list[Recipe]:
    """The recipes of a function that hold these options."""
    return by_options(function, options)


def called(function: Any, **options: Any) -> Any:
    """The result of a function for arguments and options by name; options of loading are those of
    its source, options of reading those of its data."""
    import samebits as sb

    operands, keywords = [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            operands.append(options.pop(name, parameter.default))
        elif name in options:
            keywords[name] = options.pop(name)
    loading = {name: options.pop(name) for name in ("example", "arch") if name in options}
    if reading := {name: options.pop(name) for name in Reading.options() if name in options}:
        place = 0 if "data" in inspect.signature(function).parameters else 1
        operands[place] = sb.read(operands[place], **reading)
    if loading:
        operands[0] = sb.load(operands[0], **loading)
    return function(*operands, *recipes_from(function, **options), **keywords)
