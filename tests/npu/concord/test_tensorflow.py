"""Concordant software in TensorFlow: the simulator's bits, where TensorFlow is installed.

TensorFlow flushes subnormal binary32 numbers to zero, here too; all inputs below hold subnormal
binary16 numbers.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from npu.compiler.test_lower import NETS, SMALL
from npu.concord.test_formula import BINARY, FORMULAS, UNARY, compiled, expected_of, number_pairs
from npu.concord.test_translate import (
    ALL,
    CONV,
    KINDS,
    NESTED,
    PADDED_STATE,
    QUEUED_TILES,
    assembled,
    bits,
    check_concordant,
    given_inputs,
    half_way_cases,
    lstm_text,
    same_bits,
)
from npu.programs import random_case, random_inputs
from samebits.data import load
from samebits.model import load_model
from samebits.npu.compiler.lower import lower_real_graph
from samebits.npu.concord import runtime_torch
from samebits.npu.concord.source import load_module
from samebits.npu.concord.translate import load_concordant, translate
from samebits.npu.machine.image import read_program
from samebits.npu.machine.isa import POINTWISE
from samebits.npu.simulator.machine import ShortBlocks, multiply, pointwise, quantize
from samebits.npu.simulator.simulate import simulate
from samebits.train.run.config import TrainConfig
from samebits.train.run.loop import train
from samebits.verification.accuracy import images

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None,
        reason="TensorFlow is not installed; `make test-slow` installs it where it can",
    ),
]
FIRMWARE = Path(__file__).resolve().parents[3] / "examples" / "firmware"
NAMES = sorted(path.stem for path in FIRMWARE.glob("*.nnp"))
MODULE = {"tensorflow": "tensorflow_model.py"}
LARGE = 1 << 20  # numbers: TensorFlow divides such an operation among threads


@pytest.fixture(scope="module")
def tf():
    import tensorflow

    return tensorflow


@pytest.fixture(scope="module")
def runtime(tf):
    from samebits.npu.concord import runtime_tensorflow

    return runtime_tensorflow


def repeated(array):
    return np.tile(array, -(-LARGE // array.size))


# --- arithmetic -------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [False, True])
def test_binary64_is_rounded_once(large, tf, runtime):
    cases = repeated(half_way_cases()) if large else half_way_cases()
    with np.errstate(over="ignore"):
        expected = cases.astype(np.float16)
    same_bits(runtime.to_binary16(tf.constant(cases)).numpy(), expected, cases)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("large", [False, True])
def test_inputs_are_rounded_once(dtype, large, tf, runtime):
    cases = half_way_cases()
    tiny = np.array([5e-324, 1e-310, 1e-300, 1e-45, 1e-40, 2.0**-126, 2.0**-41, 2.0**-60])
    with np.errstate(all="ignore"):
        cases = np.concatenate([cases, tiny, -tiny, [1e30, 1e300, np.inf, -np.inf]]).astype(dtype)
        cases = repeated(cases) if large else cases
        expected = cases.astype(np.float16)
    found = runtime.receive(tf.constant(cases[np.newaxis]), (cases.size,))
    same_bits(found.numpy().ravel(), expected, cases)


SPECIAL = ALL[[0, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0x3C00, 0xBC00, 1, 0x8001, 0x3FF, 0x400, 0x7BFF]]


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("large", [False, True])
def test_every_number_and_operands(op, large, tf, runtime):
    """65,536 numbers with 12 special and 52 random operands; subnormal ones with each other."""
    numbers = np.random.default_rng(3)
    others = np.concatenate([SPECIAL, ALL[numbers.integers(0, 1 << 16, 52)]])
    small = np.concatenate([ALL[:1032], ALL[0x8000 : 0x8000 + 1032]])
    for a, b in ((np.tile(ALL, 64), np.repeat(others, 1 << 16)), np.meshgrid(small, small[::7])):
        a, b = a.ravel(), b.ravel()
        with np.errstate(all="ignore"):
            expected = pointwise(op, a, b)
        step = a.size if large else 1 << 12
        for at in range(0, a.size, step * (1 if large else 97)):
            cut = slice(at, at + step)
            found = compiled(POINTWISE[op], runtime, tf.constant(a[cut]), tf.constant(b[cut]))
            same_bits(found.numpy(), expected[cut], list(zip(a[cut], b[cut], strict=True)))


@pytest.mark.parametrize("op", UNARY)
def test_activations_at_every_number(op, tf, runtime):
    found = compiled(POINTWISE[op], runtime, tf.constant(ALL))
    same_bits(found.numpy(), pointwise(op, ALL), ALL)


@pytest.mark.parametrize("formula", FORMULAS)
def test_other_formulas(formula, tf, runtime):
    a, b = number_pairs()
    found = compiled(formula, runtime, tf.constant(a), tf.constant(b))
    same_bits(found.numpy(), expected_of(formula, a, b), list(zip(a, b, strict=True)))


def numbers_of(blocks, mantissa):
    """Values of the simulator's blocks, exact in binary64."""
    return np.ldexp(blocks.codes.astype(float), (blocks.exponents - mantissa)[..., np.newaxis])


