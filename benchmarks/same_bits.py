"""One table of hashes: the same training run on threads, workers, instruction sets, realisations,
and after interruptions, in BFP and in float32.

resnet8 with batch-norm, dropout, momentum, weight decay and augmentation on images of CIFAR-10 (a
folder of images; without one, the bundled digits), or of a text a language model with AdamW. Exit
code 1 if two BFP hashes differ.

    make same-bits
    python benchmarks/same_bits.py --data cifar10 --steps 300 --out runs/same_bits.json
    python benchmarks/same_bits.py --data topics --steps 50 --out runs/same_bits_gpt.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch

import machine
from findings import same_bits
from samebits.data import Dataset, load
from samebits.reports.same_bits import same_bits_page

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from figures import table

FOLDER = Path(__file__).parent
SHARDS, PER_EPOCH = 4, 50
CAPS = (
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"),
    *("SAMEBITS_NATIVE_ARCH", "SAMEBITS_KERNELS"),
)
EAGER = {"SAMEBITS_KERNELS": "eager"}
COMPILED = {"SAMEBITS_KERNELS": "compiled"}
CONTEXT = 128  # of the language model


@dataclass(frozen=True)
class Experiment:
    """What is trained. memory: bytes, nearly the least that a plan of it needs."""

    name: str
    arch: str
    options: tuple[str, ...]
    batch: int
    memory: int


OF_IMAGES = Experiment(
    "resnet8 with batch-norm, dropout, momentum and augmentation",
    "dropout_net:resnet8",
    ("--augment", "flip,crop:4,zoom:75", "--momentum", "0.9", "--weight-decay", "0.0005"),
    32,
    3_700_000,
)
OF_TEXT = Experiment(
    "a language model of 4 layers of width 128, context 128, with AdamW",
    "gpt",
    ("--optimizer", "adamw", "--lr", "0.001", "--weight-decay", "0.01"),
    8,
    22_200_000,
)


@dataclass(frozen=True)
class Case:
    """One way to run the experiment. `kills`: (workers, threads) of runs that are killed first."""

    name: str
    numerics: str = "bfp"
    threads: int = 1
    workers: int = 1
    environment: dict[str, str] = field(default_factory=dict)
    kills: tuple[tuple[int, int], ...] = ()
    plan: tuple[str, ...] = ()
    device: str = "cpu"
    slow: bool = False


def caps(numerics: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Instruction-set limits: those of the native kernels, and those of torch."""
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return  # not x86, or nothing to limit
    if numerics == "bfp":
        for arch, what in (
            ("x86-64", "SSE2"),
            ("x86-64-v2", "SSE4"),
            ("x86-64-v3", "AVX2"),
            ("x86-64-v4", "AVX-512"),
        ):
            yield f"C for {arch} ({what})", {"SAMEBITS_NATIVE_ARCH": arch}
    for level, limit in (("default", "SSE41"), ("avx2", "AVX2"), ("avx512", "AVX512_CORE")):
        environment = {"ATEN_CPU_CAPABILITY": level, "ONEDNN_MAX_CPU_ISA": limit}
        yield f"torch limited to {level}", environment


def cases(experiment: Experiment) -> Iterator[Case]:
    """Every way; the slow ones run in torch, eager or compiled."""
    for numerics in ("bfp", "float32"):
        yield Case("1 thread", numerics)
        yield Case("2 threads", numerics, threads=2)
        for workers in (2, 4):
            yield Case(f"{workers} workers", numerics, workers=workers)
        yield Case("2 workers of 2 threads", numerics, threads=2, workers=2)
        for name, environment in caps(numerics):
            yield Case(name, numerics, environment=environment)
        yield Case("killed twice, resumed", numerics, kills=((1, 1), (1, 1)))
        yield Case("killed on 4 and on 2 workers, resumed on 1", numerics, kills=((4, 1), (2, 1)))
        gpus = torch.cuda.device_count()
        if gpus:
            yield Case("CUDA", numerics, device="cuda")
        if gpus > 1:
            yield Case("2 workers on CUDA", numerics, workers=2, device="cuda")
    local = ("--plan", "auto", "--plan-device", "accelerator-core")
    yield Case("plan of a small accelerator core", plan=local)
    yield Case("plan of a small accelerator core, 2 workers", workers=2, plan=local)
    yield Case("weight gradients in a second thread", plan=(*local, "--backward", "paired"))
    least = ("--plan", "auto", "--memory-budget", str(experiment.memory))
    yield Case("plan of nearly the least memory", plan=least)
    yield Case("eager torch, 1 thread", environment=EAGER, slow=True)
    yield Case("eager torch, 2 threads", threads=2, environment=EAGER, slow=True)
    yield Case("eager torch, 2 workers", workers=2, environment=EAGER, slow=True)
    yield Case("compiled torch, 1 thread", environment=COMPILED, slow=True)
    yield Case("compiled torch, 2 workers", workers=2, environment=COMPILED, slow=True)
    for name, environment in caps("float32"):
        yield Case(f"eager, {name}", environment={**environment, **EAGER}, slow=True)


