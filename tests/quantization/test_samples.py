"""NPZ archives of calibration samples: cut per sample, checked before they are unpacked."""

from __future__ import annotations

import io

import numpy as np
import pytest

from samebits.errors import InputError
from samebits.quantization import samples_of
from samebits.samples import gather


def load_samples(path, graph):
    return samples_of(gather(path, graph), graph, str(path))


@pytest.fixture
def graph(net):
    n = net()
    return n.build(n.add("Relu", "y", n.input("x", 1, 2, 3)))


@pytest.fixture
def two_inputs(net):
    n = net()
    a, b = n.input("a", 2, 3), n.input("b", 3)
    return n.build(n.add("Add", "y", a, b))


@pytest.mark.parametrize("key", ["x", "data", "arr_0"])
def test_one_array_of_any_name(tmp_path, graph, key):
    path = tmp_path / "x.npz"
    array = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    np.savez_compressed(path, **{key: array})
    samples = load_samples(path, graph)
    assert len(samples) == 4
    assert [sample["x"].shape for sample in samples] == [(1, 2, 3)] * 4
    assert np.array_equal(np.concatenate([s["x"] for s in samples]), array)


def test_samples_of_the_whole_shape(tmp_path, graph, two_inputs):
    path = tmp_path / "x.npz"
    array = np.arange(24, dtype=np.float32).reshape(4, 1, 2, 3)
    np.savez(path, x=array)
    assert np.array_equal(load_samples(path, graph)[3]["x"], array[3])
    a, b = np.ones((4, 3), np.float32), np.ones((2, 3), np.float32)
    np.savez(path, a=a, b=b)  # two batches of two, two samples of b
    assert [(s["a"].shape, s["b"].shape) for s in load_samples(path, two_inputs)] == [
        ((2, 3), (3,))
    ] * 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"a": np.ones((4, 3), np.float32)},
            "expected the arrays a, b (the model's inputs), found a",
        ),
        (
            {"a": np.ones((4, 3), np.float32), "b": np.ones((3, 3), np.float32)},
            "expected as many samples of each input, found a 2, b 3",
        ),
        (
            {"a": np.ones((3, 3), np.float32), "b": np.ones((3, 3), np.float32)},
            "array a: expected a number of samples that is a multiple of the model's batch 2, "
            "found 3",
        ),
        (
            {"a": np.ones((4, 2), np.float32), "b": np.ones((2, 3), np.float32)},
            "array a: expected shape [samples, 3], found [4, 2]",
        ),
        (
            {"a": np.ones((4, 3)), "b": np.ones((2, 3), np.float32)},
            "array a: expected float32, found float64; convert it with astype('float32')",
        ),
        (
            {"a": np.array(["text"]), "b": np.ones((2, 3), np.float32)},
            "array a: expected plain numbers, found <U4",
        ),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, two_inputs, arrays, message):
    path = tmp_path / "x.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError) as error:
        load_samples(path, two_inputs)
    assert str(error.value) == f"{path}: {message}"


def test_objects_are_not_read(tmp_path, graph):
    path = tmp_path / "x.npz"
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="expected plain numbers, found object"):
        load_samples(path, graph)


def test_damaged_files(tmp_path, graph):
    path = tmp_path / "x.npz"
    stream = io.BytesIO()
    np.savez(stream, x=np.ones((4, 2, 3), np.float32))
    data = stream.getvalue()
    damaged = [b"", b"text", data[:50], data[:-30], data.replace(b"\x93NUMPY", b"\x93NUMPX")]
    damaged.append(data.replace(b"(4, 2, 3)", b"(4, 2,-3)"))
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"x\.npz"):
            load_samples(path, graph)
    np.save(tmp_path / "x.npy", np.ones(3))
    with pytest.raises(InputError, match="array x: expected float32, found float64"):
        load_samples(tmp_path / "x.npy", graph)
    with pytest.raises(FileNotFoundError):
        load_samples(tmp_path / "none.npz", graph)
