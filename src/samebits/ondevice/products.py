"""Gradients of products of rows or images with a weight, and the updates that they make."""

from __future__ import annotations

import math
from dataclasses import dataclass

from samebits.kernels import ConvShape
from samebits.ondevice.gradients import column, narrowed
from samebits.ondevice.tape import Array, TapeGradient, codes, exponent, gradient, pointer
from samebits.ondevice.writer import TapeWriter, instruction
from samebits.train.graph import TrainingNode

EXACT_TERMS = 516  # products of 16 and 8 bits that a sum of 32 bits holds
COLUMN = 8  # products in the time of a code of a gradient that is not stored
TABLE = 16  # products of which a table saves one: not all processors take it


@dataclass(frozen=True)
class ProductGradients:
    """A product on its way back: the gradient of its input, and updates of its parameters.

    geometry: as C; shape: of an image; images: of the largest batch
    """

    made: TapeWriter
    node: TrainingNode
    geometry: str
    shape: ConvShape
    images: int

    def bound(self, name: str, text: str) -> None:
        """A bound of the update of a weight or bias, or of the gradient of the input."""
        call = f"samebits_train_bound_{name}(&b, {self.geometry}, {text})"
        self.made.tape.bounds.append(instruction(self.node, call, fails=False))

    def work(self, g: TapeGradient) -> int:
        """Products of all outputs."""
        return math.prod(g.shape) * self.shape.products

    def input(self, g: TapeGradient, x: Array, w: str) -> TapeGradient:
        """The gradient of the input."""
        t = self.made.tape
        short, dx = narrowed(self.made, self.node, g), t.gradient(x.shape, 16)
        call = f"samebits_train_input_gradient({self.geometry}, {codes(short, 0)}, "
        call += f"{exponent(short)}, {w}, "
        rooms = []
        if _input_terms(self.shape) <= EXACT_TERMS:
            rooms.append(t.optional(4 * math.prod(x.shape), self.work(g), dx.room))
        call += f"{'{2}' if rooms else 'NULL'}, {codes(dx, 1)}, &{exponent(dx)})"
        t.backward.append(instruction(self.node, call, short, dx, *rooms))
        return dx

    def bias_step(self, g: TapeGradient, b: str) -> None:
        """The update of a bias."""
        self.bound("bias", f"{b}, o")
        t = self.made.tape
        call = f"samebits_train_bias_step({gradient(g, 2)}, count * {g.rows}, "
        call += f"{pointer('int32_t', 0)}, {pointer('int64_t', 1)}, {b}, o)"
        sums = t.room(8 * self.shape.co)
        t.backward.append(instruction(self.node, call, column(self.made, g), sums, *g.rooms))

    def weight_step(self, g: TapeGradient, x: Array, w: str, e_x: str = "") -> None:
        """The update of a weight. e_x: an exponent that is not below that of x, which the bound has
        before there is an x."""
        self.bound("weight", f"{e_x or exponent(x)}, {w}, o")
        t, s = self.made.tape, self.shape
        call = f"samebits_train_weight_step({self.geometry}, {codes(x, 0)}, {exponent(x)}, "
        call += f"{gradient(g, 5)}, {pointer('int32_t', 1)}, "
        call += f"{pointer('samebits_meeting', 2)}, {{3}}, {{4}}, {w}, o)"
        positions, pairs = t.batch * g.rows, (self.images + 1) // 2
        room = t.room(8 * positions)
        columns = 0 if g.is_stored else math.prod(g.shape) * COLUMN
        sums = t.optional(8 * s.co * s.products, self.work(g) + columns)
        table = 4 * max(positions * s.kh * s.kw, pairs * math.prod(x.shape) // self.images)
        rooms = room, sums, t.optional(table, self.work(g) // TABLE), *g.rooms
        t.backward.append(instruction(self.node, call, x, column(self.made, g), *rooms))


def _input_terms(shape: ConvShape) -> int:
    """The most products of a gradient of an input."""
    down = min(-(-shape.kh // shape.stride[0]), shape.oh)
    across = min(-(-shape.kw // shape.stride[1]), shape.ow)
    return shape.co // shape.groups * down * across
