"""Instructions of an inference on aarch64: portable C, NEON, and NEON with dot products.

    python benchmarks/bench_aarch64.py --out runs/aarch64.json

The networks are those of tests/edge_nets.py. The emulator's user mode logs every instruction one
by one (`-singlestep -d exec,nochain`); the count of one inference is the difference of runs with
two inputs and with one, as everything else is the same. The codes are compared with the
interpreter's. Times are those of a real machine only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from edge_nets import NETS, edge_net
from machine import write_record
from samebits.codegen.packaging.package import write_package
from samebits.codegen.run.execute import Executable, build, execute
from samebits.codegen.run.targets import TARGETS
from samebits.ir.graph import Graph
from samebits.ir.interpreter import run
from samebits.verification.inputs import random_codes

WAYS = {
    "portable": ("-O2", "-U__ARM_NEON"),
    "NEON": ("-O2",),
    "with SDOT": ("-O2", "-march=armv8.2-a+dotprod"),
}
SMALL = ("ds-cnn", "streaming", "autoencoder")  # a log has a line for every instruction


def logged(program: Executable, data: bytes, folder: Path) -> int:
    """Instructions of one run of the program."""
    data_file, pipe = folder / "data", folder / "log"
    data_file.write_bytes(data)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    command = [*program.target.runner, "-singlestep", "-d", "exec,nochain", "-D", str(pipe)]
    with data_file.open("rb") as given:
        started = subprocess.Popen(
            [*command, str(program.path)], stdin=given, stdout=subprocess.DEVNULL
        )
        counted = subprocess.run(
            ["grep", "-c", "^Trace"], stdin=pipe.open("rb"), capture_output=True, check=True
        )
    if started.wait():
        raise SystemExit(f"{program.target.name}: the program failed under the emulator")
    return int(counted.stdout)


def count(graph: Graph, flags: tuple[str, ...], folder: Path) -> int:
    """Instructions of one inference of the package; its codes are checked."""
    write_package(graph, folder / "c")
    target = TARGETS["aarch64"]
    target = replace(target, flags=(*target.flags, *flags))
    program = build(folder / "c", target, folder / "build")
    two = random_codes(graph, 2)
    one = [codes[: len(codes) // 2] for codes in two]
    expected = run(graph, one)
    if not all(map(np.array_equal, execute(program, one), expected)):
        raise SystemExit(f"{graph.name}: codes differ from the interpreter's")
    first, second = (logged(program, program.interface.pack(x)[0], folder) for x in (one, two))
    return second - first


def main() -> None:
    """Count, print a line for each network, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", nargs="*", choices=list(NETS), default=list(SMALL))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    reason = TARGETS["aarch64"].unavailable()
    if reason:
        sys.exit(reason)
    rows = []
    for name in given.nets:
        graph = edge_net(name)[1].integer
        counts = {}
        for way, flags in WAYS.items():
            with tempfile.TemporaryDirectory() as folder:
                counts[way] = count(graph, flags, Path(folder))
        rows.append({"network": name, "instructions": counts})
        print(name, ", ".join(f"{way} {n:,}" for way, n in counts.items()), flush=True)
    if given.out:
        write_record(given.out, rows=rows)


if __name__ == "__main__":
    main()
