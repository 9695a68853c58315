"""The simulator against a second machine, written from the specification with plain numbers."""

from __future__ import annotations

import itertools
import math
import re
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare import assert_same
from npu.programs import random_case, random_inputs, values
from samebits.errors import InputError, NonFiniteError
from samebits.npu.machine.assembly import parse
from samebits.npu.machine.isa import INSTRUCTIONS, POINTWISE, REDUCTIONS, Operand, Stage
from samebits.npu.machine.program import QUEUE, REGISTERS, TILE_FILES, Image
from samebits.npu.simulator.machine import Memory, Queue, multiply, pointwise, quantize, reduced
from samebits.npu.simulator.simulate import simulate
from samebits.spec.npu_binary16 import (
    binary16_add,
    binary16_max,
    binary16_mul,
    binary16_relu,
    binary16_sub,
    binary16_value,
)
from samebits.spec.npu_formula import PLAIN as OPERATIONS
from samebits.spec.npu_short import bfp_long, bfp_short, long_to_binary16
from samebits.tables.binary16 import sigmoid_table, tanh_table

PLAIN = {op: partial(formula.realised, OPERATIONS) for op, formula in POINTWISE.items()}
PLAIN |= {
    "vv_add": binary16_add,
    "vv_a_sub_b": binary16_sub,
    "vv_b_sub_a": lambda a, b: binary16_sub(b, a),
    "vv_mul": binary16_mul,
    "vv_max": binary16_max,
    "v_relu": binary16_relu,
    "v_sigm": lambda a: look_up(sigmoid_table(), a),
    "v_tanh": lambda a: look_up(tanh_table(), a),
}
BINARY = [op for op in POINTWISE if Operand.MEMORY in INSTRUCTIONS[op].operands]
UNARY = [op for op in POINTWISE if op not in BINARY]


def look_up(table, x):
    bits = int(np.float16(x).view(np.uint16))
    return binary16_value(int(table[bits]))


class Second:
    """Runs a list of instructions: registers, a program counter, and lists of Python floats."""

    def __init__(self, program, image, queue):
        self.program, self.queue, self.sent, self.scalars = program, queue, [], []
        self.registers = dict(REGISTERS)
        self.memory = {
            name: {a: entry.tolist() for a, entry in held.items()}
            for name, held in image.entries.items()
        }
        self.memory["mrf"] = {a: self.tile(t) for a, t in self.memory.get("mrf", {}).items()}

    def tile(self, rows):
        return [bfp_short(row, self.program.mantissa) for row in rows]

    def run(self):
        code, counter, loops, chain = self.program.instructions, 0, [], []
        while counter < len(code):
            i = code[counter]
            if i.op == "s_wr":
                self.registers[i.register] = i.value
            elif i.op == "s_rd":
                self.scalars.append(self.registers[i.register])
            elif i.op == "loop":
                loops.append([counter, i.value])
            elif i.op == "end_loop":
                loops[-1][1] -= 1
                if loops[-1][1]:
                    counter = loops[-1][0]
                else:
                    loops.pop()
            elif i.op == "end_chain":
                for t in range(self.registers["iterations"]):
                    self.iteration(chain, t)
                chain = []
            else:
                chain.append(i)
            counter += 1

    def iteration(self, chain, t):
        r = self.registers
        ty, tx = divmod(t, r["iterations_x"])
        carried = []
        for i in chain:
            op, start = i.op.removesuffix("_inc"), i.address
            if i.steps:
                start += tx * i.steps[0] + ty * i.steps[1]
            if op in ("m_rd", "m_rd_t"):
                count, size = r["rows"] * r["columns"], self.program.native
                held = self.memory.get(i.memory)
                if i.memory == QUEUE:
                    carried = [[self.queue.pop(0) for _ in range(size)] for _ in range(count)]
                elif i.memory in TILE_FILES:
                    carried = [held[start + k] for k in range(count)]
                else:
                    rows = [held[start + k] for k in range(count * size)]
                    carried = [rows[k * size : (k + 1) * size] for k in range(count)]
                if op == "m_rd_t":
                    carried = [
                        [list(column) for column in zip(*tile, strict=False)] for tile in carried
                    ]
            elif op == "m_wr":
                for k, rows in enumerate(carried):
                    self.memory[i.memory][start + k] = (
                        self.tile(rows) if i.memory == "mrf" else rows
                    )
            elif op == "v_rd":
                count = r["columns"] if any(j.op == "mv_mul" for j in chain) else r["rows"]
                carried = [self.read(i.memory, start, k) for k in range(count)]
            elif op == "mv_mul":
                carried = self.product(start, carried)
            elif op in UNARY:
                carried = [[PLAIN[op](a) for a in vector] for vector in carried]
            elif op in REDUCTIONS:
                lanes = [lane for vector in carried for lane in vector]
                carried = [[REDUCTIONS[op].definition(lanes)] * len(v) for v in carried]
            elif op == "v_wr":
                for k, vector in enumerate(carried):
                    if i.memory == QUEUE:
                        self.sent.append(vector)
                    else:
                        self.memory.setdefault(i.memory, {})[start + k] = vector
            else:
                operands = [self.memory[i.memory][start + k] for k in range(r["rows"])]
                carried = [
                    [PLAIN[op](a, b) for a, b in zip(vector, operand, strict=True)]
                    for vector, operand in zip(carried, operands, strict=True)
                ]

    def read(self, memory, start, k):
        if memory == QUEUE:
            return self.queue.pop(0)
        r = self.registers
        if r["window"] * r["window_run"] != 1:
            run = r["window_run"]
            k = k // run * r["window_pitch"] + k % run
        return self.memory[memory][start + k]

    def product(self, start, vectors):
        r, m = self.registers, self.program.mantissa
        blocks = [bfp_short(vector, m) for vector in vectors]
        result = []
        for row in range(r["rows"]):
            tiles = [self.memory["mrf"][start + row * r["columns"] + c] for c in range(len(blocks))]
            result.append([])
            for n in range(self.program.native):
                pairs = []
                for tile, (codes, e) in zip(tiles, blocks, strict=True):
                    others, f = tile[n]
                    dot = sum(a * b for a, b in zip(codes, others, strict=True))
                    pairs.append((dot, e + f - 2 * m))
                result[-1].append(long_to_binary16(bfp_long(pairs, bool(r["requantize"]))))
        return result


