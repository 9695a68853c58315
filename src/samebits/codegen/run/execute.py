"""Builds a generated package for a target and runs samples through it.

Samples travel as raw little-endian codes, all inputs of one run after the other, and so do outputs.
A program gets them on its standard input, or, on a board, in files it opens by semihosting.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from samebits.codegen.run import boards, toolchain
from samebits.codegen.run.boards import Board
from samebits.codegen.run.interface import Interface
from samebits.codegen.run.targets import Target
from samebits.csrc import WORK, run_to_end, run_tool
from samebits.errors import InputError, SamebitsError, UnsupportedError

Array = np.ndarray[Any, Any]
LINK_MAP = "program.map"  # which file of a board's program takes which bytes
_GLUE = "samebits_glue.h"
_TIMER_OVERFLOW = 2**32 - 1  # boards/timer.h


@dataclass(frozen=True)
class Executable:
    """A built program: its file, what it takes and gives, and what runs it."""

    path: Path
    target: Target
    interface: Interface
    traced: bool
    profiled: bool = False

    @property
    def objects(self) -> list[Path]:
        """The compiled files that it was linked from."""
        return sorted(self.path.parent.glob("*.o"))


@dataclass(frozen=True)
class LayerTrace:
    """One line of a trace: the layer's index, the hash of its codes (64 bits) and their number."""

    layer: int
    hash: int
    count: int


@dataclass(frozen=True)
class ProgramFiles:
    """The files that one call of a program left behind; those of a board are empty elsewhere."""

    output: bytes
    counts: bytes
    totals: bytes
    trace: bytes


# --- build --------------------------------------------------------------------------------------


def build(
    folder: Path,
    target: Target,
    work: Path,
    interface: Interface | None = None,
    trace: bool = False,
    profile: bool = False,
) -> Executable:
    """Compile and link the package in `folder`; everything made goes to the empty folder `work`.

    interface: what the package takes and gives, by default what its report says. trace: it writes
    the hash of every layer. profile: a board's program counts the instructions of every layer.
    InputError: the target is not available here, a file is missing, the program does not fit the
    board, or the compiler refuses it.
    """
    reason = target.unavailable()
    if reason:
        raise InputError(reason)
    folder, work = folder.resolve(), work.resolve()
    interface = interface or Interface.read(folder)
    header = folder / f"{interface.prefix}.h"
    if not header.is_file():
        raise InputError(
            f"expected a folder of generated C with {header.name}, found none in {folder}; "
            "make one with: samebits compile MODEL --target c --out DIR"
        )
    work.mkdir(parents=True, exist_ok=True)
    sources = [*sorted(folder.glob("*.c")), *sorted(folder.glob("samebits/*.c"))]
    flags = [*target.flags, "-I", str(folder)]
    if trace or profile:
        flags.append("-DSAMEBITS_TRACE")
    if profile:
        flags.append("-DSAMEBITS_PROFILE")
    link: list[str] = []
    if not target.board:
        sources += sorted(folder.glob("test/*.c"))
    else:
        sources += [boards.FOLDER / name for name in boards.SOURCES]
        (work / _GLUE).write_text(interface.glue(), encoding="ascii")
        (work / "board.ld").write_text(boards.linker_script(target.board), encoding="ascii")
        flags += ["-I", str(work), *target.board.defines]
        link = ["-L", str(boards.FOLDER), "-T", str(work / "board.ld"), "-lgcc"]
        link.append(f"-Wl,-Map={work / LINK_MAP}")
    objects = []
    for source in sources:
        objects.append(str(work / f"{source.stem}.o"))
        compile_with(target, [*flags, "-c", str(source), "-o", objects[-1]], work)
    path = work / "program"
    compile_with(target, [*flags, *objects, *link, "-o", str(path)], work)
    return Executable(path, target, interface, trace, profile)


_OVERFLOW = re.compile(r"region `(\w+)' overflowed by (\d+) bytes")


def compile_with(target: Target, arguments: list[str], work: Path) -> None:
    """Call the compiler of a target. InputError: the program does not fit, or it refuses it."""
    run = run_tool([*target.compiler_command, *arguments], WORK, folder=work)
    if run.returncode == 0:
        return
    excess = {name: int(count) for name, count in _OVERFLOW.findall(run.stderr)}
    if excess and target.board:
        raise InputError(_too_large(target, excess))
    raise InputError(
        f"{target.name}: expected generated C that compiles without a warning, found: "
        f"{toolchain.first_error(run.stderr)}; make the package again with this version"
    )


