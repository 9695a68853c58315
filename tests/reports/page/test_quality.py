"""The first card of a page: its figures are those of `evaluate`, its samples the wrong ones."""

from __future__ import annotations

import base64
import html
import io
import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

import samebits as sb
from samebits.data import Dataset, from_arrays
from samebits.data.tally import Metrics
from samebits.reports.page.pictures import picture_of
from samebits.reports.page.quality import Confusion, quality_section, quality_sentence
from samebits.verification.evaluate import answered, judged
from samebits.verification.quality import Quality


def shown(page):
    """The text of a page as it is read."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


def card(page):
    """The first card."""
    return page[page.index("<section") : page.index("</section>")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of images, one of a table with words, a regression, and one with several labels."""
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(0, 1, 200), "b": rng.normal(0, 1, 200)})
    rows = table.assign(kind=np.where(table.a > table.b, "<b>over", "under"))
    numbers = table.assign(y=100 + 7 * table.a - table.b)
    labels = table.assign(p=(table.a > 0) * 1, q=(table.b > 0.5) * 1)
    made = {}
    for name, frame in (("rows", rows), ("numbers", numbers), ("labels", labels)):
        frame.to_csv(folder / f"{name}.csv", index=False)
        options = {"target": ["p", "q"], "task": "multilabel"} if name == "labels" else {}
        data = sb.read(folder / f"{name}.csv", **options)
        made[name] = sb.fit(data, "mlp", folder / name, epochs=2, threads=1)
    made["digits"] = sb.fit("digits", "mlp", folder / "digits", epochs=1, threads=1)
    return made


@pytest.mark.parametrize("name", ["digits", "rows", "numbers", "labels"])
def test_a_run_is_judged_on_its_own_data(runs, name):
    """Its page begins with the figures that `evaluate` gives of the same network."""
    run = runs[name]
    page = sb.report(run.folder).html
    assert card(page).startswith('<section id="part-1" aria-labelledby="part-1-title">')
    text = shown(card(page))
    assert text.strip().startswith("How good?")
    found = sb.evaluate(sb.load(run.folder), run.config.data)
    if name == "numbers":
        assert f"(RMSE) of {found.metrics['rmse']:.4g} on {found.total} test rows" in text
    else:
        assert f"{100 * found.accuracy:.2f} % of {found.total} test" in text
    with_data = sb.report(run.folder, run.config.data)
    assert shown(card(with_data.html)) == text
    assert str(with_data).index("How good?") < str(with_data).index("same bits: yes")
    assert "<b>over" not in page


def test_one_answer_to_all_is_beside_it(runs):
    run = runs["digits"]
    data = sb.data.load("digits")
    counts = np.bincount(data.test_labels.numpy())
    text = shown(card(sb.report(run.folder).html))
    share = 100 * counts.max() / counts.sum()
    assert f"always answering '{counts.argmax()}' would be right in {share:.2f} %" in text


def test_changed_data_of_a_run_is_not_taken(runs, tmp_path):
    """Nor data that is no file: a run's folder is not trusted to name code."""
    run = runs["rows"]
    config = run.folder / "config.json"
    text = config.read_text()
    record = json.loads(text)
    cases = {
        "data": ("os:getcwd", "The data of the run is not here"),
        "data_sha256": ("0" * 64, "The data of the run has changed since"),
        "limit": (3, "The run took a part of its data"),
    }
    try:
        for key, (value, why) in cases.items():
            config.write_text(json.dumps(record | {key: value}))
            found = shown(card(sb.report(run.folder).html))
            assert why in found
            assert f"recorded accuracy {100 * run.accuracy:.2f} % on its test samples" in found
    finally:
        config.write_text(text)


def test_samples_without_labels_say_why(runs, tmp_path):
    net = sb.load(runs["rows"].folder)
    page = shown(card(net.report(torch.zeros(4, 2), prepared=True).html))
    assert "Not measured for this page. Samples in memory have no labels" in page
    assert "Samples drawn at random have no labels" in shown(card(net.report("random:2").html))
    assert "Samples with labels say it" in shown(card(net.report().html))
    (tmp_path / "bare.csv").write_text("a,b\n1,2\n3,4\n")
    assert "have no labels that count here" in shown(card(net.report(tmp_path / "bare.csv").html))


# --- what is counted ------------------------------------------------------------------------------


def quality(data, outputs, correct=None, figures=None):
    outputs = np.asarray(outputs)
    total = data.test_labels.numel()
    return Quality(data, Metrics(correct, total, figures or {}), outputs, outputs * 1.0, "integer")


