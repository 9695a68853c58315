"""A training run: its curves, and exponents and codes of its weights where it recorded them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeGuard

from samebits.reports.html import Figure, Fold, PageBlock, Paragraph, Section, Table
from samebits.reports.plots import Curve, line_plots
from samebits.reports.report import Report, printable, section
from samebits.train.run.record import CONFIG, ONE_OUTPUT, RESULT, read_json, read_metrics
from samebits.verification.score import PARTS, TITLES, figure_text, figures_text

TITLE = "Training"
DRAWN = 4  # curves in one plot that are told apart
LARGEST = 1e300  # that a curve can show


def run_sections(folder: Path | None) -> list[Section]:
    """The curves of a run's folder, and its weights over the epochs."""
    if folder is None:
        return []
    records = [record for record in read_metrics(folder) if _whole(record)]
    if not records:
        return [Section(TITLE, [Paragraph("This run has no line of metrics yet.")])]
    config = read_json(folder / CONFIG)
    options = [
        (printable(str(key)).replace("_", " "), printable(str(value)))
        for key, value in config.items()
        if key != "format" and value is not None
    ]
    last, names = records[-1], list(_tested(records[-1]))
    records = [record for record in records if list(_tested(record)) == names]
    summary = (
        f"After epoch {last['epoch']}: mean training loss {last['train_loss']:.4f}, test "
        f"{', '.join(figures_text(_tested(last)))}."
    )
    title = f"Test {TITLES[names[0]]} and mean training loss of every epoch"
    blocks: list[PageBlock] = [
        Paragraph(summary),
        *_float_islands(folder),
        *_one_output(records),
        Figure(_curves(records, names[0]), summary, title),
        Fold("Every epoch", [_table(records, names)]),
        Fold("Options", [Table(("option", "value"), options)]),
    ]
    return [Section(TITLE, blocks), weight_section(records, config)]


def run_report(folder: Path, problem: str) -> Report:
    """The report of a run whose network cannot be shown, and why."""
    config = read_json(folder / CONFIG)
    title = f"{printable(str(folder))}: training run"
    lines = [f"{printable(str(config.get('arch')))} in {printable(str(config.get('numerics')))}"]
    lines.append(f"as a network: {printable(problem)}")
    return Report(
        title,
        "",
        [section(*lines)],
        lambda: [section(*lines, title="The network"), *run_sections(folder)],
    )


def _float_islands(folder: Path) -> list[Paragraph]:
    """Say what a run of integers computed in floats; the file is not trusted."""
    lines = read_json(folder / RESULT).get("float_islands")
    return [Paragraph(printable(str(line))) for line in lines] if isinstance(lines, list) else []


def _whole(record: Mapping[str, Any]) -> bool:
    """Whether a line holds what the curves show: the file is not trusted."""
    numbers = (record.get(key) for key in ("train_loss", "lr", "seconds"))
    return (
        isinstance(record.get("epoch"), int) and all(map(_shows, numbers)) and bool(_tested(record))
    )


def _tested(record: Mapping[str, Any]) -> dict[str, float]:
    """The figures of the test samples by the names of TITLES, in its order."""
    found = {name: record.get(f"test_{name}") for name in TITLES}
    return {name: value for name, value in found.items() if _shows(value)}


def _shows(value: Any) -> TypeGuard[float]:
    """A number that a curve can show."""
    return isinstance(value, int | float) and not abs(value) > LARGEST


def _one_output(records: Sequence[Mapping[str, Any]]) -> list[PageBlock]:
    """A paragraph where the last epochs found one output for all samples."""
    stalled = list(takewhile(lambda r: r.get("one_output") is True, reversed(records)))
    if not stalled:
        return []
    since = stalled[-1]["epoch"]
    return [Paragraph(f"Since epoch {since} {ONE_OUTPUT}.")]


