"""`samebits compile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.cli.options import EXCERPT, Arch, AsJson, Page, Quiet, Sign, TrainOnly, reads, whole
from samebits.cli.output import show, working


@reads(EXCERPT)
def compile_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A quantized .onnx file, a training folder or a checkpoint; for npu a float "
            "network too.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the generated sources.")],
    target: Annotated[str, typer.Option(metavar="TARGET", help="c or npu.")] = "c",
    prefix: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="c: prefix of every name [default: model]."),
    ] = None,
    cpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="c: processor whose kernels are taken, such as cortex-m4 [default: any].",
        ),
    ] = None,
    package: Annotated[
        str | None,
        typer.Option(
            metavar="SYSTEM",
            help="c: the folder as make, cmake, arduino, zephyr, espidf or platformio has it "
            "[default: make].",
        ),
    ] = None,
    sizes: Annotated[
        bool | None,
        typer.Option(
            "--sizes/--no-sizes", help="c: build for the boards to measure them [default: sizes]."
        ),
    ] = None,
    native_dim: Annotated[int | None, whole("npu: native dimension [default: 16].", 8, 512)] = None,
    mantissa: Annotated[
        int | None, whole("npu: bits beside the sign [default: 15].", 2, 15)
    ] = None,
    requantize: Annotated[
        bool | None,
        typer.Option("--requantize", help="npu: partial products go through binary16."),
    ] = None,
    steps: Annotated[
        int | None,
        whole("npu: length of a recurrent network's sequences, if not its own.", 1),
    ] = None,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream",
            help="c: one step of a sequence, with model_step: causal attention gets rings of keys "
            "and values.",
        ),
    ] = None,
    train: Annotated[
        bool,
        typer.Option(
            "--train", help="c: a training step, from where a run stands (--target c alone)."
        ),
    ] = False,
    train_batch: Annotated[
        int | None, whole("c: the most samples of a training step [default: 8].", 1, 2048)
    ] = None,
    train_schedule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:STEPS",
            help="c: learning rates of the training steps to come, as data, such as cosine:1000 "
            "[default: that of the run].",
        ),
    ] = None,
    train_only: TrainOnly = None,
    sign: Sign = None,
    report: Page = None,
    arch: Arch = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **part: Any,
) -> None:
    """Generate portable C (sources, Makefile, test vectors, memory report), or NPU firmware.

    With --train, C that trains the network of a training folder or checkpoint on.
    """
    on_device = train or any(v is not None for v in (train_batch, train_schedule, train_only))
    if sizes is None and target == "c" and not on_device:
        sizes = True
    options: dict[str, Any] = {
        "target": target,
        "prefix": prefix,
        "cpu": cpu,
        "package": package,
        "sizes": sizes,
        "native_dim": native_dim,
        "mantissa": mantissa,
        "requantize": requantize,
        "steps": steps,
        "stream": stream,
        "sign": sign,
    }
    result: Any
    with working(quiet, as_json):
        from samebits import adaptation, api

        if on_device:
            given = {
                "arch": arch,
                "batch": train_batch,
                "schedule": train_schedule,
                "train_only": train_only,
                **options,
                **part,
            }
            result = adaptation.compile_training(model, out, **given)
        else:
            result = api.load(model, arch=arch, **part).compile(out, **options)
        if report is not None:
            result.report().save(report)
    show(result, as_json, *([] if report is None else [report]))