def _too_large(target: Target, excess: dict[str, int]) -> str:
    assert target.board is not None
    parts = []
    for name, region in (("FLASH", target.board.flash), ("RAM", target.board.ram)):
        if name in excess:
            parts.append(f"{region.bytes + excess[name]} bytes of {name}, it has {region.bytes}")
    larger = {"cortex-m0": "cortex-m0-large"}.get(target.name, "a larger board")
    return (
        f"{target.name}: expected a model that fits the board {target.board.machine}, found one "
        f"that needs {' and '.join(parts)}; take {larger}, or a smaller model"
    )


# --- run ----------------------------------------------------------------------------------------


def execute(executable: Executable, inputs: Sequence[Array], timeout: float = WORK) -> list[Array]:
    """The outputs for `inputs`, one array per input of the graph, of its dtype.

    Axis 0 may be any multiple of the graph's; the program then runs piece by piece, and outputs
    are joined along axis 0 in the same way. InputError: inputs that do not fit the interface, or a
    program that takes longer than `timeout` seconds. SamebitsError: the program fails.
    """
    if executable.traced and not executable.target.board:
        raise UnsupportedError("expected a program built without trace, found one that traces only")
    data, runs = executable.interface.pack(inputs)
    outcome = run_program(executable.target, executable.path, data, runs, timeout)
    return executable.interface.unpack(outcome.output, runs, executable.target.name)


def execute_trace(
    executable: Executable, inputs: Sequence[Array], timeout: float = WORK
) -> list[list[LayerTrace]]:
    """The trace of each run: the hash of every layer in order. Errors as `execute`, and
    UnsupportedError if the program was built without `trace`."""
    if not executable.traced:
        raise UnsupportedError("expected a program built with trace=True, found one without")
    data, runs = executable.interface.pack(inputs)
    outcome = run_program(executable.target, executable.path, data, runs, timeout)
    if executable.target.board:
        records = np.frombuffer(outcome.trace, "<u4").reshape(-1, 4).tolist()
        lines = [LayerTrace(r[0], r[2] | r[3] << 32, r[1]) for r in records]
    else:
        fields = [line.split() for line in outcome.output.decode("ascii").splitlines()]
        lines = [LayerTrace(int(f[0]), int(f[1], 16), int(f[2])) for f in fields]
    if runs == 0:
        return []
    layers = len(lines) // runs
    if layers * runs != len(lines):
        raise SamebitsError(
            f"{executable.target.name}: expected one trace per run, found {len(lines)} lines for "
            f"{runs} runs"
        )
    return [lines[i * layers : (i + 1) * layers] for i in range(runs)]


def instruction_count(
    executable: Executable, inputs: Sequence[Array], timeout: float = WORK
) -> list[int]:
    """Instructions that the processor executes for each run, from the call of the model to its
    return (with those few that pass its arguments). Boards only, built without `trace`;
    UnsupportedError for others, and for runs of about 10**9 instructions or more.

    The emulator's clock is set to advance a fixed time per instruction (its -icount mode), and a
    timer of the board is read before and after; the count is exact, and the same in every call and
    on every machine. It is no cycle count: an instruction may take several cycles.
    """
    board = executable.target.board
    if board is None or executable.traced or executable.profiled:
        raise UnsupportedError(
            "expected a program built for a board, without trace, to count instructions of; found "
            f"{executable.target.name}"
        )
    data, runs = executable.interface.pack(inputs)
    outcome = run_program(executable.target, executable.path, data, runs, timeout, count=True)
    empty = int(np.frombuffer(outcome.totals, "<u4")[0])
    ticks = np.frombuffer(outcome.counts, "<u4").tolist()
    if _TIMER_OVERFLOW in ticks:
        raise UnsupportedError(
            f"{executable.target.name}: expected runs of fewer instructions than its timer counts "
            f"({_instructions(3 << 30, board)}), found a longer one; count a smaller model's"
        )
    return [_instructions(count, board) - _instructions(empty, board) for count in ticks]


