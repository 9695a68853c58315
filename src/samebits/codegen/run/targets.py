"""The targets of generated C: this machine, other processors, bare-metal boards on an emulator.

Processors of other families run under the emulator's user mode, boards under its system mode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from samebits.codegen.lowering.cpu import CPUS, PORTABLE
from samebits.codegen.run import toolchain
from samebits.codegen.run.boards import (
    MICROBIT,
    MPS2_AN385,
    MPS2_AN386,
    MPS2_AN500,
    MPS2_AN505,
    MPS3_AN547,
    Board,
)
from samebits.codegen.run.toolchain import Tool
from samebits.errors import InputError

SYSTEM_EMULATOR = "qemu-system-arm"
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Werror")
BASE = ("-std=c99", *WARNINGS)
# No C library, start-up files or float unit is assumed; unused functions are left out. The last
# flag makes gcc write the call graph with the stack of every function (see footprint.py).
BARE_METAL = (
    *("-mthumb", "-ffreestanding", "-nostdlib", "-nostartfiles"),
    *("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections"),
    "-fcallgraph-info=su",
)
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_PROBE = "#include <stdint.h>\nint main(void) { return (int)(uint8_t)0; }\n"
_BARE_PROBE = "#include <stdint.h>\nuint32_t _start(void);\nuint32_t _start(void) { return 0; }\n"


@dataclass(frozen=True)
class Target:
    """A way to build and run a program.

    compiler: its command; "cc" is the host's compiler ($CC, cc, gcc or clang)
    flags:    of the compiler, when it compiles and when it links
    runner:   the command put before the program's path (an emulator, a checker), if any
    board:    the bare-metal board, if any
    needs:    features of this machine's processor, as Linux names them, that the program uses
    """

    name: str
    compiler: str
    flags: tuple[str, ...]
    runner: tuple[str, ...] = ()
    board: Board | None = None
    needs: tuple[str, ...] = ()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The programs that building and running needs."""
        compiler = (
            toolchain.host_compiler() if self.compiler == "cc" else toolchain.find(self.compiler)
        )
        runner = (SYSTEM_EMULATOR,) if self.board else self.runner[:1]
        return (compiler, *(toolchain.find(command) for command in runner))

    @property
    def cpu(self) -> str:
        """The processor that packages for this target are made for (lowering/cpu.py)."""
        named = [flag.removeprefix("-mcpu=") for flag in self.flags if flag.startswith("-mcpu=")]
        return named[-1] if named and named[-1] in CPUS else PORTABLE.name

    @property
    def compiler_command(self) -> tuple[str, ...]:
        """The compiler's path and its first arguments, which $CC gives; the target must be
        available."""
        compiler = self.tools[0]
        assert compiler.path is not None
        return (compiler.path, *compiler.arguments)

    def unavailable(self) -> str | None:
        """Why this machine cannot build or run for the target, and what to install; None if it
        can. Only the first reason is given."""
        lacking = [feature for feature in self.needs if feature not in toolchain.features()]
        if lacking:
            return f"{self.name}: this machine's processor has no {lacking[0]}, or does not say so"
        for tool in self.tools:
            if tool.missing:
                return f"{self.name}: {tool.missing}"
        compiler, *runner = self.tools
        silence = toolchain.silence(self.compiler_command)
        if silence:
            return f"{self.name}: {silence}"
        probe = _BARE_PROBE if self.board else _PROBE
        failure = toolchain.link_failure(self.compiler_command, self.flags, probe)
        if failure:
            advice = toolchain.install(compiler.packages)
            return f"{self.name}: {compiler.command} cannot link: {failure} ({advice})"
        if self.board:
            machines = toolchain.machines(str(runner[0].path))
            if isinstance(machines, str):
                return f"{self.name}: {machines}"
            if self.board.machine not in machines:
                return (
                    f"{self.name}: this {SYSTEM_EMULATOR} has no machine {self.board.machine}; "
                    "expected version 7.0 or newer"
                )
        return None

    def with_flags(self, *flags: str) -> Target:
        """The target with more compiler flags; the last of two that contradict each other wins."""
        name = " ".join((self.name, *flags))
        return dataclasses.replace(self, name=name, flags=self.flags + flags)


def host(compiler: str = "cc", *flags: str, runner: tuple[str, ...] = ()) -> Target:
    """This machine: `compiler` ("cc", "gcc", "clang") with flags, -O2 if they name no other."""
    name = " ".join((*runner[:1], compiler, *flags))
    return Target(name, compiler, (*BASE, "-O2", *flags), runner)


def valgrind(compiler: str = "cc", *flags: str) -> Target:
    """This machine under valgrind, which fails on any read of memory that was never written."""
    return host(compiler, *flags, runner=("valgrind", "--quiet", "--error-exitcode=99"))


def _board(name: str, board: Board, *flags: str) -> Target:
    return Target(name, "arm-none-eabi-gcc", (*BASE, *BARE_METAL, *flags), board=board)


def _level(name: str, *needs: str) -> Target:
    """This machine, by the instructions of a level of x86-64 (its psABI, section 3.1.1)."""
    return Target(name, "cc", (*BASE, "-O2", f"-march={name}"), needs=needs)


def _processor(name: str, prefix: str, emulator: str) -> Target:
    return Target(name, f"{prefix}-gcc", (*BASE, "-O2", "-static"), (emulator,))


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        target.name: target
        for target in (
            Target("c", "cc", (*BASE, "-O2")),
            _board("cortex-m0", MICROBIT, "-mcpu=cortex-m0", "-Os"),
            # ARMv6-M code for nets beyond the microbit: a Cortex-M3 runs it unchanged.
            _board("cortex-m0-large", MPS2_AN385, "-mcpu=cortex-m0", "-Os"),
            _board("cortex-m3", MPS2_AN385, "-mcpu=cortex-m3", "-O2"),
            _board("cortex-m4", MPS2_AN386, "-mcpu=cortex-m4", "-O2"),
            _board("cortex-m7", MPS2_AN500, "-mcpu=cortex-m7", "-O2"),
            _board("cortex-m33", MPS2_AN505, "-mcpu=cortex-m33", "-O2"),
            _board("cortex-m55", MPS3_AN547, "-mcpu=cortex-m55", "-mfloat-abi=hard", "-O2"),
            _level("x86-64-v2", "sse4_2", "popcnt"),
            _level("x86-64-v3", "avx2", "bmi2", "fma"),
            _level("x86-64-v4", "avx512f", "avx512bw", "avx512dq", "avx512vl"),
            _processor("aarch64", "aarch64-linux-gnu", "qemu-aarch64"),
            _processor("s390x", "s390x-linux-gnu", "qemu-s390x"),  # big-endian
            _processor("riscv64", "riscv64-linux-gnu", "qemu-riscv64"),
        )
    }
)


def find_board(name: str) -> Target:
    """The target of an emulated board by its name; InputError, which lists them, for another."""
    boards = [each for each, target in TARGETS.items() if target.board]
    if name not in boards:
        raise InputError(f"--board: expected one of {', '.join(boards)}, found {name!r:.60}")
    return TARGETS[name]
