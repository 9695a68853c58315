"""Objects of C sources that were compiled before in this test session, with the same flags.

Most programs that tests build hold the same kernels. A source is known by its text, by that of all
headers that it includes, and by the compiler's command without paths of folders.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from samebits.codegen.run.targets import Target

INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
Compiler = Callable[[Target, list[str], Path], None]


def with_headers(source: Path, folders: list[Path], seen: set[Path]) -> Iterator[bytes]:
    """The text of a source, then that of every header it includes, each once."""
    if source in seen:
        return
    seen.add(source)
    text = source.read_bytes()
    yield text
    for name in INCLUDE.findall(text):
        found = (folder / name.decode() for folder in (source.parent, *folders))
        header = next((path for path in found if path.is_file()), None)
        if header is not None:
            yield from with_headers(header, folders, seen)


def cached(compiler: Compiler, objects: Path) -> Compiler:
    """The compiler, which copies an object from the folder `objects` where it is there."""

    def compile_once(target: Target, arguments: list[str], work: Path) -> None:
        if "-c" not in arguments:
            compiler(target, arguments, work)
            return
        source = Path(arguments[arguments.index("-c") + 1])
        made = Path(arguments[arguments.index("-o") + 1])
        folders = [Path(arguments[i + 1]) for i, word in enumerate(arguments) if word == "-I"]
        flags = [word for word in arguments if "/" not in word]
        known = hashlib.sha256(repr((target.compiler_command, flags, source.name)).encode())
        for text in with_headers(source, folders, set()):
            known.update(hashlib.sha256(text).digest())
        kept = objects / known.hexdigest()
        if not kept.exists():
            compiler(target, arguments, work)
            with tempfile.TemporaryDirectory(dir=objects) as folder:
                part = Path(folder) / "part"
                part.mkdir()
                for file in made.parent.glob(f"{made.stem}.*"):  # the call graph too
                    shutil.copyfile(file, part / file.name)
                with contextlib.suppress(OSError):  # another worker was first
                    part.rename(kept)
            return
        for file in kept.iterdir():
            shutil.copyfile(file, made.parent / file.name)

    return compile_once
