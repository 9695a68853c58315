"""Whole steps on the kernels in Triton, by the interpreter: the CPU's bits, and nothing read."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import interpreted
from samebits import kernels
from samebits.numerics import philox
from samebits.train import SGD, convert, recording, whole
from samebits.train.architectures import initialise
from samebits.train.run.checkpoint import parameter_sha256

if interpreted.MISSING:
    pytest.skip(interpreted.MISSING, allow_module_level=True)

NETS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)), (6,)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(4, 5, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3),
        ),
        (2, 6, 6),
    ),
}  # fmt: skip


@contextlib.contextmanager
def counted():
    """Names of what reads tensors inside a with block, and so would wait for a device."""
    found = list[str]()

    def watched(name):
        plain = getattr(torch.Tensor, name)

        def read(*arguments, **options):
            found.append(name)
            return plain(*arguments, **options)

        return read

    with pytest.MonkeyPatch.context() as patch:
        for name in ("item", "cpu", "tolist", "__bool__", "nonzero", "numpy", "__int__"):
            patch.setattr(torch.Tensor, name, watched(name))
        yield found


def trained(net: str, realisation: str, steps: int = 3) -> tuple[str, list[str]]:
    """SHA-256 of the state after steps of SGD, and what was read on the way in the last one."""
    make, shape = NETS[net]
    interpreted.realisation()
    with kernels.use(realisation):
        model = make()
        initialise(model, 3)
        twin = convert(model)
        optimizer = SGD(twin.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
        batch = 4
        count = batch * torch.Size(shape).numel()
        images = (philox.words(count, (1, 2)).double() * 2.0**-31 - 1.0).float()
        images, target = images.view(batch, *shape), torch.arange(batch) % 3
        twin.train()
        taken = whole.Taken(8, False)
        graph = recording.record(twin, whole.BFPTensor.from_real(images))
        for _ in range(steps):
            weights = [p.value for p in graph.parameters]
            with counted() as found:
                done = whole._computed(graph, (images, target), weights, taken, 1.0)
                for update in done.updates:
                    update.apply()
                for p, g in zip(graph.parameters, done.gradients, strict=True):
                    p.grad = None if g is None else whole.BFPTensor.of(g)
                optimizer.step()
        kernels.check(torch.device("cpu"))
        return parameter_sha256(twin.state_dict()), found


@pytest.mark.parametrize("net", NETS)
def test_steps_equal_the_cpu(net):
    assert trained(net, "triton")[0] == trained(net, "native")[0]


@pytest.mark.parametrize("net", NETS)
def test_a_step_reads_nothing(net):
    assert trained(net, "triton")[1] == []
