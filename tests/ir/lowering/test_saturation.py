"""Codes between ends that a QuantizeLinear states, wherever they are made: the exact function."""

from __future__ import annotations

import numpy as np
import pytest

from ir.lowering.test_lower import CONV, Net, assert_same_function, lower_graph
from samebits.errors import UnsupportedError
from samebits.ir import GraphBuilder, interpreter
from samebits.ir.integer.bounds import bounds


class Ranged(Net):
    """A net whose codes may have ends of their own."""

    def ranged(self, x, scale, ends, dtype="int8", zero=0, **attributes):
        a = {"axis": 1, "low": ends[0], "high": ends[1], **attributes}
        codes = self.b.add("QuantizeLinear", [x, *self.parameters(scale, dtype, zero)], a)
        return self.b.add("DequantizeLinear", [codes, *self.parameters(scale, dtype, zero)])


def lowered(net, y):
    """The operators, and the interval of the last one's codes."""
    graph = assert_same_function(net.b.build([y]))
    (output,) = graph.outputs
    found = bounds(graph)[output].hull
    return [node.op for node in graph.nodes], (int(found.low[0]), int(found.high[0]))


def rows(count, width):
    return np.random.default_rng(count).integers(-128, 128, (count, width)).astype(np.int8)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("narrow", [0, 1])
@pytest.mark.parametrize("signed", [True, False])
def test_a_product_saturates_in_its_requantization(bits, narrow, signed):
    half = 1 << (bits - 1)
    ends = (narrow - half, half - 1) if signed else (0, 2 * half - 1 - narrow)
    net = Ranged((2, 6), 0.5, "int8", 3)
    y = net.b.add("Gemm", [net.x, net.weight(rows(4, 6), [0.5, 0.25, 0.125, 1])], {"transB": 1})
    y = net.ranged(y, 8.0 / half, ends, "int8" if signed else "uint8")
    assert lowered(net, y) == (["linear", "requantize"], ends)


def test_an_input_keeps_its_type_and_is_clipped_first():
    net = Ranged((2, 6))
    b = net.b
    y = net.ranged(b.input("y", "float32", (2, 6)), 0.5, (-7, 7))
    z = net.q(b.add("Add", [net.x, y]), 1.0)
    ops, _ = lowered(net, z)
    assert ops == ["clip", "add", "requantize"]


def test_a_table_holds_no_code_outside():
    net = Ranged((2, 6), 0.125, "int8", -3)
    y = net.ranged(net.b.add("Softsign", [net.x]), 1 / 8, (-7, 7))
    assert lowered(net, y) == (["table"], (-7, 7))


def test_codes_of_the_same_scale_are_clipped():
    net = Ranged((2, 6), 0.125, "int8", -3)
    assert lowered(net, net.ranged(net.x, 0.125, (-7, 9), zero=-3)) == (["clip"], (-7, 9))


def test_a_relu_and_the_ends_meet():
    net = Ranged((2, 6), 0.5)
    y = net.b.add("Gemm", [net.x, net.weight(rows(4, 6), 0.5)], {"transB": 1})
    y = net.b.add("Clip", [y], {"min": 2.0, "max": 1000.0})
    assert lowered(net, net.ranged(y, 4.0, (-3, 100), zero=-2))[1] == (-2, 100)


def test_constants_are_rounded_to_codes_between_the_ends():
    net = Ranged((2, 3), 0.5)
    c = net.b.constant("c", np.array([[-9.0, 0.5, 9.0], [1, 2, 3]], np.float32))
    codes = net.ranged(net.b.add("Identity", [c]), 0.5, (-7, 7))
    y = net.b.add("MatMul", [net.x, net.b.add("Transpose", [codes], {"perm": (1, 0)})])
    graph = assert_same_function(net.b.build([net.q(y, 1.0)]))
    stored = [a for a in graph.constants.values() if a.dtype == np.int8]
    assert [sorted(set(a.reshape(-1).tolist())) for a in stored] == [[-7, 1, 2, 4, 6, 7]]


@pytest.mark.parametrize("fill", [-40.0, 0.75, 40.0])
def test_they_move_through_maxima_and_padding(fill):
    net = Ranged((1, 3, 4, 4), 0.25, "uint8", 100)
    y = net.b.add("Conv", [net.x, net.weight(rows(4, 27).reshape(4, 3, 3, 3), 0.5)], CONV)
    y = net.b.add("MaxPool", [y], {"kernel_shape": (2, 2), "strides": (2, 2),
                                   "pads": (0, 0, 0, 0), "dilations": (1, 1)})  # fmt: skip
    y = net.b.add("Pad", [y], {"mode": "constant", "pads": (0,) * 7 + (1,), "value": fill})
    ops, found = lowered(net, net.ranged(y, 16.0, (-7, 6), zero=1))
    assert ops[:3] == ["transpose", "conv", "requantize"]
    assert found == (-7, 6)


def test_other_ends_are_another_quantization():
    net = Ranged((1, 3, 4, 4), 0.25, "uint8", 100)
    y = net.b.add("Conv", [net.x, net.weight(rows(4, 27).reshape(4, 3, 3, 3), 0.5)], CONV)
    y = net.b.add("Reshape", [y], {"shape": (4, 16)})
    both = [net.ranged(y, 16.0, ends) for ends in ((-7, 7), (-7, 6))]
    graph = assert_same_function(net.b.build(both))
    assert [node.op for node in graph.nodes].count("requantize") == 2


def test_a_softmax_and_a_normalisation_saturate():
    """Neither is exact in rationals: the codes of the wide type, clipped, are those that it has."""
    for op in ("Softmax", "LayerNormalization"):
        made = []
        for ends in ((None, None), (-5, 6)):
            net = Ranged((2, 6), 0.5)
            names = [net.x]
            if op == "LayerNormalization":
                names.append(net.b.constant("gamma", np.ones(6, np.float32)))
            y = net.ranged(net.b.add(op, names, {"axis": 1}), 1 / 16, ends)
            made.append(lower_graph(net.b.build([y])))
        x = rows(2, 6)
        wide, ranged = (interpreter.run(graph, [x])[0] for graph in made)
        assert np.array_equal(np.clip(wide, -5, 6), ranged)
        assert not np.array_equal(wide, ranged)


@pytest.mark.parametrize(("low", "high"), [(None, 3.5), (-1e9, 20.0), (200.0, None), (-4.0, -9.0)])
def test_a_clip_of_codes_is_a_clip(low, high):
    b = GraphBuilder("net")
    x = b.input("x", "int8", (2, 6))
    y = b.add("Clip", [x], {"min": low, "max": high})
    parameters = [b.constant("s", np.float32(0.5)), b.constant("z", np.int8(0))]
    b.build([b.add("DequantizeLinear", [y, *parameters])])
    real = b.build([y])
    graph = lower_graph(real)
    codes = np.arange(-6, 6, dtype=np.int8).reshape(2, 6) * 20
    assert [node.op for node in graph.nodes] == ["clip"]
    assert np.array_equal(interpreter.run(graph, [codes])[0], interpreter.run(real, [codes])[0])


def test_scales_of_features_have_ends_too():
    b = GraphBuilder("net")
    x = b.input("x", "float32", (1, 2))
    parameters = [b.constant("s", np.float32([0.5, 0.25])), b.constant("z", np.int16([0, 0]))]
    codes = b.add("QuantizeLinear", [x, *parameters], {"axis": 1, "low": -100, "high": 100})
    y = b.add("DequantizeLinear", [codes, *parameters], {"axis": 1})
    with pytest.raises(UnsupportedError, match="accumulator with one scale"):
        lower_graph(b.build([y]))
