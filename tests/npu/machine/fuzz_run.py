"""Read, check, run and translate mutated firmware: python fuzz_run.py FIRST COUNT.

Every case is an example of examples/firmware with some bytes, lines or words of its program or its
memory image changed, by the case's own seed. Files that make no legal program must raise a
SamebitsError that begins with a name of theirs; the others must give the same bits in the simulator
and in translated PyTorch. Anything else ends the run with the seed and the traceback.
Prints the numbers of programs run, of legal ones too long to run, and of errors.
"""

from __future__ import annotations

import ast
import random
import re
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch

from samebits.errors import SamebitsError
from samebits.npu.concord.dataflow import data_flow
from samebits.npu.concord.source import module_text
from samebits.npu.concord.translate import load_concordant, translate
from samebits.npu.machine.chain import Loop, Send, Statement
from samebits.npu.machine.check import check
from samebits.npu.machine.image import read_program
from samebits.npu.machine.isa import INSTRUCTIONS
from samebits.npu.machine.program import Image, Program
from samebits.npu.simulator.simulate import simulate

FIRMWARE = Path(__file__).resolve().parents[3] / "examples" / "firmware"
MEMORY = 2**31  # beyond what the process has after its imports
SECONDS = 60.0  # of one case
VECTORS = 4000  # that chains of a program may move, for it to be run
NUMBERS = (
    *("-1", "0", "1", "2", "3", "7", "8", "16", "31", "64", "512", "513", "1000", "4095"),
    *("65535", "65536", "1048575", "1048576", "4194303", "4194304", "999999999", "10000000000"),
    *("1.5", "0x10", "1e3", "+1", "", "nan", "\u0661"),
)
WORDS = (
    *(*INSTRUCTIONS, "netq", "ivrf", "dram", "mrf", "mdram", "asvrf1", "mvrf0", "rows", "columns"),
    *("iterations", "iterations_x", "window", "window_run", "window_pitch", "requantize", ","),
    *(";", ";!", ";! input", ";! output", ";! tensor", ".native", ".depth", "class", "self"),
    *("__import__('os')", '"""', "'", "\\", "é", "\u2028", "\x00", "\x85", "x" * 65, "1x1", "0x0"),
)


# --- mutations --------------------------------------------------------------------------------


