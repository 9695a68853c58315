"""The cell of an LSTM in C (training.md 5 and 7): tensors are dense rows of samples."""

from __future__ import annotations

from torch import Tensor, get_num_threads

from samebits.kernels.memory import GRADIENT, I8, I16, I32, I64, SUMS, pointer
from samebits.kernels.native_vectors import NativeVectors
from samebits.kernels.protocol import BITS, Q_GATE, Sum
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

    def lstm_state_sum(
        self, gates: Tensor, before: Tensor | None, shifts: tuple[Exponent, Exponent]
    ) -> Sum:
        if _by_rows(*shifts):
            return super().lstm_state_sum(gates, before, shifts)
        sizes = n, units = gates.shape[0], gates.shape[1] // 4
        out = gates.new_empty(sizes, dtype=I64)
        size = n * units
        operands = (pointer(gates, 4 * size, I16), pointer(before, size, I16), *sizes, *shifts)
        return out, self._c.samebits_lstm_state(*operands, pointer(out, size, I64))

    def lstm_hidden(self, gates: Tensor, c: Tensor, shift: Exponent, lookup: Tensor) -> Tensor:
        if _by_rows(shift):
            return super().lstm_hidden(gates, c, shift, lookup)
        out, size = c.new_empty(c.shape, dtype=I8), c.numel()
        states = (pointer(gates, 4 * size, I16), pointer(c, size, I16))
        operands = (*states, *c.shape, shift, pointer(lookup, ENTRIES, I16))
        self._c.samebits_lstm_hidden(*operands, pointer(out, size, I8))
        return out

    def lstm_hidden_grad_sum(
        self, g: Tensor, back: Tensor | None, shifts: tuple[Exponent, Exponent]
    ) -> Sum:
        if _by_rows(*shifts):
            return super().lstm_hidden_grad_sum(g, back, shifts)
        out, n = g.new_empty(g.shape, dtype=I64), g.numel()
        width = 32 if back is None else 8 * back.element_size()
        of_g, of_back = pointer(g, n, *GRADIENT), pointer(back, n, *SUMS)
        sides = (of_g, BITS[g.dtype], of_back, width, n, *shifts)
        return out, self._c.samebits_lstm_hidden_grad(*sides, pointer(out, n, I64))

    def lstm_state_grad_sum(
        self,
        dh: Tensor,
        gates: Tensor,
        c: Tensor,
        shift: Exponent,
        lookup: Tensor,
        later: tuple[Tensor, Tensor] | None,
        shifts: tuple[Exponent, Exponent],
    ) -> Sum:
        """One pass over the step; with exponents by rows in torch."""
        if _by_rows(shift, *shifts):
            return super().lstm_state_grad_sum(dh, gates, c, shift, lookup, later, shifts)
        out, size = c.new_empty(c.shape, dtype=I64), c.numel()
        states = (pointer(gates, 4 * size, I16), pointer(c, size, I16))
        own = (pointer(dh, size, I16), *states, *c.shape, shift)
        dc, after = later or (None, None)
        others = (pointer(dc, size, I16), pointer(after, 4 * size, I16))
        places = (pointer(lookup, ENTRIES, I16), *others, *shifts, pointer(out, size, I64))
        return out, self._c.samebits_lstm_state_grad(*own, *places)

    def lstm_gate_grads(
        self,
        dh: Tensor,
        dc: Tensor,
        gates: Tensor,
        c: Tensor,
        shift: Exponent,
        lookup: Tensor,
        before: Tensor | None,
        shifts: tuple[Exponent, Exponent, Exponent, Exponent],
    ) -> Sum:
        """One pass over the step; with exponents by rows in torch."""
        if _by_rows(shift, *shifts):
            return super().lstm_gate_grads(dh, dc, gates, c, shift, lookup, before, shifts)
        out, size = gates.new_empty(gates.shape, dtype=I64), c.numel()
        states = (pointer(gates, 4 * size, I16), pointer(c, size, I16))
        grads = (pointer(dh, size, I16), pointer(dc, size, I16))
        own = (*grads, *states, *c.shape, shift)
        tables = (pointer(lookup, ENTRIES, I16), pointer(before, size, I16))
        place = pointer(out, 4 * size, I64)
        return out, self._c.samebits_lstm_gate_grads(*own, *tables, *shifts, place)


def _by_rows(*exponents: Exponent) -> bool:
    """Whether one of them is a tensor: such operands are left to `Eager`."""
    return Tensor in map(type, exponents)
