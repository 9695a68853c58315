"""What layers are lowered to: bands of images, rows of pixels, sums of 32 bits, sizes refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from samebits.codegen.lowering.calls import KernelCall
from samebits.codegen.lowering.lower import lower_to_calls
from samebits.errors import UnsupportedError
from samebits.ir.graph import GraphBuilder


def conv(
    x_type: str,
    image: tuple[int, ...],
    kernel: tuple[int, int],
    outputs: int = 3,
    weight: int = 1,
    **attributes: Any,
) -> KernelCall:
    """The call of a `conv` whose weights are all `weight`."""
    g = GraphBuilder("conv")
    x = g.input("x", x_type, image)
    depth = image[3] // attributes.get("groups", 1)
    w = g.constant("w", np.full((outputs, *kernel, depth), weight, "int8"))
    b = g.constant("b", np.zeros(outputs, np.int32))
    (entry,) = lower_to_calls(g.build([g.add("conv", [x, w, b], attributes)])).entries
    (call,) = entry.calls
    return call


def linear(x_type: str, weight: int) -> KernelCall:
    """The call of a linear layer of two rows, with one weight other than 0."""
    g = GraphBuilder("linear")
    x = g.input("x", x_type, (2, 5))
    weights = np.zeros((3, 5), np.int16)
    weights[1, 2] = weight
    names = [x, g.constant("w", weights), g.constant("b", np.zeros(3, np.int32))]
    (entry,) = lower_to_calls(g.build([g.add("linear", names, {"dtype": "int64"})])).entries
    (call,) = entry.calls
    return call


@pytest.mark.parametrize(
    ("x_type", "image", "kernel", "attributes", "tile"),
    [
        ("int8", (1, 3, 60, 30), (2, 3), {}, 58),  # rows as a whole: 2 * 60 * 30 bytes
        ("int8", (1, 3, 220, 30), (3, 2), {}, 88),
        ("uint8", (1, 4, 420, 10), (2, 5), {"dilations": (1, 3)}, 392),
        ("int16", (1, 3, 300, 8), (3, 4), {"strides": (1, 2)}, 80),
        ("int8", (1, 5, 150, 24), (3, 2), {"groups": 24, "dilations": (2, 1)}, 112),
        ("int8", (1, 5, 99, 24), (5, 3), {"groups": 24}, 64),
        ("int8", (1, 3, 99, 400), (3, 3), {}, 8),
        ("int16", (1, 3, 9, 400), (3, 3), {}, 7),
    ],
)
def test_an_image_goes_in_bands_of_8_kib(
    x_type: str, image: Any, kernel: Any, attributes: dict[str, Any], tile: int
) -> None:
    """A row of outputs as a whole where the codes it reads fit in 8 KiB, else as many eights of
    pixels as do, and never less than eight; 16 bytes more than that for vector loads."""
    outputs = 24 if "groups" in attributes else 3
    call = conv(x_type, image, kernel, outputs, **attributes)
    stride = attributes.get("strides", (1, 1))[1]
    dilation = attributes.get("dilations", (1, 1))[1]
    whole = (image[2] - dilation * (kernel[1] - 1) - 1) // stride + 1

    def band(pixels: int) -> int:
        last = max(p * stride + k * dilation for p in range(pixels) for k in range(kernel[1]))
        return kernel[0] * (last + 1) * image[3] * np.dtype(x_type).itemsize

    fitting = [n for n in (*range(8, whole, 8), whole) if band(n) <= 8192]
    assert call.parameters.fields["tile"] == max(fitting, default=min(8, whole)) == tile
    assert call.scratch == band(tile) + 16


@pytest.mark.parametrize(
    ("x_type", "weight", "block"),
    [
        ("int16", 1, 65535),  # 65536 * 32768 is 2**31
        ("uint16", -1, 65535),
        ("int8", 300, 55924),
        ("uint8", 300, 28071),
        ("int16", 8191, 8),
        ("int16", -8192, 0),  # 7 products: less than a vector of them, so sums of 64 bits
    ],
)
def test_a_block_is_what_32_bits_hold(x_type: str, weight: int, block: int) -> None:
    """As many of the largest products as a sum below 2**31 takes; uint16 is held less 32768."""
    call = linear(x_type, weight)
    assert call.function == "conv16"
    assert call.parameters.fields["block"] == block


def test_products_of_single_pixels_are_one_row() -> None:
    """Of a linear layer, and of a conv of 1 x 1 without strides and padding; of no other."""
    one = {"batch": 1, "height": 1, "out_height": 1, "kernel_height": 1, "kernel_width": 1}
    starts = {"out_batch": 0, "out_row": 0, "out_start": 0}
    for call, pixels, outputs in (
        (linear("int8", 300), 2, 3),
        (conv("int8", (2, 4, 9, 6), (1, 1), 34), 72, 34),
        (conv("int16", (2, 4, 9, 6), (1, 1), 4, groups=2), 72, 4),
    ):
        row = {**one, **starts, "width": pixels, "out_width": pixels, "out_pixel": outputs}
        fields = call.parameters.fields
        assert {key: fields[key] for key in row} == row
    for kernel, attributes in (
        ((1, 2), {}),
        ((2, 1), {}),
        ((1, 1), {"strides": (1, 2)}),
        ((1, 1), {"pads": (0, 0, 0, 1)}),
    ):
        fields = conv("int8", (2, 4, 9, 6), kernel, **attributes).parameters.fields
        assert (fields["batch"], fields["height"], fields["width"]) == (2, 4, 9)


@pytest.mark.parametrize(("dtype", "codes"), [("int8", 1 << 29), ("uint16", 1 << 28)])
def test_a_tensor_has_less_than_2_to_the_29_bytes(dtype: str, codes: int) -> None:
    for size, fits in ((codes - 1, True), (codes, False)):
        g = GraphBuilder("long")
        x = g.input("x", dtype, (size,))
        graph = g.build([g.add("reshape", [x], {"shape": (1, size)})])
        if fits:
            assert [entry.view_of for entry in lower_to_calls(graph).entries] == ["x"]
        else:
            with pytest.raises(UnsupportedError, match=r"'x': .* less than 536870912 bytes, found"):
                lower_to_calls(graph)
