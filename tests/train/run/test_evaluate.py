"""Which samples evaluation and calibration take, and which worker takes them."""

import pytest
import torch
from torch import nn

from samebits.data import Dataset
from samebits.train.deployed.deploy import calibrate
from samebits.train.run.engine import BfpEngine, OptimizerSettings
from samebits.train.run.evaluate import count_correct, frozen_exponents, gives_one_output
from worker_threads import Hub

SETTINGS = OptimizerSettings("sgd", 0.1, 0.9, False, 0.0, seed=0, rounding="stochastic")


def dataset(train, test):
    """Images [1, 2, 2] whose pixels are the given numbers; those above 127 are of class 1."""
    images = [torch.tensor(row, dtype=torch.uint8).view(-1, 1, 1, 1) for row in (train, test)]
    images = [part.expand(-1, 1, 2, 2).contiguous() for part in images]
    labels = [(part[:, 0, 0, 0] > 127).long() for part in images]
    return Dataset(images[0], labels[0], images[1], labels[1], ("dark", "bright"), "made")


class Bright:
    """Tells bright images from dark ones, and notes the sizes of batches."""

    def __init__(self):
        self.sizes = []

    def logits(self, images):
        self.sizes.append(len(images))
        bright = (images.mean((1, 2, 3)) > 0).float()  # values are in [-1, 1]
        return torch.stack([1 - bright, bright], 1)


@pytest.mark.parametrize(
    ("count", "workers", "sizes"),
    [
        (70, 1, [[32, 32, 6]]),
        (70, 2, [[32, 6], [32]]),
        (161, 3, [[32, 32], [32, 32], [32, 1]]),
        (20, 3, [[20], [], []]),
    ],
)
def test_workers_take_batches_in_turns(count, workers, sizes):
    data = dataset([0, 255], [255 * (i % 3 == 0) for i in range(count)])
    data.test_labels[::7] ^= 1  # these are not what they look like
    every = [Bright() for _ in range(workers)]
    counts = Hub(workers).run(
        lambda worker: count_correct(every[worker.rank], data, workers=worker)
    )
    assert counts == [count - len(range(0, count, 7))] * workers
    assert [classifier.sizes for classifier in every] == sizes


@pytest.mark.parametrize(
    ("images", "one"),
    [([0, 255], False), ([200, 255], True), ([255, 255], False), ([200] * 31 + [255, 0], True)],
)
def test_one_output_is_that_of_samples_which_differ(images, one):
    assert gives_one_output(Bright(), dataset([0, 255], images)) == one


def test_exponents_are_frozen_over_the_first_image_and_the_last():
    """70 images, a batch of 64 and the rest: one of them is 1, all others are +-1/255."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    engine = BfpEngine(model, SETTINGS, 1, seed=0)
    found = []
    for at in (0, 69, None):
        data = dataset([255 if i == at else 127 + i % 2 for i in range(70)], [0])
        batches = [data.batch("train", part) for part in torch.arange(70).split(64)]
        found.append(frozen_exponents(engine, data, pytest.fail))
        assert found[-1] == calibrate(engine.model, batches)
    assert found[0] == found[1] != found[2]
