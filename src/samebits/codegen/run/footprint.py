"""Flash, RAM and stack of a built program, and its calls of floating-point routines."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from samebits.codegen.run import toolchain
from samebits.codegen.run.execute import LINK_MAP, Executable
from samebits.csrc import WORK, run_tool
from samebits.errors import InputError, SamebitsError, UnsupportedError

# The run-time ABI of the Arm architecture (sections 5.1.1 and 5.1.2) and the soft-float names of
# libgcc ("Soft float library routines"): whatever touches a float without a unit for it.
_AEABI = re.compile(r"__aeabi_(c?[fd]\w+|(i|ui|l|ul)2[fd]|h2[fd]\w*)")
_LIBGCC = re.compile(
    r"__(add|sub|mul|div|neg|cmp|unord|eq|ne|lt|le|gt|ge|powi)[sdthx]f\d"
    r"|__(fix|fixuns)[sdthx]f[sdt]i|__(float|floatun)[sdt]i[sdthx]f|__(extend|trunc)\w\wf\w\wf\d"
)
_LIBM = re.compile(
    "(a?(cos|sin|tan)h?|atan2|cbrt|ceil|copysign|erfc?|exp2?|expm1|fabs|fdim|floor|fma|fmax|fmin|fmod"
    "|frexp|hypot|ilogb|ldexp|lgamma|ll?rint|ll?round|log|log10|log1p|log2|logb|modf|nearbyint"
    "|nextafter|pow|remainder|rint|round|scalbn|sqrt|tgamma|trunc)[fl]?(@.*)?"
)


@dataclass(frozen=True)
class SectionSizes:
    """Bytes of a program: `flash` is code, constants and the start values of `data`; `ram` is
    data, zeroed memory and the stack kept for it."""

    code: int
    data: int
    zeroed: int
    stack: int

    @property
    def flash(self) -> int:
        """Bytes of flash: code, constants and start values."""
        return self.code + self.data

    @property
    def ram(self) -> int:
        """Bytes of RAM: data, zeroed memory and the stack that is kept."""
        return self.data + self.zeroed + self.stack


@dataclass(frozen=True)
class StackBound:
    """Bytes of stack that a function and all it calls can need, and the functions it calls whose
    own need is not known (the compiler's library); their frames are not in `bytes`."""

    bytes: int
    unknown: tuple[str, ...]


def float_symbols(executable: Executable) -> list[str]:
    """The floating-point routines that the program contains or refers to, sorted.

    A processor without a float unit computes no float without one of them; on others, the list
    shows library calls only. InputError without binutils' nm."""
    names = {line.split()[0] for line in _binutils(executable, "nm", "-P").splitlines() if line}
    return sorted(
        name
        for name in names
        if _AEABI.fullmatch(name) or _LIBGCC.fullmatch(name) or _LIBM.fullmatch(name)
    )


_PLACED = re.compile(r"^ (\.[\w.$]+)\s+0x[0-9a-f]+\s+0x([0-9a-f]+)\s+(\S+)$", re.MULTILINE)


def linked_sizes(executable: Executable) -> dict[str, SectionSizes]:
    """Bytes of a bare-metal program by object file (its name without ".o", or an archive's member),
    as the linker placed them: what it left out is not counted. By the map that the linker wrote;
    UnsupportedError for other targets."""
    if executable.target.board is None:
        raise UnsupportedError(
            f"expected a program built for a board, found {executable.target.name}"
        )
    text = (executable.path.parent / LINK_MAP).read_text(encoding="utf-8", errors="replace")
    placed = text.partition("Linker script and memory map")[2]
    found: dict[str, dict[str, int]] = {}
    for section, size, file in _PLACED.findall(placed):
        kind = _kind(section)
        if kind is not None:
            name = Path(file.replace("(", "/").rstrip(")")).stem
            sizes = found.setdefault(name, dict.fromkeys(("code", "data", "zeroed", "stack"), 0))
            sizes[kind] += int(size, 16)
    return {name: SectionSizes(**sizes) for name, sizes in found.items()}


def section_sizes(executable: Executable) -> SectionSizes:
    """Flash and RAM of a bare-metal program, harness and its buffers included (UnsupportedError
    for other targets)."""
    if executable.target.board is None:
        raise UnsupportedError(
            f"expected a program built for a board, found {executable.target.name}"
        )
    return _sizes(executable, executable.path)


def object_sizes(executable: Executable) -> dict[str, SectionSizes]:
    """Section sizes of every compiled file by name (`stack` is 0), before the linker leaves
    anything out."""
    return {path.name: _sizes(executable, path) for path in executable.objects}


def _sizes(executable: Executable, path: Path) -> SectionSizes:
    sizes = {"code": 0, "data": 0, "zeroed": 0, "stack": 0}
    for line in _binutils(executable, "size", "-A", path=path).splitlines():
        fields = line.split()
        kind = _kind(fields[0]) if len(fields) == 3 and fields[1].isdigit() else None
        if kind is not None:
            sizes[kind] += int(fields[1])
    return SectionSizes(**sizes)


def _kind(section: str) -> str | None:
    """The field of SectionSizes that a section counts for, None for those that take no memory."""
    kinds = {".stack": "stack", ".data": "data", ".bss": "zeroed"}
    code = (".vectors", ".text", ".rodata", ".ARM.exidx")
    for prefix, kind in (*kinds.items(), *((name, "code") for name in code)):
        if section == prefix or section.startswith(prefix + "."):
            return kind
    return None


def _binutils(executable: Executable, program: str, *options: str, path: Path | None = None) -> str:
    command = toolchain.companion(executable.target.compiler, program)
    found = shutil.which(command)
    if found is None:
        raise InputError(f"{command} is not installed ({toolchain.install(('binutils',))})")
    path = path or executable.path
    run = run_tool([found, *options, str(path)], WORK)
    if run.returncode:
        said = toolchain.first_error(run.stderr)
        raise SamebitsError(f"{path}: expected a program that {command} reads, found: {said}")
    return run.stdout


# --- stack --------------------------------------------------------------------------------------

_NODE = re.compile(r'node: \{ title: "([^"]*)" label: "([^"]*)"')
_EDGE = re.compile(r'edge: \{ sourcename: "([^"]*)" targetname: "([^"]*)"')
_FRAME = re.compile(r"(\d+) bytes \((\w+)")


def stack_bound(executable: Executable, function: str | None = None) -> StackBound:
    """The longest chain of frames from `function` (the model's run function), by the call graph
    that gcc writes (-fcallgraph-info=su). UnsupportedError: not a board's program, recursion, an
    indirect call or a frame of variable size: none is in generated code."""
    frames: dict[str, int] = {}
    calls: dict[str, set[str]] = {}
    for path in executable.objects:
        graph = path.with_suffix(".ci")
        if not graph.exists():
            raise UnsupportedError(
                f"expected a program built for a board by gcc, found {executable.target.name}"
            )
        text = graph.read_text(encoding="utf-8", errors="replace")
        for title, label in _NODE.findall(text):
            frame = _FRAME.search(label)
            if frame is None:
                continue
            if frame.group(2) != "static":
                raise UnsupportedError(f"expected frames of fixed size, found {title}'s")
            frames[title] = int(frame.group(1))
        for source, target in _EDGE.findall(text):
            calls.setdefault(source, set()).add(target)
    start = function or f"{executable.interface.prefix}_run"
    if start not in frames:
        raise InputError(f"expected a function of the program, found {start!r}")
    unknown: set[str] = set()
    total = _deepest(start, frames, calls, unknown, {})
    return StackBound(total, tuple(sorted(unknown)))


def _deepest(
    name: str,
    frames: dict[str, int],
    calls: dict[str, set[str]],
    unknown: set[str],
    done: dict[str, int | None],
) -> int:
    """Bytes of stack from `name` on, by depth-first search of the call graph.

    done: of each function visited, its bytes; None while its calls are followed, so that meeting it
    again is recursion. Functions without a known frame are added to `unknown` and count 0.
    """
    if name in done:
        known = done[name]
        if known is None:
            raise UnsupportedError(f"expected no recursion, found that of {name}")
        return known
    if name == "__indirect_call":
        raise UnsupportedError("expected no indirect call, found one")
    if name not in frames:
        unknown.add(name)
        return 0
    done[name] = None
    below = [_deepest(n, frames, calls, unknown, done) for n in sorted(calls.get(name, ()))]
    done[name] = frames[name] + max(below, default=0)
    return frames[name] + max(below, default=0)
