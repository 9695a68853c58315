"""Recurrent layers in C, all steps at a time (training.md 5, 7 and 12)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.kernels.memory import GRADIENT, I8, I16, I32, I64, pointer
from samebits.kernels.native_vectors import NativeVectors
from samebits.kernels.protocol import (
    BITS,
    GATES,
    Q_GATE,
    CellGradients,
    CellLayer,
    CellStates,
    Part,
)
from samebits.kernels.rows import Exponent, spread

ENTRIES = 2 * (2 * Q_GATE + 1)  # of the two tables
SPARE = 16  # numbers of a room, for the alignment of what lies in it
_threads = torch.get_num_threads


class NativeRecurrence(NativeVectors):
    """The part of `Native` that is recurrent layers."""

    def recurrence(self, layer: CellLayer) -> CellStates | None:
        """One call."""
        of_layer, kept = self._layer(layer)
        steps, n, units, gates = _sizes(layer)
        x, count, blocks = layer.products[0], steps * n * units, _blocks(layer)
        h, states = (x.new_empty((steps, n, units), dtype=k) for k in (I8, _state_type(gates)))
        exponents = x.new_empty((steps, n, 1) if layer.by_rows else steps, dtype=I64)
        (own, e_h), (last, e_last) = self._of_steps(layer), self._of_samples(layer)
        numbers = (3 * gates + 6) * n * units // 4 + (2 * gates * units + steps) * blocks + SPARE
        room, found = x.new_empty(numbers, dtype=I64), self._out()
        self._run(
            self._c.samebits_recurrence,
            *(*of_layer, pointer(room, numbers, I64)),
            *(pointer(h, count, I8), own, pointer(states, count, I8, I16)),
            *(pointer(exponents, steps * blocks, I64), last, found, _threads()),
            found=found,
        )
        del kept  # till C has read it
        return CellStates((h, e_h()), states, exponents, e_last())

    def recurrence_gradient(
        self,
        layer: CellLayer,
        states: CellStates,
        grad: Part | None,
        at_last: Part | None,
        bits: int,
        wanted: Sequence[bool],
    ) -> CellGradients | None:
        """One call, which opens the gates of every step again."""
        of_layer, kept = self._layer(layer)
        steps, n, units, gates = _sizes(layer)
        x, size, blocks = layer.products[0], n * units, _blocks(layer)
        of_blocks = (2 * gates * units + 3 * steps + 2) * blocks
        numbers = (8 * gates + 15) * size // 4 + of_blocks + SPARE
        whole, room = steps * size, x.new_empty(numbers, dtype=I64)
        h = None if states.h is None else states.h[0]
        past, (own, e_past) = x.new_empty((steps, n, units), dtype=I8), self._of_steps(layer)
        first = [x.new_empty((n, units)) if want else None for want in wanted]
        firsts = [self._of_samples(layer) for _ in wanted]
        d_h = torch.empty_like(x) if layer.kind == "gru" else None
        d_x, (of_h, e_h), (of_x, e_x) = torch.empty_like(x), *map(self._of_steps, [layer] * 2)
        (of_grad, grad_kept), found = self._arriving(_dense(grad), whole, steps * n), self._out()
        of_last, last_kept = self._arriving(_dense(at_last), size, n)
        self._run(
            self._c.samebits_recurrence_gradient,
            *(*of_layer, pointer(room, numbers, I64), pointer(h, whole, I8)),
            *(pointer(states.states, whole, _state_type(gates)),),
            pointer(states.exponents, steps * blocks, I64),
            *(*of_grad, *of_last, bits, pointer(past, whole, I8), own),
            *(w for v, e in zip(first, firsts, strict=True) for w in (pointer(v, size, I32), e[0])),
            *(pointer(d_h, gates * whole, I32), of_h),
            *(pointer(d_x, gates * whole, I32), of_x, found, _threads()),
            found=found,
        )
        del kept, grad_kept, last_kept  # till C has read them
        at_x = d_x, e_x()
        states_of = (None if v is None else (v, e[1]()) for v, e in zip(first, firsts, strict=True))
        at_h = at_x if d_h is None else (d_h, e_h())
        return CellGradients(at_x, at_h, (past, e_past()), (*states_of,))  # type: ignore[arg-type]

    def _of_steps(self, layer: CellLayer) -> tuple[Any, Callable[[], Exponent]]:
        """Where C writes the exponents of all steps, or their one, and what gives them."""
        return self._results(_exponents(layer, *layer.products[0].shape[:2]))

    def _of_samples(self, layer: CellLayer) -> tuple[Any, Callable[[], Exponent]]:
        """The same of one step."""
        return self._results(_exponents(layer, layer.products[0].shape[1]))

    def _arriving(self, part: Part | None, count: int, rows: int) -> tuple[tuple[Any, ...], Any]:
        """Where C finds a gradient, of how many bits, and its exponents; what lies there."""
        if part is None:
            return (None, 16, self._at(0)), None
        codes, exponent = part
        given, _, held = self._of_rows(exponent, rows)
        return (pointer(codes, count, *GRADIENT), BITS[codes.dtype], given), (codes, held)

    def _layer(self, layer: CellLayer) -> tuple[tuple[Any, ...], Any]:
        """The kind of a layer and it as C reads it (`Layer` of step.h); tensors that lie there."""
        steps, n, units, gates = _sizes(layer)
        width, words, held = gates * units, list[Any](), list[Any]()
        columns = width if _by_columns(layer) else 1
        parts = (  # with the number of their codes, their type, and their exponents by rows
            (layer.products, steps * n * width, I32, (steps, n, columns)),
            (layer.weight, width * units, I8, (columns,) if columns > 1 else ()),
            (layer.h, n * units, I8, (n,)),
            (layer.state, n * units, _state_type(gates), (n,)),
        )
        for part, count, kind, size in parts:
            if part is None:
                words.append([self._address(None)] * 2)
                continue
            codes, exponent = part[0].contiguous(), part[1]
            if layer.by_rows and size:
                if isinstance(exponent, Tensor) and len(size) == 1:
                    exponent = exponent.flatten()
                exponent = spread(exponent, size, codes)
            given, _, rows = self._of_rows(exponent, math.prod(size))
            given = given if rows is None else self._address(given)
            words.append([self._address(pointer(codes, count, kind)), given])
            held += (codes, rows)
        biases: list[Any] = []
        for bias in layer.biases:
            w, a, e_b = (None, None, 0) if bias is None else bias
            places = pointer(w, width, I8), pointer(a, width, I16)
            biases += [*map(self._address, places), self._at(e_b)]
        lookup = self._address(pointer(layer.lookup, ENTRIES, I16))
        flags = int(layer.by_rows), int(columns > 1)
        of_x, of_w, *given_states = words
        numbers = (steps, n, units, int(layer.reverse), lookup, *flags)
        own = [*of_x, *of_w, *biases, *itertools.chain(*given_states), *numbers]
        found = self._words(own)
        return (list(GATES).index(layer.kind), found), held


def _by_columns(layer: CellLayer) -> bool:
    """Whether columns of gates have exponents of their own."""
    (_, e_x), (_, e_w) = layer.products, layer.weight
    return isinstance(e_w, Tensor) or (isinstance(e_x, Tensor) and e_x.shape[-1] > 1)


def _exponents(layer: CellLayer, *size: int) -> Tensor | None:
    """A tensor like exponents of rows, [*size, 1]; None where there is one exponent."""
    if not layer.by_rows:
        return None
    return layer.products[0].new_empty((*size, 1), dtype=I64)


def _blocks(layer: CellLayer) -> int:
    """The samples that have exponents of their own, or 1."""
    return layer.products[0].shape[1] if layer.by_rows else 1


def _state_type(gates: int) -> torch.dtype:
    """The type of the states of cells with so many gates."""
    return I16 if gates > 1 else I8


def _sizes(layer: CellLayer) -> tuple[int, int, int, int]:
    """T, N, H, and the number of gates."""
    steps, n, width = layer.products[0].shape
    gates = GATES[layer.kind]
    return steps, n, width // gates, gates


def _dense(part: Part | None) -> Part | None:
    return None if part is None else (part[0].contiguous(), part[1])
