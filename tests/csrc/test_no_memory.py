"""Kernels of products whose allocations fail, one after the other: they say so and end."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from samebits import csrc

MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "conv.h"
int64_t samebits_conv(const Conv *, const int8_t *, const int8_t *, int32_t *, int);
int64_t samebits_conv_input_grad(const Conv *, const int16_t *, const int8_t *, void *, int, int);
int64_t samebits_conv_weight_grad(const Conv *, const void *, int, const int8_t *, void *, int,
                                  int);
int64_t samebits_depthwise_weight_grad(const Conv *, const void *, int, const int8_t *, int64_t *,
                                       int);
int64_t samebits_product(const int8_t *, const int8_t *, int64_t, int64_t, int64_t, int32_t *, int);

static int left, failed;

/* What scratch of conv.h takes. */
void *allocate(size_t alignment, size_t bytes) {
    if (__sync_fetch_and_sub(&left, 1) == 0) { failed = 1; return NULL; }
    return aligned_alloc(alignment, bytes);
}

int main(void) {
    static int8_t x[1 << 17], w[1 << 17];
    static int32_t g[1 << 18];
    static int64_t out[1 << 18];
    Conv s = {.n = 9, .h = 14, .w = 14, .ci = 32, .oh = 14, .ow = 14, .co = 32, .kh = 3, .kw = 3,
              .stride_h = 1, .stride_w = 1, .pad_h = 1, .pad_w = 1, .dil_h = 1, .dil_w = 1,
              .groups = 1};
    Conv few = s, each = s;
    few.ci = 3, each.groups = 32;
    for (int kernel = 0; kernel < 6; kernel++)
        for (int threads = 1; threads < 3; threads++)
            for (int n = 0;; n++) {
                int64_t found = 0;
                left = n, failed = 0;
                if (kernel == 0) found = samebits_conv(&s, x, w, (int32_t *)out, threads);
                if (kernel == 1)
                    found = samebits_conv_input_grad(&s, (int16_t *)g, w, out, 0, threads);
                if (kernel == 2) found = samebits_conv_weight_grad(&s, g, 32, x, out, 1, threads);
                if (kernel == 3) found = samebits_conv_weight_grad(&few, g, 16, x, out, 1, threads);
                if (kernel == 4)
                    found = samebits_depthwise_weight_grad(&each, g, 32, x, out, threads);
                if (kernel == 5)
                    found = samebits_product(x, w, 9, 64, 70, (int32_t *)out, threads);
                if (found != (failed ? -1 : 0)) {
                    printf("kernel %d, %d threads, allocation %d: %lld\\n", kernel, threads, n,
                           (long long)found);
                    return 1;
                }
                if (!failed) break;
            }
    return 0;
}
"""
FILES = ("conv", "conv_weight", "depthwise", "product")


def test_every_allocation_may_fail(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = Path(csrc.__file__).parent
    (tmp_path / "main.c").write_text(MAIN)
    command = [compiler, "-O1", "-w", "-fopenmp", f"-I{folder}", f"-I{folder / 'training'}"]
    for name in FILES:
        source = folder / "training" / f"{name}.c"
        own = ["-Daligned_alloc=allocate", "-c", str(source), "-o", f"{name}.o"]
        subprocess.run([*command, *own], cwd=tmp_path, check=True)
    objects = [f"{name}.o" for name in FILES]
    subprocess.run([*command, "main.c", *objects, "-o", "all"], cwd=tmp_path, check=True)
    ended = subprocess.run(["./all"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
