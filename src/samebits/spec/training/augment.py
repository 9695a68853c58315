"""Augmentation in plain integers: training.md section 8.1, one image at a time."""

from __future__ import annotations

from samebits.spec.formats import round_ratio
from samebits.spec.philox import philox4x32

Plane = list[list[int]]  # rows of codes


def words_of(seed: int, epoch: int, sample: int) -> list[int]:
    """The six random words of a sample in an epoch."""
    places = range(6 * sample, 6 * sample + 6)
    return [philox4x32((i // 4, 0, 2**32 - 2, 0), (seed, epoch))[i % 4] for i in places]


def augment(plane: Plane, words: list[int], zoom: int, flip: bool, crop: int) -> Plane:
    """One channel of an image."""
    if zoom < 100:
        plane = _zoomed(plane, words, zoom)
    if flip and words[0] * 2 >> 32:
        plane = [row[::-1] for row in plane]
    down, right = (words[i] * (2 * crop + 1) >> 32 for i in (1, 2))
    height, width = len(plane), len(plane[0])

    def code(y: int, x: int) -> int:
        return plane[y][x] if 0 <= y < height and 0 <= x < width else 0

    return [[code(y + down - crop, x + right - crop) for x in range(width)] for y in range(height)]


def _zoomed(plane: Plane, words: list[int], zoom: int) -> Plane:
    rows = _sources(len(plane), words[3], words[4], zoom)
    columns = _sources(len(plane[0]), words[3], words[5], zoom)
    area = 4 * len(plane) * len(plane[0])
    return [
        [
            round_ratio(sum(a * b * plane[y][x] for y, a in ys for x, b in xs), area)
            for xs in columns
        ]
        for ys in rows
    ]


def _sources(size: int, share: int, place: int, zoom: int) -> list[list[tuple[int, int]]]:
    """For every output position two (source position, weight), the weights' sum 2 * size."""
    least = -(-size * zoom // 100)
    window = least + (share * (size - least + 1) >> 32)
    start = place * (size - window + 1) >> 32
    found = []
    for o in range(size):
        centre = max((2 * o + 1) * window - size, 0)
        first, high = divmod(centre, 2 * size)
        second = min(first + 1, window - 1)
        found.append([(start + first, 2 * size - high), (start + second, high)])
    return found
