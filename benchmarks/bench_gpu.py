"""A step of training on a GPU: equality with the CPU, then time beside bf16 autocast and float32.

    python benchmarks/bench_gpu.py --out runs/bench_gpu.json

On a machine with a GPU it takes at most six minutes. Equality comes first: where a bit differs from
the CPU's, nothing is timed. Then resnet18 (224 x 224, batch 256), a GPT (8 layers of 512) and
ViT-small: block floating point, as one CUDA graph and launch by launch, bf16 autocast with
torch.compile, and float32; the least time of a step, peak memory, and the share of every kernel.
Without a GPU, TRITON_INTERPRET=1 runs all of it at tiny sizes on the CPU, so that it is known to
work; its times mean nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import machine
from samebits import kernels
from samebits.train import SGD, BFPTensor, convert, recording
from samebits.train.architectures import PatchTransformer, build, gpt, initialise
from samebits.train.captured import ReplayedStep
from samebits.train.late import LateStep
from samebits.train.run.checkpoint import parameter_sha256
from samebits.train.whole import Taken

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
LR, MOMENTUM, DECAY = 0.05, 0.9, 1e-4
Network = tuple[Callable[[], nn.Module], tuple[int, ...], int]  # and shape of a batch, classes


def resnet18() -> nn.Module:
    """That of ImageNet: a stem of 7 x 7 and a pool before the blocks."""
    body = list(build("resnet18", (3, 224, 224), 1000).children())
    stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()
    return nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1), *body[2:])


def vision(depth: int = 12) -> nn.Module:
    """ViT-small, of patches of 16 x 16."""
    return PatchTransformer(3, 196, 16, 1000, 384, depth)


def networks() -> dict[str, Network]:
    """The networks, or small ones of their kinds."""
    if not GPU:
        return {
            "resnet8": (lambda: build("resnet8", (3, 8, 8), 4), (2, 3, 8, 8), 4),
            "gpt": (lambda: gpt(5, 3, width=8, depth=1), (2, 3), 5),
            "vit": (lambda: PatchTransformer(3, 4, 4, 4, 8, 1), (2, 3, 8, 8), 4),
        }
    return {
        "resnet18": (resnet18, (256, 3, 224, 224), 1000),
        "gpt": (lambda: gpt(8192, 1024, width=512, depth=8), (16, 1024), 8192),
        "vit-small": (vision, (64, 3, 224, 224), 1000),
    }


def batch_of(network: Network, count: int) -> tuple[Tensor, Tensor]:
    """Samples and classes, the same on every machine."""
    _, shape, classes = network
    draw = torch.Generator().manual_seed(1)
    if len(shape) == 2:
        text = torch.randint(classes, (count, shape[1]), generator=draw)
        return text, text.roll(1, 1)
    return torch.rand((count, *shape[1:]), generator=draw) - 0.5, torch.arange(count) % classes


def late_step(network: Network, device: torch.device, batch: tuple[Tensor, Tensor]) -> Any:
    """The step of a converted network on a device, and the network."""
    model = network[0]()
    initialise(model, 3)
    twin = convert(model).to(device)
    twin.train()
    images = batch[0].to(device)
    x = BFPTensor.from_real(images) if images.is_floating_point() else images
    graph, _ = recording.traced(twin, x)
    optimizer = SGD(twin.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    return LateStep(graph, optimizer, Taken(8, False)), twin


def hashed(network: Network, realisation: str, steps: int, count: int) -> str:
    """SHA-256 of the state and the losses after steps."""
    device = DEVICE if realisation == "triton" else torch.device("cpu")
    with kernels.use(realisation):
        images, target = batch_of(network, count)
        late, twin = late_step(network, device, (images, target))
        step = ReplayedStep(late) if device.type == "cuda" else late
        losses = [step(images.to(device), target.to(device)).read() for _ in range(steps)]
        state = parameter_sha256({k: v.cpu() for k, v in twin.state_dict().items()})
    return hashlib.sha256(f"{state} {losses}".encode()).hexdigest()


def bfp(captured: bool) -> Callable[[Network, tuple[Tensor, Tensor]], Callable[[], None]]:
    """A step in block floating point, of which nothing is read: one graph, or launch by launch."""

    def make(network: Network, batch: tuple[Tensor, Tensor]) -> Callable[[], None]:
        step, _ = late_step(network, DEVICE, batch)
        run = ReplayedStep(step) if captured and GPU else step
        images, target = (v.to(DEVICE) for v in batch)
        run(images, target)  # the next one captures
        return lambda: run(images, target)

    return make


def real(autocast: bool) -> Callable[[Network, tuple[Tensor, Tensor]], Callable[[], None]]:
    """A step in float32, or in bf16 by autocast and torch.compile."""

    def make(network: Network, batch: tuple[Tensor, Tensor]) -> Callable[[], None]:
        model = network[0]().to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM, weight_decay=DECAY)
        run: Any = torch.compile(model) if autocast and GPU else model
        images, target = (v.to(DEVICE) for v in batch)

        def step() -> None:
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=autocast):
                loss = nn.functional.cross_entropy(run(images).flatten(0, -2), target.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return step

    return make


def timed(step: Callable[[], None], repeats: int) -> dict[str, float]:
    """The least seconds of a step, and the peak of memory."""
    step()
    if not GPU:
        began = time.perf_counter()
        step()
        return {"seconds": time.perf_counter() - began}
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    found = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        step()
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last) / 1e3)
    return {"seconds": min(found), "peak_bytes": torch.cuda.max_memory_allocated()}


def shares(step: Callable[[], None]) -> dict[str, float]:
    """The share of every kernel in the time of a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    own = {e.key: e.self_device_time_total for e in profile.key_averages()}
    total = sum(own.values()) or 1.0
    return {name: v / total for name, v in sorted(own.items(), key=lambda e: -e[1])[:25]}


VARIANTS = {
    "bfp": bfp(True),
    "bfp-launched": bfp(False),
    "bf16-autocast": real(True),
    "float32": real(False),
}


def main() -> None:
    """Compare, time, and write a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/bench_gpu.json"))
    parser.add_argument("--seconds", type=float, default=330.0, help="after which nothing begins")
    options = parser.parse_args()
    began, rows = time.monotonic(), []
    for name, network in networks().items():
        small = batch_of(network, 2)[0].shape[0]
        found = {
            kind: hashed(network, kind, 4 if GPU else 2, small) for kind in ("triton", "native")
        }
        print(name, "equals the CPU" if len(set(found.values())) == 1 else found, flush=True)
        if len(set(found.values())) != 1:
            raise SystemExit(f"{name}: the GPU's bits differ from the CPU's; nothing is timed")
    for name, network in networks().items():
        batch = batch_of(network, network[1][0])
        for variant, make in VARIANTS.items():
            if time.monotonic() - began > options.seconds:
                break
            with kernels.use("triton"):
                step = make(network, batch)
                row = {"network": name, "variant": variant, **timed(step, 10)}
                if GPU and variant == "bfp":
                    row["shares"] = shares(step)
            rows.append(row)
            print({k: v for k, v in row.items() if k != "shares"}, flush=True)
            del step
    machine.write_record(options.out, rows=rows)


if __name__ == "__main__":
    main()
