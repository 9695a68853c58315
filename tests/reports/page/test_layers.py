"""Layers: what is merged, what each stores and multiplies, and its row in the table."""

from __future__ import annotations

import itertools

import pytest

from samebits.codegen.footprint import footprint
from samebits.codegen.run.profile import LayerCost
from samebits.ir import Value
from samebits.ir.figures import constant_bytes, multiply_adds
from samebits.quantization.causes import TensorLoss
from samebits.reports.page.arena import arena_map, arena_section
from samebits.reports.page.graph import graph_section
from samebits.reports.page.layers import byte_size, layers_of
from samebits.reports.page.rows import layer_table
from samebits.reports.page.weights import weights_section
from tiny_models import quantized_graph


@pytest.fixture(scope="module")
def integer():
    from samebits.model import Model

    return Model("tiny", quantized_graph()).integer


@pytest.fixture(scope="module")
def layers(integer):
    return layers_of(integer, {}, footprint(integer))


def test_every_node_is_in_one_layer(integer, layers):
    """The accumulators of products are no layers: C stores what they are requantized to."""
    assert [layer.op for layer in layers if layer.tone == "product"] == ["linear", "linear"]
    assert "requantize" not in [layer.op for layer in layers]
    assert sum(layer.multiply_adds for layer in layers) == multiply_adds(integer)
    assert sum(layer.weight_bytes for layer in layers) >= footprint(integer).constants
    keys = {layer.key for layer in layers} | set(integer.inputs)
    assert {source for layer in layers for source in layer.reads} <= keys
    assert set(integer.outputs) <= keys


def test_float_graphs_have_a_layer_for_every_node():
    graph = quantized_graph()
    found = layers_of(graph, {})
    assert [layer.key for layer in found] == [node.output for node in graph.nodes]
    assert sum(layer.weight_bytes for layer in found) >= constant_bytes(graph)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float32", 24), ("int8", 6), ("uint16", 12), ("bool", 6), ("int4", 3), ("float8_e4m3fn", 6)],
)
def test_bytes_of_types(dtype, size):
    assert byte_size(Value("x", dtype, (2, 3))) == size


LOSS = TensorLoss(4.0, 3.0, 1.0, None, 0.015, True, 21.04, -1.0, 2.0, (1, 2, 3))


def test_the_table_of_the_layers(layers):
    costs = {"cortex-m3": [LayerCost(layers[0].key, "linear", ("linear8",), (1, 8), 1234, 32)]}
    table = layer_table([], layers, {layers[0].key: LOSS}, costs, 300)
    titles = [title for title, _ in table.columns]
    assert {len(row.cells) for row in table.rows} == {len(titles)} == {len(table.totals)}
    first = dict(zip(titles, table.rows[0].cells, strict=True))
    assert first["instructions, cortex-m3"] == "1,234"
    assert (first["SQNR, dB"], first["clipped"]) == ("21.0", "1.50 %")
    assert first["lost by"] == "activations rounded 75 %\nactivations clipped 25 %"
    assert table.rows[0].histogram.counts == (1, 2, 3)
    assert [row.key for row in table.rows] == [f"layer-{i}" for i in range(1, len(layers) + 1)]
    assert "SQNR, dB" not in [title for title, _ in layer_table([], layers, {}, {}, 300).columns]


def test_the_graph_links_to_rows(integer, layers):
    section = graph_section(integer, layers)
    boxes = section.blocks[1].boxes
    keys = {row.key for row in layer_table([], layers, {}, {}, 300).rows}
    assert {box.item.key for box in boxes if box.item.key} == keys
    assert sum(box.item.tone == "port" for box in boxes) == 2
    names = {box.item.name for box in boxes}
    assert set(integer.inputs) <= names
    assert set(integer.outputs) <= names


def test_the_arena_holds_every_live_byte(integer):
    from samebits.codegen.lowering.lower import lower_to_calls
    from samebits.codegen.memory import layout

    calls = lower_to_calls(integer)
    memory = layout(calls)
    found = arena_map(calls, memory)
    for entry in range(len(calls.entries)):
        live = [bar for bar in found.bars if bar.first <= entry <= bar.last]
        assert sum(bar.size for bar in live) == found.live[entry]
        taken = sorted((bar.at, bar.at + bar.size) for bar in live)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(taken))
    assert max(found.live) == found.bound <= found.peak
    named = {name for bar in found.bars for name in bar.names}
    assert {n for n, p in memory.places.items() if p.kind == "arena"} <= named
    assert arena_section(integer).blocks[0].items[0][1] == f"{memory.bytes:,}"


def test_histograms_of_weights(integer, layers):
    section = weights_section(integer, layers)
    found = section.blocks[1].items
    products = [layer for layer in layers if layer.tone == "product"]
    assert [item.title for item in found] == [layer.name for layer in products]
    for item, layer in zip(found, products, strict=True):
        arrays = [integer.constants[name] for name in layer.weights]
        assert sum(item.histogram.counts) == max(array.size for array in arrays)
        assert item.histogram.outline.startswith("M0 100V")
    assert weights_section(integer, []) is None
