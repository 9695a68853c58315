"""`samebits train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.options import AsJson, Data, Shards, Threads
from samebits.cli.output import RunProgress, print_json, set_threads
from samebits.errors import InputError


def train_command(
    data: Data,
    arch: Annotated[
        str,
        typer.Option(
            help="mlp, cnn, smooth, resnet8, resnet20, resnet18, mobilenetv2, lstm "
            "or module:callable."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, metrics and the result.")],
    numerics: Annotated[str, typer.Option(help="bfp or float32.")] = "bfp",
    epochs: Annotated[int, typer.Option(min=1)] = 10,
    batch: Annotated[int, typer.Option(min=1, help="Samples per step.")] = 64,
    shards: Shards = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate [default: 0.1 for sgd, 0.001 for adam].")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="sgd or adam.")] = "sgd",
    momentum: Annotated[float, typer.Option(help="Momentum of sgd.")] = 0.9,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov momentum.")] = False,
    weight_decay: Annotated[float, typer.Option()] = 0.0,
    schedule: Annotated[
        str, typer.Option(help="Learning rate: constant, step, linear or cosine.")
    ] = "cosine",
    warmup: Annotated[int, typer.Option(min=0, help="Linear warm-up, in steps.")] = 0,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1)] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use the first N training samples of each class.")
    ] = None,
    gradient_bits: Annotated[
        int, typer.Option(help="Of gradients summed over shards: 32, or 16 (half the traffic).")
    ] = 32,
    augment: Annotated[
        str, typer.Option(help="none, or a list of flip, crop:PIXELS and zoom:PERCENT.")
    ] = "none",
    checkpoint_every: Annotated[
        int, typer.Option(min=0, help="Also write a checkpoint every N steps.")
    ] = 0,
    plan: Annotated[
        str,
        typer.Option(help="What to compute again instead of keeping: none, auto or a plan file."),
    ] = "none",
    memory_budget: Annotated[
        int | None,
        typer.Option(min=1, help="Bytes of tensors a pass may hold, for --plan auto."),
    ] = None,
    plan_device: Annotated[
        str, typer.Option(help="For --plan auto: a device's name or file (samebits device).")
    ] = "laptop-cpu",
    backward: Annotated[
        str | None,
        typer.Option(help="With a plan: its backward pass, sequential or paired (samebits plan)."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="Where to compute: cpu, or cuda (a GPU for every worker).")
    ] = "cpu",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest intact checkpoint.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="File for a hash of every tensor of every step, for samebits audit."),
    ] = None,
    worker_timeout: Annotated[
        float, typer.Option(help="Seconds after which a silent worker of torchrun counts as lost.")
    ] = 600.0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train a network; prints its accuracy and the SHA-256 of its parameters.

    On N processes, with the same result: torchrun --nproc-per-node N -m samebits train ...
    """
    if plan != "auto" and memory_budget is not None:
        raise InputError(
            f"--memory-budget needs --plan auto, found --plan {plan}; give --plan auto, or plan "
            "with samebits plan --memory-budget and leave it out here"
        )
    if plan == "none" and backward not in (None, "sequential"):
        raise InputError(
            f"--backward {backward} needs a plan, found --plan none; give --plan auto (with a "
            "large --memory-budget to keep everything) or a plan file"
        )
    from samebits.data import load
    from samebits.train.run.config import TrainConfig
    from samebits.train.run.device import run_device
    from samebits.train.run.distributed import join
    from samebits.train.run.loop import train

    set_threads(threads)
    try:
        place = run_device(device)
    except InputError:
        with join(worker_timeout):  # of several workers, one tells it
            raise
    with join(worker_timeout, place) as workers:
        config = TrainConfig(
            data=data,
            arch=arch,
            numerics=numerics,
            epochs=epochs,
            batch=batch,
            shards=shards,
            lr=lr if lr is not None else 0.1 if optimizer == "sgd" else 0.001,
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
        )
        planner = None
        if plan != "none":
            from samebits.recompute.training import Planner

            planner = Planner.of_option(
                config, plan, plan_device, memory_budget, workers.size, backward
            )
        dataset = load(data, limit=limit)
        with RunProgress(f"{arch} {numerics}") as reporter:
            result = train(
                config,
                dataset,
                out,
                resume=resume,
                checkpoint_every=checkpoint_every,
                trace=trace,
                reporter=reporter,
                workers=workers,
                planner=planner,
                device=place,
            )
        if workers.first and as_json:
            print_json({"out": str(out), "config": config.to_dict(), **result.to_dict()})
        elif workers.first:
            correct = f"{result.correct} of {result.test_count}"
            print(f"accuracy {100 * result.accuracy:.2f} % ({correct})")
            print(f"sha256 {result.sha256}")
        sys.stdout.flush()  # what stops this process from here on must not take it away
