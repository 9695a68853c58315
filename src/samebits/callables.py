"""Functions of a user's own, named on the command line: `module:callable`, `file.py:callable`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from samebits.errors import InputError

FORM = "module:callable or path/to/file.py:callable"


def is_callable_name(name: str) -> bool:
    """Whether a text has the form of a callable's name."""
    module, _, attribute = name.rpartition(":")
    return bool(module) and attribute.isidentifier()


def named_callable(name: str, option: str) -> Callable[..., object]:
    """The callable that a name stands for. Its module is imported, and so its code runs.

    name:   module:callable, where the current folder is searched too, or file.py:callable
    option: the option that gave it, for messages

    Raises InputError for a name of another form, a module or file that cannot be imported, and
    for something that cannot be called.
    """
    if not is_callable_name(name):
        raise InputError(f"{option}: expected {FORM}, found {name!r}")
    place, _, attribute = name.rpartition(":")
    try:
        module = _of_file(Path(place)) if place.endswith(".py") else _of_module(place)
    except Exception as error:  # a user's code: whatever its import raises is an input error
        raise InputError(
            f"{option} {name}: cannot import {place!r} ({type(error).__name__}: {error}); "
            f"expected {FORM}"
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        what = "nothing of that name" if found is None else type(found).__name__
        raise InputError(f"{option} {name}: expected a callable in {place}, found {what}")
    return found


def _of_module(name: str) -> ModuleType:
    folder = os.getcwd()
    added = folder not in sys.path and "" not in sys.path
    if added:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        if added and folder in sys.path:
            sys.path.remove(folder)


def _of_file(path: Path) -> ModuleType:
    name = f"{path.stem} of {path.resolve()}"  # hides no module of that name
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and pickle look their classes up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module
