"""Tables: CSV and Parquet files by pandas, whose columns are features and labels.

docs/spec/tables.md says how columns become codes and which rows are for testing.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from samebits import ledger, progress
from samebits.data.cells import column_of, filled, is_number
from samebits.data.dataset import Dataset, places_of
from samebits.data.decode import decoding
from samebits.data.earlier import Earlier
from samebits.data.frames import pandas_of
from samebits.data.labels import MOST_OUTPUTS, Labels, encode
from samebits.data.pages import unpacked_bytes
from samebits.data.preparation import (
    Column,
    Preparation,
    features_of,
)
from samebits.entrance import opened, read
from samebits.errors import InputError
from samebits.recipes.reading import PLAIN, Reading
from samebits.spec.tables import FEATURE_BITS

if TYPE_CHECKING:
    import pandas

SUFFIXES = (".csv", ".parquet")
TAKES = ("target", "task")
LARGEST_FILE = 1 << 28  # bytes
MOST_COLUMNS, MOST_CELLS = 1 << 12, 1 << 25
LONGEST_HEADER = 1 << 20  # bytes
CELL = 96  # bytes of a cell: a number of a frame, of a column, and the text that the split hashes
MANY_CLASSES = 100  # integers of more different values are rather numbers
TASKS = ("classification", "regression", "multilabel")
SHORT = 24  # significant bits of the numbers that the split hashes
ADVICE = "save it as a table with a line of names first, as pandas.DataFrame.to_csv(index=False)"


def load_table(
    path: Path,
    options: Reading = PLAIN,
    prepared: Preparation | None = None,
    whole: bool = False,
) -> Dataset:
    """The rows of a CSV or Parquet file, or of the files train and test of one folder.

    Columns of numbers are standardised; columns of words, of at most MAX_CATEGORIES different ones,
    become an input for each word. `options.target` names the columns that are labels, by default
    the last one. Of one file, a row is for testing if a hash of its cells says so, about one in
    five; with `whole` all rows are where `prepared` has their scales. Raises InputError that names
    row and column of what is missing or of another kind.
    """
    return dataset_of(str(path), frames_of(path), options, prepared, whole)


def load_features(path: Path, options: Reading, earlier: Earlier) -> torch.Tensor:
    """Codes int16 [n, width] of all rows, in order, as the run of a network prepared its own: of
    the files that `load_table` takes, with or without labels. As `features_of_frames`."""
    return features_of_frames(str(path), frames_of(path), options, earlier)


def features_of_frames(
    source: str,
    frames: Sequence[tuple[str, pandas.DataFrame]],
    options: Reading,
    earlier: Earlier,
) -> torch.Tensor:
    """Codes int16 [n, width] of the features that a run has recorded, of all rows of frames, each
    with its name for messages. Labels, those of the run or of `options`, are passed over unread.

    Raises InputError for columns that are not those of the run, and for cells without a value.
    """
    assert earlier.preparation is not None
    parts = []
    for name, table, gaps in _read_columns(source, frames, options, earlier):
        codes, place = earlier.preparation.codes(table, name), 0
        for feature in earlier.preparation.features:
            if feature.name in gaps:
                rows = torch.tensor(gaps[feature.name])
                codes[rows, place : place + feature.width] = 0
            place += feature.width
        parts.append(codes)
    return torch.cat(parts)


def raw_rows(
    source: str,
    frames: Sequence[tuple[str, pandas.DataFrame]],
    options: Reading,
    earlier: Earlier,
) -> npt.NDArray[np.float64]:
    """Raw rows [n, columns] of the same frames, as C takes them: numbers, places of words among
    those of their column, NaN for a cell without a value. docs/spec/tables.md 5."""
    assert earlier.preparation is not None
    parts = []
    for name, table, gaps in _read_columns(source, frames, options, earlier):
        earlier.preparation.codes(table, name)  # refuses what does not fit
        rows = []
        for feature in earlier.preparation.features:
            column = table[feature.name]
            if not isinstance(column, np.ndarray):
                column = np.array([feature.categories.index(word) for word in column], np.float64)
            rows.append(np.where(gaps.get(feature.name, False), np.nan, column))
        parts.append(np.stack(rows, axis=1))
    return np.concatenate(parts)


def _read_columns(
    source: str,
    frames: Sequence[tuple[str, pandas.DataFrame]],
    options: Reading,
    earlier: Earlier,
) -> Iterator[tuple[str, dict[str, Column], dict[str, np.ndarray[Any, Any]]]]:
    """The name of each frame, its columns without labels, and by column which cells had no value
    where something of its kind stands for them."""
    assert earlier.preparation is not None
    used = {feature.name: feature for feature in earlier.preparation.features}
    for name, frame in frames:
        columns = {str(key): series for key, series in frame.items()}
        _check_different(name, list(map(str, frame.columns)))
        labels = _targets(source, columns, options.target) if options.target else ()
        recorded = () if labels else earlier.options.target
        found: dict[str, Column] = {}
        gaps: dict[str, np.ndarray[Any, Any]] = {}
        for key, series in columns.items():
            if key in labels or (key not in used and key.strip() in recorded):
                continue
            if earlier.missing == "mean" and key in used and series.isna().any():
                gaps[key] = series.isna().to_numpy()
                series = filled(series, used[key])
            found[key] = column_of(series, f"{name}: row ROW, column {key!r}")
        yield name, found, gaps


def values_of(codes: torch.Tensor) -> torch.Tensor:
    """float32 values of codes of features."""
    return codes.float() * 2.0**-FEATURE_BITS


def dataset_of(
    source: str,
    frames: Sequence[tuple[str, pandas.DataFrame]],
    options: Reading,
    prepared: Preparation | None,
    whole: bool = False,
) -> Dataset:
    """The data set of one frame of pandas, or of those for training and for testing, each with its
    name for messages. As `load_table`."""
    (first, frame), (second, other) = frames[0], frames[-1]
    if list(frame.columns) != list(other.columns):
        raise InputError(
            f"{second}: expected the columns of {first}, found "
            f"{_first_other(list(frame.columns), list(other.columns))}"
        )
    parts = [
        {key: column_of(held[key], f"{name}: row ROW, column {key!r}") for key in held.columns}
        for name, held in frames
    ]
    for key in parts[0]:
        if type(parts[0][key]) is not type(parts[-1][key]):
            raise InputError(
                f"{second}: column {key!r}: expected numbers or words as {first} has, found the "
                "other"
            )
    if whole and prepared is not None:
        test = np.ones(sum(len(held) for _, held in frames), bool)
    elif len(parts) == 1:
        test = _test_rows(parts[0])
    else:
        test = np.repeat([False, True], [len(frame), len(other)])
    table = {key: _joined([part[key] for part in parts]) for key in parts[0]}
    integers = [key for key in table if all(held[key].dtype.kind in "iub" for _, held in frames)]
    return _dataset(source, table, integers, test, options, prepared, whole)


def table_files(path: Path) -> tuple[Path, Path] | None:
    """The files train and test of a folder of two tables."""
    for suffix in SUFFIXES:
        found = path / f"train{suffix}", path / f"test{suffix}"
        if all(file.is_file() for file in found):
            return found
    return None


def _dataset(
    source: str,
    table: Mapping[str, Column],
    integers: Sequence[str],
    test: np.ndarray[Any, Any],
    options: Reading,
    prepared: Preparation | None,
    whole: bool,
) -> Dataset:
    """The data set of the columns of all rows. integers: names of those that hold them."""
    targets = _targets(source, table, options.target or (list(table)[-1],))
    columns = {name: column for name, column in table.items() if name not in targets}
    known = whole and prepared is not None
    if not columns:
        raise InputError(f"{source}: expected a feature beside the target, found none; add columns")
    if not known and (not test.any() or test.all()):
        advice = ", or evaluate the run's folder, which keeps their scales" if whole else ""
        raise InputError(
            f"{source}: expected rows for training and for testing, found none of one; add rows"
            f"{advice}"
        )
    task = _task(source, table, targets, integers, options.task)
    progress.note(f"{source}: {task} of {', '.join(targets)} from {len(columns)} columns")
    if task == "classification":
        names = None if prepared is None else prepared.classes
        labels = _classes(source, targets[0], table[targets[0]], test, names)
    else:
        labels = _numbers(source, targets, table, test, task, prepared)
    if prepared is None:
        classes = labels.names if task == "classification" else ()
        prepared = Preparation(features_of(columns, ~test, source), labels.scales, classes)
    codes, chosen = prepared.codes(columns, source), torch.from_numpy(test)
    return Dataset(
        codes[~chosen],
        labels.parts[0],
        codes[chosen],
        labels.parts[1],
        labels.names,
        source,
        task=task,
        preparation=prepared,
        options=options.but(target=targets, task=task),
        only_test=known,
        places=None if known else places_of(test),
    )


def _targets(source: str, table: Iterable[str], names: Sequence[str]) -> tuple[str, ...]:
    """The columns that are labels, by their names; spaces around one do not count."""
    names_of = {name.strip(): name for name in table} | {name: name for name in table}
    for name in names:
        if name not in names_of:
            raise InputError(
                f"{source}: --target: expected one of its columns, {', '.join(table):.300}, found "
                f"{name!r}"
            )
    return tuple(names_of[name] for name in names)


def _task(
    source: str,
    table: Mapping[str, Column],
    targets: Sequence[str],
    whole: Sequence[str],
    given: str | None,
) -> str:
    """The task of the targets: as given, or what their values say. Raises InputError."""
    numbers = [name for name in targets if isinstance(table[name], np.ndarray)]
    binary = all(name in whole and set(table[name]) <= {0, 1} for name in numbers)
    words = [name for name in targets if name not in numbers]
    if len(targets) == 1:
        said = "classification" if words or targets[0] in whole else "regression"
    else:
        said = "multilabel" if binary else "regression"
    whole_floats = given == "classification" and targets[0] in numbers
    if (
        whole_floats
        and len(targets) == 1
        and np.array_equal(table[targets[0]], np.rint(np.asarray(table[targets[0]])))
    ):
        return "classification"  # integers that were written as 1.0
    task = given or said
    if task not in TASKS:
        raise InputError(f"{source}: --task {task}: expected {', '.join(TASKS)} of a table")
    if task == "classification" and (len(targets) > 1 or not (words or targets[0] in whole)):
        found = f"{len(targets)} columns" if len(targets) > 1 else "numbers with a fraction"
        raise InputError(
            f"{source}: --task classification: expected one target of words or integers, found "
            f"{found}; give --task regression, or another --target"
        )
    if task != "classification" and words:
        raise InputError(
            f"{source}: target {words[0]!r}: expected numbers for {task}, found words; give one "
            "target of words for classification"
        )
    return task


def _classes(
    source: str,
    name: str,
    column: Column,
    test: np.ndarray[Any, Any],
    known: tuple[str, ...] | None,
) -> Labels:
    """Labels of words or integers: the index among all, sorted, or among those of training."""
    if isinstance(column, np.ndarray):
        present = [str(int(v)) for v in np.unique(column)]
        words: Sequence[str] = [str(int(v)) for v in column]
        if known is None and len(present) > MANY_CLASSES:
            progress.note(
                f"{source}: {len(present)} different integers in {name!r} are {len(present)} "
                "classes; give --task regression if they are numbers"
            )
    else:
        present, words = sorted(set(column)), column
    names = known or tuple(present)
    places = {word: place for place, word in enumerate(names)}
    for row, word in enumerate(words):
        if word not in places:
            raise InputError(
                f"{source}: row {row + 1}, column {name!r}: expected one of the {len(names)} "
                f"classes of training, found {word!r:.60}"
            )
    if len(names) > 1 << 14:
        raise InputError(
            f"{source}: column {name!r}: expected at most {1 << 14} classes, found {len(names)}; "
            "give another --target, or --task regression"
        )
    indices = torch.tensor([places[word] for word in words], dtype=torch.int64)
    chosen = torch.from_numpy(test)
    return Labels("classification", (indices[~chosen], indices[chosen]), names)


def _numbers(
    source: str,
    targets: Sequence[str],
    table: Mapping[str, Column],
    test: np.ndarray[Any, Any],
    task: str,
    prepared: Preparation | None,
) -> Labels:
    """Labels of a regression or of several labels."""
    if len(targets) > MOST_OUTPUTS:
        raise InputError(f"{source}: expected at most {MOST_OUTPUTS} targets, found {len(targets)}")
    values = np.stack([np.asarray(table[name]) for name in targets], axis=1)
    scales = () if prepared is None else prepared.targets
    where = f"{source}: targets"
    made = encode([values[~test], values[test]], task, [where, where], scales)
    return Labels(task, made.parts, tuple(targets), made.scales)


def _test_rows(table: Mapping[str, Column]) -> np.ndarray[Any, Any]:
    """Which rows are for testing: the SHA-256 of a row's cells, sorted by their columns' names,
    begins with 8 hexadecimal digits that make a multiple of five (docs/spec/tables.md 1). Rows that
    are alike fall on one side, in whatever order and type a file holds them."""
    names = sorted(table, key=lambda name: (name.strip(), name))
    cells = [_texts(table[name]) for name in names]
    return np.array(
        [
            int(hashlib.sha256("\x1f".join(row).encode()).hexdigest()[:8], 16) % 5 == 0
            for row in zip(*cells, strict=True)
        ],
        bool,
    )


def _texts(column: Column) -> list[str]:
    """Cells as the hash takes them: numbers, also those that are written as words, rounded to
    binary32's 24 bits, in hexadecimal; other words as they are."""
    if isinstance(column, np.ndarray):
        return _hexadecimal(column)
    hashed = {word: _hexadecimal([float(word)])[0] for word in set(column) if is_number(word)}
    return [hashed.get(word, word) for word in column]


