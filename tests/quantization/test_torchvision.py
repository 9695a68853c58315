"""Classifiers of torchvision, as they are: quantized, compiled, the same bits."""

from __future__ import annotations

import pytest

import samebits as sb
from torchvision_models import NETS, build, marked


@pytest.mark.parametrize("name", marked(NETS, ["squeezenet1_1"]))
def test_the_same_bits(name):
    """The reference runs one image, torch and C ten."""
    net, images = build(name, batch=10)
    found = sb.quantize(net.eval(), images)
    assert found.verify(images[:1].numpy(), ["reference", "torch"]), name
    assert found.verify(images.numpy(), ["torch", "c"]), name
