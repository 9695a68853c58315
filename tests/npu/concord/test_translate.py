"""Concordant software: the simulator's bits from PyTorch and ONNX, on any legal program."""

from __future__ import annotations

import ast
import importlib.util
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from compare import assert_same
from npu.programs import random_case, random_inputs
from samebits.cli.concord import concord_command
from samebits.errors import InputError, UnsupportedError
from samebits.npu.compiler.lower import lower_real_graph
from samebits.npu.concord import layout, runtime_torch
from samebits.npu.concord.dataflow import data_flow
from samebits.npu.concord.graph import Turns
from samebits.npu.concord.onnx import onnx_model
from samebits.npu.concord.onnx_functions import DOMAIN, OPSET, block_constants, functions
from samebits.npu.concord.source import module_text, op_names
from samebits.npu.concord.translate import load_concordant, translate
from samebits.npu.machine.assembly import parse
from samebits.npu.machine.image import pack, pack_tiles, write_program
from samebits.npu.machine.program import TILE_FILES, Image
from samebits.npu.simulator.simulate import simulate
from samebits.spec.npu_short import bfp_long, bfp_short, long_to_binary16

KINDS = {"torch": "model.py", "onnx": "model.onnx"}
ALL = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def bits(array):
    """uint16, every NaN alike."""
    array = np.asarray(array)
    assert array.dtype == np.float16
    return np.where(np.isnan(array), np.float16(np.nan), array).view(np.uint16)


def same_bits(actual, expected, inputs=None):
    a, e = bits(actual), bits(expected)
    assert a.shape == e.shape
    if not np.array_equal(a, e):
        assert_same(a, e, np.arange(a.size) if inputs is None else inputs)


def check_concordant(program, image, inputs, folder, kinds=KINDS):
    """Every kind of software gives the simulator's outputs for a batch of inputs."""
    expected = simulate(program, image, inputs).outputs
    for kind, file in kinds.items():
        path = folder / file
        translate(program, image, kind, path)
        found = load_concordant(path)(inputs)
        assert set(found) == set(expected)
        for name, array in expected.items():
            same_bits(found[name], array if inputs else array[np.newaxis])


# --- arithmetic of PyTorch --------------------------------------------------------------------


def blocks(draw, shape):
    """Binary16 numbers [*shape]: bit patterns, mixed sizes, sparse."""
    numbers = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    kind = draw(st.sampled_from(["bits", "normal", "rows", "sparse", "small", "mixed", "largest"]))
    if kind == "bits":
        return ALL[numbers.integers(0, 1 << 16, shape)]
    if kind == "largest":
        return numbers.choice(np.array([-65504, 65504], np.float16), shape)
    if kind == "mixed":  # every size in a block or a row
        return np.ldexp(
            numbers.choice([-1.0, 1.0], shape), numbers.integers(-24, 16, shape)
        ).astype(np.float16)
    sizes = {"normal": 0, "sparse": 0, "small": -14}.get(kind)
    power = numbers.integers(-18, 10, (*shape[:-1], 1)) if sizes is None else sizes
    array = numbers.standard_normal(shape) * np.exp2(power)
    return (array * (numbers.random(shape) < (0.2 if kind == "sparse" else 1))).astype(np.float16)


def quantized_blocks(rows, mantissa, native):
    """Of binary16 rows [n, lanes], by the definition: (codes, exponent) for each block."""
    cut = range(0, rows.shape[1], native)
    values = rows.astype(np.float64).tolist()
    return [[bfp_short(row[at : at + native], mantissa) for at in cut] for row in values]


def products(left, right, mantissa, requantize):
    """Binary16 [rows, outputs] of quantized rows and tile rows, by the definition."""
    found = [
        long_to_binary16(
            bfp_long(
                [
                    (sum(p * q for p, q in zip(a, b, strict=True)), e + f - 2 * mantissa)
                    for (a, e), (b, f) in zip(row, column, strict=True)
                ],
                requantize,
            )
        )
        for row in left
        for column in right
    ]
    return np.array(found, np.float16).reshape(len(left), len(right))


def tiles_of(w, native, mantissa):
    """The module that multiplies with binary16 weights [outputs, lanes]."""
    values = runtime_torch.quantize(torch.from_numpy(w)[None], native, mantissa).values
    return runtime_torch.Tiles(values.view(len(w), -1, native).permute(1, 2, 0))


