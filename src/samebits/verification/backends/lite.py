"""Runtimes of TensorFlow Lite files, each in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from samebits.errors import UnsupportedError
from samebits.model import Model
from samebits.tflite.peers.child import PACKAGES
from samebits.tflite.peers.network import as_peer
from samebits.tflite.peers.process import computed, missing, version
from samebits.verification.backend import Array, Backend, Factory
from samebits.verification.inputs import step

KEEPS = ("tflm", "litert", "litert-reference")  # those that keep every tensor


class LiteRuntime(Backend):
    """A runtime of TensorFlow Lite files.

    tflm:             TensorFlow Lite Micro, its reference kernels
    litert:           LiteRT with its own kernels, without delegates
    litert-reference: LiteRT with its reference kernels
    litert-xnnpack:   LiteRT as it is by default, with XNNPACK

    It runs models that were read from a .tflite file, and only says who agrees with whom: what it
    computes is its own, and in the meaning `exact` other codes than ours.
    """

    needs = "graph"

    def __init__(self, name: str, work: Path | None = None) -> None:
        self.name, self.work = name, work

    def unavailable(self) -> str | None:
        return missing(self.name)

    def run(self, model: Model, inputs: Sequence[Array]) -> list[Array]:
        return self.results(model, inputs, between=False)[0]

    def note(self, model: Model) -> str:
        """Why its codes may differ from the model's; "" where they are the model's meaning."""
        runtime = None if model.lite is None or model.lite.meaning is None else model.lite.meaning
        if runtime is None or runtime.runtime is None:
            rest = (
                "read the file with --meaning tflite"
                if self.name == "tflm"
                else "no meaning is its"
            )
            return f"{PACKAGES[self.name]} rounds several times; {rest}"
        if self.name != "tflm":
            return "LiteRT is no runtime of the meaning tflite, whose bits are TFLM's"
        found = version("tflm")
        if runtime.runtime.holds(found):
            return ""
        return f"tflite-micro {found} is installed, not {runtime.runtime.package}"

    def results(
        self, model: Model, inputs: Sequence[Array], between: bool
    ) -> tuple[list[Array], dict[str, Array]]:
        """The outputs along axis 0, and tensors between by name [samples, ...], where the runtime
        keeps them."""
        if model.lite is None:
            raise UnsupportedError(
                f"{self.name} runs .tflite files, not {model.source}; write one of it with "
                "samebits.Network.save, or choose another backend"
            )
        graph, net = model.integer, as_peer(model.lite.file)
        values = [graph.values[name] for name in graph.inputs]
        if len(values) != len(net.inputs):
            raise UnsupportedError(
                f"{self.name} takes {len(net.inputs)} inputs of this file, not {len(values)}: read "
                "it with --meaning tflite, or whole"
            )
        runs = len(inputs[0]) // step(values[0])
        given = [
            array.reshape(runs, *net.tensors[number].shape)
            for array, number in zip(inputs, net.inputs, strict=True)
        ]
        inner = net.between if between and self.name in KEEPS else ()
        wanted = list(dict.fromkeys((*net.outputs, *inner)))
        found = computed(self.name, net.data, given, wanted, self.work)
        outputs = []
        for name, number in zip(graph.outputs, net.outputs, strict=True):
            value = graph.values[name]
            made = found[number].astype(value.dtype)
            outputs.append(
                made.reshape(runs * (value.shape[0] if value.shape else 1), *value.shape[1:])
            )
        tensors = {net.tensors[number].name: np.asarray(found[number]) for number in inner}
        return outputs, tensors


BACKENDS: dict[str, Factory] = {name: partial(LiteRuntime, name) for name in PACKAGES}
