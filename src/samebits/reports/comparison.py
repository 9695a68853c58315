"""Runs of one network in several numerics, side by side: `Comparison`, its table and its picture.

Runs of one seed start from the same values and see the same data in the same order, so they are
compared in pairs: the figure of a numerics is the mean over the seeds of its differences to
float32, with two standard errors of that mean (the sample's standard deviation over sqrt(seeds)).
"""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure as Drawing

from samebits.files import write_atomically
from samebits.reports.html import Figure, Table
from samebits.reports.plots import COLOURS
from samebits.reports.report import Report, Reported, printable, section

if TYPE_CHECKING:
    import pandas

FORMAT = "samebits-comparison-1"
BASE = "float32"  # what all others are compared with
FIGURES = (
    *("numerics", "seeds", "diverged", "accuracy", "loss"),
    *("points", "points_two_errors", "loss_difference", "loss_two_errors"),
)
COLUMNS = ("numerics", "accuracy", "loss", "points to float32", "loss to float32")


@dataclass(frozen=True)
class ComparedRun:
    """One training run of a comparison.

    accuracy: share of correct test samples; loss: mean training loss of the last epoch. Both None,
    and `diverged` says why, where the run ended in numbers that its format cannot hold.
    """

    numerics: str
    seed: int
    accuracy: float | None = None
    loss: float | None = None
    sha256: str | None = None
    diverged: str | None = None


@dataclass(frozen=True)
class PairedDifference:
    """The mean of paired differences, and two standard errors of it; None of one seed."""

    mean: float
    two_errors: float | None

    @classmethod
    def of(cls, differences: Sequence[float]) -> PairedDifference:
        """The figure of differences, one for each seed."""
        count = len(differences)
        error = statistics.stdev(differences) / math.sqrt(count) if count > 1 else None
        return cls(statistics.fmean(differences), None if error is None else 2 * error)

    def text(self, digits: int) -> str:
        """As +0.22 +- 0.31, or +0.22 of one seed."""
        errors = "" if self.two_errors is None else f" +- {self.two_errors:.{digits}f}"
        mean = round(self.mean, digits) + 0.0  # no minus zero
        return f"{mean:+.{digits}f}{errors}"


@dataclass(frozen=True)
class ComparedNumerics:
    """A row of the table: means over the seeds, and differences to float32.

    points: of accuracy, in per cent. None where a run of a pair diverged: `diverged` counts those
    of this numerics.
    """

    numerics: str
    seeds: int
    diverged: int
    accuracy: float | None
    loss: float | None
    points: PairedDifference | None
    loss_difference: PairedDifference | None


