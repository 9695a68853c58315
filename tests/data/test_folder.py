import hashlib
import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from samebits import progress
from samebits.data import load, load_samples
from samebits.data.folder import is_test_name
from samebits.errors import InputError
from samebits.recipes import Reading


def picture(seed: int, size=(6, 5), mode="RGB") -> Image.Image:
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    shape = (size[1], size[0], *channels)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(pixels)


def make(root: Path, files: dict[str, Image.Image]) -> None:
    for name, image in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)


def split_folder(root: Path, mode="RGB") -> Path:
    make(
        root,
        {
            f"{split}/{label}/{index}.png": picture(10 * index + len(label), mode=mode)
            for split, count in (("train", 3), ("test", 2))
            for label in ("cat", "mouse")
            for index in range(count)
        },
    )
    return root


def message(root: Path, **options) -> str:
    with pytest.raises(InputError) as caught:
        load(str(root), **options)
    return str(caught.value)


def test_split_folder_in_class_and_name_order(tmp_path):
    data = load(str(split_folder(tmp_path)))
    assert data.class_names == ("cat", "mouse")
    assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test_labels.tolist() == [0, 0, 1, 1]
    assert data.train_images.dtype == torch.uint8
    assert data.input_shape == (3, 5, 6)
    expected = np.asarray(picture(13)).transpose(2, 0, 1)
    np.testing.assert_array_equal(data.train_images[1].numpy(), expected)


def test_channels_have_values_of_their_own(tmp_path):
    options = Reading(mean="0.485,0.456,0.406", std="0.229,0.224,0.225")
    data = load(str(split_folder(tmp_path)), options=options)
    indices = torch.arange(6)
    found = data.batch("train", indices).numpy()
    codes = data.train_images.numpy().astype(np.float32) / np.float32(255)
    means, stds = (np.array(n, np.float32)[:, None, None] for n in (options.mean, options.std))
    np.testing.assert_array_equal(found, (codes - means) / stds)
    assert data.record()["reading"] == {
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    }
    one = load(str(tmp_path), options=Reading(mean=0.5, std="0.5"))
    plain = load(str(tmp_path)).batch("train", indices)
    assert torch.equal(one.batch("train", indices), plain)


def test_the_whole_of_a_folder(tmp_path):
    split_folder(tmp_path)
    data = load(str(tmp_path), whole=True)
    assert torch.equal(data.test_images, load(str(tmp_path)).whole().test_images)
    assert data.test_labels.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert len(data.train_images) == len(data.train_labels) == 0
    make(tmp_path / "few", {f"{label}/a.png": picture(0) for label in ("cat", "mouse")})
    assert load(str(tmp_path / "few"), whole=True).test_labels.tolist() == [0, 1]
    assert "expected training and test files" in message(tmp_path / "few")


def test_the_whole_of_a_folder_needs_no_split(tmp_path):
    split_folder(tmp_path / "all")
    (tmp_path / "all" / "test").rename(tmp_path / "test")
    (tmp_path / "all").rename(tmp_path / "rest")
    assert load(str(tmp_path), whole=True).test_labels.tolist() == [0, 0, 1, 1]
    for name in ("a", "b"):
        (tmp_path / "none" / name).mkdir(parents=True)
    for whole in (False, True):
        assert "found no training file" in message(tmp_path / "none", whole=whole)


def test_grey_images_for_three_means(tmp_path):
    split_folder(tmp_path, "L")
    three = Reading(mean=(0, 0, 0), std=(1, 1, 1))
    assert message(tmp_path, options=three).startswith(
        f"{tmp_path}: --mean: expected a number, or one for each channel, found 3 for images of 1; "
        "give --colour rgb"
    )


def test_means_of_other_channels_are_refused(tmp_path):
    two = Reading(mean=(0, 0), std=(1, 1))
    told = r"--mean: expected a number, or one for each channel, found 2 for images of 3"
    with pytest.raises(InputError, match=told):
        load(str(split_folder(tmp_path)), options=two)
    with pytest.raises(InputError, match=told):
        load_samples(str(tmp_path / "train" / "cat"), options=two)


