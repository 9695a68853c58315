"""The cell of an LSTM, element by element (docs/spec/training.md 5 and 7), in two realisations.

The functions here are torch on any device; `NativeCell` has the same ones in C. `of(tensor)` picks
as `kernels.of` does. n samples (or steps times samples), H units: `gates` are int16 [n, 4H] in the
order i, f, g, o, states int16 [n, H]; `lookup` is int16 [2, 65535], the sigmoid and tanh of the
arguments -32767..32767. Shifts are exponent differences; the caller has chosen them so that left
shifts fit int64.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.kernels.eager import Acc, largest_of, scale
from samebits.kernels.native import Native
from samebits.kernels.native_lstm import NativeCell
from samebits.spec import formats

Q_GATE = 32767
ARGUMENT_EXPONENT, GATE_EXPONENT, HIDDEN_EXPONENT = -12, -15, -7
ONE, ONE_SQUARED = 1 << 15, 1 << 30


def of(tensor: Tensor) -> Any:
    """The cell functions that serve a tensor."""
    return cell_of(kernels.of(tensor))


def cell_of(k: Any) -> Any:
    """The cell functions beside the kernels `k`."""
    return NativeCell(k) if isinstance(k, Native) else sys.modules[__name__]


def saturate(v: Tensor, exponent: int, limit: int) -> Tensor:
    """sat(rne(v * 2**exponent), limit) in int64; limit < 2**15."""
    if exponent > 0:  # beyond the limit already, or small enough to be shifted
        v, exponent = v.clamp(-limit, limit), min(exponent, 15)
    return scale(v, exponent).clamp(-limit, limit)


def gates(
    acc_x: Tensor,
    acc_h: Tensor | None,
    bias: Tensor | None,
    shifts: tuple[int, int, int],
    lookup: Tensor,
) -> Tensor:
    """i, f, g, o of pre-activations; `acc_x`, `acc_h` [n, 4H], `bias` int64 [4H] on the sum's grid.

    shifts: of acc_x and acc_h to the sum, and of the sum to the tables' argument.
    """
    total = scale(acc_x, shifts[0])
    if acc_h is not None:
        total = total + scale(acc_h, shifts[1])
    if bias is not None:
        total = total + bias
    index = saturate(total, shifts[2], Q_GATE) + Q_GATE
    i, f, g, o = index.chunk(4, 1)
    sigmoid, tanh = lookup
    return torch.cat([sigmoid[i], sigmoid[f], tanh[g], sigmoid[o]], 1)


def state_sum(gates: Tensor, before: Tensor | None, shifts: tuple[int, int]) -> Acc:
    """f * c (of the step before, None: zero) + i * g, int64 [n, H], each shifted."""
    i, f, g, _ = gates.long().chunk(4, 1)
    acc = scale(i * g, shifts[1])
    if before is not None:
        acc = acc + scale(f * before, shifts[0])
    return acc, largest_of(acc)


def state_tanh(c: Tensor, shift: int, lookup: Tensor) -> Tensor:
    """u of a cell state, int64 [n, H]."""
    return lookup[1][saturate(c, shift, Q_GATE) + Q_GATE].long()


def hidden(gates: Tensor, c: Tensor, shift: int, lookup: Tensor) -> Tensor:
    """h, int8 [n, H]."""
    o = gates.chunk(4, 1)[3].long()
    exponent = 2 * GATE_EXPONENT - HIDDEN_EXPONENT
    return saturate(o * state_tanh(c, shift, lookup), exponent, formats.Q8).to(torch.int8)


def hidden_grad_sum(g: Tensor, back: Tensor | None, shifts: tuple[int, int]) -> Acc:
    """The gradient of h from outside and (None: zero) from the next step, int64 [n, H]."""
    acc = scale(g, shifts[0])
    if back is not None:
        acc = acc + scale(back, shifts[1])
    return acc, largest_of(acc)


def state_grad_sum(
    dh: Tensor,
    gates: Tensor,
    c: Tensor,
    shift: int,
    lookup: Tensor,
    later: tuple[Tensor, Tensor] | None,
    shifts: tuple[int, int],
) -> Acc:
    """The gradient of c through h and (`later`: dc and gates of the next step) through time."""
    o = gates.chunk(4, 1)[3].long()
    u = state_tanh(c, shift, lookup)
    acc = scale(dh * o * (ONE_SQUARED - u * u), shifts[0])
    if later is not None:
        dc, after = later
        acc = acc + scale(dc.long() * after.chunk(4, 1)[1], shifts[1])
    return acc, largest_of(acc)


def gate_grads(
    dh: Tensor,
    dc: Tensor,
    gates: Tensor,
    c: Tensor,
    shift: int,
    lookup: Tensor,
    before: Tensor | None,
    shifts: tuple[int, int, int, int],
) -> Acc:
    """The gradients of the pre-activations, int64 [n, 4H]; `before`: c of the step before."""
    i, f, g, o = gates.long().chunk(4, 1)
    u = state_tanh(c, shift, lookup)
    past = torch.zeros_like(c) if before is None else before
    parts = (
        dc * g * (i * (ONE - i)),
        dc * past.long() * (f * (ONE - f)),
        dc * i * (ONE_SQUARED - g * g),
        dh * u * (o * (ONE - o)),
    )
    acc = torch.cat([scale(p, s) for p, s in zip(parts, shifts, strict=True)], 1)
    return acc, largest_of(acc)
