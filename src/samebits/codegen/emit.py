"""C text of a call list: a pure function of the calls and their memory layout.

Every name is the prefix with an index; every number is printed by `call_text.number`. The header
that callers read is `header`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from samebits.codegen import checked, stream
from samebits.codegen.blocks import StepBlocks
from samebits.codegen.call_text import CallWriter, Constants, numbers
from samebits.codegen.header import About, declaration, init_of_image
from samebits.codegen.image import ImageWriter, WeightImage, answer_text
from samebits.codegen.lowering.calls import Array, CallList, CallLoop, KernelCall
from samebits.codegen.lowering.move import copied, starts, unmoved
from samebits.codegen.memory import MemoryLayout, Place, byte_size
from samebits.codegen.names import CTYPES, wrapped_list
from samebits.ir.value import Value


def source(
    calls: CallList,
    layout: MemoryLayout,
    blocked: StepBlocks | None,
    prefix: str,
    about: About,
    constants: Constants,
    answer: int,
) -> str:
    """<prefix>.c: parameters of the kernels, the functions of the header.

    Fills `constants` with the arrays that the text refers to. answer: the hash that model_selftest
    expects.
    """
    image = constants if isinstance(constants, WeightImage) else None
    writer = CallWriter(prefix, constants) if image is None else ImageWriter(prefix, image)
    upper = prefix.upper()
    body = _Body(calls, layout, prefix, writer)
    lines = [
        f'#include "{prefix}.h"',
        "",
        *([f'#include "{prefix}_constants.h"'] if image is None else []),
        '#include "samebits/samebits_kernels.h"',
        "",
        *checked.prototypes(calls.graph, prefix, image is not None),
        *writer.declared,
        "#ifdef SAMEBITS_TRACE",
        f"#define {upper}_LAYER(index, codes, count, width) \\",
        f"    {prefix}_trace(index, codes, count, width);",
        "#else",
        f"#define {upper}_LAYER(index, codes, count, width)",
        "#endif",
        "",
        *_init(prefix, about, image is not None),
        "",
        f"{declaration(calls.graph, prefix, 'run', 'void')} {{",
        *body.lines,
        "}",
        "",
        *_selftest(calls, prefix, answer_text(answer, image)),
        *stream.definitions(calls, layout, blocked, prefix, writer),
        *checked.definitions(calls.graph, prefix, about, answer),
    ]
    return "\n".join(lines) + "\n"


def constants_header(constants: Constants, prefix: str) -> str:
    """<prefix>_constants.h: the constant data that model_run refers to."""
    guard = f"{prefix.upper()}_CONSTANTS_H"
    lines = [f"#ifndef {guard}", f"#define {guard}", "", f'#include "{prefix}.h"', ""]
    for name, array in (*constants.weights, *constants.tables):
        lines.append(f"extern const {CTYPES[array.dtype.name]} {name}[{array.size}];")
    return "\n".join([*lines, "", "#endif"]) + "\n"


def constants_source(constants: Constants, prefix: str) -> str:
    """<prefix>_constants.c: the constant data, weights before tables."""
    parts = [f'#include "{prefix}_constants.h"\n']
    for place, arrays in (("WEIGHTS", constants.weights), ("TABLES", constants.tables)):
        for name, array in arrays:
            aligned = "SAMEBITS_ALIGNED " if array.nbytes >= 64 else ""
            head = f"const {CTYPES[array.dtype.name]} {aligned}{prefix.upper()}_{place}"
            parts.append(f"\n{head} {name}[{array.size}] = {{\n{numbers(array)}}};\n")
    return "".join(parts)


def image_source(image: bytes, prefix: str) -> str:
    """<prefix>_image.c: the image of these weights, for programs that do not replace it."""
    upper, words = prefix.upper(), np.frombuffer(image, "<u8").tolist()
    rows = (words[i : i + 4] for i in range(0, len(words), 4))
    body = ",\n".join(f"    {', '.join(f'0x{word:016x}u' for word in row)}" for row in rows)
    return (
        f'#include "{prefix}.h"\n\n'
        f"const uint64_t {upper}_WEIGHTS {upper}_IMAGE[{len(words)}] = {{\n{body}}};\n"
    )


def vectors_header(
    inputs: Sequence[tuple[Value, Array]],
    outputs: Sequence[tuple[Value, Array]],
    sequence: Sequence[tuple[str, Array]],
    prefix: str,
) -> str:
    """test/<prefix>_vectors.h: samples of inputs and the outputs they must give; of a step graph
    also a sequence, as what `stream.sequence_test` names and its codes."""
    upper = prefix.upper()
    samples = inputs[0][1].size // inputs[0][0].size if inputs else 1
    parts = [f"#ifndef {upper}_VECTORS_H\n#define {upper}_VECTORS_H\n\n"]
    parts.append(f'#include "../{prefix}.h"\n\n#define {upper}_SAMPLES {samples}\n')
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


# --- model_run and model_selftest -----------------------------------------------------------


class _Body:
    """The lines of model_run: the calls of every entry, and after each the trace of its codes."""

    def __init__(
        self, calls: CallList, layout: MemoryLayout, prefix: str, writer: CallWriter
    ) -> None:
        """Fills `lines`; `writer` declares the parameters of the calls on the way.

        Parameters that no call reads are named once, so that compilers do not warn of them. Outputs
        that are inputs, constants or other outputs are copied at the end.
        """
        self.calls, self.layout, self.prefix, self.writer = calls, layout, prefix, writer
        self.unmoved: dict[int, KernelCall] = {}  # copies of loops, by those of the first round
        lines: list[str] = []
        loops = {loop.first: loop for loop in calls.loops}
        index = 0
        while index < len(calls.entries):
            loop = loops.get(index, CallLoop(index, 1, 1))
            lines += self._looped(loop) if loop.count > 1 else self._entry(index)
            index = loop.end
        for index, name in layout.copies:
            lines += self._call(copied(calls.graph.values[name]), f"output{index}", "")
        read = {n for entry in calls.entries for n in entry.reads} | {n for _, n in layout.copies}
        places = [layout.places[name] for name in read]
        places += [layout.places[entry.value] for entry in calls.entries if entry.view_of]
        unused = [] if any("net->" in line for line in lines) else ["net"]
        unused += [
            f"input{index}"
            for index in range(len(calls.graph.inputs))
            if Place("input", index) not in places
        ]
        self.lines = [*writer.locals(), *(f"    (void){name};" for name in unused), *lines]

    def _looped(self, loop: CallLoop) -> list[str]:
        """A loop over its rounds; all of them, where the addresses of one are not linear."""
        rounds = [
            [
                line
                for place in range(loop.period)
                for line in self._entry(start + place, loop.first + place)
            ]
            for start in loop.starts
        ]
        body = merged(rounds)
        if body is None:
            return [line for index in range(loop.first, loop.end) for line in self._entry(index)]
        head = f"    for (uint32_t t = 0; t < {loop.count}u; t++) {{"
        return [head, *(f"    {line}" for line in body), "    }"]

    def _entry(self, index: int, first: int | None = None) -> list[str]:
        """The calls of an entry, and the trace of its codes. first: the entry of the first round of
        a loop, whose parameters are those of this one too."""
        entry = self.calls.entries[index]
        like = entry if first is None else self.calls.entries[first]
        scratch = f"net->arena + {self.layout.scratch[index]}"
        made = [*((call, entry.value) for call in entry.calls), *entry.copies]
        given = [*like.calls, *(call for call, _ in like.copies)]
        lines: list[str] = []
        for (call, target), known in zip(made, given, strict=True):
            if first is None:
                lines += self._call(call, self._pointer(target), scratch)
            else:
                lines += self._call_of_round(call, known, target, scratch)
        value = self.calls.graph.values[entry.value]
        codes = self._pointer(entry.value) if first is None else self._bytes(entry.value)
        width, upper = byte_size(value) // value.size, self.prefix.upper()
        return [*lines, f"    {upper}_LAYER({index}u, {codes}, {value.size}u, {width}u)"]

    def _call_of_round(
        self, call: KernelCall, known: KernelCall, target: str, scratch: str
    ) -> list[str]:
        """A call with the parameters of the first round; where a copy starts is in its pointers."""
        source = aim = 0
        if call.function == "copy":
            source, aim = starts(call)
            known = self.unmoved.setdefault(id(known), unmoved(known))
        return self.writer.with_parameters(
            *(f"&{self.writer.parameters(known)}", call, lambda name: self._bytes(name, source)),
            *(self._bytes(target, aim, "uint8_t *"), scratch),
        )

    def _bytes(self, name: str, ahead: int = 0, kind: str = "const uint8_t *") -> str:
        """The address so many bytes behind that of a value."""
        place = self.layout.places[name]
        if place.kind == "arena":
            return f"net->arena + {place.at + ahead}"
        return f"({kind}){self._pointer(name)} + {ahead}"

    def _pointer(self, name: str) -> str:
        place = self.layout.places[name]
        if place.kind == "constant":
            array = self.calls.constant(name)
            assert array is not None
            return self.writer.constants.name(array)
        if place.kind == "arena":
            return f"net->arena + {place.at}"
        return f"{place.kind}{place.at}"

    def _call(self, call: KernelCall, output: str, scratch: str) -> list[str]:
        return self.writer.text(call, self._pointer, output, scratch)


NUMBER = re.compile(r"(?<![\w.])(\d+)(u?)(?!\w)")
NOWHERE = re.compile(r"\((?:const )?uint8_t \*\)(\w+) \+ 0(?=[,)])")


def merged(rounds: Sequence[Sequence[str]]) -> list[str] | None:
    """The lines of round t: those of the rounds, with numbers that are linear in t. None where they
    differ otherwise."""
    found = []
    for lines in zip(*rounds, strict=True):
        if len({NUMBER.sub("#", line) for line in lines}) > 1:
            return None
        columns = np.array([[int(n) for n, _ in NUMBER.findall(line)] for line in lines])
        steps = np.diff(columns, axis=0)
        if (steps != steps[:1]).any():
            return None
        left = iter(steps[0].tolist())

        def linear(match: re.Match[str], left: Iterator[int] = left) -> str:
            step = next(left)
            return f"{match[0]} {'-' if step < 0 else '+'} {abs(step)}u * t" if step else match[0]

        found.append(NOWHERE.sub(r"\1", NUMBER.sub(linear, lines[0])))
    return found


def _init(prefix: str, about: About, image: bool) -> list[str]:
    """model_init, of weights as an image with a check of them."""
    made = ["    net->arena = (uint8_t *)arena;", f"    net->kernels = &{about.kernels};"]
    if not image:
        return [f"void {prefix}_init({prefix}_t *net, void *arena) {{", *made, "}"]
    return [
        f"{init_of_image(prefix)} {{",
        f"    const int wrong = samebits_image_check(image, bytes, {prefix.upper()}_STRUCTURE);",
        "    if (wrong) return wrong;",
        *made,
        "    net->image = (const samebits_image *)image;",
        "    return 0;",
        "}",
    ]


def _selftest(calls: CallList, prefix: str, answer: str) -> list[str]:
    """model_selftest: inputs from a counter, the hash of the outputs."""
    graph, upper = calls.graph, prefix.upper()
    lines = [f"{declaration(graph, prefix, 'selftest', 'int', test=True)} {{"]
    lines += [f"    const uint64_t expected = {answer};", "    uint64_t hash = SAMEBITS_HASH;"]
    for index, name in enumerate(graph.inputs):
        value = graph.values[name]
        width, signed = byte_size(value) // value.size, int(not value.dtype.startswith("u"))
        port = f"input{index}"
        lines.append(
            f"    samebits_random({port}, {width}, {signed}, {upper}_{port.upper()}_SIZE, {index});"
        )
    names = ["net", *(f"input{i}" for i in range(len(graph.inputs)))]
    names += [f"output{i}" for i in range(len(graph.outputs))]
    lines.append(f"    {prefix}_run({wrapped_list(names, 5 + len(prefix + '_run'))});")
    for index, name in enumerate(graph.outputs):
        value = graph.values[name]
        port, width = f"output{index}", byte_size(value) // value.size
        lines.append(
            f"    hash = samebits_hash(hash, {port}, {width}, {upper}_{port.upper()}_SIZE);"
        )
    return [*lines, "    return hash != expected;", "}"]
