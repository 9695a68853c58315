"""Bags of rows are the sum, mean or maximum over an embedding."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from samebits.errors import UnsupportedError
from samebits.train import convert, mse_loss

INDEX = torch.tensor([[0, 3, 3], [1, 0, 2]])


def bag(mode="mean", **options):
    torch.manual_seed(2)
    return nn.EmbeddingBag(5, 4, mode=mode, **options)


def parts(mode, weight):
    """The same of an embedding, by functions."""
    rows = functional.embedding(INDEX, weight)
    if mode != "max":
        return rows.mean(1) if mode == "mean" else rows.sum(1)
    image = rows.permute(0, 2, 1).reshape(2, 4, 3, 1)
    return functional.max_pool2d(image, (3, 1)).reshape(2, 4)


@pytest.mark.parametrize("exponents", ["tensor", "row"])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_are_reductions_of_an_embedding(mode, exponents, realisation):
    net = bag(mode)
    found = []
    flat, offsets = INDEX.flatten(), torch.tensor([0, 3])
    for run in (
        lambda m: m(INDEX),
        lambda m: m(flat, offsets),
        lambda m: functional.embedding_bag(INDEX, m.weight, mode=mode),
        lambda m: parts(mode, m.weight),
    ):
        model = convert(net, exponents)
        out = run(model)
        mse_loss(out, torch.ones(2, 4)).backward()
        gradient = model.weight.grad
        found.append((out.codes.tolist(), gradient.codes.tolist(), gradient.exponent))
        assert float((out.detach().dequantize() - net(INDEX).detach()).abs().max()) < 0.1
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: convert(bag())(INDEX[0], torch.tensor([0, 1])), "and bags of one length, at le"),
        (lambda: convert(bag())(INDEX[0]), r"indices \(3,\) and no offsets"),
        (lambda: convert(bag("max"))(INDEX + 3), r"expected indices in \[0, 4\]"),
        (
            lambda: convert(bag("sum"))(INDEX, None, torch.ones(2, 3)),
            r"\(EmbeddingBag\): expected no per_sample_weights, found some; multiply the rows of",
        ),
        (lambda: convert(bag(padding_idx=0)), "padding_idx, which shortens bags"),
        (lambda: convert(bag(include_last_offset=True)), "include_last_offset"),
        (
            lambda: functional.embedding_bag(INDEX, convert(bag()).weight, padding_idx=1),
            "include_last_offset or padding_idx",
        ),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call()