def test_samples_say_which_values_pixels_become(tmp_path, caplog):
    split_folder(tmp_path)
    told = "pixels of 0 to 255 become values of -1 to 1, as in samebits train"
    for folder in (tmp_path, tmp_path / "train" / "cat"):
        with caplog.at_level(logging.INFO, "samebits"):
            load_samples(str(folder), options=Reading(mean=0, std=1))
            assert told not in caplog.text
            found = load_samples(str(folder))
        assert f"{folder}: {told}" in caplog.text
        assert float(found.abs().max()) <= 1
        caplog.clear()


def test_batch_maps_codes_to_exact_values(tmp_path):
    data = load(str(split_folder(tmp_path)))
    batch = data.batch("train", torch.tensor([2, 0]))
    codes = data.train_images[[2, 0]].numpy().astype(np.float32)
    expected = (codes / np.float32(255) - np.float32(0.5)) * np.float32(2)
    assert batch.dtype == torch.float32
    np.testing.assert_array_equal(batch.numpy(), expected)
    assert float(batch.min()) >= -1
    assert float(batch.max()) <= 1


def test_unsplit_folder_splits_by_hash_of_the_name(tmp_path):
    names = [f"{index:03d}.png" for index in range(60)]
    make(tmp_path, {f"{label}/{name}": picture(1) for label in "ab" for name in names})
    data = load(str(tmp_path))
    expected = sum(is_test_name(name) for name in names)
    assert 5 <= expected <= 20
    assert len(data.test_labels) == 2 * expected
    assert len(data.train_labels) == 2 * (60 - expected)


def test_names_that_are_not_utf8(tmp_path):
    for label in "ab":
        (tmp_path / label).mkdir()
        for index in range(20):
            with open(os.fsencode(tmp_path / label) + b"/caf\xe9%d.png" % index, "wb") as file:
                picture(index).save(file, "png")
    data = load(str(tmp_path))
    digests = [hashlib.sha256(b"caf\xe9%d.png" % index).hexdigest()[:8] for index in range(20)]
    assert len(data.test_labels) == 2 * sum(int(digest, 16) % 5 == 0 for digest in digests)
    os.rename(tmp_path / "b", os.fsencode(tmp_path) + b"/b\xff")
    assert len(load(str(tmp_path)).sha256()) == 64


def test_grey_images_keep_one_channel_and_transparency_is_dropped(tmp_path):
    assert load(str(split_folder(tmp_path / "grey", "L"))).input_shape == (1, 5, 6)
    assert load(str(split_folder(tmp_path / "rgba", "RGBA"))).input_shape == (3, 5, 6)


def test_jpeg_decodes_the_same_twice(tmp_path):
    make(
        tmp_path,
        {f"{s}/{c}/x.jpg": picture(len(s) + ord(c)) for s in ("train", "test") for c in "ab"},
    )
    assert load(str(tmp_path)).sha256() == load(str(tmp_path)).sha256()


def test_limit_keeps_the_first_names_of_every_class(tmp_path):
    data = load(str(split_folder(tmp_path)), limit=2)
    assert data.train_labels.tolist() == [0, 0, 1, 1]
    assert len(data.test_labels) == 4
    assert "at least 1 training sample per class, found 0" in message(tmp_path, limit=0)


def test_limit_does_not_read_the_images_it_drops(tmp_path):
    split_folder(tmp_path)
    (tmp_path / "train/cat/2.png").write_bytes(b"not an image")
    assert len(load(str(tmp_path), limit=2).train_labels) == 4


