"""A model through several backends against the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.verify.backend import backend_named
from samebits.verify.compare import Verdict, compare
from samebits.verify.model import Model

Array = np.ndarray[Any, Any]
DEFAULT_BACKENDS = ("torch", "c", "onnxruntime")
BOARDS = ("cortex-m0", "cortex-m3", "cortex-m55")


def verify_model(
    model: Model,
    inputs: Sequence[Array],
    names: Sequence[str],
    work: Path | None = None,
    started: Callable[[str], None] = lambda name: None,
) -> tuple[list[Array], list[Verdict]]:
    """The reference outputs and one verdict per backend; a backend that cannot run is `skipped`."""
    reference = backend_named("reference")
    started(reference.name)
    expected = reference.run(model, inputs)
    verdicts = []
    for name in names:
        if name == reference.name:
            continue
        backend = backend_named(name, work)
        started(name)
        reason = backend.unavailable()
        if reason is not None:
            verdicts.append(Verdict(name, skipped=reason))
            continue
        try:
            found = backend.run(model, inputs)
        except (UnsupportedError, InputError) as error:
            verdicts.append(Verdict(name, skipped=str(error)))
            continue
        verdicts.append(compare(name, model.integer, expected, found, cause(model, name)))
    return expected, verdicts


def cause(model: Model, name: str) -> str:
    """Why a runtime of binary32 kernels may differ on this model, or "" if it provably may not.

    That proof is for runtimes that compute the graph as written; optimizations replace it.
    """
    if not name.startswith("onnxruntime") or name.endswith("integer"):
        return ""
    from samebits.onnx import binary32_exact, exact_form

    reasons = binary32_exact(model.real if name.endswith("float") else exact_form(model.real))
    if reasons:
        more = f" (and {len(reasons) - 1} more nodes)" if len(reasons) > 1 else ""
        return f"{reasons[0]}{more}"
    return "" if name == "onnxruntime" else "its optimizations replace the graph by other kernels"
