"""Small records of what benchmarks and tests found: docs/records, from which pages take figures.

    python benchmarks/records.py inference runs/bench_inference.json
    python benchmarks/records.py exponents runs/exponents.xml

writes docs/records/inference.json: the command, the date, the machine, and `figures` and `tables`
by name (findings.py), rounded as pages show them. Tests give a file of `pytest --junitxml`, whose
properties (`record_property`) hold JSON. `make docs` then writes the pages anew
(tools/figures.py).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import findings
import machine
from findings import Findings, Found
from samebits.files import write_atomically

RECORDS = Path(__file__).parents[1] / "docs" / "records"
PYTEST = "-m pytest"

# The command of each record, and how its figures and tables follow from what it wrote.
KINDS: dict[str, tuple[str, Callable[..., Findings]]] = {
    "aarch64": ("benchmarks/bench_aarch64.py", findings.aarch64),
    "accuracy": (
        "benchmarks/bench_accuracy.py --data cifar10 --limit 2000 --only float32 int8-tensor int4",
        findings.accuracy,
    ),
    "audio": ("benchmarks/bench_audio.py", findings.audio),
    "batchnorm_inverse": ("benchmarks/batchnorm_inverse.py", findings.batchnorm_inverse),
    "concord": ("benchmarks/bench_concord.py", findings.concord),
    "conformance": (f"{PYTEST} tests/onnx/reader/test_node_suite.py", findings.conformance),
    "cortex": ("benchmarks/bench_cortex.py --cmsis-nn FOLDER", findings.cortex),
    "cortex_channel": (
        "benchmarks/bench_cortex.py --cmsis-nn FOLDER --per-channel --nets autoencoder",
        findings.cortex,
    ),
    "deployed": (
        "benchmarks/bench_deployed.py --images cifar.npz --recordings fsdd",
        findings.deployed,
    ),
    "differences": (
        "benchmarks/bench_inference.py --models smooth resnet8 mobilenetv2 --samples 100",
        findings.differences,
    ),
    "edge": ("benchmarks/bench_edge.py", findings.edge),
    "evidence": ("benchmarks/bench_evidence.py --data data", findings.evidence),
    "evidence_vit": (
        "benchmarks/bench_evidence.py --data data --only cifar10-vit",
        findings.seeds,
    ),
    "exponents": (
        f"{PYTEST} tests/train/test_rows_hold.py tests/train/test_shifts.py "
        "tests/train/test_distances.py",
        findings.exponents,
    ),
    "firmware": ("benchmarks/verify_firmware.py MODEL", findings.firmware),
    "formats": (
        "benchmarks/bench_evidence.py --only digits-cnn-sgd "
        "--numerics float32,mxint8,msfp16,msfp14,msfp13,msfp12",
        findings.formats,
    ),
    "fuzz": ("-m fuzzing", findings.fuzz),
    "generate": ("benchmarks/bench_generate.py --tokens 1000", findings.generate),
    "gpt": ("benchmarks/bench_gpt.py", findings.gpt),
    "gpt_rows": ("benchmarks/bench_gpt.py --exponents row", findings.gpt),
    "gpu": (f"{PYTEST} -n 6 tests/device", findings.suite),
    "gpu_kernels": ("benchmarks/gpu_kernels.py", findings.gpu_kernels),
    "inference": ("benchmarks/bench_inference.py", findings.inference),
    "losses": ("benchmarks/bench_losses.py", findings.losses),
    "lstm": ("benchmarks/bench_lstm.py", findings.lstm),
    "lstm_long": (f"{PYTEST} tests/quantization/test_lstm.py -k ten_thousand", findings.lstm_long),
    "meaning": ("benchmarks/bench_meaning.py cifar10 fsdd", findings.meaning),
    "networks": (f"{PYTEST} tests/quantization/test_torchvision.py", findings.networks),
    "numerics": ("tools/draw_numerics.py", findings.numerics),
    "operation_times": ("benchmarks/bench_recompute.py --times", findings.operation_times),
    "plan_times": (f"{PYTEST} tests/recompute/plan/test_large.py", findings.plan_times),
    "quality": ("benchmarks/bench_quality.py PACKAGES DATA", findings.quality),
    "rates": (
        "benchmarks/bench_tables.py --tables diabetes --seeds 20 --lr RATE",
        findings.rates,
    ),
    "recompute": ("benchmarks/bench_recompute.py --compile", findings.recompute),
    "same_bits": ("benchmarks/same_bits.py --data cifar10 --steps 300", findings.same_bits),
    "same_bits_rows": (
        "benchmarks/same_bits.py --data topics --steps 50 --exponents row --fast --only ^bfp",
        findings.same_bits,
    ),
    "same_bits_gpt": (
        "benchmarks/same_bits.py --data topics --steps 50 --only ^bfp",
        findings.same_bits,
    ),
    "ship": ("benchmarks/bench_ship.py --python PYTHON", findings.ship),
    "spoken": ("benchmarks/bench_spoken.py fsdd", findings.spoken),
    "suite": (f"{PYTEST} -n 2 -m 'not slow'", findings.suite),
    "tables": ("benchmarks/bench_tables.py", findings.tables),
    "targets": ("benchmarks/verify_targets.py MODEL", findings.targets),
    "tflite": ("benchmarks/bench_tflite.py", findings.tflite),
    "torchvision": ("benchmarks/bench_torchvision.py", findings.torchvision),
    "train": ("benchmarks/bench_train.py --threads 1 --repetitions 6", findings.train),
    "train_amx": (
        "benchmarks/bench_train.py --models mlp resnet18 vit --threads 1",
        findings.train,
    ),
    "transformers": ("benchmarks/bench_accuracy.py --only vit bert", findings.accuracy),
    "versions": ("tools/test_versions.py", findings.versions),
    "widths": ("benchmarks/bench_widths.py --nets mlp", findings.widths),
    "workers": ("benchmarks/bench_workers.py", findings.workers),
}


def read(path: Path) -> Found:
    """What a benchmark wrote, the tallies of fuzzing, or pytest's XML: counts, properties."""
    if path.suffix != ".xml":
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        return {"machine": here(), "tallies": found} if isinstance(found, list) else found
    root = ElementTree.parse(path).getroot()
    whole = root if root.tag == "testsuite" else root[0]
    counts = {name: int(whole.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    wrong = counts.pop("failures") + counts.pop("errors")
    passed = counts.pop("tests") - wrong - counts["skipped"]
    cases = list(whole.iter("testcase"))
    return {
        "machine": here() | {"date": whole.get("timestamp", here()["date"])[:10]},
        "counts": {"passed": passed, "failed": wrong, **counts},
        "total_seconds": float(whole.get("time", 0)),
        "seconds": {case.get("name"): float(case.get("time", 0)) for case in cases},
        "properties": {
            each.get("name"): json.loads(each.get("value", "null"))
            for case in cases
            for each in case.iter("property")
        },
    }


def here() -> dict[str, Any]:
    """The facts of this machine, for files that tell none; of its load then nothing is known."""
    return {name: fact for name, fact in machine.facts().items() if name != "load_average"}


def check(kind: str, found: Found) -> None:
    """Raises SystemExit where tests failed, of which a record would lack the figures."""
    failed = found.get("counts", {}).get("failed", 0)
    if failed and not kind.startswith("suite"):
        raise SystemExit(f"{kind}: expected tests that pass, found {failed} that failed")


def record(kind: str, *found: Found) -> dict[str, Any]:
    """The record of what a benchmark found, in one run or in several."""
    command, of = KINDS[kind]
    made = of(*found)
    return {
        "command": f".venv/bin/python {command}",
        "measured": found[0]["machine"]["date"],
        "machine": found[0]["machine"],
        "figures": made.figures,
        "tables": made.tables,
    }


def main() -> None:
    """Write one record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("found", type=Path, nargs="+", help="what the benchmark wrote")
    options = parser.parse_args()
    found = [read(path) for path in options.found]
    for each in found:
        check(options.kind, each)
    made = record(options.kind, *found)
    path = RECORDS / f"{options.kind}.json"
    write_atomically(path, (json.dumps(made, indent=2) + "\n").encode())
    print(f"written: {path}; now: make docs")


if __name__ == "__main__":
    main()
