"""`Score`: the test accuracy of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """Test samples whose label has the largest logit, among all; in which arithmetic.

    sha256, step: of the parameters of a trained model; None for other models
    """

    source: str
    data: str
    arithmetic: str
    correct: int
    total: int
    sha256: str | None = None
    step: int | None = None

    @property
    def accuracy(self) -> float:
        """Share of the test samples whose label has the largest logit, in [0, 1]."""
        return self.correct / self.total