@given(st.data())
def test_torch_products_equal_the_definition(data):
    mantissa, native = data.draw(st.integers(2, 15)), data.draw(st.sampled_from([8, 11, 16]))
    tiles, outputs = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    x = blocks(data.draw, (3, tiles * native))
    w = blocks(data.draw, (outputs, tiles * native))
    left, right = quantized_blocks(x, mantissa, native), quantized_blocks(w, mantissa, native)
    quantized = runtime_torch.quantize(torch.from_numpy(x)[None], native, mantissa)
    if data.draw(st.booleans()):  # in memory, the lanes first
        turned = torch.from_numpy(x.T.copy()).T[None]
        same = runtime_torch.quantize(turned, native, mantissa)
        assert same.values.is_contiguous()
        assert torch.equal(same.values, quantized.values)
        assert (same.largest, same.unit) == (quantized.largest, quantized.unit)
    for row, expected in zip(quantized.values[0].tolist(), left, strict=True):
        codes = [Fraction(c) * Fraction(2) ** (e - mantissa) for cs, e in expected for c in cs]
        assert row == codes
        assert all(abs(c) <= quantized.largest for c in row)
        assert all(c % quantized.unit == 0 for c in row)

    matrix = tiles_of(w, native, mantissa)
    error = matrix.rounding + matrix.spread * quantized.largest
    for requantize in (False, True):
        expected = products(left, right, mantissa, requantize)
        same_bits(matrix(quantized, requantize)[0].numpy(), expected)
        same_bits(matrix.exact(quantized, requantize).T.numpy(), expected)
        columns = runtime_torch.quantize(torch.from_numpy(w).view(1, -1, native), native, mantissa)
        vectors = runtime_torch.quantize(torch.from_numpy(x).view(1, -1, native), native, mantissa)
        moved = runtime_torch.multiply_tiles(vectors, columns, tiles, requantize)
        same_bits(moved[0].numpy(), expected)
        if not requantize:
            same_bits(matrix.certified(quantized, error).T.numpy(), expected)


def ties(powers, least, most, shift):
    """Rows of five blocks of 8 and the weights of three outputs: dot products half way between
    binary16 numbers from ALL[least] to ALL[most] and the next, and 2**-10 times powers of two above
    and below that, with and without numbers that cancel, if these are not larger than the others.
    The second output is the first, negated; the third is zero."""
    numbers = np.random.default_rng(5)
    edges = [0, 1, 2, 1022, 1023, 1024, 1025, 0x3BFF, 0x3C00, 0x7BFE, 0x7BFF]
    picked = [n for n in (*edges, *numbers.integers(least, most, 40)) if least <= n <= most]
    low = ALL[picked]
    with np.errstate(over="ignore"):
        above = ALL[np.array(picked) + 1].astype(np.float64)
    above[np.isinf(above)] = 65536.0
    half = (above - low) / 2
    rows = []
    for number, step in zip(low, half, strict=True):
        for power in powers:
            for sign in (-1, 0, 1):
                for big in (0.0, 60000.0 * (most == 0x7BFF)):
                    row = np.zeros((5, 8))
                    # Half of the smallest number is none: two lanes, of a small weight, make it.
                    row[0, 0], row[1, :2] = number, step * 2.0 ** (shift - 1)
                    row[2, 0], row[3, 3], row[4, 5] = sign * 2.0**power, big, big
                    rows.append(row.reshape(-1))
    weights = np.zeros((3, 5, 8))
    weights[0, 0, 0], weights[0, 1, :2], weights[0, 2, 0] = 1, 2.0**-shift, 2.0**-10
    weights[0, 3, 3], weights[0, 4, 5] = 1, -1
    weights[1] = -weights[0]
    return np.array(rows).astype(np.float16), weights.reshape(3, -1).astype(np.float16)


def calls(monkeypatch, names):
    """Which methods of Tiles are called, in order."""
    seen = []
    for name in names:
        method = getattr(runtime_torch.Tiles, name)

        def run(self, *arguments, name=name, method=method):
            seen.append(name)
            return method(self, *arguments)

        monkeypatch.setattr(runtime_torch.Tiles, name, run)
    return seen


