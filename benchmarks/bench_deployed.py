"""What is left of what networks learned in BFP: the same weights in float32, evaluated, deployed.

    python benchmarks/bench_deployed.py --images cifar.npz --recordings fsdd --out deployed.json
    python benchmarks/bench_deployed.py --nets cnn vit --seeds 1 --out some.json

Every net is trained twice from the same initial values on the same batches: in float32, and in BFP
with one exponent a tensor. The weights and running statistics of the second are then given to the
float32 net (`same weights`), evaluated by samebits (`evaluation`), and deployed with exponents of
256 training samples (`deployed`). Agreement is the share of test samples whose class is that of the
same weights in float32. `largest` is deployed by the rule of before: no sample saturates.

--images: an archive of CIFAR-10 as `samebits train --data` takes it; --recordings: a folder of
spoken digits. Nets whose data is not given are left out. A record is written after every net.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import samebits as sb
import samebits.train as bfp
from machine import write_record
from samebits.data import load
from samebits.train.architectures import build, initialise
from samebits.train.deployed import deploy

BATCH, EVALUATED, CALIBRATED = 32, 50, deploy.CALIBRATION_SAMPLES


class Excite(nn.Module):
    """Squeeze and excitation (Hu et al. 2018)."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.pool, self.silu, self.sigmoid = nn.AdaptiveAvgPool2d(1), nn.SiLU(), nn.Sigmoid()
        self.down, self.up = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale: Tensor = self.sigmoid(self.up(self.silu(self.down(self.pool(x)))))
        return x * scale


