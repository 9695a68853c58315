"""From raw values to the answer: the constants of NAME_predict. docs/spec/tables.md 5."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from samebits.codegen import sound
from samebits.codegen.header import scale_parts
from samebits.codegen.memory import byte_size
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
UNSAID_STEPS = "no contract says of how many steps an answer is"
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
    if graph.states:
        return f"it is one step of a sequence, and {UNSAID_STEPS}"
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        return "it has more than one input and one output"
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
