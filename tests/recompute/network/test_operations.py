"""Operations of sub-layers, counted by hand: forward, and backward with both gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from recompute_nets import make
from samebits.recompute.network.operations import OperationCounter
from samebits.recompute.run import profile
from samebits.recompute.run.profile import survey
from samebits.train import BFPTensor, convert, mse_loss

functional = nn.functional


def given(*shape):
    return torch.zeros(shape, requires_grad=True)


def products(run):
    """Operations of products, of the forward and of the backward pass."""
    with OperationCounter() as forward:
        result = run()
    result = result[0] if isinstance(result, tuple) else result
    gradient = torch.zeros_like(result)
    with OperationCounter() as backward:
        result.backward(gradient)
    return forward.products, backward.products


@pytest.mark.parametrize(
    ("run", "forward", "backward"),
    [
        (lambda: torch.mm(given(3, 4), given(4, 5)), 120, 240),
        (lambda: torch.addmm(given(5), given(3, 4), given(4, 5)), 120, 240),
        (lambda: torch.bmm(given(2, 3, 4), given(2, 4, 5)), 240, 480),
        (lambda: torch.baddbmm(given(2, 3, 5), given(2, 3, 4), given(2, 4, 5)), 240, 480),
        (lambda: torch.addbmm(given(3, 5), given(2, 3, 4), given(2, 4, 5)), 240, 480),
        (lambda: torch.matmul(given(6, 2, 3, 4), given(4, 5)), 6 * 240, 12 * 240),
        (lambda: torch.matmul(given(2, 1, 3, 4), given(1, 6, 4, 5)), 12 * 120, 24 * 120),
        (lambda: torch.mv(given(3, 4), given(4)), 24, None),
        (lambda: torch.dot(given(4), given(4)), 8, None),
        (lambda: torch.addmv(given(3), given(3, 4), given(4)), 24, None),
        (lambda: torch.addr(given(3, 4), given(3), given(4)), 24, None),
        (lambda: torch.einsum("bij,bjk->bik", given(2, 3, 4), given(2, 4, 5)), 240, 480),
        (lambda: functional.linear(given(2, 3, 4), given(5, 4), given(5)), 240, 480),
        (lambda: functional.bilinear(given(2, 3), given(2, 4), given(5, 3, 4)), 360, 1080),
        # 2 * samples * places * channels out * channels in * size of the kernel
        (lambda: functional.conv1d(given(2, 3, 6), given(4, 3, 3)), 2 * 2 * 4 * 4 * 9, 4 * 288),
        (lambda: functional.conv2d(given(2, 3, 5, 5), given(4, 3, 3, 3)), 3888, 7776),
        (lambda: functional.conv3d(given(2, 3, 3, 3, 3), given(4, 3, 3, 3, 3)), 1296, 2592),
        (lambda: functional.conv2d(given(2, 4, 5, 5), given(4, 1, 3, 3), groups=4), 1296, 2592),
        (lambda: functional.conv_transpose2d(given(2, 3, 5, 5), given(3, 4, 3, 3)), 10800, 21600),
        (lambda: functional.conv_transpose1d(given(2, 4, 5), given(4, 1, 3), groups=4), 240, 480),
        # queries times keys, weights times values; the gradients do the first product again
        (
            lambda: functional.scaled_dot_product_attention(*(given(2, 4, 8, 16) for _ in "qkv")),
            2 * 2 * 8 * 8 * 8 * 16,
            5 * 8 * 8 * 8 * 2 * 16,
        ),
        # gates * H * (F + H) for each of 5 steps of 2 samples
        (lambda: nn.LSTM(3, 4)(given(5, 2, 3)), 2 * 10 * 16 * 7, 4 * 10 * 16 * 7),
        (lambda: nn.GRU(3, 4)(given(5, 2, 3)), 2 * 10 * 12 * 7, None),
        (lambda: nn.RNN(3, 4)(given(5, 2, 3)), 2 * 10 * 4 * 7, None),
        (lambda: nn.LSTMCell(3, 4)(given(2, 3)), 2 * 2 * 16 * 7, None),
        # four maps of 16 x 16, and both products of 4 heads
        (
            lambda: nn.MultiheadAttention(16, 4)(*[given(8, 2, 16)] * 3),
            2 * 16 * 4 * 256 + 2 * 2 * 8 * 8 * 8 * 4,
            None,
        ),
        (
            lambda: functional.embedding_bag(torch.tensor([[1, 2], [3, 4]]), given(10, 4)),
            16,
            16,
        ),
        (lambda: torch.cdist(given(3, 4), given(5, 4)), 3 * 15 * 4, None),
        (lambda: torch.linalg.multi_dot([given(2, 3), given(3, 4), given(4, 5)]), 128, 256),
    ],
)
def test_products_are_counted_from_their_shapes(run, forward, backward):
    found = products(run)
    assert found[0] == forward
    assert backward is None or found[1] == backward


class Mixed(nn.Module):
    """What the first version counted as one operation for each result."""

    def __init__(self):
        super().__init__()
        self.deconv = nn.ConvTranspose2d(4, 16, 2, bias=False)
        self.volume = nn.Conv3d(16, 8, (1, 3, 3), bias=False)

    def forward(self, x):
        y = self.volume(self.deconv(x).unsqueeze(2)).squeeze(2)
        return torch.matmul(y, y.transpose(2, 3))


def test_a_survey_counts_forward_and_backward():
    _, network = survey(Mixed(), torch.zeros(2, 4, 7, 7), torch.sum)
    found = {x.kind: (x.operations, x.gradient_operations) for x in network.layers}
    once = 2 * 2 * 49 * 4 * 16 * 4
    assert found["ConvTranspose2d"] == (once, once)  # the input has no gradient
    assert found["Conv3d"] == (2 * 2 * 36 * 16 * 8 * 9, 4 * 2 * 36 * 16 * 8 * 9)
    product = next(x for x in network.layers if x.kind == "matmul")
    assert product.products == 2 * 2 * 8 * 6**3
    assert product.gradient_operations >= 2 * product.products


def test_operations_besides_products():
    _, network = survey(nn.Sequential(nn.ReLU(), nn.GELU()), torch.zeros(4, 6), torch.sum)
    assert [(x.operations, x.products, x.calls) for x in network.layers[1:]] == [
        (24, 0, 1),
        (72, 0, 1),
    ]


def test_counting_leaves_the_measured_levels_alone(monkeypatch):
    case = make("in place", "float32")
    counted = survey(case.model, case.inputs, case.loss)[1]
    monkeypatch.setattr(profile, "_counts", lambda tape, *_: [{} for _ in tape.calls])
    plain = survey(case.model, case.inputs, case.loss)[1]
    names = ("operations", "gradient_operations", "products", "calls")
    same = dict.fromkeys(names, 0)
    assert [replace(x, **same) for x in counted.layers] == [
        replace(x, **same) for x in plain.layers
    ]


def test_layers_in_block_floating_point():
    case = make("resnet8", "bfp")
    _, network = survey(case.model, case.inputs, case.loss)
    conv = network.layers[1]
    assert (conv.kind, conv.operations) == ("Conv2d", 2 * 4 * 16 * 64 * 3 * 9)
    assert conv.gradient_operations == 2 * conv.operations  # of the weight alone


class Hidden(nn.Module):
    """The hidden states that a recurrent layer gives for what a linear layer gives."""

    def __init__(self, recurrent):
        super().__init__()
        self.first, self.recurrent = nn.Linear(4, 4), recurrent

    def forward(self, x):
        return self.recurrent(self.first(x))[0]


@pytest.mark.parametrize(
    ("recurrent", "shape"), [(nn.LSTM(4, 64), (3, 2, 4)), (nn.LSTMCell(4, 64), (6, 4))]
)
def test_products_of_lstms_in_block_floating_point(recurrent, shape):
    """As of the cells below, for 3 steps of 2 samples or a step of 6."""
    model = convert(Hidden(recurrent))
    x = BFPTensor.from_real(torch.ones(shape))
    _, network = survey(model, x, lambda y: mse_loss(y, torch.zeros(y.shape)))
    found = next(layer for layer in network.layers if layer.kind == type(recurrent).__name__)
    assert found.operations == found.products == 2 * 6 * 4 * 64 * 68


def test_a_product_of_activations_counts_the_vectors_it_sums():
    case = make("tokens", "bfp")
    _, network = survey(case.model, case.inputs, case.loss)
    first, second, third = (layer for layer in network.layers if layer.kind == "MatMul")
    assert first.operations == first.products == 2 * 4 * 5 * 5 * 8
    assert {second.operations, third.operations} == {2 * 4 * 5 * 8 * 8, 2 * 4 * 5 * 5 * 8}


@pytest.mark.parametrize(("cell", "gates"), [(nn.GRUCell, 3), (nn.RNNCell, 1)])
def test_cells_in_block_floating_point_are_products(cell, gates):
    """A step of 6 samples: 4 + 64 weights an output of every gate."""
    x = BFPTensor.from_real(torch.ones(6, 4))
    model = convert(nn.Sequential(nn.Linear(4, 4), cell(4, 64)))
    _, network = survey(model, x, lambda y: mse_loss(y, torch.zeros(y.shape)))
    found = next(layer for layer in network.layers if layer.kind == cell.__name__)
    assert found.operations == found.products == 2 * 6 * gates * 64 * 68
