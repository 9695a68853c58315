"""The kernels of generated C, compiled once for many programs of a test session."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from c_files import write_files
from samebits.codegen.lowering.cpu import find_cpu
from samebits.codegen.packaging.package import library

WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")


def compile_c(
    compiler: str, folder: Path, sources: Sequence[str], out: str, *flags: str
) -> subprocess.CompletedProcess[str]:
    """Warnings are errors."""
    command = [compiler, *WARNINGS, *flags, "-o", out, *sources]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return done


def shared_kernels(compiler: str, folder: Path, objects: Path, cpu: str, *flags: str) -> str:
    """The kernels' object file in `objects`, compiled once for a processor, compiler and flags;
    their headers are in `folder` too."""
    files = library(find_cpu(cpu))
    write_files(folder, files)
    key = hashlib.sha256(repr((compiler, flags, sorted(files.items()))).encode()).hexdigest()
    made = objects / f"kernels-{key[:16]}"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=objects) as name:
            part = Path(name) / "part"
            write_files(part, files)
            compile_c(compiler, part, ["-c", "samebits/samebits_kernels.c"], "kernels.o", *flags)
            with contextlib.suppress(OSError):  # another worker was first
                part.rename(made)
    return str(made / "kernels.o")
