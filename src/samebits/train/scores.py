"""Results of log_softmax: logits that stand for their log-probabilities (training.md 6.6)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import rows, softmax
from samebits.kernels.rows import Exponent
from samebits.spec.training.loss import LN_2, real
from samebits.train.value import BFPValue, Move

FITTING = -8  # shifts of d * log2(e) up to which the loss of a class fits int64


class LogProbabilities(BFPValue):
    """Logits, of which all that counts is a difference along an axis: log-probabilities.

    `codes` and `exponent` are those of the logits, which losses take as they are. `values()` gives
    the log-probabilities: minus the loss of every class.

    along: the axis of the classes, counted from the first
    """

    __slots__ = ("along",)
    along: int

    @staticmethod
    def of(logits: BFPValue, along: int) -> LogProbabilities:
        """The log-probabilities of logits; no width is decided."""
        twin = LogProbabilities.__new__(LogProbabilities)
        twin._copy(logits)
        twin.along = along
        return twin

    def _twin(self) -> LogProbabilities:
        return LogProbabilities.of(self, self.along)

    def moved(self, move: Move) -> BFPValue:
        """The same in other places. Raises UnsupportedError where a vector comes apart."""
        y, axis = super().moved(move), self.axis_after(move)
        if axis is None:
            raise UnsupportedError(
                f"expected vectors of log-probabilities along axis {self.along} of "
                f"{tuple(self.shape)} that stay whole, found {tuple(y.shape)}"
            )
        return LogProbabilities.of(y, axis)

    def axis_after(self, move: Move) -> int | None:
        """The axis of the classes after a move; None where a vector comes apart."""
        size = self.shape[self.along]
        own = [1] * self.dim()
        own[self.along] = size
        place = move(torch.arange(size, device=self.device).view(own).expand(self.shape))
        vector_size = [1 if axis == self.along else n for axis, n in enumerate(self.shape)]
        vectors = torch.arange(math.prod(vector_size), device=self.device).view(vector_size)
        vector = move(vectors.expand(self.shape))
        for axis, n in enumerate(vector.shape):
            along = place.transpose(axis, -1)
            whole = n == size and torch.equal(
                along, torch.arange(n, device=self.device) + 0 * along
            )
            if whole and torch.equal(vector, vector.narrow(axis, 0, 1).expand(vector.shape)):
                return axis
        return None

    def vectors(self) -> tuple[Tensor, Exponent]:
        """The logits [vectors, classes], and their exponent or exponents [vectors, 1]."""
        return class_vectors(self, self.along)

    def values(self) -> Tensor:
        """The log-probabilities as float64: minus the loss of every class (6.2)."""
        codes, exponent = self.vectors()
        vectors = codes.long()
        d = vectors.amax(1, keepdim=True) - vectors
        total = softmax.exponentials(d, exponent).sum(1)
        logarithms = softmax.logs(total).to(d.device).view(-1, 1)
        found = class_losses(logarithms, d, exponent)
        size = [n for axis, n in enumerate(self.shape) if axis != self.along]
        return -(LN_2 * found).view(*size, -1).movedim(-1, self.along)


def class_losses(logarithms: Tensor, distances: Tensor, exponent: int | Tensor) -> Tensor:
    """R * 2**-24 of every class as the target, A = 1 and D = d (6.1): float64 [n, classes].

    logarithms int64 [n, 1], distances int64 in [0, 2**32) [n, classes], the exponent one or [n, 1].
    """
    shifts = torch.as_tensor(exponent, device=distances.device).expand(len(distances), 1) - 14
    if int(shifts.max()) <= FITTING:
        right = (-shifts).clamp(max=63)
        units = logarithms + (((distances * softmax.LOG2_E) >> right) << 8)
        return units.double() * 2.0**-24
    found = [
        [real(softmax.loss_units(log, None, d, by + 14), -24) for d in own.cpu().split(1)]
        for log, own, by in zip(logarithms.cpu(), distances, shifts.flatten().tolist(), strict=True)
    ]
    return torch.tensor(found, dtype=torch.float64, device=distances.device)


def class_vectors(logits: BFPValue, along: int) -> tuple[Tensor, Exponent]:
    """Logits as [vectors, classes] of an axis, and their exponent or exponents [vectors, 1].

    Exponents that differ along the classes are aligned, sample by sample.
    """
    z, exponent = logits.resolved()
    if isinstance(exponent, Tensor) and exponent.shape[along] > 1:
        size = (z.shape[0], *[1] * (z.dim() - 1))
        z, exponent = kernels.of(z).aligned(z, exponent, size, keep=False)
    z = z.movedim(along, -1)
    own = rows.placed(exponent, lambda e: e.movedim(along, -1))
    return z.reshape(-1, z.shape[-1]), rows.of_vectors(own, z.shape)
