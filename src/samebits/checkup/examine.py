"""The examination: one question after the other, none of which ends it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

from samebits import progress
from samebits.checkup import machine
from samebits.checkup.result import Checkup, NativeKernels, SelfTest, told
from samebits.settled import settled

T = TypeVar("T")


@settled
def doctor() -> Checkup:
    """Versions, compiler, kernels, a self-test of known bits, backends, and what is missing.

    Compiles the native kernels if that was never done here (some seconds). Nothing that is missing
    or broken raises: it is in the result, which is true where the self-test is right.
    """
    faults: list[str] = []

    def asked(what: str, question: Callable[[], T]) -> T | None:
        progress.stage(what)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = None
            try:
                found = question()
            except Exception as error:  # what breaks here is what the examination is after
                faults.append(f"{what}: cannot be told: {told(error)}")
        # Of Python's own categories only what users are meant to read.
        texts = (told(w.message) for w in caught if w.category is UserWarning)
        faults.extend(f"{what}: warning: {text}" for text in texts)
        return found

    versions = asked("versions", machine.versions) or {}
    packages = asked("packages", machine.packages) or ()
    compiler = asked("compiler", machine.compiler)
    nothing = NativeKernels(why="they cannot be examined")
    works = compiler is not None and compiler.why is None
    kernels = asked("native kernels", lambda: machine.kernels(works)) or nothing
    tests = asked("self-test of training", lambda: _training(kernels)) or ()
    tests += asked("self-test of inference", _inference) or ()
    backends = asked("backends", machine.backends) or ()
    programs = asked("programs", machine.programs) or ()
    return Checkup(
        versions,
        packages,
        compiler,
        kernels,
        tests,
        backends,
        programs,
        tuple(dict.fromkeys(faults)),
    )


def _training(kernels: NativeKernels) -> tuple[SelfTest, ...]:
    from samebits.checkup import selftest
    from samebits.kernels import chosen

    unwanted = None if chosen() == "compiled" else selftest.COMPILED
    reasons = {"eager": None, "native": kernels.why, "compiled": unwanted}
    return tuple(selftest.on_kernels(name, why) for name, why in reasons.items())


def _inference() -> tuple[SelfTest, ...]:
    from samebits.checkup import selftest

    return tuple(selftest.on_backends())
