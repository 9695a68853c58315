"""Augmentation of training images: integer, a function of (seed, epoch, sample) alone.

docs/spec/training.md section 8.1; `samebits.spec.training.augment` restates it in plain integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from samebits.errors import InputError
from samebits.numerics import philox

AUGMENT_SHARD = 2**32 - 2  # the Philox shard word: no training shard has it, nor the data order
WORDS = 6  # random words of a sample in an epoch
_EXPECTED = "none, or a list of flip, crop:PIXELS and zoom:PERCENT, such as flip,crop:4"


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images: `zoom`, then `flip`, then `crop`.

    flip: mirror left and right, in half of the cases
    crop: shift by up to so many pixels each way; pixels that come in are 0
    zoom: a random window of at least so many percent of height and width, resampled to the whole
          size (100: none)
    """

    flip: bool = False
    crop: int = 0
    zoom: int = 100

    @staticmethod
    def parse(text: str) -> Augmentation:
        """The augmentation that a text names: `none`, or a list such as `flip,crop:4,zoom:75`.

        Raises InputError for any other text.
        """
        found: dict[str, int | bool] = {}
        for item in [] if text == "none" else text.split(","):
            name, _, amount = item.partition(":")
            good = name not in found and (
                item == "flip"
                or (name in ("crop", "zoom") and amount.isascii() and amount.isdecimal())
            )
            if not good or len(amount) > 3:
                raise InputError(f"--augment {text}: expected {_EXPECTED}, found {item!r}")
            found[name] = True if name == "flip" else int(amount)
        augmentation = Augmentation(**found)  # type: ignore[arg-type]
        if not 1 <= augmentation.zoom <= 100:
            raise InputError(
                f"--augment {text}: expected zoom:1 to zoom:100, found zoom:{augmentation.zoom}"
            )
        return augmentation

    def check(self, images: Tensor, source: str) -> None:
        """Raise InputError where images [N, C, H, W] cannot be augmented so. Samples of any shape
        pass if nothing is to be changed. `source`: where they come from, for the message."""
        if self == Augmentation():
            return
        if images.ndim != 4:
            raise InputError(
                f"{source}: expected images for --augment, found samples of shape "
                f"{list(images.shape[1:])}; leave --augment out"
            )
        height, width = images.shape[2:]
        if self.crop >= min(height, width):
            raise InputError(
                f"{source}: expected --augment crop of less than {min(height, width)} pixels for "
                f"images of {height}x{width}, found {self.crop}"
            )
        if self.zoom < 100 and images.dtype != torch.uint8:
            raise InputError(
                f"{source}: --augment zoom resamples 8-bit images, found {images.dtype}; leave "
                "zoom out, or give 8-bit images"
            )

    def apply(self, images: Tensor, words: Tensor) -> Tensor:
        """Augmented images [n, C, H, W], by the random words [n, 6] of their samples.

        Samples of any shape are returned as they are if nothing is to be changed.
        """
        if self.zoom < 100:
            images = self._zoomed(images, words)
        if not self.flip and not self.crop:
            return images
        height, width = images.shape[2:]
        shifts = draw(words[:, 1:3], 2 * self.crop + 1) - self.crop
        rows = torch.arange(height) + shifts[:, :1]
        columns = torch.arange(width) + shifts[:, 1:]
        inside = ((rows >= 0) & (rows < height))[:, None, :, None]
        inside = inside & ((columns >= 0) & (columns < width))[:, None, None, :]
        if self.flip:  # the image is mirrored first, so the mirrored columns are shifted
            columns = torch.where(draw(words[:, :1], 2) == 1, width - 1 - columns, columns)
        picked = _pick(images, rows.clamp(0, height - 1), columns.clamp(0, width - 1))
        return torch.where(inside, picked, torch.zeros_like(picked))

    def _zoomed(self, images: Tensor, words: Tensor) -> Tensor:
        """Bilinear resampling of a window that is the same share of height and width.

        The weights of the four neighbours are integers whose sum is 4 * height * width, so the
        weighted sum is exact and divided with one rounding.
        """
        (top, bottom, low_y, high_y), (left, right, low_x, high_x) = (
            self._positions(size, words[:, 3], words[:, column])
            for size, column in ((images.shape[2], 4), (images.shape[3], 5))
        )
        total = torch.zeros(images.shape, dtype=torch.int64)
        for rows, y in ((top, low_y), (bottom, high_y)):
            for columns, x in ((left, low_x), (right, high_x)):
                weight = y[:, None, :, None] * x[:, None, None, :]
                total += weight * _pick(images, rows, columns).long()
        divisor = 4 * images.shape[2] * images.shape[3]
        return _divide(total, divisor).to(torch.uint8)

    def _positions(self, size: int, share: Tensor, place: Tensor) -> tuple[Tensor, ...]:
        """For every output position [n, size]: two source positions and their weights, whose sum
        is 2 * size."""
        least = -(-size * self.zoom // 100)
        window = least + draw(share, size - least + 1)
        start = draw(place, size - window + 1)
        # Centres: (2 o + 1) / (2 size) of the window, minus half a pixel; in units of 1 / (2 size).
        centre = (2 * torch.arange(size) + 1) * window[:, None] - size
        centre = centre.clamp(min=0)
        first = centre // (2 * size)
        second = torch.minimum(first + 1, window[:, None] - 1)
        high = centre - first * (2 * size)
        return start[:, None] + first, start[:, None] + second, 2 * size - high, high


def sample_words(seed: int, epoch: int, count: int) -> Tensor:
    """The random words int64 [count, 6] of every sample of the data set in an epoch."""
    return philox.words(WORDS * count, (seed, epoch), shard=AUGMENT_SHARD).view(count, WORDS)


def draw(words: Tensor, count: Tensor | int) -> Tensor:
    """words * count / 2**32, rounded down: integers in [0, count)."""
    return (words * count) >> 32


def _pick(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """images[n, :, rows[n, i], columns[n, j]] as [n, C, i, j]."""
    sample = torch.arange(len(images))[:, None, None]
    return images.permute(0, 2, 3, 1)[sample, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


def _divide(value: Tensor, divisor: int) -> Tensor:
    """rne(value / divisor) for integers >= 0."""
    quotient, twice = value // divisor, 2 * (value % divisor)
    return quotient + ((twice > divisor) | ((twice == divisor) & (quotient % 2 == 1)))