def native_vectors(array, native):
    """A logical tensor as the vectors of the queue, padded with zeros."""
    pixels = {1: array[None], 2: array, 3: np.moveaxis(array, 0, -1).reshape(-1, len(array))}
    for pixel in pixels[array.ndim].tolist():
        pixel += [0.0] * (-len(pixel) % native)
        yield from (pixel[i : i + native] for i in range(0, len(pixel), native))


def expected_outputs(program, image, inputs):
    """(outputs by name, scalars) of the second machine."""
    hints = {kind: [h for h in program.hints if h.kind == kind] for kind in ("input", "output")}
    queue = [v for h in hints["input"] for v in native_vectors(inputs[h.name], program.native)]
    second = Second(program, image, queue)
    second.run()
    assert not queue
    outputs, at = {}, 0
    for hint in hints["output"]:
        count = len(list(native_vectors(np.zeros(hint.shape), program.native)))
        vectors, at = second.sent[at : at + count], at + count
        channels = hint.shape[-1] if len(hint.shape) == 2 else hint.shape[0]
        pixels = np.array(vectors).reshape(-1, -(-channels // program.native) * program.native)
        pixels = pixels[:, :channels]
        if len(hint.shape) == 3:
            pixels = pixels.T
        outputs[hint.name] = pixels.reshape(hint.shape).astype(np.float16)
    assert at == len(second.sent)
    return outputs, second.scalars


def bits(array):
    """Bits of binary16 numbers, every NaN the same."""
    return np.where(np.isnan(array), 0x7E00, np.asarray(array, np.float16).view(np.uint16))


def same_bits(found, expected):
    assert found.dtype == np.float16
    assert found.shape == expected.shape
    assert_same(bits(found), bits(expected), list(np.ndindex(expected.shape)))


# --- whole programs -----------------------------------------------------------------------------


def check_random(seed):
    case = random_case(seed)
    inputs = random_inputs(case, seed=seed)
    expected, scalars = expected_outputs(case.program, case.image, inputs)
    result = simulate(case.program, case.image, inputs)
    assert list(result.outputs) == list(expected)
    for name, array in expected.items():
        same_bits(result.outputs[name], array)
    assert list(result.scalars) == scalars


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    check_random(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 400))
def test_more_random_programs(seed):
    check_random(seed)


def test_random_programs_use_everything():
    used, features = set(), set()
    for seed in range(60):
        program = random_case(seed).program
        used |= {i.op for i in program.instructions}
        features |= {(i.register, min(i.value, 2)) for i in program.instructions if i.register}
        assert any(h.kind == "output" for h in program.hints)
    assert used == set(INSTRUCTIONS)
    assert {("window", 2), ("window_pitch", 2), ("iterations", 2), ("requantize", 1)} <= features


@pytest.mark.parametrize("seed", [1, 4, 9])
def test_every_sample_starts_from_the_image(seed):
    case = random_case(seed)
    batch = random_inputs(case, batch=3)
    together = simulate(case.program, case.image, batch).outputs
    for b in range(3):
        alone = simulate(case.program, case.image, {n: x[b] for n, x in batch.items()}).outputs
        for name, array in alone.items():
            same_bits(together[name][b], array)


def test_trace():
    case = random_case(5)
    batch = random_inputs(case, batch=2)
    full = simulate(case.program, case.image, batch, keep_values=True)
    hashes = simulate(case.program, case.image, batch, trace=True)
    assert len(full.trace) == 2
    for kept, hashed in zip(full.trace, hashes.trace, strict=True):
        assert [w.hash for w in kept] == [w.hash for w in hashed]
        assert len(kept) == sum(chain.executions for chain in full.counts.chains)
        assert all(w.values is not None for w in kept)
        assert all(w.values is None for w in hashed)
    assert simulate(case.program, case.image, batch).trace == ()


# --- parts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mantissa", range(2, 16))
def test_quantize(mantissa):
    numbers = np.random.default_rng(mantissa)
    rows = [values(numbers, (8,), extreme) for extreme in (False, True) for _ in range(150)]
    for exponent in range(-16, 17):  # just below, at and above the end of every exponent
        end = (1 - 2.0 ** -(mantissa + 1)) * 2.0**exponent
        rows += [np.append(end * (1 + n / 1024), numbers.standard_normal(7)) for n in (-1, 0, 1)]
    rows += [np.zeros(8), np.full(8, np.nan), np.array([np.inf, np.nan, -np.inf, *[65504.0] * 5])]
    with np.errstate(over="ignore"):
        array = np.array(rows, np.float64).astype(np.float16)
    found = quantize(array, mantissa)
    expected = [bfp_short(row, mantissa) for row in array.tolist()]
    assert_same(found.exponents, [e for _, e in expected], array.tolist())
    assert_same(found.codes, [c for codes, _ in expected for c in codes], array)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(2, 15), st.booleans(), st.integers(1, 3))
