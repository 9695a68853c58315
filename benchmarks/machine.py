"""Facts of the machine a measurement was made on. Run it to print them as JSON."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

# Instruction sets that decide how fast integer and floating-point products run.
FLAGS = (
    *("sse4_1", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx_vnni_int8"),
    *("avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)


def facts() -> dict[str, object]:
    """One JSON object: processor, memory, system, Python, torch, compiler, GPUs, load."""
    model, flags = processor()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpu": model,
        "cpu_flags": flags,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),  # what torch's kernels use
        "cores": os.cpu_count(),
        "cores_usable": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "compiler": compiler(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def write_record(path: Path, **fields: object) -> None:
    """Write a benchmark's findings beside the machine's facts, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": facts(), **fields}, indent=2))


def processor() -> tuple[str, list[str]]:
    """(model name, those of FLAGS it has). An unknown system gives what `platform` knows."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        fields: dict[str, str] = {}
        for line in info.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())  # the first core stands for all
        present = fields.get("flags", fields.get("Features", "")).split()
        name = fields.get("model name", platform.machine())
        return name, [flag for flag in FLAGS if flag in present]
    if sys.platform == "darwin":
        name = output(["sysctl", "-n", "machdep.cpu.brand_string"])
        return name or platform.machine(), []
    return platform.processor() or platform.machine(), []


def usable_cores() -> int | None:
    """Cores this process may run on, where the system says so."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def compiler() -> str | None:
    """First line of the C compiler's version; None where there is no compiler."""
    command = shlex.split(os.environ.get("CC", "cc"))
    lines = output([*command, "--version"]).splitlines()
    return lines[0] if lines else None


def output(command: list[str]) -> str:
    """What a command prints; the empty text when it is missing or fails."""
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


if __name__ == "__main__":
    print(json.dumps(facts(), indent=2))
