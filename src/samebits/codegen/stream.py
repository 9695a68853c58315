"""The C of a step graph beside model_run: its states as one struct, and steps that carry them.

model_reset writes the states' initial codes, model_step runs one step and replaces the states by
those that follow, model_steps runs many, in blocks (codegen/blocks.py) where memory is at hand. The
struct has no padding and no pointer, so a stream is saved and resumed by copying its bytes; wider
members come first for that. All three give the codes of `ir.interpreter.run_steps`, in chunks of
any size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from samebits.codegen.blocks import STEPS as STEPS_OF_BLOCK
from samebits.codegen.blocks import StepBlocks, tiling
from samebits.codegen.call_text import CallWriter
from samebits.codegen.image import WeightImage
from samebits.codegen.lowering.calls import Array, CallList
from samebits.codegen.memory import MemoryLayout, byte_size
from samebits.codegen.names import CTYPES, wrapped_list
from samebits.ir.graph import Graph
from samebits.ir.interpreter import initial_state
from samebits.ir.value import Value

STEPS = 16  # of the test sequence: chunks of 1, of 7 (which leave a rest), and one of all


def state_bytes(graph: Graph) -> int:
    """Bytes of the struct of states, 0 without states."""
    members = state_members(graph)
    if not members:
        return 0
    used = sum(byte_size(value) for _, value in members)
    return used + -used % _width(members[0][1])


def declarations(graph: Graph, prefix: str, image: bool = False) -> list[str]:
    """Lines of the header, none without states. image: initial codes are those of an image."""
    members = state_members(graph)
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
        "#ifdef SAMEBITS_DEBUG",
        f"    uint8_t mark[8]; /* {prefix}_reset has written the state */",
        "#endif",
        f"}} {prefix}_state_t;",
        "",
        "/* The state before the first step. */",
        f"{reset_function(prefix, image)};",
        "",
        f"/* One step: {prefix}_run on the state, which becomes that of the next step. */",
        f"{_step(graph, prefix)};",
        "",
        "/* `steps` steps, 0 or more: inputs and outputs of each lie one after the other. */",
        f"{_steps(graph, prefix)};",
        "",
    ]


def initial_codes(graph: Graph) -> list[Array]:
    """The codes of every state before the first step."""
    return [np.ascontiguousarray(initial_state(graph, state)).reshape(-1) for state in graph.states]


def definitions(
    calls: CallList,
    layout: MemoryLayout,
    blocked: StepBlocks | None,
    prefix: str,
    writer: CallWriter,
) -> list[str]:
    """Lines of the source, none without states: reset, one step, many steps.

    Initial codes that differ become constants of `writer`. `blocked`: how many steps are computed
    together, where that pays.
    """
    graph = calls.graph
    if not graph.states:
        return []
    image = writer.constants if isinstance(writer.constants, WeightImage) else None
    reset = list[str]()
    for index, codes in enumerate(initial_codes(graph)):
        kind = CTYPES[codes.dtype.name]
        if (codes != codes[0]).any():
            name = writer.constants.name(codes)
            text = f"{name}[i]" if image is None else f"((const {kind} *){name})[i]"
        elif image is None:
            text = str(int(codes[0]))
        else:
            text = image.number(int(codes[0]), kind)
        reset.append(f"    for (i = 0; i < {codes.size}; i++) state->state{index}[i] = {text};")
    used = sum(byte_size(value) for _, value in state_members(graph))
    if state_bytes(graph) > used:
        reset.append(f"    for (i = 0; i < {state_bytes(graph) - used}; i++) state->unused[i] = 0;")
    return [
        "",
        f"{reset_function(prefix, image is not None)} {{",
        "    int32_t i;",
        *reset,
        "}",
        "",
        *_one_step(calls, layout, prefix),
        *_all_steps(calls, blocked, prefix, writer),
    ]


def _one_step(calls: CallList, layout: MemoryLayout, prefix: str) -> list[str]:
    """model_step: model_run, and copies of the states that it does not write in their place, from
    where they wait in the arena."""
    graph, own = calls.graph, len(calls.graph.own_inputs)

    def state_after(index: int) -> str:
        if index not in layout.following:
            return f"state->state{index}"
        kind = f"{prefix}_output{len(graph.own_outputs) + index}_t"
        return f"({kind} *)(void *)(net->arena + {layout.following[index]})"

    arguments = [
        "net",
        *(f"input{i}" for i in range(own)),
        *(f"state->state{i}" for i in range(len(graph.states))),
        *(f"output{i}" for i in range(len(graph.own_outputs))),
        *(state_after(i) for i in range(len(graph.states))),
    ]
    lines = [
        f"{_step(graph, prefix)} {{",
        f"    {prefix}_run({wrapped_list(arguments, 5 + len(prefix + '_run'))});",
    ]
    for index, at in layout.following.items():
        size = byte_size(graph.values[graph.states[index].input])
        lines.append(f"    samebits_copy_bytes(net->arena + {at}, state->state{index}, {size}u);")
    return [*lines, "}", ""]


def _all_steps(
    calls: CallList, blocked: StepBlocks | None, prefix: str, writer: CallWriter
) -> list[str]:
    """model_steps: by blocks where there are any and memory is at hand, else step by step.

    Both texts are written, and SAMEBITS_BLOCKS of samebits.h chooses; parameters that only
    the blocks use are declared inside its #if, so that Cortex-M does not store them.
    """
    graph = calls.graph
    singly = _in_turns(graph, prefix, "step", "1", "steps--")
    if blocked is None:
        return singly
    declared = len(writer.declared)
    body = _block(calls, blocked, prefix, writer)
    own = writer.declared[declared:]
    del writer.declared[declared:]
    return [
        "#if SAMEBITS_BLOCKS",
        *own,
        f"/* Up to {STEPS_OF_BLOCK} steps; products that wait for no state, for all at once. */",
        f"{step_function(graph, prefix, 'block', ['int32_t steps'], 'static void')} {{",
        *body,
        "}",
        "",
        *_in_turns(graph, prefix, "block", "n", "steps -= n"),
        "#else",
        *singly,
        "#endif",
    ]


def _in_turns(graph: Graph, prefix: str, function: str, n: str, advance: str) -> list[str]:
    """model_steps as calls of another function, of n steps each.

    n: "1", or a variable that holds the steps of a block, which is passed on. advance: the C
    expression that counts `steps` down.
    """
    numbers = (("input", len(graph.own_inputs)), ("output", len(graph.own_outputs)))
    names = [f"{kind}{i}" for kind, number in numbers for i in range(number)]
    size = "" if n == "1" else f"{n} * "
    passed = ["net", "state", *([] if n == "1" else [n]), *names]
    least = f"steps < {STEPS_OF_BLOCK} ? steps : {STEPS_OF_BLOCK}"
    return [
        f"{_steps(graph, prefix)} {{",
        *([] if n == "1" else [f"    int32_t {n};"]),
        f"    for (; steps > 0; {advance}) {{",
        *([] if n == "1" else [f"        {n} = {least};"]),
        f"        {prefix}_{function}({wrapped_list(passed, 9 + len(f'{prefix}_{function}'))});",
        *(f"        {name} += {size}{prefix.upper()}_{name.upper()}_SIZE;" for name in names),
        "    }",
        "}",
    ]


def _block(calls: CallList, blocked: StepBlocks, prefix: str, writer: CallWriter) -> list[str]:
    """The body of model_block.

    A phase of rows is one call a product, on a copy of its parameters with as many pixels as the
    block has rows; any other phase is a loop over the steps. In the arena lie first the values of
    one step, which every step uses again, then what is kept of all steps (place "rows"), then the
    scratch memory.
    """
    values, upper = calls.graph.values, prefix.upper()
    at_rows, at_scratch = blocked.arena, blocked.arena + blocked.rows
    memory = "net->arena"

    def pointer(name: str, step: str = "") -> str:
        """The C expression of a value's codes; of those of one step where `step` is its index."""
        place = blocked.places[name]
        if place.kind == "constant":
            array = calls.constant(name)
            assert array is not None
            return writer.constants.name(array)
        if place.kind == "state":
            return f"state->state{place.at}"
        if place.kind == "arena":
            return f"{memory} + {place.at}"
        if place.kind == "rows":
            size = f"{byte_size(values[name])}"
            text = f"{memory} + {at_rows + place.at}"
        else:
            text = f"{place.kind}{place.at}"
            size = f"{upper}_{text.upper()}_SIZE"
        return f"{text} + {step} * {size}" if step else text

    def one(name: str) -> str:
        return pointer(name, "t")

    lines: list[str] = []
    scratch = f"{memory} + {at_scratch}"
    for phase in blocked.phases:
        if not phase.rows:
            lines.append("    for (t = 0; t < steps; t++) {")
            for entry in phase.entries:
                for call in entry.calls:
                    text = writer.text(call, one, one(entry.value), scratch)
                    lines += [f"    {line}" for line in "\n".join(text).split("\n")]
            lines.append("    }")
            continue
        for entry in phase.entries:
            (call,) = entry.calls
            lines += [
                "    {",
                f"        samebits_conv rows = {writer.parameters(call)};",
                "        rows.width = rows.out_width = steps * rows.width;",
                f"        rows.tile = {tiling(call)[0]};",
            ]
            text = writer.with_parameters("&rows", call, pointer, pointer(entry.value), scratch)
            lines += [*(f"    {line}" for line in text), "    }"]
    return ["    int32_t t;", *writer.locals(), *lines]


