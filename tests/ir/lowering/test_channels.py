"""Channels of one code are folded and dropped: the codes of the interpreter, on random networks."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from compare import assert_same
from samebits.codegen.lowering.cpu import find_cpu
from samebits.codegen.lowering.lower import lower_to_calls
from samebits.ir import Graph, GraphBuilder, interpreter
from samebits.ir.integer.bounds import bounds
from samebits.ir.lowering.channels import fold_channels
from samebits.ir.verify import verify

ZERO = -128


class Net(GraphBuilder):
    """A network of int8 codes, some channels of which no sum of products moves."""

    def __init__(self, seed: int, channels: int) -> None:
        super().__init__(f"dead{seed}")
        self.rng = np.random.default_rng(seed)
        self.x = self.input("x", "int8", (1, 5, 6, channels))

    def conv(
        self,
        kernel: int,
        outputs: int,
        dead: Any,
        groups: int = 1,
        kind: int | None = None,
        **attributes: Any,
    ) -> str:
        """A convolution that ends in int8 codes from ZERO on. dead: its channels of one code, each
        of a kind: with a bias out of reach, below or above, or a scale that moves no code."""
        depth = self.values[self.x].shape[3] // groups
        w = self.rng.integers(-127, 128, (outputs, kernel, kernel, depth)).astype(np.int8)
        b = self.rng.integers(-9000, 9000, outputs).astype(np.int32)
        scales = [int(n) for n in self.rng.integers(1 << 10, 1 << 20, outputs)]
        ratios = [Fraction(n, kernel * kernel * depth << 24) for n in scales]
        for channel in dead:
            own = int(self.rng.integers(0, 3)) if kind is None else kind
            b[channel] = (-(1 << 28), 1 << 28, b[channel])[own]
            ratios[channel] = Fraction(1, 10**12) if own == 2 else ratios[channel]
        names = self.x, self.constant("w", w), self.constant("b", b)
        acc = self.add("conv", names, {"groups": groups, "dtype": "int64", **attributes})
        codes: dict[str, Any] = {"zero": ZERO, "low": ZERO, "high": 127, "dtype": "int8"}
        self.x = self.add("requantize", [acc], {"ratios": tuple(ratios), **codes})
        return self.x

    def end(self) -> Graph:
        """Maxima over the image, and a linear layer to five sums."""
        tops = self.add("reduce_max", [self.x], {"axes": (1, 2), "keepdims": False})
        shape = (5, self.values[tops].shape[1])
        w = self.constant("w", self.rng.integers(-127, 128, shape).astype(np.int8))
        b = self.constant("b", np.zeros(5, np.int32))
        return self.build([self.add("linear", [tops, w, b])])


def some(net: Net, channels: int) -> list[int]:
    """About half of the channels."""
    return [channel for channel in range(channels) if net.rng.random() < 0.5]


def random_net(seed: int) -> Graph:
    """Products, depthwise ones with padding of some code, clips and pools, in any order."""
    net = Net(seed, 1 + seed * 7 % 40)
    outputs = 1 + int(net.rng.integers(0, 50))
    net.conv(1, outputs, some(net, outputs))
    for _ in range(int(net.rng.integers(1, 6))):
        channels, kind = net.values[net.x].shape[3], int(net.rng.integers(0, 5))
        padded: dict[str, Any] = {
            "pads": (1, 1, 1, 1),
            "pad_code": int(net.rng.choice([ZERO, 127, 5])),
        }
        if kind == 0:
            outputs = 1 + int(net.rng.integers(0, 50))
            net.conv(1, outputs, some(net, outputs))
        elif kind == 1:
            net.conv(3, 20, some(net, 20), **padded)
        elif kind == 2:
            net.conv(3, channels, some(net, channels), channels, **padded)
        elif kind == 3:
            net.x = net.add("clip", [net.x], {"low": -120, "high": 100})
        else:
            net.x = net.add("max_pool", [net.x], {"kernel": (2, 2)})
    return net.end()


def check(graph: Graph) -> Graph:
    """The folded graph, whose outputs have the codes of `graph` for random inputs."""
    found = fold_channels(graph)
    verify(found)
    assert (found.inputs, found.outputs) == (graph.inputs, graph.outputs)
    assert [found.values[n] for n in found.outputs] == [graph.values[n] for n in graph.outputs]
    rng = np.random.default_rng(len(graph.nodes))
    shapes = [graph.values[name].shape for name in graph.inputs]
    for _ in range(3):
        codes = [rng.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
        pairs = zip(interpreter.run(found, codes), interpreter.run(graph, codes), strict=True)
        for a, b in pairs:
            assert_same(a, b, range(a.size))
    return found


@pytest.mark.parametrize("block", range(5))
def test_random_networks_keep_every_code(block: int) -> None:
    folded = 0
    for seed in range(30 * block, 30 * (block + 1)):
        graph = random_net(seed)
        found = check(graph)
        assert fold_channels(found) is found
        folded += found is not graph
    assert folded > 25


def sizes(graph: Graph) -> list[int]:
    """Channels of every convolution."""
    return [graph.values[node.output].shape[-1] for node in graph.nodes if node.op == "conv"]


def chain(dead: int, pad_code: int) -> Graph:
    """A 1x1 convolution with dead channels, a padded depthwise one, and one of 1x1."""
    net = Net(3, 32)
    net.conv(1, 64, range(dead), kind=0)
    net.conv(3, 64, (), 64, pads=(1, 1, 1, 1), pad_code=pad_code)
    net.conv(1, 16, ())
    return net.end()


def test_channels_leave_through_a_depthwise_layer_up_to_whole_vectors() -> None:
    assert sizes(check(chain(30, ZERO))) == [48, 48, 16]
    assert sizes(check(chain(64, ZERO))) == [16, 16, 16]
    assert sizes(check(chain(12, ZERO))) == [64, 64, 16]  # 52 are four vectors too


def test_padding_of_another_code_keeps_the_channels_but_not_their_products() -> None:
    found = check(chain(30, 5))
    assert sizes(found) == [64, 64, 16]
    assert not found.constants[found.nodes[0].inputs[1]][:30].any()


def test_a_dead_channel_has_the_interval_and_the_scale_of_its_neighbours() -> None:
    """Neither its bias nor its ratio rules a packed kernel out for the others."""
    net = Net(1, 16)
    net.conv(1, 16, (4, 5, 6, 7))
    graph = net.build([net.x])
    found = check(graph)
    acc, requantize = found.nodes
    ratios = graph.nodes[1].attributes["ratios"]
    alive = [ratio for channel, ratio in enumerate(ratios) if channel not in (4, 5, 6, 7)]
    assert set(requantize.attributes["ratios"][4:8]) == {max(alive)}
    for low, high in bounds(found)[acc.output].over(16)[4:8]:
        assert low == high
        assert abs(low) < 1 << 18
    (before,), (after,) = (lower_to_calls(g, find_cpu("cortex-m4")).entries for g in (graph, found))
    calls = [entry.calls[0] for entry in (before, after)]
    assert [call.function for call in calls] == ["conv8_packed"] * 2
    assert [call.parameters.fields["long_sums"] for call in calls] == [1, 0]


def test_nothing_changes_without_constant_channels() -> None:
    net = Net(2, 8)
    net.conv(3, 16, ())
    graph = net.end()
    assert fold_channels(graph) is graph


def test_sums_of_two_paths_lose_what_is_constant_in_both() -> None:
    net = Net(5, 8)
    source = net.x
    first = net.conv(1, 32, range(20))
    net.x = source
    second = net.conv(1, 32, range(4, 24))
    total = net.add("add", [first, second], {"factors": (1, 1), "offset": 0})
    codes: dict[str, Any] = {
        "ratios": (Fraction(1, 2),),
        "zero": 0,
        "low": -128,
        "high": 127,
        "dtype": "int8",
    }
    net.x = net.add("requantize", [total], codes)
    net.conv(1, 4, ())
    assert sizes(check(net.end())) == [16, 16, 4]
