"""A language model step by step, beyond the length of its rings, and the tokens that it draws."""

from __future__ import annotations

from functools import cache

import torch

from language_nets import CONTEXT, stepwise, tokens_of
from pins.quantization import c_compiler
from pins.registry import Pins, digest, route
from samebits.ir.interpreter import run_steps
from samebits.model import Model
from samebits.verification.backends.pytorch import PyTorch
from samebits.verification.backends.reference import Reference
from samebits.verification.generation import request_of


@cache
def speaking() -> Model:
    return Model("pins", stepwise(depth=1))


def drawn(backend: Reference | PyTorch) -> str:
    """The hash of what follows a prompt."""
    torch.set_num_threads(1)
    request = request_of(speaking(), [1, 2, 3], 3 * CONTEXT, 6, 12, 0.8)
    return digest(backend.generate(speaking(), request))


@route("language-model")
def language_model() -> Pins:
    steps = run_steps(speaking().integer, [tokens_of(3 * CONTEXT, 7)])
    return {
        "steps": digest(*steps),
        "interpreter": drawn(Reference()),
        "torch": drawn(PyTorch()),
    }


@route("language-model-c")
def language_model_in_c() -> Pins:
    return {"c": drawn(c_compiler())}
