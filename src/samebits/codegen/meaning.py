"""The contract of a model as C macros of its header, and as a section of its README."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from samebits.codegen.names import c_string, continued, wrapped_list
from samebits.contract import RULES, Contract, InputMeaning, OutputMeaning
from samebits.ir.value import Value

MOST = 40  # columns and names that a README lists of each port
LONGEST = 80  # characters of a name there

ANSWERS = {  # of rules: the word for names, and what is done
    "argmax": ("CLASSES", "\n * The answer is the class of the largest number."),
    "threshold": ("LABELS", "\n * The answer is every label whose number is above 0."),
    "regression": ("TARGETS", "\n * Target i is CENTRES[i] + SPREADS[i] * number i."),
}

Port = tuple[str, Value]  # the name in C, and the value


def meaning_lines(
    contract: Contract, ports: Sequence[Port], prefix: str, image: bool = False
) -> list[str]:
    """Lines of the header; none where nothing is known. image: numbers of data, the name and the
    version belong to weights that can be replaced, and so do not stand here.

    Macros of lists are initialisers of arrays, as those of shapes and scales are.
    """
    upper, lines = prefix.upper(), []
    for key, text in (("MODEL_NAME", contract.name), ("MODEL_VERSION", contract.version)):
        if text and not image:
            lines.append(f"#define {upper}_{key} {c_string(text)}")
    if lines:
        lines.insert(0, "/* The model's own name and version, as its author has them. */")
    for port, value in ports:
        name = f"{upper}_{port.upper()}"
        given, made = contract.input(value.name), contract.output(value.name)
        if port.startswith("input") and given is not None:
            lines += _input(given, name, image)
        if port.startswith("output") and made is not None:
            lines += _output(made, name, image)
    return [*lines, ""] if lines else []


def _input(given: InputMeaning, name: str, image: bool) -> Iterator[str]:
    """Macros of an input."""
    if given.columns and image:
        each = [(column, word) for column in given.columns for word in column.categories or ("",)]
        yield f"/* {name}: the columns of a table that its numbers are made of, and their words. */"
        yield from _macro(f"{name}_COLUMNS", [c_string(column.name) for column, _ in each])
        yield from _macro(f"{name}_CATEGORIES", [c_string(word) for _, word in each])
    elif given.columns:
        words = any(column.categories for column in given.columns)
        yield f"/* {name}: number c is (x - CENTRES[c]) / SPREADS[c] of the column COLUMNS[c] of a"
        yield " * table, rounded to 2**-12, from -8 to 8."
        if words:
            yield " * Where CATEGORIES[c] is a word, it is 1 where the column holds it, else 0."
        yield " */"
        each = [(column, word) for column in given.columns for word in column.categories or ("",)]
        yield from _macro(f"{name}_COLUMNS", [c_string(column.name) for column, _ in each])
        if words:
            yield from _macro(f"{name}_CATEGORIES", [c_string(word) for _, word in each])
        scales = [column.scale for column, _ in each]
        centres = [0.0 if scale is None else scale.centre for scale in scales]
        spreads = [1.0 if scale is None else scale.spread for scale in scales]
        yield from _numbers(f"{name}_CENTRES", centres)
        yield from _numbers(f"{name}_SPREADS", spreads)
    if given.mean and not image:
        yield f"/* {name}: (pixel / 255 - MEAN) / STD, of each channel or of all. */"
        yield from _numbers(f"{name}_MEAN", given.mean)
        yield from _numbers(f"{name}_STD", given.std)
    if given.unit:
        yield f"#define {name}_UNIT {c_string(given.unit)}"


def _output(made: OutputMeaning, name: str, image: bool) -> Iterator[str]:
    """Macros of an output."""
    if made.names:
        kind, rule = ANSWERS.get(made.rule, ("CLASSES", ""))
        yield f"/* {name}_{kind} are the names of its numbers.{rule} */"
        yield f"#define {name}_{kind}_COUNT {len(made.names)}"
        yield from _macro(f"{name}_{kind}", [c_string(each) for each in made.names])
    if made.scales and not image:
        yield from _numbers(f"{name}_CENTRES", [scale.centre for scale in made.scales])
        yield from _numbers(f"{name}_SPREADS", [scale.spread for scale in made.scales])
    if made.unit:
        yield f"#define {name}_UNIT {c_string(made.unit)}"


def _numbers(name: str, numbers: Sequence[float]) -> list[str]:
    """A macro of binary64 numbers, exact."""
    return _macro(name, [number.hex() for number in numbers])


def _macro(name: str, items: Sequence[str]) -> list[str]:
    return continued([f"#define {name}", *f"    {{{wrapped_list(items, 5)}}}".split("\n")])


def meaning_text(contract: Contract, ports: Sequence[Port]) -> str:
    """The section of README.md, "" where nothing is known."""
    lines = []
    if contract.name or contract.version:
        lines.append(
            f"- model: {_shown(' '.join(filter(None, (contract.name, contract.version))))}"
        )
    for port, value in ports:
        given, made = contract.input(value.name), contract.output(value.name)
        if port.startswith("input") and given is not None:
            for column in given.columns[:MOST]:
                scale = column.scale
                what = (
                    f"(x - {scale.centre!r}) / {scale.spread!r}"
                    if scale is not None
                    else f"1 at the word among {_listed(column.categories)}, else 0"
                )
                lines.append(f"- `{port}`, column {_shown(column.name)}: {what}")
            if len(given.columns) > MOST:
                lines.append(f"- `{port}`: {len(given.columns) - MOST} more columns, in the header")
            if given.mean:
                lines.append(
                    f"- `{port}`: (pixel / 255 - mean) / std, mean {_reals(given.mean)}, std "
                    f"{_reals(given.std)}"
                )
            lines += [f"- `{port}`: in {_shown(given.unit)}"] if given.unit else []
        if port.startswith("output") and made is not None:
            if made.names:
                rule = f"; the answer: {RULES[made.rule]}" if made.rule else ""
                lines.append(f"- `{port}`: {_listed(made.names)}{rule}")
            lines += [f"- `{port}`: in {_shown(made.unit)}"] if made.unit else []
    return "\n## What it means\n\n" + "\n".join(lines) + "\n" if lines else ""


def _reals(numbers: Sequence[float]) -> str:
    return ", ".join(map(repr, numbers))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(map(_shown, names[:MOST])) + more


def _shown(text: str) -> str:
    """A text of a file as code of Markdown, on one line."""
    short = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
    kept = "".join(c if c.isprintable() and c != "`" else " " for c in short).strip()
    return f"`{kept}`" if kept else "(no name)"
