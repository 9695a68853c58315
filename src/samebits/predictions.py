"""`predict`: from raw rows, images and recordings to named answers, as a contract says.

An answer belongs to every sample that was given, in its order. The network is computed by whatever
backend was asked for; answers follow from its codes alone, so they are the same from all.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from samebits import data
from samebits.codegen.packaging.predictor import ports_of
from samebits.codegen.raw import UNSAID_STEPS, Raw
from samebits.codegen.sound import COUNT, packed
from samebits.contract import RULE_OF, OutputMeaning
from samebits.data.dataset import PEAK, pixel_values, value_table
from samebits.data.earlier import Earlier
from samebits.data.folder import is_sample, sample_files, takes_of
from samebits.data.frames import frame_of, frames_given, is_frame
from samebits.data.masks import holds_masks
from samebits.data.recordings import read_wav
from samebits.data.stored import is_stored
from samebits.data.table import (
    SUFFIXES,
    features_of_frames,
    frames_of,
    raw_rows,
    table_files,
    values_of,
)
from samebits.errors import InputError
from samebits.files import write_atomically
from samebits.ir import Graph, Value
from samebits.model import Model, is_quantized
from samebits.recipes.reading import Reading, prepared, reading_of
from samebits.reports.html import Table
from samebits.reports.report import Report, Reported, printable, section
from samebits.samples import archived, fitted, gather
from samebits.verification.accuracy import whole_batches
from samebits.verification.compare import Verdict
from samebits.verification.inputs import (
    check_seed,
    codes_of,
    dequantize,
    given_codes,
    name_of,
    step,
)
from samebits.verification.raw import raw_form, verify_raw
from samebits.verification.registry import usable
from samebits.verification.run import reference_of, run_float, verify_model

Array = np.ndarray[Any, Any]
FEW = 20  # answers that a terminal shows
CONTRACT = "docs/guide/predict.md says how to give it one"


@dataclass(frozen=True, eq=False)
class Prediction(Reported):
    """An answer for every sample.

    data:   as the command line names it
    output: the meaning of the output that answers
    scores: its numbers [n, ...], one for each class, label or target
    chosen: the class of each sample (of each place, where it has more) as its place among the
            names; of labels whether each holds [n, labels]; of targets their values [n, targets]
    rows:   names of files, or the index of a frame; () for samples without names
    """

    source: str
    data: str
    output: OutputMeaning
    scores: Array
    chosen: Array
    rows: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes, labels or targets: their places where they have none."""
        count = self.scores.shape[_class_axis(self.scores, self.output)]
        return self.output.names or tuple(map(str, range(count)))

    @property
    def answers(self) -> list[Any]:
        """The name of each sample's class; the names of its labels; its value, or values by target.
        Of a sample of several places an array of names."""
        names = np.array(self.names, object)
        if self.output.rule == "argmax":
            return list(names[self.chosen])
        if self.output.rule == "threshold":
            return [tuple(names[row]) for row in self.chosen]
        return self.chosen[:, 0].tolist() if self.chosen.shape[1] == 1 else list(self.chosen)

    def to_frame(self) -> Any:
        """A pandas.DataFrame: the answers, and a column for each score."""
        import pandas

        head, rows = self._table()
        return pandas.DataFrame(rows, columns=head)

    def save(self, path: str | Path) -> Path:
        """Write the answers as a table with commas. Raises InputError for another ending, and for
        answers that have more than one place."""
        path = Path(path)
        if path.suffix.lower() != ".csv":
            raise InputError(f"{path}: expected a name ending in .csv, found {path.suffix!r:.20}")
        text = io.StringIO(newline="")
        head, rows = self._table()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([head, *rows])
        write_atomically(path, text.getvalue().encode())
        return path

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        made = self.output
        return {
            "model": self.source,
            "data": self.data,
            "rule": made.rule,
            "names": list(self.names),
            **({"unit": made.unit} if made.unit else {}),
            **({"rows": list(self.rows)} if self.rows else {}),
            "answers": [a.tolist() if isinstance(a, np.ndarray) else a for a in self.answers],
            "scores": self.scores.tolist(),
        }

    def report(self) -> Report:
        """The first answers, and how many there are of each class."""
        blocks: list[Any] = []
        if self.chosen.ndim == 1 or self.output.rule != "argmax":
            head, rows = self._table()
            texts = [tuple(map(_shown, row)) for row in rows[:FEW]]
            blocks.append(Table(tuple(head), texts))
            if len(rows) > FEW:
                blocks.append(f"and {len(rows) - FEW:,} more; --out FILE.csv writes all")
        if self.output.rule == "argmax":
            found, counts = np.unique(self.chosen, return_counts=True)
            told = [f"{printable(self.names[i])} {n:,}" for i, n in zip(found, counts, strict=True)]
            blocks.append(", ".join(told[:FEW]))
        title = f"{printable(self.source)} on {printable(self.data or 'data')}"
        answers = f"{len(self):,} answer{'s' * (len(self) != 1)}"
        return Report(title, answers, [section(*blocks)])

    def _table(self) -> tuple[list[str], list[list[Any]]]:
        """The line of names, and a row for each sample."""
        made = self.output
        if made.rule == "argmax" and self.chosen.ndim > 1:
            raise InputError(
                f"{self.source}: expected one answer for each sample for a table, found one for "
                f"each of its {self.chosen[0].size:,} places; take `chosen` from Python, or --json"
            )
        first = list(self.rows) or [str(row + 1) for row in range(len(self))]
        unit = f" ({made.unit})" if made.unit else ""
        if made.rule == "regression":
            head = ["row", *(f"{name}{unit}" for name in self.names)]
            return head, [[r, *v] for r, v in zip(first, self.chosen.tolist(), strict=True)]
        answers = [a if isinstance(a, str) else " ".join(a) for a in self.answers]
        scores = self.scores.reshape(len(self), -1).tolist()
        head = ["row", "answer", *(f"score {name}" for name in self.names)]
        return head, [[r, a, *s] for r, a, s in zip(first, answers, scores, strict=True)]


