"""The LSTM cell in C: the functions of `kernels.lstm`, called through ctypes."""

from __future__ import annotations

from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from samebits.kernels.eager import Acc
from samebits.kernels.native import Native, _p, _threads


class NativeCell:
    """The cell functions of a loaded library. Tensors are dense rows; shapes as in `lstm`."""

    def __init__(self, native: Native) -> None:
        self._c = native

    def gates(
        self,
        acc_x: Tensor,
        acc_h: Tensor | None,
        bias: Tensor | None,
        shifts: tuple[int, int, int],
        lookup: Tensor,
    ) -> Tensor:
        out = torch.empty(acc_x.shape, dtype=torch.int16)
        self._c._lstm_gates(
            *(_optional(v) for v in (acc_x, acc_h, bias)),
            *_sizes(acc_x.shape[0], acc_x.shape[1] // 4, *shifts),
            *(_p(lookup), _p(out), _threads()),
        )
        return out

    def state_sum(self, gates: Tensor, before: Tensor | None, shifts: tuple[int, int]) -> Acc:
        rows, units = gates.shape[0], gates.shape[1] // 4
        out = torch.empty(rows, units, dtype=torch.int64)
        sizes = _sizes(rows, units, *shifts)
        largest = self._c._lstm_state(_p(gates), _optional(before), *sizes, _p(out))
        return out, int(largest)

    def hidden(self, gates: Tensor, c: Tensor, shift: int, lookup: Tensor) -> Tensor:
        out = torch.empty(c.shape, dtype=torch.int8)
        sizes = _sizes(*c.shape, shift)
        self._c._lstm_hidden(_p(gates), _p(c), *sizes, _p(lookup), _p(out))
        return out

    def hidden_grad_sum(self, g: Tensor, back: Tensor | None, shifts: tuple[int, int]) -> Acc:
        out = torch.empty(g.shape, dtype=torch.int64)
        width = 32 if back is None else 8 * back.element_size()
        sides = (_p(g), 8 * g.element_size(), _optional(back), width)
        largest = self._c._lstm_hidden_grad(*sides, *_sizes(g.numel(), *shifts), _p(out))
        return out, int(largest)

    def state_grad_sum(
        self,
        dh: Tensor,
        gates: Tensor,
        c: Tensor,
        shift: int,
        lookup: Tensor,
        later: tuple[Tensor, Tensor] | None,
        shifts: tuple[int, int],
    ) -> Acc:
        out = torch.empty(c.shape, dtype=torch.int64)
        dc, after = (None, None) if later is None else later
        largest = self._c._lstm_state_grad(
            *(_p(v) for v in (dh, gates, c)),
            *_sizes(*c.shape, shift),
            *(_p(lookup), _optional(dc), _optional(after)),
            *_sizes(*shifts),
            _p(out),
        )
        return out, int(largest)

    def gate_grads(
        self,
        dh: Tensor,
        dc: Tensor,
        gates: Tensor,
        c: Tensor,
        shift: int,
        lookup: Tensor,
        before: Tensor | None,
        shifts: tuple[int, int, int, int],
    ) -> Acc:
        out = torch.empty(gates.shape, dtype=torch.int64)
        largest = self._c._lstm_gate_grads(
            *(_p(v) for v in (dh, dc, gates, c)),
            *_sizes(*c.shape, shift),
            *(_p(lookup), _optional(before)),
            *_sizes(*shifts),
            _p(out),
        )
        return out, int(largest)


def _optional(v: Tensor | None) -> c_void_p:
    return c_void_p(None) if v is None else _p(v)


def _sizes(*sizes: int) -> tuple[c_int64, ...]:
    return tuple(map(c_int64, sizes))
