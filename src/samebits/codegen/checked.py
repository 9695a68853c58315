"""Checks of a debug build: what the header demands of a call's arguments, asserted.

With SAMEBITS_DEBUG the header gives the functions other names (model_run_checked), so that files
built with it do not link with files built without. The source then has the functions proper as
static ones, and after them those of the header, which check and call them. Without the macro
nothing of this is compiled.

A state has a mark there, 8 bytes that model_reset writes: those of the answer that model_selftest
expects, or with an image of weights those of its hash, so that a state of another model has
another.
"""

from __future__ import annotations

from collections.abc import Sequence

from samebits.arena import ALIGNMENT
from samebits.codegen.header import (
    About,
    declaration,
    init_checked,
    init_of_image,
    ports,
)
from samebits.codegen.lowering.rescale import WIDTHS
from samebits.codegen.names import WIDTH, wrapped_list
from samebits.codegen.stream import reset_function, state_members, step_function
from samebits.ir.graph import Graph
from samebits.ir.value import Value

Port = tuple[str, Value]


def prototypes(graph: Graph, prefix: str, image: bool) -> list[str]:
    """Lines before the functions of the source: their own names, static. image: of weights."""
    heads = [
        f"static {init_of_image(prefix)}"
        if image
        else f"static void {prefix}_init({prefix}_t *net, void *arena)",
        declaration(graph, prefix, "run", "static void"),
        declaration(graph, prefix, "selftest", "static int", test=True),
    ]
    names = ["init", "run", "selftest"]
    if graph.states:
        more = ["int32_t steps"]
        heads += [
            reset_function(prefix, image, kind="static void"),
            step_function(graph, prefix, "step", [], "static void"),
            step_function(graph, prefix, "steps", more, "static void"),
        ]
        names += ["reset", "step", "steps"]
    return [
        "#ifdef SAMEBITS_DEBUG",
        '#include "samebits/samebits_debug.h"',
        "/* The functions proper; those that check their arguments are at the end. */",
        *(f"#undef {prefix}_{name}" for name in names),
        *(f"{head};" for head in heads),
        "#endif",
        "",
    ]


def definitions(graph: Graph, prefix: str, about: About, answer: int) -> list[str]:
    """Lines after the functions of the source: those that check."""
    writer = _Writer(graph, prefix, about)
    return [
        "",
        "#ifdef SAMEBITS_DEBUG",
        *writer.init(),
        *writer.run(),
        *writer.selftest(),
        *(writer.streams(answer) if graph.states else []),
        "#endif",
    ]