def _shown(cell: Any) -> str:
    return f"{cell:.6g}" if isinstance(cell, float) else printable(str(cell))


def predict(model: Model, given: Any, backend: str | None) -> Prediction:
    """The answers for what a user gives, as `Network.predict` says."""
    made = answering(model)
    graph = model.interface if _integer(model) else model.real
    if graph.states:
        raise InputError(
            f"{model.source}: expected a network of whole samples, found one step of a sequence, "
            f"with states, and {UNSAID_STEPS}; samebits eval counts the answers after the last "
            "step of data with labels, and `run` takes the steps one by one"
        )
    rows, arrays, count = _samples(model, graph, *reading_of(given))
    ranked, scores = _computed(model, graph, arrays, backend, made.name)
    ranked, scores = ranked[:count], scores[:count]
    chosen = _chosen(ranked, scores, made, graph.values[made.name])
    return Prediction(model.source, name_of(given), made, scores, chosen, rows)


def raw_samples(model: Model, raw: Raw, given: Any, options: Reading) -> tuple[Array, list[Array]]:
    """Raw samples [n, size] of what a user gives, binary64, bytes or int16, and the codes that
    `predict` makes of them. Raises InputError for what is neither rows, images nor recordings."""
    what, known, graph = name_of(given) or "data", model.known or Earlier(), model.interface
    _, arrays, _ = _samples(model, graph, given, options)
    codes, (files, root) = codes_of(arrays, graph, what), _files(given)
    shape = raw.input.shape[1:]
    if raw.rate and files:
        resample = options.resample or known.options.resample
        heard = [read_wav(file, resample, root)[0] for file in files]
        return packed(heard, max(map(len, heard))), codes
    if raw.given.columns:
        frames = frames_given(given)
        if _is_name(given) and Path(given).suffix.lower() in SUFFIXES:
            frames = frames_of(Path(given))
        elif (array := _array(given)) is not None and not options.prepared:
            frames = [(what, frame_of(array, [c.name for c in raw.given.columns], what))]
        if frames:
            return raw_rows(what, frames, options, known), codes
    elif files and not raw.rate:
        found = data.load_files(
            files, root, input_shape=shape, options=options, earlier=known, raw=True
        )
        return found.numpy().reshape(len(files), -1), codes
    elif not raw.rate and (array := _array(given)) is not None and array.dtype == np.uint8:
        return _channels_first(array, shape).reshape(len(array), -1), codes
    kind = "recordings as files" if raw.rate else "images as files or as uint8"
    kind = "rows of a table" if raw.given.columns else kind
    raise InputError(f"{what}: expected {kind}, in the units of the contract, for raw samples")


