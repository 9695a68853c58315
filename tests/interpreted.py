"""Triton's interpreter, several times as fast: it prepares its language once, not in every call.

No test of a process that imports this compiles a kernel: those do it in processes of their own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

MISSING = "" if importlib.util.find_spec("triton") else "triton is not installed"


class Kept:
    """In place of what undoes the preparation."""

    def restore(self):
        pass


@functools.cache
def realisation():
    """The kernels in Triton by its interpreter."""
    from triton.runtime import interpreter

    from samebits.kernels.triton.realisation import Triton

    prepare = interpreter._patch_lang

    @functools.cache
    def once():
        import triton.language

        from samebits.kernels.triton import integers

        for function in (integers.rne, triton.language.zeros):  # each sees another of its modules
            prepare(function.fn)

    def prepared(fn):
        once()
        return Kept()

    interpreter._patch_lang = prepared
    interpreter.InterpretedFunction.__call__ = lambda self, *a, **k: self.rewrite()(*a, **k)
    return Triton


def is_one(k):
    """Whether kernels are those that the interpreter runs."""
    return type(k).__name__ == "Checked"


@functools.cache
def checked():
    """The same, whose range errors are raised by the operation that finds them."""
    kind = realisation()
    from samebits.kernels.triton import numbers

    def watched(name):
        @functools.wraps(getattr(kind, name))
        def call(*arguments, **options):
            with np.errstate(all="ignore"):  # of what the interpreter computes with it
                found = getattr(kind, name)(*arguments, **options)
            numbers.check(torch.device("cpu"))
            return found

        return call

    own = {name: watched(name) for name in dir(kind) if name[0] != "_"}
    return type("Checked", (kind,), own)()


READS = ("item", "cpu", "tolist", "__bool__", "nonzero", "numpy", "__int__", "__float__")
LAUNCH = "launch"


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Launches of kernels and names of what reads tensors, and so would wait for a device, in the
    order in which they come inside a with block."""
    from triton.runtime.interpreter import GridExecutor

    found = list[str]()

    def noted(what: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            found.append(what)
            return plain(*arguments, **options)

        return call

    with contextlib.ExitStack() as patches:
        for name in READS:
            own = noted(name, getattr(torch.Tensor, name))
            patches.enter_context(mock.patch.object(torch.Tensor, name, own))
        launch = noted(LAUNCH, GridExecutor.__call__)
        patches.enter_context(mock.patch.object(GridExecutor, "__call__", launch))
        yield found


def waits(found: list[str]) -> list[str]:
    """What is read between the first launch and the last."""
    last = len(found) - found[::-1].index(LAUNCH)
    return [name for name in found[found.index(LAUNCH) : last] if name != LAUNCH]


class Recorded(TorchDispatchMode):
    """All that a device would be given inside a with block, in order, to be done again.

    The stand-in of a CUDA graph: the same launches, by the same operands, on the same memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.acts: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self.facts: list[str] = []  # of each: its name, its grid, its constants

    def __enter__(self) -> Recorded:
        from triton.runtime.interpreter import GridExecutor

        self._inside = False

        def launched(executor: Any, *arguments: Any, **options: Any) -> None:
            self.acts.append((executor, arguments, options, None))
            self._note(executor.fn.__name__, executor.grid, arguments, options)
            self._inside, plain = True, self._patch.temp_original
            try:
                plain(executor, *arguments, **options)
            finally:
                self._inside = False

        self._patch = mock.patch.object(GridExecutor, "__call__", launched)
        self._patch.start()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patch.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **kwargs or {})
        if not self._inside and not any(name in str(func) for name in ("detach", "profiler")):
            self.acts.append((func, args, kwargs or {}, found))
            self._note(func, args, kwargs)
        return found

    def _note(self, *what: Any) -> None:
        def fact(v: Any) -> Any:
            if isinstance(v, torch.Tensor):
                return str(v.dtype), tuple(v.shape), v.stride()
            return v

        self.facts.append(str(tree_map(fact, what)))

    def replay(self) -> None:
        """Do all of it again."""
        for act, arguments, options, found in self.acts:
            again = act(*arguments, **options)
            if isinstance(found, torch.Tensor) and again.data_ptr() != found.data_ptr():
                found.copy_(again)
            elif isinstance(found, tuple | list):
                for old, new in zip(found, again, strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


def captured(act: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """In the place of `train.captured.cuda_graph`. What is recorded runs, and is undone by hand:
    so the first replay is left out."""
    with Recorded() as recorded:
        found = act()
    replays = iter([lambda: None])
    return lambda: next(replays, recorded.replay)(), found