def layer_instructions(
    executable: Executable, inputs: Sequence[Array], timeout: float = WORK
) -> list[int]:
    """Instructions of every layer in the first run, of a program built with `profile`.

    Exact but for those few that pass the hook's arguments, which differ by layer. Raises
    UnsupportedError for other programs, and where a layer takes about 10**9 instructions or more.
    """
    board = executable.target.board
    if board is None or not executable.profiled:
        raise UnsupportedError("expected a board's program built with profile=True")
    data, runs = executable.interface.pack(inputs)
    outcome = run_program(executable.target, executable.path, data, runs, timeout, count=True)
    words = np.frombuffer(outcome.counts, "<u4").reshape(runs, -1)[0].tolist()
    *layers, hook, _, _ = words
    if _TIMER_OVERFLOW in layers:
        raise UnsupportedError(
            f"{executable.target.name}: expected layers of fewer instructions than its timer "
            f"counts ({_instructions(3 << 30, board)}), found a longer one"
        )
    return [max(_instructions(n, board) - _instructions(hook, board), 0) for n in layers]


def _instructions(ticks: int, board: Board) -> int:
    """ticks = instructions * 2**icount_shift ns * timer_hz, off by less than one; an instruction is
    more than two ticks, so the nearest integer is exact."""
    unit = board.timer_hz << board.icount_shift
    return (2 * ticks * 10**9 + unit) // (2 * unit)


def stack_used(executable: Executable, inputs: Sequence[Array], timeout: float = WORK) -> int:
    """Bytes of stack that these runs used at most, harness included, by the paint that is left.
    Boards only (UnsupportedError for others)."""
    if executable.target.board is None:
        raise UnsupportedError(
            "expected a program built for a board to measure the stack of; found "
            f"{executable.target.name}"
        )
    data, runs = executable.interface.pack(inputs)
    return int(
        np.frombuffer(
            run_program(executable.target, executable.path, data, runs, timeout).totals, "<u4"
        )[1]
    )


def run_program(
    target: Target, path: Path, data: bytes, runs: int, timeout: float, count: bool = False
) -> ProgramFiles:
    """Run a program once, in a folder of its own, on all runs' bytes.

    count: the emulator's clock advances with the instructions. InputError: it takes longer than
    `timeout` seconds. SamebitsError: it ends with another code than 0.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        folder = Path(name)
        (folder / "input.bin").write_bytes(data)
        if target.board:
            command = _emulator(target, path, count)
            output = folder / "messages.txt"  # the board writes output.bin itself
        else:
            command = [*target.runner, str(path)]
            output = folder / "output.bin"
        errors = folder / "errors.txt"
        with (
            (folder / "input.bin").open("rb") as stdin,
            output.open("wb") as stdout,
            errors.open("wb") as stderr,
        ):
            try:
                run = run_to_end(
                    *(command, timeout), cwd=folder, stdin=stdin, stdout=stdout, stderr=stderr
                )
            except subprocess.TimeoutExpired:
                raise InputError(
                    f"{target.name}: expected {runs} runs to end within {timeout:g} seconds, found "
                    "the program still running; give fewer samples or a longer timeout"
                ) from None
        text = errors.read_text(encoding="utf-8", errors="replace")
        if run.returncode:
            raise SamebitsError(_failure(target, run.returncode, text))

        def left(file: str) -> bytes:
            found = folder / file
            return found.read_bytes() if found.exists() else b""

        files = ("output.bin", "counts.bin", "totals.bin", "trace.bin")
        return ProgramFiles(*(left(file) for file in files))


def _emulator(target: Target, path: Path, count: bool) -> list[str]:
    assert target.board is not None
    emulator = target.tools[1].path
    assert emulator is not None
    command = [emulator, "-machine", target.board.machine, "-kernel", str(path)]
    command += ["-semihosting-config", "enable=on,target=native"]
    command += ["-nodefaults", "-display", "none", "-monitor", "none", "-serial", "null"]
    if count:
        command += ["-icount", f"shift={target.board.icount_shift},sleep=off"]
    return command


def _failure(target: Target, code: int, text: str) -> str:
    """The message about a program that ended with an exit code other than 0."""
    what = boards.EXIT_CODES.get(code) if target.board else None
    if what is None:
        lines = [line for line in text.splitlines() if line.strip() and "warning:" not in line]
        said = next((line for line in lines if "error" in line.lower()), (lines or [""])[0])
        what = f"ended with code {code}" + (f": {said.strip()}" if said else "")
    advice = "report the model that shows it"
    if target.board and code == boards.STACK_OVERFLOW:
        advice = f"its {target.board.stack} bytes of stack do not suffice; {advice}"
    return f"{target.name}: expected the program to end without an error, but it {what}; {advice}"