def compared(
    model: Model,
    given: Any,
    names: Sequence[str],
    strict: bool,
    usual: bool,
    seed: int | None,
    raw: bool,
) -> tuple[int, Graph, list[Array], list[Verdict]]:
    """The number of samples, what is compared, the reference's, and a verdict for each backend.

    raw: samples are those of `predict`, and answers are compared too; the others as `verify_model`
         and `given_codes` take them
    """
    graph = model.interface
    if raw:
        check_seed(seed, given)
        form = raw_form(model)
        rows, (codes,) = raw_samples(model, form, *reading_of(given))
        form = replace(form, room=rows.shape[1] - COUNT) if form.rate else form
        return (
            len(rows),
            ports_of(form),
            *verify_raw(model, form, rows, codes, names, strict, usual),
        )
    taken = given_codes(given, model, seed)
    count = len(taken[0]) // step(graph.values[graph.inputs[0]])
    return count, graph, *verify_model(model, taken, names, strict=strict, promised=usual)


def answering(model: Model) -> OutputMeaning:
    """The output whose numbers are the answer: of a run whose classes have no names of their own by
    its task. Raises InputError where a network has none or more than one by its contract."""
    found = [output for output in model.meaning.outputs if output.rule]
    if not found and model.task in RULE_OF:
        found = [OutputMeaning(model.real.own_outputs[0], RULE_OF[model.task])]
    if len(found) == 1:
        return found[0]
    several = ", ".join(output.name for output in found)
    raise InputError(
        f"{model.source}: expected a contract with the rule of one output, found "
        + (f"{len(found)}: {several}; call `run`" if found else f"none; {CONTRACT}")
    )


def _integer(model: Model) -> bool:
    return model.graph is not None and (model.graph.integer or is_quantized(model.graph))


# --- samples ------------------------------------------------------------------------------------


def _samples(
    model: Model, graph: Graph, given: Any, options: Reading
) -> tuple[tuple[str, ...], dict[str, Array], int]:
    """Names of the samples, their arrays in whole batches, and how many there are."""
    what = name_of(given) or "data"
    files, root = _files(given)
    rows: tuple[str, ...] = ()
    if files:
        rows = tuple(str(f.relative_to(root)) if root else str(f) for f in files)
        arrays = _of_files(model, graph, files, root, what, options)
    else:
        rows = tuple(map(str, given.index)) if is_frame(given) else ()
        arrays = _of_others(model, graph, given, what, options)
    batch = step(graph.values[graph.inputs[0]])
    named = dict(arrays)
    count = 0
    for name, array in arrays.items():
        shape = graph.values[name].shape if name in graph.values else ()
        array = array[None] if shape[:1] == (1,) and array.shape == shape[1:] else array
        count, named[name] = len(array), whole_batches(array, batch)
    return rows, named, count


def _files(given: Any) -> tuple[list[Path], Path | None]:
    """The images or recordings that a folder holds, or that are named, and the folder."""
    if isinstance(given, list | tuple) and given and all(map(_is_name, given)):
        return [Path(name) for name in given], None
    if not _is_name(given):
        return [], None
    path = Path(given)
    if not path.is_dir():
        return ([path] if is_sample(path) else []), None
    if is_stored(path) or table_files(path):
        return [], None
    files = sample_files(path)
    if holds_masks(path):
        files = [file for file in files if file.parent.name == "images"]
    return files, path


def _is_name(given: Any) -> bool:
    return isinstance(given, str | Path)


def _of_files(
    model: Model,
    graph: Graph,
    files: list[Path],
    root: Path | None,
    what: str,
    options: Reading,
) -> dict[str, Array]:
    """Images or recordings."""
    shape = graph.values[graph.own_inputs[0]].shape[1:]
    values = data.load_files(
        files, root, input_shape=shape, options=options, rate=model.rate, earlier=model.known
    )
    return fitted(what, values, graph, what, takes_of(files[0]))


def _of_others(
    model: Model, graph: Graph, given: Any, what: str, options: Reading
) -> dict[str, Array]:
    """Tables, arrays and archives, and whatever else `gather` takes."""
    known = model.known or Earlier()
    table = known.preparation is not None and bool(known.preparation.features)
    if _is_name(given):
        path = Path(given)
        if (path.suffix.lower() in SUFFIXES or table_files(path)) and not table:
            raise InputError(
                f"{what}: expected a network that knows the columns of its table, found another; "
                f"{CONTRACT}"
            )
        arrays = archived(given, options, graph.inputs)
        if arrays is not None and len(arrays) == 1:
            given, options = next(iter(arrays.values())), options.among(("prepared",))
    if not options.prepared and not is_frame(given):
        array = _array(given)
        if array is not None and table:
            return fitted(what, _of_rows(array, known, what), graph, what)
        if array is not None and array.dtype == np.uint8 and known.pixels:
            shape = graph.values[graph.own_inputs[0]].shape[1:]
            pixels = torch.from_numpy(_channels_first(array, shape))
            table_of = value_table(PEAK, known.options.mean, known.options.std)
            return fitted(what, pixel_values(pixels, table_of), graph, what)
    return gather(given, graph, what, options, rate=model.rate, earlier=model.known, whole=True)


