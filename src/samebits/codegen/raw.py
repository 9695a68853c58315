"""From raw values to the answer: the constants and the C of NAME_predict. docs/spec/tables.md 5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from samebits.codegen import sound
from samebits.codegen.header import of_net, scale_parts
from samebits.codegen.image import Image, answer_text
from samebits.codegen.memory import byte_size
from samebits.codegen.names import CTYPES, c_string, continued, wrapped_list
from samebits.contract import Contract, InputMeaning, OutputMeaning
from samebits.data.audio import RATES, LogMel
from samebits.data.columns import ColumnScale
from samebits.data.dataset import PEAK, value_table
from samebits.ir.graph import Array, Graph
from samebits.ir.integer.define import limits
from samebits.ir.integer.layers import fnv1a
from samebits.ir.interpreter import run
from samebits.ir.value import Value
from samebits.spec.formats import round_real
from samebits.spec.tables import FEATURE_BITS, VALUE_SHIFT, device_parts, device_scale

WORD, MOST_WORDS = 32, 16
HEADER = "inference/samebits_raw.h"
TESTED = 2  # raw samples of the self-test
SPREADS = (0.0, -1.25, 0.5, 2.75, -0.03125, 1.5, -3.5)  # of its values from the centres


@dataclass(frozen=True, eq=False)
class Raw:
    """A network of one input and one output, and what both mean.

    graph: of integers; given, made: the meaning of its input and its output
    rate:  samples per second of the recordings that it takes; 0 for rows and images
    room:  samples of the longest recording that a program around it takes
    """

    graph: Graph
    given: InputMeaning
    made: OutputMeaning
    rate: int = 0
    room: int = 0

    @property
    def input(self) -> Value:
        """The input."""
        return self.graph.values[self.graph.inputs[0]]

    @property
    def output(self) -> Value:
        """The output."""
        return self.graph.values[self.graph.outputs[0]]

    @property
    def size(self) -> int:
        """Raw values of a sample: columns, bytes of an image, or as `sound.packed` has them."""
        if self.rate:
            return sound.COUNT + self.room
        return len(self.given.columns) or self.input.size

    @property
    def dtype(self) -> str:
        """The type of a raw value: the bits of a binary64 number, a byte, a sample."""
        if self.rate:
            return "int16"
        return "int64" if self.given.columns else "uint8"

    @cached_property
    def settings(self) -> LogMel:
        """The features of recordings."""
        return LogMel.at(self.rate)

    @property
    def answers(self) -> int:
        """Numbers of an answer: the class and its score, or one for each label or target."""
        return 2 if self.made.rule == "argmax" else self.output.size

    @cached_property
    def parts(self) -> list[tuple[int, int, int]]:
        """(b, C, H) of each column of numbers."""
        return [
            device_parts(column.scale.centre, column.scale.spread)
            for column in self.given.columns
            if column.scale is not None
        ]

    @cached_property
    def words(self) -> int:
        """32-bit words of each number of a column."""
        most = [max(abs(c), 65535 * h + abs(c), h << 17).bit_length() for _, c, h in self.parts]
        return -(-(max(most, default=1) + 3) // WORD)

    @cached_property
    def pixels(self) -> Array:
        """The code of every byte, of each channel or of all: [channels, 256]."""
        table = value_table(PEAK, self.given.mean, self.given.std).numpy().astype(np.float64)
        codes = [self._code(Fraction(value)) for value in table.reshape(-1).tolist()]
        return np.array(codes).reshape(-1, PEAK + 1)

    @cached_property
    def scales(self) -> list[tuple[int, int, int] | None]:
        """(M, B, K) of each target; None for one whose values are too large."""
        found = self.output.quantization
        assert found is not None
        low, high = limits(self.output.dtype)
        largest = max(high - found.zero_point, found.zero_point - low)
        return [
            device_scale(scale.centre, Fraction(scale.spread) * found.scales[0], largest)
            for scale in self.made.scales or [ColumnScale(0.0, 1.0)] * self.output.size
        ]

    @property
    def known_scales(self) -> list[tuple[int, int, int]]:
        """The same of a network that has NAME_predict."""
        return [scale for scale in self.scales if scale is not None]

    def _code(self, value: Fraction) -> int:
        found = self.input.quantization
        assert found is not None
        low, high = limits(self.input.dtype)
        return min(high, max(low, round_real(value / found.scales[0]) + found.zero_point))

    def codes(self, raw: Array) -> Array:
        """The input's codes of raw samples [n, size]: binary64, bytes, or int16."""
        if self.rate:
            heard = sound.features(raw, self.settings, self.input.shape[1])
            different, places = np.unique(heard, return_inverse=True)
            codes = [self._code(Fraction(int(code), 1 << sound.BITS)) for code in different]
            found = np.array(codes)[places.reshape(heard.shape)]
        elif not self.given.columns:
            channels = len(self.pixels)
            planes = raw.reshape(len(raw), channels, -1)
            found = np.stack([self.pixels[c][planes[:, c]] for c in range(channels)], axis=1)
        else:
            parts: list[Array] = []
            for place, column in enumerate(self.given.columns):
                values, missing = raw[:, place], np.isnan(raw[:, place])
                if column.scale is not None:
                    filled = np.where(missing, column.scale.centre, values)
                    parts.append(column.scale.features(filled)[:, None].astype(np.int64))
                else:
                    known = np.arange(len(column.categories))
                    parts.append((values[:, None] == known) * (1 << FEATURE_BITS))
            features = np.concatenate(parts, axis=1)
            table, places = np.unique(features, return_inverse=True)
            mapped = [self._code(Fraction(int(code), 1 << FEATURE_BITS)) for code in table]
            found = np.array(mapped)[places.reshape(features.shape)]
        shape = (len(raw) * self.input.shape[0], *self.input.shape[1:])
        return found.reshape(shape).astype(self.input.dtype)

    def answer(self, codes: Array) -> Array:
        """The answers [n, answers] int32 of output codes [n, ...]."""
        flat = codes.reshape(-1, self.output.size).astype(np.int64)
        found = self.output.quantization
        assert found is not None
        if self.made.rule == "argmax":
            best = flat.argmax(axis=1)
            return np.stack([best, flat[np.arange(len(flat)), best]], axis=1).astype(np.int32)
        if self.made.rule == "threshold":
            return (flat > found.zero_point).astype(np.int32)
        columns = []
        for column, (m, b, _) in zip(flat.T, self.known_scales, strict=True):
            exact = [
                round_real(Fraction((code - found.zero_point) * m + b, 1 << VALUE_SHIFT))
                for code in column.tolist()
            ]
            columns.append(np.clip(exact, -(2**31), 2**31 - 1))
        return np.stack(columns, axis=1).astype(np.int32)

    def samples(self) -> Array:
        """Raw samples of the self-test [TESTED, size]."""
        if self.rate:
            noise = sound.noise(self.settings)
            return sound.packed([noise, noise[: self.settings.frame]], len(noise))
        if not self.given.columns:
            bytes_ = np.arange(TESTED * self.size) * 37 + 11
            return bytes_.reshape(TESTED, -1).astype(np.uint8)
        rows = np.empty((TESTED, self.size))
        for row in range(TESTED):
            for place, column in enumerate(self.given.columns):
                if column.scale is None:
                    rows[row, place] = (row + place) % len(column.categories)
                else:
                    away = SPREADS[(3 * row + place) % len(SPREADS)]
                    rows[row, place] = column.scale.centre + away * column.scale.spread
        return rows

    def hash(self) -> int:
        """The hash of the codes of the input and the output, and of the answers, of `samples`."""
        found = b""
        for sample in self.samples():
            codes = self.codes(sample[None])
            (outputs,) = run(self.graph, [codes])
            answer = self.answer(outputs)
            for array in (codes, outputs, answer):
                found += array.astype(array.dtype.newbyteorder("<")).tobytes()
        return fnv1a(np.frombuffer(found, np.uint8))