class _Writer:
    """The functions that check, each a list of lines."""

    def __init__(self, graph: Graph, prefix: str, about: About) -> None:
        self.graph, self.prefix, self.upper, self.about = graph, prefix, prefix.upper(), about
        image = about.image is not None
        self.mark = "(const uint8_t *)&net->image->content" if image else f"{prefix}_mark"

    def init(self) -> list[str]:
        """model_init, which checks the arena."""
        arena, image = f"{self.upper}_ARENA_BYTES", self.about.image is not None
        given = ", image, bytes" if image else ""
        return [
            f"{init_checked(self.prefix, image)} {{",
            _check("net != 0", "net is null"),
            _check("arena != 0", "arena is null"),
            _check(
                f"(uintptr_t)arena % {self.upper}_ARENA_ALIGNMENT == 0",
                f"arena is not at a multiple of {ALIGNMENT} bytes",
            ),
            _check(f"room >= {arena}", f"arena is shorter than {arena}"),
            f"    {'return ' if image else ''}{self.prefix}_init(net, arena{given});",
            "}",
            "",
        ]

    def run(self) -> list[str]:
        head = declaration(self.graph, self.prefix, "run_checked", "void")
        own = ports(self.graph)
        call = self._call("run", ["net", *(name for name, _ in own)])
        return [f"{head} {{", *self._arguments(own), f"    {call}", "}", ""]

    def selftest(self) -> list[str]:
        """Inputs are written, so that they must not overlap either."""
        head = declaration(self.graph, self.prefix, "selftest_checked", "int", test=True)
        own = ports(self.graph)
        checks = self._arguments(own, written=True)
        call = self._call("selftest", ["net", *(name for name, _ in own)], 7)
        return [f"{head} {{", *checks, f"    return {call}", "}"]

    def streams(self, answer: int) -> list[str]:
        """reset, step and steps. answer: of model_selftest, whose bytes are the mark."""
        own, image = _own_ports(self.graph), self.about.image is not None
        names = [name for name, _ in own]
        mark = ", ".join(f"0x{byte:02x}" for byte in answer.to_bytes(8, "big"))
        stored = ["", f"static const uint8_t {self.prefix}_mark[8] = {{{mark}}};"]
        return [
            *([] if image else stored),
            "",
            f"{reset_function(self.prefix, image, 'reset_checked')} {{",
            *(self._instance() if image else ()),
            *self._pointer("state", _state_width(self.graph)),
            f"    {self.prefix}_reset({'net, ' if image else ''}state);",
            f"    samebits_copy_bytes({self.mark}, state->mark, 8);",
            "}",
            "",
            f"{step_function(self.graph, self.prefix, 'step_checked', [])} {{",
            *self._arguments(own, state=True),
            f"    {self._call('step', ['net', 'state', *names])}",
            "}",
            "",
            f"{step_function(self.graph, self.prefix, 'steps_checked', ['int32_t steps'])} {{",
            _check("steps >= 0", "steps is negative"),
            *self._arguments(own, state=True, times=" * (size_t)steps"),
            f"    {self._call('steps', ['net', 'state', 'steps', *names])}",
            "}",
        ]

    def _call(self, name: str, arguments: Sequence[str], column: int = 0) -> str:
        head = f"{self.prefix}_{name}("
        return f"{head}{wrapped_list(arguments, 4 + column + len(head))});"

    def _arguments(
        self, own: Sequence[Port], *, written: bool = False, state: bool = False, times: str = ""
    ) -> list[str]:
        """Checks of net, of the state and of ports: given, aligned, and apart from each other.

        written: inputs are written too. times: what multiplies the size of a port.
        """
        lines = self._instance()
        memory = [("the arena", "net->arena", f"{self.upper}_ARENA_BYTES")]
        if state:
            lines += self._pointer("state", _state_width(self.graph))
            marked = f"samebits_marked(state->mark, {self.mark})"
            lines.append(_check(marked, f"state was not written by {self.prefix}_reset"))
            memory.append(("the state", "state", "sizeof *state"))
        read = len(memory)  # what an input that is only read must not overlap
        for name, value in own:
            lines += self._pointer(name, WIDTHS[value.dtype])
            size = f"sizeof *{name} * {self.upper}_{name.upper()}_SIZE{times}"
            memory.append((name, name, size))
        items = ",\n".join(f"            {{{first}, {size}}}" for _, first, size in memory)
        lines += ["    {", f"        const samebits_memory memory[] = {{\n{items}}};"]
        for index, (_, name, _) in enumerate(memory[1:], 1):
            reads = name.startswith("input") and not written
            before = read if reads else index
            others = [what for what, *_ in memory[: min(read, index)]]
            others += ["another argument"] if before > read else []
            apart = f"samebits_apart(memory, {index}, {before})"
            lines.append(_check(apart, f"{name} overlaps {' or '.join(others)}", 8))
        return [*lines, "    }"]

    def _instance(self) -> list[str]:
        """Checks of net."""
        kernels = f"net->kernels == &{self.about.kernels}"
        return [
            _check("net != 0", "net is null"),
            _check(kernels, f"net was not made by {self.upper}_INSTANCE or {self.prefix}_init"),
        ]

    def _pointer(self, name: str, width: int) -> list[str]:
        """Checks that an argument is not null, and aligned for codes of a width."""
        lines = [_check(f"{name} != 0", f"{name} is null")]
        if width > 1:
            text = f"{name} is not aligned for codes of {width} bytes"
            lines.append(_check(f"SAMEBITS_SUITS({name}, {width})", text))
        return lines


def _own_ports(graph: Graph) -> list[Port]:
    """The ports that are no states, as the parameters of a step name them."""
    inputs, outputs = len(graph.inputs), len(graph.own_outputs)
    found = ports(graph)
    return found[: len(graph.own_inputs)] + found[inputs : inputs + outputs]


def _state_width(graph: Graph) -> int:
    """Bytes of a code of the first member of the struct of states, which is the widest."""
    return WIDTHS[state_members(graph)[0][1].dtype]


def _check(condition: str, text: str, indent: int = 4) -> str:
    """A line that asserts, or two."""
    head = f"{' ' * indent}SAMEBITS_ASSERT("
    line = f'{head}{condition}, "{text}");'
    return line if len(line) <= WIDTH else f'{head}{condition},\n{" " * len(head)}"{text}");'
