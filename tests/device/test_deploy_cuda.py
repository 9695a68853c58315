"""Deployed arithmetic on a GPU: the codes of the CPU."""

import copy

import pytest
import torch

from deploy_nets import NETS, make_images, make_net, shifted
from samebits.train.deployed.deploy import calibrate, deployed

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NETS)
def test_codes_equal_those_of_the_cpu(name, seed):
    _, model = make_net(name, seed)
    images = make_images(5, 10, scale=2.0)
    exponents = calibrate(model, [images])
    twin = copy.deepcopy(model).cuda()
    assert calibrate(twin, [images.cuda()]) == exponents
    for used in (exponents, shifted(exponents, seed)):
        codes, exponent = deployed(twin, used).codes(images.cuda())
        expected, same = deployed(model, used).codes(images)
        assert torch.equal(codes.cpu(), expected)
        assert exponent == same
