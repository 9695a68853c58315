"""The graph of a network: one drawing of its blocks, and one of every block's layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from samebits.ir import Graph
from samebits.reports.html import Fold, PageBlock, Paragraph, Section
from samebits.reports.page.blocks import LayerBlock, blocks_of
from samebits.reports.page.drawing import Item, drawing
from samebits.reports.page.layers import NetworkLayer
from samebits.reports.report import printable

TITLE = "The graph"


def graph_section(graph: Graph, layers: Sequence[NetworkLayer]) -> Section:
    """The blocks as a drawing; those of several layers as drawings of their own."""
    blocks = blocks_of(layers)
    keys = layer_keys(layers)
    folded = [block for block in blocks if len(block.layers) > 1]
    text = "From the top down; a box leads to the row of its layer in the table."
    if folded:
        text = (
            f"{len(layers):,} layers in {len(blocks)} blocks, from the top down; a box leads to "
            "its block below, or to the row of its layer in the table."
        )
    parts: list[PageBlock] = [Paragraph(text), _of_blocks(graph, blocks, keys)]
    for number, block in enumerate(blocks, 1):
        if len(block.layers) > 1:
            count = f"{len(block.layers)} layers ({_operators(block, 4)})"
            title = f"Block {printable(block.name)}: {count}"
            parts.append(Fold(title, [_of_layers(graph, block, layers, keys)], f"block-{number}"))
    return Section(TITLE, parts)


def layer_keys(layers: Sequence[NetworkLayer]) -> dict[str, str]:
    """The addresses of the layers' rows by the layers' keys."""
    return {layer.key: f"layer-{number}" for number, layer in enumerate(layers, 1)}


def input_keys(inputs: Sequence[NetworkLayer]) -> dict[str, str]:
    """The same of the inputs."""
    return {each.key: f"input-{number}" for number, each in enumerate(inputs, 1)}


def _of_blocks(graph: Graph, blocks: Sequence[LayerBlock], keys: Mapping[str, str]) -> PageBlock:
    """The drawing of the blocks, between inputs and outputs."""
    home = {layer.key: str(i) for i, block in enumerate(blocks) for layer in block.layers}
    items: dict[str, Item] = {}
    for name in graph.inputs:
        value = graph.values[name]
        items[f"in {name}"] = Item(printable(name), _shape(value.shape, value.dtype), "", "port")
    for i, block in enumerate(blocks):
        if len(block.layers) == 1:
            items[str(i)] = _layer_item(block.layers[0], keys)
            continue
        product = any(layer.tone == "product" for layer in block.layers)
        tone = "product" if product else "plain"
        items[str(i)] = Item(
            printable(block.name), _operators(block, 2), f"block-{i + 1}", f"{tone} several"
        )
    edges = [
        (home.get(source, f"in {source}"), str(i))
        for i, block in enumerate(blocks)
        for layer in block.layers
        for source in layer.reads
        if home.get(source) != str(i)
    ]
    edges += _outputs(graph, items, home)
    return drawing("Blocks of the graph", items, edges)


def _operators(block: LayerBlock, most: int) -> str:
    """The most frequent operators of a block, counted."""
    counts = Counter(layer.op for layer in block.layers).most_common()
    found = ", ".join(f"{count} {op}" for op, count in counts[:most])
    return found if len(counts) <= most else f"{found} …"


def _of_layers(
    graph: Graph, block: LayerBlock, layers: Sequence[NetworkLayer], keys: Mapping[str, str]
) -> PageBlock:
    """One block's layers, with what they read from outside."""
    known = {layer.key: layer for layer in layers}
    own = {layer.key for layer in block.layers}
    outside = dict.fromkeys(s for layer in block.layers for s in layer.reads if s not in own)
    items = {}
    for source in outside:
        name = known[source].name if source in known else source
        items[source] = Item(printable(name), "from outside", keys.get(source, ""), "port")
    items.update((layer.key, _layer_item(layer, keys)) for layer in block.layers)
    edges = [(source, layer.key) for layer in block.layers for source in layer.reads]
    edges += _outputs(graph, items, {layer.key: layer.key for layer in block.layers})
    return drawing(f"Layers of {printable(block.name)}", items, edges)


def _outputs(
    graph: Graph, items: dict[str, Item], home: Mapping[str, str]
) -> list[tuple[str, str]]:
    """The outputs that homes give, added to the items; the edges to them."""
    edges = []
    for name in graph.outputs:
        if name in home:
            value = graph.values[name]
            below = _shape(value.shape, value.dtype)
            items[f"out {name}"] = Item(printable(name), below, "", "port")
            edges.append((home[name], f"out {name}"))
    return edges


def _layer_item(layer: NetworkLayer, keys: Mapping[str, str]) -> Item:
    below = f"{layer.op}, {layer.sizes}"
    return Item(printable(layer.name), below, keys[layer.key], layer.tone)


def _shape(shape: Sequence[int], dtype: str) -> str:
    return f"{dtype} {' x '.join(map(str, shape))}".strip()
