"""Results that a layer of torch has and its twin has not: any use of them is an error."""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import tree_leaves

from samebits.errors import UnsupportedError


class Absent:
    """Stands where a result would be; `_text` is the error of any use."""

    _text = ""

    def __init__(self, text: str) -> None:
        self._text = text

    def _refused(self, *given: Any) -> Any:
        raise UnsupportedError(self._text)

    def __getattr__(self, name: str) -> Any:
        """Raises UnsupportedError, but for the names by which copy and pickle ask."""
        if name.startswith("__"):
            raise AttributeError(name)
        self._refused()

    __getitem__ = __iter__ = __len__ = __bool__ = __neg__ = __abs__ = __float__ = _refused
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refused
    __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = __pow__ = __rpow__ = _refused
    __lt__ = __le__ = __gt__ = __ge__ = _refused

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The same error where a function of torch takes one, alone or beside tensors."""
        found = (v for v in tree_leaves((args, kwargs)) if isinstance(v, cls))
        return next(found)._refused()
