"""Time and memory of one training step: BFP against float32 PyTorch, bf16 autocast, compiled too,
and torchao's int8.

    python benchmarks/bench_train.py --out runs/bench_train.json
    python benchmarks/bench_train.py --device cuda --out runs/bench_gpu.json

On a GPU only times are measured; BFP is torch's operations there, by $SAMEBITS_KERNELS eager or
compiled.

Time. Every variant takes turns with float32 (A, B, A, B, ...) in a process of its own: a change in
the machine's load meets both, and the threads and memory of one variant do not weigh on another. A
variant's ratio is its time over float32's of the same repetition. A step is everything from real
images to updated parameters: input quantization, forward, loss, backward, optimizer; of BFP it is
the step that `samebits train` takes. One thread on a CPU is timed by the thread's own clock, which
does not count what others do on the machine; more threads, and GPUs, by the wall's.

Products. Of the step in one shard: multiply-adds a second of the forward products, input gradients
and weight gradients, beside what this processor's instructions do here in registers (peaks.c). The
floor is the time that the products alone would take at these peaks: bytes by bytes (vpdpbusd)
forward, 16 bits by 8 (vpdpwssd) for input gradients, and two of these for the 32 bits of weight
gradients.

Memory. Every (model, variant) runs in fresh processes with one thread:
  peak_tensor_bytes  largest sum of live tensor allocations during a step, parameters and optimizer
                     state included, from torch.profiler's record of every allocation and release.
                     Memory that a kernel takes outside torch's allocator is not in it.
  peak_rss_bytes     growth of the resident set over its size after the model was built; what
                     the system sees: allocator slack and code pages included, and noisy.
  persistent_bytes   distinct tensor storages alive between two steps, gradients released, that were
                     not there before the model was built; of BFP weights, delayed updates and the
                     optimizer's state, without the rooms that recorded steps work in, which are
                     in the peak.
  page_faults        of a step, without the disk, after the first steps.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from findings import train
from machine import facts

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from figures import table

if TYPE_CHECKING:
    from samebits.train.run.engine import BfpEngine

BATCH = 64
CLASSES = 10
LEARNING_RATE, MOMENTUM = 0.01, 0.9
SHARDS = 2  # the default: one per 32 samples
WARM_UP = 4  # steps before measuring: first-use compilation, momentum buffers, recorded steps
TARGET_SECONDS = 0.1  # shortest time of one repetition; small models repeat the step
PEAKS = Path(__file__).with_name("peaks.c")

VOCABULARY, CONTEXT, TEXTS = 96, 128, 16  # of gpt
SHAPES = {"mlp": (1024,), "cnn": (1, 8, 8)}  # of a sample; the others take images of 3x32x32
IMAGE = (3, 32, 32)
MODELS = ("mlp", "cnn", "resnet8", "resnet18", "mobilenetv2", "lstm", "gpt", "vit")
BASELINE = "float32"
# name -> what it is. The first is the baseline.
VARIANTS = {
    "float32": "PyTorch float32",
    "float32-channels-last": "PyTorch float32, images and weights channels last",
    "bf16-autocast": "PyTorch, products in bfloat16 by autocast (float32 weights); channels last",
    "bf16-compiled": "the same through torch.compile",
    "bfp-1-shard": "samebits BFP, the batch in one shard",
    "bfp": f"samebits BFP, default shards ({SHARDS})",
    "torchao-int8-mixed": "torchao int8 mixed-precision training (float32 weights, int8 products)",
    "torchao-int8-weights": "torchao int8 weights with stochastic rounding, float products",
}
BFP_SHARDS = {"bfp-1-shard": 1, "bfp": SHARDS}
OTHERS = ("bf16-compiled", "torchao-int8-mixed", "torchao-int8-weights")  # which may not run here
# Kernels of a step by what they compute (train/run/profile.py).
PRODUCTS = {
    "forward": ("products", "batch_products"),
    "input gradients": ("input_gradient", "batch_products_a"),
    "weight gradients": ("weight_gradient", "batch_products_b"),
}
# The instruction that each would use best here, and how many of it a product takes.
INSTRUCTIONS = {
    "forward": (("vpdpbusd", 1), ("vpmaddwd", 1)),
    "input gradients": (("vpdpwssd", 1), ("vpmaddwd", 1)),
    "weight gradients": (("vpdpwssd", 2), ("vpmaddwd", 2)),
}

Step = Callable[[], float]  # one training step; returns the loss


@dataclass
class BfpStep:
    """A step of BFP on one batch."""

    engine: BfpEngine
    batch: tuple[torch.Tensor, torch.Tensor]
    count: int = 0

    def __call__(self) -> float:
        """Take the next step; its loss."""
        self.count += 1
        return self.engine.step(self.batch, LEARNING_RATE, self.count)


class NotAvailableError(Exception):
    """A variant that cannot run here; the text is the recorded reason."""


# --- what is measured ---------------------------------------------------------------------------


def batch(model_name: str, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Seeded samples and labels."""
    generator = torch.Generator().manual_seed(1)
    if model_name == "gpt":
        size = (TEXTS, CONTEXT)
        texts, labels = (torch.randint(VOCABULARY, size, generator=generator) for _ in range(2))
        return texts.to(device), labels.to(device)
    images = torch.randn(BATCH, *SHAPES.get(model_name, IMAGE), generator=generator)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    return images.to(device), labels.to(device)


