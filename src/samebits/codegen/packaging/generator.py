"""A program around a language model's step graph: a prompt in, the tokens that follow out.

It is written beside the package of the model: a prefill (model_steps on the prompt, of which the
logits of the last token count), then a token from the logits of the one before, again and again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from samebits.codegen.blocks import STEPS
from samebits.codegen.lowering.rescale import TYPES
from samebits.codegen.packaging.harness import filled, main_source
from samebits.codegen.packaging.package import as_bytes, texts
from samebits.codegen.run.interface import Interface
from samebits.errors import InputError
from samebits.ir.graph import Graph
from samebits.ir.value import Value
from samebits.spec.sampling import Sampling

PREFIX = "generator"

HEADER = """\
/* The tokens that follow a prompt. */
#ifndef GENERATOR_H
#define GENERATOR_H

#include <stdint.h>

typedef struct {
    int32_t unused;
} generator_t;
#define GENERATOR_INSTANCE(name) static const generator_t name = {0}

typedef int64_t generator_input0_t;
typedef int32_t generator_output0_t;
#define GENERATOR_INPUT0_SIZE @prompt@
#define GENERATOR_OUTPUT0_SIZE @count@

void generator_run(const generator_t *net, const generator_input0_t *prompt,
                   generator_output0_t *tokens);
#ifdef SAMEBITS_TRACE
void generator_trace(uint32_t layer, const void *codes, uint32_t count, uint32_t width);
#endif

#endif
"""

SOURCE = """\
#include "generator.h"

#include "model.h"
#include "samebits/samebits_kernels.h"

#define CHUNK @chunk@ /* tokens of the prompt in one call */

static const samebits_sampling how = {@k@, @m@u, @q@};
MODEL_INSTANCE(model);
static model_state_t state;
static model_input0_t token[CHUNK];
static model_output0_t logits[CHUNK * MODEL_OUTPUT0_SIZE];

void generator_run(const generator_t *net, const generator_input0_t *prompt,
                   generator_output0_t *tokens) {
    int32_t t, i, n = 1;
    (void)net;
    model_reset(&state);
    for (t = 0; t < GENERATOR_INPUT0_SIZE; t += n) {
        n = GENERATOR_INPUT0_SIZE - t < CHUNK ? GENERATOR_INPUT0_SIZE - t : CHUNK;
        for (i = 0; i < n; i++) token[i] = (model_input0_t)prompt[t + i];
        model_steps(&model, &state, n, token, logits);
    }
    for (t = 0; t < GENERATOR_OUTPUT0_SIZE; t++, n = 1) {
        tokens[t] = samebits_sample(&how, logits + (n - 1) * MODEL_OUTPUT0_SIZE, @type@,
                                    MODEL_OUTPUT0_SIZE, @seed@u, (uint32_t)t);
        token[0] = (model_input0_t)tokens[t];
        if (t + 1 < GENERATOR_OUTPUT0_SIZE) model_step(&model, &state, token, logits);
    }
}
"""


def token_ports(graph: Graph, where: str) -> tuple[Value, Value]:
    """The token that a step takes and the logits that it gives.

    Raises InputError unless the graph is a step graph of a language model: an index in, numbers of
    one sample out.
    """
    own = [graph.values[name] for name in (*graph.own_inputs, *graph.own_outputs)]
    one = len(graph.own_inputs) == len(graph.own_outputs) == 1 and bool(graph.states)
    if not one or own[0].size != 1 or own[0].dtype not in ("int32", "int64"):
        raise InputError(
            f"{where}: expected a language model, whose steps take a token and give logits, found "
            f"{', '.join(map(str, own))} and {len(graph.states)} states"
        )
    return own[0], own[1]


def generator(
    graph: Graph, prompt: int, count: int, sampling: Sampling, seed: int
) -> tuple[Mapping[str, str], Interface]:
    """The files of the model's package with the program's in the place of the harness, and what
    the program takes and gives: int64 [prompt], int32 [count]."""
    _, logits = token_ports(graph, graph.name)
    given = Value("prompt", "int64", (prompt,))
    found = Value("tokens", "int32", (count,))
    values = {value.name: value for value in (given, found)}
    ports = Graph(PREFIX, ("prompt",), ("tokens",), (), {}, values)
    parts = {
        "prompt": prompt,
        "count": count,
        "chunk": STEPS,
        "k": sampling.k,
        "m": sampling.m,
        "q": sampling.q,
        "type": TYPES[logits.dtype],
        "seed": seed,
    }
    named = {key: str(value) for key, value in parts.items()}
    package = {name: as_bytes(data).decode() for name, data in texts(graph)[0].items()}
    kept = {name: text for name, text in package.items() if not name.startswith("test/")}
    files = {
        **kept,
        f"{PREFIX}.h": filled(HEADER, named),
        f"{PREFIX}.c": filled(SOURCE, named),
        f"test/{PREFIX}_main.c": main_source(ports, PREFIX, selftest=False),
    }
    return files, Interface.of(ports, PREFIX)


def write_generator(
    graph: Graph, folder: Path, prompt: int, count: int, sampling: Sampling, seed: int
) -> Interface:
    """Write the files of `generator` to a new folder."""
    files, interface = generator(graph, prompt, count, sampling, seed)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return interface
