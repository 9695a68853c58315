"""`samebits demo`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.options import AsJson, Quiet, Threads, whole
from samebits.cli.output import RunProgress, show, working
from samebits.recipes.training import SEEDS


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the runs, the C and report.html.")] = Path(
        "samebits-demo"
    ),
    seed: Annotated[int, whole("Seed of everything that is random.", 0, SEEDS)] = 0,
    threads: Threads = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train on handwritten digits, quantize, compile and verify; write report.html.

    The BFP run is repeated within a memory budget, and with the plain PyTorch kernels on one
    thread: its hash must be the same. Its model is exported to C and run on every backend at hand,
    as is a float model with tanh, GELU and sigmoid after quantization, and an LSTM that reads the
    images row by row, quantized gate by gate: no output may differ. (onnxruntime computes these two
    in float32 and is compared for information.) Last, the BFP model becomes firmware of the neural
    processor, which is simulated and translated into software with the same bits.
    """
    drawn = RunProgress("")
    with working(quiet, as_json, drawn):
        from samebits import demo

        result = demo.run(out, seed, threads, (lambda title: None) if quiet else drawn.titled)
    show(result, as_json)
    if not quiet:
        print(f"report: {result.page}", file=sys.stderr)
    raise typer.Exit(0 if result else 1)
