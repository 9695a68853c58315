"""Drawings of graphs: every box at a place of its own, every edge from box to box."""

from __future__ import annotations

import itertools
import re

import pytest

from samebits.reports.page.drawing import HEIGHT, LETTERS, WIDTH, Box, Item, drawing


def items(count):
    return {str(i): Item(f"node {i}", "below") for i in range(count)}


def densenet(count):
    """Each node reads all before it."""
    return [(str(a), str(b)) for a, b in itertools.combinations(range(count), 2)]


def apart(a, b):
    return abs(a.x - b.x) >= WIDTH or abs(a.y - b.y) >= HEIGHT


@pytest.mark.parametrize(
    ("count", "edges"),
    [
        (1, []),
        (3, []),  # none of them joined
        (5, [("0", "1"), ("2", "3")]),
        (6, [("0", "1"), ("1", "2"), ("0", "2"), ("2", "3"), ("2", "4"), ("3", "5"), ("4", "5")]),
        (12, densenet(12)),
    ],
)
def test_boxes_do_not_meet_and_lie_inside(count, edges):
    found = drawing("graph", items(count), edges)
    assert len(found.boxes) == count
    assert all(apart(a, b) for a, b in itertools.combinations(found.boxes, 2))
    assert all(0 <= box.x <= found.width - WIDTH for box in found.boxes)
    assert all(0 <= box.y <= found.height - HEIGHT for box in found.boxes)


def test_edges_go_down_from_the_middle_of_one_box_to_that_of_another():
    edges = densenet(7)
    found = drawing("graph", items(7), edges)
    places = {box.item.name.split()[1]: box for box in found.boxes}
    wanted = set()
    for a, b in edges:
        start, end = places[a], places[b]
        assert start.y + HEIGHT < end.y
        wanted.add((start.x + WIDTH / 2, start.y + HEIGHT, end.x + WIDTH / 2, end.y))
    numbers = [list(map(float, re.findall(r"-?[\d.]+", path))) for path in found.paths]
    ends = [(*path[:2], *path[-2:]) for path in numbers]
    assert len(ends) == len(edges)
    for one in wanted:
        assert any(one == pytest.approx(found, abs=0.06) for found in ends)


def test_equal_edges_are_drawn_once_and_none_leads_to_itself():
    assert len(drawing("g", items(2), [("0", "1"), ("0", "1"), ("1", "1")]).paths) == 1


def test_the_same_graph_has_the_same_drawing():
    assert drawing("g", items(9), densenet(9)) == drawing("g", items(9), densenet(9))


def test_long_texts_are_cut_to_what_tells_them_apart():
    name, below = "features.denseblock1.denselayer3.conv2", "convolution, 1 x 112 x 112 x 64"
    first, second = Box(0, 0, Item(name, below)).lines
    assert len(first) == LETTERS[0]
    assert first.startswith("…")
    assert name.endswith(first[1:])
    assert len(second) == LETTERS[1]
    assert below.startswith(second[:-1])
    assert Box(0, 0, Item("conv", "")).lines == ["conv"]
