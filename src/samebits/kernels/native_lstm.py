"""LSTM layers in C, all steps at a time (training.md 5 and 7): tensors with one exponent."""

from __future__ import annotations

from typing import Any

import torch

from samebits.kernels.memory import GRADIENT, I8, I16, I32, I64, pointer
from samebits.kernels.native_vectors import NativeVectors
from samebits.kernels.protocol import (
    BITS,
    Q_GATE,
    LSTMGradients,
    LSTMLayer,
    LSTMStates,
    Part,
    WholePart,
)

ENTRIES = 2 * (2 * Q_GATE + 1)  # of the two tables
FORWARD, BACKWARD = 4, 11  # scratch numbers of 64 bits for every state of a step
_threads = torch.get_num_threads


class NativeLSTM(NativeVectors):
    """The part of `Native` that is LSTM layers."""

    def lstm(self, layer: LSTMLayer) -> LSTMStates | None:
        words, kept = self._layer(layer)
        steps, n, units = _sizes(layer)
        x, size, last = layer.products[0], n * units, self._out()
        h, c = (x.new_empty((steps, n, units), dtype=kind) for kind in (I8, I16))
        exponents, count = x.new_empty(steps, dtype=I64), FORWARD * size + 4 * units
        room = x.new_empty(count, dtype=I64)
        states = (pointer(h, steps * size, I8), pointer(c, steps * size, I16))
        places = (*states, pointer(exponents, steps, I64), last, _threads())
        self._run(self._c.samebits_lstm, words, pointer(room, count, I64), *places)
        del kept  # till C has read it
        return LSTMStates(h, c, exponents, last[0])

    def lstm_gradient(
        self,
        layer: LSTMLayer,
        states: LSTMStates,
        grad: WholePart | None,
        at_last: WholePart | None,
        bits: int,
        wanted: tuple[bool, bool],
    ) -> LSTMGradients | None:
        """One call, which needs the gates of two steps at a time."""
        words, kept = self._layer(layer)
        steps, n, units = _sizes(layer)
        x, size, (h, c, exponents, _) = layer.products[0], n * units, states
        whole, count = steps * size, BACKWARD * size + 4 * units + steps
        room, d = x.new_empty(count, dtype=I64), x.new_empty((steps, n, 4 * units))
        past, e_past, e_d = torch.empty_like(h), self._out(), self._out()
        first = [(x.new_empty((n, units)) if want else None, self._out()) for want in wanted]
        arriving = [_dense(grad), _dense(at_last)]
        self._run(
            self._c.samebits_lstm_gradient,
            *(words, pointer(room, count, I64)),
            *(pointer(h, whole, I8), pointer(c, whole, I16), pointer(exponents, steps, I64)),
            *self._arriving(arriving[0], whole),
            *(*self._arriving(arriving[1], size), bits),
            *(pointer(past, whole, I8), e_past),
            *(place for v, e in first for place in (pointer(v, size, I32), e)),
            *(pointer(d, 4 * whole, I32), e_d, _threads()),
        )
        del kept  # till C has read it
        of_h, of_c = (None if v is None else (v, e[0]) for v, e in first)
        return LSTMGradients((d, e_d[0]), (past, e_past[0]), (of_h, of_c))

    def _arriving(self, part: Part | None, count: int) -> tuple[Any, ...]:
        """Where C finds a gradient, of how many bits, and its exponent."""
        if part is None:
            return None, 16, self._at(0)
        codes, exponent = part
        return pointer(codes, count, *GRADIENT), BITS[codes.dtype], self._at(exponent)

    def _layer(self, layer: LSTMLayer) -> tuple[Any, Any]:
        """A layer as C reads it (`Layer` of lstm.c), and the tensors that lie there."""
        steps, n, units = _sizes(layer)
        x, w, h, c = (_dense(part) for part in (layer.products, layer.weight, layer.h, layer.c))
        size = n * units
        words = [
            *self._placed(x, 4 * steps * size, I32),
            *self._placed(w, 4 * units * units, I8),
        ]
        for codes, delayed, exponent in layer.biases:
            places = (pointer(codes, 4 * units, I8), pointer(delayed, 4 * units, I16))
            words += [*map(self._address, places), self._at(exponent)]
        words += [self._address(None)] * 3 * (2 - len(layer.biases))
        words += [*self._placed(h, size, I8), *self._placed(c, size, I16)]
        lookup = self._address(pointer(layer.lookup, ENTRIES, I16))
        return self._words([*words, steps, n, units, int(layer.reverse), lookup]), (x, w, h, c)

    def _placed(self, part: Part | None, count: int, kind: torch.dtype) -> tuple[Any, Any]:
        """Where C finds codes and their exponent."""
        if part is None:
            return self._address(None), self._address(None)
        return self._address(pointer(part[0], count, kind)), self._at(part[1])


def _sizes(layer: LSTMLayer) -> tuple[int, int, int]:
    """T, N and H."""
    steps, n, gates = layer.products[0].shape
    return steps, n, gates // 4


def _dense(part: Part | None) -> Part | None:
    return None if part is None else (part[0].contiguous(), part[1])