def _curves(records: Sequence[Mapping[str, Any]], name: str) -> bytes:
    epochs = [record["epoch"] for record in records]
    factor, unit = (100, " (%)") if name in PARTS else (1, "")
    tested = Curve(TITLES[name], epochs, [factor * record[f"test_{name}"] for record in records])
    loss = Curve("loss", epochs, [record["train_loss"] for record in records])
    titles = [f"test {TITLES[name]}{unit}", "loss"]
    return line_plots([[tested], [loss]], x_title="epoch", y_titles=titles)


def _table(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Table:
    rows = [
        (
            str(record["epoch"]),
            str(record["step"]),
            f"{record['train_loss']:.4f}",
            *(figure_text(name, record[f"test_{name}"]) for name in names),
            f"{record['lr']:.4g}",
            f"{record['seconds']:.1f}",
        )
        for record in records
    ]
    tested = (TITLES[name] for name in names)
    return Table(("epoch", "step", "loss", *tested, "learning rate", "seconds"), rows)


def weight_section(records: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> Section:
    """Exponents, zero and saturated codes of the weights after every epoch."""
    title = "Weights over the epochs"
    with_codes = [r for r in records if isinstance(r.get("weights"), Mapping) and r["weights"]]
    if not with_codes:
        reason = (
            "A run in float32 has no codes: nothing is recorded of its weights."
            if config.get("numerics") == "float32"
            else "This run recorded no exponents and codes of its weights."
        )
        return Section(title, [Paragraph(reason)])
    names = [name for name, found in with_codes[-1]["weights"].items() if _figures(found)]
    spread = sorted(names, key=lambda name: -_moved(with_codes, name))
    rows = []
    for name in names:
        first, last = (_figures(r["weights"].get(name)) for r in (with_codes[0], with_codes[-1]))
        if first is None or last is None:
            continue
        rows.append(
            (
                printable(name),
                f"{first[0]:g}",
                f"{last[0]:g}",
                f"{100 * last[1]:.2f} %",
                f"{100 * last[2]:.2f} %",
            )
        )
    parts = [
        [_weight_curve(with_codes, name, index) for name in spread[:DRAWN]] for index in (0, 1, 2)
    ]
    for part in parts[1:]:
        for index, curve in enumerate(part):
            part[index] = Curve(curve.label, curve.x, [100 * y for y in curve.y])
    columns = ("weights", "exponent, first epoch", "last epoch", "codes of zero", "saturated")
    caption = (
        "Exponent, zero codes and saturated codes (%) of the "
        f"{min(DRAWN, len(spread))} tensors whose exponents moved most"
    )
    titles = ("exponent", "zero (%)", "saturated (%)")
    plot = Figure(line_plots(parts, x_title="epoch", y_titles=titles), caption, f"{caption}.")
    text = (
        "Weights after every epoch, as the run recorded them: where every row has an exponent of "
        "its own, their mean. Activations and gradients are not recorded: samebits train --trace "
        "keeps a hash of each in every step."
    )
    return Section(title, [Paragraph(text), plot, Fold("Every tensor", [Table(columns, rows)])])


def _figures(found: Any) -> tuple[float, float, float] | None:
    """Exponent, share of zeros, share of saturated codes; None for anything else."""
    if not isinstance(found, list) or len(found) != 3:
        return None
    if not all(isinstance(number, int | float) for number in found):
        return None
    return float(found[0]), float(found[1]), float(found[2])


def _weight_curve(records: Sequence[Mapping[str, Any]], name: str, index: int) -> Curve:
    points = [(r["epoch"], _figures(r["weights"].get(name))) for r in records]
    known = [(epoch, found[index]) for epoch, found in points if found is not None]
    return Curve(printable(name), [epoch for epoch, _ in known], [y for _, y in known])


def _moved(records: Sequence[Mapping[str, Any]], name: str) -> float:
    numbers = _weight_curve(records, name, 0).y
    return max(numbers) - min(numbers) if numbers else 0.0