TEST = """\
static @model@_state_t state;
@buffers@
/* The sequence of @model@_vectors.h in chunks of 1, of 7 and of all its steps: how many of the
 * outputs and of the codes of the last state differ. */
static unsigned long sequence_differs(unsigned long *total) {
    static const int32_t chunks[3] = {1, 7, @MODEL@_STEPS};
    unsigned long differ = 0;
    int32_t chunk, t, n;
    uint32_t i;
    for (chunk = 0; chunk < 3; chunk++) {
        @model@_reset(@reset@);
        for (t = 0; t < @MODEL@_STEPS; t += n) {
            n = @MODEL@_STEPS - t < chunks[chunk] ? @MODEL@_STEPS - t : chunks[chunk];
            @model@_steps(@arguments@);
        }
@compare@    }
    return differ;
}
"""


def sequence_test(graph: Graph, prefix: str, image: bool = False) -> str:
    """The part of the harness's test that runs the sequence of the test vectors. image: of weights.

    In chunks of several sizes, each from a reset state on: outputs of all steps and the last state
    must be those of the vectors, whatever the chunks.
    """
    upper = prefix.upper()
    buffers, compare = [], []
    arguments = ["&net", "&state", "n"]
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
        ("reset", "&net, &state" if image else "&state"),
        ("buffers", "".join(buffers)),
        ("arguments", wrapped_list(arguments, 13 + len(prefix + "_steps"))),
        ("compare", "".join(compare)),
    ):
        text = text.replace(f"@{key}@", part)
    return text


