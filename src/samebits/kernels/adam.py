"""Moments and direction of Adam in torch, binary64 by chunks (training.md 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from samebits.kernels import moments
from samebits.kernels.memory import same_memory
from samebits.kernels.moments import Draw, exponent_for
from samebits.kernels.rows import Exponent
from samebits.numerics.realise import times_power

CHUNK = 1 << 16  # elements held in binary64 at a time


@dataclass(frozen=True)
class AdamTerms:
    """The operands of one step of Adam for a parameter.

    g, e_g:         the gradient, resolved, int32 in the memory order of the weight
    codes, delayed: W and A, whose joint value has the exponent e_a, one or by rows [O, 1, ...]
    first, root:    M and S, e6m9 codes at e_first and e_root; a step writes them
    coupled:        Adam's weight decay, `decoupled` that of AdamW; one of them is 0
    c1, c2:         1 - beta1**t, and the root of 1 - beta2**t
    draw:           random bits of the step; None: to nearest
    """

    g: Tensor
    e_g: int
    codes: Tensor
    delayed: Tensor
    e_a: Exponent
    first: Tensor
    e_first: int
    root: Tensor
    e_root: int
    beta1: float
    beta2: float
    coupled: float
    decoupled: float
    c1: float
    c2: float
    eps: float
    draw: Draw | None


def adam(terms: AdamTerms, weights: Tensor, out: Tensor) -> tuple[int, int, int]:
    """Write the new M and S, and the direction's codes `out`; their three exponents.

    weights: the exact value of every weight, float64. A result's exponent follows from its largest
    magnitude over the whole tensor. So each chunk is computed twice, for the exponent and then for
    the codes, instead of being held in binary64 between. Raises RangeError.
    """
    t, order = terms, terms.codes
    g, weight = in_order(t.g, order), in_order(weights, order)
    first, root = in_order(t.first, order), in_order(t.root, order)
    flat_out = in_order(out, order)
    random = None if t.draw is None else in_order(moments.moment_bits(t.draw, order), order)

    def new_moments(at: slice) -> tuple[Tensor, Tensor]:
        """First moment and root of the second of a chunk, binary64."""
        grad = times_power(g[at].double(), t.e_g)
        if t.coupled:
            grad = grad + t.coupled * weight[at]
        m = t.beta1 * moments.values(first[at], t.e_first) + (1.0 - t.beta1) * grad
        s = moments.values(root[at], t.e_root)
        v = t.beta2 * (s * s) + (1.0 - t.beta2) * (grad * grad)
        return m, torch.sqrt(v)

    chunks = [slice(i, i + CHUNK) for i in range(0, first.numel(), CHUNK)]
    tops = [[float(v.abs().max()) for v in new_moments(at)] for at in chunks]
    e_m = exponent_for(max(top[0] for top in tops))
    e_s = exponent_for(max(top[1] for top in tops))
    for at in chunks:
        m, s = new_moments(at)
        bits = None if random is None else random[at]
        first[at] = moments.encode(m, e_m, bits)
        root[at] = moments.encode(s, e_s, None if bits is None else moments.root_bits(bits))
    # As tensors: a GPU would divide by a plain number through its rounded reciprocal.
    c1, c2 = (torch.tensor(c, dtype=torch.float64, device=order.device) for c in (t.c1, t.c2))

    def direction(at: slice) -> Tensor:
        m, s = moments.values(first[at], e_m), moments.values(root[at], e_s)
        p = m / c1 / (s / c2 + t.eps)
        return p + t.decoupled * weight[at] if t.decoupled else p

    e_p = exponent_for(max(float(direction(at).abs().max()) for at in chunks))
    for at in chunks:
        flat_out[at] = moments.encode(direction(at), e_p, None)
    for v, flat in ((t.first, first), (t.root, root), (out, flat_out)):
        _put(v, flat)
    return e_m, e_s, e_p


def _put(v: Tensor, flat: Tensor) -> None:
    """Write what `in_order` gave back, unless it is a view: a GPU copies no tensor onto itself."""
    if same_memory(flat, v):
        return
    if v.dim() == 4:
        n, c, h, w = v.shape
        v.copy_(flat.view(n, h, w, c).permute(0, 3, 1, 2))
    else:
        v.copy_(flat.view(v.shape))


def in_order(v: Tensor, order: Tensor) -> Tensor:
    """A flat view of v (same shape) in the memory order of `order`; a copy where v has another."""
    if v.stride() != order.stride():
        v = torch.empty_like(order, dtype=v.dtype).copy_(v)
    return v.permute(0, 2, 3, 1).reshape(-1) if v.dim() == 4 else v.reshape(-1)
