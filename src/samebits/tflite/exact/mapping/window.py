"""Convolutions, pools and resizes of images."""

from __future__ import annotations

from math import prod

from samebits.errors import InputError, UnsupportedError
from samebits.ir.foreign import Result
from samebits.tflite.exact.node import LiteNode, lite_op
from samebits.tflite.schema import SAME
from samebits.tflite.window import image, pads, pair


def _convolution(node: LiteNode, weights: str, group: int) -> str:
    """Conv of input 0 with weights [O, C / group, KH, KW]."""
    _, height, width, _ = image(node.shape())
    kernel, padding = node.shape_of(weights)[2:], node.option("padding")
    strides, dilations = (
        pair(node.operator.options, "stride"),
        pair(node.operator.options, "dilation"),
    )
    found = node.emit(
        "Conv",
        node.builder.channels_first(node.input(0)),
        weights,
        *node.bias(2, 0, 1),
        strides=strides,
        dilations=dilations,
        pads=pads(padding, (height, width), (kernel[0], kernel[1]), strides, dilations),
        group=group,
    )
    return node.activated(node.builder.channels_last(found))


@lite_op("CONV_2D")
def _conv(node: LiteNode) -> Result:
    """Weights [O, KH, KW, C / group]."""
    channels, each = image(node.shape())[3], image(node.shape(1))[3]
    if not each or channels % each:
        raise InputError(f"expected weights of a part of {channels} channels, found {each}")
    return _convolution(node, node.weights(1, (0, 3, 1, 2)), channels // each)


@lite_op("DEPTHWISE_CONV_2D")
def _depthwise(node: LiteNode) -> Result:
    """Weights [1, KH, KW, C * multiplier]: some filters for every channel."""
    channels = image(node.shape())[3]
    if image(node.shape(1))[0] != 1:
        raise InputError(f"expected weights [1, KH, KW, O], found {list(node.shape(1))}")
    return _convolution(node, node.weights(1, (3, 0, 1, 2)), channels)


@lite_op("TRANSPOSE_CONV")
def _transpose_conv(node: LiteNode) -> Result:
    """Sizes of the result, weights [O, KH, KW, C], the image. The pads are those of the convolution
    that leads from the result to the image."""
    _, height, width, _ = image(node.shape(2))
    out = node.integers(0, "the shape of the result")
    if len(out) != 4 or out != node.result().shape:
        raise InputError(f"expected the shape {list(node.result().shape)}, found {list(out)}")
    weights = node.weights(1, (3, 0, 1, 2))
    kernel, strides = node.shape_of(weights)[2:], pair(node.operator.options, "stride")
    sizes = ((height, out[1]), (width, out[2]))
    before, after, extra = [], [], []
    for (size, wanted), k, s in zip(sizes, kernel, strides, strict=True):
        reached = (size - 1) * s + k
        total = max(reached - wanted, 0) if node.option("padding") == SAME else 0
        before.append(total // 2)
        after.append(total - total // 2)
        extra.append(wanted - (reached - total))
    cut = [max(-e, 0) for e in extra]  # a result that is shorter than what the taps reach
    found = node.emit(
        "ConvTranspose",
        node.builder.channels_first(node.input(2)),
        weights,
        *node.bias(3, 2, 1),
        strides=strides,
        dilations=(1, 1),
        pads=(*before, *(a + c for a, c in zip(after, cut, strict=True))),
        output_padding=tuple(max(e, 0) for e in extra),
        group=1,
    )
    return node.activated(node.builder.channels_last(found))


@lite_op("AVERAGE_POOL_2D", "MAX_POOL_2D")
def _pool(node: LiteNode) -> Result:
    """A mean counts the positions inside the image alone."""
    _, height, width, _ = image(node.shape())
    kernel, strides = pair(node.operator.options, "filter"), pair(node.operator.options, "stride")
    if prod(kernel) > 2**24:
        raise InputError(f"expected a window of at most 2**24 positions, found {kernel}")
    found = node.emit(
        "MaxPool" if node.op == "MAX_POOL_2D" else "AveragePool",
        node.builder.channels_first(node.input(0)),
        kernel_shape=kernel,
        strides=strides,
        dilations=(1, 1),
        pads=pads(node.option("padding"), (height, width), kernel, strides),
    )
    return node.activated(node.builder.channels_last(found))


@lite_op("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def _resize(node: LiteNode) -> Result:
    """To the sizes of input 1; positions are taken as exact numbers."""
    n, _, _, channels = image(node.shape())
    sizes = node.integers(1, "sizes")
    if len(sizes) != 2 or min(sizes) < 1:
        raise InputError(f"expected a height and a width, found {list(sizes)}")
    corners, half = node.option("align_corners"), node.option("half_pixel_centers")
    if corners and half:
        raise UnsupportedError("expected corners or centers that are aligned, found both")
    nearest = "round_prefer_ceil" if corners or half else "floor"
    linear = node.op == "RESIZE_BILINEAR"
    found = node.emit(
        "Interpolate" if linear else "Resize",
        node.builder.channels_first(node.input(0)),
        sizes=(n, channels, *sizes),
        mode="linear" if linear else "nearest",
        coordinate_transformation_mode=(
            "align_corners" if corners else "half_pixel" if half else "asymmetric"
        ),
        nearest_mode=nearest,
    )
    return node.builder.channels_last(found)


@lite_op("SPACE_TO_DEPTH", "DEPTH_TO_SPACE", moves=True)
def _blocks(node: LiteNode) -> Result:
    """Blocks of positions as channels, and back."""
    image(node.shape())
    op = "SpaceToDepth" if node.op == "SPACE_TO_DEPTH" else "DepthToSpace"
    first = node.builder.channels_first(node.input(0))
    return node.builder.channels_last(node.emit(op, first, blocksize=node.option("block_size")))
