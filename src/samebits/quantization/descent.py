"""Roundings of weights that leave the least error in a sum of products.

Plain rounding takes for every weight the nearest code. What counts is the error of the sum: with q
the codes of an output channel, x the codes of the layer's inputs and y what the float network has,
sum (q x - y)**2 = q' G q - 2 B q + ..., where G = sum x x' and B = sum x y. A code is one of the
two next to the exact weight (as in M. Nagel et al., "Up or Down? Adaptive Rounding for
Post-Training Quantization", AdaRound, 2020). Starting at the nearest codes, each weight in turn
gets the code for which the error is least, the others fixed, until none changes: coordinate
descent, as A. Zhang et al., "COMQ: A Backpropagation-Free Algorithm for Post-Training Quantization"
(2024) has it. The error never grows. (Going once from the last weight to the first with the factors
of G, as E. Frantar et al., "GPTQ", 2023, left more error on random layers, and as a start for the
descent 3 % less, at the cost of the cube of the terms.)

Everything is computed in int64: the same codes on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.ir import Node
from samebits.ir.real.define import bilinear
from samebits.ir.real.window import unfolded

Array = np.ndarray[Any, Any]

SWEEPS = 8  # over the weights of a layer, at most
HOLD = 64  # a 64th of the diagonal of G holds each weight near its value
ROOM = 61  # bits of the sums of the descent
SUM = 62  # bits of a moment


@dataclass(frozen=True)
class Layout:
    """The weights of a layer as matrices [groups, terms of a sum, outputs of a group].

    shape: of the weights as the node reads them
    """

    node: Node
    shape: tuple[int, ...]

    @property
    def known(self) -> bool:
        """Whether the layer is a convolution, or a product with one matrix."""
        if self.node.op == "Conv":
            return True
        return len(self.shape) == 2 and self.axis == -1 and not self.node.attributes.get("transA")

    @property
    def axis(self) -> int:
        """The axis of channels in the output."""
        return 1 if self.node.op in ("Conv", "ConvTranspose") else -1

    @property
    def groups(self) -> int:
        """Channels of one group do not meet those of another."""
        return int(self.node.attributes.get("group", 1))

    @property
    def size(self) -> tuple[int, int, int]:
        """Groups, terms of a sum, outputs of a group."""
        groups, terms, outputs = self.matrix(np.empty(self.shape, np.bool_)).shape
        return groups, terms, outputs

    def matrix(self, weights: Array) -> Array:
        """Weights, or anything of their shape, as matrices."""
        if self.node.op == "Conv":
            outputs = self.shape[0] // self.groups
            return weights.reshape(self.groups, outputs, -1).swapaxes(1, 2)
        return weights.T[None] if self.node.attributes.get("transB") else weights[None]

    def restored(self, matrix: Array) -> Array:
        """The inverse of `matrix`."""
        if self.node.op == "Conv":
            return matrix.swapaxes(1, 2).reshape(self.shape)
        return matrix[0].T if self.node.attributes.get("transB") else matrix[0]

    def rows(self, x: Array) -> Array:
        """[groups, positions, terms]: what each output position multiplies with the weights."""
        if self.node.op == "Conv":
            return unfolded(x, self.shape[2:], self.node.attributes)
        return x.reshape(1, -1, x.shape[-1])

    def columns(self, y: Array) -> Array:
        """[groups, positions, outputs of a group] of outputs whose channels are the last axis."""
        return y.reshape(-1, self.groups, y.shape[-1] // self.groups).swapaxes(0, 1)


class Moments:
    """Sums over all positions of all samples: what the error is a function of.

    products [groups, terms, terms], targets [groups, terms, outputs], and the sums of both sides
    """

    def __init__(self, layout: Layout) -> None:
        groups, terms, outputs = layout.size
        self.products = np.zeros((groups, terms, terms), np.int64)
        self.targets = np.zeros((groups, terms, outputs), np.int64)
        self.x, self.y = np.zeros((groups, terms), np.int64), np.zeros((groups, outputs), np.int64)
        self.count = 0

    def add(self, rows: Array, columns: Array) -> None:
        """rows: codes [groups, positions, terms]; columns: wanted sums [groups, positions, outputs]
        in their units."""
        turned = rows.swapaxes(1, 2)
        self.products += bilinear(np.matmul, turned, rows)
        self.targets += bilinear(np.matmul, turned, columns)
        self.x += rows.sum(1)
        self.y += columns.sum(1)
        self.count += rows.shape[1]

    def centred(self) -> tuple[Array, Array]:
        """products and targets of rows and columns less their mean, rounded to an integer: what is
        left to the weights where the bias takes care of the means."""
        x, y = (_mean(total, self.count) for total in (self.x, self.y))
        products = (
            self.products
            - x[:, :, None] * self.x[:, None, :]
            - self.x[:, :, None] * x[:, None, :]
            + self.count * x[:, :, None] * x[:, None, :]
        )
        targets = (
            self.targets
            - x[:, :, None] * self.y[:, None, :]
            - self.x[:, :, None] * y[:, None, :]
            + self.count * x[:, :, None] * y[:, None, :]
        )
        return products, targets


def excess(x: Sequence[Array], y: Sequence[Array]) -> int:
    """Low bits of the wanted sums y, channels last, that int64 has no room for once they are
    multiplied with the codes x and added."""
    largest = [max((int(abs(a).max()) for a in arrays if a.size), default=0) for arrays in (x, y)]
    count = sum(array.size // max(1, array.shape[-1]) for array in y)
    return max(0, (largest[0] * largest[1] * count).bit_length() - SUM)


def _mean(total: Array, count: int) -> Array:
    return np.asarray((2 * total + count) // (2 * count))


def descend(products: Array, targets: Array, count: int, start: Array, exact: Array) -> Array:
    """Codes whose sums of products are nearest to the targets, each next to its exact value.

    products, targets: of `Moments`, of `count` positions. start: codes [groups, terms, outputs] to
    begin with; exact: the weights in units of their codes, binary64, within the least and the
    greatest code
    """
    terms = products.shape[1]
    low, high = np.floor(exact).astype(np.int64), np.ceil(exact).astype(np.int64)
    diagonal = np.einsum("gii->gi", products).copy()
    # Few positions say little about many weights: there each is held the more.
    share, rest = np.divmod(diagonal, 4 * count)  # their products with `terms` fit in int64
    hold = diagonal // HOLD + share * terms + rest * terms // (4 * count) + 1
    largest = int(np.abs(products).max(initial=0)) + int(hold.max(initial=0))
    largest = largest * terms * int(max(abs(low).max(initial=1), abs(high).max(initial=1)))
    shift = max(0, (largest + int(np.abs(targets).max(initial=0))).bit_length() - ROOM)
    products, hold = products >> shift, np.maximum(hold >> shift, 1)
    step = np.arange(terms)
    products[:, step, step] += hold
    targets = (targets >> shift) + np.rint(hold[:, :, None] * exact).astype(np.int64)
    q = np.clip(start, low, high)
    rest = np.matmul(products, q) - targets
    for _ in range(SWEEPS):
        before = q.copy()
        for i in range(terms):
            each = products[:, i, i, None]
            nearest = q[:, i] + (each - 2 * rest[:, i]) // (2 * each)
            more = np.clip(nearest, low[:, i], high[:, i]) - q[:, i]
            if more.any():
                q[:, i] += more
                rest += products[:, :, i, None] * more[:, None, :]
        if np.array_equal(before, q):
            break
    return q
