"""Tables as data: tasks, codes, the split, and what is refused."""

from __future__ import annotations

import random
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

from samebits import progress
from samebits.data import load, load_samples, table
from samebits.data.cells import column_of
from samebits.data.columns import ColumnScale
from samebits.data.earlier import Earlier
from samebits.errors import InputError
from samebits.recipes.reading import Reading
from samebits.spec import tables as spec

pandas = pytest.importorskip("pandas", reason="tables are read by pandas")


def rows(count: int = 60) -> pandas.DataFrame:
    rng = np.random.default_rng(3)
    return pandas.DataFrame(
        {
            "length": rng.normal(size=count),
            "count": rng.integers(0, 9, count),
            "colour": [("red", "green", "blue")[i % 3] for i in range(count)],
            "price": rng.normal(size=count) + 0.25,
            "kind": [("b", "a")[i % 2] for i in range(count)],
        }
    )


def written(folder, frame, name="t.csv"):
    path = folder / name
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)
    return str(path)


def message(source, **options):
    with pytest.raises(InputError) as caught:
        load(source, options=Reading(**options))
    return str(caught.value)


def test_columns_become_codes_and_words_inputs(tmp_path):
    frame = rows()
    source = written(tmp_path, frame)
    data = load(source)
    assert (data.task, data.class_names, data.input_shape) == ("classification", ("a", "b"), (6,))
    assert data.noun == "row"
    test = torch.from_numpy(table._test_rows({n: column_of(frame[n], n) for n in frame}))
    assert (
        data.train_images[:, 0].tolist()
        == ColumnScale.of(frame["length"].to_numpy()[~test.numpy()])
        .features(frame["length"].to_numpy()[~test.numpy()])
        .tolist()
    )
    colours = data.test_images[:, 2:5].tolist()
    wanted = [[4096 * (c == name) for name in ("blue", "green", "red")] for c in frame["colour"]]
    assert colours == [w for w, t in zip(wanted, test.tolist(), strict=True) if t]
    values = data.batch("train", torch.tensor([0]))
    assert values.dtype == torch.float32
    assert (values * 4096).tolist() == data.train_images[:1].tolist()


