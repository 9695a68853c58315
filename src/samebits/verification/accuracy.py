"""Test accuracy of a model or firmware: the class with the largest logit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from samebits.data.dataset import Dataset, Split, shape_text
from samebits.errors import InputError
from samebits.ir import Graph, interpreter
from samebits.model import Model
from samebits.verification.inputs import chunks, joined, quantize_samples

Array = np.ndarray[Any, Any]


def images(data: Dataset, split: Split, count: int | None = None) -> Array:
    """The first `count` images of a split as the network sees them, float32 [n, C, H, W]; of texts
    for language models the tokens, int64 [n, T]."""
    import torch

    labels = data.test_labels if split == "test" else data.train_labels
    total = len(labels) if count is None else min(count, len(labels))
    return data.batch(split, torch.arange(total)).numpy()


def image_codes(model: Model, data: Dataset, count: int | None = None) -> list[Array]:
    """The first `count` test images as codes of the model's input, in whole batches.

    Raises InputError where they do not fit.
    """
    graph = model.integer
    value = graph.values[graph.inputs[0]]
    _check_fit(graph, data, data.language or value.quantization is not None)
    if data.language:
        return [whole_batches(images(data, "test", count), value.shape[0])]
    return [whole_batches(quantize_samples(images(data, "test", count), value), value.shape[0])]


def step_codes(model: Model, data: Dataset, count: int | None = None) -> list[Array]:
    """The test samples as codes of a step graph's input, in whole batches, one array per step.

    Sequences are cut along time, images into rows. Raises InputError where they do not fit.
    """
    graph = model.integer
    own = [graph.values[name] for name in graph.own_inputs]
    shape = own[0].shape[1:] if own else ()
    differing = [i for i, size in enumerate(data.input_shape) if shape[i : i + 1] != (size,)]
    one_axis = len(shape) == len(data.input_shape) and len(differing) <= 1
    if len(own) != 1 or own[0].quantization is None or not one_axis:
        raise _misfit(graph, data)
    axis = differing[0] if differing else len(shape) - 2
    if shape[axis] != 1:
        raise _misfit(graph, data)
    codes = whole_batches(quantize_samples(images(data, "test", count), own[0]), own[0].shape[0])
    return np.split(codes, data.input_shape[axis], axis + 1)


def streamed(
    graph: Graph, steps: Sequence[Array], run: Callable[[list[Array]], list[Array]]
) -> tuple[list[Array], list[Array]]:
    """Run samples through a step graph, step by step from its initial states on.

    Returns the inputs of the steps (for each input of the graph all steps, one after the other) and
    the outputs of the last step without its states.
    """
    batches = len(steps[0]) // graph.values[graph.own_inputs[0]].shape[0]
    states = [
        np.concatenate([interpreter.initial_state(graph, state)] * batches)
        for state in graph.states
    ]
    taken = []
    for codes in steps:
        taken.append([codes, *states])
        outputs = run(taken[-1])
        states = outputs[len(graph.own_outputs) :]
    return joined(taken), outputs[: len(graph.own_outputs)]


def firmware_images(firmware: Model, data: Dataset, count: int | None = None) -> list[Array]:
    """The test images in binary16, flat where the program takes a vector."""
    ports = firmware.interface
    value = ports.values[ports.inputs[0]] if ports.inputs else None
    flat = value is not None and value.shape == (1, math.prod(data.input_shape))
    if not flat:
        _check_fit(ports, data)
    samples = images(data, "test", count).astype(np.float16)
    return [samples.reshape(len(samples), -1) if flat else samples]


def _check_fit(graph: Graph, data: Dataset, quantized: bool = True) -> None:
    values = [graph.values[name] for name in graph.inputs]
    if len(values) == 1 and quantized and values[0].shape[1:] == data.input_shape:
        return
    raise _misfit(graph, data)


def _misfit(graph: Graph, data: Dataset) -> InputError:
    values = [graph.values[name] for name in graph.own_inputs]
    found = ", ".join(f"{v.dtype} {list(v.shape)}" for v in values) or "none"
    step = " of a step" if graph.states else ""
    return InputError(
        f"{data.source}: {data.noun}s {shape_text(data.input_shape)} do not fit the model: "
        f"expected one input of that shape, found {found}{step}; give data of the shape it was "
        "made for"
    )


def float_outputs(graph: Graph, data: Dataset) -> list[Array]:
    """The outputs of a float graph, computed in binary64, for every test image."""
    _check_fit(graph, data)
    value = graph.values[graph.inputs[0]]
    samples = images(data, "test")
    parts = chunks(graph, [whole_batches(samples, value.shape[0])])
    outputs = joined([interpreter.run(graph, part) for part in parts])
    return [output[: len(samples)] for output in outputs]


def whole_batches(samples: Array, batch: int) -> Array:
    """The samples, the last one repeated until they fill whole batches."""
    missing = -len(samples) % batch
    return np.concatenate([samples, np.repeat(samples[-1:], missing, axis=0)])


def correct(outputs: list[Array], data: Dataset) -> int:
    """Number of test images (of texts: places) whose label has the largest logit, the first of
    equal ones.

    Takes outputs of the first images of the test set; the last ones may repeat its last image
    (`whole_batches`). Raises InputError where there are fewer logits than classes, or none for
    every label.
    """
    labels = data.test_labels[: len(outputs[0])].numpy()
    logits = outputs[0][: len(labels)]
    if logits.shape[: labels.ndim] != labels.shape:
        raise InputError(
            f"{data.source}: expected logits [{', '.join(map(str, labels.shape))}, classes] for "
            f"these labels, found {list(logits.shape)}; give a network with logits for each of them"
        )
    logits = logits.reshape(*labels.shape, -1)
    if logits.shape[-1] < data.classes:
        raise InputError(
            f"{data.source}: expected at most {logits.shape[-1]} classes, found {data.classes}"
        )
    return int((logits.argmax(-1) == labels).sum())
