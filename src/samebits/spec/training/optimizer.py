"""SGD, Adam and AdamW in plain Python integers (docs/spec/training.md, section 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from samebits.spec import formats
from samebits.spec.formats import Tensor
from samebits.spec.training.layers import Parameter, quantize


@dataclass(frozen=True)
class SGD:
    """State of a parameter: the momentum V, a bfp16 (codes, exponent), or None."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def update(self, name: str, p: Parameter, g: Tensor, v: Any) -> tuple[Parameter, Any]:
        """The new parameter and state."""
        terms = [(*g, 31)]
        if self.weight_decay > 0:
            terms.append((*times(p.joint, self.weight_decay), 39))
        base = list(terms)
        if self.momentum > 0 and v is not None:
            terms.append((*times(v, self.momentum), 31))
        v = formats.requantize(*formats.combine(terms), 16)
        direction = v
        if self.nesterov and self.momentum > 0:
            ahead = [*base, (*times(v, self.momentum), 31)]
            direction = formats.requantize(*formats.combine(ahead), 16)
        return descend(name, p, direction, self.lr), v if self.momentum > 0 else None


@dataclass(frozen=True)
class AdamState:
    """First moment (bfp16), root of the second moment (bfp32), and the powers of the betas."""

    first: Tensor
    root: Tensor
    power1: float = 1.0
    power2: float = 1.0


@dataclass(frozen=True)
class Adam:
    """Adam, or with `decoupled` AdamW. State of a parameter: `AdamState` or None."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def update(self, name: str, p: Parameter, g: Tensor, state: Any) -> tuple[Parameter, Any]:
        """The new parameter and state."""
        size = len(p.codes)
        zero = ([0] * size, formats.EXPONENT_MIN)
        old = AdamState(zero, zero) if state is None else state
        beta1, beta2, decay = self.beta1, self.beta2, self.weight_decay
        weights = p.values
        first, root = [], []
        for i in range(size):
            gradient = math.ldexp(float(g[0][i]), g[1])
            if decay > 0 and not self.decoupled:
                gradient = gradient + decay * weights[i]
            m = math.ldexp(float(old.first[0][i]), old.first[1])
            s = math.ldexp(float(old.root[0][i]), old.root[1])
            m = beta1 * m + (1.0 - beta1) * gradient
            v = beta2 * (s * s) + (1.0 - beta2) * (gradient * gradient)
            first.append(m)
            root.append(math.sqrt(v))
        new = AdamState(
            quantize(first, 16), quantize(root, 32), old.power1 * beta1, old.power2 * beta2
        )
        c1, c2 = 1.0 - new.power1, 1.0 - new.power2
        direction = []
        for i in range(size):
            m = math.ldexp(float(new.first[0][i]), new.first[1])
            s = math.ldexp(float(new.root[0][i]), new.root[1])
            step = (m / c1) / (s / math.sqrt(c2) + self.eps)
            if decay > 0 and self.decoupled:
                step = step + decay * weights[i]
            direction.append(step)
        return descend(name, p, quantize(direction, 16), self.lr), new


def times(tensor: Tensor, factor: float) -> Tensor:
    """tensor * coef(factor), exactly."""
    m, x = formats.coefficient(factor)
    return [m * c for c in tensor[0]], tensor[1] + x


def descend(name: str, p: Parameter, direction: Tensor, lr: float) -> Parameter:
    """SGD step 4: p - lr * direction."""
    if lr == 0:
        return p
    return replace(p, weight=formats.lazy_update(p.weight, *times(direction, lr), name))
