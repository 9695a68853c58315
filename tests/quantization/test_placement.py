"""Which values get codes, and which share a scale."""

from __future__ import annotations

import numpy as np
import pytest

from samebits.errors import InputError, UnsupportedError
from samebits.quantization.placement import place


def groups(placement):
    """The sets of two or more values that share a scale."""
    return {frozenset(names) for names in placement.members().values() if len(names) > 1}


def test_a_residual_net(residual_net):
    placement = place(residual_net[0])
    assert placement.quantized == ("x", "r", "d", "h", "s", "g", "y")
    assert groups(placement) == {frozenset(("r", "m")), frozenset(("g", "f"))}


def test_relu_and_clip_merge_and_tanh_does_not(net):
    n = net()
    x = n.input("x", 1, 2, 4, 4)
    a = n.add("Relu", "a", n.conv("a0", x, 3, 2, 3, 3))
    b = n.add("Clip", "b", n.conv("b0", a, 3, 3, 3, 3), min=-1.0, max=2.0)
    c = n.add("Tanh", "c", n.conv("c0", b, 3, 3, 3, 3))
    d = n.add("Relu", "d", n.add("Clip", "d1", n.conv("d0", c, 3, 3, 3, 3), min=-1.0))
    assert place(n.build(d)).quantized == ("x", "a", "b", "c0", "c", "d")


def test_an_accumulator_that_others_read_is_quantized(net):
    n = net()
    c = n.conv("c", n.input("x", 1, 2, 4, 4), 2, 2, 3, 3)
    r, t = n.add("Relu", "r", c), n.add("Tanh", "t", c)
    assert place(n.build(n.add("Concat", "y", r, t, axis=1))).quantized == ("x", "c", "r", "t")
    n = net()
    c = n.conv("c", n.input("x", 1, 2, 4, 4), 2, 2, 3, 3)
    assert place(n.build(c, n.add("Relu", "r", c))).quantized == ("x", "c", "r")


def test_an_expression_of_one_variable_is_quantized_once(net):
    """Gelu as exporters write it, and Swish."""
    n = net()
    c = n.conv("c", n.input("x", 1, 2, 4, 4), 2, 2, 3, 3)
    e = n.add("Erf", "e", n.add("Div", "v", c, n.constant("root", 1.4142135)))
    f = n.add("Mul", "f", c, n.add("Add", "p", e, n.constant("one", 1.0)))
    g = n.add("Mul", "g", f, n.constant("half", 0.5))
    s = n.add("Mul", "s", g, n.add("Sigmoid", "z", g))
    assert place(n.build(n.conv("y", s, 2, 2, 3, 3))).quantized == ("x", "c", "s", "y")


def test_an_expression_ends_where_something_else_reads_it(net):
    n = net()
    x = n.input("x", 1, 2, 4, 4)
    t = n.add("Tanh", "t", x)
    e = n.add("Exp", "e", t)
    c = n.conv("c", t, 2, 2, 3, 3)
    y = n.add("Add", "y", n.add("Mul", "m", e, x), c)
    # t is read by a convolution, so e is a function of t's codes, and e * x has two variables.
    assert place(n.build(y)).quantized == ("x", "t", "e", "c", "m", "y")


def test_movement_keeps_the_scale(net):
    n = net()
    x = n.input("x", 1, 2, 4, 4)
    t = n.add("Transpose", "t", n.add("Tanh", "h", x), perm=(0, 2, 3, 1))
    p = n.add("Pad", "p", t, pads=(0, 1, 0, 0, 0, 0, 1, 0), mode="constant", value=0.0)
    r = n.add("Reshape", "r", p, shape=(1, 50))
    one, two = n.builder.add_all("Split", [r], {"axis": 1, "sizes": (20, 30)}, outputs=["i", "j"])
    placement = place(n.build(n.gemm("y", one, 3, 20), two))
    assert placement.quantized == ("x", "h", "y")
    assert frozenset(("h", "t", "p", "r", "i", "j")) in groups(placement)


