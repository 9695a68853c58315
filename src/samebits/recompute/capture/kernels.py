"""Operators that eager PyTorch runs and a captured graph would not, made the same while capturing.

AOTAutograd puts Python of its own in the place of a few composite operators, with other bits:

- `dropout` becomes `native_dropout`, which scales by another product, and a functional `bernoulli`
  draws in contiguous order, not in that of the tensor's memory. Eager's own steps become one
  functional operator here, `samebits::dropout`.
- `lstm`, `gru` and `rnn_*` lose the dropout between their layers. Without their Python, what eager
  runs in C++ is captured.

The Python of `native_batch_norm` has to stay: the schema of the C++ kernel hides what it writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch._decomp.decompositions  # registers the replacements, so that they can be taken away
from torch import Tensor
from torch._C import DispatchKey

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)

_library = torch.library.Library("samebits", "FRAGMENT")
_library.define(
    "dropout(Tensor x, float p) -> (Tensor, Tensor)",
    tags=(torch.Tag.nondeterministic_seeded, torch.Tag.pt2_compliant_tag),
)


def _drop(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Eager's dropout, step by step, and the factors that its gradient reads."""
    factors = torch.empty_like(x).bernoulli_(1 - p)
    if p < 1:
        factors = factors.div_(1 - p)
    return x * factors, factors


def _keep_factors(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])


for _key in ("CPU", "CUDA"):
    _library.impl("dropout", _drop, _key)
torch.library.register_fake(
    "samebits::dropout", lambda x, p: (torch.empty_like(x), torch.empty_like(x)), lib=_library
)
torch.library.register_autograd(
    "samebits::dropout",
    lambda ctx, gradient, _: (gradient * ctx.saved_tensors[0], None),
    setup_context=_keep_factors,
    lib=_library,
)


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    if not (train and p != 0 and x.numel()):
        return x
    out: Tensor = torch.ops.samebits.dropout(x, p)[0]
    return out


@contextlib.contextmanager
def as_eager() -> Iterator[None]:
    """A with block in which captured operators are those that eager runs.

    The registrations of the process change meanwhile: one block at a time (`settled.tracing`).
    """
    dropout = torch.ops.aten.dropout.default
    packets = [getattr(torch.ops.aten, name) for name in _RECURRENT]
    recurrent = [getattr(p, name) for p in packets for name in p.overloads()]
    changed = [dropout, *recurrent]
    before = [dict(op.py_kernels) for op in changed]
    for op in recurrent:
        for key in _KEYS:
            op.py_kernels.pop(key, None)
    for key in _KEYS:
        dropout.py_kernels[key] = _dropout
    try:
        for op in changed:
            op._dispatch_cache.clear()
        yield
    finally:
        for op, kernels in zip(changed, before, strict=True):
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


@contextlib.contextmanager
def training() -> Iterator[None]:
    """A with block in which oneDNN's recurrent layers compute for training, as under autograd."""
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        yield


# --- random operators, a second time --------------------------------------------------------------


def with_state(op: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The results of a random operator, and the generator's state before it."""
    state = _generator(args, kwargs)[0]()
    out = op(*args, **kwargs)
    return (*(out if isinstance(out, tuple | list) else (out,)), state)


def replayed(op: Any, state: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The results of a random operator from a state, which leaves the generator where it is."""
    get, put = _generator(args, kwargs)
    before = get()
    put(state)
    try:
        return op(*args, **kwargs)
    finally:
        put(before)


def _generator(args: Any, kwargs: Any) -> tuple[Callable[[], Tensor], Callable[[Tensor], None]]:
    """How to read and to set the generator that an operator draws from."""
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    device = tensors[0].device if tensors else torch.device(kwargs.get("device") or "cpu")
    if device.type != "cuda":
        return torch.get_rng_state, torch.set_rng_state
    return partial(torch.cuda.get_rng_state, device), lambda s: torch.cuda.set_rng_state(s, device)
