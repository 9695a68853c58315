"""Functions by the names that PyTorch has for their arguments."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from bfp_arrays import forms_agree, tensor
from samebits.errors import UnsupportedError

NAMED = {
    "sum": (lambda x: x.sum(axis=(1, 2), keepdims=True), lambda x: x.sum((1, 2), True)),
    "mean": (lambda x: torch.mean(x, axis=-1), lambda x: torch.mean(x, -1)),
    "softmax": (lambda x: torch.softmax(x, axis=1), lambda x: torch.softmax(x, 1)),
    "cat": (lambda x: torch.cat([x, x], axis=1), lambda x: torch.cat([x, x], 1)),
    "cat by name": (lambda x: torch.cat(tensors=[x, x], dim=1), lambda x: torch.cat([x, x], 1)),
    "stack": (lambda x: torch.stack([x, x], axis=2), lambda x: torch.stack([x, x], 2)),
    "add": (lambda x: torch.add(x, other=x, alpha=2), lambda x: torch.add(x, x, alpha=2)),
    "add by names": (lambda x: torch.add(other=x[:1], input=x), lambda x: torch.add(x, x[:1])),
    "sub": (lambda x: x.sub(other=x[:1]), lambda x: x - x[:1]),
    "mul": (lambda x: torch.mul(input=x, other=3.0), lambda x: x * 3.0),
    "div": (lambda x: x.div(other=2), lambda x: x / 2),
    "matmul": (lambda x: torch.matmul(x, other=x[0].mT), lambda x: x @ x[0].mT),
    "bmm": (lambda x: torch.bmm(input=x, mat2=x.mT), lambda x: torch.bmm(x, x.mT)),
    "transpose": (lambda x: x.transpose(dim0=0, dim1=2), lambda x: x.transpose(0, 2)),
    "swapaxes": (lambda x: torch.swapaxes(x, axis0=1, axis1=2), lambda x: x.transpose(1, 2)),
    "reshape": (lambda x: torch.reshape(x, shape=(4, 6)), lambda x: x.reshape(4, 6)),
    "view": (lambda x: x.view(size=(4, 6)), lambda x: x.view(4, 6)),
    "expand": (lambda x: x[:1].expand(size=(5, 3, 4)), lambda x: x[:1].expand(5, 3, 4)),
    "flip": (lambda x: x.flip(dims=(0, 1)), lambda x: x.flip(0, 1)),
    "repeat": (lambda x: x.repeat(repeats=(2, 1, 1)), lambda x: x.repeat(2, 1, 1)),
    "chunk": (lambda x: torch.chunk(input=x, chunks=2, dim=2), lambda x: x.chunk(2, 2)),
    "tensor_split": (lambda x: x.tensor_split(sections=2), lambda x: x.tensor_split(2)),
    "tensor_split at indices": (
        lambda x: torch.tensor_split(x, indices=(1, 2), dim=1),
        lambda x: x.tensor_split((1, 2), 1),
    ),
    "tile": (lambda x: x.tile(dims=(2, 1, 1)), lambda x: x.repeat(2, 1, 1)),
    "mv": (lambda x: torch.mv(x[0], vec=x[0, 0]), lambda x: x[0] @ x[0, 0]),
    "dot": (lambda x: torch.dot(x[0, 0], tensor=x[0, 1]), lambda x: x[0, 0] @ x[0, 1]),
    "addmm": (
        lambda x: torch.addmm(x[1, 0, :3], mat2=x[1].mT, mat1=x[0], beta=2),
        lambda x: x[0] @ x[1].mT + x[1, 0, :3] * 2,
    ),
    "baddbmm": (
        lambda x: torch.baddbmm(input=x[:, :1, :3], batch1=x, batch2=x.mT, alpha=2),
        lambda x: (x @ x.mT) * 2 + x[:, :1, :3],
    ),
    "permute": (lambda x: x.permute(dims=(2, 0, 1)), lambda x: x.permute(2, 0, 1)),
}


@pytest.mark.parametrize("name", NAMED)
def test_arguments_have_torch_s_names(name):
    forms_agree(NAMED[name], (2, 3, 4))
    named, placed = (form(torch.arange(24.0).view(2, 3, 4)) for form in NAMED[name])
    for a, b in zip(named, placed, strict=True) if isinstance(named, tuple) else [(named, placed)]:
        assert torch.allclose(a, b)


@pytest.mark.parametrize("name", ["pixel_shuffle", "pixel_unshuffle"])
def test_factors_of_pixels_have_names(name):
    function = getattr(functional, name)
    key = "upscale_factor" if name == "pixel_shuffle" else "downscale_factor"
    forms = (lambda x: function(x, 2), lambda x: function(x, **{key: 2}))
    forms_agree(forms, (2, 4, 2, 2))


def test_other_arguments_are_refused():
    x = tensor((2, 3))
    with pytest.raises(UnsupportedError, match="mul of BFP tensors: got an unexpected keyword"):
        torch.mul(input=x, other=x, out=x)
    with pytest.raises(UnsupportedError, match="sum of BFP tensors: got an unexpected keyword"):
        torch.sum(input=x, axis=1, out=x)
