"""Mistakes planted in the kernels in Triton: a test notices each.

Each is one change of the text of one kernel, made in a copy of the package, against which tests run
in a process of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import interpreted
import samebits

pytest.importorskip("triton", reason=interpreted.MISSING)

HERE = Path(__file__).parent
BOUNDARY = "test_pointwise.py::test_requantize_chooses_the_exponent_at_the_boundary"
SELF_TEST = "test_triton.py::test_the_self_test_passes"
ENDS = "test_late.py::test_optimizers_at_their_ends"
CAPTURED = "test_late.py::test_a_captured_step_gives_the_same_bits"
PLANTED = {
    "ties go up": (
        "integers", "(half & (inexact | quotient) & 1)", "(half & 1)", BOUNDARY
    ),
    "a shift too small": (
        "integers", "tl.where(tl.where(s > 0, large, small), s, s + 1)", "s", BOUNDARY
    ),
    "digits without signs": (
        "integers", "(v.to(tl.uint32) + 0x80808080) ^ 0x80808080", "v.to(tl.uint32)", SELF_TEST
    ),
    "a column too many": (
        "products", "(z >= 0) & (z < W)\n        a =", "(z >= 0) & (z <= W)\n        a =", SELF_TEST
    ),
    "a phase of a stride": (
        "products", "(py + PH * (SH - 1)) % SH", "(py + PH) % SH", "test_conv.py::test_geometries"
    ),
    "a digit left out": (
        "products", "if top > 0x7F7F:", "if top > 0x7F7FFF:",
        "test_conv.py::test_gradients_that_do_not_fill_their_type",
    ),
    "digit sums that nobody carries": (
        "parts", "chunk if padded > chunk else 0", "0",
        "test_conv.py::test_sums_beyond_32_bits[triton-1-135,424 terms]",
    ),
    "one exponent for all samples": (
        "norms", "number(e_z + sample * step, e_z_by)", "number(e_z, e_z_by)",
        "test_norm.py::test_samples_with_exponents_of_their_own",
    ),
    "a variance below zero": (
        "norms", "tl.where(high < 0, 0.0, ldexp(", "tl.where(high < -9, 0.0, ldexp(",
        "test_norm.py::test_a_variance_below_zero_is_zero",
    ),
    "exponents of other rows": ("updates", "e_w + i // per", "e_w + i // per * 0", ENDS),
    "rows that all move as one": (
        "updates", "    own += tl.program_id(0) * _NUMBERS\n", "", ENDS
    ),
    "sums of codes that are none": (
        "norms", "tl.maximum(tl.max(tl.maximum(low, high), 0), 0)",
        "tl.max(tl.maximum(low, high), 0)", "test_norm.py::test_ties_are_rounded_to_even",
    ),
    "other random bits": (
        "updates", "0x9E37) & 0xFFFF", "0x9E39) & 0xFFFF", "test_update.py::test_sgd_in_one_pass"
    ),
    "a bound of updates twenty bits too low": (
        "updates", "(top >> 9) + 26 - 46, 0)", "(top >> 9) + 26 - 26, 0)",
        ENDS,
    ),
    "a step that ends where the flag is up": (
        "updates", "    if tl.load(flag) == 0:\n        if KEEPS", "    if True:\n        if KEEPS",
        "test_triton.py::test_a_step_out_of_range_changes_nothing",
    ),
    "other random bits of Adam": ("adam", "0x85EB", "0x85ED", ENDS),
    "a rounding of Adam": (
        "adam", "(1 << 42) - 1 + (kept & 1)", "(1 << 42)",
        "test_late.py::test_codes_of_moments_at_their_ties",
    ),
    "a square cut off": (
        "clipping", "lead |= (rest != 0).to(tl.int64)", "lead |= 0",
        "test_late.py::test_a_norm_is_rounded_by_all_that_its_sum_has",
    ),
    "slots that nothing clears": ("launch", "    own.memory.zero_()\n", "", CAPTURED),
    "a coefficient that stays": (
        "steps", "made.known[group] != own", "not made.known[group]",
        "test_late.py::test_steps_of_an_engine_equal_the_cpus_and_wait_for_nothing[clip]",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package, to be changed."""
    folder = tmp_path_factory.mktemp("planted") / "samebits"
    shutil.copytree(Path(samebits.__file__).parent, folder)
    return folder


def test_every_mistake_changes_what_stands():
    for name, (module, old, new, _) in PLANTED.items():
        text = Path(samebits.__file__).parent.joinpath(f"kernels/triton/{module}.py").read_text()
        assert text.count(old) == 1, name
        assert text.replace(old, new) != text, name


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_noticed(package, name):
    module, old, new, tests = PLANTED[name]
    file = package / "kernels" / "triton" / f"{module}.py"
    text = file.read_text()
    file.write_text(text.replace(old, new))
    try:
        options = ("-q", "-x", "-p", "no:cacheprovider", "-m", "", "-k", "triton or late")
        command = [sys.executable, "-m", "pytest", *options, HERE / tests]
        path = os.pathsep.join((str(package.parent), str(HERE.parent)))
        done = subprocess.run(
            command,
            cwd=HERE.parents[1],
            env=os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
    finally:
        file.write_text(text)
    assert done.returncode == 1, done.stdout[-2000:]