@pytest.mark.parametrize(
    ("case", "diluted", "way"),
    [
        (((-8, -9), 0x3C00, 0x7BFF, 4), 0, []),  # binary64 holds the sums
        (((-23, -24), 0, 0x7BFF, 12), 40, ["certified"]),  # some products are redone
        (((-23, -24), 0, 0x7BFF, 12), 0, ["certified", "exact"]),  # all are
        (((-23, -24), 0, 0x2C00, 12), 0, ["certified", "exact"]),  # all, though 53 bits hold them
    ],
)
def test_torch_products_at_ties(case, diluted, way, monkeypatch):
    x, w = ties(*case)
    if way:  # In units of 2**-40 these products are whole, or half of one, which goes to even.
        w[:2, 16:24] *= 2.0**-7
    others = np.random.default_rng(6).standard_normal((diluted * len(x), x.shape[1]))
    both = np.concatenate([x, others.astype(np.float16)])
    seen = calls(monkeypatch, ["certified", "exact"])
    quantized = runtime_torch.quantize(torch.from_numpy(both)[None], 8, 15)
    found = tiles_of(w, 8, 15)(quantized)[0].numpy()[: len(x)]
    assert seen == way
    expected = products(quantized_blocks(x, 15, 8), quantized_blocks(w, 15, 8), 15, False)
    assert np.isinf(expected).any() == (case[2] == 0x7BFF)
    assert (bits(expected) == 0x8000).any() == (case[1] == 0)
    same_bits(found, expected)


@pytest.mark.parametrize("weight", [1.0, 2.0**15])
@pytest.mark.parametrize("mantissa", range(2, 16))
def test_torch_products_that_cancel(mantissa, weight):
    # Small numbers between large ones that cancel; each row alone, as its sizes decide the way.
    w = np.repeat([weight, 1.0, -weight], 8)[None].astype(np.float16)
    matrix = tiles_of(w, 8, mantissa)
    small = np.ldexp(0.125, -np.arange(min(22, 13 + mantissa)))  # not below the smallest code
    for large in (4.0, 2.0**15):
        x = np.array([np.repeat([large, number, large], 8) for number in small], np.float16)
        expected = products(
            quantized_blocks(x, mantissa, 8), quantized_blocks(w, mantissa, 8), mantissa, False
        )
        assert (expected[:, 0] == 8 * small).all()
        for row, number in zip(torch.from_numpy(x), expected, strict=True):
            quantized = runtime_torch.quantize(row[None, None], 8, mantissa)
            same_bits(matrix(quantized)[0, 0].numpy(), number)


def test_torch_settings_change_no_bit(monkeypatch):
    numbers = np.random.default_rng(7)
    x, w = (numbers.standard_normal((n, 16)).astype(np.float16) for n in (20, 5))
    quantized, matrix = runtime_torch.quantize(torch.from_numpy(x)[None], 8, 3), tiles_of(w, 8, 3)
    expected = products(quantized_blocks(x, 3, 8), quantized_blocks(w, 3, 8), 3, False)
    used = []
    product = runtime_torch.Tiles.product
    monkeypatch.setattr(
        runtime_torch.Tiles,
        "product",
        lambda self, x, matrix: used.append(matrix.dtype) or product(self, x, matrix),
    )
    same_bits(matrix(quantized)[0].numpy(), expected)
    torch.set_float32_matmul_precision("medium")
    try:
        same_bits(matrix(quantized)[0].numpy(), expected)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert used == [torch.float32, torch.float64]


