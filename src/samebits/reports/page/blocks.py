"""Layers in blocks: by the prefixes of their names where these say something, else by structure.

A block is a run of layers in the order of computation, so the graph of blocks has no circle.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from samebits.reports.page.layers import NetworkLayer

LARGEST = 30  # blocks in one drawing
FEWEST = 12  # layers from which on a graph is folded where names tell how
UNNAMED = 40  # and where they do not
SHARE = 0.6  # of all layers that one block may hold
FOLDED = 0.75  # blocks for a layer, or there is little to fold


@dataclass(frozen=True)
class LayerBlock:
    """Layers, in the order of computation, under one name."""

    name: str
    layers: tuple[NetworkLayer, ...]


def blocks_of(layers: Sequence[NetworkLayer]) -> list[LayerBlock]:
    """The layers in blocks, one for each layer of a small graph."""
    if len(layers) < FEWEST:
        return [LayerBlock(layer.name, (layer,)) for layer in layers]
    deepest = max(len(_parts(layer.name)) for layer in layers)
    for depth in range(1, deepest):
        found = _by_prefix(layers, depth)
        if len(found) > LARGEST:
            break
        largest = max(len(block.layers) for block in found)
        if 1 < largest <= SHARE * len(layers) and len(found) <= FOLDED * len(layers):
            return found
    if len(layers) <= UNNAMED:
        return [LayerBlock(layer.name, (layer,)) for layer in layers]
    return _by_structure(layers)


def _parts(name: str) -> list[str]:
    """The parts of a name such as layer1.0.conv or /layer1/conv/Conv."""
    return [part for part in re.split(r"[./]+", name) if part]


def _by_prefix(layers: Sequence[NetworkLayer], depth: int) -> list[LayerBlock]:
    runs = itertools.groupby(layers, lambda layer: ".".join(_parts(layer.name)[:depth]))
    return [LayerBlock(name, tuple(run)) for name, run in runs]


def _by_structure(layers: Sequence[NetworkLayer]) -> list[LayerBlock]:
    """Cut where a single value goes on, so that paths side by side stay in one block; of the places
    those that give blocks of about the same size."""
    last = {key: index for index, layer in enumerate(layers) for key in layer.reads}
    size = max(2, -(-len(layers) // LARGEST))
    blocks: list[list[NetworkLayer]] = [[]]
    open_until = 0  # the last reader of what the layers before the latest one gave
    for index, layer in enumerate(layers):
        blocks[-1].append(layer)
        alone = open_until <= index
        open_until = max(open_until, last.get(layer.key, index))
        if len(blocks[-1]) >= size and (alone or len(blocks[-1]) >= 4 * size):
            blocks.append([])
    return [
        LayerBlock(block[0].name if len(block) == 1 else f"{block[0].name} …", tuple(block))
        for block in blocks
        if block
    ]
