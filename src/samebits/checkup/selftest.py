"""Two small computations whose hashes are known: some training steps, and a quantized network.

Their weights and samples are fractions of small integers, so that nothing random and no libm is
behind them. The hashes change only with a meant change of bits.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from samebits.checkup.result import SelfTest, told

if TYPE_CHECKING:
    from torch import Tensor, nn

EXPECTED = {
    "training": "2dc0931754b0b98a2013cce848278e7cd31b7fca5e64def5a2ff62466fadc1c9",
    "inference": "b4cb82b876720a31bb453cc314a58504a26323abecb0d5743299b1b082e0b443",
}
BACKENDS = ("reference", "torch", "c", "onnxruntime-integer")
SAMPLES, SIZE, CLASSES, STEPS = 8, 6, 4, 3
COMPILED = "torch.compile takes a minute or more; SAMEBITS_KERNELS=compiled samebits doctor runs it"


def training(kernels: str) -> str:
    """SHA-256 of the parameters after three steps of a small convolutional network."""
    import torch

    from samebits import kernels as realisations
    from samebits.train import SGD, CrossEntropyLoss, convert, model_input
    from samebits.train.run.checkpoint import parameter_sha256

    with realisations.use(kernels):
        model = convert(_module())
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        images, labels = _images(), torch.arange(SAMPLES) % CLASSES
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss: Any = CrossEntropyLoss()(model(model_input(model, images)), labels)
            loss.backward()
            optimizer.step()
    return parameter_sha256(model.state_dict())


def network() -> Any:
    """The same network quantized, as a user would: import, calibration, lowering."""
    from samebits.api import quantize

    images = _images()
    return quantize(_module(), images.numpy())


def inference(net: Any, backend: str) -> str:
    """SHA-256 of the codes that a backend gives for the samples."""
    (codes,) = net.run(_images().numpy(), backend, codes=True).values()
    return hashlib.sha256(np.ascontiguousarray(codes, np.int8).tobytes()).hexdigest()


def on_kernels(name: str, why: str | None) -> SelfTest:
    """The training steps on one realisation of the kernels; `why`: it cannot be run here."""
    expected = EXPECTED["training"]
    if why is not None:
        return SelfTest("training", name, expected, why=why)
    try:
        return SelfTest("training", name, expected, training(name))
    except Exception as error:  # whatever breaks here is what the examination is after
        return SelfTest("training", name, expected, why=told(error), failed=True)


def on_backends() -> list[SelfTest]:
    """The network on every backend of BACKENDS that can run here."""
    from samebits.verification.registry import backend_named

    expected, tests = EXPECTED["inference"], []
    try:
        net = network()
    except Exception as error:  # as above
        return [SelfTest("inference", "reference", expected, why=told(error), failed=True)]
    for name in BACKENDS:
        try:
            why = backend_named(name).unavailable()
            found = None if why is not None else inference(net, name)
            tests.append(SelfTest("inference", name, expected, found, why))
        except Exception as error:  # as above
            tests.append(SelfTest("inference", name, expected, why=told(error), failed=True))
    return tests


def _module() -> nn.Module:
    """A convolution, ReLU, a linear layer and tanh, of weights k / 64 with |k| <= 30."""
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES), nn.Tanh()
    )
    done = 0
    with torch.no_grad():
        for parameter in model.parameters():
            places = torch.arange(done, done + parameter.numel())
            parameter.copy_(((places * 37 % 61 - 30) / 64).reshape(parameter.shape))
            done += parameter.numel()
    return model


def _images() -> Tensor:
    """[SAMPLES, 1, SIZE, SIZE] of fractions k / 128 with k < 97."""
    import torch

    shape = (SAMPLES, 1, SIZE, SIZE)
    return (torch.arange(SAMPLES * SIZE * SIZE) * 29 % 97 / 128).reshape(shape)