@dataclass(frozen=True, eq=False)
class Comparison(Reported):
    """Training runs of one network in several numerics, over several seeds.

    numerics: the entries in the order of the table; emulated: those of them that are formats whose
    products are emulated in float32
    """

    arch: str
    data: str
    options: Mapping[str, Any]
    numerics: tuple[str, ...]
    emulated: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[ComparedRun, ...]

    def run(self, numerics: str, seed: int) -> ComparedRun:
        """The run of a numerics and a seed."""
        return next(r for r in self.runs if (r.numerics, r.seed) == (numerics, seed))

    def rows(self) -> list[ComparedNumerics]:
        """A row for each numerics."""
        return [self._row(name) for name in self.numerics]

    def _row(self, name: str) -> ComparedNumerics:
        runs = [self.run(name, seed) for seed in self.seeds]
        accuracies = [r.accuracy for r in runs if r.accuracy is not None]
        losses = [r.loss for r in runs if r.loss is not None]
        whole = len(losses) == len(runs)
        points, of_loss = self.differences(name)
        return ComparedNumerics(
            name,
            len(runs),
            len(runs) - len(losses),
            statistics.fmean(accuracies) if whole else None,
            statistics.fmean(losses) if whole else None,
            PairedDifference.of(points) if points else None,
            PairedDifference.of(of_loss) if of_loss else None,
        )

    def differences(self, name: str) -> tuple[list[float], list[float]]:
        """Differences of a numerics to float32, seed by seed: points of accuracy, and loss.

        Empty for float32 itself, and where a run of the two diverged.
        """
        points, losses = [], []
        for seed in self.seeds if name != BASE else ():
            a, b = self.run(name, seed), self.run(BASE, seed)
            if a.accuracy is None or b.accuracy is None or a.loss is None or b.loss is None:
                return [], []
            points.append(100 * (a.accuracy - b.accuracy))
            losses.append(a.loss - b.loss)
        return points, losses

    def to_dict(self) -> dict[str, Any]:
        """As JSON data: the table, and every run."""
        return {
            "format": FORMAT,
            "arch": self.arch,
            "data": self.data,
            "options": dict(self.options),
            "emulated": list(self.emulated),
            "seeds": list(self.seeds),
            "table": [asdict(row) for row in self.rows()],
            "runs": [asdict(run) for run in self.runs],
        }

    def report(self) -> Report:
        """The table, what its figures are, and the picture."""
        rows = [_cells(row) for row in self.rows()]
        picture = self.picture()
        return Report(
            f"{printable(self.arch)} on {printable(self.data)}",
            f"{_seeds(self.seeds)}; the same initial values and data order in every numerics",
            [
                section(Table(COLUMNS, rows), *self._notes()),
                *([section(Figure(picture, CAPTION))] if picture else []),
            ],
        )

    def _notes(self) -> list[str]:
        """The lines below the table: its columns, and runs that diverged or are emulated."""
        notes = ["loss: mean training loss of the last epoch"]
        if len(self.seeds) > 1:
            notes.append("+-: two standard errors of the mean of the paired differences")
        else:
            notes.append("one seed: no standard error; give several, such as --seeds 0..4")
        if self.emulated:
            notes.append(
                f"{', '.join(self.emulated)}: emulated in float32 (operands of products rounded to "
                "the format, sums, stored weights and optimizer in float32); their bits depend on "
                "the machine, as those of float32 do"
            )
        notes += [
            f"{run.numerics} seed {run.seed}: {run.diverged}"
            for run in self.runs
            if run.diverged is not None
        ]
        return notes

    def picture(self) -> bytes | None:
        """The differences to float32 as SVG: means, two standard errors, a dot for every seed.

        None where no numerics has any. Same runs, same bytes.
        """
        found = [(name, self.differences(name)) for name in self.numerics if name != BASE]
        found = [(name, pair) for name, pair in found if pair[0]]
        if not found:
            return None
        drawing = Drawing(figsize=(7.2, 1.2 + 0.4 * len(found)), layout="constrained")
        panels = drawing.subplots(1, 2, sharey=True)
        for panel, axes in enumerate(panels):
            for place, (_, pair) in enumerate(found):
                figure = PairedDifference.of(pair[panel])
                axes.plot(pair[panel], [place] * len(pair[panel]), ".", color=COLOURS[3], zorder=1)
                axes.errorbar(
                    figure.mean,
                    place,
                    xerr=figure.two_errors,
                    fmt="o",
                    color=COLOURS[0],
                    capsize=4,
                )
            axes.axvline(0, color=COLOURS[1], linewidth=1)
            axes.grid(axis="x", color="#dfe4ea", linewidth=0.8)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_xlabel(("accuracy: points to float32", "loss: difference to float32")[panel])
        panels[0].set_yticks(range(len(found)), [name for name, _ in found])
        panels[0].set_ylim(len(found) - 0.5, -0.5)
        text = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": "samebits"}):
            drawing.savefig(text, format="svg", metadata={"Date": None})
        return text.getvalue()

    def table(self) -> str:
        """The rows as CSV."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([FIGURES, *map(_numbers, self.rows())])
        return text.getvalue()

    def to_frame(self) -> pandas.DataFrame:
        """The rows as a DataFrame of pandas, numbers as numbers."""
        import pandas

        return pandas.DataFrame([*map(_numbers, self.rows())], columns=[*FIGURES])

    def to_markdown(self) -> str:
        """The rows as a table in Markdown, figures as they are printed."""
        lines = [COLUMNS, ("---", *("---:" for _ in COLUMNS[1:])), *map(_cells, self.rows())]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"

    def to_latex(self) -> str:
        """The rows as a tabular of LaTeX (package booktabs), figures as they are printed."""
        head, *rows = (
            " & ".join(map(_in_latex, cells)) + r" \\"
            for cells in (COLUMNS, *map(_cells, self.rows()))
        )
        lines = [r"\begin{tabular}{lrrrr}", r"\toprule", head, r"\midrule", *rows]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def save(self, folder: str | Path) -> tuple[Path, ...]:
        """Write comparison.json, .csv, .md, .tex, .html and (where there is a picture) .svg into a
        folder."""
        path = Path(folder) / "comparison.json"
        record = json.dumps(self.to_dict(), indent=2)
        texts = {
            ".json": f"{record}\n",
            ".csv": self.table(),
            ".md": self.to_markdown(),
            ".tex": self.to_latex(),
        }
        written = [path.with_suffix(ending) for ending in texts]
        for file, text in zip(written, texts.values(), strict=True):
            write_atomically(file, text.encode())
        written.append(self.report().save(path.with_suffix(".html")))
        drawing, picture = path.with_suffix(".svg"), self.picture()
        if picture is None:
            drawing.unlink(missing_ok=True)  # of an earlier comparison in this folder
        else:
            write_atomically(drawing, picture)
            written.append(drawing)
        return tuple(written)


CAPTION = (
    "Differences to float32: the mean over the seeds with two standard errors, and a dot for every "
    "seed"
)


def _cells(row: ComparedNumerics) -> tuple[str, ...]:
    if row.accuracy is None or row.loss is None:
        return (row.numerics, f"{row.diverged} of {row.seeds} diverged", "", "", "")
    return (
        row.numerics,
        f"{100 * row.accuracy:.2f} %",
        f"{row.loss:.4f}",
        "" if row.points is None else row.points.text(2),
        "" if row.loss_difference is None else row.loss_difference.text(4),
    )


def _in_latex(text: str) -> str:
    """A cell of a table, with what LaTeX would read otherwise."""
    for sign in "%&_#":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("+-", r"$\pm$")


def _numbers(row: ComparedNumerics) -> tuple[Any, ...]:
    """The numbers of a row, as FIGURES names them."""
    return (
        *(row.numerics, row.seeds, row.diverged, row.accuracy, row.loss),
        *_figures(row.points),
        *_figures(row.loss_difference),
    )


def _figures(difference: PairedDifference | None) -> tuple[float | None, float | None]:
    return (None, None) if difference is None else (difference.mean, difference.two_errors)


def _seeds(seeds: Sequence[int]) -> str:
    return f"{'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}"
