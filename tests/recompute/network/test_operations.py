"""Operations of sub-layers, counted by hand: forward, and backward with both gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from recompute_nets import make
from samebits.recompute.network.operations import multiplies, operations
from samebits.recompute.run.profile import survey
from samebits.train import BFPTensor, convert, mse_loss

functional = nn.functional


def given(*shape):
    return torch.zeros(shape, requires_grad=True)


class Counter(TorchDispatchMode):
    """Counts operations of products, and of all others, as operators run."""

    def __init__(self):
        super().__init__()
        self.products = self.others = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if not func.is_view and packet.__name__ not in ("empty", "empty_like", "detach"):
            count = operations(packet, args, kwargs or {}, result)
            if multiplies(packet):
                self.products += count
            else:
                self.others += count
        return result


def products(run):
    """Operations of products, of the forward and of the backward pass."""
    with Counter() as forward:
        result = run()
    result = result[0] if isinstance(result, tuple) else result
    gradient = torch.zeros_like(result)
    with Counter() as backward:
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


def test_operations_besides_products():
    for run, count in ((torch.relu, 24), (functional.gelu, 72)):
        x = torch.zeros(4, 6)
        with Counter() as counter:
            run(x)
        assert (counter.others, counter.products) == (count, 0)


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