def state_members(graph: Graph) -> list[tuple[int, Value]]:
    """Index and type of every state, the wider ones first, as the struct has them."""
    values = [graph.values[state.input] for state in graph.states]
    return sorted(enumerate(values), key=lambda item: -_width(item[1]))


def _width(value: Value) -> int:
    return byte_size(value) // value.size


def reset_function(prefix: str, image: bool, name: str = "reset", kind: str = "void") -> str:
    """The head of the C function that writes initial codes. image: of whose weights they are."""
    net = f"const {prefix}_t *net, " if image else ""
    return f"{kind} {prefix}_{name}({net}{prefix}_state_t *state)"


def _step(graph: Graph, prefix: str) -> str:
    return step_function(graph, prefix, "step", [])


def _steps(graph: Graph, prefix: str) -> str:
    return step_function(graph, prefix, "steps", ["int32_t steps"])


def step_function(
    graph: Graph, prefix: str, name: str, more: Sequence[str], kind: str = "void"
) -> str:
    """The head of a C function on the struct of states, inputs and outputs; `more`: parameters
    after the struct."""
    parameters = [
        f"const {prefix}_t *net",
        f"{prefix}_state_t *state",
        *more,
        *(f"const {prefix}_input{i}_t *input{i}" for i in range(len(graph.own_inputs))),
        *(f"{prefix}_output{i}_t *output{i}" for i in range(len(graph.own_outputs))),
    ]
    head = f"{kind} {prefix}_{name}("
    return f"{head}{wrapped_list(parameters, len(head))})"