def test_multiply(seed, mantissa, requantize, columns):
    numbers = np.random.default_rng(seed)
    scales = 2.0 ** numbers.integers(-18, 12, 2)
    with np.errstate(over="ignore"):
        tiles = (values(numbers, (2, columns, 8, 8), True) * scales[0]).astype(np.float16)
        vectors = (values(numbers, (columns, 8), True) * scales[1]).astype(np.float16)
    stored = [[quantize(tile, mantissa) for tile in row] for row in tiles]
    found = multiply(stored, vectors, mantissa, requantize)
    blocks = [bfp_short(vector, mantissa) for vector in vectors.tolist()]
    for r, n in itertools.product(range(2), range(8)):
        pairs = []
        for c, (codes, e) in enumerate(blocks):
            others, f = bfp_short(tiles[r, c, n].tolist(), mantissa)
            dot = sum(a * b for a, b in zip(codes, others, strict=True))
            pairs.append((dot, e + f - 2 * mantissa))
        assert float(found[r, n]).hex() == long_to_binary16(bfp_long(pairs, requantize)).hex()


def test_a_sum_of_products_that_binary64_does_not_hold():
    """8192 + 2**-40 has 54 bits. With -8184 + 2**-8 it is 2**-40 beyond a tie of binary16: up."""
    tiles, vectors = np.zeros((3, 8, 8), np.float16), np.zeros((3, 8), np.float16)
    tiles[0, 0, 0], vectors[0, 0] = 8192, 1
    tiles[1, 0, 0], vectors[1, 0] = 2.0**-20, 2.0**-20
    tiles[2, 0, :2], vectors[2, :2] = (-8184, 1), (1, 2.0**-8)
    found = multiply([[quantize(tile, 15) for tile in tiles]], vectors, 15, False)
    assert found.tolist() == [[8 + 2.0**-7, *[0.0] * 7]]
    assert multiply([[quantize(t, 15) for t in tiles[::2]]], vectors[::2], 15, False)[0, 0] == 8


