"""Instructions of generated C on an emulated board, layer by layer.

The trace hook of the package is called after every layer; here it reads the board's timer and
starts it again. What the hook itself takes is measured with two calls in a row, and subtracted.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from samebits.codegen.lowering.calls import KernelCall, Struct
from samebits.codegen.lowering.cpu import find_cpu
from samebits.codegen.packaging.package import write_package
from samebits.codegen.rolling import calls_for
from samebits.codegen.run.execute import Array, build, instruction_count, layer_instructions
from samebits.codegen.run.interface import Interface
from samebits.codegen.run.targets import Target
from samebits.errors import InputError
from samebits.ir.graph import Graph


@dataclass(frozen=True)
class LayerCost:
    """One layer: instructions of its kernels, and the products of codes that they sum up."""

    name: str
    op: str
    kernels: tuple[str, ...]
    shape: tuple[int, ...]
    instructions: int
    products: int


def layer_costs(
    graph: Graph, target: Target, inputs: Sequence[Array]
) -> tuple[list[LayerCost], int]:
    """(the layers of one run, its instructions as a whole, measured without the hook).

    The package is made for the board's processor. inputs: one sample for every input. Raises
    InputError where the target is no board, cannot be used here, or the model does not fit it.
    """
    if target.board is None:
        raise InputError(
            f"expected a board whose emulator counts instructions, found {target.name}; give one "
            "of the cortex-m targets"
        )
    calls, producers = calls_for(graph, find_cpu(target.cpu)), graph.producers()
    with tempfile.TemporaryDirectory() as name:
        folder, interface = Path(name), Interface.of(graph)
        write_package(graph, folder / "package", cpu=target.cpu)
        whole = build(folder / "package", target, folder / "whole", interface)
        by_layer = build(folder / "package", target, folder / "layers", interface, profile=True)
        counts = layer_instructions(by_layer, inputs)
        total = instruction_count(whole, inputs)[0]
    layers = [
        LayerCost(
            entry.value,
            producers[entry.value].op,
            tuple(dict.fromkeys(call.function for call in entry.calls)),
            graph.values[entry.value].shape,
            count,
            sum(map(products, entry.calls)),
        )
        for entry, count in zip(calls.entries, counts, strict=True)
    ]
    return layers, total


def products(call: KernelCall) -> int:
    """Products of two codes that a kernel call sums up: those of convolutions and matrices."""
    f = call.parameters.fields

    def number(*keys: str) -> int:
        found = 1
        for key in keys:
            value = f[key]
            assert isinstance(value, int)
            found *= value
        return found

    if "kernel_height" in f and "out_channels" in f:
        outputs = number("batch", "out_height", "out_width", "out_channels")
        taps = outputs * number("kernel_height", "kernel_width")
        if call.function.startswith("depthwise"):
            return taps
        return taps * number("channels") // (number("groups") if "groups" in f else 1)
    if call.parameters.type == "linear_sums":
        return number("rows", "depth", "outputs")
    if call.parameters.type == "packed16":
        window = f["window"]
        assert isinstance(window, Struct)
        found = products(replace(call, parameters=window))
        return found if call.function.startswith("depthwise") else found // 2
    if call.parameters.type == "rolled":
        conv = f["conv"]
        assert isinstance(conv, Struct)
        whole = call.function.removesuffix("_rolling")
        return products(replace(call, function=whole, parameters=conv))
    if call.parameters.type == "matmul":
        leading = f["leading"]
        assert isinstance(leading, Struct)
        sizes = leading.fields["shape"]
        assert isinstance(sizes, tuple)
        return number("rows", "depth", "columns") * math.prod(sizes)
    return 0
