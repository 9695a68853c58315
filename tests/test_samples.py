"""Samples from whatever a user has: the same arrays from every kind, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from recordings import split_folder
from samebits.data import load
from samebits.data.columns import ColumnScale
from samebits.data.earlier import NONE, Earlier
from samebits.data.preparation import Feature, Preparation
from samebits.errors import InputError
from samebits.ir import GraphBuilder
from samebits.recipes.reading import Reading
from samebits.samples import KINDS, example_of, gather, in_memory, kept

RNG = np.random.default_rng(0)
X = RNG.random((6, 1, 4, 4)).astype(np.float32)
LABELS = np.arange(6) % 2


def graph_of(**shapes):
    builder = GraphBuilder("net")
    names = [builder.input(name, "float32", shape) for name, shape in shapes.items()]
    return builder.build([builder.add("Relu", [name]) for name in names])


ONE = graph_of(x=(1, 1, 4, 4))
TWO = graph_of(a=(1, 3), b=(1, 2))
A, B = RNG.random((5, 3)).astype(np.float32), RNG.random((5, 2)).astype(np.float32)


def loader(*tensors):
    return DataLoader(TensorDataset(*map(torch.from_numpy, tensors)), batch_size=4)


GIVEN = {
    "array": lambda: X,
    "tensor": lambda: torch.from_numpy(X),
    "tensor-with-gradient": lambda: nn.Parameter(torch.from_numpy(X)),
    "dict": lambda: {"x": X},
    "dict-of-tensors": lambda: {"x": torch.from_numpy(X)},
    "loader": lambda: loader(X),
    "loader-with-labels": lambda: loader(X, LABELS),
    "generator": lambda: (X[i : i + 2] for i in range(0, 6, 2)),
    "batches-of-many-sizes": lambda: [X[:1], X[1:4], X[4:]],
    "single-samples": lambda: list(X),
    "single-samples-with-labels": lambda: list(zip(X, LABELS.tolist(), strict=True)),
    "dicts": lambda: [{"x": X[:4]}, {"x": X[4:]}],
    "dicts-of-single-samples": lambda: [{"x": x} for x in X],
}


@pytest.mark.parametrize("kind", GIVEN)
def test_every_kind_gives_the_same_array(kind):
    found = gather(GIVEN[kind](), ONE)
    assert list(found) == ["x"]
    assert found["x"].dtype == np.float32
    np.testing.assert_array_equal(found["x"], X)


SEVERAL = {
    "dict": lambda: {"a": A, "b": torch.from_numpy(B)},
    "loader": lambda: loader(A, B),
    "loader-with-labels": lambda: loader(A, B, np.arange(5)),
    "tuples-of-single-samples": lambda: list(zip(A, B, strict=True)),
    "dicts": lambda: iter([{"b": B[:2], "a": A[:2]}, {"a": A[2:], "b": B[2:]}]),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_several_inputs(kind):
    found = gather(SEVERAL[kind](), TWO)
    assert sorted(found) == ["a", "b"]
    np.testing.assert_array_equal(found["a"], A)
    np.testing.assert_array_equal(found["b"], B)


# --- files --------------------------------------------------------------------------------------


def test_archives(tmp_path):
    one, two, unknown = (tmp_path / name for name in ("one.npz", "two.npz", "unknown.npz"))
    np.savez(one, anything=X)
    np.savez(two, a=A, b=B)
    np.savez(unknown, z=A)
    for given in (one, str(one)):
        np.testing.assert_array_equal(gather(given, ONE)["x"], X)
    found = gather(two, TWO)
    np.testing.assert_array_equal(found["b"], B)
    assert list(gather(unknown, TWO)) == ["z"]  # whoever takes them compares the names


def test_a_file_of_one_array(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, X)
    for given in (path, str(path)):
        np.testing.assert_array_equal(gather(given, ONE)["x"], X)
        np.testing.assert_array_equal(in_memory(given), X)
    with pytest.raises(InputError, match="expected arrays by name for the inputs a, b, found them"):
        gather(path, TWO)
    with pytest.raises(InputError, match="resize"):
        gather(path, ONE, options=Reading(resize=(4, 4)))


def values(data):
    return data.values(data.train_images).numpy()


def test_training_data_is_taken_as_the_network_sees_it(tmp_path):
    """Its training samples, in [-1, 1], whatever they are stored as."""
    path = tmp_path / "data.npz"
    images = RNG.integers(0, 256, (10, 4, 4)).astype(np.uint8)
    np.savez(
        path, x_train=images[:8], y_train=np.arange(8) % 2, x_test=images[8:], y_test=np.arange(2)
    )
    found = gather(path, ONE)["x"]
    np.testing.assert_array_equal(found, values(load(str(path))))
    np.testing.assert_array_equal(found, (images[:8, None] / np.float32(255) - 0.5) * np.float32(2))

    digits = gather("digits", graph_of(x=(1, 1, 8, 8)))["x"]
    np.testing.assert_array_equal(digits, values(load("digits")))


def test_a_folder_of_images(tmp_path):
    for split, count in (("train", 3), ("test", 1)):
        for label in ("dark", "light"):
            folder = tmp_path / split / label
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = np.full((4, 4), 40 * i + 100 * (label == "light"), np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    found = gather(tmp_path, ONE)["x"]
    assert found.shape == (6, 1, 4, 4)
    np.testing.assert_array_equal(found, values(load(str(tmp_path))))


def test_a_folder_without_classes(tmp_path):
    """All of its images, by name; what file managers leave does not count."""
    pixels = [np.full((4, 4), value, np.uint8) for value in (200, 0, 100)]
    for name, image in zip(("a.png", "b.PNG", "c.png"), pixels, strict=True):
        Image.fromarray(image).save(tmp_path / name)
    (tmp_path / "Thumbs.db").write_bytes(b"")
    (tmp_path / "__MACOSX").mkdir()
    expected = (np.stack(pixels)[:, None] / np.float32(255) - np.float32(0.5)) * np.float32(2)
    np.testing.assert_array_equal(gather(tmp_path, ONE)["x"], expected)
    (example,) = example_of(nn.Flatten(), in_memory(str(tmp_path)))
    np.testing.assert_array_equal(example.numpy(), expected[:1])
    with pytest.raises(
        InputError, match=r"expected samples of shape \[1, 3, 3\] .*found \[1, 4, 4"
    ):
        gather(tmp_path, graph_of(x=(1, 1, 3, 3)))
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(
        InputError, match=r"notes\.txt: expected only \.jpg, .* in a folder of sampl"
    ):
        gather(tmp_path, ONE)


def test_all_samples_in_the_order_of_their_source(tmp_path):
    """By `whole`, of everything that has a split of its own making."""
    images = RNG.integers(0, 256, (12, 4, 4)).astype(np.uint8)
    wanted = images[:, None].astype(np.float32) / np.float32(255) * 2 - 1
    np.savez(tmp_path / "data.npz", x=images, y=np.arange(12) % 2)
    for place in ("images", "masks"):
        (tmp_path / "shapes" / place).mkdir(parents=True)
    for index, image in enumerate(images):
        folder = tmp_path / "photos" / ("a" if index < 6 else "b")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{index:02}.png")
        Image.fromarray(image).save(tmp_path / "shapes" / "images" / f"{index:02}.png")
        Image.fromarray(image // 128).save(tmp_path / "shapes" / "masks" / f"{index:02}.png")
    for given in ("data.npz", "photos", "shapes"):
        path = tmp_path / given
        for samples in (path, load(str(path)), load(str(path), whole=True)):
            found = gather(samples, ONE, whole=True)["x"]
            np.testing.assert_allclose(found, wanted, atol=1e-6)
        assert len(gather(path, ONE)["x"]) < 12
    limited = load(str(tmp_path / "data.npz"), limit=1).whole()
    assert limited.test_labels.tolist() == [0, 1, 0, 1]  # 0 and 1, and 4 and 9 for testing
    pixels = torch.from_numpy(wanted)
    found = limited.values(limited.test_images)
    np.testing.assert_allclose(found, pixels[[0, 1, 4, 9]], atol=1e-6)
    assert len(gather("digits", graph_of(x=(1, 1, 8, 8)), whole=True)["x"]) == 1797


def test_x_and_y_are_inputs_where_these_are_their_names(tmp_path):
    np.savez(tmp_path / "xy.npz", x=A, y=B)
    found = gather(tmp_path / "xy.npz", graph_of(x=(1, 3), y=(1, 2)))
    np.testing.assert_array_equal(found["y"], B)


SCALES = Preparation(tuple(Feature(name, ColumnScale(50.0, 9.0)) for name in "abc"))
RUN = Earlier(Reading(target=("y",)), SCALES)
RAW_ROWS = RNG.normal(50, 9, (6, 3)).astype(np.float32)


def test_arrays_that_a_run_cannot_have_prepared(tmp_path):
    graph, rows = graph_of(x=(1, 3)), RAW_ROWS
    np.savez(tmp_path / "x.npz", rows=rows)
    kinds = (
        rows,
        torch.from_numpy(rows),
        {"x": rows},
        loader(rows),
        list(rows),
        tmp_path / "x.npz",
    )
    for given in kinds:
        gather(given, graph)  # nothing is known
        gather(given, graph, earlier=NONE)
        with pytest.raises(InputError, match="expected rows that are standardised as in training"):
            gather(given, graph, earlier=RUN)
        found = gather(given, graph, earlier=RUN, options=Reading(prepared=True))
        np.testing.assert_array_equal(found["x"], rows)
    gather((rows - 50) / 9, graph, earlier=RUN)
    with pytest.raises(InputError, match="--prepared does not apply to digits"):
        gather("digits", ONE, options=Reading(prepared=True))


def test_frames_of_pandas():
    """Columns by their names, standardised as in training; labels need not be there."""
    pandas = pytest.importorskip("pandas", reason="frames are pandas'")
    graph, frame = graph_of(x=(1, 3)), pandas.DataFrame(RAW_ROWS, columns=list("abc"))
    wanted = (RAW_ROWS.astype(np.float64) - 50) / 9
    for given in (frame, frame[list("cab")], frame.assign(y=None), frame.set_index(frame["a"] > 0)):
        found = gather(given, graph, earlier=RUN)["x"]
        np.testing.assert_allclose(found, wanted, atol=2.0**-12)
    with pytest.raises(
        InputError, match="samples: expected the columns of training, found 'd' bes"
    ):
        gather(frame.assign(d=1), graph, earlier=RUN)
    with pytest.raises(InputError, match="expected a network that knows the columns of its table"):
        gather(frame, graph)


def test_options_of_reading_need_a_file():
    for given in (X, {"x": X}, load("digits")):
        with pytest.raises(InputError, match="--target does not apply to samples in memory"):
            gather(given, ONE, options=Reading("y"))


def test_recordings_get_the_frames_of_the_network(tmp_path):
    found = gather(split_folder(tmp_path), graph_of(x=(1, 7, 32)))["x"]
    assert found.shape == (6, 7, 32)
    np.testing.assert_array_equal(found, values(load(str(tmp_path), input_shape=(7, 32))))


def test_recordings_have_the_rate_of_the_network(tmp_path):
    """Where its file says one: in class folders, in a flat folder and as a Dataset."""
    root, graph = split_folder(tmp_path), graph_of(x=(1, 7, 32))
    data = load(str(root), input_shape=(7, 32))
    for given in (root, root / "train" / "no", data):
        assert gather(given, graph, rate=8000)["x"].shape[1:] == (7, 32)
        with pytest.raises(
            InputError, match=r"expected recordings at 16000 Hz as in training, found .* 8000 Hz"
        ):
            gather(given, graph, rate=16000)


# --- errors -------------------------------------------------------------------------------------

REFUSED = {
    "number": (3, ONE, f"samples: expected {KINDS}, found int"),
    "none": (None, ONE, f"samples: expected {KINDS}, found NoneType"),
    "bytes": (b"xyz", ONE, f"samples: expected {KINDS}, found bytes"),
    "nothing": ([], ONE, "samples: expected at least one sample, found none"),
    "nested-lists": (X.tolist(), ONE, "samples: expected arrays or tensors, found list"),
    "texts": (["xyz"], ONE, "samples: expected arrays or tensors, found str"),
    "unknown-name": (
        {"y": X}, ONE, "samples: expected the names x (the model's inputs), found 'y'"
    ),
    "number-as-name": (
        {0: X}, ONE, "samples: expected the names x (the model's inputs), found 0"
    ),
    "no-names": (
        A, TWO,
        "samples: expected arrays by name for the inputs a, b, found them without names; give a "
        "dict or an .npz file with these names",
    ),
    "too-few": ([(A,)], TWO, "samples: expected an item for each input (a, b), found 1"),
    "other-names-later": (
        [{"a": A, "b": B}, {"a": A}], TWO,
        "samples: expected the arrays a, b in every item, as in the first, found a in item 1",
    ),
    "other-shape-later": (
        [X, X[:, :, :2]], ONE,
        "samples: expected samples of one shape, [1, 4, 4] for 'x' as in the first item, found "
        "[1, 2, 4] in item 1",
    ),
    "bfloat16": (
        torch.from_numpy(X).bfloat16(), ONE,
        "samples: expected dense tensors of a type that numpy has, found torch.bfloat16 "
        "(torch.strided); convert them with .float()",
    ),
    "missing-folder": (
        "nowhere", ONE,
        "nowhere: no such file or folder; expected 'digits', a folder of images or WAV audio "
        "(train/<class>/* and test/<class>/*, or <class>/*), of images/ and masks/, a table (.csv, "
        ".parquet), an .npz or .txt file, or module:callable or path/to/file.py:callable",
    ),
    "images-of-another-size": (
        "digits", ONE,
        "digits: expected samples of shape [1, 4, 4] for the input 'x', found [1, 8, 8]",
    ),
    "images-for-several-inputs": (
        "digits", TWO,
        "samples: expected arrays by name for the inputs a, b, found them without names; give a "
        "dict or an .npz file with these names",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused(kind):
    given, graph, message = REFUSED[kind]
    with pytest.raises(InputError) as caught:
        gather(given, graph)
    assert str(caught.value) == message


def test_messages_say_what_the_samples_are_for():
    with pytest.raises(InputError, match=r"^calibration: expected at least one sample"):
        gather([], ONE, "calibration")


# --- examples -----------------------------------------------------------------------------------


class Sum(nn.Module):
    def forward(self, a, b, scale=2.0):
        return a.sum() + scale * b.sum()


def test_what_is_read_once_is_kept():
    batches = kept(X[i : i + 2] for i in range(0, 6, 2))
    assert [len(batch) for batch in batches] == [2, 2, 2]
    same = loader(X)
    assert kept(same) is same
    assert kept(X) is X


def test_the_first_sample_is_the_example(tmp_path):
    module = nn.Flatten()
    np.savez(tmp_path / "x.npz", x=X)
    for given in (X, loader(X, LABELS), [X[:2], X[2:]], {"input": X}, tmp_path / "x.npz"):
        (example,) = example_of(module, in_memory(given))
        np.testing.assert_array_equal(example.numpy(), X[:1])
    a, b = example_of(Sum(), {"b": B, "a": A})  # in order of the parameters of forward
    assert (a.shape, b.shape) == ((1, 3), (1, 2))
    a, b = example_of(Sum(), loader(A, B, np.arange(5)))  # labels are left out
    assert (a.shape, b.shape) == ((1, 3), (1, 2))
    assert example_of(ONE, X) is None
    assert example_of("model.onnx", X) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, f"expected {KINDS}, found int"),
        ([], "expected at least one sample, found none"),
        ({"a": A[:0], "b": B}, "expected at least one sample, found none"),
        ({"a": A, "c": B}, "expected the names a, b (the parameters of forward), found a, c"),
        ([(3, 4)], "expected arrays or tensors, found int"),
    ],
)
def test_examples_that_are_none(given, message):
    with pytest.raises(InputError) as caught:
        example_of(Sum(), given)
    assert str(caught.value) == f"calibration: {message}"


def test_a_table_is_said_to_be_in_its_own_scales(tmp_path, caplog):
    pytest.importorskip("pandas", reason="tables are read by pandas")
    caplog.set_level("INFO", "samebits")
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(40)))
    assert gather(path, graph_of(x=(1, 2)))["x"].shape[1:] == (2,)
    left = "all columns but c, its labels (--target names others)"
    assert f"{path}: {left}, in the scales of its own training rows" in caplog.text
    assert "of its 40 rows that are for training are taken" in caplog.text
    assert len(gather(path, graph_of(x=(1, 2)), whole=True)["x"]) == 40