def raw_of(graph: Graph, contract: Contract, rate: int | None = None) -> Raw | str:
    """The network as NAME_predict takes it, or why there is none for it. rate: of its recordings"""
    if len(graph.inputs) != 1 or len(graph.outputs) != 1 or graph.states:
        return "it has more than one input and one output, or states"
    value, output = graph.values[graph.inputs[0]], graph.values[graph.outputs[0]]
    given, made = contract.input(value.name), contract.output(output.name)
    heard = rate in RATES and value.shape[2:] == (LogMel.at(rate).mels,)
    given = InputMeaning(value.name) if heard else given
    if given is None or not (heard or given.columns or given.mean):
        return "its contract does not say what columns, pixels or recordings its input takes"
    if made is None or not made.rule:
        return "its contract has no rule for its output"
    for each in (value, output):
        found = each.quantization
        if found is None or not found.plain or scale_parts(found.scales[0]) is None:
            return f"{each.name!r} has no one binary scale"
    if value.shape[:1] != (1,) or output.shape[:1] != (1,) or output.size != output.shape[-1]:
        return "it computes several samples at a time, or several answers for one"
    if byte_size(output) > 4 * output.size:
        return "its output has codes of 64 bits"
    if (len(made.names) or len(made.scales) or output.size) != output.size:
        return "its output has more numbers than names"
    raw = Raw(graph, given, made, rate if heard and rate else 0)
    if made.rule == "regression" and None in raw.scales:
        return "its values are 2**62 or more"
    return raw if raw.words <= MOST_WORDS else "a column's centre is too small beside its spread"


