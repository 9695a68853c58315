import numpy as np
import pytest
import torch

from samebits.data import load
from samebits.data.text import LENGTH, MAX_BYTES, STRIDE, TEST_PART, load_tokens
from samebits.errors import InputError

LEAST_BYTES = TEST_PART * (LENGTH + 1)


def corpus(path, length=4000):
    words = np.random.default_rng(3).choice([b"same ", b"bits ", b"every", b"where\n"], length)
    text = b"".join(words.tolist())[:length]
    path.write_bytes(text)
    return text


def test_windows_and_the_characters_after_them(tmp_path):
    path = tmp_path / "corpus.txt"
    text = corpus(path)
    data = load(str(path))
    alphabet = sorted(set(text))
    cut = len(text) - len(text) // 10
    for split, part in (("train", text[:cut]), ("test", text[cut:])):
        starts = range(0, len(part) - LENGTH, STRIDE)
        codes = [[alphabet.index(c) for c in part[s : s + LENGTH]] for s in starts]
        assert data.images(split).tolist() == codes
        assert data.labels(split).tolist() == [alphabet.index(part[s + LENGTH]) for s in starts]
    assert data.class_names == tuple({10: "\\x0a", 32: "\\x20"}.get(c, chr(c)) for c in alphabet)


def test_batch_is_one_hot(tmp_path):
    corpus(tmp_path / "corpus.txt")
    data = load(str(tmp_path / "corpus.txt"), limit=3)
    assert data.input_shape == (LENGTH, data.classes)
    batch = data.batch("train", torch.tensor([4, 1]))
    assert batch.dtype == torch.float32
    assert batch.shape == (2, *data.input_shape)
    assert batch.argmax(2).tolist() == data.train_images[[4, 1]].tolist()
    assert batch.sum().item() == 2 * LENGTH
    assert set(batch.flatten().tolist()) == {0.0, 1.0}
    assert torch.bincount(data.train_labels).max() <= 3


def test_every_byte_is_a_class(tmp_path):
    path = tmp_path / "all.txt"
    path.write_bytes(bytes(range(256)) * 4)
    data = load(str(path))
    assert data.classes == 256
    assert data.train_images.dtype == torch.uint8
    assert len(data.sha256()) == 64


def test_least_and_largest(tmp_path):
    path = tmp_path / "a.txt"
    corpus(path, LEAST_BYTES)
    assert len(load(str(path)).test_labels) == 1
    corpus(path, LEAST_BYTES - 1)
    with pytest.raises(InputError) as caught:
        load(str(path))
    assert str(caught.value) == f"{path}: expected a text of 650 to {MAX_BYTES} bytes, found 649"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(InputError, match=f"found {MAX_BYTES + 1}"):
        load(str(path))
    path.write_bytes(b"a" * 1000)
    with pytest.raises(InputError, match="expected training texts of at least 2 classes, found 1"):
        load(str(path))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    text = corpus(tmp_path / "plain.txt")
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbf" + text)
    plain, marked = (load(str(tmp_path / name)) for name in ("plain.txt", "marked.txt"))
    assert marked.sha256() == plain.sha256()
    assert marked.class_names == plain.class_names


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_windows_of_tokens(tmp_path, length):
    path = tmp_path / "a.txt"
    text = corpus(path, 200)
    data = load_tokens(path, length)
    starts = range(0, 180 - length, max(1, length // 2))
    assert data.train_images.tolist() == [list(text[s : s + length]) for s in starts]
    assert data.train_labels.tolist() == [list(text[s + 1 : s + 1 + length]) for s in starts]


@pytest.mark.parametrize("length", [0, -1])
def test_windows_of_nothing_are_refused(tmp_path, length):
    corpus(tmp_path / "a.txt", 200)
    with pytest.raises(InputError, match=rf"windows of at least 1 byte, found {length}"):
        load_tokens(tmp_path / "a.txt", length)
