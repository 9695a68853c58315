"""Questions to this machine: packages, a compiler that works, kernels, backends, boards.

Rooms of the project are imported by the question that needs them, so that one which cannot be
imported, as a package of it is missing, spoils only that question.
"""

from __future__ import annotations

import os
import platform
import tempfile
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from samebits.checkup.result import FoundBackend, FoundPackage, FoundProgram, NativeKernels, told
from samebits.csrc import ANSWER, run_tool
from samebits.errors import SamebitsError

if TYPE_CHECKING:
    from subprocess import CompletedProcess

    from samebits.codegen.run.toolchain import Tool

DEBIAN = "apt install"
NEEDED = (
    *("torch", "numpy", "onnx", "safetensors", "scipy", "typer", "rich", "mpmath", "matplotlib"),
    *("pillow", "Jinja2", "fast-sugiyama"),
)
# name of the distribution: what uses it
OPTIONAL = {
    "onnxruntime": "the onnxruntime backends, concordant ONNX",
    "scikit-learn": "the digits data, samebits demo",
    "tensorflow": "concordant TensorFlow",
    "pandas": "tables as data",
    "pyarrow": "Parquet files as data",
    "tensorboard": "samebits train --tensorboard",
}
MODULES = {  # where the names differ
    "Jinja2": "jinja2",
    "fast-sugiyama": "fast_sugiyama",
    "pillow": "PIL",
    "scikit-learn": "sklearn",
}
BUILDS = {"tensorflow": ("tensorflow", "tensorflow-cpu")}  # distributions of one module
_PROBE = '#include <stdint.h>\n#include <stdio.h>\nint main(void) { return puts("17") < 0; }\n'


def versions() -> dict[str, str]:
    """Versions of samebits, Python and the system."""
    return {
        "samebits": _version("samebits") or "not installed",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def packages() -> tuple[FoundPackage, ...]:
    """The packages that are needed and those that are optional."""
    found = []
    for name, use in (dict.fromkeys(NEEDED, "") | OPTIONAL).items():
        number = None
        if _is_there(MODULES.get(name, name)):
            numbers = map(_version, BUILDS.get(name, (name,)))
            number = next(filter(None, numbers), "of unknown version")
        found.append(FoundPackage(name, number, f"pip install {name}", use))
    return tuple(found)


def _is_there(module: str) -> bool:
    """Whether Python finds a module, which is not imported: TensorFlow takes seconds."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # of a finder that refuses it, and of a broken module
        return False


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def compiler() -> FoundProgram:
    """The compiler of this machine, and whether what it compiles runs."""
    from samebits.codegen.run import toolchain

    tool = toolchain.host_compiler()
    found = _program(tool, "fast training, the backend c")
    if tool.path is None or found.why is not None:
        return replace(found, why=found.why or tool.missing)
    return replace(found, why=_compiles((tool.path, *tool.arguments)))


def _compiles(words: tuple[str, ...]) -> str | None:
    """Why a compiler does not make programs that run; None if it does."""
    from samebits.codegen.run.toolchain import first_error

    with tempfile.TemporaryDirectory(prefix="samebits-") as work:
        path = os.path.join(work, "probe")
        command = [*words, "-x", "c", "-", "-o", path]
        made = _ran(command, _PROBE)
        if isinstance(made, str):
            return made
        if made.returncode:
            return first_error(made.stderr)
        run = _ran([path])
        if isinstance(run, str):
            return f"a program that it compiled does not run: {run}"
        if (run.returncode, run.stdout.strip()) != (0, "17"):
            return f"a program that it compiled ended with {run.returncode}"
    return None


def kernels(works: bool) -> NativeKernels:
    """The library of native kernels, compiled here if it never was; or why there is none.

    works: whether the compiler does; one that does not is not asked for a library
    """
    from samebits.kernels import build, selftest
    from samebits.kernels.native import Native

    try:
        if not works:
            build.where()
        native = Native()
    except build.BuildError as error:
        return NativeKernels(why=str(error))
    wrong = selftest.failures(native, "cpu")
    if wrong:
        return NativeKernels(why=f"they differ from plain integers in {', '.join(wrong)}")
    try:
        return NativeKernels(library=str(build.where()))
    except build.BuildError as error:
        return NativeKernels(library=f"compiled for this process alone ({error})")


def programs() -> tuple[FoundProgram, ...]:
    """The cross compilers, emulators and checkers that targets of generated C need."""
    from samebits.codegen.run.targets import SYSTEM_EMULATOR, TARGETS
    from samebits.codegen.run.toolchain import find

    used: dict[str, list[str]] = {}
    for target in TARGETS.values():
        runner = SYSTEM_EMULATOR if target.board else next(iter(target.runner), None)
        for command in (target.compiler, runner):
            if command is not None and command != "cc":
                used.setdefault(command, []).append(target.name)
    return tuple(_program(find(command), ", ".join(names)) for command, names in used.items())


def _program(tool: Tool, use: str) -> FoundProgram:
    command = f"{DEBIAN} {' '.join(tool.packages)}"
    about = why = None
    if tool.path is not None:
        run = _ran([tool.path, *tool.arguments, "--version"])
        if isinstance(run, str):
            why = run
        else:
            about = next(iter(run.stdout.splitlines()), None)
    return FoundProgram(tool.command, tool.path, about, command, use, why)


def _ran(command: list[str], text: str = "") -> CompletedProcess[str] | str:
    """A finished program, or why there is none."""
    try:
        return run_tool(command, ANSWER, text)
    except OSError as error:
        return f"{error.filename or command[0]}: {error.strerror or error}"
    except SamebitsError as error:
        return str(error)


def backends() -> tuple[FoundBackend, ...]:
    """Every backend by name, with the reason why it cannot run."""
    from samebits.codegen.run.targets import TARGETS
    from samebits.verification.registry import known_backends

    found = []
    for name, factory in known_backends().items():
        where = "this process"
        if name in TARGETS:
            target = TARGETS[name]
            where = "this machine"
            if target.board:
                where = f"emulated board {target.board.machine}"
            elif target.runner:
                where = f"emulated by {target.runner[0]}"
        needs: str = "unknown"
        try:
            backend = factory(None)
            why = backend.unavailable()
            needs = backend.needs
        except SamebitsError as error:
            why = str(error)
        except Exception as error:  # a backend of another package: its code may raise anything
            why = f"{name}: {told(error)}"
        found.append(FoundBackend(name, needs, where, why))
    return tuple(found)