# --- text ---------------------------------------------------------------------------------------


def declarations(raw: Raw, prefix: str) -> list[str]:
    """Lines of the header."""
    upper, rule = prefix.upper(), raw.made.rule
    fields = {
        "argmax": [
            f"    int32_t index; /* of {upper}_CLASSES */",
            "    int32_t score; /* its code: output[index] */",
        ],
        "threshold": [f"    uint8_t holds[{upper}_OUTPUT0_SIZE]; /* each of {upper}_CLASSES */"],
        "regression": [f"    int32_t value[{upper}_OUTPUT0_SIZE]; /* in 2**-{upper}_VALUE_BITS */"],
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
        *_classes(raw, upper),
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


def _classes(raw: Raw, upper: str) -> list[str]:
    """The names of classes, labels or targets, and the places of values."""
    lines = []
    if raw.made.names:
        lines = [
            f"#define {upper}_CLASSES_COUNT {len(raw.made.names)}",
            f"extern const char *const {upper}_CLASSES[{upper}_CLASSES_COUNT];",
        ]
    if raw.made.rule == "regression":
        bits = [str(k) if k >= 0 else f"({k})" for _, _, k in raw.known_scales]
        items = f"    {{{wrapped_list(bits, 5)}}}".split("\n")
        lines += continued([f"#define {upper}_VALUE_BITS", *items])
    return lines


def source(raw: Raw, prefix: str, image: Image | None = None) -> str:
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


def _row(raw: Raw, prefix: str, image: Image | None) -> list[str]:
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


def _pixels(raw: Raw, prefix: str, image: Image | None) -> list[str]:
    """The table of the codes of bytes."""
    kind, name = CTYPES[raw.input.dtype], f"{prefix}_pixels"
    if image is None:
        return _array(kind, name, [str(code) for code in raw.pixels.reshape(-1).tolist()])
    return [
        f"static const {kind} *{name}(const {prefix}_t *net) {{",
        f"    return (const {kind} *){image.name(raw.pixels.astype(raw.input.dtype))};",
        "}",
    ]


def _answer(raw: Raw, prefix: str, image: Image | None) -> list[str]:
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


def _predict(raw: Raw, prefix: str, image: Image | None) -> list[str]:
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


def _selftest(raw: Raw, prefix: str, image: Image | None) -> list[str]:
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
