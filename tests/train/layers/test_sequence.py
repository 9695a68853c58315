"""Results of attention that are no results: what uses the weights is told so."""

from __future__ import annotations

import copy
import operator
import pickle

import pytest
import torch
from torch import nn

from samebits.errors import UnsupportedError
from samebits.train import BFPTensor, convert
from samebits.train.layers.absent import Absent

x = BFPTensor.from_real(torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)))
attention = convert(nn.Sequential(nn.MultiheadAttention(4, 2)))[0]
SENTENCE = (
    r"^layer '0' \(MultiheadAttention\): expected a model that reads the output of attention, "
    r"found one that reads its weights, which are not kept; compute softmax\(q @ k.mT \* factor, "
    r"-1\) in the module, or keep this one in float32 \(keep_float of convert\)$"
)

USES = {
    "attribute": lambda w: w.shape,
    "method": lambda w: w.mean(),
    "private": lambda w: w._base,
    "item": lambda w: w[0],
    "list": list,
    "length": len,
    "bool": bool,
    "float": float,
    "negative": operator.neg,
    "absolute": abs,
    **{
        f"{name} {side}": (lambda w, f=f, o=order: f(*o(w)))
        for name, f in {
            "add": operator.add,
            "sub": operator.sub,
            "mul": operator.mul,
            "truediv": operator.truediv,
            "matmul": operator.matmul,
            "pow": operator.pow,
            "lt": operator.lt,
            "le": operator.le,
            "gt": operator.gt,
            "ge": operator.ge,
        }.items()
        for side, order in {"left": lambda w: (w, 2), "right": lambda w: (2, w)}.items()
    },
    "beside a tensor": lambda w: x + w,
    "a function": torch.sum,
    "in a list": lambda w: torch.cat([x, w]),
}


@pytest.mark.parametrize("use", USES)
def test_any_use_of_the_weights_is_an_error(use):
    y, weights = attention(x, x, x)
    assert y.shape == x.shape
    with pytest.raises(UnsupportedError, match=SENTENCE):
        USES[use](weights)


def test_weights_that_nobody_uses_go_along():
    y, weights = attention(x, x, x)
    assert attention(x, x, x, need_weights=False)[1] is None
    assert weights is not None
    assert isinstance(weights, Absent)
    assert attention(*[x[:, 0]] * 3)[1]._text == weights._text
    for twin in (copy.copy(weights), copy.deepcopy(weights), pickle.loads(pickle.dumps(weights))):
        with pytest.raises(UnsupportedError, match=SENTENCE):
            twin + 1
    tree, shape = torch.utils._pytree.tree_flatten((y, weights))
    assert torch.utils._pytree.tree_unflatten(tree, shape)[1] is weights


@pytest.mark.parametrize("training", [True, False])
def test_layers_of_torch_around_it(training):
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(4, 2, 8), 1, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8), 1)
    model = convert(nn.ModuleList([encoder, decoder])).train(training)
    assert model[1](x, model[0](x)).shape == x.shape