def test_parquet_and_csv_are_the_same_data(tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet files are read by pyarrow")
    one, other = (load(written(tmp_path, rows(), name)) for name in ("t.csv", "t.parquet"))
    assert one.sha256() == other.sha256()


def test_the_split_follows_the_rows(tmp_path):
    frame = rows(200)
    source = written(tmp_path, frame)
    data = load(source)
    mixed = load(written(tmp_path, frame.sample(frac=1, random_state=1), "mixed.csv"))
    assert sorted(data.test_images.tolist()) == sorted(mixed.test_images.tolist())
    assert 0.1 < len(data.test_labels) / 200 < 0.3
    assert data.preparation == mixed.preparation  # whatever the order of the sums


def test_the_split_is_that_of_the_cells_whatever_holds_them(tmp_path):
    """Another order of columns and of the label, integers as numbers or words, and binary32."""
    frame = rows(200).assign(length=rows(200)["length"].astype("float32"))
    first = load(written(tmp_path, frame))
    earlier = Earlier(first.options, first.preparation)
    others = {
        "reversed": frame[frame.columns[::-1]],
        "label-first": frame[["kind", "price", "colour", "length", "count"]],
        "reals": frame.assign(count=frame["count"].astype("float64")),
        "spaces": frame.rename(columns={"kind": " kind "}),
    }
    for name, other in others.items():
        for ending in ("csv", "parquet"):
            if ending == "parquet":
                pytest.importorskip("pyarrow", reason="Parquet files are read by pyarrow")
            found = load(written(tmp_path, other, f"{name}.{ending}"), earlier=earlier)
            near = (found.test_images.int() - first.test_images.int()).abs().max()
            assert near <= 1, name  # binary32 and the decimals of it differ by less than a code
            assert torch.equal(found.test_labels, first.test_labels)
    assert 20 < len(first.test_labels) < 60


def test_the_split_is_that_of_the_specification():
    frame = rows(300).assign(tiny=[(-1) ** i * 3.0**-i for i in range(300)])
    columns = {name: column_of(frame[name], name) for name in frame}
    found = table._test_rows(columns)
    for index, row in enumerate(frame.to_dict("records")):
        cells = {k: v if isinstance(v, str) else Fraction(float(v)) for k, v in row.items()}
        assert spec.for_testing(cells) == found[index]
    words = columns | {"count": [str(int(v)) for v in columns["count"]]}
    np.testing.assert_array_equal(table._test_rows(words), found)
    # these rows since the cells are sorted by column
    assert np.flatnonzero(found)[:8].tolist() == [7, 9, 11, 20, 23, 24, 25, 30]


def test_all_rows_of_a_runs_columns(tmp_path):
    """In the file's order, with labels that training never saw, or without labels."""
    frame = rows(50)
    data = load(written(tmp_path, frame))
    earlier = Earlier(data.options, data.preparation)
    wanted = data.whole().test_images * 2.0**-12
    for name, other in {
        "same": frame,
        "unlabelled": frame.drop(columns="kind"),
        "new": frame.assign(kind="z")[frame.columns[::-1]],
        "missing": frame.assign(kind=None),
    }.items():
        source = written(tmp_path, other, f"{name}.csv")
        assert torch.equal(load_samples(source, earlier=earlier, whole=True), wanted), name
    (tmp_path / "two").mkdir()
    written(tmp_path / "two", frame[:30].drop(columns="kind"), "train.csv")
    written(tmp_path / "two", frame[30:], "test.csv")
    source = str(tmp_path / "two")
    assert torch.equal(load_samples(source, earlier=earlier, whole=True), wanted)
    with pytest.raises(InputError, match=r"--target: expected one of its columns, .*found 'other'"):
        load_samples(source, earlier=earlier, whole=True, options=Reading("other"))
    with pytest.raises(InputError, match="found no 'length' and 'Length' besides; give"):
        load_samples(
            written(tmp_path, frame.rename(columns={"length": "Length"}), "case.csv"),
            earlier=earlier,
            whole=True,
        )


def test_whole_tables_keep_the_order_of_their_rows(tmp_path):
    frame = rows(50)
    data = load(written(tmp_path, frame))
    whole = data.whole()
    assert len(whole.train_images) == 0
    words = [("a", "b")[label] for label in whole.test_labels.tolist()]
    assert words == frame["kind"].tolist()
    assert whole.whole() is whole


@pytest.mark.parametrize(
    ("target", "task", "wanted", "names"),
    [
        (None, None, "classification", ("a", "b")),
        ("price", None, "regression", ("price",)),
        ("count", None, "classification", tuple(map(str, range(9)))),
        ("count", "regression", "regression", ("count",)),
        ("price,length", None, "regression", ("price", "length")),
        (("even", "odd"), None, "multilabel", ("even", "odd")),
    ],
)
def test_targets_say_the_task(tmp_path, target, task, wanted, names):
    frame = rows().assign(even=[i % 2 for i in range(60)], odd=[1 - i % 2 for i in range(60)])
    frame = frame[["even", "odd", *rows().columns]]
    data = load(written(tmp_path, frame), options=Reading(target=target, task=task))
    assert (data.task, data.class_names) == (wanted, names)
    assert data.options.target == (names if wanted != "classification" else data.options.target)
    labels = data.targets("train", torch.arange(3))
    assert labels.dtype == (torch.int64 if wanted == "classification" else torch.float32)


def test_a_run_prepares_other_tables(tmp_path):
    frame = rows(200)
    data = load(written(tmp_path, frame), options=Reading(target="price"))
    other = frame[["kind", "colour", "count", "price", "length"]].iloc[::-1][:120]
    source = written(tmp_path, other, "other.csv")
    found = load(source, earlier=Earlier(data.options, data.preparation))
    assert found.preparation == data.preparation
    assert found.task == "regression"
    with_words = frame.assign(colour=["grey", *frame["colour"][1:]])
    with pytest.raises(InputError, match=r"row 1, column 'colour': expected one of the 3 categ"):
        load(
            written(tmp_path, with_words, "w.csv"), earlier=Earlier(data.options, data.preparation)
        )
    with pytest.raises(InputError, match=r"found no 'length'; add what is missing"):
        load(
            written(tmp_path, frame.drop(columns="length"), "less.csv"),
            earlier=Earlier(data.options, data.preparation),
        )


def test_classes_of_training_stay(tmp_path):
    data = load(written(tmp_path, rows().assign(kind=[str("abc"[i % 3]) for i in range(60)])))
    earlier = Earlier(data.options, data.preparation)
    fewer = rows().assign(kind=["c" if i % 2 else "b" for i in range(60)])
    found = load(written(tmp_path, fewer, "fewer.csv"), earlier=earlier)
    assert found.class_names == ("a", "b", "c")
    assert set(found.train_labels.tolist()) == {1, 2}
    with pytest.raises(InputError, match="expected one of the 3 classes of training, found 'd'"):
        load(written(tmp_path, rows().assign(kind="d"), "d.csv"), earlier=earlier)


def test_folder_of_two_tables(tmp_path):
    written(tmp_path, rows(40), "train.csv")
    written(tmp_path, rows(20), "test.csv")
    data = load(str(tmp_path))
    assert (len(data.train_labels), len(data.test_labels)) == (40, 20)
    written(tmp_path, rows(20).rename(columns={"count": "n"}), "test.csv")
    assert "expected the columns of" in message(str(tmp_path))
    assert "found 'n' in place of 'count'" in message(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "options", "wanted"),
    [
        ("", {}, "expected a line of names, found none"),
        ("\n  \na,a\n1,2\n", {}, "expected columns of different names, found 'a' twice"),
        (",b\n0,2\n1,3\n", {}, "column 1: expected a name, found none"),
        ('a,b\n"0,5",2\n1,3\n', {}, "row 1, column 'a': expected a number with a point, found"),
        ("a,b\n", {}, "expected rows below a line of names, found none"),
        ("a,a\n1,2\n", {}, "expected columns of different names, found 'a' twice"),
        ("a,b\n1,\n2,3\n", {}, "row 1, column 'b': expected a value, found none"),
        ("a,b\n1,2\nNA,3\n", {}, "row 2, column 'a': expected a value, found none"),
        ("a,b\n1,2\ninf,3\n", {}, "row 2, column 'a': expected a finite number, found inf"),
        ("a,b\n1,2\n1e200,3\n", {}, "row 2, column 'a': expected a finite number, found 1e+200"),
        ("a,b\n1,2\n3,4,5\n", {}, "corrupt or not a CSV table"),
        ("a;b\n1;2\n3;4\n", {}, "expected commas between columns, found 'a;b'"),
        ("a,b\n1,2\n3,4\n", {"target": "c"}, "--target: expected one of its columns, a, b, found"),
        ("a,b\nx,1\ny,2\n", {"target": "a", "task": "regression"}, "target 'a': expected numbers"),
        ("a,b\n1,.5\n", {"task": "classification"}, "expected rows for training and for testing"),
        ("a,b\n1,2\n", {"resize": 8}, "--resize does not apply to a table, which takes --target"),
        ("a,b\n9007199254740993,2\n1,3\n", {}, "row 1: expected an integer below 2**53"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, options, wanted):
    path = tmp_path / "t.csv"
    path.write_text(text)
    found = message(str(path), **options)
    assert found.startswith(f"{path}: ")
    assert wanted.replace("row 1: exp", "row 1, column 'a': exp") in found


def test_a_new_table_of_one_class_is_tested_whole(tmp_path):
    """In the scales and classes of another; without them there is nothing to scale it by."""
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "".join(f"{i},{'xy'[i % 2]}\n" for i in range(40)))
    trained = load(str(path))
    path.write_text("a,b\n3,y\n4,y\n")
    data = load(str(path), earlier=Earlier(trained.options, trained.preparation), whole=True)
    assert (len(data.train_images), data.test_labels.tolist()) == (0, [1, 1])
    codes = trained.preparation.codes({"a": np.array([3.0, 4.0])}, "")
    assert torch.equal(data.test_images, codes)
    with pytest.raises(InputError, match="add rows, or evaluate the run's folder, which keeps"):
        load(str(path), whole=True)


def test_tasks_that_do_not_fit_are_named(tmp_path):
    source = written(tmp_path, rows())
    assert "--task classification: expected one target of words or integers, found numbers" in (
        message(source, target="price", task="classification")
    )
    assert "--task segmentation: expected classification, regression, multilabel of a table" in (
        message(source, task="segmentation")
    )
    assert "targets: expected labels of 0 and 1, found" in message(
        source, target="count", task="multilabel"
    )


def test_bounds(tmp_path, monkeypatch):
    source = written(tmp_path, rows())
    monkeypatch.setattr(table, "MOST_CELLS", 100)
    assert "expected at most 4096 columns and 100 cells, found 5 columns of up to 62 rows" in (
        message(source)
    )
    monkeypatch.setattr(table, "LARGEST_FILE", 10)
    assert "expected at most 10 bytes" in message(source)
    wide = tmp_path / "wide.csv"
    wide.write_text(",".join(f"c{i}" for i in range(5000)) + "\n")
    monkeypatch.setattr(table, "LARGEST_FILE", 1 << 20)
    assert "found 5000 columns" in message(str(wide))


def test_many_words_and_many_classes(tmp_path):
    frame = rows(300)
    words = frame.assign(colour=[f"w{i}" for i in range(300)])
    assert "column 'colour': expected numbers, or at most 100 different words, found 300" in (
        message(written(tmp_path, words, "words.csv"))
    )
    heard = []

    class Listener(progress.Listener):
        def note(self, text):
            heard.append(text)

    numbered = written(tmp_path, frame[["length"]].assign(y=range(300)), "numbered.csv")
    with progress.listening(Listener()):
        load(numbered)
    assert any("300 classes; give --task regression if they are numbers" in t for t in heard)


def test_without_pandas_an_error_says_what_to_install(tmp_path, monkeypatch):
    source = written(tmp_path, rows())
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert message(source) == (
        f"{source}: tables are read by pandas, which is not installed; run: pip install pandas"
    )


def test_pandas_rounds_numbers_correctly(tmp_path):
    rng = random.Random(0)
    texts = [
        f"{rng.randrange(10**20)}.{rng.randrange(10**9)}e{rng.randint(-90, 90)}" for _ in "x" * 500
    ]
    path = tmp_path / "t.csv"
    path.write_text("a\n" + "\n".join(texts) + "\n")
    assert table._read(path)["a"].tolist() == [float(text) for text in texts]


def test_frames_of_parquet_whose_names_are_no_columns(tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet files are read by pyarrow")
    path = tmp_path / "t.parquet"
    rows().set_index("count").to_parquet(path)
    assert "column 'count': expected a column, found an index of pandas" in message(str(path))
    rows().set_axis(range(5), axis=1).to_parquet(path)
    assert [feature.name for feature in load(str(path)).preparation.features] == list("0123")
    from pyarrow import parquet

    made = parquet.read_table(path)
    parquet.write_table(made.rename_columns(["a", "a", "b", "c", "d"]), path)
    assert "expected columns of different names, found 'a' twice" in message(str(path))


def test_integers_written_with_a_point_are_classes_where_that_is_said(tmp_path):
    source = written(tmp_path, rows().assign(last=[i % 3 + 0.0 for i in range(60)]))
    assert load(source).task == "regression"
    data = load(source, options=Reading(task="classification"))
    assert data.class_names == ("0", "1", "2")


def test_what_may_be_misread_is_noted(tmp_path, caplog):
    caplog.set_level("INFO", "samebits")
    frame = rows()
    load(written(tmp_path, frame.assign(count=["?", *map(str, frame["count"][1:])])))
    assert "column 'count' is one of words, such as '?'" in caplog.text
    load(written(tmp_path, frame.rename(columns={"price": "0.5"})))
    assert "taken for names of columns, one of which is '0.5'" in caplog.text
    written(tmp_path, frame, "train.csv")
    written(tmp_path, frame.assign(price=1e9), "test.csv")
    load(str(tmp_path), options=Reading(target="price"))
    assert "60 of them lie 2048 standard deviations of training or more" in caplog.text
