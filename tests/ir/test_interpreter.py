from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from samebits.errors import InputError, NonFiniteError, RangeError, UnsupportedError
from samebits.ir import Graph, GraphBuilder
from samebits.ir.interpreter import run, trace


def one(op: str, dtype: str = "float32", shape: tuple[int, ...] = (3,), **attributes: Any) -> Graph:
    build = GraphBuilder("g")
    x = build.input("x", dtype, shape)
    return build.build([build.add(op, [x], attributes)])


def quantized() -> Graph:
    """y = Q(Relu(DQ(Q(x)) * 3 - 1)), scales 0.1 (binary32) and 0.25."""
    build = GraphBuilder("g")
    x = build.input("x", "float32", (5,))
    scale, zero = build.constant("s", np.float32(0.1)), build.constant("z", np.int8(3))
    codes = build.add("QuantizeLinear", [x, scale, zero], outputs=["codes"])
    h = build.add("DequantizeLinear", [codes, scale, zero], outputs=["real"])
    h = build.add("Mul", [h, build.constant("three", np.float32(3))])
    h = build.add("Relu", [build.add("Sub", [h, build.constant("c", np.float32(1))])])
    out = build.constant("s2", np.float32(0.25)), build.constant("z2", np.uint8(0))
    return build.build([build.add("QuantizeLinear", [h, *out], outputs=["y"]), codes])


def test_run_gives_the_outputs_in_order_and_type() -> None:
    x = np.array([-9.0, -0.3, 0.1, 0.75, 90.0], np.float32)
    y, codes = run(quantized(), [x])
    assert (y.dtype, codes.dtype) == (np.uint8, np.int8)
    assert codes.tolist() == [-87, 0, 4, 10, 127]
    assert y.tolist() == [0, 0, 0, 4, 145]
    exact = run(quantized(), [x], exact=True)
    assert [a.tolist() for a in exact] == [y.tolist(), codes.tolist()]
    assert [a.dtype for a in exact] == [np.uint8, np.int8]


def test_trace_gives_every_value_but_the_constants() -> None:
    graph = quantized()
    x = np.array([-9.0, -0.3, 0.1, 0.75, 90.0], np.float32)
    values = trace(graph, [x])
    assert list(values) == ["x", *(name for node in graph.nodes for name in node.outputs)]
    assert all(values[name].dtype.name == graph.values[name].dtype for name in values)
    exact = trace(graph, [x], exact=True)
    assert exact["real"].tolist() == [
        Fraction(float(np.float32(0.1))) * (code - 3) for code in exact["codes"].tolist()
    ]
    assert np.array_equal(values["real"], exact["real"].astype(np.float32))


def test_values_between_nodes_are_not_rounded() -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (1,))
    big = build.constant("big", np.float32(2**24))
    y = build.add("Sub", [build.add("Add", [x, big]), big])
    graph = build.build([y])
    assert run(graph, [np.array([1.25], np.float32)])[0].tolist() == [1.25]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_real_outputs_are_rounded_to_their_type(dtype: str) -> None:
    (y,) = run(one("Reciprocal", dtype), [np.array([3, 7, 0], dtype)])
    assert y.dtype == dtype
    with np.errstate(divide="ignore"):
        assert y.tolist() == (1.0 / np.array([3.0, 7.0, 0.0])).astype(dtype).tolist()


def test_a_constant_or_input_may_be_an_output() -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (2,))
    c = build.constant("c", np.arange(3, dtype=np.float32))
    y, z = run(build.build([c, x]), [np.array([1, 2], np.float32)])
    assert (y.tolist(), z.tolist()) == ([0, 1, 2], [1, 2])
    assert y.dtype == z.dtype == np.float32


def test_inputs_left_out_and_many_outputs() -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (4,))
    low = build.add("Clip", [x], {"min": 0.0})
    a, b = build.add_all("Split", [low], {"axis": 0, "sizes": (1, 3)})
    y, z = run(build.build([b, a]), [np.array([-1, 2, -3, 4], np.float32)])
    assert (y.tolist(), z.tolist()) == ([2, 0, 4], [0])