@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: b"hello", lambda data: data[: len(data) // 2]],
    ids=["empty", "text", "truncated"],
)
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_corrupt_image_is_named(tmp_path, damage, suffix):
    make(
        tmp_path,
        {
            f"{s}/{c}/{i}.{suffix}": picture(i, (40, 40))
            for s in ("train", "test")
            for c in "ab"
            for i in range(3)
        },
    )
    bad = tmp_path / f"train/b/1.{suffix}"
    bad.write_bytes(damage(bad.read_bytes()))
    text = message(tmp_path)
    assert text.startswith(f"{bad}: corrupt or not a JPEG, PNG or WebP image")
    assert text.endswith("replace or remove it")


def test_first_image_of_another_size_or_mode_is_named(tmp_path):
    split_folder(tmp_path)
    first = tmp_path / "train/cat/0.png"
    odd = tmp_path / "test/mouse/1.png"
    picture(1, (7, 5)).save(odd)
    assert f"{odd}: expected 6x5 RGB like {first}, found 7x5 RGB" in message(tmp_path)
    picture(1, mode="L").save(odd)
    assert f"{odd}: expected 6x5 RGB like {first}, found 6x5 grey" in message(tmp_path)


def test_sixteen_bit_images_are_refused(tmp_path):
    split_folder(tmp_path)
    odd = tmp_path / "train/cat/0.png"
    Image.fromarray(np.zeros((5, 6), np.uint16)).save(odd)
    assert f"{odd}: expected 8 bits per channel, found mode I;16" in message(tmp_path)


def test_decompression_bombs_are_refused(tmp_path, monkeypatch):
    split_folder(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)  # 6x5 is between the limit and its double
    text = message(tmp_path)
    assert "train/cat/0.png" in text
    assert "DecompressionBomb" in text or "expected at most 20 pixels, found 6x5" in text


def test_missing_pieces_are_named(tmp_path):
    assert "no such file or folder" in message(tmp_path / "nowhere")
    assert "expected at least 2 class folders of images or recordings, found 0" in message(tmp_path)
    make(tmp_path, {"cat/1.png": picture(1)})
    assert "expected at least 2 class folders of images or recordings, found 1 ('cat')" in message(
        tmp_path
    )
    (tmp_path / "dog").mkdir()
    assert "expected training and test files, found no" in message(tmp_path)


def test_missing_test_split_is_named(tmp_path):
    make(tmp_path, {f"train/{c}/1.png": picture(1) for c in "ab"})
    assert "found train/<class>/ but no test/<class>/" in message(tmp_path)
    make(tmp_path, {"test/a/1.png": picture(1)})
    assert "expected at least 2 class folders" in message(tmp_path)
    make(tmp_path, {"test/c/1.png": picture(1)})
    assert "found class 'b' only in train/" in message(tmp_path)


def test_one_class_with_images_is_refused(tmp_path):
    split_folder(tmp_path)
    for path in (tmp_path / "train/mouse").iterdir():
        path.unlink()
    assert "expected training images of at least 2 classes, found 1" in message(tmp_path)


def test_other_files_in_a_class_folder_are_named(tmp_path):
    split_folder(tmp_path)
    stray = tmp_path / "train/cat/notes.txt"
    stray.write_text("x")
    assert f"{stray}: expected only .jpg, .jpeg, .png, .webp or .wav files" in message(tmp_path)
    stray.unlink()
    for name in (".DS_Store", "Thumbs.db", "desktop.ini"):  # what file managers leave
        (tmp_path / "train/cat" / name).write_text("x")
    notes = Notes()
    with progress.listening(notes):
        load(str(tmp_path))
    (tmp_path / "train/__MACOSX").mkdir()  # beside the classes of an archive from a Mac
    assert load(str(tmp_path)).class_names == ("cat", "mouse")
    assert notes.texts == [
        f"{tmp_path}/train/cat/.DS_Store: passed over, hidden",
        f"{tmp_path}/train/cat/Thumbs.db: passed over, no sample",
        f"{tmp_path}/train/cat/desktop.ini: passed over, no sample",
    ]


class Notes:
    def __init__(self):
        self.texts = []

    def stage(self, what, total):
        pass

    def advance(self, done):
        pass

    def note(self, text):
        self.texts.append(text)
