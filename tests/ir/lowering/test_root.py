"""Square roots of sums of codes: the exact number, rounded once."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from ir.lowering.test_lower import Net, lower_graph, unsupported
from samebits.errors import RangeError, UnsupportedError
from samebits.ir.interpreter import run
from samebits.ir.verify import verify

UNIT, SCALE = 3 / 256, 3 * 181 / 256 / 128  # of what is squared; of the root
EVERY = np.array(list(itertools.product(range(-128, 128, 5), repeat=2)), np.int8)


def nearest(square):
    """rne(sqrt(square)) by search."""
    k = math.isqrt(math.floor(square))
    middle = Fraction(2 * k + 1, 2) ** 2
    return k + (square > middle or (square == middle and k % 2 == 1))


def parts(net):
    """The two columns of its input."""
    cut = [{"starts": (i,), "ends": (i + 1,), "axes": (1,), "steps": (1,)} for i in range(2)]
    return [net.b.add("Slice", [net.x], each) for each in cut]


def squared(net, x, op):
    two = net.b.constant("two", np.array(2, np.float32))
    return net.b.add("Mul", [x, x]) if op == "Mul" else net.b.add("Pow", [x, two])


def magnitude(op="Mul", kind="int8", zero=3, then=(), scale=SCALE, before=()):
    """sqrt(a * a + b * b) as codes of a type, with more operators before and after the root."""
    net = Net((len(EVERY), 2), UNIT, "int8", 7)
    y = net.b.add("Add", [squared(net, x, op) for x in parts(net)])
    for name, attributes in before:
        operands = [y]
        if name == "Add":
            operands.append(net.b.constant("c", np.float32(attributes.pop("with"))))
        y = net.b.add(name, operands, attributes)
    y = net.b.add("Sqrt", [y])
    for name, attributes in then:
        y = net.b.add(name, [y], attributes)
    return net.b.build([net.q(y, scale, kind, zero)])


def expected(kind="int8", zero=3, scale=SCALE, offset=0, low=0.0, high=math.inf):
    d = EVERY.astype(int) - 7
    ends = np.iinfo(kind)
    codes = []
    for square in (d * d).sum(1) + offset:
        root = nearest(int(square) * (Fraction(UNIT) / Fraction(np.float32(scale).item())) ** 2)
        root = min(max(root, round(low / scale)), high if high == math.inf else round(high / scale))
        codes.append(min(max(root + zero, int(ends.min)), int(ends.max)))
    return np.array(codes).reshape(-1, 1)


def check(graph, wanted, ops=("slice", "slice", "multiply", "multiply", "add", "root")):
    verify(graph)
    integer = lower_graph(graph)
    verify(integer)
    assert sorted(n.op for n in integer.nodes) == sorted(ops)
    (found,) = run(integer, [EVERY])
    assert found.reshape(-1, 1).tolist() == wanted.tolist()
    return integer


@pytest.mark.parametrize("op", ["Mul", "Pow"])
@pytest.mark.parametrize(
    ("kind", "zero"), [("int8", -128), ("int8", 3), ("uint8", 0), ("uint16", 0), ("int16", -32768)]
)
def test_a_magnitude_is_rounded_once(op, kind, zero):
    graph = check(magnitude(op, kind, zero), expected(kind, zero))
    root = graph.nodes[-1].attributes
    assert (root["p"], root["q"]) == (128**2, 181**2)


def test_a_constant_is_rounded_to_the_unit_of_the_squares():
    before = [("Add", {"with": 1000.4 * UNIT**2})]
    check(magnitude(before=before), expected(offset=1000))


def test_bounds_before_and_after_the_root_are_codes():
    bounds = {"low": SCALE * 30, "high": SCALE * 80}
    inside = {"min": bounds["low"] ** 2, "max": bounds["high"] ** 2}
    check(magnitude(before=[("Clip", inside)]), expected(**bounds))
    check(magnitude(then=[("Clip", {"min": bounds["low"], "max": bounds["high"]})]),
          expected(**bounds))  # fmt: skip
    # The later bound holds, wherever the earlier one lies.
    then = [("Relu", {}), ("Clip", {"min": 0.0, "max": SCALE * 10})]
    graph = magnitude(before=[("Clip", {"min": inside["min"], "max": None})], then=then)
    check(graph, np.full((len(EVERY), 1), 13))


def test_a_root_moves_behind_its_quantization():
    graph = magnitude(then=[("Reshape", {"shape": (1, len(EVERY))})])
    ops = ("slice", "slice", "multiply", "multiply", "add", "root", "reshape")
    check(graph, expected(), ops)
    before = [("Reshape", {"shape": (len(EVERY),)})]
    codes = lower_graph(magnitude(before=before))
    assert run(codes, [EVERY])[0].tolist() == expected().reshape(-1).tolist()


def test_other_sums_have_roots():
    """Of three squares, of a product, and of a convolution's result, where that is positive."""
    net = Net((len(EVERY), 2), UNIT, "int8", 7)
    a, b = parts(net)
    y = net.b.add("Add", [squared(net, a, "Mul"), squared(net, b, "Pow")])
    y = net.b.add("Add", [y, squared(net, net.b.add("Identity", [a]), "Mul")])
    graph = net.b.build([net.q(net.b.add("Sqrt", [y]), SCALE, "uint8")])
    (found,) = run(lower_graph(graph), [EVERY])
    d = EVERY.astype(int) - 7
    ratio = Fraction(128, 181) ** 2
    wanted = [min(nearest(int(2 * p * p + q * q) * ratio), 255) for p, q in d]
    assert found[:, 0].tolist() == wanted
    net = Net((len(EVERY), 2), UNIT, "int8", 7)
    y = net.b.add("Sqrt", [net.b.add("Mul", parts(net))])
    (found,) = run(lower_graph(net.b.build([net.q(y, SCALE, "uint8")])), [EVERY])
    assert found[:, 0].tolist() == [nearest(max(int(p * q), 0) * ratio) for p, q in d]


def test_what_no_ratio_of_small_integers_says_is_refused():
    match = r"expected a square root with the scale of what is squared times m / 2\*\*j"
    with pytest.raises(UnsupportedError, match=match):
        lower_graph(magnitude(scale=0.0173))
    with pytest.raises(RangeError, match=r"expected 4 \* x \* p below 2\*\*63"):
        lower_graph(magnitude(scale=UNIT / 2**24))


@pytest.mark.parametrize(
    ("ops", "text"),
    [
        (["Sqrt", "Log"], "expected a QuantizeLinear after the square root of a sum"),
        (["Neg", "Sqrt"], "expected positive scales"),
    ],
)
def test_what_has_no_root(ops, text):
    net = Net((4, 2), UNIT)
    y = net.b.add("Add", [squared(net, x, "Mul") for x in parts(net)])
    for op in ops:
        y = net.b.add(op, [y])
    assert text in unsupported(net, net.q(y, 0.1))


def test_a_root_leaves_no_graph():
    net = Net((4, 2), UNIT)
    y = net.b.add("Add", [squared(net, x, "Mul") for x in parts(net)])
    assert "expected quantized values, found Root" in unsupported(net, net.b.add("Sqrt", [y]))
