"""Training runs as text rows, report sections and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samebits.reports.html import Figure, Fold, Paragraph, Section, Table
from samebits.reports.plots import Curve, line_plot
from samebits.reports.report import section

COLUMNS = (
    "numerics",
    "test accuracy",
    "bytes / parameter",
    "saved bytes / element",
    "ms / step",
    "parameter SHA-256",
)


@dataclass(frozen=True)
class Run:
    """A finished run: its options, result.json and the lines of metrics.jsonl."""

    name: str
    config: Mapping[str, Any]
    result: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]


def training_rows(runs: Sequence[Run]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Column titles and one row of text per run."""
    return COLUMNS, [
        (
            run.name,
            f"{100 * run.result['accuracy']:.2f} %",
            f"{run.result['bytes_per_parameter']:.2f}",
            f"{run.result['saved_bytes_per_element']:.2f}",
            milliseconds(run.result["step_seconds_median"]),
            run.result["sha256"],
        )
        for run in runs
    ]


def milliseconds(seconds: float | None) -> str:
    """Seconds as text in ms, or n/a."""
    return "n/a" if seconds is None else f"{1000 * seconds:.1f}"


def training_text(runs: Sequence[Run], title: str) -> Section:
    """Results of runs to compare, in lines that fit a terminal."""
    columns, rows = training_rows(runs)
    table = Table(columns[:-1], [row[:-1] for row in rows])
    return section(table, *(f"sha256 {row[-1]} {row[0]}" for row in rows), title=title)


def training_sections(runs: Sequence[Run]) -> list[Section]:
    """Results, curves and options of runs to compare."""
    columns, rows = training_rows(runs)
    settings = sorted({key for run in runs for key in run.config})
    return [
        Section(
            "Results",
            [
                Table(columns, rows, code=("parameter SHA-256",)),
                Paragraph(
                    "Bytes per parameter count weights, delayed updates and optimizer state; "
                    "saved bytes are what the forward pass keeps for the backward pass. Both are "
                    "measured from the tensors in memory. The BFP hash is the same on every "
                    "machine; the float32 hash depends on the machine and its thread count."
                ),
                Paragraph(
                    "Step times are of tiny networks: the fixed costs of every operator dominate "
                    "them, so they say little about networks of a useful size."
                ),
            ],
        ),
        Section(
            "Learning curves",
            [
                Figure(
                    _curves(runs, "test_accuracy", "test accuracy (%)", 100.0),
                    "Test accuracy after every epoch: " + _last(runs, "test_accuracy", 100.0, " %"),
                    "Test accuracy after every epoch",
                ),
                Figure(
                    _curves(runs, "train_loss", "training loss", 1.0),
                    "Mean training loss of every epoch: " + _last(runs, "train_loss", 1.0, ""),
                    "Mean training loss of every epoch",
                ),
            ],
        ),
        Section(
            "Options",
            [
                Fold(
                    "All options of the runs",
                    [
                        Table(
                            ("option", *(run.name for run in runs)),
                            [
                                (
                                    key.replace("_", " "),
                                    *(_option(run.config.get(key)) for run in runs),
                                )
                                for key in settings
                            ],
                        )
                    ],
                )
            ],
        ),
    ]


def _option(value: object) -> str:
    return "default" if value is None else str(value)


def _curves(runs: Sequence[Run], key: str, title: str, factor: float) -> bytes:
    return line_plot(
        [
            Curve(
                run.name,
                [record["epoch"] for record in run.metrics],
                [factor * record[key] for record in run.metrics],
            )
            for run in runs
        ],
        x_title="epoch",
        y_title=title,
    )


def _last(runs: Sequence[Run], key: str, factor: float, unit: str) -> str:
    return ", ".join(
        f"{run.name} ends at {factor * run.metrics[-1][key]:.2f}{unit}"
        for run in runs
        if run.metrics
    )
