"""`samebits quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.cli.options import (
    EXCERPT,
    Arch,
    AsJson,
    GivenContract,
    Page,
    Quiet,
    SampleReading,
    file_ending,
    reads,
)
from samebits.cli.output import print_json, working
from samebits.recipes import Calibration, FineTuning, Formats, Recurrence


@reads(EXCERPT)
def quantize_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A float network: an .onnx, .pt2 or .tflite file, a training folder, or "
            "file.py:callable.",
        ),
    ],
    calibration: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="SAMPLES",
            help="An .npz file with an array [samples, ...] for each input, digits, a folder of "
            "images or recordings, with classes or without, or a table.",
        ),
    ],
    out: Annotated[Path, file_ending(".onnx", "The quantized network to write.")],
    formats: Formats,
    calibrating: Calibration,
    recurrence: Recurrence,
    tuning: FineTuning,
    reading: SampleReading,
    finetune: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Train the quantized network on in its own integers: digits, or a folder or file "
            "of data for training.",
        ),
    ] = None,
    contract: GivenContract = None,
    report: Page = None,
    arch: Arch = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **part: Any,
) -> None:
    """Quantize a float network after training; writes standard QDQ ONNX.

    A network with recurrent layers becomes one time step, with its states as last inputs and
    outputs, or takes whole sequences: see --sequence. One whose states are inputs and outputs of
    its own, as voice-activity detectors have them, becomes a step: see --state.

    Where the integers lose the network, the tensors that lose it get more bits; a warning says what
    is left to do. With --floor nothing is written then, and the exit code is 1.
    """
    with working(quiet, as_json):
        from samebits import api

        samples, data = api.read_each(reading, calibration, finetune)
        tuned = (tuning,) if finetune is not None or tuning.chosen() else ()
        net = api.quantize(
            api.source_of(model, arch, part),
            samples,
            *(formats, calibrating, recurrence, *tuned),
            finetune=data,
            contract=contract,
        )
        net.save(out)
        if report is not None:
            net.report(saved=out).save(report)
    if as_json:
        found = net.quantization.to_dict() if net.quantization is not None else {}
        fidelity = None if net.fidelity is None else net.fidelity.to_dict()
        notes = list(net.notes)
        print_json({"model": model, "out": str(out), "notes": notes, "fidelity": fidelity, **found})
    else:
        print(net)
        for path in filter(None, (out, report)):
            print(f"written: {path}")
