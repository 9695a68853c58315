"""samebits_integer.h against exact rationals, and the layout of the C files."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from samebits import csrc
from samebits.spec.formats import round_ratio

PROBE = """
#include "samebits_integer.h"
#include "shift.h"
int32_t round_32(int32_t v, int32_t s) { return samebits_round32(v, s); }
int64_t round_64(int64_t v, int32_t s) { return samebits_round64(v, s); }
int32_t scale_32(int32_t v, int64_t e) { return scale32(v, shift32_by(e)); }
int64_t scale_64(int64_t v, int64_t e) { return scale64(v, shift_by(e)); }
int64_t quotient(int64_t n, int64_t d) { return samebits_quotient(n, d); }
int64_t clamp(int64_t v, int64_t low, int64_t high) { return samebits_clamp64(v, low, high); }
"""
WIDE = ("round_64", "scale_64", "quotient", "clamp")


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("probe")
    for name, text in csrc.flat(["samebits_integer.h", "training/shift.h"]).items():
        (folder / name).write_text(text)
    (folder / "probe.c").write_text(PROBE)
    command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", "probe.so", "probe.c"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "probe.so"))
    for name in WIDE:
        getattr(library, name).restype = ctypes.c_int64
        getattr(library, name).argtypes = [ctypes.c_int64] * (3 if name == "clamp" else 2)
    library.round_64.argtypes = [ctypes.c_int64, ctypes.c_int32]
    library.scale_32.argtypes = [ctypes.c_int32, ctypes.c_int64]
    return library


def around(limit: int, count: int = 200) -> list[int]:
    """0, both ends, and random numbers of every length, all below `limit` in magnitude."""
    rng = np.random.default_rng(limit % 1000)
    bits = limit.bit_length() - 1
    some = [int(rng.integers(-(1 << b), 1 << b)) for b in rng.integers(1, bits + 1, count)]
    return [0, 1, -1, limit - 1, 1 - limit, *(v for v in some if abs(v) < limit)]


def test_shifts_round_half_to_even(probe: ctypes.CDLL) -> None:
    for s in range(1, 31):
        half = 1 << (s - 1)
        ties = [k * 2 * half + half + d for k in range(-3, 4) for d in (-1, 0, 1)]
        for v in [v for v in (*ties, *around((1 << 31) - half)) if abs(v) + half < 1 << 31]:
            assert probe.round_32(v, s) == round_ratio(v, 1 << s), (v, s)
    for s in range(1, 63):
        half = 1 << (s - 1)
        ties = [k * 2 * half + half + d for k in range(-3, 4) for d in (-1, 0, 1)]
        for v in [v for v in (*ties, *around((1 << 63) - half)) if abs(v) + half < 1 << 63]:
            assert probe.round_64(v, s) == round_ratio(v, 1 << s), (v, s)


def test_scales_of_training_are_the_same_rounding(probe: ctypes.CDLL) -> None:
    for exponent in range(-70, 20):
        for v in around(1 << 40):
            wanted = round_ratio(v << max(exponent, 0), 1 << max(-exponent, 0))
            assert probe.scale_64(v, exponent) == wanted, (v, exponent)
    for exponent in range(-40, 10):
        for v in around(1 << 19):
            wanted = round_ratio(v << max(exponent, 0), 1 << max(-exponent, 0))
            assert probe.scale_32(v, exponent) == wanted, (v, exponent)


def test_quotients_of_both_signs(probe: ctypes.CDLL) -> None:
    for denominator in (1, 2, 3, 4, 10, (1 << 31) - 1, 1 << 62, (1 << 63) - 1):
        ties = [k * denominator // 2 for k in range(-9, 10)]
        for v in [v for v in (*ties, *around(1 << 63)) if abs(v) < 1 << 63]:
            assert probe.quotient(v, denominator) == round_ratio(v, denominator), (v, denominator)


def test_clamp(probe: ctypes.CDLL) -> None:
    assert [probe.clamp(v, -3, 5) for v in (-(1 << 62), -3, 0, 5, 1 << 62)] == [-3, -3, 0, 5, 5]


def files() -> list[Path]:
    return sorted(csrc.FOLDER.rglob("*.[ch]"))


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_a_file_says_what_it_computes_and_is_not_long(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("/*"), "expected a head comment"
    assert len(text.splitlines()) <= 450
    assert max(map(len, text.splitlines())) <= 100


def test_no_two_headers_share_an_include_guard() -> None:
    guards = [path.read_text().partition("#ifndef ")[2].split()[0] for path in files()
              if path.suffix == ".h"]  # fmt: skip
    assert len(set(guards)) == len(guards), guards
