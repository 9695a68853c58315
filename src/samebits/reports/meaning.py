"""The contract of a model in words, for summaries, and as a section of its page."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.contract import MISSING, RULES, Contract, InputMeaning, OutputMeaning
from samebits.data.columns import ColumnScale
from samebits.data.preparation import Feature
from samebits.reports.html import PageBlock, Paragraph, Section, Table
from samebits.reports.report import printable

FEW, MOST = 8, 4096  # names in a line of a summary, rows of a page
LONGEST = 100  # characters of a name


def contract_lines(contract: Contract) -> list[str]:
    """Lines of a summary; none where nothing is known."""
    lines = []
    if contract.name or contract.version:
        lines.append(f"model {_called(contract)}")
    for given in contract.inputs:
        lines += [f"input {shown(given.name)} takes {text}" for text in _input(given)]
    for made in contract.outputs:
        lines += [f"output {shown(made.name)} gives {text}" for text in _output(made)]
    return lines


def _input(given: InputMeaning) -> list[str]:
    found = []
    if given.columns:
        found.append(f"{_counted(len(given.columns), 'column')}: {_listed(given.columns)}")
    if given.mean:
        found.append(f"(pixel / 255 - {_reals(given.mean)}) / {_reals(given.std)}")
    found += [f"numbers in {shown(given.unit)}"] if given.unit else []
    return [
        *found,
        *([f"cells without a value: {MISSING[given.missing]}"] if given.missing else []),
    ]


def _output(made: OutputMeaning) -> list[str]:
    found = []
    if made.names:
        names = [shown(name) for name in made.names[:FEW]]
        kind = {"threshold": "label", "regression": "target"}.get(made.rule, "class")
        rule = f"; the answer: {RULES[made.rule]}" if made.rule else ""
        found.append(f"{_counted(len(made.names), kind)}: {_more(names, len(made.names))}{rule}")
    elif made.rule:
        found.append(f"as answer {RULES[made.rule]}")
    if made.scales:
        found.append(_more([_scale(scale) for scale in made.scales[:FEW]], len(made.scales)))
    return [*found, *([f"answers in {shown(made.unit)}"] if made.unit else [])]


def contract_section(contract: Contract) -> Section | None:
    """The section of a page, None where nothing is known."""
    blocks: list[PageBlock] = [Paragraph(f"{line}.") for line in contract_lines(contract)]
    for given in contract.inputs:
        if given.columns:
            rows = [
                (
                    shown(column.name),
                    *(("", "") if scale is None else _exact(scale)),
                    _words(column),
                )
                for column in given.columns[:MOST]
                for scale in [column.scale]
            ]
            blocks.append(Table(("column", "centre", "spread", "words"), rows))
    for made in contract.outputs:
        if made.scales:
            names = made.names or [str(place) for place in range(len(made.scales))]
            targets = [
                (shown(name), *_exact(scale))
                for name, scale in zip(names[:MOST], made.scales, strict=False)
            ]
            blocks.append(Table(("target", "centre", "spread"), targets))
        elif made.names:
            classes = [(str(place), shown(name)) for place, name in enumerate(made.names[:MOST])]
            blocks.append(Table(("number", "stands for"), classes))
    return Section("What it means", blocks) if blocks else None


def _called(contract: Contract) -> str:
    return " ".join(filter(None, (shown(contract.name), shown(contract.version))))


def _counted(count: int, noun: str) -> str:
    plural = "classes" if noun == "class" else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def _listed(columns: Sequence[Feature]) -> str:
    found = []
    for column in columns[:FEW]:
        what = _words(column) if column.scale is None else _scale(column.scale)
        found.append(f"{shown(column.name)} ({what})")
    return _more(found, len(columns))


def _more(found: Sequence[str], count: int) -> str:
    rest = count - len(found)
    return ", ".join(found) + (f" and {rest:,} more" if rest else "")


def _scale(scale: ColumnScale) -> str:
    return f"centre {scale.centre:.6g}, spread {scale.spread:.6g}"


def _exact(scale: ColumnScale) -> tuple[str, str]:
    return repr(scale.centre), repr(scale.spread)


def _words(column: Feature) -> str:
    names = [shown(word) for word in column.categories[:FEW]]
    return _more(names, len(column.categories)) if names else ""


def _reals(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)


def shown(text: str) -> str:
    """A text of an untrusted file, short and without control characters."""
    found = printable(text)
    return found if len(found) <= LONGEST else found[: LONGEST - 3] + "..."
