"""Memory and time of a training step under plans, beside what PyTorch offers: everything stored,
`torch.utils.checkpoint` per residual block, `torch.compile` with an activation memory budget.

A six-block ResNet (widths 16, 32, 64), forward and backward pass of one batch of random images.
Peaks are of all tensor memory above model and batch, from the allocator's events; times are the
shortest of the rounds, the variants taking turns (CPU: processor time of the process, which other
processes on the machine disturb less). Run it with OMP_NUM_THREADS=1: everything has one thread but
what says two; "paired" defers weight gradients to a second one.

    OMP_NUM_THREADS=1 python benchmarks/bench_recompute.py --out runs/bench_recompute.json

With --times it measures this machine as `samebits device` does instead, and prints by which factor
the modelled time of each operator of a captured forward pass misses the measured one, median and
worst, over the architectures of `samebits train` and a transformer (`runs/bench_times.json`):

    OMP_NUM_THREADS=1 python benchmarks/bench_recompute.py --times --out runs/bench_times.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import machine
import samebits as sb
from samebits.errors import InputError
from samebits.numerics import philox
from samebits.recompute.capture.costs import measured_times
from samebits.recompute.capture.decisions import CapturedStep
from samebits.recompute.capture.step import BudgetStep
from samebits.recompute.network.graph import GraphTape
from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.plan.balance import balance, predicted_balance
from samebits.recompute.plan.cost import Device, find_device
from samebits.recompute.plan.measure import measure_device
from samebits.recompute.plan.plan import Plan
from samebits.recompute.plan.planner import decide
from samebits.recompute.plan.schedule import Action, compile_schedule, peak
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.memory import step_peak
from samebits.recompute.run.profile import survey
from samebits.recompute.run.timing import factors
from samebits.recompute.training import Planner, earlier_gradients
from samebits.train.architectures import BasicBlock, build, initialise
from samebits.train.run.config import TrainConfig
from samebits.train.run.loop import make_engine

SHAPE, CLASSES = (3, 32, 32), 10
MIB = 2**20


@dataclass
class Variant:
    """A way to run the step; its prediction in bytes if it has one.

    threads: inside operations. paired: what runs weight gradients beside the rest, and the load
    balance predicted for it.
    """

    name: str
    step: Callable[[], None]
    model: nn.Module
    predicted: int | None = None
    threads: int = 1
    paired: tuple[Executor, float] | None = None
    load: float = 0.0
    wall: float = float("inf")
    cpu: float = float("inf")
    peak: int = 0

    def run(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None
        torch.set_num_threads(self.threads)
        taken: dict[Action, float] = {}
        if self.paired is not None:
            self.paired[0].clock = taken.__setitem__
        wall, cpu = time.perf_counter(), time.process_time()
        self.step()
        elapsed = time.perf_counter() - wall
        self.cpu = min(self.cpu, time.process_time() - cpu)
        torch.set_num_threads(1)
        if elapsed < self.wall and self.paired is not None:
            schedule = (Action("loss", 0), *self.paired[0].second)
            self.load = balance(schedule, lambda step: int(1e9 * taken[step])).load
        self.wall = min(self.wall, elapsed)


def batch_of(samples: int) -> tuple[Tensor, Tensor]:
    """Images in [-1, 1) and labels."""
    words = philox.words(samples * 3 * 32 * 32, (1, 2)).double() * 2.0**-31 - 1.0
    return words.float().view(samples, *SHAPE), torch.arange(samples) % CLASSES


def network_of() -> nn.Sequential:
    """The model with its weights of seed 0: stem, two blocks a stage, as the CIFAR ResNets."""
    blocks = [BasicBlock(16, 16, 1), BasicBlock(16, 16, 1)]
    blocks += [BasicBlock(16, 32, 2), BasicBlock(32, 32, 1)]
    blocks += [BasicBlock(32, 64, 2), BasicBlock(64, 64, 1)]
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))
    model = nn.Sequential(stem, *blocks, *head)
    initialise(model, 0)
    return model


def float_variants(samples: int, budgets: list[float]) -> Iterator[Variant]:
    """float32: PyTorch's ways and ours."""
    x, labels = batch_of(samples)
    criterion = nn.CrossEntropyLoss()

    def step(forward: Callable[[Tensor], Tensor]) -> Callable[[], None]:
        return lambda: criterion(forward(x), labels).backward()

    model = network_of()
    yield Variant("float32, everything stored", step(model), model)
    model = network_of()
    yield Variant("float32, everything stored, 2 threads", step(model), model, threads=2)
    blocks = network_of()

    def per_block(value: Tensor) -> Tensor:
        for module in blocks:
            keep = not isinstance(module, BasicBlock)
            value = module(value) if keep else checkpoint(module, value, use_reentrant=False)
        return value

    yield Variant("float32, torch.utils.checkpoint per block", step(per_block), blocks)
    model = network_of()
    for budget in budgets:
        made = sb.within(model, criterion, (x, labels), budget=int(budget * MIB), fallback="error")

        def planned(made: BudgetStep = made) -> None:
            made(x, labels).backward()

        name = f"float32, plan of {budget:g} MiB"
        yield Variant(name, planned, model, made.plans[0].peak)


