"""A small package written by hand to the contract of generated ones: one int8 code in, one out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from samebits.codegen.run.execute import Executable, build
from samebits.codegen.run.interface import Interface
from samebits.codegen.run.targets import Target
from samebits.ir import Value

INTERFACE = Interface("model", (Value("x", "int8", (1, 1)),), (Value("y", "int8", (1, 1)),))
CODES = np.arange(-128, 128).astype(np.int8)
IDENTITY = "*output0 = *input0;"

HEADER = """
#ifndef MODEL_H
#define MODEL_H
#include <stdint.h>
typedef struct {
    int unused;
} model_t;
#define MODEL_INSTANCE(name) static const model_t name = {0}
#define MODEL_LAYERS 1
typedef int8_t model_input0_t;
typedef int8_t model_output0_t;
void model_run(const model_t *net, const model_input0_t *input0, model_output0_t *output0);
#ifdef SAMEBITS_TRACE
void model_trace(uint32_t layer, const void *codes, uint32_t count, uint32_t width);
#endif
#endif
"""

MAIN = """
#include <stdio.h>
#include "../model.h"
MODEL_INSTANCE(net);
int main(void)
{
    int byte;
    while ((byte = getchar()) != EOF) {
        const int8_t input = (int8_t)(byte > 127 ? byte - 256 : byte);
        int8_t output;
        model_run(&net, &input, &output);
        putchar(output);
    }
    return 0;
}
"""


def write_package(folder: Path, body: str, before: str = "") -> None:
    """A package whose model_run is `body`, with declarations `before` it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.h").write_text(HEADER)
    (folder / "test").mkdir(exist_ok=True)
    (folder / "test" / "model_main.c").write_text(MAIN)
    inputs = "const model_t *net, const model_input0_t *input0"
    run = f"void model_run({inputs}, model_output0_t *output0)\n{{\n(void)net;"
    (folder / "model.c").write_text(f'#include "model.h"\n{before}\n{run}\n{body}\n}}\n')


def skip_unless_available(target: Target) -> None:
    """Skips the test, with the reason, where the target's tools are missing."""
    reason = target.unavailable()
    if reason:
        pytest.skip(reason)


def build_body(body: str, target: Target, folder: Path, before: str = "") -> Executable:
    """The program whose model_run is `body`; skips the test where the target is missing."""
    skip_unless_available(target)
    write_package(folder / "package", body, before)
    return build(folder / "package", target, folder / "work", INTERFACE)