@pytest.mark.parametrize("mantissa", range(2, 16))
def test_blocks_of_every_largest_number(mantissa, tf, runtime):
    """Every number as the first of a block: of smaller ones, and of about half codes."""
    numbers = np.random.default_rng(mantissa)
    shape = (1 << 16, 8)
    sizes = numbers.integers(0, 0x7C01, shape) % ((ALL.view(np.uint16) & 0x7FFF)[:, None] + 1)
    smaller = (sizes | numbers.integers(0, 2, shape) << 15).astype(np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        codes = numbers.integers(0, 1 << mantissa, shape) + 0.5
        halves = (np.abs(ALL.astype(float))[:, None] * codes / 2.0**mantissa).astype(np.float16)
    for blocks in (smaller, halves):
        blocks[:, 0] = ALL
        expected = numbers_of(quantize(blocks, mantissa), mantissa)
        found = runtime.quantize(tf.constant(blocks[np.newaxis]), 8, mantissa).numpy()
        assert found.dtype == np.float32
        wrong = np.flatnonzero((found[0] != expected).any(1))
        assert not len(wrong), [(blocks[i], found[0, i], expected[i]) for i in wrong[:5]]


@pytest.mark.parametrize("padding", [0.0, -0.0, 0.5, float("inf"), float("nan")])
def test_lanes_that_are_added(padding, tf, runtime):
    """Both zeros, whichever comes first: of scalars TensorFlow keeps one."""
    x = tf.constant(ALL[:6].reshape(1, 3, 2))
    for other in (-0.0, 0.0):
        same_bits(runtime.widen(x, 4, other).numpy()[0, 0, 2:], np.full(2, other, np.float16))
        found = runtime.widen(x, 5, padding).numpy()
        same_bits(found[..., :2], x.numpy())
        same_bits(found[..., 2:], np.full((1, 3, 3), padding, np.float16))


def test_products_are_the_simulators(tf, runtime):
    """300 random matrices, as constants and from the queue, with and without re-quantization."""
    numbers = np.random.default_rng(9)
    for case in range(300):
        mantissa, native = int(numbers.integers(2, 16)), int(numbers.choice([8, 11, 16]))
        tiles, rows = int(numbers.integers(1, 4)), int(numbers.integers(1, 3))
        x = varied(numbers, (2, tiles, native), case)
        w = varied(numbers, (rows, tiles, native, native), case)
        vectors = runtime.quantize(tf.constant(x.reshape(2, -1, native)), native, mantissa)
        held = quantize(w, mantissa)
        values = numbers_of(held, mantissa).astype(np.float32)  # [rows, tiles, outputs, lanes]
        flat = values.transpose(1, 3, 0, 2).reshape(tiles, native, -1)
        grid = [
            [ShortBlocks(held.codes[r, c], held.exponents[r, c]) for c in range(tiles)]
            for r in range(rows)
        ]
        moved = w.transpose(0, 2, 1, 3).reshape(1, -1, native)
        right = runtime.quantize(tf.constant(moved), native, mantissa)
        for requantize in (False, True):
            expected = np.stack([multiply(grid, v, mantissa, requantize) for v in x])
            expected = expected.reshape(2, 1, -1)
            same_bits(runtime.Tiles(flat)(vectors, requantize).numpy(), expected)
            found = runtime.multiply_tiles(vectors, right, tiles, requantize)
            same_bits(found.numpy(), expected)


def varied(numbers, shape, case):
    """Binary16: bit patterns (NaN and infinities too), normal numbers, rows of all sizes."""
    if case % 3 == 0:
        return ALL[numbers.integers(0, 1 << 16, shape)]
    power = numbers.integers(-18, 10, (*shape[:-1], 1)) if case % 3 == 1 else 0
    kept = numbers.random(shape) < numbers.choice([0.2, 1.0])
    return (numbers.standard_normal(shape) * np.exp2(power) * kept).astype(np.float16)


@pytest.mark.parametrize("requantize", [False, True])
def test_sums_as_torch(requantize, tf, runtime):
    """The sums of PyTorch, which are tested against the definition."""
    numbers = np.random.default_rng(1)
    dots = numbers.integers(-(1 << 30), 1 << 30, (5, LARGE)) * np.exp2(
        numbers.integers(-60, 3, (5, LARGE))
    )
    edges = [2.0**33, -(2.0**33), 65519.0, 2.0**-41, -(2.0**-41), 3 * 2.0**-41, 2.0**-25]
    dots[:, : LARGE // 2] = numbers.choice(edges, (5, LARGE // 2))
    expected = runtime_torch.sum_tiles(torch.from_numpy(dots), requantize).numpy()
    same_bits(runtime.sum_tiles(tf.constant(dots), requantize).numpy(), expected)


# --- programs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("start", range(0, 2000, 250))
def test_random_programs(start, tmp_path, tf):
    for seed in range(start, start + 250):
        case = random_case(seed)
        check_concordant(
            case.program, case.image, random_inputs(case, 2, seed), tmp_path, kinds=MODULE
        )


def test_all_kinds_agree_in_one_process(tmp_path, tf):
    for seed in range(5000, 5050):
        case = random_case(seed)
        inputs = random_inputs(case, 2, seed)
        check_concordant(case.program, case.image, inputs, tmp_path, kinds=KINDS | MODULE)


@pytest.mark.parametrize("name", NAMES)
def test_example_firmware(name, tmp_path, tf):
    """Normal inputs of three sizes, and random bit patterns without NaN."""
    program, image = read_program(FIRMWARE / f"{name}.nnp")
    patterns = {}
    for scale in (1.0, 2.0**-13, 2.0**12):
        inputs = given_inputs(program, 4, scale=scale)
        check_concordant(program, image, inputs, tmp_path, kinds=KINDS | MODULE)
    for key, array in inputs.items():
        drawn = ALL[np.random.default_rng(2).integers(0, 1 << 16, array.shape)]
        patterns[key] = np.where(np.isnan(drawn), np.float16(2.0**-24), drawn)
    check_concordant(program, image, patterns, tmp_path, kinds=KINDS | MODULE)


TEXTS = {
    "convolution": CONV,
    "lstm": lstm_text(),
    "padded state": PADDED_STATE,
    "nested loops": NESTED,
    "tiles from the network": QUEUED_TILES,
    "no inputs": ";! output y 5\n;! tensor a ivrf 0 5\nv_rd ivrf, 0\nv_wr netq\nend_chain\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_programs_written_out(name, tmp_path, tf):
    for mantissa in (3, 15):
        program, image = assembled(TEXTS[name], mantissa=mantissa)
        for scale in (1.0, 2.0**-12, 2.0**9):
            inputs = given_inputs(program, scale=scale)
            check_concordant(program, image, inputs, tmp_path, kinds=MODULE)


@pytest.mark.parametrize("native", [8, 16])
def test_compiled_networks(native, tmp_path, tf):
    for graph in NETS.values():
        for mantissa, depths in ((15, {}), (6, SMALL)):
            program, image = lower_real_graph(graph, native, mantissa, depths)
            check_concordant(program, image, given_inputs(program), tmp_path, kinds=MODULE)


def test_firmware_of_a_trained_network(tmp_path, tf):
    """The whole test set of the digits, 359 images."""
    digits = load("digits")
    config = TrainConfig(data="digits", arch="cnn", numerics="bfp", epochs=2, batch=64, seed=0)
    train(config, digits, tmp_path / "run")
    program, image = lower_real_graph(load_model(tmp_path / "run").real, 16)
    (hint,) = (h for h in program.hints if h.kind == "input")
    pixels = images(digits, "test")
    assert pixels.shape == (359, *hint.shape)
    check_concordant(program, image, {hint.name: pixels}, tmp_path, kinds=KINDS | MODULE)


# --- how a module is run ----------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "xla"])
def test_graphs_and_xla_change_nothing(compiled, tmp_path, tf):
    """`tf.function` of a whole model, optimized by TensorFlow or compiled."""
    programs = [assembled(TEXTS[name]) for name in ("convolution", "padded state")]
    cases = [(p, i, given_inputs(p, scale=s)) for p, i in programs for s in (1.0, 2.0**-12)]
    for seed in (*range(6), 569, 661, 981, 1390):  # the last ones with zeros of both signs
        case = random_case(seed)
        cases.append((case.program, case.image, random_inputs(case, 2, seed)))
    for program, image, inputs in cases:
        translate(program, image, "tensorflow", tmp_path / "model.py")
        model = tf.function(load_module(tmp_path / "model.py").load(), jit_compile=compiled)
        found = model({name: tf.constant(array) for name, array in inputs.items()})
        for name, array in simulate(program, image, inputs).outputs.items():
            same_bits(found[name].numpy(), array if inputs else array[np.newaxis])


ALONE = """
import sys
sys.modules |= dict.fromkeys(("samebits", "torch", "onnx", "safetensors"))  # cannot be imported
sys.path.insert(0, sys.argv[1])
import numpy as np
import model
with np.load("inputs.npz") as inputs:
    np.savez("outputs.npz", **model.load()(dict(inputs)))
"""


@pytest.mark.parametrize("onednn", ["0", "1"])
def test_a_module_stands_alone(onednn, tmp_path):
    """Somewhere else, with nothing but TensorFlow and its data."""
    program, image = read_program(FIRMWARE / "lstm.nnp")
    inputs = given_inputs(program, 2)
    translate(program, image, "tensorflow", tmp_path / "made" / "model.py")
    shutil.move(tmp_path / "made", tmp_path / "moved")
    np.savez(tmp_path / "inputs.npz", **inputs)
    subprocess.run(
        [sys.executable, "-I", "-c", ALONE, tmp_path / "moved"],
        check=True,
        cwd=tmp_path,
        env=os.environ | {"TF_ENABLE_ONEDNN_OPTS": onednn},
        capture_output=True,
        timeout=300,
    )
    with np.load(tmp_path / "outputs.npz") as found:
        for name, array in simulate(program, image, inputs).outputs.items():
            same_bits(found[name], array)


def test_large_batches_are_computed_in_parts(tmp_path, tf):
    program, image = assembled(CONV)
    path = tmp_path / "model.py"
    translate(program, image, "tensorflow", path)
    inputs = given_inputs(program, 5)
    whole = load_concordant(path)(inputs)["map"]
    changed, count = re.subn(r"    samples = \d{2,}\n", "    samples = 2\n", path.read_text())
    assert count == 1
    path.write_text(changed)
    same_bits(load_concordant(path)(inputs)["map"], whole)
    assert len(np.unique(bits(whole))) > 100
    with pytest.raises(ValueError, match=r"expected inputs \{'image': "):
        load_concordant(path)({"image": np.zeros((1, 5, 4, 5), np.float16)})
