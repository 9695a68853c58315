"""Operators beyond the quantizable set: float and exact mode agree, indices are checked.

What each computes is tested against the ONNX standard's own cases in tests/onnx/test_node_suite.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from samebits.errors import InputError
from samebits.ir import Graph, GraphBuilder, interpreter

INDICES = np.array([[1, -1, 0], [0, 2, 2]], np.int64)
PLACES = np.array([[0, 1], [-1, 3], [0, 1]], np.int64)
UPDATES = np.array([5.0, 7.0, -3.0], np.float32)


def graph(op: str, constants: list[np.ndarray[Any, Any]], **attributes: Any) -> Graph:
    builder = GraphBuilder("one")
    names = [builder.input("x", "float32", (3, 4))]
    names += [builder.constant(f"c{i}", array) for i, array in enumerate(constants)]
    return builder.build(builder.add_all(op, names, attributes))


@pytest.mark.parametrize(
    ("op", "constants", "attributes"),
    [
        ("CumSum", [], {"axis": 1}),
        ("CumSum", [], {"axis": 0, "exclusive": 1, "reverse": 1}),
        ("CumProd", [], {"axis": 1, "reverse": 1}),
        ("GatherElements", [INDICES], {"axis": 0}),
        ("GatherND", [PLACES], {"batch_dims": 0}),
        ("ScatterElements", [INDICES, INDICES.astype("f4")], {"axis": 1, "reduction": "add"}),
        ("ScatterND", [PLACES, UPDATES], {"reduction": "mul"}),
        ("ScatterND", [PLACES[:2], UPDATES[:2]], {"reduction": "none"}),
        ("TopK", [], {"k": 2, "axis": 1}),
        ("TopK", [], {"k": 3, "axis": 0, "largest": 0}),
        ("Einsum", [np.ones((4, 2), np.float32)], {"equation": "ij,jk->ki"}),
    ],
)
def test_both_modes_agree(op: str, constants: list[Any], attributes: dict[str, Any]) -> None:
    # Quarters: every sum and product is a binary32 number.
    x = np.random.default_rng(3).integers(-8, 9, (3, 4)).astype(np.float32) / 4
    made = graph(op, constants, **attributes)
    for real, exact in zip(
        interpreter.run(made, [x]), interpreter.run(made, [x], exact=True), strict=True
    ):
        assert np.array_equal(real.astype(np.float64), exact.astype(np.float64))


@pytest.mark.parametrize(
    ("op", "constants", "attributes"),
    [
        ("GatherElements", [INDICES + 1], {"axis": 0}),
        ("GatherND", [PLACES + 3], {"batch_dims": 0}),
        ("ScatterND", [PLACES - 9, UPDATES], {"reduction": "none"}),
        ("ScatterElements", [INDICES * 9, UPDATES[INDICES]], {"axis": 1, "reduction": "none"}),
    ],
)
def test_indices_outside_are_errors(
    op: str, constants: list[Any], attributes: dict[str, Any]
) -> None:
    made = graph(op, constants, **attributes)
    with pytest.raises(InputError, match="expected indices in"):
        interpreter.run(made, [np.zeros((3, 4), np.float32)])


def test_bits_as_other_numbers() -> None:
    def cast(x: Any, to: str, source: str = "") -> Any:
        build = GraphBuilder("bits")
        name = build.input("x", source or x.dtype.name, x.shape)
        attributes = {"source": source or x.dtype.name, "to": to}
        return interpreter.run(build.build([build.add("BitCast", [name], attributes)]), [x])[0]

    x = np.array([[1.0, -0.0, np.inf]], np.float32)
    bits = cast(x, "int32")
    assert bits.tolist() == [[0x3F800000, -(2**31), 0x7F800000]]
    assert np.array_equal(cast(bits, "float32"), x)
    assert cast(np.array([-1], np.int8), "uint8").tolist() == [255]
    assert cast(np.array([0, 2], np.uint8), "bool").tolist() == [False, True]
    assert cast(np.array([1.0]), "uint16", "bfloat16").tolist() == [0x3F80]
    with pytest.raises(ValueError, match="expected a type of the width of float32, found int16"):
        cast(x, "int16")


@pytest.mark.parametrize("axis", [0, 1])
def test_equal_elements_come_in_order(axis: int) -> None:
    x = np.array([[1, 1, 0, 1], [1, 0, 1, 1], [1, 1, 1, 1]], np.float32)
    for largest in (0, 1):
        made = graph("TopK", [], k=x.shape[axis], axis=axis, largest=largest)
        values, index = interpreter.run(made, [x])
        lines = zip(np.moveaxis(values, axis, 1), np.moveaxis(index, axis, 1), strict=True)
        for line, order in lines:
            pairs = [(-v if largest else v, i) for v, i in zip(line, order, strict=True)]
            assert pairs == sorted(pairs)


@pytest.mark.parametrize(
    "equation",
    ["ij,jk->", "i,jk->ik", "ij,jk->iz", "ij,jk->ii", "1j,jk", "....,jk", "ij", "ij,jk->i.k"],
)
def test_einsum_refuses_what_is_no_equation(equation: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        graph("Einsum", [np.ones((3, 2), np.float32)], equation=equation)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_shifts_of_any_amount(dtype: str) -> None:
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 1, 0, 5], dtype)
    amounts = [0, 1, info.bits - 1, info.bits, info.bits + 1]
    amounts += [-1] if info.min else []
    for direction in ("LEFT", "RIGHT"):
        builder = GraphBuilder("shift")
        names = [builder.input("x", dtype, (5,)), builder.input("y", dtype, (1,))]
        made = builder.build([builder.add("BitShift", names, {"direction": direction})])
        for amount in amounts:
            (y,) = interpreter.run(made, [x, np.array([amount], dtype)])
            assert y.tolist() == [shifted(int(v), amount, direction, info) for v in x]


def shifted(value: int, amount: int, direction: str, info: Any) -> int:
    if not 0 <= amount < info.bits:
        return -1 if direction == "RIGHT" and value < 0 else 0
    if direction == "RIGHT":
        return value >> amount
    code = (value << amount) % 2**info.bits
    return code - 2**info.bits if info.min and code >= 2 ** (info.bits - 1) else code
