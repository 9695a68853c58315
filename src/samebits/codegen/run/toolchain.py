"""The compilers and emulators that generated C is built and run with, found or explained.

A tool that is not there is no error here: `Tool.missing` says what to install (package names of
Debian and Ubuntu), and whoever needs the tool decides.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from samebits.csrc import ANSWER, run_tool
from samebits.csrc import compiler as compiler_words
from samebits.errors import InputError


@dataclass(frozen=True)
class Tool:
    """A program by its command: where it is (None: not found), and what installs it.

    `arguments` come before all others; those of $CC.
    """

    command: str
    path: str | None
    packages: tuple[str, ...]
    arguments: tuple[str, ...] = ()

    @property
    def missing(self) -> str | None:
        """Why the tool cannot be used; None if it can."""
        if self.path is not None:
            return None
        return f"{self.command} is not installed ({install(self.packages)})"


# What `apt install` needs for each command. Cross compilers bring a C library where the target
# has an operating system; bare-metal programs use only the compiler's own headers and libgcc.
PACKAGES = {
    "cc": ("gcc",),
    "gcc": ("gcc",),
    "clang": ("clang", "libclang-rt-dev"),
    "valgrind": ("valgrind",),
    "arm-none-eabi-gcc": ("gcc-arm-none-eabi",),
    "aarch64-linux-gnu-gcc": ("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"),
    "s390x-linux-gnu-gcc": ("gcc-s390x-linux-gnu", "libc6-dev-s390x-cross"),
    "riscv64-linux-gnu-gcc": ("gcc-riscv64-linux-gnu", "libc6-dev-riscv64-cross"),
    "qemu-system-arm": ("qemu-system-arm",),
    "qemu-aarch64": ("qemu-user",),
    "qemu-s390x": ("qemu-user",),
    "qemu-riscv64": ("qemu-user",),
}


def install(packages: tuple[str, ...]) -> str:
    """The advice that ends a message about a missing tool."""
    return f"install it, on Debian: apt install {' '.join(packages)}"


def find(command: str) -> Tool:
    """The tool that `command` names: a name looked up in PATH, or a path."""
    return Tool(command, shutil.which(command), PACKAGES.get(command, (Path(command).name,)))


def host_compiler() -> Tool:
    """The compiler of this machine ($CC, else cc, gcc or clang). Raises InputError where $CC is no
    command."""
    command, *arguments = compiler_words()
    return replace(find(command), arguments=tuple(arguments))


def companion(compiler: str, program: str) -> str:
    """The binutils program that belongs to a compiler: ("arm-none-eabi-gcc", "nm") gives
    "arm-none-eabi-nm"; a host compiler's is the host's own."""
    name = Path(compiler).name
    return f"{name.removesuffix('gcc')}{program}" if name.endswith("-gcc") else program


@functools.cache
def silence(compiler: tuple[str, ...]) -> str | None:
    """Why the compiler, its command in words, is not worth asking: it does not end with an empty
    file. None if it does. So one that never ends is waited for once, not for each set of flags."""
    try:
        run_tool([*compiler, "-fsyntax-only", "-x", "c", "-"], ANSWER)
    except (InputError, OSError) as error:
        return str(error)
    return None


@functools.cache
def link_failure(compiler: tuple[str, ...], flags: tuple[str, ...], program: str) -> str | None:
    """Why the compiler, its command in words, cannot link this small program with these flags (a
    library or header that is not installed, a flag it does not know): its first error. None if it
    can."""
    with tempfile.TemporaryDirectory() as work:
        command = [*compiler, *flags, "-x", "c", "-", "-o", os.path.join(work, "probe")]
        try:
            run = run_tool(command, ANSWER, program)
        except (InputError, OSError) as error:
            return str(error)
    return first_error(run.stderr) if run.returncode else None


def first_error(text: str) -> str:
    """The first line of a compiler's messages that tells of an error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    words = ("error", "cannot find", "undefined reference", "multiple definition", "overflowed")
    wanted = [line for line in lines if any(word in line for word in words)]
    return (wanted or lines or ["no message"])[0]


@functools.cache
def features() -> frozenset[str]:
    """Features of this machine's processor, by the names of /proc/cpuinfo; none without it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    lines = (line.partition(":")[2] for line in text.splitlines() if line.startswith("flags"))
    return frozenset(next(lines, "").split())


@functools.cache
def machines(emulator: str) -> frozenset[str] | str:
    """The boards that this version of the system emulator knows, or why it does not tell."""
    try:
        run = run_tool([emulator, "-machine", "help"], ANSWER)
    except (InputError, OSError) as error:
        return str(error)
    return frozenset(line.split()[0] for line in run.stdout.splitlines() if line.strip())
