"""C text of a call list: a pure function of the calls and their memory layout.

Every name is the prefix with an index; every number is printed by `call_text.number`.
"""

from __future__ import annotations

from collections.abc import Sequence

from samebits.codegen import stream
from samebits.codegen.blocks import StepBlocks
from samebits.codegen.call_text import CallWriter, Tables, aligned, numbers
from samebits.codegen.lowering.calls import Array, CallList, KernelCall
from samebits.codegen.lowering.move import copied
from samebits.codegen.memory import MemoryLayout, Place, byte_size
from samebits.codegen.names import CTYPES, wrapped_list
from samebits.ir.value import Value


def header(calls: CallList, layout: MemoryLayout, prefix: str) -> str:
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
    for kind, names in (("input", calls.graph.inputs), ("output", calls.graph.outputs)):
        for index, name in enumerate(names):
            value = calls.graph.values[name]
            lines.append(f"typedef {CTYPES[value.dtype]} {prefix}_{kind}{index}_t;")
            lines.append(f"#define {upper}_{kind.upper()}{index}_SIZE {value.size}")
    lines += [
        f"#define {upper}_INPUTS {len(calls.graph.inputs)}",
        f"#define {upper}_OUTPUTS {len(calls.graph.outputs)}",
        f"#define {upper}_ARENA_BYTES {layout.plan.peak}",
        f"#define {upper}_SCRATCH_BYTES {layout.scratch}",
        f"#define {upper}_LAYERS {len(calls.entries)}",
        "",
        "#ifdef SAMEBITS_TRACE",
        "/* Called after every layer: `count` codes of `width` bytes, in this machine's order. */",
        "void samebits_trace(uint32_t layer, const void *codes, uint32_t count, uint32_t width);",
        "#endif",
        "",
        "/* Not reentrant: the arena is static. Outputs must not overlap inputs. */",
        f"void {prefix}_run({_parameters(calls, prefix)});",
        "",
        *stream.declarations(calls.graph, prefix),
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def source(
    calls: CallList, layout: MemoryLayout, blocked: StepBlocks | None, prefix: str, tables: Tables
) -> str:
    """<prefix>.c: parameters of the kernels and model_run, and of a step graph what streams.

    Fills `tables` with the constant arrays that the text refers to.
    """
    writer = CallWriter(prefix, tables)
    body = _Body(calls, layout, prefix, writer)
    lines = [
        f'#include "{prefix}.h"',
        "",
        '#include "samebits_kernels.h"',
        '#include "tables.h"',
        "",
    ]
    lines += writer.declared
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
        f"void {prefix}_run({_parameters(calls, prefix)}) {{",
        *body.lines,
        "}",
        *stream.definitions(calls, blocked, prefix, writer),
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


def _parameters(calls: CallList, prefix: str) -> str:
    inputs = [f"const {prefix}_input{i}_t *input{i}" for i in range(len(calls.graph.inputs))]
    outputs = [f"{prefix}_output{i}_t *output{i}" for i in range(len(calls.graph.outputs))]
    return wrapped_list([*inputs, *outputs], len(f"void {prefix}_run("))


class _Body:
    """The lines of model_run: the calls of every entry, and after each the trace of its codes."""

    def __init__(
        self, calls: CallList, layout: MemoryLayout, prefix: str, writer: CallWriter
    ) -> None:
        """Fills `lines`; `writer` declares the parameters of the calls on the way.

        Inputs that no call reads are named once, so that compilers do not warn of them. Outputs
        that are inputs, constants or other outputs are copied at the end.
        """
        self.calls, self.layout, self.prefix, self.writer = calls, layout, prefix, writer
        self.lines: list[str] = []
        read = {n for entry in calls.entries for n in entry.reads} | {n for _, n in layout.copies}
        places = [layout.places[name] for name in read]
        places += [layout.places[entry.value] for entry in calls.entries if entry.view_of]
        for index in range(len(calls.graph.inputs)):
            if Place("input", index) not in places:
                self.lines.append(f"    (void)input{index};")
        for index, entry in enumerate(calls.entries):
            for call in entry.calls:
                self._call(call, self._pointer(entry.value))
            value = calls.graph.values[entry.value]
            width = byte_size(value) // value.size
            codes = self._pointer(entry.value)
            self.lines.append(f"    LAYER({index}u, {codes}, {value.size}u, {width}u)")
        for index, name in layout.copies:
            self._call(copied(calls.graph.values[name]), f"output{index}")

    def _pointer(self, name: str) -> str:
        place = self.layout.places[name]
        if place.kind == "constant":
            array = self.calls.constant(name)
            assert array is not None
            return self.writer.tables.name(array)
        if place.kind == "arena":
            return f"{self.prefix}_arena.bytes + {place.at}"
        return f"{place.kind}{place.at}"

    def _call(self, call: KernelCall, output: str) -> None:
        self.lines += self.writer.text(call, self._pointer, output, f"{self.prefix}_scratch.bytes")
