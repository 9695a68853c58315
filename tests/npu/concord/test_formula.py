"""Formulas of point-wise instructions in the software of every kind: the definition's bits."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from compare import assert_same
from samebits.npu.concord import runtime_torch
from samebits.npu.concord.graph import DataFlow
from samebits.npu.concord.onnx import OnnxWriter
from samebits.npu.concord.onnx_functions import DOMAIN, OPSET, functions
from samebits.npu.concord.source import LIBRARY, formula_text
from samebits.npu.machine.isa import INSTRUCTIONS, POINTWISE, TANH, Operand
from samebits.npu.simulator.machine import OPERATIONS
from samebits.spec.npu_formula import PLAIN, A, B, choose, look_up, number

ALL = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
SPECIAL = ALL[[0, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0x3C00, 0xBC00, 1, 0x8001, 0x3FF, 0x400, 0x7BFF]]
BINARY = [op for op in POINTWISE if Operand.MEMORY in INSTRUCTIONS[op].operands]
UNARY = [op for op in POINTWISE if op not in BINARY]
# What no instruction is today: a minimum, a magnitude, a clipped number, nested operations.
FORMULAS = [
    choose(B, A, A, B),
    choose(A, number(0), A, number(0) - A),
    choose(A, number(6), number(6), choose(A, number(0), A, number(0))),
    (A + B) * (A - number(-0.5)) - B,
    look_up(TANH, A) * choose(A, B, A, B),
    number(2) * look_up(TANH, A - B),
]


def number_pairs():
    """Special numbers with each other, and all numbers with themselves and with random ones."""
    others = ALL[np.random.default_rng(1).integers(0, 1 << 16, 1 << 16)]
    a = np.concatenate([np.repeat(SPECIAL, len(SPECIAL)), ALL, ALL])
    return a, np.concatenate([np.tile(SPECIAL, len(SPECIAL)), ALL, others])


def bits(array):
    """Bits of binary16 numbers, every NaN the same."""
    return np.where(np.isnan(array), 0x7E00, np.asarray(array, np.float16).view(np.uint16))


def expected_of(formula, *operands):
    """In the simulator."""
    return formula.realised(OPERATIONS, *operands)


def compiled(formula, runtime, *operands):
    """The value of the expression in a generated module."""
    kind = runtime.__name__.rpartition("_")[2]
    text = formula_text(formula, ["a", "b"][: len(operands)], LIBRARY[kind])
    constant = {"torch": torch.from_numpy}.get(kind) or runtime.tf.constant
    tables = {f"t_{t.name}": t.entries().view(np.float16) for t in formula.tables()}
    held = SimpleNamespace(**{name: constant(table.copy()) for name, table in tables.items()})
    given = dict(zip("ab", operands, strict=False))
    return eval(text, {**vars(runtime), "self": held, **given})


def in_onnx(formula, *operands):
    names = ["a", "b"][: len(operands)]
    writer = OnnxWriter(DataFlow("f", 8, 15, (), ()))
    for table in formula.tables():
        values = table.entries().view(np.float16).astype(np.float32)
        writer.initializer(f"data.t_{table.name}", values)
    writer.formula(formula, names, "y")
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None]) for n in (*names, "y")]
    arrays = [numpy_helper.from_array(array, name) for name, array in writer.arrays.items()]
    graph = helper.make_graph(writer.nodes, "g", infos[:-1], infos[-1:], arrays)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions(), ir_version=9)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    wide = [np.asarray(x, np.float32) for x in operands]
    return session.run(None, dict(zip(names, wide, strict=True)))[0]


@pytest.mark.parametrize("formula", [*POINTWISE.values(), *FORMULAS], ids=str)
def test_simulator_torch_and_onnx(formula):
    a, b = number_pairs()
    operands = [a] if formula in [POINTWISE[op] for op in UNARY] else [a, b]
    found = expected_of(formula, *operands)
    cases = list(zip(a, b, strict=True))
    step = 37  # of the definition, which is slow
    some = zip(*(x[::step].tolist() for x in operands), strict=True)
    plain = np.array([formula.realised(PLAIN, *numbers) for numbers in some])
    assert_same(bits(found)[::step], bits(plain), cases[::step])
    tensors = [torch.from_numpy(x) for x in operands]
    assert_same(bits(compiled(formula, runtime_torch, *tensors).numpy()), bits(found), cases)
    made = in_onnx(formula, *operands)
    assert np.array_equal(made.astype(np.float16).astype(np.float32), made, equal_nan=True)
    assert_same(bits(made), bits(found), cases)


@pytest.mark.parametrize("op", POINTWISE)
def test_traits(op):
    """Whether results are at least 0, and what exchanging the operands gives."""
    record, (a, b) = INSTRUCTIONS[op], number_pairs()
    both = np.isfinite(a) & np.isfinite(b)
    a, b = a[both], b[both]
    operands = [a] if op in UNARY else [a, b]
    found = expected_of(POINTWISE[op], *operands)
    for known in product((False, True), repeat=len(operands)):
        fits = [x >= 0 for x, k in zip(operands, known, strict=True) if k]
        chosen = np.logical_and.reduce([both[both], *fits])
        assert not record.nonnegative(known) or (found[chosen] >= 0).all()
    if record.exchanged:
        again = expected_of(POINTWISE[record.exchanged], b, a)
        assert np.array_equal(again, found)
