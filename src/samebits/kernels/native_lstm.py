"""The cell of an LSTM in C (training.md 5 and 7): tensors are dense rows of samples."""

from __future__ import annotations

from typing import Any

from torch import Tensor, get_num_threads

from samebits.kernels.memory import GRADIENT, I8, I16, I32, I64, SUMS, pointer
from samebits.kernels.native_vectors import NativeVectors
from samebits.kernels.protocol import BITS, Q_GATE, CellStep, GateShifts, Shifts, Sum
from samebits.kernels.rows import Exponent

ENTRIES = 2 * (2 * Q_GATE + 1)  # of the two tables


class NativeLSTM(NativeVectors):
    """The part of `Native` that is the cell of an LSTM."""

    def lstm_gates(
        self,
        acc_x: Tensor,
        acc_h: Tensor | None,
        bias: Tensor | None,
        shifts: tuple[Exponent, Exponent, Exponent],
        lookup: Tensor,
    ) -> Tensor:
        """In one pass over the rows; with exponents by rows in torch."""
        if _by_rows(*shifts):
            return super().lstm_gates(acc_x, acc_h, bias, shifts, lookup)
        out = acc_x.new_empty(acc_x.shape, dtype=I16)
        n, units = acc_x.shape[0], acc_x.shape[1] // 4
        size = n * units * 4
        sums = (pointer(acc_x, size, I32), pointer(acc_h, size, I32))
        operands = (*sums, pointer(bias, 4 * units, I64), n, units, *shifts)
        places = (pointer(lookup, ENTRIES, I16), pointer(out, size, I16), get_num_threads())
        self._c.samebits_lstm_gates(*operands, *places)
        return out

    def lstm_state_sum(self, gates: Tensor, before: Tensor | None, shifts: Shifts) -> Sum:
        if _by_rows(*shifts):
            return super().lstm_state_sum(gates, before, shifts)
        sizes = n, units = gates.shape[0], gates.shape[1] // 4
        out = gates.new_empty(sizes, dtype=I64)
        size = n * units
        operands = (pointer(gates, 4 * size, I16), pointer(before, size, I16), *sizes, *shifts)
        return out, self._c.samebits_lstm_state(*operands, pointer(out, size, I64))

    def lstm_hidden(self, cell: CellStep) -> Tensor:
        if _by_rows(cell.shift):
            return super().lstm_hidden(cell)
        out = cell.c.new_empty(cell.c.shape, dtype=I8)
        self._c.samebits_lstm_hidden(*_in_memory(cell), pointer(out, out.numel(), I8))
        return out

    def lstm_hidden_grad_sum(self, g: Tensor, back: Tensor | None, shifts: Shifts) -> Sum:
        if _by_rows(*shifts):
            return super().lstm_hidden_grad_sum(g, back, shifts)
        out, n = g.new_empty(g.shape, dtype=I64), g.numel()
        width = 32 if back is None else 8 * back.element_size()
        of_g, of_back = pointer(g, n, *GRADIENT), pointer(back, n, *SUMS)
        sides = (of_g, BITS[g.dtype], of_back, width, n, *shifts)
        return out, self._c.samebits_lstm_hidden_grad(*sides, pointer(out, n, I64))

    def lstm_state_grad_sum(
        self, dh: Tensor, cell: CellStep, later: tuple[Tensor, Tensor] | None, shifts: Shifts
    ) -> Sum:
        """One pass over the step; with exponents by rows in torch."""
        if _by_rows(cell.shift, *shifts):
            return super().lstm_state_grad_sum(dh, cell, later, shifts)
        out, size = cell.c.new_empty(cell.c.shape, dtype=I64), cell.c.numel()
        dc, after = later or (None, None)
        others = (pointer(dc, size, I16), pointer(after, 4 * size, I16))
        own, place = (pointer(dh, size, I16), *_in_memory(cell)), pointer(out, size, I64)
        return out, self._c.samebits_lstm_state_grad(*own, *others, *shifts, place)

    def lstm_gate_grads(
        self, dh: Tensor, dc: Tensor, cell: CellStep, before: Tensor | None, shifts: GateShifts
    ) -> Sum:
        """One pass over the step; with exponents by rows in torch."""
        if _by_rows(cell.shift, *shifts):
            return super().lstm_gate_grads(dh, dc, cell, before, shifts)
        out, size = cell.gates.new_empty(cell.gates.shape, dtype=I64), cell.c.numel()
        grads = (pointer(dh, size, I16), pointer(dc, size, I16))
        own = (*grads, *_in_memory(cell), pointer(before, size, I16))
        return out, self._c.samebits_lstm_gate_grads(*own, *shifts, pointer(out, 4 * size, I64))


def _in_memory(cell: CellStep) -> tuple[Any, ...]:
    """The arguments of C that are a step: gates, states, their sizes, the shift and the tables."""
    gates, c, shift, lookup = cell
    states = (pointer(gates, 4 * c.numel(), I16), pointer(c, c.numel(), I16))
    return *states, *c.shape, shift, pointer(lookup, ENTRIES, I16)


def _by_rows(*exponents: Exponent) -> bool:
    """Whether one of them is a tensor: such operands are left to `Eager`."""
    return Tensor in map(type, exponents)
