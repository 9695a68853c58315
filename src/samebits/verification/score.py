"""`Score`: the test accuracy of a model, or the figures of another task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from samebits.errors import InputError

TITLES = {
    "accuracy": "accuracy",
    "exact_match": "exact match",
    "mean_f1": "mean F1",
    "pixel_accuracy": "pixel accuracy",
    "mean_iou": "mean IoU",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R2",
}
PARTS = ("accuracy", "exact_match", "pixel_accuracy")  # that are shares of what was counted


@dataclass(frozen=True)
class Score:
    """Test samples whose label has the largest logit, among all; in which arithmetic.

    correct: None of a regression
    metrics: figures of a task other than classification, by the names of TITLES, else None
    sha256, step: of the parameters of a trained model; None for other models
    """

    source: str
    data: str
    arithmetic: str
    correct: int | None
    total: int
    sha256: str | None = None
    step: int | None = None
    metrics: Mapping[str, float] | None = None

    @property
    def accuracy(self) -> float:
        """Share of the test samples (of masks: pixels) whose label has the largest logit, of
        several labels those that are all right, in [0, 1]. Raises InputError for a regression."""
        return accuracy_of(None if self.correct is None else self.correct / self.total)


def accuracy_of(share: float | None) -> float:
    """A share of correct samples. Raises InputError where there is none, of a regression."""
    if share is None:
        raise InputError(
            "expected a task with right and wrong answers for an accuracy, found regression; ask "
            "for its metrics"
        )
    return share


def figures_text(figures: Mapping[str, float]) -> list[str]:
    """Figures as text, one each: shares in per cent, errors in the units of the target."""
    return [
        f"{TITLES[name]} {figure_text(name, value)}"
        for name, value in figures.items()
        if name in TITLES
    ]


def figure_text(name: str, value: float) -> str:
    """One figure as text, without its title."""
    return f"{100 * value:.2f} %" if name in PARTS else f"{value:.4g}"
