"""The next token in C, against docs/spec/sampling.md in plain integers."""

from __future__ import annotations

import itertools
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from samebits.codegen.lowering.rescale import TYPES
from samebits.spec.sampling import Sampling, sample
from shared_kernels import compile_c, shared_kernels

DRAWS = 6
CALL = """\
    {{
        static const {ctype} logits[{n}] = {{{numbers}}};
        const samebits_sampling how = {{{k}, {m}u, {q}}};
        for (step = 0; step < {draws}u; step++) {{
            printf("%d\\n", (int)samebits_sample(&how, logits, {type}, {n}, {seed}u, step));
        }}
    }}
"""


def cases() -> list[tuple[Sampling, Any, int]]:
    """Random logits of every type, ties, a single one, all or one as candidates; scales from one
    that makes all weights equal to one that leaves the largest alone."""
    rng = np.random.default_rng(5)
    found = []
    scales = (Fraction(1, 1 << 60), Fraction(3, 1 << 14), Fraction(1, 7), Fraction(1 << 40))
    for dtype, n, scale in itertools.product(("int8", "int32", "int64"), (1, 2, 50), scales):
        info = np.iinfo(dtype)
        drawn = rng.integers(info.min, info.max, n, dtype, endpoint=True)
        near = rng.integers(-40, 40, n).astype(dtype)
        ends = np.where(near > 0, info.max, info.min).astype(dtype)
        for logits, k in itertools.product((drawn, near, ends, near * 0), (1, 3, 50, 99)):
            how = Sampling.of(k, scale, Fraction(4, 5))
            found.append((how, logits, int(rng.integers(1 << 63)) * 2))
    return found


def test_tokens_are_those_of_the_definition(cc: str, tmp_path: Path, objects: Path) -> None:
    calls, expected = [], []
    for how, logits, seed in cases():
        numbers = ", ".join(
            f"({n + 1} - 1)" if n < -(2**31) + 1 else str(n) for n in logits.tolist()
        )
        calls.append(
            CALL.format(
                ctype=f"{logits.dtype.name}_t", n=len(logits), numbers=numbers, k=how.k, m=how.m,
                q=how.q, draws=DRAWS, type=TYPES[logits.dtype.name], seed=seed,
            )
        )  # fmt: skip
        expected += [sample(how, logits.tolist(), seed, step) for step in range(DRAWS)]
    body = "".join(calls)
    (tmp_path / "all.c").write_text(
        '#include <stdio.h>\n#include "samebits/samebits_kernels.h"\nint main(void) {\n'
        f"    uint32_t step;\n{body}    return 0;\n}}\n"
    )
    kernels = shared_kernels(cc, tmp_path, objects, "portable", "-O1")
    compile_c(cc, tmp_path, ["all.c", kernels], "all", "-O1")
    done = subprocess.run([tmp_path / "all"], capture_output=True, text=True, check=True)
    assert list(map(int, done.stdout.split())) == expected