def possible(case: Case) -> str | None:
    """Why a case cannot run on this machine, or None."""
    flags = machine.processor()[1]
    arch = case.environment.get("SAMEBITS_NATIVE_ARCH", "")
    level = case.environment.get("ATEN_CPU_CAPABILITY", "")
    if (arch == "x86-64-v4" or level == "avx512") and "avx512f" not in flags:
        return "this processor has no AVX-512"
    if (arch == "x86-64-v3" or level == "avx2") and "avx2" not in flags:
        return "this processor has no AVX2"
    return None


def text_of(data: str, work: Path) -> Path:
    """As many of the first bytes of a text as an epoch takes; topics: Python's documentation."""
    documentation = "\n".join(topics[name] for name in sorted(topics)).encode()
    raw = documentation if data == "topics" else Path(data).read_bytes()
    trained = (OF_TEXT.batch * PER_EPOCH - 1) * (CONTEXT // 2) + CONTEXT + 1
    path = work / "text.txt"
    path.write_bytes(raw[: trained * 10 // 9 + 1])
    return path


def archive(data: str, work: Path) -> Path:
    """The first training images of `data` and some test images, as one file that loads fast."""
    whole: Dataset = load(data, limit=-(-OF_IMAGES.batch * PER_EPOCH // 10))
    train = torch.arange(len(whole.train_labels))[: OF_IMAGES.batch * PER_EPOCH]
    test = torch.arange(0, len(whole.test_labels), max(1, len(whole.test_labels) // 200))
    scale = 255 // whole.peak
    path = work / "images.npz"
    np.savez(
        path,
        x_train=(whole.train_images[train] * scale).numpy(),
        y_train=whole.train_labels[train].numpy(),
        x_test=(whole.test_images[test] * scale).numpy(),
        y_test=whole.test_labels[test].numpy(),
    )
    return path


def start(
    case: Case,
    experiment: Experiment,
    data: Path,
    out: Path,
    steps: int,
    workers: int,
    threads: int,
) -> subprocess.Popen[str]:
    """The experiment in processes of its own."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    command = [sys.executable, *(launcher if workers > 1 else []), "-m", "samebits", "train"]
    command += ["--data", str(data), "--arch", experiment.arch, *experiment.options]
    command += ["--json", "--resume"]
    command += ["--numerics", case.numerics, "--epochs", str(steps // PER_EPOCH)]
    command += [
        "--batch",
        str(experiment.batch),
        "--shards",
        str(SHARDS),
        "--threads",
        str(threads),
    ]
    command += ["--checkpoint-every", "10" if case.kills else "0", "--out", str(out)]
    command += ["--device", case.device, *case.plan]
    environment = {k: v for k, v in os.environ.items() if k not in CAPS} | case.environment
    environment.setdefault(
        "OMP_WAIT_POLICY", "PASSIVE"
    )  # more threads than idle cores: do not spin
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=FOLDER, env=environment, text=True, **pipes)  # type: ignore[call-overload]


def kill(process: subprocess.Popen[str], out: Path, checkpoints: int) -> None:
    """SIGKILL to the whole run once it has written so many checkpoints."""
    seen: set[str] = set()
    before = {path.name for path in out.glob("checkpoint-*")}
    while process.poll() is None and len(seen) < checkpoints:
        seen |= {path.name for path in out.glob("checkpoint-*")} - before
        time.sleep(0.02)
    workers = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    for pid in (*map(int, workers.stdout.split()), process.pid):
        if process.poll() is None:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
    process.communicate()


def run(case: Case, experiment: Experiment, data: Path, work: Path, steps: int) -> dict[str, Any]:
    """The result of one case."""
    out = work / re.sub(r"\W+", "-", f"{case.numerics} {case.name}")
    rng = random.Random(case.name)
    began = time.perf_counter()
    for workers, threads in case.kills:
        kill(start(case, experiment, data, out, steps, workers, threads), out, rng.randint(2, 8))
    process = start(case, experiment, data, out, steps, case.workers, case.threads)
    text, errors = process.communicate()
    if process.returncode:
        sys.exit(f"{case.numerics}, {case.name}: {errors}")
    result = json.loads(text)
    return {
        "numerics": case.numerics,
        "case": case.name,
        "threads": case.threads,
        "workers": case.workers,
        "environment": case.environment,
        "sha256": result["sha256"],
        "accuracy": result.get("accuracy"),
        "step_seconds_median": result["step_seconds_median"],
        "wire_bytes_per_step": result["wire_bytes_per_step"],
        "seconds": round(time.perf_counter() - began, 1),
    }


def hashes(rows: list[dict[str, Any]], numerics: str) -> dict[str, str]:
    """Case -> SHA-256."""
    return {row["case"]: row["sha256"] for row in rows if row["numerics"] == numerics}


def main() -> None:
    """Run every case, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", default="digits", help="a folder of images, .npz, digits, a .txt, topics"
    )
    parser.add_argument("--steps", type=int, default=300, help=f"a multiple of {PER_EPOCH}")
    parser.add_argument("--exponents", default="tensor", help="of BFP: tensor, row or row-shift")
    parser.add_argument("--only", default="", help="cases whose text holds this regular expression")
    parser.add_argument("--fast", action="store_true", help="leave out kernels in torch")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write, .md and .html")
    given = parser.parse_args()
    of_text = given.data == "topics" or given.data.endswith(".txt")
    experiment = OF_TEXT if of_text else OF_IMAGES
    if given.exponents != "tensor":
        if not given.only.startswith("^bfp"):
            parser.error("--exponents: expected --only '^bfp', as float32 has none")
        options = ("--exponents", given.exponents)
        experiment = replace(experiment, options=(*experiment.options, *options))
    what = (
        f"{given.steps} steps of {experiment.name} on {given.data}, in one process or several; "
        f"batch {experiment.batch} in {SHARDS} shards."
    )
    rows: list[dict[str, Any]] = []
    skipped = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        data = (text_of if of_text else archive)(given.data, work)
        for case in cases(experiment):
            if not re.search(given.only, f"{case.numerics} {case.name}"):
                continue
            if (reason := possible(case)) or (case.slow and given.fast):
                skipped[f"{case.numerics} {case.name}"] = reason or "left out by --fast"
                continue
            rows.append(run(case, experiment, data, work, given.steps))
            row = rows[-1]
            print(
                f"{case.numerics}, {case.name}: {row['sha256'][:16]} ({row['seconds']} s)",
                file=sys.stderr,
                flush=True,
            )
            report = {
                "data": given.data,
                "steps": given.steps,
                "machine": machine.facts(),
                "skipped": skipped,
                "rows": rows,
            }
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(report, indent=1))
            given.out.with_suffix(".md").write_text(table(same_bits(report).tables["ways"]) + "\n")
            page = same_bits_page(
                hashes(rows, "bfp"),
                hashes(rows, "float32"),
                run=what,
                machine=report["machine"],
                skipped=skipped,
            )
            given.out.with_suffix(".html").write_text(page)
    print(table(same_bits({"rows": rows}).tables["ways"]))
    for name, reason in skipped.items():
        print(f"{name}: {reason}", file=sys.stderr)
    sys.exit(len({row["sha256"] for row in rows if row["numerics"] == "bfp"}) > 1)


if __name__ == "__main__":
    main()