def _array(given: Any) -> Array | None:
    """An array, a tensor, an image of Pillow or a list of them as one array; None for others."""
    if hasattr(given, "convert") and hasattr(given, "getbands"):
        return np.asarray(given)[None]
    if isinstance(given, list | tuple) and given and hasattr(given[0], "getbands"):
        shapes = {np.asarray(image).shape for image in given}
        if len(shapes) > 1:
            raise InputError(
                f"data: expected images of one size and mode, found {sorted(shapes)!s:.200}; "
                "resize and convert them, or give their files"
            )
        return np.stack([np.asarray(image) for image in given])
    if isinstance(given, list | tuple):
        try:
            return np.array(given, np.float64)
        except (TypeError, ValueError):
            return None
    if hasattr(given, "detach"):
        return np.asarray(given.detach().cpu().numpy())
    return given if isinstance(given, np.ndarray) else None


def _of_rows(array: Array, known: Earlier, what: str) -> torch.Tensor:
    """The values of raw rows, whose columns are those of training in their order."""
    assert known.preparation is not None
    features = known.preparation.features
    frame = frame_of(array, [feature.name for feature in features], what)
    if array.dtype.kind == "f":
        known.check_raw(np.atleast_2d(array).astype(np.float64), what)
    return values_of(features_of_frames(what, [(what, frame)], Reading(), known))


def _channels_first(array: Array, shape: Sequence[int]) -> Array:
    """Images [n, C, H, W] of [n, H, W, C], or of grey ones [n, H, W], where the input has that
    shape; others as they are."""
    if len(shape) == 3 and array.shape[1:] != tuple(shape):
        if array.ndim == 3 and shape[0] == 1:
            return array[:, None]
        if array.ndim == 4 and array.shape[1:] == (*shape[1:], shape[0]):
            return np.ascontiguousarray(array.transpose(0, 3, 1, 2))
    return array


# --- answers ------------------------------------------------------------------------------------


def _computed(
    model: Model, graph: Graph, arrays: dict[str, Array], backend: str | None, output: str
) -> tuple[Array, Array]:
    """The numbers by which classes are ranked, codes where they have one scale, and the scores."""
    if not _integer(model):
        if backend is not None:
            raise InputError(
                f"{model.source}: expected a quantized network for a backend, found a float one; "
                "quantize it first, or leave backend out"
            )
        scores = run_float(model, prepared(arrays))[output]
        return scores, scores
    chosen = usable(backend or reference_of(model), model)
    found = chosen.run(model, codes_of(arrays, graph, "data"))
    codes, value = found[graph.outputs.index(output)], graph.values[output]
    if codes.dtype.kind == "f" or value.quantization is None:
        return codes, codes.astype(np.float64)
    scores = dequantize(codes, value).astype(np.float64)
    return (codes if value.quantization.plain else scores), scores


def _class_axis(scores: Array, made: OutputMeaning) -> int:
    """The axis along which an output's classes, labels or targets lie."""
    count = len(made.names) or len(made.scales)
    first, last = (1, -1) if scores.ndim in (2, 4) else (-1, 1)
    return last if count and scores.shape[first] != count else first


def _chosen(ranked: Array, scores: Array, made: OutputMeaning, value: Value) -> Array:
    """The places of the largest numbers, the first of equal ones; the labels above 0; or values.

    value: the output, whose codes `ranked` holds, or reals
    """
    axis = _class_axis(scores, made)
    if made.rule == "argmax":
        found = ranked.argmax(axis)
        return found.reshape(len(found)) if found.size == len(found) else found
    flat = scores.reshape(len(scores), -1)
    if made.rule == "threshold":
        return flat > 0
    if not made.scales:
        return flat
    numbers, unit = flat, Fraction(1)
    if ranked.dtype.kind in "iu" and value.quantization is not None:
        numbers = ranked.reshape(flat.shape).astype(np.int64) - value.quantization.zero_point
        unit = value.quantization.scales[0]
    columns = [
        _values(column, Fraction(scale.centre), Fraction(scale.spread) * unit)
        for column, scale in zip(numbers.T, made.scales, strict=True)
    ]
    return np.stack(columns, axis=1)


def _values(numbers: Array, centre: Fraction, spread: Fraction) -> Array:
    """centre + spread * the number, rounded once to binary64."""
    different, places = np.unique(numbers, return_inverse=True)
    exact = [centre + spread * Fraction(number) for number in different.tolist()]
    return np.array([x.numerator / x.denominator for x in exact], np.float64)[places]
