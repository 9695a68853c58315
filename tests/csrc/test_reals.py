"""samebits_code and samebits_real against exact fractions, and the two functions in Python."""

from __future__ import annotations

import itertools
import shutil
import struct
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from c_files import write_files
from samebits.codegen.header import float_literal, scale_parts
from samebits.codegen.packaging.package import library
from samebits.csrc import compiler
from samebits.ir.integer.define import limits
from samebits.ir.value import Quantization, Value
from samebits.spec.formats import round_binary32
from samebits.verification.inputs import dequantize, quantize_samples

PROGRAM = r"""
#include <stdio.h>
#include "samebits/samebits.h"
int main(void) {
    union { float real; uint32_t bits; } u;
    unsigned long bits, m;
    long e, zero, low, high, code;
    char what;
    while (scanf(" %c %lu %ld %lu %ld %ld %ld %ld", &what, &bits, &code, &m, &e, &zero, &low,
                 &high) == 8) {
        if (what == 'c') {
            u.bits = (uint32_t)bits;
            printf("%ld\n", (long)samebits_code(u.real, (uint32_t)m, (int32_t)e, (int32_t)zero,
                                                (int32_t)low, (int32_t)high));
        } else {
            u.real = samebits_real((int32_t)code, (uint32_t)m, (int32_t)e, (int32_t)zero);
            printf("%lu\n", (unsigned long)u.bits);
        }
    }
    return 0;
}
"""
Case = tuple[str, int, int, int, int, int, int, int]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which(compiler()[0]) is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("reals")
    write_files(folder, {**library(), "all.c": PROGRAM})
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-O0"]
    command = [*compiler(), *flags, "-o", "all", "all.c", "samebits/samebits_kernels.c"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    return folder / "all"


def answers(program: Path, cases: list[Case]) -> list[int]:
    text = "\n".join(" ".join(map(str, case)) for case in cases)
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    return list(map(int, done.stdout.split()))


def compared(program: Path, cases: list[Case], expected: list[int]) -> None:
    found = answers(program, cases)
    assert len(found) == len(expected) == len(cases)
    wrong = [(case, e, f) for case, e, f in zip(cases, expected, found, strict=True) if e != f]
    assert not wrong, f"{len(wrong)} of {len(cases)} differ: {wrong[:5]}"


def bits_of(x: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", x))[0])


def value_of(bits: int) -> Fraction:
    return Fraction(struct.unpack("<f", struct.pack("<I", bits))[0])


def code_of(bits: int, m: int, e: int, zero: int, low: int, high: int) -> int:
    exact = value_of(bits) / (m * Fraction(2) ** e)
    return min(max(round(exact) + zero, low), high)  # Python rounds fractions half to even


RANGES = {name: limits(name) for name in ("int8", "uint8", "int16", "uint16", "int32")}
SCALES = [(1, 0), (1, -7), (3, -9), (13421773, -27), (16777215, -24), (5, -160), (1, 100)]
SCALES += [((1 << 31) - 1, -31), (8388609, -149), (1, -149)]


def test_codes_of_reals(program: Path) -> None:
    """Edges of binary32, ties between codes with their neighbours, and random numbers."""
    rng = np.random.default_rng(1)
    edges = [0, 1, 2, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x3F800000, 0x4B000001]
    edges += rng.integers(0, 0x7F800000, 40).tolist()
    cases: list[Case] = []
    for (m, e), (low, high) in itertools.product(SCALES, RANGES.values()):
        for zero in (0, low, high, (low + high) // 2 + 3):
            points = list(edges)
            for code in (0, 1, -1, 5, -8, low - zero, high - zero):
                half = (code + Fraction(1, 2)) * m * Fraction(2) ** e
                if abs(half) < 2**126:
                    bits = bits_of(float(half))
                    points += [(bits & 0x7FFFFFFF) + step for step in (-1, 0, 1) if bits]
            finite = [bits for bits in points if 0 <= bits < 0x7F800000]
            for bits, sign in itertools.product(finite, (0, 1 << 31)):
                cases.append(("c", bits | sign, 0, m, e, zero, low, high))
    compared(program, cases, [code_of(c[1], *c[3:]) for c in cases])


def test_codes_beyond_numbers(program: Path) -> None:
    """Infinities are held; what is no number counts as 0."""
    cases: list[Case] = [
        ("c", bits, 0, 3, -9, 7, -128, 127)
        for bits in (0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF)
    ]
    compared(program, cases, [127, -128, 7, 7])


def test_reals_of_codes(program: Path) -> None:
    """Rounded once, subnormal numbers and those beyond binary32 among them."""
    rng = np.random.default_rng(2)
    cases: list[Case] = []
    expected = []
    for (m, e), (low, high) in itertools.product(SCALES, RANGES.values()):
        codes = {low, high, 0, 1, -1, low + 1, (1 << 24) + 1, (1 << 25) + 2, (1 << 25) + 6}
        codes |= set(rng.integers(low, high, 30).tolist())
        for code, zero in itertools.product(sorted(codes), (0, low, high // 3)):
            if low <= code <= high:
                cases.append(("r", 0, code, m, e, zero, 0, 0))
                exact = (code - zero) * m * Fraction(2) ** e
                magnitude = round_binary32(abs(exact))
                infinite = abs(exact) >= Fraction(2) ** 128 - Fraction(2) ** 103
                bits = 0x7F800000 if infinite else bits_of(float(magnitude))
                expected.append(bits | (1 << 31 if exact < 0 else 0))
    compared(program, cases, expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_the_functions_of_python(dtype: str, program: Path) -> None:
    """What a header's helpers give is what `quantize_samples` and `dequantize` do."""
    scale, zero = Fraction(float(np.float32(0.0371))), 5
    m, e = scale_parts(scale) or (0, 0)
    low, high = limits(dtype)
    value = Value("x", dtype, (400,), Quantization(scale, zero))
    x = np.random.default_rng(3).normal(size=400).astype(np.float32) * np.float32(20)
    x[:100] = (np.arange(-50, 50) + 0.5) * float(scale)
    codes = quantize_samples(x, value)
    cases: list[Case] = [("c", bits_of(float(v)), 0, m, e, zero, low, high) for v in x]
    compared(program, cases, codes.tolist())
    cases = [("r", 0, int(c), m, e, zero, 0, 0) for c in codes]
    compared(program, cases, dequantize(codes, value).view(np.uint32).tolist())


def test_scales_as_odd_numbers_and_powers() -> None:
    assert scale_parts(Fraction(3, 8)) == (3, -3)
    assert scale_parts(Fraction(48)) == (3, 4)
    assert scale_parts(Fraction((1 << 31) - 1, 4)) == ((1 << 31) - 1, -2)
    assert scale_parts(Fraction((1 << 31) + 1, 4)) is None
    assert scale_parts(Fraction(1, 3)) is None
    for x in (0.1, 1e-40, 3.4e38, 1 / 3):
        single = np.float32(x)
        assert np.float32(float_literal(Fraction(float(single))).rstrip("f")) == single
