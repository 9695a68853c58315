"""The harness of a package for machines with an operating system, and its Makefile."""

from __future__ import annotations

from samebits.codegen.memory import byte_size
from samebits.codegen.names import wrapped_list
from samebits.codegen.stream import sequence_test
from samebits.ir.graph import Graph

MAIN = """\
/* Harness. Codes are raw little-endian bytes, all inputs of a sample one after the other.
 *
 *   default            samples from standard input until its end, outputs to standard output
 *   -DSAMEBITS_TRACE   instead of outputs, for every sample and layer: index, FNV-1a hash, count
 *   -DSAMEBITS_TRACE=2 and the codes in hexadecimal
 *   -DSAMEBITS_TEST    runs @model@_vectors.h and prints how many outputs differ */
#include <stdio.h>

#include "../@model@.h"
#include "../samebits/samebits_io.h"

@MODEL@_INSTANCE(net);
@buffers@
#ifdef SAMEBITS_TRACE
void @model@_trace(@trace@) {
    const uint64_t hash = samebits_fnv1a(codes, width, count);
    printf("%lu %08lx%08lx %lu", (unsigned long)layer, (unsigned long)(hash >> 32),
           (unsigned long)(hash & 0xffffffffu), (unsigned long)count);
#if SAMEBITS_TRACE == 2
    {
        uint32_t i, b;
        putchar(' ');
        for (i = 0; i < count; i++) {
            for (b = 0; b < width; b++) {
                printf("%02x", (unsigned)samebits_io_byte(codes, width, i, b));
            }
        }
    }
#endif
    putchar('\\n');
}
#endif

#ifdef SAMEBITS_TEST
#include "@model@_vectors.h"

@sequence@int main(void) {
    unsigned long differ = @selftest@, total = 1;
    uint32_t sample, i;
    for (sample = 0; sample < @MODEL@_SAMPLES; sample++) {
        @model@_run(@test_arguments@);
@compare@    }
@sequences@    printf("%lu of %lu outputs differ\\n", differ, total);
    return differ != 0;
}
#else
/* One tensor from standard input: 1, or 0 at the end of the file, or -1 where it ends inside. */
static int read_codes(uint8_t *bytes, uint32_t width, uint32_t count, void *codes) {
    const size_t wanted = (size_t)width * count, found = fread(bytes, 1, wanted, stdin);
    if (found != wanted) return found == 0 ? 0 : -1;
    samebits_decode(bytes, width, count, codes);
    return 1;
}

#ifndef SAMEBITS_TRACE
static int write_codes(const void *codes, uint32_t width, uint32_t count, uint8_t *bytes) {
    const size_t wanted = (size_t)width * count;
    samebits_encode(codes, width, count, bytes);
    return fwrite(bytes, 1, wanted, stdout) == wanted;
}
#endif

int main(void) {
    for (;;) {
@read@        @model@_run(@arguments@);
#ifndef SAMEBITS_TRACE
@write@#endif
@once@    }
}
#endif
"""

MAKEFILE = """\
# make            the harness `@model@`, which maps samples on standard input to @results@
# make test       runs the test vectors
# OPTIMIZE="-O3 -march=native" uses this machine's vector instructions; the codes stay the same.
CC ?= cc
OPTIMIZE ?= @optimize@
CFLAGS ?= -std=c99 -Wall -Wextra -Wconversion -Wshadow -pedantic
# Kernels that the model does not call are left out; empty for a compiler without sections.
SECTIONS ?= -ffunction-sections -fdata-sections \\
\t-Wl,$(if $(filter Darwin,$(shell uname -s)),-dead_strip,--gc-sections)
SOURCES = $(wildcard *.c samebits/*.c) test/@model@_main.c
HEADERS = $(wildcard *.h samebits/*.h test/*.h)

all: @model@

@model@: $(SOURCES) $(HEADERS)
\t$(CC) $(CFLAGS) $(OPTIMIZE) $(SECTIONS) -o $@ $(SOURCES)

test: @model@_test
\t./@model@_test

@model@_test: $(SOURCES) $(HEADERS)
\t$(CC) $(CFLAGS) $(OPTIMIZE) $(SECTIONS) -DSAMEBITS_TEST -o $@ $(SOURCES)

clean:
\trm -f @model@ @model@_test

.PHONY: all test clean
"""


