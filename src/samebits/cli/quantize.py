"""`samebits quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.cli.options import (
    EXCERPT,
    SAMPLE_READING,
    Arch,
    AsJson,
    Floor,
    GivenContract,
    Page,
    Quiet,
    file_ending,
    reads,
    real,
    whole,
)
from samebits.cli.output import print_json, working
from samebits.errors import InputError


@reads(EXCERPT | SAMPLE_READING)
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
            metavar="SAMPLES",
            help="An .npz file with an array [samples, ...] for each input, digits, a folder of "
            "images or recordings, with classes or without, or a table.",
        ),
    ],
    out: Annotated[Path, file_ending(".onnx", "The quantized network to write.")],
    scheme: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Of activations: asymmetric-s8 (the default), asymmetric-u8, symmetric-s8, "
            "symmetric-s8-full, power-of-two-s8, and the same with 16 bits.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Of weights: symmetric-s8 (the default), asymmetric-s8, power-of-two-s8, "
            "symmetric-s4, symmetric-s16, power-of-two-s16.",
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="minmax, percentile or mse [default: minmax, with attention the better of minmax "
            "and mse, of recurrent networks mse].",
        ),
    ] = None,
    percentile: Annotated[
        float | None,
        real("Per cent of the elements kept, for --calibrate percentile [default: 99.99]."),
    ] = None,
    output_bits: Annotated[
        int | None, whole("8 or 16 bits for the outputs [default: as activations].")
    ] = None,
    per_tensor: Annotated[
        bool | None,
        typer.Option("--per-tensor", help="One scale per weight, not per output channel."),
    ] = None,
    stop_early: Annotated[
        int | None,
        whole(
            "End calibration after so many samples in a row that changed no scale "
            "[default: read all]."
        ),
    ] = None,
    equalize: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="weights or activations: scale the channels between layers so that one scale fits "
            "them all.",
        ),
    ] = None,
    rounding: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="Of weights: nearest (the default), or least-error of their layer's outputs.",
        ),
    ] = None,
    bias_correction: Annotated[
        bool | None,
        typer.Option(
            "--bias-correction", help="The mean error of each output channel goes into its bias."
        ),
    ] = None,
    mixed: Annotated[
        int | None,
        whole(
            "So many tensors, activations and weights, get twice the bits: those whose rounding "
            "costs the outputs most [default: none]."
        ),
    ] = None,
    effort: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="plain (the default); high: try all of these and keep what raises the signal-to-"
            "noise ratio of the outputs.",
        ),
    ] = None,
    finetune: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Train the quantized network on in its own integers: digits, or a folder or file "
            "of data for training.",
        ),
    ] = None,
    epochs: Annotated[int | None, whole("Of --finetune [default: 1].")] = None,
    bits: Annotated[
        int | None, whole("Recurrent networks: 8 or 16 bits for x and h [default: 8].")
    ] = None,
    symmetry: Annotated[
        float | None,
        real(
            "Recurrent networks: a weight matrix is symmetric where the smaller end of its range "
            "is at least this part of the larger one, else asymmetric [default: 0]."
        ),
    ] = None,
    gates: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Recurrent networks, outputs of gates: q0.15 (the default), symmetric or "
            "asymmetric.",
        ),
    ] = None,
    float_bias: Annotated[
        bool | None,
        typer.Option(
            "--float-bias",
            help="Recurrent networks: biases stay float32, for targets with a floating-point unit; "
            "without the promise of the same bits across targets.",
        ),
    ] = None,
    floor: Floor = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT=OUTPUT",
            help="An output (its name, or its place from 0) that is fed back to an input in the "
            "next step: both get one format; once for each state. none: no input is a state "
            "[default: those that names or layers show].",
        ),
    ] = None,
    sequence: Annotated[
        str | None,
        typer.Option(
            metavar="step|whole",
            help="Recurrent networks: one time step a call, or whole sequences of the length that "
            "the network has [default: step where each time step stands alone, else whole].",
        ),
    ] = None,
    contract: GivenContract = None,
    report: Page = None,
    arch: Arch = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **reading: Any,
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

        net = api.quantize(
            model,
            calibration,
            scheme=scheme,
            weights=weights,
            calibrate=calibrate,
            percentile=percentile,
            output_bits=output_bits,
            per_tensor=per_tensor,
            stop_early=stop_early,
            equalize=equalize,
            rounding=rounding,
            bias_correction=bias_correction,
            mixed=mixed,
            effort=effort,
            finetune=finetune,
            epochs=epochs,
            bits=bits,
            symmetry=symmetry,
            gates=gates,
            float_bias=float_bias,
            floor=floor,
            state=_states_of(state),
            sequence=sequence,
            contract=contract,
            arch=arch,
            **reading,
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


def _states_of(texts: list[str] | None) -> dict[str, str | int] | str | None:
    """The pairs of texts such as h=hn, or the only text that is no pair; None where there is none.

    Raises InputError for another text and for an input that is named twice.
    """
    if not texts or (len(texts) == 1 and "=" not in texts[0]):
        return texts[0] if texts else None
    pairs: dict[str, str | int] = {}
    for text in texts:
        name, _, output = text.rpartition("=")
        if not name or not output:
            raise InputError(
                f"--state: expected INPUT=OUTPUT such as h=hn, found {text!r}; samebits inspect "
                "MODEL lists inputs and outputs"
            )
        if name in pairs:
            raise InputError(f"--state: expected one output for the input {name!r}, found two")
        pairs[name] = output
    return pairs
