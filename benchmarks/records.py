"""Small records of what benchmarks found: docs/records, from which pages take their figures.

    python benchmarks/records.py inference runs/bench_inference.json

writes docs/records/inference.json: the command, the date, the machine, and `figures` by name, each
rounded as pages show it. `make docs` then writes the pages anew (tools/figures.py).
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from samebits.files import write_atomically

RECORDS = Path(__file__).parents[1] / "docs" / "records"
Figure = str | int | float
Figures = dict[str, Figure]


def slug(name: str) -> str:
    """A name of a case as a key: 2 workers is 2-workers."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")


def same_bits(found: dict[str, Any]) -> Figures:
    """The hash of every way, and how many different ones there are."""
    figures: Figures = {}
    for numerics in ("bfp", "float32"):
        rows = [row for row in found["rows"] if row["numerics"] == numerics]
        figures |= {f"{numerics}.{slug(row['name'])}": row["sha256"][:12] for row in rows}
        figures[f"{numerics}.different"] = len({row["sha256"] for row in rows})
    return figures


def inference(found: dict[str, Any]) -> Figures:
    """Microseconds by contender, and the share of inputs for which outputs differ, in percent."""
    contenders = {
        "ours int8": "ours",
        "onnxruntime int8 QDQ": "onnxruntime",
        "onnxruntime float32": "onnxruntime-float",
    }
    backends = {"onnxruntime": "plain", "onnxruntime-optimized": "optimized"}
    figures: Figures = {}
    for each in found["results"]:
        model = each["model"]
        for name, seconds in each["seconds"].items():
            figures[f"{model}.{contenders[name]}.us"] = round(1e6 * seconds)
        shares = {
            verdict["backend"]: round(100 * verdict["samples"] / verdict["sample_count"])
            for verdict in each["verdicts"]
            if verdict["skipped"] is None
        }
        for backend, name in backends.items():
            if backend in shares:
                figures[f"{model}.differing.{name}"] = shares[backend]
        ours = [shares[name] for name in ("torch", "c", "onnxruntime-integer") if name in shares]
        if ours:
            figures[f"{model}.differing.ours"] = max(ours)
    return figures


def train(found: dict[str, Any]) -> Figures:
    """Times of a step to float32's on one thread, and bytes that live between steps."""
    figures: Figures = {}
    for each in found["results"]:
        model = each["model"]
        for variant, measured in each["time"]["1"]["variants"].items():
            figures[f"{model}.{variant}.ratio"] = f"{measured['ratio']['median']:.2f}"
        for variant, memory in each["memory"].items():
            kept = memory["persistent_bytes_per_parameter"]
            figures[f"{model}.{variant}.bytes"] = f"{kept:.2f}"
    return figures


def evidence(found: dict[str, Any]) -> Figures:
    """Test accuracy in percent, mean over the seeds, and their number."""
    figures: Figures = {}
    for each in found["lines"]:
        for row in each["table"]:
            if row["accuracy"] is not None:
                key = f"{each['line']}.{slug(row['numerics'])}"
                figures[key] = f"{100 * row['accuracy']:.2f}"
                figures[f"{each['line']}.seeds"] = row["seeds"]
    return figures


def edge(found: dict[str, Any]) -> Figures:
    """Microseconds by contender, and the ratio of each one's to those of the generated C."""
    contenders = {
        "ours, native": "ours",
        "LiteRT int8": "litert",
        "onnxruntime int8": "onnxruntime",
    }
    figures: Figures = {}
    for each in found["results"]:
        for name, key in contenders.items():
            if name in each["seconds"]:
                seconds = each["seconds"][name]
                ratio = seconds / each["seconds"]["ours, native"]
                figures[f"{each['net']}.{key}.us"] = f"{1e6 * seconds:.1f}"
                figures[f"{each['net']}.{key}.ratio"] = f"{ratio:.2f}"
    return figures


def cortex(found: dict[str, Any]) -> Figures:
    """Millions of instructions of an inference, and the ratio to CMSIS-NN's."""
    figures: Figures = {}
    for row in found["rows"]:
        key = f"{row['network']}.{row['board'].removeprefix('cortex-')}"
        ours = row["ours"]["instructions"]
        figures[f"{key}.ours"] = f"{ours / 1e6:.3f}"
        if "cmsis-nn" in row:
            theirs = row["cmsis-nn"]["instructions"]
            figures[f"{key}.cmsis-nn"] = f"{theirs / 1e6:.3f}"
            figures[f"{key}.ratio"] = f"{ours / theirs:.3f}"
    return figures


# The benchmark of each record, its command, and how its figures follow from what it found.
KINDS: dict[str, tuple[str, Callable[[dict[str, Any]], Figures]]] = {
    "cortex": ("benchmarks/bench_cortex.py --cmsis-nn FOLDER", cortex),
    "edge": ("benchmarks/bench_edge.py", edge),
    "evidence": ("benchmarks/bench_evidence.py --data data --out runs/evidence", evidence),
    "inference": ("benchmarks/bench_inference.py --samples 100", inference),
    "same_bits": ("benchmarks/same_bits.py --data cifar10 --steps 300", same_bits),
    "train": ("benchmarks/bench_train.py", train),
}


def record(kind: str, found: dict[str, Any]) -> dict[str, Any]:
    """The record of what a benchmark found."""
    command, figures = KINDS[kind]
    return {
        "command": f".venv/bin/python {command}",
        "measured": found["machine"]["date"],
        "machine": found["machine"],
        "figures": figures(found),
    }


def main() -> None:
    """Write one record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("found", type=Path, help="the JSON that the benchmark wrote")
    options = parser.parse_args()
    made = record(options.kind, json.loads(options.found.read_text(encoding="utf-8")))
    path = RECORDS / f"{options.kind}.json"
    write_atomically(path, (json.dumps(made, indent=2) + "\n").encode())
    print(f"written: {path}; now: make docs")


if __name__ == "__main__":
    main()
