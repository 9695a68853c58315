"""The audit of two training traces (`train.run.trace`): the first tensor in which they part."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from samebits.entrance import opened
from samebits.errors import InputError
from samebits.train.run.record import first_difference
from samebits.train.run.trace import FAMILY, FORMAT, LONGEST_LINE, check_format

Record = dict[str, Any]


@dataclass(frozen=True)
class TrainingParting:
    """The first place where two training traces differ.

    step:   number of the step; 0 is the initial state
    shard:  index of the shard in that step, None for a parameter
    tensor: "output of layer '1'", "gradient of layer '1'", "loss" or "parameter '1.weight'"
    hashes: of the tensor in both traces
    """

    step: int
    shard: int | None
    tensor: str
    hashes: tuple[str | None, str | None]

    def to_dict(self) -> Record:
        """As JSON data."""
        return dict(vars(self))

    def lines(self, a: str, b: str) -> list[str]:
        """The place in words, for traces called `a` and `b`."""
        shard = "" if self.shard is None else f", shard {self.shard}"
        return [
            f"step {self.step}{shard}: {self.tensor} differs: {self.hashes[0]} in {a}, "
            f"{self.hashes[1]} in {b}"
        ]


@dataclass(frozen=True)
class TrainingAudit:
    """The comparison of two training traces: number of whole steps that agree, where they part."""

    steps: int
    parting: TrainingParting | None


@dataclass(frozen=True)
class TrainingTrace:
    """A training trace without the hashes of its steps.

    run:        options and data of the run
    layers, parameters: their names
    first, last: numbers of the steps after which it begins and ends
    shards:     of the last step, 0 where there is none
    state:      the hash of each parameter after the last step
    """

    run: Record
    layers: tuple[str, ...]
    parameters: tuple[str, ...]
    first: int
    last: int
    shards: int
    state: tuple[str | None, ...]


def read_training_trace(path: Path) -> TrainingTrace:
    """Read an untrusted trace to its end, one line at a time. Raises InputError."""
    with opened(path) as file:
        header = _header(path, file)
        last = [header, *deque(_steps(path, file, header), maxlen=1)][-1]
    return TrainingTrace(
        header["run"],
        tuple(header["layers"]),
        tuple(header["parameters"]),
        header["step"],
        last["step"],
        len(last.get("shards", ())),
        tuple(last["state"]),
    )


def is_training_trace(path: Path) -> bool:
    """Whether a file begins as a training trace of any version does."""
    with opened(path) as file:
        return FAMILY.encode() in file.read(64)


def audit(a: Path, b: Path) -> TrainingAudit:
    """Compare the steps that both traces hold, reading one line of each at a time.

    Raises InputError for files that are no such traces, or traces of different runs.
    """
    with opened(a) as left, opened(b) as right:
        headers = _header(a, left), _header(b, right)
        difference = first_difference(headers[0]["run"], headers[1]["run"])
        if difference is not None:
            raise InputError(f"expected two traces of one run, found other options: {difference}")
        for what in ("layers", "parameters"):
            if headers[0][what] != headers[1][what]:
                raise InputError(f"expected two traces of one model, found other names of {what}")
        first = max(header["step"] for header in headers)
        records = (
            _from(first, header, _steps(path, file, header))
            for path, file, header in zip((a, b), (left, right), headers, strict=True)
        )
        compared = 0
        for record, other in zip(*records, strict=False):
            parting = _parting(headers[0], record, other)
            if parting is not None:
                return TrainingAudit(compared, parting)
            compared += "shards" in record
        if not compared:
            raise InputError(f"{a} and {b}: expected traces with a step in common, found none")
        return TrainingAudit(compared, None)


def _from(step: int, header: Record, steps: Iterator[Record]) -> Iterator[Record]:
    """The records from a step on; the initial state first if the trace begins there."""
    if header["step"] == step:
        yield {"step": step, "state": header["state"]}
    for record in steps:
        if record["step"] == step:  # the state that another trace begins with
            yield {"step": step, "state": record["state"]}
        elif record["step"] > step:
            yield record


def _parting(header: Record, record: Record, other: Record) -> TrainingParting | None:
    """The first tensor of a step that differs, in the order of computation."""
    step = record["step"]
    shards = record.get("shards", []), other.get("shards", [])
    if len(shards[0]) != len(shards[1]):
        raise InputError(
            f"step {step}: expected equally many shards, found {len(shards[0])} and "
            f"{len(shards[1])}: in float32 every worker is one; give traces of as many workers"
        )
    for shard, pair in enumerate(zip(*shards, strict=True)):
        for left, right in zip(*(_tensors(header["layers"], half) for half in pair), strict=True):
            if left != right:
                return TrainingParting(step, shard, left[0], (left[1], right[1]))
    for name, *hashes in zip(header["parameters"], record["state"], other["state"], strict=True):
        if hashes[0] != hashes[1]:
            return TrainingParting(step, None, f"parameter {name!r}", (hashes[0], hashes[1]))
    return None


def _tensors(layers: list[str], shard: Record) -> Iterator[tuple[str, str | None]]:
    """(tensor, hash) of a shard; its backward pass begins at the last layer."""
    for name, text in zip(layers, shard["outputs"], strict=True):
        yield f"output of layer {name!r}", text
    yield "loss", shard["loss"]
    for name, text in zip(reversed(layers), reversed(shard["gradients"]), strict=True):
        yield f"gradient of layer {name!r}", text


def _lines(path: Path, file: IO[bytes]) -> Iterator[Record]:
    """The records of an untrusted file; a partial last line is left out."""
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if not line.endswith(b"\n"):
            if len(line) == LONGEST_LINE:
                raise InputError(f"{path}: line {number} is longer than {LONGEST_LINE} bytes")
            return
        try:
            record = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: line {number}: expected JSON, found: {error}") from None
        if not isinstance(record, dict):
            raise InputError(f"{path}: line {number}: expected a JSON object")
        yield record


def _refuse(constant: str) -> None:
    """NaN and infinities are no JSON, and NaN would not be what it is itself."""
    raise ValueError(f"{constant} is not a number")


def _header(path: Path, file: IO[bytes]) -> Record:
    """The checked first line."""
    header = next(_lines(path, file), {})
    check_format(path, header)
    run, step = header.get("run"), header.get("step")
    if (
        header.get("format") != FORMAT
        or not isinstance(run, dict)
        or type(step) is not int
        or not all(_are_names(header.get(key)) for key in ("layers", "parameters"))
        or not _are_hashes(header.get("state"), len(header["parameters"]))
    ):
        raise InputError(
            f"{path}: expected the header of a training trace ({FORMAT}); make one with: samebits "
            "train --trace FILE"
        )
    return header


def _steps(path: Path, file: IO[bytes], header: Record) -> Iterator[Record]:
    """The checked records of consecutive steps after the header."""
    layers, parameters = len(header["layers"]), len(header["parameters"])
    for step, record in enumerate(_lines(path, file), header["step"] + 1):
        shards = record.get("shards")
        good = (
            record.get("step") == step
            and isinstance(shards, list)
            and _are_hashes(record.get("state"), parameters)
            and all(
                isinstance(shard, dict)
                and _are_hashes(shard.get("outputs"), layers)
                and _are_hashes(shard.get("gradients"), layers)
                and _are_hashes([shard.get("loss", "")], 1)
                for shard in shards
            )
        )
        if not good:
            raise InputError(
                f"{path}: expected the hashes of step {step} (every shard's {layers} outputs, loss "
                f"and {layers} gradients, {parameters} parameters), found something else"
            )
        yield record


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _are_hashes(value: object, count: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == count
        and all(
            text is None or (isinstance(text, str) and re.fullmatch("[0-9a-f]{16}", text))
            for text in value
        )
    )
