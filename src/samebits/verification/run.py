"""A model or firmware through several backends against what defines its bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.model import Firmware, Subject
from samebits.verification.backend import backend_named, check_subject
from samebits.verification.compare import Verdict, compare

Array = np.ndarray[Any, Any]
DEFAULT_BACKENDS = ("torch", "c", "onnxruntime")
FIRMWARE_BACKENDS = ("concordant-torch", "concordant-onnx")
BOARDS = ("cortex-m0", "cortex-m3", "cortex-m55")


def verify_model(
    model: Subject,
    inputs: Sequence[Array],
    names: Sequence[str],
    work: Path | None = None,
    started: Callable[[str], None] = lambda name: None,
) -> tuple[list[Array], list[Verdict]]:
    """The reference outputs and one verdict per backend; a backend that cannot run is `skipped`.

    The reference of firmware is the simulator. InputError for a backend of the other kind.
    """
    reference = backend_named("npu" if isinstance(model, Firmware) else "reference")
    backends = [backend_named(name, work) for name in names if name != reference.name]
    for backend in backends:
        check_subject(backend, model)
    started(reference.name)
    expected = reference.run(model, inputs)
    verdicts = []
    for backend in backends:
        name = backend.name
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
        verdicts.append(compare(name, model.interface, expected, found, cause(model, name)))
    return expected, verdicts


def default_backends(model: Subject) -> tuple[str, ...]:
    """What `samebits verify` compares."""
    return FIRMWARE_BACKENDS if isinstance(model, Firmware) else DEFAULT_BACKENDS


def cause(model: Subject, name: str) -> str:
    """Why a runtime of binary32 kernels may differ on this model, or "" if it provably may not.

    That proof is for runtimes that compute the graph as written; optimizations replace it.
    """
    if isinstance(model, Firmware):
        return ""
    if not name.startswith("onnxruntime") or name.endswith("integer"):
        return ""
    from samebits.onnx import binary32_exact, exact_form

    reasons = binary32_exact(model.real if name.endswith("float") else exact_form(model.real))
    if reasons:
        more = f" (and {len(reasons) - 1} more nodes)" if len(reasons) > 1 else ""
        return f"{reasons[0]}{more}"
    return "" if name == "onnxruntime" else "its optimizations replace the graph by other kernels"