def float_model(model_name: str) -> nn.Module:
    """The float32 model, seeded; every variant starts from it."""
    torch.manual_seed(0)
    if model_name == "mlp":
        hidden = [layer for _ in range(3) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(1024, CLASSES))
    from samebits.train import architectures

    if model_name == "gpt":
        return architectures.gpt(VOCABULARY, CONTEXT)
    return architectures.build(model_name, SHAPES.get(model_name, IMAGE), CLASSES)


def parameter_count(model_name: str) -> int:
    """Number of trained parameters, the same for every variant."""
    return sum(p.numel() for p in float_model(model_name).parameters())


def build(model_name: str, variant: str, images: torch.Tensor, labels: torch.Tensor) -> Step:
    """A closure that does one step of a variant. Raises NotAvailableError with the reason."""
    model = float_model(model_name).to(images.device)
    if variant in BFP_SHARDS:
        return BfpStep(bfp_engine(model, BFP_SHARDS[variant]), (images, labels))
    if variant.startswith("torchao"):
        quantize_with_torchao(model, model_name, variant)
    elif variant != BASELINE:
        if images.dim() == 4 and model_name != "lstm":
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            images = images.contiguous(memory_format=torch.channels_last)
        elif variant == "float32-channels-last":
            raise NotAvailableError("it has no images")
        if variant == "bf16-compiled":
            model = torch.compile(model)  # type: ignore[assignment]
    return float_step(model, images, labels, variant.startswith("bf16"))


def float_step(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, bf16: bool = False
) -> Step:
    """PyTorch's own step, as its tutorials write it. bf16: under autocast."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    criterion = nn.CrossEntropyLoss()

    def step() -> float:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
            output = model(images)
            if output.dim() == 3:  # of texts, which have their classes last
                output = output.transpose(1, 2)
            loss = criterion(output, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    return step


def bfp_engine(model: nn.Module, shards: int) -> BfpEngine:
    """What `samebits train` takes steps with, a batch cut into so many shards."""
    from samebits.train.run.engine import BfpEngine, OptimizerSettings

    settings = OptimizerSettings(
        name="sgd",
        lr=LEARNING_RATE,
        momentum=MOMENTUM,
        nesterov=False,
        weight_decay=0.0,
        seed=0,
        rounding="stochastic",
    )
    device = next(model.parameters()).device
    return BfpEngine(model, settings, shards, seed=0, device=device)


def quantize_with_torchao(model: nn.Module, model_name: str, variant: str) -> None:
    """Replaces the weights of linear layers by torchao's int8 training tensors, in place."""
    if model_name != "mlp":
        # A residual network has one small linear layer; the rest would be timed as float32.
        raise NotAvailableError("torchao int8 training covers linear layers, not convolutions")
    try:
        from torchao.prototype import quantized_training
        from torchao.quantization import quantize_
    except ImportError as error:
        raise NotAvailableError(f"torchao is not installed or does not load: {error}") from error
    name = {
        "torchao-int8-mixed": "Int8MixedPrecisionTrainingConfig",
        "torchao-int8-weights": "int8_weight_only_quantized_training",
    }[variant]
    if not hasattr(quantized_training, name):
        raise NotAvailableError(f"this torchao has no {name}")
    quantize_(model, getattr(quantized_training, name)())


