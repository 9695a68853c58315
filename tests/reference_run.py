"""A whole run in plain Python integers: what docs/spec/training.md says of `samebits train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from reference_nets import state_of
from samebits.data import Dataset
from samebits.data.augment import Augmentation
from samebits.spec import formats
from samebits.spec.philox import philox4x32
from samebits.spec.training import average, clipping, optimizer
from samebits.spec.training.augment import augment, words_of
from samebits.spec.training.layers import Array, Parameter, quantize_input, resolve
from samebits.spec.training.loss import cross_entropy, general_cross_entropy
from samebits.spec.training.step import PEAKS, Buffers, Node, Parameters, backward, forward
from samebits.train.run.config import TrainConfig
from samebits.train.run.schedule import Schedule
from samebits.train.widths import Widths

NODES = [
    Node("input", "input"),
    Node("conv", "conv2d", ("input",), {"padding": 1}),
    Node("norm", "batch_norm", ("conv",)),
    Node("relu", "relu", ("norm",)),
    Node("deep", "conv2d", ("relu",)),
    Node("drop", "dropout", ("deep",), {"p": 0.25}),
    Node("act", "relu", ("drop",)),
    Node("pool", "global_avg_pool", ("act",)),
    Node("flatten", "flatten", ("pool",)),
    Node("out", "linear", ("flatten",)),
]
DROPPED = 4 * 3 * 3  # elements of a sample that dropout sees
SHIFTING = {"conv": 3, "norm": 3, "deep": 4, "out": 3}  # layers, and their channels


@dataclass
class Run:
    """What a run leaves: the weights it trained, their averages if it keeps them, statistics."""

    parameters: Parameters
    averages: dict[str, list[formats.Tensor]]
    buffers: Buffers
    losses: list[float]  # the mean of every step


def order_of(count: int, seed: int, epoch: int) -> list[int]:
    """Section 8.1: sorted by a word of every sample."""
    words = [philox4x32((i // 4, 0, 2**32 - 1, 0), (seed, epoch))[i % 4] for i in range(count)]
    return sorted(range(count), key=words.__getitem__)


def maker(config: TrainConfig) -> Any:
    """The optimizer at a learning rate."""
    seed = None if config.rounding == "nearest" else config.seed
    common = {"weight_decay": config.weight_decay, "seed": seed}
    if config.optimizer == "sgd":
        own = {"momentum": config.momentum, "nesterov": config.nesterov}
        return optimizer.SGD(config.lr, **own, **common)
    return optimizer.Adam(config.lr, decoupled=config.optimizer == "adamw", **common)


def picture(data: Dataset, config: TrainConfig, epoch: int, sample: int) -> list[float]:
    """The values of an augmented image, its channels one after the other."""
    chosen = Augmentation.parse(config.augment)
    words = words_of(config.seed, epoch, sample)
    planes = data.train_images[sample].tolist()
    done = [augment(p, words, chosen.zoom, chosen.flip, chosen.crop) for p in planes]
    return data.values(data.train_images.new_tensor(done)).flatten().tolist()


def clipped(gradients: dict[str, formats.Tensor], config: TrainConfig) -> dict[str, formats.Tensor]:
    """Section 4: by value, then by norm."""
    if config.clip_value is not None:
        limit = config.clip_value
        gradients = {name: clipping.clip_value(g, limit) for name, g in gradients.items()}
    if config.clip_norm is not None:
        new = clipping.clip_norm(list(gradients.values()), config.clip_norm)
        gradients = dict(zip(gradients, new, strict=True))
    return gradients


def summed(parts: Sequence[Array], bits: int) -> formats.Tensor:
    """Section 8: the sum over the shards, in 32 or 16 bits."""
    if bits == 32:
        found = resolve(parts)
        return found.codes, found.one_exponent
    return formats.resolve_short([(part.codes, part.one_exponent) for part in parts])


def reference_run(config: TrainConfig, data: Dataset, model: nn.Module) -> Run:
    """All steps of a run from an initialised float model."""
    widths, by_rows = Widths.parse(config.widths), config.exponents != "tensor"
    names = {name.split(".")[0]: tuple(widths) for name in model.state_dict()}
    parameters, buffers = state_of(model, by_rows, names)
    if config.exponents == "row-shift":
        buffers |= {f"{name}.{PEAKS}": [0.0] * size for name, size in SHIFTING.items()}
    averages = {
        name: [average.start(row) for row in optimizer.rows_of(p.weight)]
        for name, p in parameters.items()
    }
    run = Run(parameters, averages, buffers, [])
    state: dict[str, Any] = {}
    count, shards = len(data.train_labels), config.shard_count()
    per_epoch, size = count // config.batch, config.batch // shards
    schedule = Schedule(config.schedule, config.lr, per_epoch * config.epochs, config.warmup)
    for step in range(schedule.total):
        epoch, offset = divmod(step, per_epoch)
        batch = order_of(count, config.seed, epoch)[offset * config.batch :][: config.batch]
        parts: dict[str, list[Array]] = {}
        total, at_start = 0.0, run.buffers
        for shard in range(shards):
            chosen = batch[shard * size :][:size]
            values = [v for i in chosen for v in picture(data, config, epoch, i)]
            shape = (size, *data.input_shape)
            given = {"input": quantize_input(values, shape, by_rows, widths.values)}
            words = [
                philox4x32((i // 4, step, shard, 0), (config.seed, 0))[i % 4]
                for i in range(size * DROPPED)
            ]
            done, run.buffers = forward(
                NODES, run.parameters, run.buffers, given, words={"drop": words}, at_start=at_start
            )
            labels = [int(data.train_labels[i]) for i in chosen]
            loss, at = entropy(done.wide["out"], labels, 1.0 / shards, config.label_smoothing)
            total += loss
            for name, found in backward(NODES, run.parameters, done, at)[0].items():
                parts.setdefault(name, []).extend(found)
        gradients = {n: summed(parts[n], config.gradient_bits) for n in run.parameters}
        rule = replace(maker(config), lr=schedule.at(step))
        for index, (name, g) in enumerate(clipped(gradients, config).items()):
            own = rule.update(name, index, run.parameters[name], g, state.get(name))
            run.parameters[name], state[name] = own
        run.losses.append(total / shards)
        if config.ema is not None:
            _take(run, config.ema)
    return run


def entropy(z: Array, labels: list[int], scale: float, smoothing: float) -> tuple[float, Array]:
    """Section 6.2, or 6.3 of smoothed targets."""
    if smoothing:
        return general_cross_entropy(z, labels, scale, smoothing=smoothing)
    return cross_entropy(z, labels, scale)


def _take(run: Run, decay: float) -> None:
    """Section 4: the weights after a step into their averages."""
    for name, p in run.parameters.items():
        news = optimizer.rows_of(p.weight)
        pairs = zip(run.averages[name], news, strict=True)
        run.averages[name] = [average.update(old, new, decay) for old, new in pairs]


def averaged(run: Run, bits: int) -> dict[str, Parameter]:
    """The parameters that stand for the averages."""
    found = {}
    for name, p in run.parameters.items():
        rows = [average.averaged(own, bits) for own in run.averages[name]]
        codes, delayed = ([v for row in rows for v in row[part]] for part in (0, 1))
        own = tuple(row[2] for row in rows)
        exponent = own if isinstance(p.exponent, tuple) else own[0]
        found[name] = replace(p, weight=(codes, delayed, exponent))
    return found


def state_dict(parameters: Mapping[str, Parameter], buffers: Buffers) -> dict[str, Any]:
    """The entries of a checkpoint's model, as lists (section 9)."""
    found: dict[str, Any] = {name: list(values) for name, values in buffers.items()}
    for name, p in parameters.items():
        codes, delayed, exponent = p.weight
        own = list(exponent) if isinstance(exponent, tuple) else exponent
        found |= {f"{name}.codes": codes, f"{name}.delayed": delayed, f"{name}.exponent": own}
    return found