@pytest.mark.parametrize("op", BINARY)
def test_binary_operations(op):
    numbers = np.random.default_rng(1)
    a, b = numbers.integers(0, 1 << 16, (2, 20000), dtype=np.uint16).view(np.float16)
    edges = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0x3C01, 0x7BFF, 0x7C00]
    edges += [0xFBFF, 0xFC00, 0x7E00, 0x3800, 0x13FF]
    pairs = np.array(list(itertools.product(edges, edges)), np.uint16).view(np.float16).T
    a, b = np.concatenate([a, pairs[0]]), np.concatenate([b, pairs[1]])
    expected = [PLAIN[op](x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert_same(
        bits(pointwise(op, a, b)),
        bits(np.array(expected, np.float16)),
        list(zip(a, b, strict=True)),
    )


@pytest.mark.parametrize("op", UNARY)
def test_unary_operations(op):
    a = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    expected = [PLAIN[op](x) for x in a.tolist()]
    assert_same(bits(pointwise(op, a)), bits(np.array(expected, np.float16)), a)


def test_every_instruction_is_executed():
    computing = (Stage.ADD, Stage.MULTIPLY, Stage.ACTIVATE)
    names = {r.name.removesuffix("_inc") for r in INSTRUCTIONS.values() if r.stage in computing}
    assert names == {*BINARY, *UNARY, *REDUCTIONS}


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("kind", ["bits", "normal", "cancelling", "largest", "zeros"])
def test_across_lanes(op, kind):
    """Of up to 8192 lanes: the exact sum is rounded once, whatever the order."""
    numbers = np.random.default_rng(3)
    for shape in ((1, 8), (3, 24), (16, 512)):
        x = numbers.integers(0, 1 << 16, shape, dtype=np.uint16).view(np.float16)
        if kind != "bits":
            x = numbers.standard_normal(shape).astype(np.float16)
        if kind == "cancelling":
            x = numbers.choice(np.array([65504, -65504, 2.0**-24, -0.0], np.float16), shape)
        elif kind == "largest":
            x = np.full(shape, -65504, np.float16)
        elif kind == "zeros":
            x = np.full(shape, -0.0, np.float16)
        wanted = np.float16(REDUCTIONS[op].definition(x.reshape(-1).tolist()))
        assert_same(bits(reduced(op, x)).reshape(-1), np.full(x.size, bits(wanted)), range(x.size))


def test_lanes_of_a_reduction_are_limited():
    text = ".native 512\n.depth ivrf 40\ns_wr rows, 17\nv_rd netq\nv_sum\nv_wr ivrf, 0\nend_chain\n"
    message = "p:5: expected at most 8192 lanes for v_sum, found rows * N = 17 * 512; set rows, and"
    with pytest.raises(InputError, match=re.escape(message)):
        simulate(parse(text, "p"), Image(), {})


# --- counts -------------------------------------------------------------------------------------

TIMED = """
.native 8
.mantissa 15
.depth ivrf 8
.depth mrf 15
.depth mdram 15
;! input x 12x24
;! output y 12x40
s_wr rows, 5
s_wr columns, 3
m_rd mdram, 0
m_wr mrf, 0
end_chain
loop 4
s_wr iterations, 3
v_rd netq
mv_mul 0
v_relu
v_wr netq
end_chain
s_wr iterations, 1
s_rd rows
v_rd ivrf, 0
v_wr ivrf, 5
end_chain
s_rd iterations
end_loop
"""


def timed():
    program = parse(TIMED.replace("ivrf 8", "ivrf 10"), "timed.nnp")
    ones = {a: np.ones((8, 8), np.float16) for a in range(15)}
    vectors = {a: np.ones(8, np.float16) for a in range(5)}
    return program, Image({"mdram": ones, "ivrf": vectors})


def test_the_work_of_a_program_is_counted():
    result = simulate(*timed(), {"x": np.ones((12, 24))})
    assert result.scalars == (5, 1) * 4
    rows = [(c.executions, c.iterations, c.products) for c in result.counts.chains]
    assert rows == [(1, 1, 0), (4, 12, 180), (4, 4, 0)]
    assert result.counts.executions == 9
    assert result.counts.multiply_adds == 180 * 8 * 8
    assert (result.outputs["y"] == 24).all()


# --- bad input ----------------------------------------------------------------------------------


def fails(message, inputs, program_and_image=None):
    with pytest.raises(InputError) as caught:
        simulate(*(program_and_image or timed()), inputs)
    assert str(caught.value) == message


def test_wrong_names():
    fails("timed.nnp: expected inputs 'x', found 'y'", {"y": np.zeros((12, 24))})
    fails("timed.nnp: expected inputs 'x', found none", {})


@pytest.mark.parametrize("shape", [(12, 23), (24,), (2, 2, 12, 24), (0, 12, 24)])
def test_wrong_shape(shape):
    found = list(shape)
    fails(
        f"timed.nnp:7: input 'x': expected shape [12, 24], or a batch [B, 12, 24], found {found}",
        {"x": np.zeros(shape)},
    )


def test_wrong_type_and_nan():
    message = "timed.nnp:7: input 'x': expected floating-point numbers, found int64"
    fails(message, {"x": np.zeros((12, 24), np.int64)})
    array = np.zeros((2, 12, 24), np.float32)
    array[1, 3, 5] = math.nan
    fails(
        "timed.nnp:7: input 'x': expected finite numbers of magnitude below 65520 (binary16), "
        "found nan at index [1, 3, 5]; remove, replace or scale such numbers",
        {"x": array},
    )
    both = array.copy()
    both[1, 4, 0] = math.inf  # the first of several is named
    with pytest.raises(NonFiniteError, match=r"found nan at index \[1, 3, 5\];"):
        simulate(*timed(), {"x": both})
    for number in (math.inf, -math.inf, 65520.0):
        array[1, 3, 5] = number
        with pytest.raises(NonFiniteError, match=f"found {number} at index"):
            simulate(*timed(), {"x": array})
    array[1, 3, 5] = np.nextafter(np.float32(65520), np.float32(0))
    assert simulate(*timed(), {"x": array}).outputs["y"].shape == (2, 12, 40)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("memory", "at", "place"), [("ivrf", (3,), "[3]"), ("mdram", (2, 7), "[2, 7]")]
)
def test_numbers_of_the_image_are_finite(number, memory, at, place):
    program, image = timed()
    image.entries[memory][4][at] = number
    fails(
        f"timed.nnp: memory image: expected finite numbers, or minus infinity in all lanes of a "
        f"vector for the border of a maximum, found {number} in {memory} 4 at {place}; correct the "
        "image",
        {"x": np.ones((12, 24))},
        (program, image),
    )


def test_a_border_of_a_maximum_is_minus_infinity():
    program, image = timed()
    image.entries["ivrf"][4][:] = -math.inf
    simulate(program, image, {"x": np.ones((12, 24))})
    image.entries["mdram"][4][:] = -math.inf  # no tile is a border
    with pytest.raises(NonFiniteError, match="found -inf in mdram 4 at"):
        simulate(program, image, {"x": np.ones((12, 24))})


def test_batch_sizes_differ():
    text = """
.native 8
.mantissa 8
;! input a 8
;! input b 8
;! output c 8
;! output d 8
s_wr iterations, 2
v_rd netq
v_wr netq
end_chain
"""
    program = parse(text, "pair.nnp")
    pair = {"a": np.full(8, 2.0), "b": np.full(8, 3.0)}
    outputs = simulate(program, Image(), pair).outputs
    assert (outputs["c"] == 2).all()
    assert (outputs["d"] == 3).all()
    fails(
        "pair.nnp: expected inputs of one batch size, found [8] of 'a', [1, 8] of 'b'",
        {"a": np.zeros(8), "b": np.zeros((1, 8))},
        (program, Image()),
    )


def test_the_machine_itself_refuses_what_is_not_there():
    with pytest.raises(InputError) as caught:
        Memory("ivrf", {}).read(3, "p.nnp:7")
    assert str(caught.value) == (
        "p.nnp:7: expected ivrf 3 to have been written, found nothing there; write it before, or "
        "give it in the memory image"
    )
    queue = Queue([np.zeros(8, np.float16)])
    queue.take("p.nnp:8")
    with pytest.raises(InputError) as caught:
        queue.take("p.nnp:8")
    assert str(caught.value) == (
        "p.nnp:8: expected another vector in the network queue, found that all 1 have been read; "
        "the input hints say how many there are"
    )
