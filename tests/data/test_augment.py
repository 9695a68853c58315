"""Augmentation equals its plain-integer definition."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compare import assert_same
from samebits.data.augment import Augmentation, draw, sample_words
from samebits.errors import InputError
from samebits.numerics import philox
from samebits.spec.training.augment import augment, words_of


def images_of(count, channels, height, width, seed=1):
    words = philox.words(count * channels * height * width, (seed, 9)) % 256
    return words.view(count, channels, height, width).to(torch.uint8)


def reference(images, words, augmentation):
    return [
        [
            augment(plane, row, augmentation.zoom, augmentation.flip, augmentation.crop)
            for plane in image
        ]
        for image, row in zip(images.tolist(), words.tolist(), strict=True)
    ]


def check(images, words, augmentation):
    found = augmentation.apply(images, words)
    assert found.dtype == images.dtype
    expected = torch.tensor(reference(images, words, augmentation), dtype=images.dtype)
    assert_same(found, expected, torch.arange(found.numel()))


def test_words_are_those_of_seed_epoch_and_sample():
    words = sample_words(7, 3, 50)
    assert words.tolist() == [words_of(7, 3, sample) for sample in range(50)]
    assert torch.equal(sample_words(7, 3, 9), words[:9])
    assert not torch.equal(sample_words(7, 4, 50), words)


@pytest.mark.parametrize("text", ["flip", "crop:2", "zoom:50", "zoom:1", "flip,crop:3,zoom:75"])
@pytest.mark.parametrize("shape", [(40, 1, 5, 5), (30, 3, 4, 9)])
def test_equals_the_definition(text, shape):
    check(images_of(*shape), sample_words(5, 2, shape[0]), Augmentation.parse(text))


@given(
    st.lists(st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1]), min_size=6, max_size=6),
    *(st.integers(1, 6) for _ in range(2)),
    st.integers(1, 100),
    st.booleans(),
    st.data(),
)
def test_corners(words, height, width, zoom, flip, data):
    crop = data.draw(st.integers(0, min(height, width) - 1))
    images = images_of(1, 2, height, width, seed=height * 7 + width)
    check(images, torch.tensor([words]), Augmentation(flip, crop, zoom))


def test_nothing_is_the_identity():
    images = images_of(5, 3, 4, 4)
    assert Augmentation.parse("none").apply(images, sample_words(0, 0, 5)) is images
    everything = Augmentation(zoom=100, crop=0)
    assert torch.equal(everything.apply(images, sample_words(0, 0, 5)), images)


def test_constant_images_stay_constant_under_zoom_and_flip():
    images = torch.full((20, 1, 6, 7), 255, dtype=torch.uint8)
    for text in ("flip", "zoom:30", "flip,zoom:80"):
        assert torch.equal(Augmentation.parse(text).apply(images, sample_words(1, 1, 20)), images)


def test_real_images_are_flipped_and_shifted():
    images = images_of(20, 2, 5, 5)
    words, augmentation = sample_words(2, 0, 20), Augmentation.parse("flip,crop:2")
    real = augmentation.apply(images.float(), words)
    assert real.dtype == torch.float32
    assert torch.equal(real, augmentation.apply(images, words).float())


def test_every_shift_and_both_sides_occur():
    words = sample_words(0, 0, 2000)
    assert sorted(set(draw(words[:, 1], 9).tolist())) == list(range(9))
    share = draw(words[:, 0], 2).double().mean()
    assert 0.45 < share < 0.55


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "flip,flip",
            "crop",
            "crop:",
            "crop:-1",
            "crop:x",
            "crop:1.5",
            "crop:9999",
            "shear:3",
        ),
        *("none,flip", "flip:1", "zoom:0", "zoom:101", "flip,", "crop:²"),
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(InputError, match="expected"):
        Augmentation.parse(text)


def test_images_that_cannot_be_augmented():
    with pytest.raises(InputError, match="less than 4 pixels for images of 4x9, found 4"):
        Augmentation(crop=4).check(images_of(1, 1, 4, 9), "data")
    with pytest.raises(InputError, match=r"resamples 8-bit images, found torch\.float32"):
        Augmentation(zoom=50).check(torch.zeros(1, 1, 4, 4), "data")
    Augmentation(True, 3, 50).check(images_of(1, 1, 4, 9), "data")
