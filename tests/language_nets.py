"""Small language models, as the graphs that training exports, and what generates from them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from samebits.ir import Graph
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.rewrite import simplify
from samebits.ir.steps import step_graph
from samebits.train import convert
from samebits.train.architectures import gpt, initialise
from samebits.train.deployed.deploy import calibrate
from samebits.train.deployed.export import to_graph

VOCABULARY, CONTEXT = 20, 8
Array = np.ndarray[Any, Any]


@functools.cache
def language_model(context: int = CONTEXT, width: int = 64, depth: int = 2) -> Graph:
    """A language model in BFP, not trained, on whole sequences, in QDQ form."""
    module = gpt(VOCABULARY, context, width=width, depth=depth)
    initialise(module, 1)
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        module.places.normal_(generator=draws)
    model = convert(module)
    tokens = torch.randint(0, VOCABULARY, (8, context), generator=draws)
    return to_graph(model, calibrate(model, [tokens]), (context,))


@functools.cache
def stepwise(context: int = CONTEXT, width: int = 64, depth: int = 2) -> Graph:
    """Its integer step graph."""
    return lower_graph(simplify(step_graph(language_model(context, width, depth))))


def tokens_of(steps: int, seed: int = 0) -> Array:
    """Random tokens, [steps, 1, 1]."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, (steps, 1, 1))