def test_concat_shares_one_scale_with_all_it_joins(net):
    n = net()
    x = n.input("x", 1, 2, 4, 4)
    a, b = n.conv("a", x, 2, 2, 3, 3), n.add("Relu", "b", n.conv("b0", x, 2, 2, 3, 3))
    k = n.constant("k", np.ones((1, 1, 4, 4)))
    y = n.add("Concat", "y", a, b, k, axis=1)
    placement = place(n.build(n.conv("z", y, 2, 5, 3, 3)))
    assert placement.quantized == ("x", "a", "b", "z")
    assert groups(placement) == {frozenset(("a", "b", "k", "y"))}
    assert placement.operands == {("y_node", 2)}


def test_max_of_tensors_shares_and_max_with_a_number_does_not(net):
    n = net()
    x = n.input("x", 1, 4)
    a, b = n.gemm("a", x, 4, 4), n.gemm("b", x, 4, 4)
    m = n.add("Max", "m", a, b)
    y = n.add("Max", "y", m, n.constant("k", 0.5))
    placement = place(n.build(y))
    assert placement.quantized == ("x", "a", "b", "m", "y")
    assert groups(placement) == {frozenset(("a", "b", "m"))}


def test_constants_of_several_axes_are_operands(net):
    n = net()
    x = n.input("x", 1, 3, 4)
    a = n.add("Add", "a", x, n.weight("position", 3, 4))
    b = n.add("Mul", "b", a, n.weight("channels", 4))
    c = n.add("Mul", "c", b, n.weight("rows", 3, 1))
    placement = place(n.build(c))
    # `b` and `c` would need a table of two axes together, so b is quantized.
    assert placement.quantized == ("x", "a", "b", "c")
    assert placement.operands == {("a_node", 1)}


def test_a_matmul_merges_with_its_bias_and_relu(net):
    n = net()
    x = n.input("x", 2, 3, 4)
    m = n.add("MatMul", "m", x, n.weight("w", 4, 5))
    r = n.add("Relu", "r", n.add("Add", "a", n.weight("b", 5), m))
    k = n.add("MatMul", "k", r, n.weight("v", 5, 5))
    wide = n.add("Add", "wide", k, n.weight("rows", 3, 5))
    placement = place(n.build(wide))
    assert placement.quantized == ("x", "r", "k", "wide")
    assert placement.biases == {"m": "b"}
    assert placement.operands == {("wide_node", 1)}


def test_constants_of_one_axis_are_part_of_an_expression(net):
    """x * k + x is one function of x for each index of the axis of k: a table, quantized once."""
    n = net()
    c = n.conv("c", n.input("x", 1, 3, 4, 4), 3, 3, 3, 3)
    m = n.add("Mul", "m", c, n.weight("channels", 3, 1, 1))
    y = n.add("Tanh", "y", n.add("Add", "a", m, c))
    placement = place(n.build(y))
    assert placement.quantized == ("x", "c", "y")
    assert not placement.operands


def terms(n, second, reader=None):
    """The placement of x w + v with exact sums; v: a value that `second` makes of x, which another
    node may read as well."""
    x = n.input("x", 2, 4)
    product = n.add("MatMul", "p", x, n.weight("w", 4, 4))
    v = second(x)
    y = n.add("Add", "y", product, v)
    more = [n.add(reader, "r", v)] if reader else []
    return place(n.build(y, *more), exact_sums=True)


def test_terms_of_an_exact_sum(net):
    """Products stay exact: of matrices, of tensors, of a tensor and a constant. What another node
    reads, and a square, which is a function of one tensor, are quantized before they are added."""
    n = net()
    placement = terms(n, lambda x: n.add("Mul", "v", x, n.weight("k", 4)))
    assert placement.quantized == ("x", "y")
    assert placement.operands == {("v_node", 1)}
    n = net()
    placement = terms(n, lambda x: n.add("Mul", "v", x, n.weight("k", 4)), "Tanh")
    assert placement.quantized == ("x", "v", "y", "r")
    assert not placement.operands
    n = net()
    placement = terms(n, lambda x: n.add("Mul", "v", x, n.input("z", 2, 4)))
    assert placement.quantized == ("x", "z", "y")
    n = net()
    assert terms(n, lambda x: n.add("Mul", "v", x, x)).quantized == ("x", "v", "y")
    n = net()
    assert terms(n, lambda x: n.add("Tanh", "v", x)).quantized == ("x", "v", "y")