@given(st.data())
def test_rows_of_picked_positions(data):
    batch, positions, lanes = (data.draw(st.integers(1, 4)) for _ in range(3))
    each = data.draw(st.integers(1, 4))
    run = data.draw(st.integers(1, positions))
    starts = data.draw(st.lists(st.integers(0, positions - run), min_size=each, max_size=3 * each))
    index = [start + i for start in starts for i in range(run)]
    index = torch.tensor(index[: len(index) // each * each])
    numbers = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = torch.from_numpy(numbers.integers(-1, 2, (batch, positions, lanes))).float()
    picked = runtime_torch.Blocks(values, 1.0, 1.0).pick(runtime_torch.Index(index))
    width = each * lanes
    expected = values[:, index].reshape(-1, width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime_torch, "CHUNK", data.draw(st.sampled_from([1, 7, 40, 1 << 17])))
        rows = [some.clone() for some in picked.rows(width, torch.float64)]
    assert torch.equal(torch.cat(rows), expected.double())
    assert batch * picked.count(width) == len(expected)
    some = torch.from_numpy(numbers.integers(0, len(expected), 5))
    assert torch.equal(picked.some(some, width), expected[some])
    assert torch.equal(picked.blank(width), ~expected.any(1))


def half_way_cases():
    """Binary64 numbers at, and on both sides of, the points between all binary16 numbers."""
    low = ALL[:0x7C00].astype(np.float64)
    middle = (low + np.append(low[1:], 65536.0)) / 2
    near = [middle, middle + 2.0**-40, middle - 2.0**-40, middle * (1 + 2.0**-30), low]
    numbers = np.concatenate([*near, [65520.0, 2.0**18, 2.0**17, 0.0, 2.0**-40, 70000.0]])
    return np.concatenate([numbers, -numbers[numbers != 0]])


def test_torch_rounds_binary64_once():
    cases = half_way_cases()
    with np.errstate(over="ignore"):
        expected = cases.astype(np.float16)  # numpy rounds binary64 to binary16 once
    same_bits(runtime_torch.to_binary16(torch.from_numpy(cases)).numpy(), expected, cases)


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "larger"])
def test_torch_point_wise_operations(op):
    numbers = np.random.default_rng(3)
    special = ALL[[0, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0x3C00, 0xBC00, 1, 0x8001, 0x7BFF]]
    a = np.concatenate([np.repeat(special, 10), ALL[numbers.integers(0, 1 << 16, 4000)]])
    b = np.concatenate([np.tile(special, 10), ALL[numbers.integers(0, 1 << 16, 4000)]])
    wide = [x.astype(np.float32) for x in (a, b)]
    with np.errstate(all="ignore"):
        expected = {
            "add": np.add(*wide).astype(np.float16),
            "subtract": np.subtract(*wide).astype(np.float16),
            "multiply": np.multiply(*wide).astype(np.float16),
            "larger": np.where(a > b, a, b),
        }[op]
    found = getattr(runtime_torch, op)(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    same_bits(found, expected)


def test_torch_relu_and_tables_at_every_number():
    x = torch.from_numpy(ALL.copy())
    same_bits(runtime_torch.relu(x).numpy(), np.where(ALL > 0, ALL, np.float16(0)))
    assert_same(runtime_torch.look_up(x, torch.arange(1 << 16)), range(1 << 16), range(1 << 16))


# --- arithmetic of ONNX -----------------------------------------------------------------------


def run_onnx(op, *inputs, out=TensorProto.FLOAT):
    """One function on arrays."""
    names = [f"x{i}" for i in range(len(inputs))]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, inputs, strict=True)
    ]
    node = helper.make_node(op, names, ["y"], domain=DOMAIN)
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", out, None)])
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions(), ir_version=9)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(zip(names, inputs, strict=True)))[0]


def short(array):
    """What an ONNX tensor holds is binary16 numbers."""
    with np.errstate(over="ignore"):
        result = array.astype(np.float16)
    assert np.array_equal(result.astype(np.float32), array, equal_nan=True)
    return result


def test_onnx_rounds_binary64_once():
    cases = half_way_cases()
    with np.errstate(over="ignore"):
        expected = cases.astype(np.float16)
    same_bits(short(run_onnx("ToBinary16", cases)), expected, cases)


def test_onnx_rounds_binary32():
    cases = half_way_cases().astype(np.float32)
    with np.errstate(over="ignore"):
        expected = cases.astype(np.float16)
    same_bits(short(run_onnx("Round16", cases)), expected, cases)


def test_onnx_relu_larger_and_tables_at_every_number():
    wide = ALL.astype(np.float32)
    same_bits(short(run_onnx("Relu16", wide)), np.where(ALL > 0, ALL, np.float16(0)))
    index = run_onnx("LookUp", wide, np.arange(1 << 16, dtype=np.float32))
    number = ~np.isnan(ALL)
    assert_same(index[number], np.arange(1 << 16)[number], ALL[number])
    assert (index[~number] == 0x7E00).all()
    other = np.roll(ALL, 1)
    for a, b in ((ALL, other), (ALL, -ALL), (other, ALL), (ALL, ALL)):
        found = run_onnx("Larger", a.astype(np.float32), b.astype(np.float32))
        same_bits(short(found), np.where(a > b, a, b))


