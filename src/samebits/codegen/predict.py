"""The C of NAME_predict, which takes raw values: its part of the header, and its file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from samebits.codegen import sound
from samebits.codegen.header import of_net
from samebits.codegen.image import WeightImage, answer_text
from samebits.codegen.memory import byte_size
from samebits.codegen.names import CTYPES, c_string, continued, wrapped_list
from samebits.codegen.raw import TESTED, WORD, Raw
from samebits.ir.integer.define import limits
from samebits.spec.tables import VALUE_SHIFT

HEADER = "inference/samebits_raw.h"


def declarations(raw: Raw, prefix: str, image: WeightImage | None = None) -> list[str]:
    """Lines of the header. image: of the weights, where they are beside the code."""
    upper, rule = prefix.upper(), raw.made.rule
    fields = {
        "argmax": [
            f"    int32_t index; /* of {upper}_CLASSES */",
            "    int32_t score; /* its code: output[index] */",
        ],
        "threshold": [f"    uint8_t holds[{upper}_OUTPUT0_SIZE]; /* each of {upper}_CLASSES */"],
        "regression": [
            f"    int32_t value[{upper}_OUTPUT0_SIZE]; "
            f"/* in 2**-{upper}_VALUE_BITS{of_net(image)} */"
        ],
    }[rule]
    what = "bytes of pixels, in the order of the input"
    if raw.given.columns:
        what = f"a row's values in the order of {upper}_INPUT0_COLUMNS;"
    lines = [
        f"/* A raw sample: {what}" + ("" if raw.given.columns else " */"),
    ]
    if raw.given.columns:
        lines += [
            " * of a column of words the place among its words, 0, 1, ... Nothing is computed in",
            " * floating point. docs/spec/tables.md, section 5. */",
        ]
    size = f"#define {upper}_RAW_SIZE {raw.size}"
    heard: list[str] = []
    if raw.rate:
        lines = ["/* A raw sample: a recording, mono, of 16 bits. docs/spec/audio.md. */"]
        size = f"#define {upper}_RAW_RATE {raw.rate} /* samples per second */"
        heard = [
            f"    int32_t work[{raw.settings.fft}];",
            f"    int16_t features[{raw.settings.mels}];",
        ]
    lines += [
        size,
        f"typedef {_ctype(raw)} {prefix}_raw_t;",
        *_classes(raw, upper, image),
        "",
        "/* An answer, with the codes that it follows from. */",
        "typedef struct {",
        *heard,
        f"    {prefix}_input0_t input[{upper}_INPUT0_SIZE];",
        f"    {prefix}_output0_t output[{upper}_OUTPUT0_SIZE];",
        *fields,
        f"}} {prefix}_answer_t;",
        "",
        *_promise(raw),
        *_head(raw, prefix, ";"),
        "",
        "/* Answers known raw samples: 0 where this machine answers what it must. */",
        f"int {prefix}_predict_selftest(const {prefix}_t *net, {prefix}_answer_t *answer);",
        "",
    ]
    return lines


def _ctype(raw: Raw) -> str:
    return "int16_t" if raw.rate else "double" if raw.given.columns else "uint8_t"


def _promise(raw: Raw) -> list[str]:
    """A comment on what NAME_predict returns."""
    if raw.rate:
        return [
            "/* The answer to a recording of `count` samples: 0; or 1 where it is shorter than the",
            f" * {raw.settings.frame} samples of a frame. */",
        ]
    return [
        "/* The answer to a raw sample: 0; or the column, counted from 1, without a valid value,",
        " * such as a NaN where the contract refuses cells without a value. */",
    ]


def _head(raw: Raw, prefix: str, end: str) -> list[str]:
    """The head of NAME_predict."""
    head = f"int {prefix}_predict("
    count = " uint32_t count," if raw.rate else ""
    return [
        f"{head}const {prefix}_t *net, const {prefix}_raw_t *raw,{count}",
        f"{' ' * len(head)}{prefix}_answer_t *answer){end}",
    ]


def _classes(raw: Raw, upper: str, image: WeightImage | None) -> list[str]:
    """The names of classes, labels or targets, and the places of values."""
    lines = []
    if raw.made.names:
        lines = [
            f"#define {upper}_CLASSES_COUNT {len(raw.made.names)}",
            f"extern const char *const {upper}_CLASSES[{upper}_CLASSES_COUNT];",
        ]
    if raw.made.rule == "regression":
        places = [k for _, _, k in raw.known_scales]
        if image is None:
            bits = [str(k) if k >= 0 else f"({k})" for k in places]
        else:
            bits = [image.number(k, "int32_t", "(net)") for k in places]
        items = f"    {{{wrapped_list(bits, 5)}}}".split("\n")
        lines += continued([f"#define {upper}_VALUE_BITS{of_net(image)}", *items])
    return lines


def source(raw: Raw, prefix: str, image: WeightImage | None = None) -> str:
    """<prefix>_predict.c. image: of the weights, where they are beside the code."""
    upper, net = prefix.upper(), of_net(image)
    lines = [f'#include "{prefix}.h"', ""]
    if raw.given.columns:
        lines += [
            "/* Where double has 32 bits raw rows cannot be taken. */",
            "#if !defined(__SIZEOF_DOUBLE__) || __SIZEOF_DOUBLE__ == 8",
            "",
        ]
    kinds = ("audio_frame", "io") if raw.rate else ("raw",)
    lines += [*(f'#include "samebits/samebits_{kind}.h"' for kind in kinds), ""]
    if raw.made.names:
        names = [c_string(name) for name in raw.made.names]
        lines += [
            f"const char *const {upper}_CLASSES[{upper}_CLASSES_COUNT] = {{",
            f"    {wrapped_list(names, 4)}}};",
            "",
        ]
    if raw.rate:
        ends = limits(raw.input.dtype)
        lines += [*sound.parameters(raw.settings, prefix), ""]
        lines += [*sound.front(raw.settings, raw.input.shape[1], ends, prefix, net), ""]
    else:
        made = _row if raw.given.columns else _pixels
        lines += [*made(raw, prefix, image), ""]
    lines += [*_answer(raw, prefix, image), "", *_predict(raw, prefix, image), ""]
    lines += _selftest(raw, prefix, image)
    lines += ["", "#endif"] if raw.given.columns else []
    return "\n".join(lines) + "\n"


def _array(kind: str, name: str, items: Sequence[str]) -> list[str]:
    """A constant array."""
    return [f"static const {kind} {name}[{len(items)}] = {{", f"    {wrapped_list(items, 4)}}};"]


def _row(raw: Raw, prefix: str, image: WeightImage | None) -> list[str]:
    """The table of the columns; with an image, a function that gives it."""
    known = [len(column.categories) for column in raw.given.columns]
    numbers, exponents, parts = list[int](), list[int](), iter(raw.parts)
    for column in raw.given.columns:
        if column.scale is None:
            exponents.append(0)
            continue
        b, c, h = next(parts)
        exponents.append(b)
        for number in (65535 * h - c, h << 17):
            words = number % (1 << WORD * raw.words)
            numbers += [words >> WORD * i & 0xFFFFFFFF for i in range(raw.words)]
    low, high = limits(raw.input.dtype)
    width, port = byte_size(raw.input) // raw.input.size, f"{prefix.upper()}_INPUT0"
    lines, names = list[str](), [f"{prefix}_raw_{of}" for of in ("words", "exponents", "numbers")]
    tables = (("uint8", known), ("int16", exponents), ("uint32", numbers or [0]))
    if image is None:
        words_text = str(raw.words)
        for (kind, values), name in zip(tables, names, strict=True):
            items = [f"0x{value:08x}u" if kind == "uint32" else str(value) for value in values]
            lines += _array(f"{kind}_t", name, items)
    else:
        words_text = image.number(raw.words, "uint32_t")
        names = [image.name(np.array(values, kind)) for kind, values in tables]
    net = of_net(image)
    items = [
        *(str(len(known)), words_text, str(int(raw.given.missing == "mean")), *names),
        *(f"{port}_{key}{net}" for key in ("SCALE_M", "SCALE_E", "ZERO")),
        *(str(low), str(high), str(width)),
    ]
    if image is None:
        head = f"static const samebits_raw {prefix}_row = {{"
        return [*lines, head, f"    {wrapped_list(items, 4)}}};"]
    return [
        f"static samebits_raw {prefix}_row(const {prefix}_t *net) {{",
        "    const samebits_raw row = {",
        f"        {wrapped_list(items, 8)}}};",
        "    return row;",
        "}",
    ]


def _pixels(raw: Raw, prefix: str, image: WeightImage | None) -> list[str]:
    """The table of the codes of bytes."""
    kind, name = CTYPES[raw.input.dtype], f"{prefix}_pixels"
    if image is None:
        return _array(kind, name, [str(code) for code in raw.pixels.reshape(-1).tolist()])
    return [
        f"static const {kind} *{name}(const {prefix}_t *net) {{",
        f"    return (const {kind} *){image.name(raw.pixels.astype(raw.input.dtype))};",
        "}",
    ]


def _answer(raw: Raw, prefix: str, image: WeightImage | None) -> list[str]:
    """A function from the input's codes to the answer."""
    zero = f"{prefix.upper()}_OUTPUT0_ZERO{of_net(image)}"
    upper = prefix.upper()
    lines = [
        f"static void {prefix}_answer(const {prefix}_t *net, {prefix}_answer_t *answer) {{",
        "    int32_t i;",
    ]
    scales = raw.known_scales if raw.made.rule == "regression" else []
    if scales and image is not None:
        found = np.array([(m, b) for m, b, _ in scales], np.int64)
        lines.append(
            f"    const int64_t (*factors)[2] = (const int64_t (*)[2]){image.name(found)};"
        )
    elif scales:
        factors = [f"{{{_wide(m)}, {_wide(b)}}}" for m, b, _ in scales]
        lines += [
            f"    static const int64_t factors[{upper}_OUTPUT0_SIZE][2] = {{",
            f"        {wrapped_list(factors, 8)}}};",
        ]
    lines.append(f"    {prefix}_run(net, answer->input, answer->output);")
    loop = f"    for (i = 0; i < {upper}_OUTPUT0_SIZE; i++) {{"
    if raw.made.rule == "argmax":
        lines += [
            "    answer->index = 0;",
            loop,
            "        if (answer->output[i] > answer->output[answer->index]) answer->index = i;",
            "    }",
            "    answer->score = answer->output[answer->index];",
        ]
    elif raw.made.rule == "threshold":
        lines += [
            loop,
            f"        const int64_t centred = (int64_t)answer->output[i] - {zero};",
            "        answer->holds[i] = centred > 0;",
            "    }",
        ]
    else:
        lines += [
            loop,
            f"        const int64_t centred = (int64_t)answer->output[i] - {zero};",
            "        const int64_t exact = centred * factors[i][0] + factors[i][1];",
            f"        const int64_t nearest = samebits_round64(exact, {VALUE_SHIFT});",
            "        answer->value[i] = (int32_t)samebits_clamp64(nearest, INT32_MIN, INT32_MAX);",
            "    }",
        ]
    return [*lines, "}"]