def main_source(
    graph: Graph, prefix: str, *, selftest: bool = True, raw: bool = False, image: bool = False
) -> str:
    """test/<prefix>_main.c of a graph.

    selftest: whether the package has a model_selftest, which then is part of the test; raw: whether
    it has a model_predict_selftest; image: whether its weights are one
    """
    upper = prefix.upper()
    inputs = [graph.values[name] for name in graph.inputs]
    outputs = [graph.values[name] for name in graph.outputs]
    widths = {v.name: byte_size(v) // v.size for v in (*inputs, *outputs)}
    largest = max(byte_size(v) for v in (*inputs, *outputs))
    buffers, reads, writes, compare, test = [], [], [], [], []
    for i, value in enumerate(inputs):
        buffers.append(f"static {prefix}_input{i}_t input{i}[{upper}_INPUT{i}_SIZE];")
        wrong = "return state < 0 ? 2 : 0;" if i == 0 else "return 2;"
        state = "const int state = " if i == 0 else ""
        call = f"read_codes(staging, {widths[value.name]}, {upper}_INPUT{i}_SIZE, input{i})"
        if state:
            reads.append(f"        {state}{call};\n        if (state != 1) {wrong}\n")
        else:
            reads.append(f"        if ({call} != 1) {wrong}\n")
        test.append(f"{prefix}_test_input{i} + sample * {upper}_INPUT{i}_SIZE")
    for i, value in enumerate(outputs):
        buffers.append(f"static {prefix}_output{i}_t output{i}[{upper}_OUTPUT{i}_SIZE];")
        writes.append(
            f"        if (!write_codes(output{i}, {widths[value.name]}, "
            f"{upper}_OUTPUT{i}_SIZE, staging)) return 2;\n"
        )
        compare.append(
            f"        for (i = 0; i < {upper}_OUTPUT{i}_SIZE; i++, total++) {{\n"
            f"            differ += output{i}[i] != "
            f"{prefix}_test_output{i}[sample * {upper}_OUTPUT{i}_SIZE + i];\n"
            "        }\n"
        )
        test.append(f"output{i}")
    pairs = (("input", inputs), ("output", outputs))
    own = [f"{kind}{i}" for kind, values in pairs for i in range(len(values))]
    arguments = ["&net", *own]
    tested = f"{prefix}_selftest("
    indent = len("    unsigned long differ = (unsigned long)") + len(tested)
    trace = ["uint32_t layer", "const void *codes", "uint32_t count", "uint32_t width"]
    return filled(
        MAIN,
        {
            "model": prefix,
            "MODEL": upper,
            "buffers": "\n".join(buffers) + _staging(largest),
            "read": "".join(reads),
            "write": "".join(writes),
            "compare": "".join(compare),
            "arguments": wrapped_list(arguments, 8 + len(f"{prefix}_run(")),
            "trace": wrapped_list(trace, len(f"void {prefix}_trace(")),
            "selftest": f"(unsigned long){tested}{wrapped_list(arguments, indent)})"
            if selftest
            else "0",
            "test_arguments": wrapped_list(["&net", *test], 8 + len(f"{prefix}_run(")),
            "sequence": (sequence_test(graph, prefix, image) + "\n" if graph.states else "")
            + (f"static {prefix}_answer_t answer;\n\n" if raw else ""),
            "sequences": ("    differ += sequence_differs(&total);\n" if graph.states else "")
            + (
                f"    differ += (unsigned long){prefix}_predict_selftest(&net, &answer);\n"
                if raw
                else ""
            ),
            "once": "" if inputs else "        return 0;\n",
        },
    )


def _staging(largest: int) -> str:
    """Bytes of the largest tensor, for the harness alone."""
    return f"\n#ifndef SAMEBITS_TEST\nstatic uint8_t staging[{largest}];\n#endif\n"


def makefile(prefix: str, *, results: str = "outputs", optimize: str = "-O3") -> str:
    """Makefile of a package whose main files are `prefix`.c and .h.

    results: what the harness writes, for the head comment; optimize: the default of OPTIMIZE.
    """
    return filled(MAKEFILE, {"model": prefix, "results": results, "optimize": optimize})


def filled(template: str, parts: dict[str, str]) -> str:
    """The template with every @key@ replaced by its part."""
    for key, text in parts.items():
        template = template.replace(f"@{key}@", text)
    return template
