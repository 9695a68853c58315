"""The built-in backends: each stated once, in the module that holds it."""

from __future__ import annotations

import importlib
import pkgutil

from samebits.verification import backends
from samebits.verification.backend import Backend
from samebits.verification.registry import known_backends


def test_every_module_states_backends_and_no_name_twice():
    stated = [
        name
        for module in pkgutil.iter_modules(backends.__path__, f"{backends.__name__}.")
        for name in importlib.import_module(module.name).BACKENDS
    ]
    assert len(stated) == len(set(stated))
    assert set(stated) <= set(known_backends())
    for name in stated:
        assert isinstance(known_backends()[name](None), Backend)
