"""Magnitudes: square roots of sums of squares, `sqrt(a * a + b * b)`, which are rounded once.

Squares have twice the range of what is squared, in decibels, and codes of them lose what is quiet.
Codes of a and b have exact squares, which add up in one unit where a and b share a scale; `root`
rounds the square root of the sum (docs/spec/graph.md 3.3). It wants the unit over the square of the
result's scale as a ratio of small integers: the result has the scale of a and b times m / 2**j.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from samebits.ir import Graph, Node, Trait, has
from samebits.ir.graph import moved_inputs
from samebits.ir.integer.root import LARGEST_RADICAND
from samebits.numerics import ScaleRule, catalog
from samebits.quantization.calibrate import Calibrated, rescaled, shortened
from samebits.quantization.settings import WIDTHS
from samebits.spec import formats

UNIT_BITS, FACTOR_BITS = 16, 8  # of the scale of what is squared and of m: a binary32 number
SIGNIFICAND = UNIT_BITS + FACTOR_BITS
LARGEST_RATIO = 1 << 13  # of two scales: its square is the largest q of `root`


@dataclass(frozen=True)
class Magnitude:
    """A square root of a sum of squares.

    operands: what is squared. inside: the squares, their sums and what follows up to the root, all
    of them read by the next alone. output: the root
    """

    operands: tuple[str, ...]
    inside: tuple[str, ...]
    output: str


def magnitudes(graph: Graph) -> list[Magnitude]:
    """The magnitudes of a float graph: `Sqrt` of sums of the squares (`Mul`, `Pow`) of two tensors
    or more that are not functions of one, to which a constant may be added and bounds be set."""
    search = _Search(graph)
    found = [search.magnitude(node) for node in graph.nodes if node.op == "Sqrt"]
    return [each for each in found if each is not None]


def basis_widths(graph: Graph, bits: int) -> dict[str, int]:
    """The constant weights of products whose results are squared for a magnitude, with as many bits
    as activations have, if those are 16: what is quiet beside something loud keeps no more decibels
    than the basis of the transform has."""
    if bits != WIDTHS[-1]:
        return {}
    producers, found = graph.producers(), []
    waiting = [name for each in magnitudes(graph) for name in each.operands]
    while waiting:
        node = producers.get(waiting.pop())
        if node is None:
            continue
        if has(node.op, Trait.PRODUCT):
            found += [name for name in node.inputs[1:2] if name in graph.constants]
        elif has(node.op, Trait.MOVEMENT):
            waiting += moved_inputs(node)
    return dict.fromkeys(found, bits)


class _Search:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers, self.consumers = graph.producers(), graph.consumers()

    def magnitude(self, root: Node) -> Magnitude | None:
        """Follow a square root to what is squared; None where it is no magnitude."""
        operands: list[str] = []
        inside: list[str] = []
        name = root.inputs[0]
        for ops in (("Clip", "Relu"), ("Add",)):
            node = self.maker(name)
            if node is None:
                return None
            variables = self.variables(node)
            constants = [n for n in node.inputs if n not in variables]
            if node.op in ops and len(variables) == 1 and all(map(self.number, constants)):
                inside.append(name)
                (name,) = variables
        waiting = [name]
        while waiting:
            name = waiting.pop()
            node = self.maker(name)
            if node is None:
                return None
            inside.append(name)
            variables = self.variables(node)
            if node.op == "Add" and len(variables) == 2:
                waiting += variables
            elif self.is_square(node):
                operands.append(variables[0])
            else:
                return None
        if len(set(map(self.source, operands))) == 1:  # a function of one tensor: a table
            return None
        distinct = tuple(dict.fromkeys(reversed(operands)))
        return Magnitude(distinct, tuple(inside), root.output)

    def source(self, name: str) -> str:
        """The one value that this is a point-wise function of, itself at least."""
        node = self.producers.get(name)
        while node is not None and has(node.op, Trait.FUNCTION):
            variables = set(self.variables(node))
            if len(variables) != 1:
                break
            (name,) = variables
            node = self.producers.get(name)
        return name

    def maker(self, name: str) -> Node | None:
        """The node that makes a value of which one other is made and nothing else."""
        alone = len(self.consumers[name]) == 1 and name not in self.graph.outputs
        return self.producers.get(name) if alone else None

    def variables(self, node: Node) -> list[str]:
        return [name for name in node.inputs if name and name not in self.graph.constants]

    def number(self, name: str) -> bool:
        return self.graph.constants[name].size == 1

    def is_square(self, node: Node) -> bool:
        if node.op == "Pow":
            power = self.graph.constants.get(node.inputs[1])
            return power is not None and power.size == 1 and float(power.reshape(-1)[0]) == 2
        return node.op == "Mul" and node.inputs[0] == node.inputs[1]


def fitted(
    found: Sequence[Magnitude], group: Mapping[str, str], numbers: Mapping[str, Calibrated]
) -> dict[str, Calibrated]:
    """The numbers of all groups, where the scale of a root is the least multiple of that of its
    operands, times m / 2**j, that is no finer than calibration asks for."""
    fitting, roots = dict(numbers), set[str]()
    for each in found:
        operand, output = group[each.operands[0]], group[each.output]
        if operand == output:
            continue
        fixed = fitting[output].format.rule is ScaleRule.FIXED
        fitting[output] = _unsigned(fitting[output])
        if operand not in roots:
            fitting[operand] = shortened(fitting[operand], 1 if fixed else UNIT_BITS)
        scale = _multiple(fitting[output].scale, fitting[operand], len(each.inside))
        fitting[output] = rescaled(fitting[output], scale)
        roots.add(output)
    return fitting


def _unsigned(found: Calibrated) -> Calibrated:
    """Symmetric numbers that are never negative with all codes of their type, of zero point 0."""
    fmt = found.format
    if fmt.rule is not ScaleRule.SYMMETRIC or found.low < 0 or found.high == 0:
        return found
    unsigned = catalog.asymmetric(fmt.bits, signed=False)
    return replace(found, format=unsigned, scale=found.high / unsigned.code_max)


def _multiple(scale: Fraction, operand: Calibrated, terms: int) -> Fraction:
    """The least scale of the operand times m / 2**j that is at least `scale`, as far as the bounds
    of `root` reach for the sum of as many squares, and as much as one half of it."""
    unit, fmt = operand.scale, operand.format
    ratio = min(scale / unit, Fraction(LARGEST_RATIO))
    largest = 8 * terms * (fmt.code_max - fmt.code_min) ** 2
    finest = -((LARGEST_RADICAND // largest).bit_length() - 1 >> 1)
    bits = max(min(FACTOR_BITS, SIGNIFICAND - _significant_bits(unit)), 1)
    step = formats.power(max(formats.floor_log2(ratio) - bits + 1, finest))
    return unit * step * -(-ratio // step)


def _significant_bits(scale: Fraction) -> int:
    """Count the bits of a binary number from its first 1 to its last."""
    n = scale.numerator
    return (n // (n & -n)).bit_length()
