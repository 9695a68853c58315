"""Int8 networks of the shapes that the benchmark suites for microcontrollers use, with random
weights: speed and memory depend on shapes and types, and little on what the weights know.

Shapes: MLPerf Tiny (Banbury et al., "MLPerf Tiny Benchmark", 2021), batch 1. The streaming network
of its version 1.3 is `wake-word`; `streaming` has windows of one size and padding.

What weights know counts where training killed channels, as half of those of the suite's network
for visual wake words: `trained` is the first part of that network with as many dead channels, some
large biases, and the padding of TensorFlow, which has one row more below than above.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from samebits.ir import Graph
from samebits.ir.rewrite import simplify
from samebits.model import Model
from samebits.numerics import philox
from samebits.pytorch import import_module
from samebits.quantization import quantize_graph
from samebits.train.architectures import initialise


def _conv(inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int = 1,
          pad: int | tuple[int, int] = 0, groups: int = 1) -> list[nn.Module]:  # fmt: skip
    """A convolution without bias, and its normalisation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, pad, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class _Residual(nn.Module):
    """Two 3x3 convolutions beside a path that is the identity, or 1x1 where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_conv(inputs, outputs, 3, stride, 1), nn.ReLU(), *_conv(outputs, outputs, 3, 1, 1)
        )
        changes = stride != 1 or inputs != outputs
        self.beside = nn.Conv2d(inputs, outputs, 1, stride) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, inputs, H, W] to [N, outputs, H / stride, W / stride]."""
        return torch.relu(self.body(x) + self.beside(x))


def _separable(inputs: int, outputs: int, stride: int = 1,
               kernel: int | tuple[int, int] = 3) -> list[nn.Module]:  # fmt: skip
    """A depthwise convolution and one of 1x1, each with its normalisation and ReLU."""
    pads = (kernel, kernel) if isinstance(kernel, int) else kernel
    pad = (pads[0] // 2, pads[1] // 2)
    depthwise = _conv(inputs, inputs, kernel, stride, pad, inputs)
    return [*depthwise, nn.ReLU(), *_conv(inputs, outputs, 1), nn.ReLU()]


def resnet8() -> nn.Module:
    """Image classification: [3, 32, 32] to 10 classes."""
    return nn.Sequential(
        *_conv(3, 16, 3, 1, 1), nn.ReLU(),
        _Residual(16, 16, 1), _Residual(16, 32, 2), _Residual(32, 64, 2),
        nn.AvgPool2d(8), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def ds_cnn() -> nn.Module:
    """Keyword spotting: [1, 49, 10] log-mel features to 12 words."""
    first = nn.Conv2d(1, 64, (10, 4), 2, (4, 1), bias=False)
    return nn.Sequential(
        nn.ZeroPad2d((0, 0, 0, 1)), first, nn.BatchNorm2d(64), nn.ReLU(),
        *(part for _ in range(4) for part in _separable(64, 64)),
        nn.AvgPool2d((25, 5)), nn.Flatten(), nn.Linear(64, 12),
    )  # fmt: skip


WIDTHS = [(8, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)]


def mobilenet() -> nn.Module:
    """Visual wake words: MobileNet v1 of width 0.25, [3, 96, 96] to 2 classes."""
    widths = WIDTHS + [(128, 128, 1)] * 5 + [(128, 256, 2), (256, 256, 1)]
    return nn.Sequential(
        *_conv(3, 8, 3, 2, 1), nn.ReLU(),
        *(part for width in widths for part in _separable(*width)),
        nn.AvgPool2d(3), nn.Flatten(), nn.Linear(256, 2),
    )  # fmt: skip


def trained() -> nn.Module:
    """The first layers of that network, [3, 32, 32] to 2 classes; `_kill` makes channels of it what
    training makes of them."""
    return nn.Sequential(
        *_conv(3, 8, 3, 2, 1), nn.ReLU(),
        *(part for width in WIDTHS for part in _separable(*width)),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(128, 2),
    )  # fmt: skip


def _kill(module: nn.Module) -> None:
    """Half of the channels of every normalisation dead, with a scale as small as training leaves
    it and a shift below 0, and an eighth that moves little around a number."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.weight.data[1::2] *= 1e-8
            part.bias.data[1::2] = -0.05
            part.weight.data[2::8] *= 1e-3
            part.bias.data[2::8] = 1.0


def _below(graph: Graph) -> Graph:
    """Convolutions of stride 2 with the padding of TensorFlow, of even images of which a symmetric
    one gives as many outputs."""
    nodes = tuple(
        replace(node, attributes={**node.attributes, "pads": (0, 0, 1, 1)})
        if node.op == "Conv" and node.attributes["strides"] == (2, 2)
        else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def autoencoder() -> nn.Module:
    """Anomaly detection: 640 features to themselves through 8."""
    widths = [640, 128, 128, 128, 128, 8, 128, 128, 128, 128]
    parts: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        parts += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(128, 640))


def _valid(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
    """A depthwise convolution along a line, without padding, and one of 1x1."""
    depthwise = _conv(inputs, inputs, (kernel, 1), groups=inputs)
    return [*depthwise, nn.ReLU(), *_conv(inputs, outputs, 1), nn.ReLU()]


def wake_word() -> nn.Module:
    """Streaming wake word: a line of 30 frames with 40 features, [40, 30, 1], to 3 classes."""
    return nn.Sequential(
        *_valid(40, 128, 3), *_valid(128, 128, 5), *_valid(128, 128, 10), *_valid(128, 32, 15),
        nn.Flatten(), nn.Linear(32, 3),
    )  # fmt: skip


def streaming() -> nn.Module:
    """Lines of 30 frames with 40 features, as [40, 30, 1], to 3 classes, with padding."""
    line = functools.partial(_separable, kernel=(3, 1))
    return nn.Sequential(
        *_conv(40, 128, (3, 1)), nn.ReLU(),
        *line(128, 128), *line(128, 128), *line(128, 128), *line(128, 32),
        nn.AvgPool2d((28, 1)), nn.Flatten(), nn.Linear(32, 3),
    )  # fmt: skip


NETS = {
    "resnet8": (resnet8, (3, 32, 32)),
    "ds-cnn": (ds_cnn, (1, 49, 10)),
    "mobilenet": (mobilenet, (3, 96, 96)),
    "autoencoder": (autoencoder, (640,)),
    "streaming": (streaming, (40, 30, 1)),
    "wake-word": (wake_word, (40, 30, 1)),
    "trained": (trained, (3, 32, 32)),
}


def samples(shape: tuple[int, ...], count: int, site: int) -> torch.Tensor:
    """Reproducible numbers in [-1, 1], [count, *shape]."""
    words = philox.words(count * int(np.prod(shape)), (0, site)).to(torch.float64)
    return (words * 2.0**-31 - 1).to(torch.float32).reshape(count, *shape)


@functools.cache
def edge_net(name: str) -> tuple[Graph, Model]:
    """A float network of NETS and its 8-bit form: weights by channel, ranges of 16 samples."""
    make, shape = NETS[name]
    module = make()
    initialise(module, 0)
    module.train()
    with torch.no_grad():
        for site in range(4):  # running statistics that keep activations alive
            module(samples(shape, 32, site))
        if name == "trained":
            _kill(module)
    graph = simplify(import_module(module.eval(), (torch.zeros(1, *shape),)))
    if name == "trained":
        graph = _below(graph)
    calibration = [{graph.inputs[0]: x[None].numpy()} for x in samples(shape, 16, 9)]
    real, _ = quantize_graph(graph, calibration)
    return graph, Model(name, real)