def paired_of(tape: GraphTape, network: PassNetwork, device: Device) -> tuple[Executor, float, int]:
    """Everything stored, weight gradients deferred: what runs it, load balance, peak."""
    schedule = compile_schedule(network, (), paired=True)
    load = predicted_balance(network, schedule, device).load
    predicted = peak(network, schedule) - network.layers[0].size
    return Executor(tape, network, schedule), load, predicted


def bfp_variants(samples: int, budgets: list[float], device: Device) -> Iterator[Variant]:
    """BFP, in shards of 32: everything stored (on one thread, on two, paired), and plans."""
    config = TrainConfig(data="random", arch="six blocks", batch=samples)
    shards = config.shard_count()
    batch, part = batch_of(samples), samples // shards
    engine = make_engine(config, network_of())
    engine.model.train()
    parts = [
        engine.prepare((batch[0][i : i + part], batch[1][i : i + part]))
        for i in range(0, samples, part)
    ]
    tape, network = survey(engine.model, *parts[0])
    held = network.layers[0].size

    def step(forward: Callable[[Tensor], Tensor]) -> Callable[[], None]:
        def run() -> None:
            for x, criterion in parts:
                (criterion(forward(x)) / len(parts)).backward()

        return run

    stored, model = "BFP, everything stored", engine.model
    yield Variant(stored, step(model), model)
    yield Variant(f"{stored}, 2 threads", step(model), model, threads=2)
    run, load, predicted = paired_of(tape, network, device)
    predicted += earlier_gradients(network, shards)
    yield Variant(f"{stored}, paired", step(run), model, predicted, paired=(run, load))
    for budget in budgets:
        planner = Planner(config, device, int(budget * MIB) + held)
        try:
            plan = planner.plan(network)
        except InputError as error:
            print(f"BFP, plan of {budget:g} MiB: {error}", file=sys.stderr)
            continue
        run = Executor(tape, network, plan.schedule(network))
        yield Variant(f"BFP, plan of {budget:g} MiB", step(run), model, plan.peak - held)


def compiled_variants(samples: int, budgets: list[float]) -> Iterator[Variant]:
    """`torch.compile` with an activation memory budget (a share of what is saved)."""
    import torch._functorch.config as functorch

    x, labels = batch_of(samples)
    criterion = nn.CrossEntropyLoss()
    for budget in budgets:
        torch._dynamo.reset()
        model = network_of()
        functorch.activation_memory_budget = budget
        compiled = torch.compile(model)

        def step(forward: Any = compiled) -> None:
            criterion(forward(x), labels).backward()

        name = f"float32, torch.compile, activation_memory_budget {budget:g}"
        try:
            step()
        except Exception as error:  # what fails depends on compiler and version: say so, go on
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            continue
        yield Variant(name, step, model)


def measure(variants: list[Variant], rounds: int) -> None:
    """Peaks once, times in turns."""
    for variant in variants:
        variant.run()  # what is made once: tables, kernels, compiled code
        for parameter in variant.model.parameters():
            parameter.grad = None
        variant.peak = step_peak(variant.step)
        variant.wall = variant.cpu = float("inf")
    for _ in range(rounds):
        for variant in variants:
            variant.run()


