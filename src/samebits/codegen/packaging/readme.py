"""README.md of a package: what its functions are, what memory they need, and an example."""

from __future__ import annotations

from collections.abc import Mapping

from samebits.codegen.header import LICENCE, ports, scale_parts
from samebits.codegen.meaning import meaning_text
from samebits.codegen.names import c_comment, wrapped_list
from samebits.codegen.packaging.harness import filled
from samebits.contract import UNKNOWN, Contract
from samebits.ir.graph import Graph
from samebits.ir.value import Value

README = """\
# @model@

@title@, as C99 without floating point, allocation or recursion, by samebits @version@.
SPDX-License-Identifier: @licence@. The same codes on every machine.

```c
#include "@model@.h"

@MODEL@_INSTANCE(net); /* static: an arena of @MODEL@_ARENA_BYTES, and weights that are shared */

int main(void) {
@buffers@
    if (@model@_selftest(@arguments@)) return 1; /* a known answer */
    /* fill the inputs here */
    @model@_run(@arguments@);
    return 0;
}
```

@building@
- `@MODEL@_INSTANCE(name)` defines an instance with a static arena;
  `@model@_init(&net, arena)` makes one over memory of your own. Functions write to nothing else:
  two threads take two instances.
- What a call must hold stands at the top of `@model@.h`. With `-DSAMEBITS_DEBUG` for all files it
  is asserted, and the argument named.
- `@model@_selftest` returns 0 where the processor computes what this machine did.
@functions@- `@MODEL@_WEIGHTS`, `@MODEL@_TABLES`, `@MODEL@_ARENA` are attributes: where memory lies.
- Several models share one `samebits/`; linking fails where theirs is of another version.

| port | name | type | shape | real number |
|---|---|---|---|---|
@ports@

| bytes | |
|---|---|
@memory@

Flash for code, and RAM and stack by target: `samebits compile` prints them for the boards it has.
"""


MAKE = """\
Compile `@model@.c`, `@model@_constants.c` and `samebits/samebits_kernels.c`; the folder is the only
include path. The header is C++ too. `make test` runs the test vectors of `test/` on this machine.
"""
ELSEWHERE = """\
The last section says how a build system takes this folder. The header is C++ too.
"""


def readme(
    graph: Graph,
    prefix: str,
    version: str,
    memory: Mapping[str, int],
    functions: str,
    project: str = "make",
    contract: Contract = UNKNOWN,
    structure: str = "",
) -> str:
    """The text. memory: bytes by what they are; functions: lines about more functions; project:
    whose layout the folder will have, of which a section at the end tells, if it is not make;
    contract: what inputs and outputs mean; structure: of weights as an image."""
    arguments = ["&net", *(port for port, _ in ports(graph))]
    rows = [
        f"| `{port}` | {c_comment(value.name)} | {value.dtype} | {list(value.shape)} | "
        f"{_meaning(value)} |"
        for port, value in ports(graph)
    ]
    parts = {
        "title": c_comment(graph.name),
        "version": version,
        "licence": LICENCE,
        "buffers": "\n".join(f"    {line}" for line in buffers(graph, prefix)),
        "arguments": wrapped_list(arguments, 9 + len(prefix + "_selftest(")),
        "functions": functions + (image_functions(prefix, structure) if structure else ""),
        "ports": "\n".join(rows),
        "memory": "\n".join(f"| {what} | {size:,} |" for what, size in memory.items()),
        "model": prefix,
        "MODEL": prefix.upper(),
    }
    text = README.replace("@building@", MAKE if project == "make" else ELSEWHERE)
    if structure:
        text = text.replace("_constants.c", "_image.c")
        text = text.replace("_init(&net, arena)", "_init(&net, arena, image, bytes)")
    return filled(text, parts) + meaning_text(contract, ports(graph))


def buffers(graph: Graph, prefix: str) -> list[str]:
    """C declarations of arrays for all inputs and outputs, by the names of the ports."""
    return [
        f"static {prefix}_{port}_t {port}[{prefix.upper()}_{port.upper()}_SIZE];"
        for port, _ in ports(graph)
    ]


def stream_functions(graph: Graph, prefix: str, image: bool = False) -> str:
    """Lines about the functions of a step graph, empty for others. image: of weights."""
    if not graph.states:
        return ""
    net = "&net, " if image else ""
    return (
        f"- `{prefix}_reset({net}&state)`, `{prefix}_step(&net, &state, ...)` and\n"
        f"  `{prefix}_steps(&net, &state, steps, ...)` run a sequence; `{prefix}_state_t` is\n"
        "  what is carried from step to step, and may be stored as bytes.\n"
    )


def raw_functions(prefix: str) -> str:
    """Lines about the functions that take raw values."""
    return (
        f"- `{prefix}_predict(&net, raw, &answer)` answers a raw sample, such as a table's row,\n"
        f"  in whole numbers; `{prefix}_predict_selftest` tests that. Both are in\n"
        f"  `{prefix}_predict.c`, to be compiled too.\n"
    )


def image_functions(prefix: str, structure: str) -> str:
    """Lines about weights as an image."""
    return (
        f"- The weights are an image, `{prefix}.weights`, of structure\n"
        f"  `{structure}`. `{prefix.upper()}_INSTANCE` takes that of `{prefix}_image.c`;\n"
        f"  `{prefix}_init` one at any multiple of 8, and returns 0, or what is wrong with it.\n"
        f"  A program without `{prefix.upper()}_INSTANCE` does not need `{prefix}_image.c`.\n"
    )


def _meaning(value: Value) -> str:
    if value.quantization is None:
        return "the code"
    scales, zero = value.quantization.scales, value.quantization.zero_point
    centred = f"(code - {zero})" if zero > 0 else f"(code + {-zero})" if zero else "code"
    if len(scales) > 1:
        return f"scale of the channel * {centred}"
    parts = scale_parts(scales[0])
    scale = f"{parts[0]} * 2^{parts[1]}" if parts else str(scales[0])
    return f"{scale} * {centred}"
