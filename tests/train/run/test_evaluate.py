"""Which samples evaluation and calibration take, and which worker takes them."""

import re

import pytest
import torch
from torch import nn

from samebits.data import Dataset
from samebits.train import convert, model_input
from samebits.train.architectures import build, initialise
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


@pytest.mark.parametrize("total", [130, 256, 700])
def test_exponents_are_frozen_over_samples_all_over_the_data(total, monkeypatch):
    """256 of them, or all, in data-set order."""
    torch.manual_seed(0)
    engine = BfpEngine(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), SETTINGS, 1, seed=0)
    data, taken = dataset([i % 256 for i in range(total)], [0]), []
    batch = Dataset.batch

    def noted(self, split, indices):
        taken.extend(indices.tolist())
        return batch(self, split, indices)

    monkeypatch.setattr(Dataset, "batch", noted)
    texts = []
    found = frozen_exponents(engine, data, texts.append)
    assert not [text for text in texts if "deployed" in text]
    count = min(total, 256)
    expected = [i * total // count for i in range(count)]
    assert taken[:count] == expected
    samples = batch(data, "train", torch.tensor(expected))
    assert found == calibrate(engine.model, samples.split(1))


@pytest.mark.parametrize(("rows", "said"), [("tensor", True), ("row", False)])
def test_samples_of_very_different_size_are_told_of(rows, said):
    """Half of the images are 8 binades above the others."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    engine = BfpEngine(network, SETTINGS, 1, 0, exponents=rows)
    texts = []
    pixels = [127 if i % 2 else 255 for i in range(130)]  # 127 is next to 0
    frozen_exponents(engine, dataset(pixels, [0]), texts.append)
    assert bool(texts) is said
    if said:
        (text,) = texts
        assert re.match(r"the largest samples lie 8\.0 binades above the median", text)


SHAPES = {"mlp": (1, 6, 6), "cnn": (1, 8, 8), "lstm": (5, 4), "vit": (3, 8, 8), "gpt": (6,)}


@pytest.mark.parametrize("name", list(SHAPES))
def test_an_evaluated_sample_does_not_depend_on_its_batch(name):
    """Also of samples of very different ranges, by a model with one exponent a weight."""
    network = build(name, SHAPES[name], 9)
    initialise(network, 1)
    model = convert(network).eval()
    generator = torch.Generator().manual_seed(3)
    if name == "gpt":
        samples = torch.randint(0, 9, (5, *SHAPES[name]), generator=generator)
    else:
        scales = torch.tensor([1.0, 40.0, 0.01, 3.0, 0.0]).view(-1, *[1] * len(SHAPES[name]))
        samples = torch.randn(5, *SHAPES[name], generator=generator) * scales

    def logits(part):
        given = part if name == "gpt" else model_input(model, part)
        return model(given).dequantize()

    with torch.no_grad():
        assert torch.equal(logits(samples), torch.cat([logits(samples[:2]), logits(samples[2:])]))
