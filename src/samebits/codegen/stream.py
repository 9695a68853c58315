"""The C of a step graph beside model_run: its states as one struct, and steps that carry them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from samebits.codegen.memory import byte_size
from samebits.codegen.names import wrapped_list
from samebits.codegen.program import Array
from samebits.ir.graph import Graph, Value
from samebits.ir.interpreter import initial_state

STEPS = 16  # of the test sequence: chunks of 1, of 7 (which leave a rest), and one of all


def state_bytes(graph: Graph) -> int:
    """Bytes of the struct of states, 0 without states."""
    members = _members(graph)
    if not members:
        return 0
    used = sum(byte_size(value) for _, value in members)
    return used + -used % _width(members[0][1])


def declarations(graph: Graph, prefix: str) -> list[str]:
    """Lines of the header, none without states."""
    members = _members(graph)
    if not members:
        return []
    own = len(graph.own_inputs)
    fields = [
        f"    {prefix}_input{own + index}_t state{index}[{value.size}];" for index, value in members
    ]
    unused = state_bytes(graph) - sum(byte_size(value) for _, value in members)
    if unused:
        fields.append(f"    uint8_t unused[{unused}]; /* 0 */")
    return [
        "/* What is carried from step to step: codes of every state, the wider ones first, without",
        " * padding. Its bytes may be stored, and copied back to go on from there. */",
        "typedef struct {",
        *fields,
        f"}} {prefix}_state_t;",
        "",
        "/* The state before the first step. */",
        f"void {prefix}_reset({prefix}_state_t *state);",
        "",
        f"/* One step: {prefix}_run on the state, which becomes that of the next step. */",
        f"{_step(graph, prefix)};",
        "",
        "/* `steps` steps: inputs and outputs of each lie one after the other. */",
        f"{_steps(graph, prefix)};",
        "",
    ]


def initial_codes(graph: Graph) -> list[Array]:
    """The codes of every state before the first step."""
    return [np.ascontiguousarray(initial_state(graph, state)).reshape(-1) for state in graph.states]


def definitions(graph: Graph, prefix: str, tables: Sequence[str]) -> list[str]:
    """Lines of the source, none without states. tables: the C name of the array of each state's
    `initial_codes`, "" for those that are all equal."""
    if not graph.states:
        return []
    own_inputs, own_outputs = len(graph.own_inputs), len(graph.own_outputs)
    count = range(len(graph.states))
    arguments = [
        *(f"input{i}" for i in range(own_inputs)),
        *(f"state->state{i}" for i in count),
        *(f"output{i}" for i in range(own_outputs)),
        *(f"next.state{i}" for i in count),
    ]
    reset = []
    for index, (codes, table) in enumerate(zip(initial_codes(graph), tables, strict=True)):
        text = f"{table}[i]" if table else str(int(codes[0]))
        reset.append(f"    for (i = 0; i < {codes.size}; i++) state->state{index}[i] = {text};")
    used = sum(byte_size(value) for _, value in _members(graph))
    if state_bytes(graph) > used:
        reset.append(f"    for (i = 0; i < {state_bytes(graph) - used}; i++) state->unused[i] = 0;")
    advance = [
        f"        {kind}{i} += {prefix.upper()}_{kind.upper()}{i}_SIZE;"
        for kind, number in (("input", own_inputs), ("output", own_outputs))
        for i in range(number)
    ]
    passed = [
        "state",
        *(f"input{i}" for i in range(own_inputs)),
        *(f"output{i}" for i in range(own_outputs)),
    ]
    return [
        "",
        f"void {prefix}_reset({prefix}_state_t *state) {{",
        "    int32_t i;",
        *reset,
        "}",
        "",
        f"{_step(graph, prefix)} {{",
        f"    static {prefix}_state_t next;",
        f"    {prefix}_run({wrapped_list(arguments, 5 + len(prefix + '_run'))});",
        "    *state = next;",
        "}",
        "",
        f"{_steps(graph, prefix)} {{",
        "    for (; steps > 0; steps--) {",
        f"        {prefix}_step({wrapped_list(passed, 9 + len(prefix + '_step'))});",
        *advance,
        "    }",
        "}",
    ]


TEST = """\
static @model@_state_t state;
@buffers@
/* The sequence of test_vectors.h in chunks of 1, of 7 and of all its steps: how many of the outputs
 * and of the codes of the last state differ. */
static unsigned long sequence_differs(unsigned long *total) {
    static const int32_t chunks[3] = {1, 7, @MODEL@_STEPS};
    unsigned long differ = 0;
    int32_t chunk, t, n;
    uint32_t i;
    for (chunk = 0; chunk < 3; chunk++) {
        @model@_reset(&state);
        for (t = 0; t < @MODEL@_STEPS; t += n) {
            n = @MODEL@_STEPS - t < chunks[chunk] ? @MODEL@_STEPS - t : chunks[chunk];
            @model@_steps(@arguments@);
        }
@compare@    }
    return differ;
}
"""


def sequence_test(graph: Graph, prefix: str) -> str:
    """The part of the harness's test that runs the sequence of the test vectors."""
    upper = prefix.upper()
    buffers, compare = [], []
    arguments = ["&state", "n"]
    for i in range(len(graph.own_inputs)):
        arguments.append(f"{prefix}_sequence_input{i} + t * {upper}_INPUT{i}_SIZE")
    wanted = []
    for i in range(len(graph.own_outputs)):
        size = f"{upper}_STEPS * {upper}_OUTPUT{i}_SIZE"
        buffers.append(f"static {prefix}_output{i}_t steps{i}[{size}];\n")
        arguments.append(f"steps{i} + t * {upper}_OUTPUT{i}_SIZE")
        wanted.append((size, f"steps{i}", f"{prefix}_sequence_output{i}"))
    for i, state in enumerate(graph.states):
        size = str(graph.values[state.input].size)
        wanted.append((size, f"state.state{i}", f"{prefix}_sequence_state{i}"))
    for size, found, expected in wanted:
        compare.append(
            f"        for (i = 0; i < {size}; i++, ++*total) {{\n"
            f"            differ += {found}[i] != {expected}[i];\n"
            "        }\n"
        )
    text = TEST
    for key, part in (
        ("model", prefix),
        ("MODEL", upper),
        ("buffers", "".join(buffers)),
        ("arguments", wrapped_list(arguments, 13 + len(prefix + "_steps"))),
        ("compare", "".join(compare)),
    ):
        text = text.replace(f"@{key}@", part)
    return text


def _members(graph: Graph) -> list[tuple[int, Value]]:
    """Index and type of every state, the wider ones first."""
    values = [graph.values[state.input] for state in graph.states]
    return sorted(enumerate(values), key=lambda item: -_width(item[1]))


def _width(value: Value) -> int:
    return byte_size(value) // value.size


def _step(graph: Graph, prefix: str) -> str:
    return _function(graph, prefix, "step", [])


def _steps(graph: Graph, prefix: str) -> str:
    return _function(graph, prefix, "steps", ["int32_t steps"])


def _function(graph: Graph, prefix: str, name: str, more: Sequence[str]) -> str:
    """The head of a function on the struct of states, inputs and outputs."""
    parameters = [
        f"{prefix}_state_t *state",
        *more,
        *(f"const {prefix}_input{i}_t *input{i}" for i in range(len(graph.own_inputs))),
        *(f"{prefix}_output{i}_t *output{i}" for i in range(len(graph.own_outputs))),
    ]
    head = f"void {prefix}_{name}("
    return f"{head}{wrapped_list(parameters, len(head))})"