def _wide(number: int) -> str:
    """A literal of 64 bits, of two of 32."""
    size = abs(number)
    text = f"(int64_t)((uint64_t)0x{size >> 32:x}u << 32 | 0x{size & 0xFFFFFFFF:x}u)"
    return f"-{text}" if number < 0 else text


def _predict(raw: Raw, prefix: str, image: WeightImage | None) -> list[str]:
    """NAME_predict."""
    lines, net = _head(raw, prefix, " {"), "net, " if image is not None else ""
    if raw.rate:
        lines += [
            f"    if (count < {raw.settings.frame}u) return 1;",
            f"    {prefix}_hear({net}raw, count, answer);",
        ]
    elif raw.given.columns:
        row = f"{prefix}_row"
        if image is not None:
            lines, row = [*lines, f"    const samebits_raw row = {row}(net);"], "row"
        lines += [
            f"    const int wrong = samebits_raw_row(&{row}, raw, answer->input);",
            "    if (wrong) return wrong;",
        ]
    else:
        lines += ["    uint32_t i;", *_looked_up(raw, prefix, "raw[i]", 4, of_net(image))]
    return [*lines, f"    {prefix}_answer(net, answer);", "    return 0;", "}"]


def _looked_up(raw: Raw, prefix: str, byte: str, indent: int, net: str) -> list[str]:
    """A loop that looks up the code of every byte. net: what the table is read of."""
    channel = ""
    if len(raw.pixels) > 1:
        channel = f"i / {raw.input.size // len(raw.pixels)}u * 256u + "
    space = " " * indent
    return [
        f"{space}for (i = 0; i < {prefix.upper()}_RAW_SIZE; i++) {{",
        f"{space}    answer->input[i] = {prefix}_pixels{net}[{channel}{byte}];",
        f"{space}}}",
    ]


