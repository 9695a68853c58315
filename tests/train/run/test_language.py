"""Language models: windows of a text with a label for every place, trained, deployed, heard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import samebits as sb
from given_options import called
from samebits.data import load
from samebits.data.dataset import Dataset
from samebits.errors import InputError
from samebits.train.architectures import build, gpt

LENGTH = 16
OPTIONS = {"epochs": 2, "batch": 16, "optimizer": "adamw", "lr": 0.01, "threads": 1}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    words = np.random.default_rng(3).choice(["same ", "bits ", "every", "where\n"], 600)
    path.write_text("".join(words))
    return path


def test_every_place_has_the_byte_after_it_as_label(text: Path) -> None:
    data, whole = load(str(text), input_shape=(LENGTH,)), text.read_bytes()
    assert data.language
    assert data.input_shape == (LENGTH,)
    assert data.classes == 256
    cut = len(whole) - len(whole) // 10
    for split, part in (("train", whole[:cut]), ("test", whole[cut:])):
        starts = range(0, len(part) - LENGTH, LENGTH // 2)
        assert data.images(split).tolist() == [[*part[s : s + LENGTH]] for s in starts]
        assert data.labels(split).tolist() == [[*part[s + 1 : s + LENGTH + 1]] for s in starts]
    tokens = data.batch("test", torch.arange(2))
    assert tokens.dtype == torch.int64
    with pytest.raises(InputError, match="windows of a text; shorten the text"):
        data.limited(3)


@pytest.mark.parametrize("numerics", ["bfp", pytest.param("float32", marks=pytest.mark.slow)])
def test_from_a_text_to_the_same_tokens(numerics: str, text: Path, tmp_path: Path) -> None:
    data = load(str(text), input_shape=(LENGTH,))
    module = gpt(256, LENGTH, width=32, depth=1)
    run = called(sb.fit, data=data, arch=module, out=tmp_path / "run", **OPTIONS, numerics=numerics)
    assert run is not None
    assert run.result.test_count == data.test_labels.numel()
    assert run.result.nats_per_token is not None
    assert 0.2 < run.result.nats_per_token < 3.0
    assert f"{run.result.nats_per_token:.4f} nats per token" in str(run.report())
    net = sb.load(tmp_path / "run", arch=module)
    if numerics == "float32":
        net = sb.quantize(net, data.values(data.train_images[:8]))
    score = sb.evaluate(net, data)
    assert score.total == data.test_labels.numel()
    if numerics == "bfp":
        assert score.accuracy == run.accuracy
    drawn = net.generate("same bits", 20, top_k=3, seed=1, backends=["reference", "torch"])
    assert drawn
    assert drawn.text.startswith("same bits")
    assert sb.evaluate(tmp_path / "run", data, arch=module).accuracy == run.accuracy


def test_the_architecture_takes_texts_alone() -> None:
    module = build("gpt", (LENGTH,), 256)
    assert module(torch.zeros(2, LENGTH, dtype=torch.int64)).shape == (2, LENGTH, 256)
    with pytest.raises(
        InputError, match=r"gpt: expected a text \(.txt\), found samples \[1, 8, 8\]"
    ):
        build("gpt", (1, 8, 8), 10)


def test_labels_fit_the_places() -> None:
    tokens = torch.zeros(3, 4, dtype=torch.uint8)
    with pytest.raises(InputError, match=r"labels \[N\], or"):
        Dataset(tokens, torch.zeros(3, 5).long(), tokens, torch.zeros(3, 5).long(), ("a", "b"))
