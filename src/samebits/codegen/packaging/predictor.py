"""A program around NAME_predict: raw samples in, answers out, with the codes that they follow from.

It is written beside the package of a model, in the place of its harness.
"""

from __future__ import annotations

from collections.abc import Mapping

from samebits.codegen.names import CTYPES
from samebits.codegen.packaging.harness import filled, main_source
from samebits.codegen.raw import Raw
from samebits.codegen.run.interface import Interface
from samebits.ir.graph import Graph
from samebits.ir.value import Value

PREFIX = "samebits_predictor"  # no model has such a prefix

HEADER = """\
/* Answers to raw samples. */
#ifndef SAMEBITS_PREDICTOR_H
#define SAMEBITS_PREDICTOR_H

#include "@model@.h"

typedef struct {
    int32_t unused;
} samebits_predictor_t;
#define SAMEBITS_PREDICTOR_INSTANCE(name) static const samebits_predictor_t name = {0}

typedef @raw@ samebits_predictor_input0_t;
typedef int32_t samebits_predictor_output0_t;
typedef @model@_output0_t samebits_predictor_output1_t;
typedef @model@_input0_t samebits_predictor_output2_t;
#define SAMEBITS_PREDICTOR_INPUT0_SIZE @size@
#define SAMEBITS_PREDICTOR_OUTPUT0_SIZE @answers@
#define SAMEBITS_PREDICTOR_OUTPUT1_SIZE @MODEL@_OUTPUT0_SIZE
#define SAMEBITS_PREDICTOR_OUTPUT2_SIZE @MODEL@_INPUT0_SIZE

void samebits_predictor_run(const samebits_predictor_t *net,
                            const samebits_predictor_input0_t *raw,
                            samebits_predictor_output0_t *found,
                            samebits_predictor_output1_t *codes,
                            samebits_predictor_output2_t *given);
#ifdef SAMEBITS_TRACE
void samebits_predictor_trace(uint32_t layer, const void *codes, uint32_t count, uint32_t width);
#endif

#endif
"""

SOURCE = """\
#include "samebits_predictor.h"

@MODEL@_INSTANCE(model);
static @model@_answer_t answer;
@sample@
void samebits_predictor_run(const samebits_predictor_t *net,
                            const samebits_predictor_input0_t *raw,
                            samebits_predictor_output0_t *found,
                            samebits_predictor_output1_t *codes,
                            samebits_predictor_output2_t *given) {
    int32_t i;
    (void)net;
@call@@found@    for (i = 0; i < @MODEL@_OUTPUT0_SIZE; i++) codes[i] = answer.output[i];
    for (i = 0; i < @MODEL@_INPUT0_SIZE; i++) given[i] = answer.input[i];
}
"""
BITS = """\
    for (i = 0; i < @MODEL@_RAW_SIZE; i++) {
        union {
            samebits_predictor_input0_t bits;
            @model@_raw_t value;
        } each;
        each.bits = raw[i];
        sample[i] = each.value;
    }
    found[0] = (int32_t)@model@_predict(&model, sample, &answer);
"""
HEARD = """\
    {
        const uint32_t low = (uint16_t)raw[0], high = (uint16_t)raw[1];
        found[0] = (int32_t)@model@_predict(&model, raw + 2, low | high << 16, &answer);
    }
"""
FOUND = {
    "argmax": "    found[1] = answer.index;\n    found[2] = answer.score;\n",
    "threshold": "    for (i = 1; i < @answers@; i++) found[i] = answer.holds[i - 1];\n",
    "regression": "    for (i = 1; i < @answers@; i++) found[i] = answer.value[i - 1];\n",
}


def ports_of(raw: Raw) -> Graph:
    """The inputs and outputs of the program, as a graph without nodes: the bits of raw samples; 0
    and the answers, codes of the output, codes of the input."""
    values = (
        Value("raw", raw.dtype, (1, raw.size)),
        Value("answer", "int32", (1, 1 + raw.answers)),
        Value("output", raw.output.dtype, raw.output.shape),
        Value("input", raw.input.dtype, raw.input.shape),
    )
    names = tuple(value.name for value in values)
    return Graph(PREFIX, names[:1], names[1:], (), {}, {value.name: value for value in values})


def predictor(
    raw: Raw, prefix: str, package: Mapping[str, bytes]
) -> tuple[dict[str, bytes], Interface]:
    """The files of a model's package with the program's in the place of its harness, and what the
    program takes and gives."""
    ports = ports_of(raw)
    parts = {
        "call": HEARD if raw.rate else BITS,
        "sample": "" if raw.rate else "static @model@_raw_t sample[@MODEL@_RAW_SIZE];\n",
        "size": str(raw.size),
        "found": FOUND[raw.made.rule],
        "raw": CTYPES[ports.values["raw"].dtype],
        "answers": str(1 + raw.answers),
        "model": prefix,
        "MODEL": prefix.upper(),
    }
    texts = {
        f"{PREFIX}.h": filled(HEADER, parts),
        f"{PREFIX}.c": filled(SOURCE, parts),
        f"test/{PREFIX}_main.c": main_source(ports, PREFIX, selftest=False),
    }
    kept = {name: data for name, data in package.items() if not name.startswith("test/")}
    return {**kept, **{name: text.encode() for name, text in texts.items()}}, Interface.of(
        ports, PREFIX
    )
