"""Trained models in deployed arithmetic: frozen exponents, exported constants, outputs.

The exported graph runs on the interpreter, in torch and in C, the model in the training framework:
one hash.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from pins.quantization import (
    SAMPLES,
    c_compiler,
    constants,
    sequence_by_interpreter,
    sequences_in_c,
)
from pins.registry import Pins, digest, route
from pins.samples import image_data, sequence_data
from pins.training import IMAGES, transformer
from samebits.data import Dataset
from samebits.model import Model
from samebits.model import load as load_model
from samebits.train.architectures import initialise
from samebits.train.convert import convert
from samebits.train.deployed import deploy
from samebits.train.deployed.export import to_graph
from samebits.train.run.config import TrainConfig
from samebits.train.run.loop import train
from samebits.verification.backends.pytorch import PyTorch
from samebits.verification.backends.reference import Reference
from samebits.verification.backends.training import TrainingBackend
from samebits.verification.inputs import random_codes


@cache
def deployed(arch: str) -> Model:
    """What 8 steps of training leave, with the exponents that the end of a run freezes."""
    data: Dataset = image_data(10, IMAGES, 64, 32)
    if arch == "lstm":
        data = sequence_data(11, (6, 5), 64, 32)
    config = TrainConfig(data="pins", arch=arch, epochs=2, batch=16, lr=0.05, seed=6)
    with tempfile.TemporaryDirectory() as folder:
        train(config, data, Path(folder) / "run")
        return load_model(Path(folder) / "run")


def pins_of(model: Model) -> Pins:
    inputs = random_codes(model.integer, SAMPLES)
    sites = model.deployed.exponents.sites
    return {
        **constants(model.real),
        "exponents": digest([site.exponent for site in sites]),
        "interpreter": digest(*Reference().run(model, inputs)),
        "torch": digest(*PyTorch().run(model, inputs)),
        "training": digest(*TrainingBackend().run(model, inputs)),
    }


@route("deployed-cnn")
def deployed_cnn() -> Pins:
    return pins_of(deployed("cnn"))


@route("deployed-smooth")
def deployed_tables() -> Pins:
    return pins_of(deployed("smooth"))


@route("deployed-resnet8")
def deployed_resnet8() -> Pins:
    return pins_of(deployed("resnet8"))


@route("deployed-cnn-c")
def deployed_cnn_in_c() -> Pins:
    model = deployed("cnn")
    return {"c": digest(*c_compiler().run(model, random_codes(model.integer, SAMPLES)))}


@route("deployed-lstm")
def deployed_lstm() -> Pins:
    model = deployed("lstm")
    return {**pins_of(model), "sequence": sequence_by_interpreter(model)}


@route("deployed-lstm-c")
def deployed_lstm_in_c() -> Pins:
    return sequences_in_c({"lstm": deployed("lstm")})


class Cells(nn.Module):
    """Layers of cells and a head on the last hidden state."""

    def __init__(self, cells: nn.Module) -> None:
        super().__init__()
        self.cells, self.out = cells, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.cells(x)[1][-1])
        return y


@cache
def of_cells(kind: str) -> Model:
    """Weights as they are set at first."""
    made: dict[str, Callable[..., nn.Module]] = {
        "gru": nn.GRU,
        "tanh": nn.RNN,
        "relu": partial(nn.RNN, nonlinearity="relu"),
    }
    module = Cells(made[kind](5, 6, num_layers=2, batch_first=True))
    initialise(module, 6)
    model = convert(module)
    data = sequence_data(11, (6, 5), 64, 32)
    exponents = deploy.calibrate(model, [data.batch("train", torch.arange(16))])
    graph = to_graph(model, exponents, data.input_shape)
    return Model("pins", graph, deployed=deploy.deployed(model, exponents))


CELLS = ("gru", "tanh", "relu")


@route("deployed-cells")
def deployed_cells() -> Pins:
    found = {}
    for kind in CELLS:
        model = of_cells(kind)
        own = {**pins_of(model), "sequence": sequence_by_interpreter(model)}
        found |= {f"{kind}: {name}": value for name, value in own.items()}
    return found


@route("deployed-cells-c")
def deployed_cells_in_c() -> Pins:
    return sequences_in_c({kind: of_cells(kind) for kind in CELLS})


@cache
def transformed() -> Model:
    """Weights as they are set at first: norms, attention, a token and places of its own."""
    module = transformer()
    initialise(module, 6)
    model = convert(module)
    data = image_data(10, IMAGES, 64, 32)
    exponents = deploy.calibrate(model, [data.batch("train", torch.arange(16))])
    graph = to_graph(model, exponents, data.input_shape)
    return Model("pins", graph, deployed=deploy.deployed(model, exponents))


@route("deployed-transformer")
def deployed_transformer() -> Pins:
    return pins_of(transformed())


@route("deployed-transformer-c")
def deployed_transformer_in_c() -> Pins:
    model = transformed()
    return {"c": digest(*c_compiler().run(model, random_codes(model.integer, SAMPLES)))}