def unit(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[Any]:
    """A convolution and its batch norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class Inverted(nn.Module):
    """The block of EfficientNet (Tan and Le 2019)."""

    def __init__(self, expand: int, kernel: int, stride: int, inputs: int, outputs: int) -> None:
        super().__init__()
        inner = inputs * expand
        first = [*unit(inputs, inner, 1), nn.SiLU()] if expand > 1 else []
        depthwise = [*unit(inner, inner, kernel, stride, inner), nn.SiLU()]
        excite = Excite(inner, max(1, inputs // 4))
        self.body = nn.Sequential(*first, *depthwise, excite, *unit(inner, outputs, 1))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.adds else y


def efficientnet() -> nn.Module:
    """A small EfficientNet for images of 32 pixels."""
    blocks = (
        *((1, 3, 1, 16, 8), (6, 3, 1, 8, 16), (6, 3, 1, 16, 16), (6, 5, 2, 16, 24)),
        *((6, 5, 1, 24, 24), (6, 3, 2, 24, 40), (6, 3, 1, 40, 40), (6, 5, 2, 40, 80)),
    )
    body = [*unit(3, 16, 3, 2), nn.SiLU(), *(Inverted(*b) for b in blocks)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(320, 10)]
    net = nn.Sequential(*body, *unit(80, 320, 1), nn.SiLU(), *head)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return net


class Dense(nn.Module):
    """A layer of DenseNet (Huang et al. 2017), beside its input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        norm, relu = nn.BatchNorm2d(inputs), nn.ReLU()
        self.body = nn.Sequential(norm, relu, nn.Conv2d(inputs, growth, 3, padding=1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet() -> nn.Module:
    """Three blocks of four layers, with a convolution and a pool between them."""
    channels, layers = 16, [nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
    made: list[nn.Module] = list(layers)
    for block in range(3):
        for _ in range(4):
            made.append(Dense(channels, 12))
            channels += 12
        if block < 2:
            made += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1)]
            made.append(nn.AvgPool2d(2))
            channels //= 2
    made += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*made, nn.Linear(channels, 10))


@dataclass(frozen=True)
class Task:
    """A net, its data (images, digits, recordings), and how long and fast it trains."""

    net: str | Callable[[], nn.Module]
    data: str
    steps: int
    rate: float
    adam: bool = False


TASKS = {
    "efficientnet": Task(efficientnet, "images", 300, 0.05),
    "mobilenetv2": Task("mobilenetv2", "images", 300, 0.05),
    "densenet": Task(densenet, "images", 300, 0.05),
    "resnet8": Task("resnet8", "images", 300, 0.05),
    "cnn": Task("cnn", "digits", 300, 0.05),
    "vit": Task("vit", "digits", 300, 0.003, adam=True),
    "lstm": Task("lstm", "recordings", 600, 0.003, adam=True),
}


def optimizer(task: Task, model: nn.Module, numerics: str, seed: int) -> Any:
    """SGD with momentum, or Adam, in one of the numerics."""
    of: Any = bfp if numerics == "bfp" else torch.optim
    more = {"seed": seed} if numerics == "bfp" else {}
    if task.adam:
        return of.Adam(model.parameters(), lr=task.rate, **more)
    return of.SGD(model.parameters(), lr=task.rate, momentum=0.9, weight_decay=1e-4, **more)


def trained(task: Task, net: nn.Module, numerics: str, data: Any, seed: int) -> nn.Module:
    """A copy of the net, trained; images are flipped at random."""
    model = sb.convert(copy.deepcopy(net)) if numerics == "bfp" else copy.deepcopy(net)
    steps = optimizer(task, model.train(), numerics, seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(steps, task.steps)
    random, count = torch.Generator().manual_seed(seed), len(data.train_labels)
    for step in range(task.steps):
        chosen = torch.randint(count, (BATCH,), generator=random)
        x, y = data.batch("train", chosen), data.train_labels[chosen]
        if task.data == "images":
            flip = torch.rand(BATCH, generator=random) < 0.5
            x = torch.where(flip[:, None, None, None], x.flip(3), x)
        steps.zero_grad()
        if numerics == "bfp":
            bfp.set_step(model, seed, step, 0)
            loss = bfp.cross_entropy(model(bfp.model_input(model, x)), y)
        else:
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        steps.step()
        schedule.step()
    return model.eval()


def same_weights(model: nn.Module, net: nn.Module) -> nn.Module:
    """The float32 net with the weights and statistics of a BFP model."""
    state, own, trained = net.state_dict(), model.state_dict(), dict(model.named_parameters())
    for key, value in state.items():
        if key in trained:
            state[key] = trained[key].detach().dequantize().float().reshape(value.shape)
        elif key in own:
            state[key] = own[key].to(value.dtype)
    net.load_state_dict(state)
    return net.eval()


def outputs(samples: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
    """The logits of all samples, some at a time."""
    with torch.no_grad():
        return torch.cat([run(x).double() for x in samples.split(EVALUATED)])


def line(name: str, seed: int, data: Any, count: int) -> dict[str, Any]:
    """One net of one seed: accuracies of the test samples, and agreements."""
    task = TASKS[name]
    torch.manual_seed(seed)
    classes = int(data.train_labels.max()) + 1
    if isinstance(task.net, str):
        net = build(task.net, data.input_shape, classes)
        initialise(net, seed)
    else:
        net = task.net()
    float32 = trained(task, net, "float32", data, seed)
    model = trained(task, net, "bfp", data, seed)
    tests = torch.arange(min(count, len(data.test_labels)))
    samples, labels = data.batch("test", tests), data.test_labels[tests]
    twin = outputs(samples, same_weights(model, net))

    def shares(logits: Tensor) -> dict[str, float]:
        found = logits.argmax(1)
        right, alike = found == labels, found == twin.argmax(1)
        return {"accuracy": float(right.double().mean()), "agreement": float(alike.double().mean())}

    train = len(data.train_labels)
    every = [i * train // CALIBRATED for i in range(CALIBRATED)]
    batches = [data.batch("train", torch.tensor([i])) for i in every]
    forms = {
        form: deploy.deployed(model, deploy.calibrate(model, batches, tenths))
        for form, tenths in (("deployed", deploy.TENTHS), ("largest", 10))
    }

    def evaluated(x: Tensor) -> Tensor:
        found: Tensor = model(bfp.model_input(model, x)).dequantize()
        return found

    return {
        "net": name,
        "seed": seed,
        "spread": forms["deployed"].exponents.spread,
        "float32": shares(outputs(samples, float32)),
        "same weights": shares(twin),
        "evaluation": shares(outputs(samples, evaluated)),
        **{form: shares(outputs(samples, made.logits)) for form, made in forms.items()},
    }


def main() -> None:
    """Print a line for each net and seed, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--images", help="CIFAR-10 as --data takes it")
    parser.add_argument("--recordings", help="a folder of recordings, <class>/*.wav")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--test", type=int, default=1000, help="test samples")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sources = {"digits": "digits", "images": given.images, "recordings": given.recordings}

    @cache
    def data(kind: str) -> Any:
        return load(sources[kind])

    lines: list[dict[str, Any]] = []
    for name in given.nets:
        if sources[TASKS[name].data] is None:
            print(f"{name}: left out, its data is not given")
            continue
        for seed in range(given.seeds):
            lines.append(line(name, seed, data(TASKS[name].data), given.test))
            found = lines[-1]
            shown = (
                f"{form} {100 * v['accuracy']:.1f} % ({v['agreement']:.3f})"
                for form, v in found.items()
                if isinstance(v, dict)
            )
            print(name, seed, *shown, f"spread {found['spread']:.2f}", flush=True)
            write_record(given.out, lines=lines)
    mean = np.mean([v["deployed"]["agreement"] for v in lines]) if lines else 0.0
    print(f"agreement of the deployed form, mean of all lines: {mean:.3f}")


if __name__ == "__main__":
    main()