@given(st.data())
def test_onnx_quantizes_as_torch(data):
    mantissa, native = data.draw(st.integers(2, 15)), data.draw(st.sampled_from([8, 16]))
    x = blocks(data.draw, (2, 3, 2 * native))
    expected = runtime_torch.quantize(torch.from_numpy(x), native, mantissa).values.numpy()
    if not data.draw(st.integers(0, 3)):  # a session takes long to make
        shapes = [np.array([0, 0, -1, native]), np.array([0, 0, 2 * native])]
        constants = block_constants(mantissa).values()
        found = run_onnx("Quantize", x.astype(np.float32), *shapes, *constants)
        assert_same(found, expected, x)


def test_onnx_sums_as_torch():
    numbers = np.random.default_rng(1)
    dots = numbers.integers(-(1 << 30), 1 << 30, (5, 4000)) * np.exp2(
        numbers.integers(-60, 3, (5, 4000))
    )
    dots[:, :40] = numbers.choice([2.0**33, -(2.0**33), 65519.0, 2.0**-41, -(2.0**-41)], (5, 40))
    for op, requantize in (("SumTiles", False), ("SumShortTiles", True)):
        expected = runtime_torch.sum_tiles(torch.from_numpy(dots), requantize).numpy()
        same_bits(short(run_onnx(op, dots)), expected)


# --- programs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(n, marks=pytest.mark.slow) for n in range(12, 30))]
)
def test_random_programs(seed, tmp_path):
    case = random_case(seed)
    check_concordant(case.program, case.image, random_inputs(case, 2), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 3000, 50))
