"""Convolution by a weight that forward() computes: a product with the windows of images (14.4)."""

from __future__ import annotations

import math
from typing import Any

import torch

from samebits.kernels import conv_shape
from samebits.kernels.geometry import Pair
from samebits.train.operations.addition import add
from samebits.train.operations.broadcast import constant
from samebits.train.operations.copies import copies
from samebits.train.operations.indexing import permute
from samebits.train.operations.matmul import product
from samebits.train.operations.narrow import as_bfp8
from samebits.train.operations.pointwise import reshape
from samebits.train.operations.resampling import pad
from samebits.train.tensor import BFPTensor


def by_windows(
    x: BFPTensor,
    weight: Any,
    bias: Any,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> BFPTensor:
    """[n, ci, h, w] and [co, ci / groups, kh, kw], a tensor or a constant -> [n, co, oh, ow].

    As bfp8, by one rounding of the sums, or of those with a bias. Raises UnsupportedError for
    shapes that do not fit.
    """
    x = as_bfp8(x, "conv2d")
    w = constant(weight, x, "conv2d")
    of = conv_shape(tuple(x.shape), tuple(w.shape), stride, padding, dilation, groups)
    sides = zip((2, 3), (of.oh, of.ow), (of.kh, of.kw), stride, dilation, strict=True)
    places = {
        axis: torch.arange(m, device="cpu").view(-1, 1) * step + torch.arange(k, device="cpu") * by
        for axis, m, k, step, by in sides
    }
    image = pad(x, (padding[1], padding[1], padding[0], padding[0]))
    found = copies("conv2d", image, {axis: at.flatten() for axis, at in places.items()})
    found = reshape(found, (of.n, groups, -1, of.oh, of.kh, of.ow, of.kw))
    count = math.prod(w.shape[1:])
    windows = reshape(permute(found, (1, 0, 3, 5, 2, 4, 6)), (groups, -1, count))
    y = product(windows, reshape(w, (groups, -1, count)), transposed=True)
    y = permute(reshape(y, (groups, of.n, of.oh, of.ow, -1)), (1, 0, 4, 2, 3))
    y = reshape(y, (of.n, of.co, of.oh, of.ow))
    return as_bfp8(y if bias is None else add(y, bias.reshape(-1, 1, 1)), "conv2d")
