"""Convolutions and matrix products in torch: float64 products of integers (training.md 5, 7, 14.1).

Every partial sum is an integer below 2**53, so that float64 holds it exactly in any order.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from samebits.kernels.clamps import Clamps
from samebits.kernels.geometry import ConvShape, conv_shape
from samebits.kernels.protocol import Part, Sum
from samebits.kernels.rows import Exponent


class Products(Clamps):
    """The part of `Eager` that multiplies."""

    # --- convolution and matrix product -----------------------------------------------------

    def conv(self, x: Tensor, w: Tensor, s: ConvShape) -> Sum:
        """Sums of products of bfp8 codes x [n, ci, h, w] and w [co, ci/groups, kh, kw].

        [n, co, oh, ow], below 2**30: at most MAX_PRODUCTS products of at most 127**2. A matrix
        product is the 1x1 convolution of one image whose pixels are the rows.
        """
        acc = torch.matmul(_weight_rows(w, s), _columns(x, s)).long()
        return self._sum(acc.view(s.n, s.co, s.oh, s.ow))

    def conv_input_grad(self, g16: Tensor, w: Tensor, s: ConvShape) -> Sum:
        """The input gradient's sums [n, ci, h, w] of a 16-bit gradient g16 [n, co, oh, ow].

        Each is over the outputs that its pixel reaches, co/groups * kh * kw products below 2**22:
        below 2**47 for 2**16 output channels and 2**9 taps, and so exact in binary64 too.
        """
        rows = g16.double().reshape(s.n, s.groups, s.co // s.groups, s.oh * s.ow)
        columns = torch.matmul(_weight_rows(w, s).transpose(1, 2), rows)
        columns = columns.reshape(s.n, s.ci * s.kh * s.kw, s.oh * s.ow)
        # Below 2**15 * 2**7 * 2**16 * 2**9 < 2**53: the sums of `fold` are exact as well.
        sizes = ((s.h, s.w), (s.kh, s.kw))
        return self._sum(F.fold(columns, *sizes, s.dilation, s.padding, s.stride).long())

    def input_gradient(
        self, g16: Tensor, w: Tensor, s: ConvShape, exponent: Exponent, bits: int
    ) -> Part:
        """`conv_input_grad` at an exponent as codes of `bits` bits in int16, requantized (1.1).

        By rows: exponents of samples, or where the pixels of one image are the rows, theirs [n, 1].
        """
        acc, largest = self.conv_input_grad(g16, w, s)
        if isinstance(exponent, Tensor) and exponent.dim() != 4:  # of pixels, which are rows
            pixels = exponent.view(1, 1, 1, -1)
            codes, own = self.requantize_blocks(acc, pixels, 0, pixels.shape, bits)
            assert isinstance(own, Tensor)
            own = own.view(exponent.shape)
        else:
            codes, own = self.requantize(acc, largest, exponent, bits)
        return codes.to(torch.int16), own

    def conv_weight_grad(self, g: Tensor, x: Tensor, s: ConvShape) -> Sum:
        """The weight gradient's sums [co, ci/groups, kh, kw] of g [n, co, oh, ow], 16 or 32 bits.

        Over at most MAX_SUMMED positions: below 2**31 * 2**7 * 2**24 = 2**62.
        """
        # A 32-bit gradient is cut into 16-bit halves: each sum is below 2**16 * 2**7 * 2**24.
        narrow = g.dtype == torch.int16
        halves = [(g, 0)] if narrow else [(g >> 16, 16), (g & 65535, 0)]
        columns = _columns(x, s).transpose(2, 3)
        shape = (s.groups, s.co // s.groups, s.products)
        acc = torch.zeros(shape, dtype=torch.int64, device=g.device)
        for half, shift in halves:
            rows = half.double().reshape(s.n, s.groups, s.co // s.groups, s.oh * s.ow)
            acc += torch.matmul(rows, columns).sum(0).long() << shift
        return self._sum(acc.view(s.co, s.ci // s.groups, s.kh, s.kw))

    # --- products of activations (14.1) -----------------------------------------------------
    #
    # Matrices a [count, n, k] and b [count, m, k] of 8-bit codes, k <= MAX_PRODUCTS; their sums are
    # bounded as those of a layer.

    def products(self, a: Tensor, b: Tensor) -> Sum:
        """a * b^T, [count, n, m].

        As many groups of a convolution, so below.
        """
        s = _shape(a, b)
        acc, top = self.conv(_image(a), _kernel(b), s)
        return _matrices(acc, s), top

    def products_a(self, g16: Tensor, b: Tensor) -> Sum:
        """The gradient of a, g16 * b, [count, n, k], of a 16-bit gradient [count, n, m]."""
        s = _shape(g16.new_empty((*g16.shape[:2], b.shape[2])), b)
        acc, top = self.conv_input_grad(_image(g16), _kernel(b), s)
        return _matrices(acc, s), top

    def products_b(self, g: Tensor, a: Tensor) -> Sum:
        """The gradient of b, g^T * a, [count, m, k], of one of 16 or 32 bits."""
        s = _shape(a, g.transpose(1, 2))
        acc, top = self.conv_weight_grad(_image(g), _image(a), s)
        return acc.reshape(s.groups, -1, a.shape[2]), top


def _columns(x: Tensor, s: ConvShape) -> Tensor:
    """[n, groups, ci/groups * kh * kw, oh * ow] in float64."""
    columns = F.unfold(x.double(), (s.kh, s.kw), s.dilation, s.padding, s.stride)
    return columns.view(s.n, s.groups, s.products, s.oh * s.ow)


def _weight_rows(w: Tensor, s: ConvShape) -> Tensor:
    return w.double().reshape(s.groups, s.co // s.groups, s.products)


def pair_shape(a: Tensor, b: Tensor) -> ConvShape:
    """The geometry of one a [n, k] times b [m, k]: rows are pixels. Raises UnsupportedError."""
    return conv_shape((1, a.shape[2], 1, a.shape[1]), (*b.shape[1:], 1, 1))


def _shape(a: Tensor, b: Tensor) -> ConvShape:
    """The geometry of all of them: a group each."""
    count, n, k = a.shape
    return conv_shape((1, count * k, 1, n), (count * b.shape[1], k, 1, 1), groups=count)


def _image(v: Tensor) -> Tensor:
    """Rows [count, n, k] as the pixels of an image [1, count * k, 1, n]."""
    return v.permute(1, 0, 2).reshape(1, 1, v.shape[1], -1).permute(0, 3, 1, 2)


def _kernel(v: Tensor) -> Tensor:
    """Rows [count, m, k] as 1x1 kernels of groups."""
    return v.reshape(-1, v.shape[2], 1, 1)


def _matrices(image: Tensor, s: ConvShape) -> Tensor:
    """The inverse of `_image`, of sums."""
    return image.permute(0, 2, 3, 1).reshape(s.ow, s.groups, -1).permute(1, 0, 2)
