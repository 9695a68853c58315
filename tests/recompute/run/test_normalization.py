import pytest
import torch
from torch import nn

from samebits.recompute.run.normalization import normalize_again

SHAPES = [(8, 5), (4, 5, 9), (8, 5, 8, 8), (3, 5, 3, 7), (2, 5, 2, 3, 4), (16, 16, 32, 32)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_the_statistics_give_the_bits_of_the_first_computation(shape, affine, layout):
    """Deviations from 1e-4 to 1e3, weights and biases of any sign."""
    channels = shape[1]
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    for seed in range(20):
        torch.manual_seed(seed)
        each = (1, channels) + (1,) * (len(shape) - 2)
        deviations = 10 ** torch.empty(each).uniform_(-4, 3)
        x = torch.randn(shape) * deviations + 10 * torch.randn(each)
        if layout == "channels last" and len(shape) == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        module = kind(channels, affine=affine)
        if affine:
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
        y = module(x.requires_grad_())
        with torch.no_grad():
            again = normalize_again(module, x, y.grad_fn)
        assert again is not None
        differ = (again != y).nonzero()
        assert len(differ) == 0, (seed, len(differ), differ[:5].tolist())


def test_what_is_no_plain_batch_norm():
    x = torch.randn(4, 3, requires_grad=True)
    module = nn.BatchNorm1d(3)
    assert normalize_again(nn.LayerNorm(3), x, module(x).grad_fn) is None
    assert normalize_again(module, x, (x + 1).grad_fn) is None
    double = module.double()
    assert normalize_again(double, x.double(), double(x.double()).grad_fn) is None
