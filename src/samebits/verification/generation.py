"""Text from a language model, token by token, on any backend that can feed tokens back."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

import numpy as np

from samebits import progress
from samebits.codegen.packaging.generator import token_ports
from samebits.errors import InputError
from samebits.ir.interpreter import initial_state
from samebits.model import Model
from samebits.spec.sampling import Sampling, sample
from samebits.verification.registry import backend_named, check_needs, known_backends

Array = np.ndarray[Any, Any]
Run = Callable[[list[Array]], list[Array]]
TOKENS_MAX = 1 << 24  # drawn at once: C counts them in 32 bits


@dataclass(frozen=True)
class Request:
    """The tokens of a prompt, how many to draw after it, and how (docs/spec/sampling.md)."""

    prompt: tuple[int, ...]
    count: int
    sampling: Sampling
    seed: int


@runtime_checkable
class Generator(Protocol):
    """A backend that draws tokens: each becomes the input of the next step."""

    def generate(self, model: Model, request: Request) -> list[int]:
        """The tokens that follow the prompt. `model` is a step graph of a language model."""
        ...


def request_of(
    model: Model,
    prompt: Sequence[int],
    count: int,
    seed: int,
    top_k: int | None,
    temperature: float,
) -> Request:
    """A checked request. top_k: None for all tokens; temperature: 0 for the most likely one.

    Raises InputError for what does not fit the model.
    """
    where = model.source
    _, logits = token_ports(model.integer, where)
    size = logits.size
    prompt = [_whole(token, f"{where}: expected whole numbers as tokens") for token in prompt]
    count = _whole(count, f"{where}: expected a whole number of tokens")
    seed = _whole(seed, f"{where}: expected a whole number as seed")
    wrong = [t for t in prompt if not 0 <= t < size]
    if not prompt or wrong:
        raise InputError(
            f"{where}: expected a prompt of at least one token, each from 0 to {size - 1}, found "
            f"{wrong[0] if wrong else 'none'}"
        )
    counted = 1 <= count <= TOKENS_MAX
    if (top_k is not None and top_k < 1) or not counted or not 0 <= seed < 1 << 64:
        raise InputError(
            f"{where}: expected 1 to {TOKENS_MAX} tokens, at least 1 candidate and a seed from 0 "
            f"to 2**64 - 1, found {count}, {top_k} and {seed}"
        )
    if not 0 <= temperature < float("inf"):
        raise InputError(f"{where}: expected a temperature from 0 on, found {temperature}")
    if logits.quantization is None or logits.quantization.factors:
        raise InputError(f"{where}: expected logits of one scale, found {logits}")
    k = 1 if temperature == 0 else min(top_k or size, size)
    exact = Fraction(str(temperature)) if temperature else Fraction(1)
    sampling = Sampling.of(k, logits.quantization.scale, exact)
    return Request(tuple(prompt), count, sampling, seed)


def _whole(value: Any, expected: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{expected}, found {value!r}") from None


def generated(model: Model, request: Request, run: Run) -> list[int]:
    """The tokens, where `run` computes one step: its inputs, states last, to its outputs."""
    graph = model.integer
    token, _ = token_ports(graph, model.source)
    states = [initial_state(graph, state) for state in graph.states]
    found: list[int] = []
    logits: list[int] = []
    for given in request.prompt:
        logits, states = _step(run, np.full(token.shape, given, token.dtype), states)
    for step in progress.track(range(request.count), "generating", request.count):
        found.append(sample(request.sampling, logits, request.seed, step))
        if step + 1 < request.count:
            logits, states = _step(run, np.full(token.shape, found[-1], token.dtype), states)
    return found


def _step(run: Run, token: Array, states: list[Array]) -> tuple[list[int], list[Array]]:
    logits, *following = run([token, *states])
    return logits.reshape(-1).tolist(), following


def generate(model: Model, request: Request, names: Sequence[str]) -> dict[str, list[int]]:
    """The tokens by backend, in the order of the names.

    Raises InputError for a backend that is not known, cannot run here or draws no tokens.
    """
    chosen = []
    for name in names:
        backend: Any = backend_named(name)
        check_needs(backend, model)
        if not isinstance(backend, Generator):
            able = [n for n in known_backends() if isinstance(backend_named(n), Generator)]
            raise InputError(
                f"backend {name}: expected one that draws tokens, among {', '.join(able)}"
            )
        reason = backend.unavailable()  # type: ignore[attr-defined]
        if reason is not None:
            raise InputError(f"backend {name} cannot run here: {reason}")
        chosen.append((name, backend))
    found = {}
    for name, backend in chosen:
        progress.stage(f"generating on {name}")
        found[name] = backend.generate(model, request)
    return found
