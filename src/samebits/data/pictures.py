"""One image of an untrusted file, of the size and colours that are asked for."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from samebits import ledger
from samebits.data.decode import decoding
from samebits.entrance import opened
from samebits.errors import InputError
from samebits.recipes.reading import PLAIN, Reading

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
FORMATS = ("JPEG", "PNG", "WEBP")
KIND = "a JPEG, PNG or WebP image"
# Bytes of memory for a pixel at the most: the decoder's, Pillow's own four, those of other colours,
# and the array's, twice. Measured with Pillow 12.
BYTES, MOST_BYTES = {"JPEG": 16, "PNG": 14}, 22
CHANNELS = {"L": 1, "RGB": 3}
GREY_MODES = ("1", "L", "LA")
WIDE_MODES = ("I", "F")  # prefixes of the 16- and 32-bit modes
MODES = {"grey": "L", "rgb": "RGB"}

Pixels = npt.NDArray[np.uint8]
Held = tuple[int, int] | None  # width and height of images for which memory is charged already
Reference = tuple[Path | str, tuple[int, ...]]  # an image that others are to be like, and its shape


def read_picture(
    path: Path,
    reference: Reference | None = None,
    options: Reading = PLAIN,
    within: Path | None = None,
    held: Held = None,
) -> Pixels:
    """One image as uint8 [C, H, W]; InputError names the file if it is corrupt or differs.

    Colours become those of `options`, by Pillow's integer formula; a size is reached by `middle`
    and Pillow's bilinear filter, which sums in integers. within: the folder that a user named,
    where the file is one inside it; held: as of `decoded`.
    """
    with opened(path, within=within) as file, decoded(file.read(), str(path), held=held) as image:
        return pixels_of(image, str(path), reference, options)


@contextmanager
def decoded(
    data: bytes,
    where: str,
    formats: tuple[str, ...] = FORMATS,
    kind: str = KIND,
    held: Held = None,
) -> Iterator[Image.Image]:
    """The image that bytes hold, of these formats alone: among the others that Pillow knows is one
    that starts another program. where: what messages call it; kind: what is expected; held: what
    the caller has charged, `in_hand` bytes for every image of that size.

    Raises InputError for other bytes and where its pixels need too much memory. From memory: of a
    file, Pillow would ask for as many bytes as a damaged chunk claims to have.
    """
    with (
        decoding(where, kind, "replace or remove it"),
        Image.open(io.BytesIO(data), formats=formats) as image,
    ):
        width, height = image.size
        ceiling = Image.MAX_IMAGE_PIXELS
        if ceiling is not None and width * height > ceiling:
            raise InputError(f"{where}: expected at most {ceiling} pixels, found {width}x{height}")
        needed = len(data) + BYTES.get(image.format or "", MOST_BYTES) * width * height
        charged = image.size == held and needed <= in_hand(image.size)
        with nullcontext() if charged else ledger.hold(needed, where):
            yield image


def in_hand(size: tuple[int, int]) -> int:
    """Bytes of memory for an image of a width and height and its file, as long as that is no larger
    than the pixels may be."""
    return 2 * MOST_BYTES * size[0] * size[1]


def pixels_of(
    image: Image.Image,
    where: str,
    reference: Reference | None = None,
    options: Reading = PLAIN,
) -> Pixels:
    """An image as uint8 [C, H, W], as `read_picture`. where: what messages call it."""
    if image.mode.startswith(WIDE_MODES):
        raise InputError(f"{where}: expected 8 bits per channel, found mode {image.mode}")
    mode = "L" if image.mode in GREY_MODES else "RGB"
    mode = MODES.get(options.colour or "", mode)
    width, height = image.size
    height, width = options.resize or (height, width)
    shape = (CHANNELS[mode], height, width)
    if reference is not None and shape != reference[1]:
        raise InputError(_other(where, shape, reference))
    made = image if image.mode == mode else image.convert(mode)
    if options.resize is not None:
        box = middle(image.size, options.resize)
        made = made.resize((width, height), Image.Resampling.BILINEAR, box)
    pixels = np.asarray(made, dtype=np.uint8)
    return pixels.reshape(height, width, CHANNELS[mode]).transpose(2, 0, 1)


def stored_size(path: Path, within: Path | None = None) -> tuple[int, int]:
    """Width and height of the image in a file. Raises InputError for another file."""
    with opened(path, within=within) as file, decoded(file.read(), str(path)) as image:
        return image.size


def read_mask(path: Path, options: Reading = PLAIN, within: Path | None = None) -> Pixels:
    """The indices [H, W] that a grey or palette PNG holds, resized as images are but without
    mixing. Raises InputError for another file."""
    with (
        opened(path, within=within) as file,
        decoded(file.read(), str(path), ("PNG",), "a PNG mask") as image,
    ):
        if image.mode not in ("L", "P", "1"):
            raise InputError(
                f"{path}: expected a grey or palette mask of 8 bits whose pixels are indices of "
                f"classes, found mode {image.mode}"
            )
        bits = image.mode == "1"
        made: Image.Image = image
        if options.resize is not None:
            height, width = options.resize
            box = middle(image.size, options.resize)
            made = image.resize((width, height), Image.Resampling.NEAREST, box)
        pixels = np.asarray(made).astype(np.uint8)
    if not bits and int(pixels.max()) == 255:
        raise InputError(
            f"{path}: expected indices of classes below 255, found 255, which often marks pixels "
            "of no class; give them a class of their own"
        )
    return pixels


def middle(size: tuple[int, int], sides: tuple[int, int]) -> tuple[int, int, int, int]:
    """The largest window of whole pixels in the middle of an image that has the proportions of
    `sides`: left, top, right, bottom. size: width and height; sides: height and width."""
    width, height = size
    tall, wide = sides
    if width * tall > height * wide:
        kept = max(1, height * wide // tall)
        left = (width - kept) // 2
        return left, 0, left + kept, height
    kept = max(1, width * tall // wide)
    top = (height - kept) // 2
    return 0, top, width, top + kept


def _other(where: str, shape: tuple[int, ...], reference: Reference) -> str:
    """The fault of an image of another size or colours, and the option that takes both."""
    size = shape[1:] != reference[1][1:]
    colours = shape[0] != reference[1][0]
    advice = " and ".join(
        [
            *(["--resize HEIGHTxWIDTH"] if size else []),
            *(["--colour grey or rgb"] if colours else []),
        ]
    )
    return (
        f"{where}: expected {_size(reference[1])} like {reference[0]}, found {_size(shape)}; "
        f"convert the images, or give {advice} to make them alike"
    )


def _size(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    return f"{width}x{height} {'grey' if channels == 1 else 'RGB'}"