class Attention(nn.Module):
    """A layer of a transformer, of single operations."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.maps = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        parts = (m(y).reshape(x.shape[0], x.shape[1], self.heads, -1) for m in self.maps[:3])
        q, k, v = (part.transpose(1, 2) for part in parts)
        weights = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * 0.25, -1)
        y = torch.matmul(weights, v).transpose(1, 2).reshape(x.shape)
        x = x + self.maps[3](y)
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


def timed_networks() -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Names, models and batches whose operations are timed."""
    for name, samples in (("resnet8", 32), ("resnet18", 8), ("mobilenetv2", 8), ("cnn", 32)):
        yield name, build(name, SHAPE, CLASSES), batch_of(samples)[0]
    yield "mlp", build("mlp", SHAPE, CLASSES), batch_of(64)[0]
    blocks = nn.Sequential(*(Attention(128, 8) for _ in range(4)))
    yield "transformer", blocks, batch_of(64)[0].view(-1, 128)[: 8 * 64].view(8, 64, 128)


def captured(
    model: nn.Module, x: Tensor, device: Device, repeats: int
) -> tuple[CapturedStep, list[int]]:
    """A captured step, and the measured times of its forward operators in picoseconds."""
    found: list[tuple[CapturedStep, list[int]]] = []

    def choose(step: CapturedStep) -> Plan:
        found.append((step, measured_times(step.calls, repeats / 1000)))
        return decide(step, device, arch="", numerics="float32", budget=None)

    BudgetStep(model.train(), torch.sum, device, choose).prepare(x)
    return found[0]


def calibration(repeats: int) -> list[dict[str, Any]]:
    """Modelled and measured times of every operation; prints a table of the factors."""
    device = measure_device()
    print(f"{device.name}: {device}")
    print("| network | operations | median factor | worst | at |")
    print("|---|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    for name, model, x in timed_networks():
        initialise(model, 0)
        step, measured = captured(model, x, device, repeats)
        found = factors([node.cost for node in step.facts.forward], measured)
        worst = max(range(len(found)), key=found.__getitem__)
        median, kind = statistics.median(found), step.facts.forward[worst].kind
        print(f"| {name} | {len(found)} | {median:.2f} | {found[worst]:.1f} | {kind} |")
        for layer, node, taken_ps, factor in zip(
            step.network.layers[1:], step.facts.forward, measured, found, strict=True
        ):
            row = {"network": name, "name": layer.name, "kind": layer.kind, "factor": factor}
            rows.append({**row, "modelled_ps": node.cost, "measured_ps": taken_ps})
    every = [row["factor"] for row in rows]
    print(f"| all | {len(every)} | {statistics.median(every):.2f} | {max(every):.1f} | |")
    return rows


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--budgets", type=float, nargs="*", default=[60.0, 50.0, 45.0, 40.0, 36.0])
    parser.add_argument("--bfp-budgets", type=float, nargs="*", default=[17.5, 15.0, 13.0])
    parser.add_argument("--compile", type=float, nargs="*", default=[1.0, 0.5, 0.1])
    parser.add_argument("--device", default="laptop-cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.times:
        rows = calibration(given.rounds)
        if given.out:
            machine.write_record(given.out, threads=torch.get_num_threads(), rows=rows)
        return
    device = find_device(given.device)
    variants = list(float_variants(given.batch, given.budgets))
    variants += bfp_variants(given.batch, given.bfp_budgets, device)
    variants += compiled_variants(given.batch, given.compile)
    measure(variants, given.rounds)
    first = variants[0]
    rows = []
    print("| step | peak, MiB | predicted | ms | ratio | CPU ratio |")
    print("|---|---|---|---|---|---|")
    for v in variants:
        predicted = "" if v.predicted is None else f"{v.predicted / MIB:.2f}"
        print(
            f"| {v.name} | {v.peak / MIB:.2f} | {predicted} | {1e3 * v.wall:.1f} | "
            f"{v.wall / first.wall:.2f} | {v.cpu / first.cpu:.2f} |"
        )
        rows.append(
            {
                "name": v.name,
                "peak_bytes": v.peak,
                "predicted_bytes": v.predicted,
                "wall_seconds": v.wall,
                "cpu_seconds": v.cpu,
                "threads": v.threads,
                "predicted_load": None if v.paired is None else v.paired[1],
                "measured_load": None if v.paired is None else v.load,
            }
        )
    for v in variants:
        if v.paired is not None:
            print(f"{v.name}: load balance predicted {v.paired[1]:.2f}, measured {v.load:.2f}")
    if given.out:
        machine.write_record(given.out, threads=torch.get_num_threads(), rows=rows)


if __name__ == "__main__":
    main()
