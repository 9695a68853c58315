"""A package of the layout "make", written by hand to the contract of generated ones: adds two
numbers by a kernel, with the folders, names and includes of a real one."""

from __future__ import annotations

import json

KERNELS = {
    "samebits.h": """\
#ifndef SAMEBITS_H
#define SAMEBITS_H
#include <stdint.h>
#define SAMEBITS_ALIGNED 8
#endif
""",
    "samebits_kernels.h": """\
#ifndef SAMEBITS_KERNELS_H
#define SAMEBITS_KERNELS_H
#include "samebits.h"
#ifdef __cplusplus
extern "C" {
#endif
void samebits_add(const int32_t *a, const int32_t *b, int32_t *sum);
#ifdef __cplusplus
}
#endif
#endif
""",
    "samebits_kernels.c": """\
#include "samebits_kernels.h"
#include "samebits_vector.h"

void samebits_add(const int32_t *a, const int32_t *b, int32_t *sum) {
    *sum = samebits_wrap((uint32_t)*a + (uint32_t)*b);
}
""",
    "samebits_integer.h": """\
#ifndef SAMEBITS_INTEGER_H
#define SAMEBITS_INTEGER_H
#include <stdint.h>
static inline int32_t samebits_wrap(uint32_t x) {
    return x < 0x80000000u ? (int32_t)x : -1 - (int32_t)~x;
}
#endif
""",
    "samebits_vector.h": """\
#ifndef SAMEBITS_VECTOR_H
#define SAMEBITS_VECTOR_H
#include "samebits_integer.h"
#endif
""",
    "samebits_io.h": """\
#ifndef SAMEBITS_IO_H
#define SAMEBITS_IO_H
#include <stdint.h>
#include <stdio.h>
static inline size_t samebits_read(int32_t *codes, size_t count) {
    return fread(codes, sizeof *codes, count, stdin);
}
#endif
""",
}

HEADER = """\
#ifndef @M@_H
#define @M@_H
#include <stdint.h>
#include "samebits/samebits.h"
#ifdef __cplusplus
extern "C" {
#endif
#define @M@_ARENA_BYTES 8
typedef int32_t @m@_input0_t;
typedef int32_t @m@_output0_t;
typedef struct {
    int64_t *arena;
} @m@_t;
#define @M@_INSTANCE(name)          \\
    static int64_t name##_arena[1]; \\
    static @m@_t name = {name##_arena}
void @m@_init(@m@_t *net, void *arena);
void @m@_run(const @m@_t *net, const @m@_input0_t *input0, @m@_output0_t *output0);
int @m@_selftest(const @m@_t *net);
#ifdef __cplusplus
}
#endif
#endif
"""

SOURCE = """\
#include "@m@.h"

#include "@m@_constants.h"
#include "samebits/samebits_kernels.h"

void @m@_init(@m@_t *net, void *arena) { net->arena = (int64_t *)arena; }

void @m@_run(const @m@_t *net, const @m@_input0_t *input0, @m@_output0_t *output0) {
    net->arena[0] = input0[0];
    samebits_add(input0, input0 + 1, output0);
}

int @m@_selftest(const @m@_t *net) {
    @m@_output0_t found;
    @m@_run(net, @m@_known, &found);
    return found != @m@_known[2];
}
"""

MAIN = """\
#include <stdio.h>

#include "../@m@.h"
#include "../samebits/samebits_io.h"
#include "@m@_vectors.h"

int main(void) {
    @M@_INSTANCE(net);
    @m@_input0_t input[2];
    @m@_output0_t output;
#ifdef SAMEBITS_TEST
    input[0] = @m@_test_input0[0];
    input[1] = @m@_test_input0[1];
    @m@_run(&net, input, &output);
    printf("%d of 1 outputs differ\\n", output != @m@_test_output0);
    return output != @m@_test_output0 || @m@_selftest(&net);
#else
    while (samebits_read(input, 2) == 2) {
        @m@_run(&net, input, &output);
        fwrite(&output, sizeof output, 1, stdout);
    }
    return 0;
#endif
}
"""


def adder(prefix: str = "kws") -> dict[str, str | bytes]:
    """The files by path."""
    constants = "extern const int32_t @m@_known[3];\n"
    texts = {
        "@m@.h": HEADER,
        "@m@.c": SOURCE,
        "@m@_constants.h": "#include <stdint.h>\n" + constants,
        "@m@_constants.c": '#include "@m@_constants.h"\n\n'
        "const int32_t @m@_known[3] = {40, 2, 42};\n",
        "test/@m@_main.c": MAIN,
        "test/@m@_vectors.h": "static const int32_t @m@_test_input0[2] = {-5, 2};\n"
        "static const int32_t @m@_test_output0 = -3;\n",
        "Makefile": "all:\n\tcc -o @m@ @m@.c @m@_constants.c samebits/*.c test/@m@_main.c\n",
        "README.md": "# @m@\n\nAdds two numbers.\n",
        "report.json": json.dumps(
            {"generator": "samebits", "prefix": "@m@", "stack_cortex_m": 3000}
        ),
        **{f"samebits/{name}": text for name, text in KERNELS.items()},
    }

    def named(text: str) -> str:
        return text.replace("@m@", prefix).replace("@M@", prefix.upper())

    return {
        "model.onnx": b"\x08\x08\xff",
        **{named(path): named(text) for path, text in texts.items()},
    }