def test_many_random_programs(start, tmp_path):
    for seed in range(start, start + 50):
        case = random_case(seed)
        check_concordant(case.program, case.image, random_inputs(case, 2, seed), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("native", [8, 16])
def test_compiled_networks(native, tmp_path):
    from npu.compiler.test_lower import NETS, SMALL

    for graph in NETS.values():
        for mantissa, depths in ((15, {}), (6, SMALL)):
            program, image = lower_real_graph(graph, native, mantissa, depths)
            check_concordant(program, image, given_inputs(program), tmp_path)


def assembled(text, seed=0, native=8, mantissa=15):
    """(program, image): random numbers in every hinted tensor that is not called zero_."""
    depths = "".join(
        f".depth {m} 512\n"
        for m in ("ivrf", "asvrf0", "asvrf1", "mvrf0", "mvrf1", "dram", "mrf", "mdram")
    )
    program = parse(f".native {native}\n.mantissa {mantissa}\n{depths}{text}", "test")
    numbers = np.random.default_rng(seed)
    entries = {}
    for hint in program.hints:
        if hint.kind == "tensor":
            array = (numbers.standard_normal(hint.shape) * 0.4).astype(np.float16)
            array = np.zeros_like(array) if hint.name.startswith("zero") else array
            tiles = hint.memory in TILE_FILES
            packed = pack_tiles(array, native) if tiles else pack(array, native)
            held = entries.setdefault(hint.memory, {})
            held.update({hint.address + i: entry for i, entry in enumerate(packed)})
    return program, Image(entries)


def given_inputs(program, batch=3, seed=0, scale=1.0):
    numbers = np.random.default_rng(seed)
    return {
        h.name: (numbers.standard_normal((batch, *h.shape)) * scale).astype(np.float16)
        for h in program.hints
        if h.kind == "input"
    }


CONV = """
    ;! input image 5x4x6
    ;! output map 7x4x6
    ;! tensor kernel mrf 0 7x5x3x3
    ;! tensor bias asvrf0 0 7
    ;! tensor zero_border ivrf 0 8x6x8
    s_wr iterations, 24
    s_wr iterations_x, 6
    v_rd netq
    v_wr_inc ivrf, 9, 1, 8
    end_chain
    s_wr columns, 9
    s_wr window, 3
    s_wr window_run, 3
    s_wr window_pitch, 8
    v_rd_inc ivrf, 0, 1, 8
    mv_mul 0
    vv_add asvrf0, 0
    v_relu
    v_wr netq
    end_chain
"""


@pytest.mark.parametrize("mantissa", [3, 15])
def test_convolution_in_logical_shapes(mantissa, tmp_path):
    program, image = assembled(CONV, mantissa=mantissa)
    for scale in (1, 2.0**-9, 2.0**9):
        check_concordant(program, image, given_inputs(program, scale=scale), tmp_path)
    flow = data_flow(program, image)
    shapes = {s.op: (s.out.positions, s.out.width) for s in flow.nodes}
    assert shapes["quantize"] == (25, 5)  # 24 pixels and a border
    assert shapes["mv_mul"] == shapes["v_relu"] == (24, 7)
    assert flow.data["tiles", "w_kernel"].shape == (9, 5, 7)
    blank = {"image": np.zeros((2, 5, 4, 6), np.float16)}
    check_concordant(program, image, blank, tmp_path)


LSTM = """
    ;! input x 9x5
    ;! output y 9x12
    ;! output last 12
    ;! tensor wi mrf 0 12x5
    ;! tensor wf mrf 2 12x5
    ;! tensor wc mrf 4 12x5
    ;! tensor wo mrf 6 12x5
    ;! tensor ui mrf 8 12x12
    ;! tensor uf mrf 12 12x12
    ;! tensor uc mrf 16 12x12
    ;! tensor uo mrf 20 12x12
    ;! tensor bi asvrf0 0 12
    ;! tensor bf asvrf0 2 12
    ;! tensor bc asvrf0 4 12
    ;! tensor bo asvrf0 6 12
    ;! tensor zero_h ivrf 0 12
    ;! tensor zero_c mvrf1 0 12
"""


def lstm_text():
    """One LSTM layer of 12 cells, two native vectors each. mvrf1 0: the cell state."""
    lines = ["s_wr rows, 2", "loop 9", "s_wr rows, 1", "s_wr columns, 1"]
    lines += ["v_rd netq", "v_wr ivrf, 10", "end_chain", "s_wr rows, 2"]
    for gate in range(4):  # what the input adds to every gate
        lines += ["v_rd ivrf, 10", f"mv_mul {2 * gate}", f"vv_add asvrf0, {2 * gate}"]
        lines += [f"v_wr asvrf0, {10 + 10 * gate}", "end_chain"]
    lines += ["s_wr columns, 2"]
    gate = "v_rd ivrf, 0|mv_mul {}|vv_add asvrf0, {}|{} 0|{}|end_chain"
    for text in (
        gate.format(16, 30, "v_tanh", "v_wr mvrf1, 10"),
        gate.format(12, 20, "v_sigm", "vv_mul mvrf1, 0|v_wr asvrf1, 0"),
        gate.format(8, 10, "v_sigm", "v_wr ivrf, 20"),
        "v_rd ivrf, 20|vv_mul mvrf1, 10|v_wr ivrf, 22|end_chain",
        "v_rd ivrf, 22|vv_add asvrf1, 0|v_wr mvrf1, 0|v_wr ivrf, 24|end_chain",
        "v_rd ivrf, 24|v_tanh 0|v_wr mvrf1, 20|end_chain",
        gate.format(20, 40, "v_sigm", "vv_mul mvrf1, 20|v_wr dram, 0|v_wr netq"),
        "v_rd dram, 0|v_wr ivrf, 0|end_chain",
    ):
        lines += text.split("|")
    return LSTM + "\n".join([*lines, "end_loop", "v_rd ivrf, 0", "v_wr netq", "end_chain", ""])


def test_lstm_keeps_its_loop(tmp_path, golden):
    program, image = assembled(lstm_text())
    check_concordant(program, image, given_inputs(program, scale=2), tmp_path)
    flow = data_flow(program, image)
    (loop,) = (step for step in flow.nodes if isinstance(step, Turns))
    assert loop.count == 9
    assert sorted(c.state.name for c in loop.carried) == ["s_ivrf", "s_mvrf1"]
    assert {c.state.width for c in loop.carried} == {12}  # padding stays zero
    text = module_text(flow, "torch", "lstm.safetensors")
    golden("tests/golden/npu/lstm.py.txt", text[text.index("NATIVE = ") :])


PADDED_STATE = """
    ;! input x 4x5
    ;! output y 4x12
    ;! tensor w mrf 0 12x12
    ;! tensor b asvrf0 0 12
    ;! tensor zero_h ivrf 0 12
    s_wr rows, 2
    s_wr columns, 2
    loop 4
        s_wr rows, 1
        v_rd netq
        v_wr asvrf1, 0
        v_wr asvrf1, 1
        end_chain
        s_wr rows, 2
        v_rd ivrf, 0
        mv_mul 0
        vv_add asvrf0, 0
        v_sigm 0
        vv_add asvrf1, 0
        v_wr ivrf, 10
        v_wr netq
        end_chain
        v_rd ivrf, 10
        v_wr ivrf, 0
        end_chain
    end_loop
"""


def test_state_whose_padding_is_not_zero(tmp_path):
    # The sigmoid makes 0.5 of the padding: the first turn meets zeros there, the others do not.
    program, image = assembled(PADDED_STATE)
    check_concordant(program, image, given_inputs(program), tmp_path)


NESTED = """
    ;! input x 12x8
    ;! output y 6x8
    ;! output z 8
    ;! tensor w mrf 0 8x8
    ;! tensor zero_a asvrf0 0 8
    ;! tensor b asvrf0 1 8
    loop 3
        loop 2
            v_rd netq
            mv_mul 0
            vv_add asvrf0, 0
            v_tanh
            v_wr ivrf, 5
            end_chain
            v_rd netq
            vv_mul mvrf0, 0
            v_wr asvrf0, 0
            v_wr netq
            end_chain
        end_loop
        v_rd ivrf, 5
        vv_add asvrf0, 1
        v_wr dram, 0
        end_chain
        v_rd dram, 0
        v_wr asvrf0, 1
        v_wr ivrf, 7
        end_chain
    end_loop
    v_rd ivrf, 7
    v_wr netq
    end_chain
    ;! tensor m mvrf0 0 8
"""


def test_nested_loops(tmp_path):
    program, image = assembled(NESTED)
    check_concordant(program, image, given_inputs(program), tmp_path)
    (outer,) = (s for s in data_flow(program, image).nodes if isinstance(s, Turns))
    assert [s.count for s in outer.body if isinstance(s, Turns)] == [2]


QUEUED_TILES = """
    ;! input tiles 16x8
    ;! input x 2x8
    ;! output y 3x8
    ;! tensor old mrf 4 8x8
    s_wr columns, 2
    m_rd netq
    m_wr mrf, 0
    end_chain
    v_rd netq
    mv_mul 0
    v_wr netq
    v_wr ivrf, 0
    v_wr ivrf, 1
    end_chain
    s_wr columns, 1
    v_rd ivrf, 0
    mv_mul 4
    v_wr netq
    end_chain
    s_wr requantize, 1
    s_wr columns, 2
    v_rd ivrf, 0
    mv_mul 0
    v_wr netq
    end_chain
"""


def test_tiles_from_the_network(tmp_path):
    program, image = assembled(QUEUED_TILES)
    check_concordant(program, image, given_inputs(program), tmp_path)
    assert "mv_mul_tiles" in op_names(data_flow(program, image).nodes)


def test_program_without_inputs(tmp_path):
    program, image = assembled(
        ";! output y 5\n;! tensor a ivrf 0 5\nv_rd ivrf, 0\nv_sigm\nv_wr netq\nend_chain\n"
    )
    check_concordant(program, image, {}, tmp_path)


def test_names_of_hints_collide_with_nothing(tmp_path):
    names = ["v8", "x_v8", "inputs", "self", "class", "y_return", "batch"]
    hints = "".join(f";! input {name} 3\n" for name in names)
    hints += "".join(f";! output {name}_ 3\n" for name in names)
    chains = "v_rd netq\nvv_mul mvrf0, 0\nv_wr netq\nend_chain\n" * len(names)
    program, image = assembled(f"{hints};! tensor c_zeros mvrf0 0 3\n{chains}")
    check_concordant(program, image, given_inputs(program), tmp_path)


def test_onnx_model_is_valid():
    for text in (CONV, lstm_text(), NESTED, QUEUED_TILES):
        model = onnx_model(data_flow(*assembled(text)))
        onnx.checker.check_model(model, full_check=True)


def test_generated_text_is_python_with_no_text_of_the_program():
    program, image = assembled(f"; os.system('true')\n{CONV}")
    text = module_text(data_flow(program, image), "torch", "data.safetensors")
    ast.parse(text)
    assert "os.system" not in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("text", [CONV, lstm_text()])
def test_tensorflow_text_is_python(text, tmp_path):
    program, image = assembled(text)
    translate(program, image, "tensorflow", tmp_path / "model.py")
    ast.parse((tmp_path / "model.py").read_text())
    with np.load(tmp_path / "model.npz") as data:
        assert {"w_kernel", "c_bias"} <= set(data) or {"w_wi", "t_tanh"} <= set(data)
    if importlib.util.find_spec("tensorflow") is None:
        with pytest.raises(UnsupportedError, match="found none installed"):
            load_concordant(tmp_path / "model.py")


def test_large_batches_are_computed_in_parts(tmp_path):
    program, image = assembled(CONV)
    translate(program, image, "torch", tmp_path / "model.py")
    text = (tmp_path / "model.py").read_text()
    model = load_concordant(tmp_path / "model.py")
    inputs = given_inputs(program, 5)
    whole = model(inputs)["map"]
    changed, count = re.subn(r"    samples = \d{2,}\n", "    samples = 2\n", text)
    assert count == 1
    (tmp_path / "model.py").write_text(changed)
    same_bits(load_concordant(tmp_path / "model.py")(inputs)["map"], whole)


# --- errors -----------------------------------------------------------------------------------


def test_errors_name_what_was_expected(tmp_path):
    program, image = assembled(CONV)
    with pytest.raises(InputError, match=r"one of torch, onnx, tensorflow, c .* found 'java'"):
        translate(program, image, "java", tmp_path / "model.java")
    with pytest.raises(InputError, match=r"ends in .onnx for onnx, found .py"):
        translate(program, image, "onnx", tmp_path / "model.py")
    with pytest.raises(InputError, match="with its data beside it"):
        load_concordant(tmp_path / "model.py")
    translate(program, image, "torch", tmp_path / "model.py")
    model = load_concordant(tmp_path / "model.py")
    with pytest.raises(ValueError, match=r"expected inputs \{'image': "):
        model({"image": np.zeros((1, 5, 4, 5), np.float16)})
    with pytest.raises(ValueError, match="expected inputs"):
        model({})


def test_too_many_operations_are_refused(monkeypatch):
    monkeypatch.setattr(layout, "NODES_MAX", 3)
    with pytest.raises(UnsupportedError, match="at most 3 operations"):
        data_flow(*assembled(CONV))


def test_effort_counts_the_trials_of_nested_loops(monkeypatch):
    """The same chains cost more in nested loops, and what costs too much is refused."""
    chain = "v_rd ivrf, 0\nvv_add asvrf0, 0\nv_wr dram, 0\nend_chain\n"
    text = ";! tensor a ivrf 0 8\n;! tensor b asvrf0 0 8\n"
    last = "v_rd dram, 0\nv_wr netq\nend_chain\n;! output y 8\n"
    monkeypatch.setattr(layout, "EFFORT_MAX", 40 * layout.OPERATION)
    data_flow(*assembled(text + chain * 10 + last))
    data_flow(*assembled(text + "loop 2\n" + chain * 10 + "end_loop\n" + last))
    with pytest.raises(
        UnsupportedError, match=r"test:\d+: expected .* less effort, found too many"
    ):
        data_flow(*assembled(text + "loop 2\n" * 3 + chain * 10 + "end_loop\n" * 3 + last))


def test_command_writes_files(tmp_path, capsys):
    program, image = assembled(CONV)
    write_program(tmp_path / "conv.nnp", program, image)
    concord_command(Path(tmp_path / "conv.nnp"), "torch", tmp_path / "out" / "conv.py")
    assert "conv.safetensors (" in capsys.readouterr().out
    inputs = given_inputs(program)
    found = load_concordant(tmp_path / "out" / "conv.py")(inputs)["map"]
    same_bits(found, simulate(program, image, inputs).outputs["map"])
    concord_command(tmp_path / "conv.nnp", "onnx", tmp_path / "conv.onnx", as_json=True)
    assert '"to": "onnx"' in capsys.readouterr().out


def test_command_keeps_the_memory_image(tmp_path):
    program, image = assembled(CONV)
    write_program(tmp_path / "conv.nnp", program, image)
    before = (tmp_path / "conv.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"not the program's memory image, found .*conv.safetens"):
        concord_command(tmp_path / "conv.nnp", "torch", tmp_path / "conv.py")
    assert (tmp_path / "conv.safetensors").read_bytes() == before
