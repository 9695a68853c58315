"""`samebits train`."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.cli.messages import INTERRUPTED, Interrupted
from samebits.cli.options import (
    LABELLED_READING,
    SEEDS,
    AsJson,
    Data,
    KeepFloat,
    OwnLoss,
    Page,
    Quiet,
    Shards,
    Threads,
    paths_of,
    reads,
    real,
    whole,
)
from samebits.cli.output import Printed, RunProgress, show, working


@reads(LABELLED_READING)
def train_command(
    data: Data,
    arch: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="mlp, cnn, smooth, resnet8, resnet20, resnet18, mobilenetv2, lstm, vit, "
            "gpt (of a text), or "
            "module:callable or file.py:callable.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, metrics and the result.")],
    numerics: Annotated[str, typer.Option(metavar="NUMERICS", help="bfp or float32.")] = "bfp",
    epochs: Annotated[int, whole("Passes over the data.", 1)] = 10,
    batch: Annotated[int, whole("Samples per step.", 1)] = 64,
    shards: Shards = None,
    lr: Annotated[
        float | None,
        real("Learning rate [default: 0.1 for sgd, 0.02 of a regression; else 0.001]."),
    ] = None,
    optimizer: Annotated[str, typer.Option(metavar="NAME", help="sgd, adam or adamw.")] = "sgd",
    momentum: Annotated[float, real("Momentum of sgd.")] = 0.9,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov momentum.")] = False,
    weight_decay: Annotated[float, real("Weight decay.")] = 0.0,
    schedule: Annotated[
        str,
        typer.Option(metavar="NAME", help="Learning rate: constant, step, linear or cosine."),
    ] = "cosine",
    warmup: Annotated[int, whole("Linear warm-up, in steps.", 0)] = 0,
    seed: Annotated[int, whole("Seed of everything that is random.", 0, SEEDS)] = 0,
    limit: Annotated[
        int | None, whole("Use the first N training samples of each class.", 1)
    ] = None,
    gradient_bits: Annotated[
        int, whole("Of gradients summed over shards: 32, or 16 (half the traffic).")
    ] = 32,
    augment: Annotated[
        str,
        typer.Option(metavar="LIST", help="none, or a list of flip, crop:PIXELS and zoom:PERCENT."),
    ] = "none",
    exponents: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What shares one: tensor, row (a sample, a token, an output channel), or "
            "row-shift (rows, with outlier channels of activations apart).",
        ),
    ] = "tensor",
    widths: Annotated[
        str,
        typer.Option(
            metavar="A,B,C",
            help="Bits of weights and activations (4 to 8), of gradients (up to 16), and 32.",
        ),
    ] = "8,16,32",
    rounding: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Of moments and updates: stochastic, or nearest (which loses small ones).",
        ),
    ] = "stochastic",
    label_smoothing: Annotated[
        float, real("Share of every target that goes to all classes alike, 0 to 1.")
    ] = 0.0,
    clip_norm: Annotated[
        float | None, real("Scale gradients down to this norm, of all together.")
    ] = None,
    clip_value: Annotated[
        float | None, real("Bring every element of the gradients to within +- this, first.")
    ] = None,
    ema: Annotated[
        float | None,
        real("Leave an average of the weights with this decay, as 0.999, as the model."),
    ] = None,
    loss: OwnLoss = None,
    keep_float: KeepFloat = "",
    init: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Start from these weights: a .safetensors file of a state dict, a training folder "
            "or a checkpoint.",
        ),
    ] = None,
    checkpoint_every: Annotated[int, whole("Also write a checkpoint every N steps.", 0)] = 0,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="PLAN",
            help="What to compute again instead of keeping: none (the default), auto or a plan's "
            "file.",
        ),
    ] = None,
    memory_budget: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="What a pass may hold: bytes, 3M, or 40% of what storing everything takes; "
            "implies --plan auto.",
        ),
    ] = None,
    plan_device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="For --plan auto: a device's name or file (samebits device) [default: "
            "laptop-cpu].",
        ),
    ] = None,
    backward: Annotated[
        str | None,
        typer.Option(
            metavar="ORDER",
            help="With a plan: its backward pass, sequential or paired (samebits plan).",
        ),
    ] = None,
    plan_fallback: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="Where a plan cannot be used, as the network's forward code has a state of its "
            "own: error (the default), or eager: train without the plan, a note says why.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE", help="Where to compute: cpu, or cuda (a GPU for every worker)."
        ),
    ] = "cpu",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest intact checkpoint.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="File for a hash of every tensor of every step, for samebits audit."),
    ] = None,
    report: Page = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write loss, accuracy and learning rate for TensorBoard (needs the package "
            "tensorboard).",
        ),
    ] = None,
    worker_timeout: Annotated[
        float, real("Seconds after which a silent worker of torchrun counts as lost.")
    ] = 600.0,
    threads: Threads = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **reading: Any,
) -> None:
    """Train a network; prints its accuracy and the SHA-256 of its parameters.

    On N processes, with the same result: torchrun --nproc-per-node N -m samebits train ...
    """
    drawn = RunProgress(f"{arch} {numerics}")
    stdout = sys.stdout

    def done(run: Printed) -> None:
        drawn.close()
        with redirect_stdout(stdout):
            show(run, as_json)
        stdout.flush()  # what stops this process from here on must not take it away

    try:
        with working(quiet, as_json, drawn):
            from samebits import api

            run = api.fit(
                data,
                arch,
                out,
                **reading,
                numerics=numerics,
                epochs=epochs,
                batch=batch,
                shards=shards,
                lr=lr,
                optimizer=optimizer,
                momentum=momentum,
                nesterov=nesterov,
                weight_decay=weight_decay,
                schedule=schedule,
                warmup=warmup,
                seed=seed,
                limit=limit,
                gradient_bits=gradient_bits,
                augment=augment,
                exponents=exponents,
                widths=widths,
                rounding=rounding,
                label_smoothing=label_smoothing,
                clip_norm=clip_norm,
                clip_value=clip_value,
                ema=ema,
                loss=loss,
                keep_float=paths_of(keep_float),
                init=init,
                checkpoint_every=checkpoint_every,
                plan=plan,
                memory_budget=memory_budget,
                plan_device=plan_device,
                backward=backward,
                plan_fallback=plan_fallback,
                device=device,
                resume=resume,
                trace=trace,
                tensorboard=tensorboard,
                worker_timeout=worker_timeout,
                threads=threads,
                reporter=None if quiet else drawn,
                done=done,
            )
            if report is not None and run is not None:
                api.report(out, arch=arch if ":" in arch else None).save(report)
                drawn.say(f"written: {report}")
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") != "0":
            raise SystemExit(INTERRUPTED) from None  # of several workers, the first one tells it
        raise Interrupted(_how_to_go_on(out)) from None


def _how_to_go_on(out: Path) -> str:
    """The sentence of an interrupted run: what it has left, and what to do."""
    found = sorted(out.glob("checkpoint-*.safetensors"))
    if found:
        return f"interrupted; {out} holds {found[-1].name}: run again with --resume"
    return (
        f"interrupted; {out} holds no checkpoint yet: run again with --resume, which starts from "
        "the first step; --checkpoint-every N writes one every N steps"
    )
