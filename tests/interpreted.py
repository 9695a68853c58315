"""Triton's interpreter, several times as fast: it prepares its language once, not in every call.

No test of a process that imports this compiles a kernel: those do it in processes of their own.
"""

from __future__ import annotations

import functools
import importlib.util

import numpy as np
import torch

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
