"""`Contract`: what the numbers of a network mean, from its inputs to its answers.

It travels with a network: a run, a quantized network, the metadata of its ONNX file, its C and its
pages hold the same one. Columns and targets are those of docs/spec/tables.md; numbers are binary64
and read back as they were.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from samebits import entrance
from samebits.data.columns import ColumnScale
from samebits.data.earlier import PLAIN_SCALE, Earlier
from samebits.data.preparation import (
    MAX_NAMES,
    Feature,
    Preparation,
    feature_from,
    feature_record,
    require,
    scale_from,
    scale_record,
)
from samebits.errors import InputError
from samebits.recipes import from_record
from samebits.recipes.reading import LARGEST_MEAN, MOST_CHANNELS, Reading

T = TypeVar("T")
FORMAT = "samebits-contract-1"
LARGEST = 1 << 22  # characters of a contract as JSON
LONGEST = 1000  # characters of one name
MOST_PORTS = 64
RULES = {
    "argmax": "the class of the largest number",
    "threshold": "every label whose number is above 0",
    "regression": "centre + spread * the number, of every target",
}
"""Rules by which an output becomes an answer."""
MISSING = {
    "refuse": "an error that names row and column",
    "mean": "a number counts as its column's mean, a word as none of its column's",
}
"""Ways to take cells of a table that have no value."""
RULE_OF = {  # of tasks
    "classification": "argmax",
    "segmentation": "argmax",
    "multilabel": "threshold",
    "regression": "regression",
}


@dataclass(frozen=True)
class InputMeaning:
    """One input.

    columns:   of a table, in order, whose standardised numbers, and words as 0 and 1, it takes
    mean, std: it takes (pixel / 255 - mean) / std: a number each, or one for each channel
    unit:      of its numbers, in words
    missing:   one of MISSING; "" is refuse
    """

    name: str
    columns: tuple[Feature, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    unit: str = ""
    missing: str = ""

    def misfit(self, shape: Sequence[int]) -> str:
        """Why it cannot be that of an input of a shape [1, ...]; "" where it can."""
        width = sum(column.width for column in self.columns)
        if self.columns and tuple(shape[-1:]) != (width,):
            return f"columns of {width} numbers"
        if len(self.mean) > 1 and (len(shape) != 4 or shape[1] != len(self.mean)):
            return f"means of {len(self.mean)} channels"
        return ""


@dataclass(frozen=True)
class OutputMeaning:
    """One output.

    rule:   one of RULES; "" where none is known
    names:  of its classes, labels or targets, in order
    scales: of the targets of a regression
    unit:   of its answer, in words
    """

    name: str
    rule: str = ""
    names: tuple[str, ...] = ()
    scales: tuple[ColumnScale, ...] = ()
    unit: str = ""

    def misfit(self, shape: Sequence[int]) -> str:
        """Why it cannot be that of an output of a shape [1, ...]; "" where it can."""
        count = len(self.names) or len(self.scales)
        if count and count not in (*shape[1:2], *shape[-1:]):
            return f"names of {count} numbers"
        return ""


@dataclass(frozen=True)
class Contract:
    """The meaning of a network's numbers. Of what it does not name nothing is known.

    name, version: of the model, as its author has them
    recipes: the options that its quantization was asked for, as JSON data (`recipes.from_record`)
    """

    inputs: tuple[InputMeaning, ...] = ()
    outputs: tuple[OutputMeaning, ...] = ()
    name: str = ""
    version: str = ""
    recipes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise InputError for an unknown rule, names that are alike, and scales without them."""
        for given in self.inputs:
            if given.missing not in ("", *MISSING):
                raise InputError(
                    f"input {given.name!r:.60}: expected missing to be one of "
                    f"{', '.join(MISSING)}, found {given.missing!r:.60}"
                )
        for output in self.outputs:
            where = f"output {output.name!r:.60}"
            if output.rule not in ("", *RULES):
                raise InputError(
                    f"{where}: expected a rule among {', '.join(RULES)}, found {output.rule!r:.60}"
                )
            if output.scales and output.names and len(output.scales) != len(output.names):
                raise InputError(
                    f"{where}: expected a scale for each of {len(output.names)} targets, found "
                    f"{len(output.scales)}"
                )
            if len(set(output.names)) < len(output.names):
                raise InputError(f"{where}: expected different names, found one of them twice")
        for ports in (self.inputs, self.outputs):
            if len({port.name for port in ports}) < len(ports):
                raise InputError("expected each input and output once, found one of them twice")

    def input(self, name: str) -> InputMeaning | None:
        """Find the meaning of an input, None where it is not known."""
        return next((each for each in self.inputs if each.name == name), None)

    def output(self, name: str) -> OutputMeaning | None:
        """Find the meaning of an output, None where it is not known."""
        return next((each for each in self.outputs if each.name == name), None)

    def misfits(self, shapes: Mapping[str, Sequence[int]]) -> list[str]:
        """Sentences on inputs and outputs that are not those of a network. shapes: of its own."""
        found = []
        for kind, parts in (("input", self.inputs), ("output", self.outputs)):
            for part in parts:
                if part.name not in shapes:
                    found.append(f"it has no {kind} {part.name!r:.60}")
                elif text := part.misfit(shapes[part.name]):
                    shape = list(shapes[part.name])
                    found.append(f"its {kind} {part.name!r:.60} of shape {shape} has no {text}")
        return found

    def fitting(self, shapes: Mapping[str, Sequence[int]]) -> Contract:
        """The same without inputs and outputs that are not those of a network."""

        def fits(part: InputMeaning | OutputMeaning) -> bool:
            return part.name in shapes and not part.misfit(shapes[part.name])

        return replace(
            self, inputs=tuple(filter(fits, self.inputs)), outputs=tuple(filter(fits, self.outputs))
        )

    def over(self, earlier: Contract) -> Contract:
        """This, and what an earlier contract says of that on which this one says nothing."""

        def both(mine: Any, others: Any) -> Any:
            names, known = {port.name for port in mine}, {port.name: port for port in others}
            merged = [_over(port, known.get(port.name)) for port in mine]
            return (*merged, *(port for port in others if port.name not in names))

        return Contract(
            both(self.inputs, earlier.inputs),
            both(self.outputs, earlier.outputs),
            self.name or earlier.name,
            self.version or earlier.version,
            {**earlier.recipes, **self.recipes},
        )

    def reading(self) -> Earlier | None:
        """How data is read for a network of one input that is known: columns in their scales,
        pixels with their mean and deviation; None for any other."""
        if len(self.inputs) != 1 or not (self.inputs[0].columns or self.inputs[0].mean):
            return None
        given, made = self.inputs[0], self.outputs[0] if len(self.outputs) == 1 else None
        preparation = None
        if given.columns:
            classes = made.names if made is not None and made.rule == "argmax" else ()
            scales = () if made is None else made.scales
            preparation = Preparation(given.columns, scales, classes)
        options = Reading(mean=given.mean, std=given.std)
        return Earlier(options, preparation, bool(given.mean), given.missing)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data; what is not known is left out."""
        inputs = [
            {
                "name": each.name,
                "columns": [feature_record(column) for column in each.columns],
                "mean": list(each.mean),
                "std": list(each.std),
                "unit": each.unit,
                **({"missing": each.missing} if each.missing else {}),
            }
            for each in self.inputs
        ]
        outputs = [
            {
                "name": each.name,
                "rule": each.rule,
                "names": list(each.names),
                "scales": [scale_record(scale) for scale in each.scales],
                "unit": each.unit,
            }
            for each in self.outputs
        ]
        kept: dict[str, Any] = {
            "name": self.name,
            "version": self.version,
            "inputs": inputs,
            "outputs": outputs,
        }
        kept["recipes"] = dict(self.recipes)
        return {"format": FORMAT, **{key: value for key, value in kept.items() if value}}

    def to_json(self) -> str:
        """As a file holds it; "" where nothing is known."""
        return "" if self == UNKNOWN else json.dumps(self.to_dict(), sort_keys=True)

    @staticmethod
    def from_json(text: str, where: str = "the metadata") -> Contract:
        """The contract of a text that `to_json` has made, or a user has written; it is untrusted.
        Raises InputError that says `where` it stands."""
        if not text:
            return UNKNOWN
        try:
            require(len(text) <= LARGEST)
            return _contract(json.loads(text))
        except (ValueError, TypeError, KeyError, RecursionError, InputError) as error:
            why = f" ({error})" if isinstance(error, InputError) else ""
            raise InputError(
                f"expected a contract {FORMAT} in {where}, found {text!r:.80}{why}; correct it as "
                "docs/guide/files.md says, or leave it out"
            ) from None


UNKNOWN = Contract()


def given_contract(given: Contract | Mapping[str, Any] | str | Path) -> Contract:
    """The contract that a user gives: as it is, as JSON data, or as the name of a file of it.
    Raises InputError."""
    if isinstance(given, Contract):
        return given
    if isinstance(given, Mapping):
        return Contract.from_json(json.dumps(dict(given)), "the data given")
    try:
        text = entrance.read(Path(given), LARGEST).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{given}: expected a contract {FORMAT} as JSON, found a file that cannot be read "
            f"({error})"
        ) from error
    return Contract.from_json(text or " ", str(given))


def of_data(
    names: tuple[str, str],
    preparation: Preparation | None,
    task: str = "",
    answers: tuple[str, ...] = (),
    pixels: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
) -> Contract:
    """The contract of a network of one input and output by what is recorded of its data.

    names:   of the input and the output
    task:    that it was trained for; "": not on this data, which says nothing of its output then
    answers: names of its classes, labels or targets
    pixels:  mean and deviation of images of whole numbers
    """
    own, answer = map(str, names)
    given = InputMeaning(own, () if preparation is None else preparation.features)
    if pixels is not None:
        mean, std = (numbers or (PLAIN_SCALE,) for numbers in pixels)
        given = replace(given, mean=mean, std=std)
    scales = preparation.targets if preparation is not None and task == "regression" else ()
    rule = RULE_OF.get(task, "") if answers or scales else ""
    made = OutputMeaning(answer, rule, answers if rule else (), scales)
    return Contract(() if given == InputMeaning(own) else (given,), () if not rule else (made,))


def _over(port: Any, earlier: Any) -> Any:
    """A port's meaning, and what an earlier one says of that on which it says nothing; of another
    rule nothing stays."""
    rule = getattr(port, "rule", "")
    if earlier is None or (rule and rule != earlier.rule):
        return port
    said = {each.name: getattr(port, each.name) for each in fields(port)}
    return replace(earlier, **{name: value for name, value in said.items() if value})


def _contract(record: Any) -> Contract:
    _keys(record, ("format", "name", "version", "inputs", "outputs", "recipes"))
    require(record.get("format", FORMAT) == FORMAT)
    inputs = _listed(record.get("inputs", []), _input, MOST_PORTS)
    outputs = _listed(record.get("outputs", []), _output, MOST_PORTS)
    recipes = record.get("recipes", {})
    from_record(recipes, "recipes")  # refuses others
    return Contract(
        inputs, outputs, _text(record.get("name", "")), _text(record.get("version", "")), recipes
    )


def _input(record: Any) -> InputMeaning:
    _keys(record, ("name", "columns", "mean", "std", "unit", "missing"))
    mean, std = (_listed(record.get(key, []), _real, MOST_CHANNELS) for key in ("mean", "std"))
    require(len(mean) == len(std) and all(number > 0 for number in std))
    columns = _listed(record.get("columns", []), feature_from, MAX_NAMES)
    texts = [_text(record.get(key, "")) for key in ("unit", "missing")]
    return InputMeaning(_text(record["name"]), columns, mean, std, *texts)


def _output(record: Any) -> OutputMeaning:
    _keys(record, ("name", "rule", "names", "scales", "unit"))
    return OutputMeaning(
        _text(record["name"]),
        _text(record.get("rule", "")),
        _listed(record.get("names", []), _text, MAX_NAMES),
        _listed(record.get("scales", []), scale_from, MAX_NAMES),
        _text(record.get("unit", "")),
    )


def _keys(record: Any, known: Sequence[str]) -> None:
    require(isinstance(record, Mapping) and set(record) <= set(known))


def _listed(found: Any, read: Callable[[Any], T], most: int) -> tuple[T, ...]:
    require(isinstance(found, list) and len(found) <= most)
    return tuple(map(read, found))


def _text(found: Any) -> str:
    require(isinstance(found, str) and len(found) <= LONGEST)
    return str(found)


def _real(found: Any) -> float:
    require(type(found) in (int, float) and abs(found) < LARGEST_MEAN)
    return float(found)