def _hexadecimal(numbers: npt.ArrayLike) -> list[str]:
    significands, exponents = np.frexp(np.asarray(numbers, np.float64))
    rounded = np.ldexp(np.rint(significands * 2.0**SHORT), exponents - SHORT)
    return [number.hex() for number in (rounded + 0.0).tolist()]


# --- files --------------------------------------------------------------------------------------


def frames_of(path: Path) -> list[tuple[str, pandas.DataFrame]]:
    """The frames of a file, or of the files train and test of a folder, with their names."""
    files = table_files(path)
    if files is None:
        return [(str(path), _read(path, None))]
    return [(str(file), _read(file, path)) for file in files]


def _read(path: Path, within: Path | None = None) -> pandas.DataFrame:
    """A table, after its size was checked. Raises InputError for what is none."""
    pandas = pandas_of(str(path))
    with decoding(path, f"a {path.suffix[1:].upper()} table", ADVICE):
        if path.suffix.lower() == ".parquet":
            frame = _read_parquet(path, within)
        else:
            frame = _read_csv(path, pandas, within)
    if not len(frame):
        raise InputError(f"{path}: expected rows below a line of names, found none")
    return frame


def _read_csv(path: Path, pandas: Any, within: Path | None) -> pandas.DataFrame:
    """Numbers are rounded correctly (as pandas does since 3.1), and rows and columns are bounded
    before the table is made."""
    data = read(path, LARGEST_FILE, within=within)
    head = io.StringIO(data[:LONGEST_HEADER].decode("utf-8-sig", "replace"), newline="")
    filled = (row for row in csv.reader(head) if len(row) > 1 or "".join(row).strip())
    names = next(filled, [])  # pandas passes over blank lines as well
    lines = data.count(b"\n") + data.count(b"\r") + 1
    _check_size(path, lines, len(names))
    ledger.keep(cell_bytes(lines, len(names)), str(path))
    _check_names(path, names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return pandas.read_csv(
            io.BytesIO(data),
            index_col=False,
            encoding="utf-8-sig",
            low_memory=False,
        )


def _read_parquet(path: Path, within: Path | None) -> pandas.DataFrame:
    """A Parquet file, row group by row group, each charged before it is unpacked.

    Columns of bytes stay indices into dictionaries: a word that a file holds once, and names in
    every row, is one word in memory.
    """
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise InputError(
            f"{path}: Parquet files are read by pyarrow, which is not installed; run: pip install "
            "pyarrow"
        ) from error
    with opened(path, within=within) as stored:
        size = os.fstat(stored.fileno()).st_size
        if size > LARGEST_FILE:
            raise InputError(f"{path}: expected at most {LARGEST_FILE} bytes, found {size}")
        frame = _unpacked(path, parquet, stored).to_pandas()
    index = [name for name in frame.index.names if name is not None]
    if index:
        raise InputError(
            f"{path}: column {index[0]!r}: expected a column, found an index of pandas; save "
            "frame.reset_index() as a table"
        )
    frame.columns = [str(name) for name in frame.columns]
    _check_names(path, list(frame.columns))
    return frame


def _unpacked(path: Path, parquet: Any, stored: BinaryIO) -> Any:
    """The table (of pyarrow) in a Parquet file, after its footer has shown rows and columns that
    are bounded, and of values alone."""
    import pyarrow

    about = parquet.read_metadata(stored)
    _check_size(path, about.num_rows, about.num_columns)
    schema = about.schema.to_arrow_schema()
    check_flat(path, schema)
    words = [about.schema.column(i) for i in range(about.num_columns)]
    words = [column.path for column in words if column.physical_type == "BYTE_ARRAY"]
    with parquet.ParquetFile(stored, read_dictionary=words, metadata=about) as file:
        parts = []
        for index in range(about.num_row_groups):
            group = about.row_group(index)
            fixed = sum(_width(field.type) for field in schema)
            # Pages, as they are unpacked and as columns.
            unpacked = unpacked_bytes(stored, group, str(path))
            ledger.keep(2 * unpacked + fixed * group.num_rows, str(path))
            ledger.keep(cell_bytes(group.num_rows, about.num_columns), str(path))
            parts.append(file.read_row_group(index))
        return pyarrow.concat_tables(parts) if parts else file.read()


def check_flat(path: Path, schema: Any) -> None:
    """Raise InputError for a column of lists or structures, of which one cell may be anything."""
    from pyarrow.types import is_nested

    for field in schema:
        if is_nested(field.type):
            raise InputError(
                f"{path}: column {field.name!r}: expected numbers or words, found "
                f"{field.type!s:.60}; convert the column"
            )


def _width(kind: Any) -> int:
    """Bytes of a value of a type of pyarrow, or of the index of a word."""
    try:
        return -(-int(kind.bit_width) // 8)
    except ValueError:  # of values that differ in length
        return 4


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Raise InputError for names of columns that are not those of a table with commas."""
    if not any(names):
        raise InputError(f"{path}: expected a line of names, found none; {ADVICE}")
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        raise InputError(
            f"{path}: expected commas between columns, found {names[0]!r:.60}; save it with commas "
            "between columns and points in numbers"
        )
    nameless = next((place for place, name in enumerate(names, 1) if not name.strip()), None)
    if nameless is not None:
        raise InputError(
            f"{path}: column {nameless}: expected a name, found none; name it, or remove it if it "
            "numbers the rows, as pandas.DataFrame.to_csv(index=False) does"
        )
    _check_different(str(path), names)
    numbers = [name for name in names if is_number(name) and not name.isdecimal()]
    if numbers:
        progress.note(
            f"{path}: the first line is taken for names of columns, one of which is "
            f"{numbers[0]!r:.60}; add a line of names above it if it is a row"
        )


def _check_different(source: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"{source}: expected columns of different names, found {twice!r:.60} twice"
        )


def cell_bytes(rows: int, columns: int) -> int:
    """Bytes of memory that the cells of a table take while codes are made of them."""
    return CELL * rows * columns


def _check_size(path: Path, rows: int, columns: int) -> None:
    if columns > MOST_COLUMNS or rows * columns > MOST_CELLS:
        raise InputError(
            f"{path}: expected at most {MOST_COLUMNS} columns and {MOST_CELLS} cells, found "
            f"{columns} columns of up to {rows} rows; use fewer"
        )


def _joined(parts: Sequence[Column]) -> Column:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate([np.asarray(part) for part in parts])
    return [word for part in parts for word in part]


def _first_other(expected: Sequence[str], found: Sequence[str]) -> str:
    for a, b in zip(expected, found, strict=False):
        if a != b:
            return f"{b!r} in place of {a!r}"
    return f"{len(found)} columns in place of {len(expected)}"
