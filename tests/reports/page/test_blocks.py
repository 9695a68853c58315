"""Layers folded into blocks, by name and by structure."""

from __future__ import annotations

from samebits.reports.page.blocks import FEWEST, LARGEST, UNNAMED, blocks_of
from samebits.reports.page.layers import NetworkLayer


def chain(names, reads=None):
    """Layers each of which reads the one before, or what `reads` says by index."""
    found = []
    for i, name in enumerate(names):
        sources = (reads or {}).get(i, (i - 1,) if i else ())
        keys = tuple(f"v{source}" for source in sources)
        found.append(
            NetworkLayer(f"v{i}", name, "conv", "product", keys, (), (1,), "int8", 0, 1, 0, "int8")
        )
    return found


def shown(blocks):
    return [(block.name, len(block.layers)) for block in blocks]


def test_small_graphs_are_not_folded():
    blocks = blocks_of(chain([f"a.{i}" for i in range(FEWEST - 1)]))
    assert [len(block.layers) for block in blocks] == [1] * (FEWEST - 1)


def test_names_of_torch_and_of_onnx():
    torch = [f"layer{i}.{j}.conv" for i in range(4) for j in range(4)]
    assert shown(blocks_of(chain(torch))) == [(f"layer{i}", 4) for i in range(4)]
    onnx = [f"/net/layer{i}/conv{j}/Conv" for i in range(4) for j in range(4)]
    assert shown(blocks_of(chain(onnx))) == [(f"net.layer{i}", 4) for i in range(4)]


def test_a_prefix_that_comes_back_is_another_block():
    names = [*["a.1"] * 5, *["b.1"] * 5, *["a.2"] * 5]
    assert shown(blocks_of(chain(names))) == [("a", 5), ("b", 5), ("a", 5)]


def test_names_that_say_nothing_leave_a_middling_graph_whole():
    blocks = blocks_of(chain([f"Conv_{i}" for i in range(UNNAMED)]))
    assert [len(block.layers) for block in blocks] == [1] * UNNAMED


def test_structure_keeps_paths_side_by_side_together():
    """Four layers each: one, two paths that read it, their sum."""
    count = 200
    reads = {}
    for start in range(0, count, 4):
        first = (start - 1,) if start else ()
        reads |= {start: first, start + 1: (start,), start + 2: (start,)}
        reads[start + 3] = (start + 1, start + 2)
    blocks = blocks_of(chain([f"Node_{i}" for i in range(count)], reads))
    assert len(blocks) <= LARGEST
    assert sum(len(block.layers) for block in blocks) == count
    for block in blocks:
        inside = {layer.key for layer in block.layers}
        outside = {key for layer in block.layers for key in layer.reads} - inside
        assert len(outside) <= 1


def test_every_layer_is_in_one_block_in_its_order():
    layers = chain([f"Node_{i}" for i in range(1000)])
    assert [layer for block in blocks_of(layers) for layer in block.layers] == layers
