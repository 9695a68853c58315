"""BFP networks run eagerly: what compiles or traces them is told so in one sentence."""

from __future__ import annotations

import torch

from samebits.errors import UnsupportedError
from samebits.settled import is_traced

WORDS = (
    "BFP networks run eagerly, in kernels of their own: expected a call of the converted model "
    "itself, found one under {}; leave that out (SAMEBITS_KERNELS=compiled compiles the kernels)"
)
_COMPILED = WORDS.format("torch.compile or torch.export")


def require_eager() -> None:
    """Raises UnsupportedError where torch compiles or traces what calls this."""
    if is_traced():
        _refuse_compiled()
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        raise UnsupportedError(WORDS.format("torch.jit.trace"))


def _refuse_compiled() -> None:
    """An error that Dynamo does not trace: compiled code raises it when it runs."""
    raise UnsupportedError(_COMPILED)


# What torch.compiler.disable would set, which imports Dynamo: a third of the time of an import.
_refuse_compiled._torchdynamo_disable = True  # type: ignore[attr-defined]
_refuse_compiled._torchdynamo_disable_msg = _COMPILED  # type: ignore[attr-defined]
