"""Graphs as drawings: boxes that link to what they stand for, and lines between them.

The layers, the order in them and the places are fast-sugiyama's, which draws as Graphviz' dot does
(K. Sugiyama et al., "Methods for Visual Understanding of Hierarchical System Structures", 1981).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

Pairs = list[tuple[int, int]]
Places = dict[int, tuple[float, float]]

WIDTH, HEIGHT = 204, 44  # of a box, pixels
APART, ROW = 28, 74  # between boxes side by side, from row to row
LINE = 14  # the width that a line takes which passes boxes
MARGIN = 12
LETTERS = (22, 28)  # of the name in a box and of the line below it


@dataclass(frozen=True)
class Item:
    """Something to draw. key: the address it links to, "" for none; tone: a class of style.css."""

    name: str
    below: str = ""
    key: str = ""
    tone: str = "plain"


@dataclass(frozen=True)
class Box:
    """An item at its place, the corner at the upper left."""

    x: float
    y: float
    item: Item

    @property
    def lines(self) -> list[str]:
        """Its texts, cut to fit the box: the end of a name tells it from others. The title tells
        what is cut."""
        name, below = self.item.name, self.item.below
        if len(name) > LETTERS[0]:
            name = f"…{name[1 - LETTERS[0] :]}"
        if len(below) > LETTERS[1]:
            below = f"{below[: LETTERS[1] - 1]}…"
        return [text for text in (name, below) if text]


@dataclass(frozen=True)
class Drawing:
    """A block: boxes and lines (SVG paths) in an area of width x height pixels."""

    kind: ClassVar[str] = "drawing"
    title: str
    boxes: Sequence[Box]
    paths: Sequence[str]
    width: float
    height: float
    box: tuple[int, int] = (WIDTH, HEIGHT)


def drawing(title: str, items: Mapping[str, Item], edges: Sequence[tuple[str, str]]) -> Drawing:
    """The drawing of items by name, and of the edges between them, from the top down."""
    names = list(items)
    numbers = {name: number for number, name in enumerate(names)}
    pairs = [(numbers[a], numbers[b]) for a, b in dict.fromkeys(edges) if a != b]
    boxes: list[Box] = []
    paths: list[str] = []
    right = float(MARGIN)
    for places, joins in _components(len(names), pairs):
        left, top = min(x for x, _ in places.values()), max(y for _, y in places.values())
        centres = {
            vertex: (
                right + x - left + WIDTH / 2,
                MARGIN + (top - y) / (WIDTH + APART) * ROW + HEIGHT / 2,
            )
            for vertex, (x, y) in places.items()
        }
        boxes += (
            Box(x - WIDTH / 2, y - HEIGHT / 2, items[names[vertex]])
            for vertex, (x, y) in sorted(centres.items())
            if vertex < len(names)
        )
        paths += (_path([centres[v] for v in route]) for route in _routes(joins, len(names)))
        right = max(x for x, _ in centres.values()) + WIDTH / 2 + APART
    height = max((box.y for box in boxes), default=0.0) + HEIGHT + MARGIN
    return Drawing(title, boxes, paths, right - APART + MARGIN, height)


def _components(count: int, pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[Places, Pairs]]:
    """The places of the vertices of every component, sources with the greatest y, and its edges;
    vertices from `count` on lie where an edge passes a row."""
    found: list[tuple[Places, Pairs]] = []
    if pairs:
        import fast_sugiyama

        layouts = fast_sugiyama.from_edges(
            pairs,
            vertex_spacing=WIDTH + APART,
            dummy_vertices=True,
            dummy_size=LINE,
            check_layout=False,
        )
        for positions, _, _, edges in layouts:
            joins = [(int(a), int(b)) for a, b in edges or ()]
            found.append(({int(vertex): (x, y) for vertex, (x, y) in positions}, joins))
    placed = {vertex for places, _ in found for vertex in places}
    found += (({vertex: (0.0, 0.0)}, []) for vertex in range(count) if vertex not in placed)
    yield from sorted(found, key=lambda component: min(component[0]))


def _routes(joins: Pairs, count: int) -> Iterator[list[int]]:
    """Every edge from vertex to vertex, over the places where it passes rows."""
    after = {a: b for a, b in joins if a >= count}
    for a, b in joins:
        if a >= count:
            continue
        route = [a, b]
        while route[-1] >= count:
            route.append(after[route[-1]])
        yield route


def _path(points: Sequence[tuple[float, float]]) -> str:
    """A curve from the lower edge of a box to the upper one of another, vertical at every row."""
    (x, y), *inner, (end_x, end_y) = points
    y, end_y = y + HEIGHT / 2, end_y - HEIGHT / 2
    text = [f"M{x:.1f} {y:.1f}"]
    for to_x, to_y in [*inner, (end_x, end_y)]:
        middle = (y + to_y) / 2
        text.append(f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}")
        x, y = to_x, to_y
    return "".join(text)
