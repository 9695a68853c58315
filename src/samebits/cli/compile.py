"""`samebits compile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.cli.options import EXCERPT, Arch, AsJson, Page, Quiet, Sign, TrainOnly, reads, whole
from samebits.cli.output import show, working
from samebits.recipes import Accelerator, Packaging


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
    packaging: Packaging,
    accelerator: Accelerator,
    target: Annotated[str, typer.Option(metavar="TARGET", help="c or npu.")] = "c",
    sizes: Annotated[
        bool | None,
        typer.Option(
            "--sizes/--no-sizes", help="c: build for the boards to measure them [default: sizes]."
        ),
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
    train_arena: Annotated[
        int | None,
        whole(
            "c: bytes up to which a training step's memory may grow where that spares time "
            "[default: the least that it needs].",
            0,
        ),
    ] = None,
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
    on_device = train or any(
        v is not None for v in (train_batch, train_schedule, train_only, train_arena)
    )
    result: Any
    with working(quiet, as_json):
        from samebits import adaptation, api

        if on_device:
            chosen = packaging.chosen() | accelerator.chosen() | part
            chosen |= {"target": None if target == "c" else target, "sizes": sizes}
            chosen |= {"stream": stream, "sign": sign, "prefix": None}
            adaptation.check_train(chosen)
            result = adaptation.compile_training(
                model,
                out,
                batch=train_batch,
                schedule=train_schedule,
                train_only=train_only,
                arena=train_arena,
                prefix=packaging.prefix,
                arch=arch,
            )
        else:
            if sizes is None and target == "c":
                sizes = True
            result = api.load(model, arch=arch, **part).compile(
                out,
                *(packaging, accelerator),
                target=target,
                sizes=sizes,
                stream=stream,
                sign=sign,
            )
        if report is not None:
            result.report().save(report)
    show(result, as_json, *([] if report is None else [report]))
