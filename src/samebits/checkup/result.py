"""The findings of an examination, as data, JSON and a report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from samebits.reports.html import PageBlock, Table
from samebits.reports.report import Report, Reported, section


@dataclass(frozen=True)
class FoundPackage:
    """A Python package: its version, None where it is not installed.

    command: what installs it; use: what needs it, "" where everything does
    """

    name: str
    version: str | None
    command: str
    use: str = ""


@dataclass(frozen=True)
class FoundProgram:
    """A compiler or emulator: where it is, None where it is not, and its first line of `--version`.

    why: the reason why it does not do its work, None where none is known
    command: what installs it, on Debian; use: what needs it
    """

    name: str
    path: str | None
    version: str | None
    command: str
    use: str
    why: str | None = None


@dataclass(frozen=True)
class NativeKernels:
    """The C kernels of training: the library that the cache keeps, or why there is none."""

    library: str | None = None
    why: str | None = None


@dataclass(frozen=True)
class SelfTest:
    """A computation on one realisation: the hash of its result, which is known, or why not run.

    what: training (parameters after a few steps) or inference (codes of a quantized network)
    on:   kernels, or a backend
    sha256: None where it was not run, for the reason `why`
    failed: it was run and ended in an error, which `why` tells
    """

    what: str
    on: str
    expected: str
    sha256: str | None = None
    why: str | None = None
    failed: bool = False

    @property
    def right(self) -> bool | None:
        """Whether the bits are those that are known; None where it was not run."""
        if self.failed:
            return False
        return None if self.sha256 is None else self.sha256 == self.expected

    @property
    def word(self) -> str:
        """The state in a word or two."""
        if self.failed:
            return "FAILED"
        return {True: "right", False: "WRONG", None: "not run"}[self.right]


@dataclass(frozen=True)
class FoundBackend:
    """A backend by name: what it computes and where, and why it cannot (None: it can).

    needs: graph, firmware, or unknown where a package that defines it is broken
    """

    name: str
    needs: str
    where: str
    why: str | None


@dataclass(frozen=True)
class MissingThing:
    """Something that is not there, what would use it, and the command that installs it."""

    name: str
    use: str
    command: str


def told(error: object) -> str:
    """An error or warning in one line."""
    kind = "" if isinstance(error, Warning) else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())


NEEDED = (("training", "eager"), ("inference", "reference"))
"""Self-tests without which nothing works; all others are faster or farther realisations."""


@dataclass(frozen=True, eq=False)
class Checkup(Reported):
    """The findings of `doctor`. True where the self-test ran, and computed the known bits.

    faults: sentences about what could not be told, and warnings that came up
    """

    versions: dict[str, str]
    packages: tuple[FoundPackage, ...]
    compiler: FoundProgram | None
    kernels: NativeKernels
    selftest: tuple[SelfTest, ...]
    backends: tuple[FoundBackend, ...]
    programs: tuple[FoundProgram, ...]
    faults: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether no self-test differs and those were run that need nothing but Python."""
        ran = {(test.what, test.on) for test in self.selftest if test.right}
        return ran.issuperset(NEEDED) and all(test.right is not False for test in self.selftest)

    def __bool__(self) -> bool:
        return self.right

    @property
    def verdict(self) -> str:
        """The self-test in a line."""
        if self.right:
            return "right"
        faulty = [f"{t.what} on {t.on}: {t.word}" for t in self.selftest if t.right is False]
        return "; ".join(faulty) or "NOT RUN"

    @property
    def missing(self) -> tuple[MissingThing, ...]:
        """All that is not installed here, needed first."""
        found = [
            MissingThing(package.name, package.use or "everything", package.command)
            for package in sorted(self.packages, key=lambda package: bool(package.use))
            if package.version is None
        ]
        programs = [*filter(None, [self.compiler]), *self.programs]
        return (
            *found,
            *(MissingThing(p.name, p.use, p.command) for p in programs if p.path is None),
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "right": self.right,
            "versions": self.versions,
            "packages": [asdict(package) for package in self.packages],
            "compiler": None if self.compiler is None else asdict(self.compiler),
            "kernels": asdict(self.kernels),
            "selftest": [asdict(test) | {"right": test.right} for test in self.selftest],
            "backends": [asdict(backend) for backend in self.backends],
            "programs": [asdict(program) for program in self.programs],
            "missing": [asdict(missing) for missing in self.missing],
            "faults": list(self.faults),
        }

    def report(self) -> Report:
        """Versions, compiler, self-test, backends, what is missing; the verdict last."""
        sections = [
            section(_versions(self.versions, self.packages), title="Versions"),
            section(*_compiled(self.compiler, self.kernels), title="Compiler"),
            section(*_tested(self.selftest), title="Self-test"),
            section(_backends(self.backends), title="Backends"),
        ]
        if self.missing:
            rows = [(m.name, m.use, m.command) for m in self.missing]
            table = Table(("missing", "used by", "command"), rows, code=("command",))
            sections.append(section(table, title="Missing"))
        broken = [f"{p.path} DOES NOT WORK: {p.why}" for p in self.programs if p.why and p.path]
        if broken or self.faults:
            sections.append(section(*broken, *self.faults, title="Faults"))
        sections.append(section(f"self-test: {self.verdict}"))
        return Report("This machine", "", sections)


def _versions(versions: dict[str, str], packages: tuple[FoundPackage, ...]) -> PageBlock:
    rows = [*versions.items(), *((p.name, p.version or "not installed") for p in packages)]
    return Table(("what", "version"), rows)


def _compiled(compiler: FoundProgram | None, kernels: NativeKernels) -> list[str]:
    """Lines on the compiler and what it has compiled."""
    lines = []
    if compiler is not None and compiler.path is not None:
        state = "works" if compiler.why is None else f"DOES NOT WORK: {compiler.why}"
        lines.append(f"compiler: {compiler.path} ({compiler.version or 'no version'}), {state}")
    elif compiler is not None:
        lines.append(f"compiler: {compiler.why}")
    if kernels.library is not None:
        lines.append(f"native kernels: {kernels.library}")
    else:
        lines.append(f"native kernels: none (slower, same bits): {kernels.why}")
    return lines


def _tested(tests: tuple[SelfTest, ...]) -> list[PageBlock | str]:
    """A row for each self-test, and the reasons of those that have no hash."""
    rows = [(t.what, t.on, t.word, (t.sha256 or "")[:16]) for t in tests]
    table = Table(("computation", "on", "bits", "sha256"), rows, code=("sha256",))
    return [table, *(f"{t.what} on {t.on}: {t.why}" for t in tests if t.why is not None)]


def _backends(backends: tuple[FoundBackend, ...]) -> PageBlock:
    rows = [(b.name, b.needs, b.where, b.why or "yes") for b in backends]
    return Table(("backend", "runs", "where", "available"), rows)