def changed_bytes(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place, statement = rng.randrange(len(found) + 1), rng.randrange(5)
        if statement == 0 and place < len(found):
            found[place] ^= 1 << rng.randrange(8)
        elif statement == 1 and place < len(found):
            found[place] = rng.randrange(256)
        elif statement == 2:
            del found[place : place + rng.choice((1, 4, 1000000))]
        elif statement == 3:
            found[place:place] = rng.randbytes(rng.choice((1, 2, 16)))
        else:
            found[place:place] = found[place : place + rng.randrange(1, 64)]
    return bytes(found)


def changed_text(text: str, rng: random.Random) -> str:
    """Lines moved, repeated, dropped and put into loops; numbers and words replaced."""
    lines = text.split("\n")
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        statement = rng.randrange(8)
        if statement == 0:
            lines[at : at + rng.choice((1, 1, 5))] = []
        elif statement == 1:
            lines.insert(at, lines[other])
        elif statement == 2:
            lines[at], lines[other] = lines[other], lines[at]
        elif statement == 3:
            low, high = sorted((at, other))
            lines[low:high] = [f"loop {rng.choice(('1', '2', '3', *NUMBERS))}", *lines[low:high]]
            lines.insert(high + 1, "end_loop")
        elif statement < 6:
            numbers = list(re.finditer(r"[0-9]+", lines[at]))
            if numbers:
                found = rng.choice(numbers)
                near = str(max(int(found[0]) + rng.choice((-2, -1, 1, 2)), 0))
                new = rng.choice((near, near, rng.choice(NUMBERS)))
                lines[at] = lines[at][: found.start()] + new + lines[at][found.end() :]
        else:
            words = lines[at].split(" ")
            words[rng.randrange(len(words))] = rng.choice(WORDS)
            lines[at] = " ".join(words)
        lines = lines or [""]
    return "\n".join(lines)


def changed_image(data: bytes, rng: random.Random) -> bytes:
    """Tensors dropped, renamed, reshaped, converted or filled with other numbers."""
    arrays = safetensors.numpy.load(data)
    name = rng.choice(sorted(arrays))
    array, statement = arrays.pop(name), rng.randrange(6)
    if statement == 1:
        arrays[rng.choice((f"{name}_", "ivrf@0", "mrf@1", "x", "", "ivrf/x", "dram@9999999"))] = (
            array
        )
    elif statement == 2:
        arrays[name] = array.reshape(rng.choice(((-1,), (1, *array.shape), array.shape[::-1])))
    elif statement == 3:
        arrays[name] = array.astype(rng.choice((np.float32, np.int16, np.bool_)))
    elif statement == 4:
        patterns = np.random.default_rng(rng.randrange(2**32)).integers(0, 2**16, array.shape)
        arrays[name] = patterns.astype(np.uint16).view(np.float16)
    elif statement == 5:
        arrays[name] = array[: rng.randrange(len(array) + 1)]
    return bytes(safetensors.numpy.save({k: np.ascontiguousarray(v) for k, v in arrays.items()}))


def write_mutated(seed: int, folder: Path) -> None:
    """case.nnp and case.safetensors."""
    rng = random.Random(seed)
    source = rng.choice(sorted(FIRMWARE.glob("*.nnp")))
    text, data = source.read_bytes(), source.with_suffix(".safetensors").read_bytes()
    kind = rng.random()
    if kind < 0.15:
        text = changed_bytes(text, rng)
    elif kind < 0.85:
        text = changed_text(text.decode(), rng).encode()
    if kind < 0.05 or kind > 0.97:
        data = changed_bytes(data, rng)
    elif kind > 0.8:
        data = changed_image(data, rng)
    (folder / "case.nnp").write_bytes(text)
    (folder / "case.safetensors").write_bytes(data)


# --- running ----------------------------------------------------------------------------------


def moved(steps: Sequence[Statement]) -> int:
    """Vectors that all chains read and write, counting a tile of the queue once."""
    total = 0
    for step in steps:
        if isinstance(step, Loop):
            total += step.count * (1 + moved(step.body))
        elif isinstance(step, Send):
            total += 1
        else:
            total += step.iterations * (step.read_count + step.write_count)
    return total


def bits(array: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(array), np.float16(np.nan), array).view(np.uint16)


def compare(program: Program, image: Image, seed: int, folder: Path) -> None:
    """The simulator's bits from PyTorch, for two samples."""
    numbers = np.random.default_rng(seed)
    inputs = {
        hint.name: numbers.standard_normal((2, *hint.shape)).astype(np.float16)
        for hint in program.hints
        if hint.kind == "input"
    }
    expected = simulate(program, image, inputs).outputs
    translate(program, image, "torch", folder / "model.py")
    found = load_concordant(folder / "model.py")(inputs)
    assert set(found) == set(expected)
    for name, array in expected.items():
        wanted = array if inputs else array[np.newaxis]
        assert found[name].shape == wanted.shape, name
        assert np.array_equal(bits(found[name]), bits(wanted)), name


def one(seed: int, folder: Path) -> str:
    """What became of a case: run, long or error."""
    write_mutated(seed, folder)
    try:
        program, image = read_program(folder / "case.nnp")
        steps = check(program, image)
        if moved(steps) <= VECTORS:
            compare(program, image, seed, folder)
            return "run"
        ast.parse(module_text(data_flow(program, image), "torch", "case.safetensors"))
        return "long"
    except SamebitsError as error:
        message = str(error)
        assert message.startswith(("case.", str(folder / "case."))), message
        assert all(" " <= c <= "~" for c in message), message
        return "error"


def run(first: int, count: int) -> dict[str, int]:
    torch.set_num_threads(1)
    totals = {"run": 0, "long": 0, "error": 0}
    with tempfile.TemporaryDirectory() as folder:
        compare(*read_program(FIRMWARE / "lstm.nnp"), 0, Path(folder))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        used = pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        for seed in range(first, first + count):
            started = time.monotonic()
            try:
                totals[one(seed, Path(folder))] += 1
            except BaseException:
                print(f"seed {seed}", file=sys.stderr)
                traceback.print_exc()
                sys.exit(1)
            spent = time.monotonic() - started
            assert spent < SECONDS, (seed, spent)
    return totals


if __name__ == "__main__":
    warnings.simplefilter("error")
    print(*run(int(sys.argv[1]), int(sys.argv[2])).values())