# --- measuring: each function runs in a process of its own --------------------------------------


def measure_time(
    model_name: str, variants: list[str], repetitions: int, device: str
) -> dict[str, Any]:
    """Step times of all variants, paired by repetition."""
    images, labels = batch(model_name, device)
    clock = time.perf_counter
    if device == "cpu" and torch.get_num_threads() == 1:
        clock = time.thread_time
    steps: dict[str, Step] = {}
    missing: dict[str, str] = {}
    for variant in variants:
        try:
            step = build(model_name, variant, images, labels)
            for _ in range(WARM_UP):
                step()
            steps[variant] = step
        except NotAvailableError as error:
            missing[variant] = str(error)
        except Exception as error:
            if variant not in OTHERS:
                raise
            # Someone else's: that it fails here is the result, not our failure.
            missing[variant] = f"{type(error).__name__}: {error}".splitlines()[0]
    if missing and len(steps) == 1:  # nothing to pair float32 with
        return {"not_available": missing, "variants": {}}
    inner = max(1, math.ceil(TARGET_SECONDS / seconds(steps[BASELINE], 1, clock)))
    times: dict[str, list[float]] = {variant: [] for variant in steps}
    faults = dict.fromkeys(steps, 0)
    for _ in range(repetitions):
        for variant, step in steps.items():
            before = page_faults()
            times[variant].append(seconds(step, inner, clock))
            faults[variant] += page_faults() - before
    return {
        "steps_per_repetition": inner,
        "repetitions": repetitions,
        "not_available": missing,
        "variants": {
            variant: {
                "step_seconds": spread(measured),
                "page_faults": faults[variant] / (inner * repetitions),
                "ratio": spread(
                    [t / base for t, base in zip(measured, times[BASELINE], strict=True)]
                ),
            }
            for variant, measured in times.items()
        },
    }


def seconds(step: Step, count: int, clock: Callable[[], float]) -> float:
    """Mean seconds of a step over `count` steps."""
    start = clock()
    for _ in range(count):
        step()
    if torch.cuda.is_initialized():  # by what was measured: the CPU's times need no GPU
        torch.cuda.synchronize()
    return (clock() - start) / count


