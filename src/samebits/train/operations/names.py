"""Arguments by the names that PyTorch has for them: `input`, `other`, and `axis` for `dim`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from samebits.train.operations import (
    arrangement,  # noqa: F401 - torch.flip and other arrangements
    attention,  # noqa: F401 - scaled_dot_product_attention
    einsum,  # noqa: F401 - torch.einsum
    transposed,  # noqa: F401 - transposed convolutions
)
from samebits.train.tensor import FUNCTIONS

PLACES = {
    **dict.fromkeys(("input", "tensors"), 0),
    **dict.fromkeys(("other", "mat2", "vec", "tensor", "batch1", "size", "shape"), 1),
    **dict.fromkeys(("dims", "dim0", "axis0", "repeats", "sections", "indices"), 1),
    **dict.fromkeys(("upscale_factor", "downscale_factor"), 1),
    **dict.fromkeys(("dim1", "axis1", "batch2"), 2),
}
"""Arguments by name and place, where a handler has another name for them."""
NUMPY = {"axis": "dim", "keepdims": "keepdim"}


def _named(
    own: set[str], args: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of a call as a handler with its `own` names takes them."""
    given, rest = list(args), {}
    for name, value in sorted(options.items(), key=lambda item: PLACES.get(item[0], len(PLACES))):
        if name not in own and PLACES.get(name) == len(given):
            given.append(value)
        else:
            rest[name if name in own else NUMPY.get(name, name)] = value
    return given, rest


class _Signature(inspect.Signature):
    """The arguments of a handler, by PyTorch's names too."""

    def names(self) -> set[str]:
        """Arguments that a call can name."""
        every = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return {name for name, argument in self.parameters.items() if argument.kind not in every}

    def bind(self, *args: Any, **options: Any) -> inspect.BoundArguments:
        """As its base, of arguments by both names."""
        given, rest = _named(self.names(), args, options)
        return super().bind(*given, **rest)


def by_name(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A handler that takes its arguments by PyTorch's names too."""
    signature = _Signature(list(inspect.signature(handler).parameters.values()))
    own = signature.names()

    @functools.wraps(handler)
    def called(*args: Any, **options: Any) -> Any:
        if not options:
            return handler(*args)
        given, rest = _named(own, args, options)
        return handler(*given, **rest)

    called.__signature__ = signature  # type: ignore[attr-defined]
    return called


FUNCTIONS.update({function: by_name(handler) for function, handler in FUNCTIONS.items()})