def _selftest(raw: Raw, prefix: str, image: WeightImage | None) -> list[str]:
    """NAME_predict_selftest."""
    upper, rule = prefix.upper(), raw.made.rule
    answer, found = f"{prefix}_answer_t", raw.hash()
    lines = [f"int {prefix}_predict_selftest(const {prefix}_t *net, {answer} *answer) {{"]
    bare = bool(raw.given.columns or raw.rate)
    if raw.rate:
        noise = sound.noise(raw.settings)
        lines.append(
            "    " + sound.table(f"{prefix}_noise", noise).rstrip().replace("\n", "\n    ")
        )
    if raw.given.columns and image is not None:
        rows = image.name(raw.samples().astype(np.float64))
        lines.append(f"    const {prefix}_raw_t *rows = (const {prefix}_raw_t *){rows};")
    elif raw.given.columns:
        reals = [number.hex() for number in raw.samples().reshape(-1).tolist()]
        lines += [
            f"    static const {prefix}_raw_t rows[{TESTED} * {upper}_RAW_SIZE] = {{",
            f"        {wrapped_list(reals, 8)}}};",
        ]
    lines += [
        f"    const uint64_t expected = {answer_text(found, image)};",
        "    uint64_t hash = SAMEBITS_HASH;",
        "    uint32_t sample" + ("" if bare and rule == "argmax" else ", i") + ";",
        f"    for (sample = 0; sample < {TESTED}; sample++) {{",
    ]
    if raw.given.columns:
        lines += [
            f"        const {prefix}_raw_t *row = rows + sample * {upper}_RAW_SIZE;",
            f"        if ({prefix}_predict(net, row, answer)) return 1;",
        ]
    elif raw.rate:
        whole, frame = len(sound.noise(raw.settings)), raw.settings.frame
        lines += [
            f"        const uint32_t count = sample ? {frame}u : {whole}u;",
            f"        if ({prefix}_predict(net, {prefix}_noise, count, answer)) return 1;",
        ]
    else:
        byte = f"(uint8_t)((sample * {upper}_RAW_SIZE + i) * 37u + 11u)"
        lines += [
            *_looked_up(raw, prefix, byte, 8, of_net(image)),
            f"        {prefix}_answer(net, answer);",
        ]
    for port, value in (("input", raw.input), ("output", raw.output)):
        width = byte_size(value) // value.size
        size = f"{upper}_{port.upper()}0_SIZE"
        lines.append(f"        hash = samebits_hash(hash, answer->{port}, {width}, {size});")
    if rule == "argmax":
        lines += [
            "        hash = samebits_hash(hash, &answer->index, 4, 1);",
            "        hash = samebits_hash(hash, &answer->score, 4, 1);",
        ]
    else:
        field = "holds" if rule == "threshold" else "value"
        lines += [
            f"        for (i = 0; i < {upper}_OUTPUT0_SIZE; i++) {{",
            f"            const int32_t number = answer->{field}[i];",
            "            hash = samebits_hash(hash, &number, 4, 1);",
            "        }",
        ]
    return [*lines, "    }", "    return hash != expected;", "}"]