def page_faults() -> int:
    """Pages that this process has been given without the disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def spread(values: list[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def measure_products(model_name: str, repetitions: int) -> dict[str, Any]:
    """Multiply-adds and seconds of the products of a step in one shard, and of all its calls.

    Nothing where a step is not recorded.
    """
    from samebits.errors import UnsupportedError
    from samebits.train.run.profile import profile_step

    engine = bfp_engine(float_model(model_name), 1)
    try:
        found = profile_step(engine, batch(model_name), repetitions, clock=time.thread_time)
    except UnsupportedError:  # no compiler
        return {}
    products = {}
    for kind, kernels in PRODUCTS.items():
        own = [call for call in found.calls if call.kernel in kernels]
        products[kind] = {
            "products": sum(call.products for call in own),
            "seconds": sum(call.seconds for call in own),
        }
    return {
        "products": products,
        "calls": len(found.calls),
        "seconds": sum(call.seconds for call in found.calls),
        "update_seconds": found.update,
        "step_seconds": found.whole,
    }


def peaks() -> dict[str, float]:
    """Billions of multiply-adds a second of this processor's instructions; empty without C."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "peaks"
        command = ["cc", "-O2", "-march=native", str(PEAKS), "-o", str(program)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return {}
        done = subprocess.run([program], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure_resident(model_name: str, variant: str) -> dict[str, Any]:
    """Peak resident memory and persistent bytes of one variant."""
    from samebits.train.run.measure import bytes_per_parameter

    images, labels = batch(model_name)
    gc.collect()
    before = {address for address, _ in live_storages()}
    step = build(model_name, variant, images, labels)
    gc.collect()
    baseline = reset_peak_rss()
    for _ in range(WARM_UP):
        loss = step()
    peak = peak_rss()
    gc.collect()
    if isinstance(step, BfpStep):
        persistent = round(bytes_per_parameter(step.engine, 1))
    else:
        persistent = sum(size for address, size in live_storages() if address not in before)
    return {
        "peak_rss_bytes": peak - baseline,
        "persistent_bytes": persistent,
        "persistent_bytes_per_parameter": persistent / parameter_count(model_name),
        "loss": loss,  # of the last step: a check that it computes at all
    }


def live_storages() -> set[tuple[int, int]]:
    """(address, bytes) of every distinct tensor storage that Python can reach."""
    found = set()
    for candidate in gc.get_objects():
        # type(), not isinstance(): a lazy proxy imports its target when asked for __class__.
        if not issubclass(type(candidate), torch.Tensor):
            continue
        try:
            storage = candidate.untyped_storage()
            address, size = storage.data_ptr(), storage.nbytes()
        except (RuntimeError, NotImplementedError):
            continue  # a wrapper subclass: its parts are tensors of their own
        if address and size:
            found.add((address, size))
    return found


def reset_peak_rss() -> int:
    """Starts a new peak where Linux allows it; returns the resident bytes, or else the peak."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        try:
            clear.write_text("5", encoding="ascii")  # proc(5): resets VmHWM
        except OSError:
            return peak_rss()
        return status_bytes("VmRSS")
    return peak_rss()


def peak_rss() -> int:
    """Largest resident set of this process in bytes (since the last reset, on Linux)."""
    if Path("/proc/self/status").exists():
        return status_bytes("VmHWM")
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024  # macOS counts bytes


def status_bytes(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(f"/proc/self/status has no {field}")


def measure_allocations(model_name: str, variant: str) -> dict[str, Any]:
    """Peak of live tensor bytes during one step, by the profiler's record of every allocation.

    Everything from the batch on is built while recording: the recorder counts only what it has seen
    allocated.
    """
    label = "measured step"
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorder:
        images, labels = batch(model_name)
        step = build(model_name, variant, images, labels)
        for _ in range(WARM_UP):
            step()
        with record_function(label):
            step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorder.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    (window,) = (e for e in events if e.get("name") == label and e.get("ph") == "X")
    memory = sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"])
    start, end = window["ts"], window["ts"] + window["dur"]
    before = [e["args"]["Total Allocated"] for e in memory if e["ts"] < start]
    during = [e["args"]["Total Allocated"] for e in memory if start <= e["ts"] <= end]
    # The batch itself is in both numbers, the same for every variant.
    # A step that was recorded may allocate nothing: what it needs lies there between steps.
    peak = max([before[-1], *during])
    return {"peak_tensor_bytes": peak, "tensor_bytes_between_steps": before[-1]}


# --- running and reporting ----------------------------------------------------------------------


def in_fresh_process(threads: int, arguments: list[str]) -> dict[str, Any]:
    """Runs one measurement in a new interpreter with that many threads; returns its result."""
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONWARNINGS": "ignore",  # torchao's import is noisy; this process reports by file
    }
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, __file__, "--threads", str(threads), *arguments]
        done = subprocess.run(
            [*command, "--result", str(result)], env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command[2:])} failed:\n{done.stderr}")
        outcome: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return outcome


def time_pairs(
    model_name: str, variants: list[str], threads: int, repetitions: int, device: str
) -> dict[str, Any]:
    """Step times of every variant, each paired with float32; float32's own from the first pair."""
    merged: dict[str, Any] = {}
    for variant in [v for v in variants if v != BASELINE] or [BASELINE]:
        print(f"{model_name}: time, {variant}, {threads} threads", file=sys.stderr)
        pair = list(dict.fromkeys((BASELINE, variant)))
        timed = in_fresh_process(
            threads,
            [
                *("--worker", "time", "--models", model_name, "--variants", *pair),
                *("--repetitions", str(repetitions), "--device", device),
            ],
        )
        if not merged:
            merged = timed
        merged["not_available"] |= timed["not_available"]
        merged["variants"] = timed["variants"] | merged["variants"]
    order = [v for v in variants if v in merged["variants"]]
    merged["variants"] = {v: merged["variants"][v] for v in order}
    return merged


def run(
    models: list[str], variants: list[str], threads: list[int], repetitions: int, device: str
) -> Any:
    """All measurements of all models; of a GPU, their times."""
    results = []
    for model_name in models:
        entry: dict[str, Any] = {
            "model": model_name,
            "parameters": parameter_count(model_name),
            "time": {},
            "memory": {},
        }
        for count in threads:
            entry["time"][str(count)] = time_pairs(model_name, variants, count, repetitions, device)
        if device == "cpu" and any(variant in BFP_SHARDS for variant in variants):
            print(f"{model_name}: products", file=sys.stderr)
            arguments = ["--worker", "products", "--models", model_name]
            entry |= in_fresh_process(1, [*arguments, "--repetitions", str(repetitions)])
        missing = entry["time"][str(threads[0])]["not_available"]
        for variant in variants:
            if device != "cpu" or variant in missing:
                continue
            print(f"{model_name}: memory, {variant}", file=sys.stderr)
            memory: dict[str, Any] = {}
            for worker in ("resident", "allocations"):
                arguments = ["--worker", worker, "--models", model_name, "--variants", variant]
                memory |= in_fresh_process(1, arguments)
            entry["memory"][variant] = memory
        results.append(entry)
    return results


def told(report: dict[str, Any]) -> str:
    """The tables of docs/results.md, and what could not run here."""
    lines = [table(each) for each in train(report).tables.values()]
    for entry in report["results"]:
        for threads, timed in entry["time"].items():
            for variant, reason in timed["not_available"].items():
                where = f"{entry['model']}, threads {threads}, {variant}"
                lines.append(f"{where}: not available: {reason}")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--worker", choices=["time", "products", "resident", "allocations"], help=argparse.SUPPRESS
    )
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is None and options.out is None:
        parser.error("expected --out FILE: where to write the results as JSON")
    if options.worker in (None, "time") and BASELINE not in options.variants:
        parser.error(f"expected {BASELINE} among --variants: ratios are to it")
    return options


def main() -> None:
    """Measures everything asked for, or one thing when started as a worker."""
    options = arguments()
    if options.worker is None:
        machine = facts()  # before, so that the load average is not our own
        asked = (options.models, options.variants, options.threads, options.repetitions)
        results = run(*asked, options.device)
        report = {
            "benchmark": "training step",
            "batch": BATCH,
            "optimizer": f"SGD, momentum {MOMENTUM}",
            "variants": {name: VARIANTS[name] for name in options.variants},
            "machine": machine,
            "device": options.device,
            "peaks": peaks() if options.device == "cpu" else {},
            "instructions": INSTRUCTIONS,
            "results": results,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(told(report), file=sys.stderr)
        return
    torch.set_num_threads(options.threads[0])
    (model_name,) = options.models
    if options.worker == "time":
        outcome = measure_time(model_name, options.variants, options.repetitions, options.device)
    elif options.worker == "products":
        outcome = measure_products(model_name, options.repetitions)
    elif options.worker == "resident":
        outcome = measure_resident(model_name, options.variants[0])
    else:
        outcome = measure_allocations(model_name, options.variants[0])
    options.result.write_text(json.dumps(outcome), encoding="utf-8")


if __name__ == "__main__":
    main()
