"""One network as firmware: native dimensions, mantissas, partial re-quantization, translations.

    python benchmarks/verify_firmware.py MODEL --data digits [--images 50] [--out FILE]

For each setting: test accuracy through concordant software, and how many outputs differ from the
simulator's on the first images. The translations are compared with each other on the whole test set
(--others: on its first images only). Exit code 1 if a bit differs.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from machine import write_record
from samebits.data import load
from samebits.model import load as load_model
from samebits.model import load_firmware
from samebits.npu.compiler.lower import lower_real_graph
from samebits.npu.concord.translate import SUFFIXES
from samebits.npu.machine.image import write_program
from samebits.verification.accuracy import correct, firmware_images
from samebits.verification.backends.concordant import Concordant
from samebits.verification.backends.npu import Npu
from samebits.verification.compare import Verdict, compare
from samebits.verification.inputs import joined

NATIVE, MANTISSAS = (8, 16, 64, 128), (15, 8, 5, 3)
PIECE = 5  # images that one worker simulates


def simulated(program: Path, images: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The simulator's outputs for some images."""
    return Npu().run(load_firmware(program), [images])


def measure(
    program: Path,
    data: Any,
    count: int,
    others: int | None,
    kinds: list[str],
    pool: ProcessPoolExecutor,
) -> dict[str, Any]:
    """One setting: accuracy, and a verdict for each translation."""
    firmware = load_firmware(program)
    (images,) = firmware_images(firmware, data)
    pieces = np.array_split(images[:count], -(-count // PIECE))
    simulating = [pool.submit(simulated, program, piece) for piece in pieces]
    found = {
        kind: Concordant(kind).run(firmware, [images[: None if kind == kinds[0] else others]])
        for kind in kinds
    }
    expected = joined([future.result() for future in simulating])
    ports = firmware.interface
    verdicts: dict[str, Verdict] = {}
    for kind, outputs in found.items():
        some = [array[:count] for array in outputs]
        verdicts[kind] = compare(kind, ports, expected, some)
        if kind == kinds[0]:
            continue
        compared = [array[: len(outputs[0])] for array in found[kinds[0]]]
        verdicts[f"{kind}, {len(outputs[0])} images, against {kinds[0]}"] = compare(
            kind, ports, compared, outputs
        )
    return {
        "accuracy": correct(found[kinds[0]], data) / len(data.test_labels),
        "verdicts": {name: verdict.to_dict() for name, verdict in verdicts.items()},
    }


def main() -> None:
    """Measure every setting and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--images", type=int, default=50, help="through the simulator")
    parser.add_argument("--others", type=int, help="images through all translations but the first")
    parser.add_argument("--native", type=int, nargs="+", default=NATIVE)
    parser.add_argument("--mantissa", type=int, nargs="+", default=MANTISSAS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--name", help="of the model in tables")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model, data = load_model(options.model), load(options.data)
    kinds = [kind for kind in SUFFIXES if Concordant(kind).unavailable() is None]
    print(f"{len(data.test_labels)} images through {', '.join(kinds)}", flush=True)
    settings = list(itertools.product(options.native, options.mantissa, (False, True)))
    rows = []
    with (
        tempfile.TemporaryDirectory() as work,
        ProcessPoolExecutor(options.workers) as pool,
        Progress() as progress,
    ):
        path = Path(work) / "model.nnp"
        for native, mantissa, requantize in progress.track(settings, description="settings"):
            start = time.perf_counter()
            program, image = lower_real_graph(model.real, native, mantissa, requantize=requantize)
            write_program(path, program, image)
            row = measure(path, data, options.images, options.others, kinds, pool)
            row |= {"native": native, "mantissa": mantissa, "requantize": requantize}
            rows.append({**row, "seconds": time.perf_counter() - start})
            verdicts = row["verdicts"].values()
            differing, total = (sum(v[key] for v in verdicts) for key in ("differing", "total"))
            progress.console.print(
                f"N {native:3} M {mantissa:2} requantize {int(requantize)}: accuracy "
                f"{100 * row['accuracy']:.2f} %, {differing} of {total} outputs differ "
                f"({rows[-1]['seconds']:.0f} s)",
                highlight=False,
            )
    if options.out is not None:
        name = options.name or options.model.stem
        write_record(options.out, name=name, kinds=kinds, rows=rows)
    sys.exit(any(v["differing"] for row in rows for v in row["verdicts"].values()))


if __name__ == "__main__":
    main()