@pytest.mark.parametrize(
    ("dtype", "array", "message"),
    [
        (
            "float32",
            np.zeros((2, 3), np.float32),
            "input 'x': expected shape [3], found [2, 3]; reshape it, or cut the batch into pieces "
            "of that size",
        ),
        (
            "float32",
            np.array([1, 2, 3]),
            "input 'x': expected float32 numbers, found int64; convert them with astype('float32')",
        ),
        (
            "float32",
            np.array([0.5, 0.1, np.nan]),
            "input 'x': expected numbers that float32 holds, found 0.1 at flat index 1 (float64); "
            "round them with astype('float32')",
        ),
        (
            "uint8",
            np.array([1, 256, -1]),
            "input 'x': expected codes in [0, 255] (uint8), found 256 at flat index 1; "
            "quantize the input to that type",
        ),
        (
            "int4",
            np.array([-8, 7, 8]),
            "input 'x': expected codes in [-8, 7] (int4), found 8 at flat index 2; "
            "quantize the input to that type",
        ),
        ("int8", np.zeros(3), "input 'x': expected int8 codes, found float64"),
        ("int8", np.zeros(3, bool), "input 'x': expected int8 codes, found bool"),
        ("bool", np.zeros(3, np.int8), "input 'x': expected bool codes, found int8"),
    ],
)
def test_inputs_that_do_not_fit(dtype: str, array: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        run(one("Identity", dtype), [array])
    assert str(caught.value) == message


def test_the_number_of_inputs() -> None:
    with pytest.raises(InputError, match=r"graph 'g': expected 1 inputs \(x\), found 2"):
        run(one("Relu"), [np.zeros(3, np.float32)] * 2)


def test_inputs_of_other_types_with_values_that_fit() -> None:
    assert run(one("Identity", "uint8"), [np.array([0, 9, 255])])[0].dtype == np.uint8
    assert run(one("Relu"), [[0.5, -1.0, 2.0]])[0].tolist() == [0.5, 0.0, 2.0]
    (y,) = run(one("Relu"), [np.array([np.nan, -np.inf, np.inf])])
    assert np.array_equal(y, [np.nan, 0.0, np.inf], equal_nan=True)
    halves = np.array([Fraction(1, 3), Fraction(-1, 2), 2], dtype=object)
    assert run(one("Relu"), [halves], exact=True)[0].tolist() == [Fraction(1, 3), 0, 2]
    with pytest.raises(InputError, match="expected float32 numbers, found object"):
        run(one("Relu"), [halves])


def test_exact_mode_refuses_what_is_not_rational() -> None:
    with pytest.raises(
        UnsupportedError,
        match=r"node 'Exp' \(Exp\): expected rational operators in exact mode, found Exp; compute",
    ):
        run(one("Exp"), [np.zeros(3, np.float32)], exact=True)
    with pytest.raises(
        NonFiniteError,
        match="tensor 'x': expected finite values in exact mode, found inf at flat index 1",
    ):
        run(one("Relu"), [np.array([0, np.inf, 0], np.float32)], exact=True)
    with pytest.raises(InputError, match=r"node 'Reciprocal' \(Reciprocal\): .*Fraction\(1, 0\)"):
        run(one("Reciprocal"), [np.zeros(3, np.float32)], exact=True)


def test_integer_graphs_compute_exactly_and_refuse_to_wrap() -> None:
    build = GraphBuilder("g")
    x = build.input("x", "int8", (1, 2))
    w = build.constant("w", np.array([[127, 127]], np.int8))
    b = build.constant("b", np.array([2**31 - 1], np.int32))
    graph = build.build([build.add("linear", [x, w, b], {"dtype": "int32"})])
    assert graph.integer
    (y,) = run(graph, [np.array([[-1, 1]], np.int8)])
    assert (y.dtype, y.tolist()) == (np.int32, [[2**31 - 1]])
    with pytest.raises(RangeError, match="linear"):
        run(graph, [np.array([[0, 1]], np.int8)])


def test_values_are_freed_after_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from samebits.ir import interpreter

    build = GraphBuilder("g")
    x = build.input("x", "float32", (4,))
    h = x
    for _ in range(6):
        h = build.add("Neg", [h])
    graph = build.build([build.add("Add", [h, h])])
    sizes = []

    def steps(graph: Graph, live: dict[str, Any], exact: bool) -> Any:
        for step in original(graph, live, exact):
            sizes.append(len(live))
            yield step

    original = interpreter._steps
    monkeypatch.setattr(interpreter, "_steps", steps)
    (y,) = run(graph, [np.ones(4, np.float32)])
    assert y.tolist() == [2.0] * 4
    assert max(sizes) == 1
