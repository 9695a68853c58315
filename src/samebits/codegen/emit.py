"""C text of a program: a pure function of the program and its memory layout.

Every name is the prefix with an index; every number is printed by `_number`.
"""

from __future__ import annotations

from collections.abc import Sequence

from samebits.codegen import stream
from samebits.codegen.blocks import Blocks
from samebits.codegen.calls import Calls, Tables, aligned, numbers
from samebits.codegen.lowering.move import copied
from samebits.codegen.lowering.program import Array, Call, Program
from samebits.codegen.memory import Layout, Place, byte_size
from samebits.codegen.names import CTYPES, wrapped_list
from samebits.ir.value import Value


def header(program: Program, layout: Layout, prefix: str) -> str:
    """<prefix>.h: types and sizes of inputs and outputs, and model_run."""
    upper = prefix.upper()
    lines = [
        "/* An integer model. Codes of inputs and outputs; all memory is static. */",
        f"#ifndef {upper}_H",
        f"#define {upper}_H",
        "",
        "#include <stdint.h>",
        "",
    ]
    for kind, names in (("input", program.graph.inputs), ("output", program.graph.outputs)):
        for index, name in enumerate(names):
            value = program.graph.values[name]
            lines.append(f"typedef {CTYPES[value.dtype]} {prefix}_{kind}{index}_t;")
            lines.append(f"#define {upper}_{kind.upper()}{index}_SIZE {value.size}")
    lines += [
        f"#define {upper}_INPUTS {len(program.graph.inputs)}",
        f"#define {upper}_OUTPUTS {len(program.graph.outputs)}",
        f"#define {upper}_ARENA_BYTES {layout.plan.peak}",
        f"#define {upper}_SCRATCH_BYTES {layout.scratch}",
        f"#define {upper}_LAYERS {len(program.steps)}",
        "",
        "#ifdef SAMEBITS_TRACE",
        "/* Called after every layer: `count` codes of `width` bytes, in this machine's order. */",
        "void samebits_trace(uint32_t layer, const void *codes, uint32_t count, uint32_t width);",
        "#endif",
        "",
        "/* Not reentrant: the arena is static. Outputs must not overlap inputs. */",
        f"void {prefix}_run({_parameters(program, prefix)});",
        "",
        *stream.declarations(program.graph, prefix),
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def source(
    program: Program, layout: Layout, blocked: Blocks | None, prefix: str, tables: Tables
) -> str:
    """<prefix>.c: parameters of the kernels and model_run, and of a step graph what streams. Fills
    `tables`."""
    calls = Calls(prefix, tables)
    body = _Body(program, layout, prefix, calls)
    lines = [
        f'#include "{prefix}.h"',
        "",
        '#include "samebits_kernels.h"',
        '#include "tables.h"',
        "",
    ]
    lines += calls.declared
    if layout.plan.peak:
        lines.append(
            "static union {\n"
            f"    uint8_t bytes[{layout.plan.peak}];\n"
            "    int64_t alignment;\n"
            f"}} {prefix}_arena;\n"
        )
    if layout.scratch:
        lines.append(
            "static union {\n"
            f"    uint8_t bytes[{layout.scratch}];\n"
            "    int64_t alignment;\n"
            f"}} {prefix}_scratch;\n"
        )
    lines += [
        "#ifdef SAMEBITS_TRACE",
        "#define LAYER(index, codes, count, width) samebits_trace(index, codes, count, width);",
        "#else",
        "#define LAYER(index, codes, count, width)",
        "#endif",
        "",
        f"void {prefix}_run({_parameters(program, prefix)}) {{",
        *body.lines,
        "}",
        *stream.definitions(program, blocked, prefix, calls),
    ]
    return "\n".join(lines) + "\n"


def tables_header(tables: Tables, prefix: str) -> str:
    """tables.h: the constant data that model_run refers to."""
    guard = f"{prefix.upper()}_TABLES_H"
    lines = [f"#ifndef {guard}", f"#define {guard}", "", "#include <stdint.h>", ""]
    lines += [
        "/* Loads of whole vectors stay within cache lines. */",
        "#if defined(__GNUC__) && defined(__AVX512F__)",
        f"#define {aligned(prefix)} __attribute__((aligned(64)))",
        "#else",
        f"#define {aligned(prefix)}",
        "#endif",
        "",
    ]
    for name, array in tables.arrays:
        lines.append(f"extern const {CTYPES[array.dtype.name]} {name}[{array.size}];")
    return "\n".join([*lines, "", "#endif"]) + "\n"


def tables_source(tables: Tables) -> str:
    """tables.c: the constant data."""
    parts = ['#include "tables.h"\n']
    for name, array in tables.arrays:
        ctype = CTYPES[array.dtype.name]
        lines = f"{aligned(tables.prefix)} " if array.nbytes >= 64 else ""
        parts.append(f"\nconst {ctype} {lines}{name}[{array.size}] = {{\n{numbers(array)}}};\n")
    if not tables.arrays:  # C has no empty files
        parts.append(f"\ntypedef int {tables.prefix}_no_tables;\n")
    return "".join(parts)


def vectors_header(
    inputs: Sequence[tuple[Value, Array]],
    outputs: Sequence[tuple[Value, Array]],
    sequence: Sequence[tuple[str, Array]],
    prefix: str,
) -> str:
    """test_vectors.h: samples of inputs and the outputs they must give; of a step graph also a
    sequence, as what `stream.sequence_test` names and its codes."""
    upper = prefix.upper()
    samples = inputs[0][1].size // inputs[0][0].size if inputs else 1
    parts = [f"#ifndef {upper}_TEST_VECTORS_H\n#define {upper}_TEST_VECTORS_H\n\n"]
    parts.append(f'#include "{prefix}.h"\n\n#define {upper}_SAMPLES {samples}\n')
    for kind, values in (("input", inputs), ("output", outputs)):
        for index, (_, array) in enumerate(values):
            parts.append(
                f"\nstatic const {prefix}_{kind}{index}_t {prefix}_test_{kind}{index}"
                f"[{array.size}] = {{\n{numbers(array.reshape(-1))}}};\n"
            )
    if sequence:
        parts.append(f"\n#define {upper}_STEPS {stream.STEPS}\n")
    for name, array in sequence:
        ctype = CTYPES[array.dtype.name]
        parts.append(
            f"\nstatic const {ctype} {prefix}_sequence_{name}[{array.size}] = "
            f"{{\n{numbers(array.reshape(-1))}}};\n"
        )
    parts.append("\n#endif\n")
    return "".join(parts)


# --- model_run ------------------------------------------------------------------------------


def _parameters(program: Program, prefix: str) -> str:
    inputs = [f"const {prefix}_input{i}_t *input{i}" for i in range(len(program.graph.inputs))]
    outputs = [f"{prefix}_output{i}_t *output{i}" for i in range(len(program.graph.outputs))]
    return wrapped_list([*inputs, *outputs], len(f"void {prefix}_run("))


class _Body:
    """The lines of model_run: the calls of every step."""

    def __init__(self, program: Program, layout: Layout, prefix: str, calls: Calls) -> None:
        self.program, self.layout, self.prefix, self.calls = program, layout, prefix, calls
        self.lines: list[str] = []
        read = {n for step in program.steps for n in step.reads} | {n for _, n in layout.copies}
        places = [layout.places[name] for name in read]
        places += [layout.places[step.value] for step in program.steps if step.view_of]
        for index in range(len(program.graph.inputs)):
            if Place("input", index) not in places:
                self.lines.append(f"    (void)input{index};")
        for index, step in enumerate(program.steps):
            for call in step.calls:
                self._call(call, self._pointer(step.value))
            value = program.graph.values[step.value]
            width = byte_size(value) // value.size
            codes = self._pointer(step.value)
            self.lines.append(f"    LAYER({index}u, {codes}, {value.size}u, {width}u)")
        for index, name in layout.copies:
            self._call(copied(program.graph.values[name]), f"output{index}")

    def _pointer(self, name: str) -> str:
        place = self.layout.places[name]
        if place.kind == "constant":
            array = self.program.constant(name)
            assert array is not None
            return self.calls.tables.name(array)
        if place.kind == "arena":
            return f"{self.prefix}_arena.bytes + {place.at}"
        return f"{place.kind}{place.at}"

    def _call(self, call: Call, output: str) -> None:
        self.lines += self.calls.text(call, self._pointer, output, f"{self.prefix}_scratch.bytes")
