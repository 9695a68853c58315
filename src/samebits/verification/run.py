"""A model or firmware through several backends against what defines its bits."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from samebits import progress
from samebits.errors import InputError, UnsupportedError
from samebits.ir import interpreter
from samebits.model import Model
from samebits.quantization import samples_of
from samebits.verification.backend import Between
from samebits.verification.backends.onnxruntime import pairs_saturate
from samebits.verification.compare import Verdict, compare
from samebits.verification.inputs import chunks, given_arrays, joined, name_of
from samebits.verification.registry import backend_named, check_needs, known_backends

Array = np.ndarray[Any, Any]
DEFAULT_BACKENDS = ("torch", "c", "onnxruntime")
IN_ITS_PLACE = {"onnxruntime": "onnxruntime-integer"}
"""Stands for a backend, and has the bits of any model, where that one may differ."""
FIRMWARE_BACKENDS = ("concordant-torch", "concordant-onnx")
BOARDS = ("cortex-m0", "cortex-m3", "cortex-m55")


def run_float(model: Model, samples: Any) -> dict[str, Array]:
    """The outputs of a float network in binary64, by name. samples: as `Network.run` takes them."""
    graph = model.real
    source = name_of(samples) or "samples"
    given = samples_of(given_arrays(samples, graph, model), graph, source)
    found = [
        interpreter.run(graph, [sample[name] for name in graph.inputs])
        for sample in progress.track(given, "computing", len(given))
    ]
    return dict(zip(graph.outputs, joined(found), strict=True))


def verify_model(
    model: Model,
    inputs: Sequence[Array],
    names: Sequence[str],
    work: Path | None = None,
    strict: bool = False,
    promised: bool = False,
) -> tuple[list[Array], list[Verdict]]:
    """The reference outputs and one verdict per backend; a backend that cannot run is `skipped`.

    names:  of backends; the reference among them is not compared with itself
    work:   a folder for what backends build; None for a temporary one
    strict: a backend that cannot run, here or this model, is an InputError
    promised: a backend that may differ on this model is skipped too, if another takes its place

    Raises InputError for a name that is unknown, a backend of the other kind, or a model that has
    no integer form.
    """
    reference = backend_named(reference_of(model))
    backends = [backend_named(name, work) for name in names if name != reference.name]
    reasons = []
    for backend in backends:
        check_needs(backend, model)
        reasons.append(reason := backend.unavailable())
        if reason is not None and strict:
            raise InputError(
                f"backend {backend.name} cannot run here: {reason}; leave it out, or give "
                "--available to compare those that can"
            )
    progress.stage(f"verifying: {reference.name}")
    expected = reference.run(model, inputs)
    verdicts: list[Verdict] = []
    inner = _Inner(model, inputs)
    for backend, reason in zip(backends, reasons, strict=True):
        name = backend.name
        progress.stage(f"verifying: {name}")
        if reason is None and promised:
            reason = replaced(model, name, names)
        if reason is not None:
            verdicts.append(Verdict(name, skipped=reason))
            continue
        tensors: dict[str, Array] = {}
        note = cause(model, name)
        try:
            if isinstance(backend, Between):
                found, tensors = backend.results(model, inputs, between=True)
                note = backend.note(model)
            else:
                found = backend.run(model, inputs)
        except (UnsupportedError, InputError) as error:
            if strict:
                raise InputError(f"backend {name} cannot run this model: {error}") from error
            verdicts.append(Verdict(name, skipped=str(error)))
            continue
        verdict = compare(name, model.interface, expected, found, note)
        verdicts.append(replace(verdict, between=inner.compared(tensors)))
    return expected, verdicts


class _Inner:
    """The values between inputs and outputs, computed once by the interpreter where one asks."""

    def __init__(self, model: Model, inputs: Sequence[Array]) -> None:
        self.model, self.inputs = model, inputs

    @cached_property
    def values(self) -> list[dict[str, Array]]:
        graph = self.model.integer
        return [interpreter.trace(graph, part) for part in chunks(graph, self.inputs)]

    def compared(self, tensors: Mapping[str, Array]) -> tuple[int, int, int]:
        """(codes that differ, codes compared, tensors) of those that the graph has by name."""
        differing = total = count = 0
        own = self.values[0] if tensors else {}
        for name, array in tensors.items():
            if name not in own or own[name].size != array[0].size:
                continue
            count += 1
            for found, values in zip(array, self.values, strict=True):
                differing += int((found.reshape(-1) != values[name].reshape(-1)).sum())
                total += found.size
        return differing, total, count


def replaced(model: Model, name: str, names: Sequence[str]) -> str | None:
    """Why another backend of `names` stands for one that may differ on this model; else None."""
    instead = IN_ITS_PLACE.get(name)
    if instead not in names or not (why := cause(model, name)):
        return None
    return (
        f"{instead} stands for it, since it computes in binary32 and may differ: {why}; give "
        f"--backends {name} to count the differences"
    )


def reference_of(model: Model) -> str:
    """The backend that defines a model's bits: the interpreter, or for firmware the simulator."""
    return "reference" if model.firmware is None else "npu"


def chosen_backends(
    model: Model, names: Sequence[str] | None, available: bool
) -> tuple[tuple[str, ...], bool]:
    """The backends to compare, and whether each of them must be able to run.

    names:     those asked for, which must; None: the usual ones of this kind of model, and where
               one of them may differ what stands in its place
    available: every backend of this kind that can run here, or those of `names` that can

    Raises InputError for an unknown name.
    """
    if names is not None:
        for name in names:
            backend_named(name)
        return tuple(names), not available
    if not available:
        if model.firmware is not None:
            return FIRMWARE_BACKENDS, False
        if model.real.integer and model.real.nodes:  # ONNX in QDQ form cannot say it
            return tuple(IN_ITS_PLACE.get(name, name) for name in DEFAULT_BACKENDS), False
        differing = [name for name in DEFAULT_BACKENDS if cause(model, name)]
        others = [IN_ITS_PLACE[name] for name in differing]
        return (*DEFAULT_BACKENDS, *others), False
    found = []
    for name in known_backends():
        with contextlib.suppress(InputError):  # of another kind, or of a broken package
            backend = backend_named(name)
            check_needs(backend, model)
            if backend.unavailable() is None:
                found.append(name)
    return tuple(found), False


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
    if name == "onnxruntime":
        return ""
    if pairs_saturate():
        return "its 8-bit kernels saturate sums of two products on this processor (no VNNI)"
    return "its optimizations replace the graph by other kernels"
