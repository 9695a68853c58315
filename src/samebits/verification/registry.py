"""Every backend by name: those of this package and those of installed packages.

A module of `samebits.verification.backends` states its own in BACKENDS, a factory by name: adding
one touches that file alone. Another package states one in its metadata, under its name:

    [project.entry-points."samebits.backends"]
    my-chip = "my_package.backend:MyChip"

where calling `MyChip` with a folder or None gives a `Backend` of that name. Listing names imports
no package; a package that is broken, or claims a name that is taken, is refused when that name is
asked for, so that it neither hides another backend nor stands in the way of the others.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import get_args

from samebits.errors import InputError, UnsupportedError
from samebits.model import Model
from samebits.verification import backends
from samebits.verification.backend import Backend, Factory, Needs

GROUP = "samebits.backends"


def known_backends() -> dict[str, Factory]:
    """Every backend by name, in the order of names."""
    found: dict[str, Factory] = {}
    for module in pkgutil.iter_modules(backends.__path__, f"{backends.__name__}."):
        found |= importlib.import_module(module.name).BACKENDS
    claims: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        claims.setdefault(entry.name, []).append(entry)
    for name, entries in claims.items():
        owners = ["samebits"] * (name in found) + [_package(entry) for entry in entries]
        found[name] = _imported(entries[0]) if len(owners) == 1 else _refused(name, owners)
    return dict(sorted(found.items()))


def _package(entry: EntryPoint) -> str:
    return f"package {entry.dist.name} {entry.dist.version}" if entry.dist else "a package"


def _refused(name: str, owners: Sequence[str]) -> Factory:
    def make(work: Path | None) -> Backend:
        raise InputError(
            f"backend {name!r}: expected one package to define it, found {' and '.join(owners)}; "
            "uninstall or rename one"
        )

    return make


def _imported(entry: EntryPoint) -> Factory:
    """The factory that an entry point names. Raises InputError, naming the package, when called:
    what fails there is code of others, which may raise anything."""
    where = f"backend {entry.name!r} of {_package(entry)} ({entry.value})"

    def make(work: Path | None) -> Backend:
        """As a Factory; checks the name and the shape of what comes."""
        try:
            made = entry.load()(work)
        except Exception as error:
            raise InputError(
                f"{where}: cannot be loaded ({type(error).__name__}: {error}); repair or uninstall "
                "the package"
            ) from error
        if (
            not isinstance(made, Backend)
            or made.name != entry.name
            or made.needs not in get_args(Needs)
        ):
            raise InputError(
                f"{where}: expected a backend (name {entry.name!r}, needs 'graph' or 'firmware', "
                f"unavailable, run, trace), found {type(made).__name__}; repair or uninstall the "
                "package"
            )
        return made

    return make


def backend_named(name: str, work: Path | None = None) -> Backend:
    """The backend of a name; `work` is a folder for what it builds. InputError lists the names."""
    known = known_backends()
    if name not in known:
        raise InputError(f"unknown backend {name!r}; expected one of {', '.join(known)}")
    return known[name](work)


def usable(name: str, model: Model) -> Backend:
    """The backend of a name, for a model, here. Raises InputError for a name that is unknown or of
    another kind of model, UnsupportedError where it cannot run here."""
    chosen = backend_named(name)
    check_needs(chosen, model)
    reason = chosen.unavailable()
    if reason is not None:
        raise UnsupportedError(f"backend {name} cannot run here: {reason}")
    return chosen


def check_needs(backend: Backend, model: Model) -> None:
    """Raises InputError, naming backends that fit, if this one runs the other kind of model."""
    if getattr(model, backend.needs) is not None:
        return
    what, advice = "quantized models", "give the model it was compiled from, or choose"
    if backend.needs == "firmware":
        what, advice = "firmware", "compile it first (samebits compile --target npu), or choose"
    raise InputError(
        f"{model.source}: backend {backend.name} runs {what}, not this; {advice} among "
        f"{', '.join(_fitting(model))}"
    )


def _fitting(model: Model) -> list[str]:
    """The names of the backends that run such a model; one that cannot be made says so."""
    names = []
    for name in known_backends():
        try:
            if getattr(model, backend_named(name).needs) is not None:
                names.append(name)
        except InputError:
            names.append(f"{name} (cannot be made)")
    return names
