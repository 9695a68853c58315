"""Values that are joined with larger ones keep a scale of their own for what else reads them."""

from __future__ import annotations

import numpy as np

from compare import assert_same
from samebits.ir.interpreter import run, trace
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.verify import verify
from samebits.quantization import quantize_graph
from samebits.quantization.joins import with_own_scales
from samebits.quantization.observe import observe
from samebits.quantization.placement import place


def quantized(graph, samples):
    """The quantized graph, and its tensors by name."""
    made, report = quantize_graph(graph, samples)
    return made, {tensor.name: tensor for tensor in report.tensors}


def joined(n, x, large=20.0, op="Concat"):
    """A sigmoid beside a value `large` times as wide."""
    p = n.add("Sigmoid", "p", n.conv("p0", x, 2, 1, 3, 3))
    q = n.add("Relu", "q", n.conv("q0", x, 2, 1, 3, 3))
    wide = n.add("Mul", "wide", q, n.constant("large", large))
    attributes = {"axis": 1} if op == "Concat" else {}
    return p, n.conv(
        "y", n.add(op, "j", p, wide, **attributes), 1, 4 if op == "Concat" else 2, 3, 3
    )


def samples_of(n):
    return [[n.normal(1, 1, 6, 6)] for _ in range(8)]


def test_an_output_that_is_joined_has_codes_of_its_own(net):
    """The codes of both are those of the quantized graph, and the output keeps 40 dB, not 15."""
    for op in ("Concat", "Max"):
        n = net()
        p, y = joined(n, n.input("x", 1, 1, 6, 6), op=op)
        samples = samples_of(n)
        made, tensors = quantized(n.build(p, y), samples)
        assert tensors["p"].scale < 1 / 250
        assert tensors["p.joined"].scale == tensors["wide"].scale > 1 / 25
        assert tensors["p"].sqnr_db > 40 > 30 > tensors["p.joined"].sqnr_db
        values = trace(made, samples[0])
        for codes, name in zip(run(lower_graph(made), [values["x.codes"]]), "py", strict=True):
            assert_same(codes, values[f"{name}.codes"], values[f"{name}.codes"])


def test_what_a_convolution_reads_has_codes_of_its_own(net):
    n = net()
    p, y = joined(n, n.input("x", 1, 1, 6, 6))
    z = n.conv("z", p, 1, 2, 3, 3)
    _, tensors = quantized(n.build(z, y), samples_of(n))
    assert 10 * tensors["p"].scale < tensors["p.joined"].scale


def test_values_that_the_join_alone_reads_or_that_are_as_large_share_its_scale(net):
    n = net()
    _, y = joined(n, n.input("x", 1, 1, 6, 6))
    _, tensors = quantized(n.build(y), samples_of(n))
    assert tensors["p"].scale == tensors["wide"].scale
    n = net()
    p, y = joined(n, n.input("x", 1, 1, 6, 6), large=0.1)
    _, tensors = quantized(n.build(n.conv("z", p, 1, 2, 3, 3), y), samples_of(n))
    assert tensors["p"].scale == tensors["wide"].scale


def test_a_value_that_passes_through_movements_and_two_joins(net):
    """The first join's output is read by a convolution and joined with something large."""
    n = net()
    x = n.input("x", 1, 1, 6, 6)
    a, b = n.add("Tanh", "a", n.conv("a0", x, 2, 1, 3, 3)), n.add("Sigmoid", "b", x)
    first = n.add("Concat", "first", a, b, axis=1)
    moved = n.add("Transpose", "moved", first, perm=(0, 1, 3, 2))
    wide = n.add("Mul", "wide", n.conv("w0", x, 2, 1, 3, 3), n.constant("k", 50.0))
    last = n.add("Concat", "last", wide, moved, axis=1)
    _, tensors = quantized(
        n.build(n.conv("y", first, 1, 3, 3, 3), n.conv("z", last, 1, 5, 3, 3)), samples_of(n)
    )
    assert tensors["a"].scale == tensors["b"].scale < 1 / 100
    assert tensors["moved.joined"].scale == tensors["wide"].scale > 1


def test_a_copy_does_not_change_the_float_network(net):
    n = net()
    graph, samples = n.build(*joined(n, n.input("x", 1, 1, 6, 6))), samples_of(n)
    placement = place(graph)
    seen = observe(graph, samples, placement.quantized)
    copied, more = with_own_scales(graph, placement, seen)
    verify(copied)
    assert more == {"p.joined": seen["p"]}
    for before, after in zip(run(graph, samples[0]), run(copied, samples[0]), strict=True):
        assert_same(after, before, before)


def test_what_a_maximum_leaves_out_has_no_codes(net):
    """A value that MaxPool alone reads has the range of the greatest; the pooled codes are the same
    as if nothing had saturated."""
    n = net()
    pool = {"kernel_shape": (3, 3), "strides": (3, 3), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    x = n.input("x", 1, 1, 6, 6)
    c = n.conv("c", x, 2, 1, 3, 3)
    m = n.add("MaxPool", "m", c, **pool, ceil_mode=0)
    graph, samples = n.build(n.conv("y", m, 1, 2, 3, 3)), samples_of(n)
    made, tensors = quantized(graph, samples)
    whole = np.concatenate([np.ravel(trace(graph, s)["c"]) for s in samples])
    greatest = np.concatenate([np.ravel(trace(graph, s)["m"]) for s in samples])
    assert whole.min() < 2 * min(greatest.min(), 0)
    assert tensors["c"].low == min(np.float32(greatest.min()), 0)
    assert tensors["c"].clip_rate == 0
    assert tensors["c"].sqnr_db > 35
    values = trace(made, samples[0])
    assert_same(
        run(lower_graph(made), [values["x.codes"]])[0], values["y.codes"], values["y.codes"]
    )
    _, tensors = quantized(n.build(n.conv("z", m, 1, 2, 3, 3), c), samples)
    assert tensors["c"].low == np.float32(whole.min())