def images(labels, names=("cat", "dog", "<i>")):
    """A data set whose test samples have these labels."""
    few = torch.arange(len(names))
    pixels = torch.arange(len(labels) * 12, dtype=torch.uint8).reshape(len(labels), 3, 2, 2)
    return Dataset(
        torch.zeros(len(names), 3, 2, 2, dtype=torch.uint8),
        few,
        pixels,
        torch.tensor(labels),
        names,
    )


def test_classes_and_the_worst_samples():
    data = images([0, 0, 1, 1, 1])
    found = quality(data, [[3, 1, 0], [1, 9, 0], [0, 5, 0], [0, 4, 4], [7, 2, 5]], 3)
    assert found.chosen.tolist() == [0, 1, 1, 1, 0]
    assert found.confusion.tolist() == [[1, 1], [1, 2]]
    assert found.baseline == 3 / 5
    assert found.majority == "dog"
    assert found.worst(8) == [1, 4]
    assert found.losses.tolist() == [0, 8, 0, 0, 5]
    assert [found.place(sample) for sample in (0, 4)] == [4, 8]
    assert quality_sentence(found)[0] == "bad"  # 3 of 5 are what one answer has
    assert Confusion(("a", "b"), [[1, 9], [0, 0]], "").depth(0, 1) == 9
    assert Confusion(("a", "b"), [[1, 9], [0, 0]], "").depth(1, 1) == 0


def test_equal_numbers_of_a_wrong_answer_are_a_mistake_all_the_same():
    """Ties go to the first class: nothing is above the label's number, and it is wrong."""
    found = quality(images([1]), [[4, 4, 0]], 0)
    assert found.worst(8) == [0]
    assert 0 < found.losses[0] < 1e-300


def test_a_picture_is_the_sample():
    data = images([0, 1])
    png = base64.b64decode(picture_of(data, 1))
    found = np.asarray(Image.open(io.BytesIO(png)))
    assert np.array_equal(found, data.test_images[1].numpy().transpose(1, 2, 0))
    rows = from_arrays([np.random.default_rng(0).normal(size=(20, 3))], [np.arange(20) % 2])
    assert picture_of(rows, 0) is None


def test_many_classes_are_listed_by_their_mistakes():
    names = tuple(f"class {i}" for i in range(30))
    data = images(list(range(30)), names)
    outputs = np.eye(30)
    outputs[3], outputs[4] = outputs[5], outputs[5]
    page = quality_section(quality(data, outputs, 28), named=True)
    (table,) = [block for block in page.blocks if block.kind == "table"]
    assert table.rows == [("class 3", "class 5", "1"), ("class 4", "class 5", "1")]


def test_nothing_wrong_is_said():
    page = quality_section(quality(images([0, 1]), np.eye(3)[:2], 2), named=False)
    texts = [block.text for block in page.blocks if block.kind in ("paragraph", "status")]
    assert "None of the test images is answered wrongly." in texts
    assert "Classes are in the order that the data has them: cat, dog, <i>." in texts


def test_masks_are_counted_by_pixels():
    masks = torch.tensor([[[0, 0], [1, 1]], [[1, 1], [1, 1]]], dtype=torch.uint8)
    pixels = torch.zeros(2, 1, 2, 2, dtype=torch.uint8)
    data = Dataset(pixels, masks, pixels, masks, ("sky", "road"), task="segmentation")
    outputs = np.zeros((2, 2, 2, 2))
    outputs[:, 1] = 1
    found = quality(data, outputs, 6, {"pixel_accuracy": 0.75, "mean_iou": 0.375})
    assert found.confusion.tolist() == [[0, 2], [0, 6]]
    assert found.worst(5) == [0]
    assert found.baseline == 0.75
    text = shown(str(quality_sentence(found)[1]))
    assert text.startswith("75.00 % of pixels of 2 test images are answered right; always")


def test_a_network_is_judged_as_it_is_evaluated(runs):
    net = sb.load(runs["digits"].folder)
    found = answered(net.model, "digits")
    assert isinstance(judged(net.model, "digits"), Quality)
    score = sb.evaluate(net, "digits")
    assert (found.metrics.correct, found.metrics.total) == (score.correct, score.total)
    assert int(found.right.sum()) == score.correct == int(found.confusion.trace())


def test_what_was_shipped_says_how_good_it_is(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    shipped = sb.ship(module, "digits", tmp_path / "c", floor="none", backends=["torch"])
    text = shown(card(shipped.page.read_text()))
    found = sb.evaluate(shipped.network, "digits")
    assert f"{100 * found.accuracy:.2f} % of {found.total} test images are answered right" in text