def test_pools_softmax_and_unknown_operators(net):
    n = net()
    x = n.input("x", 1, 2, 4, 4)
    p = n.add("Relu", "p", n.add("GlobalAveragePool", "p0", x))
    s = n.add("Softmax", "s", n.add("Flatten", "f", p, axis=1), axis=1)
    norm = n.add("LayerNormalization", "n", s, n.weight("w", 2), axis=-1, epsilon=1e-5)
    placement = place(n.build(norm))
    assert placement.quantized == ("x", "p", "s", "n")
    assert not placement.operands


def test_integers_have_no_codes(net):
    n = net()
    t = n.input("t", 1, 3, dtype="int64")
    e = n.add("Gather", "e", n.weight("table", 10, 4), t, axis=0)
    y = n.add("ArgMax", "y", n.add("Tanh", "h", e), axis=2, keepdims=0, select_last_index=0)
    placement = place(n.build(y))
    assert placement.quantized == ("h",)
    assert placement.operands == {("e_node", 0)}
    n = net()
    image = n.add("Cast", "f", n.input("x", 1, 3, dtype="uint8"), to="float32")
    y = n.gemm("y", n.add("Div", "d", image, n.constant("k", 255.0)), 2, 3)
    assert place(n.build(y)).quantized == ("d", "y")


def test_places_said_by_an_integer_input_have_no_codes(net):
    """Nor has what they become by movement: 0 and -inf, as of padded texts."""
    n = net()
    said = n.add("Cast", "b", n.input("t", 1, 4, dtype="int64"), to="bool")
    left = n.add("Where", "f", said, n.constant("k", -np.inf), n.constant("o", 0.0))
    wide = n.add("Expand", "w", n.add("Reshape", "r", left, shape=(1, 1, 4)), shape=(1, 3, 4))
    y = n.add("Softmax", "y", n.add("Add", "s", n.input("x", 1, 3, 4), wide), axis=2)
    assert place(n.build(y)).quantized == ("x", "y")


def test_a_fill_value_gets_a_scale_of_its_own(net):
    n = net()
    x = n.input("x", 1, 4)
    y = n.add("Pad", "y", x, pads=(0, 1, 0, 1), mode="constant", value=-3.0)
    placement = place(n.build(y))
    assert placement.quantized == ("x", "y")
    assert not groups(placement)


def test_long_chains_need_no_recursion(net):
    n = net()
    x = n.add("Tanh", "start", n.input("x", 1, 4))
    for i in range(3000):
        x = n.add("Reshape", f"r{i}", x, shape=(4, 1) if i % 2 == 0 else (1, 4))
    assert place(n.build(n.gemm("y", x, 2, 4))).quantized == ("x", "start", "y")


def test_graphs_that_are_not_float32(net):
    n = net()
    x = n.input("x", 1, 4)
    scale, zero = n.constant("scale", 0.5), n.constant("zero", 0, "int8")
    q = n.add("QuantizeLinear", "q", x, scale, zero)
    graph = n.build(n.add("DequantizeLinear", "y", q, scale, zero))
    with pytest.raises(InputError) as error:
        place(graph)
    assert str(error.value) == (
        "graph 'net': expected a float model, found QuantizeLinear (node 'q_node'); it is "
        "quantized already"
    )
    n = net()
    graph = n.build(n.add("Relu", "y", n.input("x", 1, 4, dtype="float16")))
    with pytest.raises(UnsupportedError) as error:
        place(graph)
    assert str(error.value) == (
        "graph 'net': expected float32 tensors, found float16 (value 'x'); convert the model to "
        "float32"
    )
