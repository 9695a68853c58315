"""Concordant C: its arithmetic against numpy, and whole programs against the simulator."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from compare import assert_same
from npu.programs import random_case, random_inputs
from samebits.csrc import FOLDER, compiler, run_tool
from samebits.errors import UnsupportedError
from samebits.npu.compiler.lower import lower_real_graph, port_names
from samebits.npu.concord.c import FLAGS
from samebits.npu.concord.translate import load_concordant, translate
from samebits.npu.machine.assembly import parse
from samebits.npu.machine.image import read_program
from samebits.npu.machine.program import Image
from samebits.npu.simulator.simulate import simulate

FIRMWARE = Path(__file__).resolve().parents[3] / "examples" / "firmware"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
# Every function on arrays, for ctypes.
HARNESS = """
#include "samebits_npu.h"
void half(const float *x, float *y, int n) {
    for (int i = 0; i < n; i++) y[i] = samebits_half(x[i]);
}
void half_of(const double *x, float *y, int n) {
    for (int i = 0; i < n; i++) y[i] = samebits_half_of(x[i]);
}
void bits(const float *x, uint16_t *y, int n) {
    for (int i = 0; i < n; i++) y[i] = samebits_bits(x[i]);
}
void number(const uint16_t *x, float *y, int n) {
    for (int i = 0; i < n; i++) y[i] = samebits_number(x[i]);
}
"""


def bits(array):
    return np.where(np.isnan(array), np.float16(np.nan), array).view(np.uint16)


def check(program, image, inputs, folder):
    """The simulator's outputs for a batch."""
    path = folder / "model.c"
    translate(program, image, "c", path)
    found = load_concordant(path)(inputs)
    for name, wanted in simulate(program, image, inputs).outputs.items():
        wanted = wanted if inputs else wanted[np.newaxis]
        assert found[name].shape == wanted.shape
        assert_same(bits(found[name]), bits(wanted), range(wanted.size))
    return path


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    folder = tmp_path_factory.mktemp("harness")
    (folder / "harness.c").write_text(HARNESS, encoding="utf-8")
    built = folder / "harness.so"
    command = [*compiler(), *FLAGS, *STRICT, f"-I{FOLDER / 'npu'}", str(folder / "harness.c")]
    done = run_tool([*command, "-o", str(built), "-lm"], 100.0)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(built))

    def call(name, x, dtype):
        y = np.empty(len(x), dtype)
        getattr(library, name)(
            ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), len(x)
        )
        return y

    return call


def test_rounding_to_binary16(harness):
    """Of random binary32 and binary64 numbers, and of all that lie beside a half-way point."""
    numbers = np.random.default_rng(1)
    every = np.arange(1 << 16, dtype=np.uint16)
    halves = every.view(np.float16).astype(np.float64)
    halves = halves[np.isfinite(halves)]
    between = (halves[:-1] + halves[1:]) / 2
    sides = [np.nextafter(between, np.inf), np.nextafter(between, -np.inf), between, -between]
    with np.errstate(all="ignore"):
        wide = np.concatenate([*sides, halves, numbers.standard_normal(200000) * 1e-5])
        wide = np.where(np.abs(wide) < 2.0**-40, 0.0, wide)
        wide = np.concatenate([wide, [np.inf, -np.inf, 65519.99999, 65520.0, -65520.0, 1e30]])
        assert_same(
            bits(harness("half_of", wide, np.float32).astype(np.float16)),
            bits(wide.astype(np.float16)),
            wide,
        )
        narrow = numbers.integers(0, 1 << 32, 500000, dtype=np.uint32).view(np.float32)
        narrow = np.concatenate([narrow, wide.astype(np.float32), [np.float32(np.nan)]])
        rounded = harness("half", narrow, np.float32)
        assert_same(bits(rounded.astype(np.float16)), bits(narrow.astype(np.float16)), narrow)
    kept = harness("number", every, np.float32)
    assert np.array_equal(kept, every.view(np.float16).astype(np.float32), equal_nan=True)
    assert_same(harness("bits", kept, np.uint16), bits(every.view(np.float16)), every)


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 60))]
)
def test_random_programs(seed, tmp_path):
    case = random_case(seed)
    check(case.program, case.image, random_inputs(case, 2, seed), tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "lstm",
        "conv3x3_stride2",
        *(
            pytest.param(n, marks=pytest.mark.slow)
            for n in ("gru", "residual_maxpool", "mlp_softmax")
        ),
    ],
)
def test_example_firmware(name, tmp_path):
    """It also compiles without a warning."""
    program, image = read_program(FIRMWARE / f"{name}.nnp")
    numbers = np.random.default_rng(2)
    shapes = {hint.name: hint.shape for hint in program.hints if hint.kind == "input"}
    inputs = {
        n: numbers.standard_normal((2, *shape)).astype(np.float16) for n, shape in shapes.items()
    }
    path = check(program, image, inputs, tmp_path)
    command = [*compiler(), *FLAGS, *STRICT, str(path), "-o", str(tmp_path / "out"), "-lm"]
    done = run_tool(command, 100.0)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("mantissa", "requantize"), [(2, False), (8, True), (15, False)])
def test_attention(mantissa, requantize, tmp_path):
    torch = pytest.importorskip("torch")
    from npu.compiler.test_lanes import Attention
    from samebits.pytorch import import_module

    torch.manual_seed(2)
    graph = import_module(Attention(24, 2, causal=True).eval(), (torch.zeros(1, 5, 24),))
    program, image = lower_real_graph(graph, 8, mantissa, requantize=requantize)
    x = np.random.default_rng(4).standard_normal((2, 5, 24)).astype(np.float16)
    check(program, image, {port_names(graph)[0][0]: x}, tmp_path)


PLAIN = """
.native 8
.depth ivrf 1
;! input x 8
;! output y 8
v_rd netq
v_exp
v_wr netq
end_chain
"""


def test_no_compiler(tmp_path, monkeypatch):
    path = tmp_path / "a-name.with dots.c"
    translate(parse(PLAIN, "p"), Image(), "c", path)
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(UnsupportedError, match=r"expected a C compiler .* or translate to torch"):
        load_concordant(path)


def test_arithmetic_that_is_not_ieee_754_does_not_compile(tmp_path):
    path = tmp_path / "p.c"
    translate(parse(PLAIN, "p"), Image(), "c", path)
    command = [*compiler(), *FLAGS, "-ffast-math", str(path), "-o", str(tmp_path / "out")]
    done = run_tool(command, 100.0)
    assert done.returncode != 0
    assert "expected float and double arithmetic of IEEE 754" in done.stderr
