"""One network trained in several numerics over several seeds: what a number format costs.

A script over the front door, as a program of a user's own would be; docs/guide/compare.md shows it.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebits import api
from samebits.data import Dataset
from samebits.data.earlier import NONE
from samebits.data.load import given_data
from samebits.errors import InputError, RangeError
from samebits.recipes import (
    Execution,
    Given,
    Numerics,
    Optimizer,
    Recipe,
    Recomputation,
    Training,
    reading_of,
    takes,
)
from samebits.recipes.training import EXPONENTS
from samebits.reports.comparison import BASE, ComparedRun, Comparison
from samebits.settled import settled
from samebits.spec.formats import Format
from samebits.train.architectures import build
from samebits.train.emulated import Emulated, emulated_format, emulated_formats
from samebits.train.widths import Widths

if TYPE_CHECKING:
    from torch import nn

    from samebits.train.run.loop import Reporter

SEED_MAX = 2**32 - 1
ENTRY = ("numerics", "exponents", "widths", "rounding")  # options that an entry states
OWN = ("resume", "overwrite", "trace", "tensorboard")  # options of one run alone


@dataclass(frozen=True)
class NumericsEntry:
    """An entry of the list: float32, bfp with options of its own, or a format that is emulated.

    name: as it is written, such as bfp:nearest; options: those of `fit`
    """

    name: str
    format: Format | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def base(self) -> str:
        """The numerics of `fit`: an emulated format is a float32 network that rounds."""
        return BASE if self.name == BASE or self.format is not None else "bfp"

    @property
    def folder(self) -> str:
        """A name for the folder of its runs."""
        return re.sub(r"[:,]", "-", self.name)


def entries_of(numerics: str | Sequence[str]) -> tuple[NumericsEntry, ...]:
    """The entries of a list of numerics, as `compare` takes it.

    Raises InputError for a wrong entry, one that is there twice, and a list without float32 or with
    nothing else.
    """
    texts = _split(numerics) if isinstance(numerics, str) else list(numerics)
    entries = tuple(_entry(text.strip()) for text in texts)
    names = [entry.name for entry in entries]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"numerics: expected every entry once, found {twice} twice")
    if BASE not in names:
        raise InputError(
            f"numerics: expected {BASE} among the entries, to compare with, found "
            f"{','.join(names) or 'none'}; add {BASE}"
        )
    if len(names) < 2:
        raise InputError(f"numerics: expected another entry beside {BASE}, found none; add bfp")
    return entries


@settled
@takes(Training, Optimizer, Numerics, Recomputation, Execution, data="data")
def compare(
    data: Any,
    arch: str | nn.Module,
    out: str | Path,
    *recipes: Recipe,
    numerics: str | Sequence[str] = ("float32", "bfp"),
    seeds: Iterable[int] = range(5),
    reporter_of: Callable[[str], Reporter | None] | None = None,
) -> Comparison:
    """Train one network in several numerics, over several seeds, and compare them with float32.

    Runs of one seed start from the same values and see the same data in the same order. The folder
    `out` has a training folder for each, NUMERICS/SEED: called again, those that are there go on
    from their checkpoints, and finished ones are not repeated. It also gets comparison.json, .csv,
    .svg and .html. A run that diverges is a finding, not an error.

    data, arch: as `fit` takes them; a torch.nn.Module is left as it is
    numerics:   entries of a list, or a text with commas between them: float32, bfp, bfp:nearest
                (its rounding), and formats of the catalogue of at most 24 bits (mxint8, msfp12 to
                msfp16, ...), which are emulated in float32: `samebits.train.emulated`
    reporter_of: gives the reporter of a run (as of `fit`) by its title
    recipes:    those of `fit`, the same for every run, but for what `numerics` and `seeds` say

    Raises InputError for an unknown numerics, a list without float32, seeds that repeat, and as
    `fit`; CheckpointError where `out` holds runs of other options.
    """
    entries = entries_of(numerics)
    chosen = _seeds(seeds)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(
            "compare: expected one process, found several of torchrun; start it without torchrun"
        )
    asked = Given("compare", recipes, Training, Optimizer, Numerics, Recomputation, Execution)
    for kind, taken in ((Training, ("seed",)), (Numerics, ENTRY), (Execution, OWN)):
        asked.only(kind, [name for name in kind.options() if name not in taken])
    training = asked[Training]
    data, reading = reading_of(data)
    dataset = given_data(data, limit=training.limit, options=reading, earlier=NONE)
    if dataset.task == "regression":
        raise InputError(
            f"{dataset.source}: expected a task with an accuracy to compare, found regression; "
            "train it in both numerics with samebits train"
        )
    name = arch if isinstance(arch, str) else type(arch).__name__
    plan = [(seed, entry) for seed in chosen for entry in entries]
    runs = []
    for number, (seed, entry) in enumerate(plan, 1):
        title = f"{name} {entry.name} seed {seed} ({number} of {len(plan)})"
        reporter = None if reporter_of is None else reporter_of(title)
        folder = Path(out) / entry.folder / str(seed)
        runs.append(_run(dataset, arch, folder, entry, seed, reporter, asked))
    comparison = Comparison(
        name,
        dataset.source,
        {key: value for kind in asked.to_dict().values() for key, value in kind.items()}
        | reading.to_dict(),
        tuple(entry.name for entry in entries),
        tuple(entry.name for entry in entries if entry.format is not None),
        chosen,
        tuple(runs),
    )
    comparison.save(out)
    return comparison


def _run(
    data: Dataset,
    arch: str | nn.Module,
    folder: Path,
    entry: NumericsEntry,
    seed: int,
    reporter: Reporter | None,
    asked: Given,
) -> ComparedRun:
    """One run, from where an earlier call has left it."""
    model = copy.deepcopy(arch)  # a module's state is not to go from run to run
    if entry.format is not None:
        if isinstance(model, str):
            model = build(model, data.input_shape, data.classes)
        model = Emulated(model, entry.format)
    try:
        run = api.fit(
            data,
            model,
            folder,
            asked[Training].but(seed=seed),
            asked[Optimizer],
            asked[Numerics].but(numerics=entry.base, **entry.options),
            asked[Recomputation],
            asked[Execution].but(resume=folder.exists()),
            reporter=reporter,
        )
    except RangeError as error:
        return ComparedRun(entry.name, seed, diverged=str(error))
    assert run is not None  # of one process, the first
    result = run.result
    return ComparedRun(entry.name, seed, result.accuracy, result.train_loss, result.sha256)


def _seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    chosen = tuple(seeds)
    wrong = [s for s in chosen if type(s) is not int or not 0 <= s <= SEED_MAX]
    if not chosen or wrong or len(set(chosen)) < len(chosen):
        raise InputError(
            f"seeds: expected different whole numbers from 0 to {SEED_MAX}, at least one, found "
            f"{', '.join(map(str, chosen)) or 'none'}"
        )
    return chosen


def _split(text: str) -> list[str]:
    """The entries of a text; numbers after a comma belong to the entry before: bfp:6,12,32."""
    entries: list[str] = []
    for piece in text.split(","):
        if entries and piece.strip().isdigit():
            entries[-1] += f",{piece.strip()}"
        else:
            entries.append(piece)
    return entries


def _entry(text: str) -> NumericsEntry:
    name, *options = text.split(":")
    if name == "bfp":
        return NumericsEntry(text, options=_bfp_options(text, options))
    if options:
        raise InputError(f"numerics: expected options for bfp alone, found {text!r}; give {name}")
    if name == BASE:
        return NumericsEntry(name)
    try:
        return NumericsEntry(name, emulated_format(name))
    except InputError as error:
        known = ", ".join((BASE, "bfp", *emulated_formats()))
        raise InputError(f"numerics: expected one of {known}, found {name!r} ({error})") from None


def _bfp_options(text: str, options: Sequence[str]) -> dict[str, Any]:
    """Options of `fit` that an entry bfp:OPTION:OPTION stands for."""
    found: dict[str, Any] = {}
    for option in options:
        if option == "nearest":
            new = {"rounding": option}
        elif re.fullmatch(r"\d+(,\d+)*", option):
            Widths.parse(option, f"numerics {text!r}")
            new = {"widths": option}
        elif option in EXPONENTS:
            new = {"exponents": option}
        else:
            raise InputError(
                f"numerics: expected bfp, bfp:nearest, bfp:A,B,C (widths) or bfp:"
                f"{{{','.join(EXPONENTS)}}} (exponents), found {text!r}"
            )
        if found.keys() & new.keys():
            raise InputError(f"numerics: expected {next(iter(new))} once, found {text!r}")
        found |= new
    return found
