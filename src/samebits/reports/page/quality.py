"""The first card of a page: how good the answers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from samebits.reports.html import Figure, Figures, PageBlock, Paragraph, Section, Status, Table
from samebits.reports.page.pictures import Gallery, Shown, picture_of
from samebits.reports.plots import scatter_plot
from samebits.reports.report import printable, section
from samebits.verification.quality import Quality
from samebits.verification.score import TITLES, figure_text

Array = np.ndarray[Any, Any]
TITLE = "How good?"
MOST_CLASSES = 24  # of a confusion matrix; of more the most frequent mistakes are listed
WORST = 8
MISTAKES = 12
POINTS = 1000
TARGETS = 4  # with a drawing each
LETTERS = 40  # of a name
WORST_TITLES = {
    "regression": "largest errors",
    "multilabel": "most wrong labels",
    "segmentation": "most wrong pixels",
}


@dataclass(frozen=True)
class Confusion:
    """A block: rows of classes, columns of answers. depth: of a cell, 0 to 9, by its share of the
    row."""

    kind: ClassVar[str] = "confusion"
    names: Sequence[str]
    counts: Sequence[Sequence[int]]
    caption: str

    def depth(self, row: int, column: int) -> int:
        """The strength of a cell's colour."""
        total = sum(self.counts[row])
        return 0 if not total else -(-9 * self.counts[row][column] // total)


def quality_section(
    found: Quality | None, named: bool, why: str = "", recorded: str = ""
) -> Section:
    """Say what was measured.

    named:    whether the contract of the network names its classes
    why:      nothing could be
    recorded: what the run of the network found on its test samples
    """
    if found is None:
        blocks: list[PageBlock] = [
            Status("good" if recorded else "open", recorded or "Not measured for this page."),
            Paragraph(
                printable(why)
                or "Samples with labels say it: give --data DATA, such as a folder of classes or "
                "a table."
            ),
        ]
        return Section(TITLE, blocks)
    state, text = quality_sentence(found)
    blocks = [Status(state, text), _figures(found)]
    if found.task == "regression":
        blocks += _targets(found)
    elif found.task == "multilabel":
        blocks.append(_labels(found))
    elif found.task != "language":
        blocks += _classes(found)
    if found.task != "language" and not named and found.data.named:
        names = ", ".join(_name(name) for name in found.data.class_names[:MOST_CLASSES])
        blocks.append(Paragraph(f"Classes are in the order that the data has them: {names}."))
    return Section(TITLE, [*blocks, *_worst(found)])


def quality_sentence(found: Quality) -> tuple[str, str]:
    """The state (good, bad) and the sentence."""
    noun, count = found.data.noun, f"{len(found):,}"
    if found.task == "regression":
        rmse = found.metrics.figures["rmse"]
        better = rmse < found.baseline
        text = (
            f"A typical error (RMSE) of {rmse:.4g} on {count} test {noun}s; always answering the "
            f"mean has {found.baseline:.4g}."
        )
        return ("good" if better else "bad"), text
    share = found.metrics.accuracy
    assert share is not None
    units = {"segmentation": f"pixels of {count} test {noun}s"}
    units["language"] = f"places of {count} test {noun}s"
    what = units.get(found.task, f"{count} test {noun}s")
    text = (
        f"{100 * share:.2f} % of {what} are answered right; always answering "
        f"{_name(found.majority)!r} would be right in {100 * found.baseline:.2f} %."
    )
    return ("good" if share > found.baseline else "bad"), text


def quality_text(found: Quality | None) -> list[Section]:
    """The section of a text; none where nothing was measured."""
    return [] if found is None else [section(quality_sentence(found)[1], title=TITLE)]


def _figures(found: Quality) -> Figures:
    m = found.metrics
    if m.correct is None:
        items = [(TITLES[k], figure_text(k, v), "") for k, v in m.figures.items()]
        return Figures([*items, ("RMSE of the mean", f"{found.baseline:.4g}", "always answered")])
    items = [(TITLES[k], figure_text(k, v), "") for k, v in m.figures.items()]
    if not items:
        items = [("accuracy", figure_text("accuracy", m.correct / m.total), "")]
    return Figures(
        [
            *items,
            ("majority class", f"{100 * found.baseline:.2f} %", _name(found.majority)),
            ("right", f"{m.correct:,}", f"of {m.total:,}"),
        ]
    )


def _classes(found: Quality) -> list[PageBlock]:
    """Classes by answers, or the most frequent mistakes where there are many classes."""
    names = [_name(found.name(int(kind))) for kind in found.kinds]
    what = "pixels" if found.task == "segmentation" else f"{found.data.noun}s"
    if len(names) <= MOST_CLASSES:
        caption = f"Test {what} of each class (rows) by what was answered (columns)"
        return [Confusion(names, found.confusion.tolist(), caption)]
    rows = [
        (names[row], names[column], f"{count:,}") for row, column, count in found.mistakes(MISTAKES)
    ]
    if not rows:
        return []
    return [Table(("class", "answered", what), rows, f"The most frequent of {len(names)} classes")]


def _labels(found: Quality) -> Table:
    """A row for each label: how often it holds, was found and was answered wrongly."""
    wanted, chosen = found.wanted, found.chosen
    counts = zip(
        wanted.sum(0).tolist(),
        (wanted & chosen).sum(0).tolist(),
        (~wanted & chosen).sum(0).tolist(),
        strict=True,
    )
    rows = [
        (_name(found.name(place)), *(f"{count:,}" for count in each))
        for place, each in enumerate(counts)
    ]
    return Table(("label", "holds", "found", "answered wrongly"), rows)


def _targets(found: Quality) -> list[PageBlock]:
    """True against predicted, of each target."""
    blocks: list[PageBlock] = []
    shown = np.linspace(0, len(found) - 1, min(POINTS, len(found))).astype(int)
    for place in range(min(TARGETS, found.wanted.shape[1])):
        name = _name(found.name(place))
        x, y = found.wanted[shown, place].tolist(), found.chosen[shown, place].tolist()
        caption = f"{name}: true against predicted, of {len(shown):,} test {found.data.noun}s"
        svg = scatter_plot(x, y, x_title="true", y_title="predicted")
        blocks.append(Figure(svg, caption, f"{caption}; on the line both are equal."))
    return blocks


def _worst(found: Quality) -> list[PageBlock]:
    """The samples that are most wrong, with their pictures where they have some."""
    if found.task == "language":
        return []
    samples = found.worst(WORST)
    title = WORST_TITLES.get(found.task, "surest mistakes")
    if not samples:
        return [Paragraph(f"None of the test {found.data.noun}s is answered wrongly.")]
    facts = [_facts(found, sample) for sample in samples]
    pictures = [picture_of(found.data, sample) for sample in samples]
    places = [f"{found.data.noun} {found.place(sample):,}" for sample in samples]
    if all(pictures):
        items = [
            Shown(png or "", f"{place}, {wanted}", (chosen, f"is {wanted}", place))
            for png, place, (wanted, chosen) in zip(pictures, places, facts, strict=True)
        ]
        return [Paragraph(f"The {title}:"), Gallery(items)]
    rows = [(place, *fact) for place, fact in zip(places, facts, strict=True)]
    return [Table((found.data.noun, "true", "answered"), rows, f"The {title}")]


def _facts(found: Quality, sample: int) -> tuple[str, str]:
    """The right answer to a sample, and the given one."""
    wanted, chosen = found.wanted[sample], found.chosen[sample]
    if found.task == "regression":
        wanted, chosen = (", ".join(f"{x:.4g}" for x in each) for each in (wanted, chosen))
    elif found.task == "multilabel":
        wanted, chosen = (", ".join(found.named(each)) or "none" for each in (wanted, chosen))
    elif found.task == "segmentation":
        wanted = f"{wanted.size:,} pixels"
        chosen = f"{int((~found.right[sample]).sum()):,} wrong"
    else:
        wanted, chosen = found.name(int(wanted)), found.name(int(chosen))
    return _name(wanted), _name(chosen)


def _name(text: str) -> str:
    """A name of an untrusted file, short and without control characters."""
    found = printable(text)
    return found if len(found) <= LETTERS else found[: LETTERS - 3] + "..."
