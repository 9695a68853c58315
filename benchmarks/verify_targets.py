"""One trained or quantized model on every target, compiler and optimization level.

    python benchmarks/verify_targets.py MODEL --data digits [--samples N] [--out FILE]

Prints, for each, how many logits differ from the reference on the test images, and the seconds
(building included). Exit code 1 if a bit differs where equality is promised.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from machine import write_record
from samebits.codegen.run.targets import SANITIZERS, TARGETS, host, valgrind
from samebits.data import load
from samebits.errors import SamebitsError
from samebits.model import load as load_model
from samebits.verification.accuracy import correct, image_codes
from samebits.verification.backend import Backend
from samebits.verification.backends.generated_c import GeneratedC
from samebits.verification.backends.onnxruntime import BACKENDS as RUNTIMES
from samebits.verification.compare import compare
from samebits.verification.registry import backend_named
from samebits.verification.run import cause

LEVELS = (("-O0",), ("-O2",), ("-O3",), ("-Os",), ("-O3", "-march=native"), SANITIZERS)
VALGRIND_SAMPLES = 4


def contenders(exact: bool) -> list[tuple[str, Backend]]:
    """Every way to compute the model at hand, by a name for the table."""
    found: list[tuple[str, Backend]] = [("torch", backend_named("torch"))]
    if exact:
        found.append(("training", backend_named("training")))
    for compiler in ("gcc", "clang"):
        for flags in LEVELS:
            label = "sanitizers" if flags is SANITIZERS else " ".join(flags)
            found.append((f"C {compiler} {label}", GeneratedC(host(compiler, *flags))))
    found.append(("C valgrind", GeneratedC(valgrind())))
    found += [(name, GeneratedC(name)) for name in TARGETS if name != "c"]
    return found + [(name, backend_named(name)) for name in RUNTIMES]


def main() -> None:
    """Verify and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--name", help="of the model in tables")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model, data = load_model(options.model), load(options.data)
    codes = image_codes(model, data, options.samples)
    start = time.perf_counter()
    expected = backend_named("reference").run(model, codes)
    count = len(codes[0])
    print(f"reference: {count} images, {time.perf_counter() - start:.1f} s")
    print(f"accuracy {100 * correct(expected, data) / count:.2f} %")
    rows, broken = [], False
    for name, backend in contenders(model.deployed is not None):
        start = time.perf_counter()
        reason = backend.unavailable()
        used = VALGRIND_SAMPLES if name == "C valgrind" else count
        row: dict[str, object] = {"backend": name, "samples": used}
        try:
            if reason is None:
                outputs = backend.run(model, [c[:used] for c in codes])
                verdict = compare(name, model.integer, [e[:used] for e in expected], outputs)
                why = cause(model, backend.name)
                row |= {"differing": verdict.differing, "of": verdict.total, "cause": why}
                row |= {"largest": verdict.largest, "sha256": verdict.sha256}
                broken |= verdict.differing > 0 and not why
        except SamebitsError as error:
            reason = str(error)
        row |= {"skipped": reason, "seconds": round(time.perf_counter() - start, 2)}
        rows.append(row)
        text = f"skipped: {reason}" if reason else f"{row['differing']} of {row['of']} differ"
        print(f"{name:32} {text}  ({row['seconds']} s)", flush=True)
    if options.out is not None:
        name = f"{options.name or options.model.stem} ({expected[0].size:,})"
        accuracy = correct(expected, data) / count
        write_record(options.out, name=name, accuracy=accuracy, results=rows)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
