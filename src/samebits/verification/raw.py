"""Raw samples to answers on several backends, compared for equality."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from samebits import progress
from samebits.codegen.packaging.predictor import ports_of
from samebits.codegen.raw import Raw, raw_of
from samebits.errors import InputError, UnsupportedError
from samebits.ir.integer.define import limits
from samebits.model import Model
from samebits.verification.backends.generated_c import GeneratedC
from samebits.verification.compare import Verdict, compare
from samebits.verification.registry import backend_named, check_needs
from samebits.verification.run import cause, reference_of, replaced

Array = np.ndarray[Any, Any]


def raw_form(model: Model) -> Raw:
    """The network as its C takes raw samples. Raises InputError where that has no NAME_predict."""
    found = raw_of(model.integer, model.meaning, model.rate)
    if isinstance(found, Raw):
        return found
    raise InputError(
        f"{model.source}: expected a network whose C answers raw samples, found another: {found}; "
        "docs/guide/predict.md says what it needs"
    )


def verify_raw(
    model: Model,
    raw: Raw,
    samples: Array,
    codes: Array,
    names: Sequence[str],
    strict: bool,
    promised: bool,
) -> tuple[list[Array], list[Verdict]]:
    """The reference's answers, codes of the output and of the input, and a verdict per backend.

    C gets the raw samples and computes all three; the other backends get the input's codes as
    Python makes them.

    samples: [n, size] of binary64 or bytes; codes: of the input, as `predict` makes them
    names, strict, promised: as `verify_model` takes them
    """
    reference, ports = backend_named(reference_of(model)), ports_of(raw)
    progress.stage(f"verifying: {reference.name}")
    expected = _answers(raw, reference.run(model, [codes])[0], codes)
    verdicts = []
    for name in names:
        backend = backend_named(name)
        check_needs(backend, model)
        if backend.name == reference.name:
            continue
        progress.stage(f"verifying: {name}")
        reason = backend.unavailable()
        if reason is None and promised:
            reason = replaced(model, name, names)
        try:
            if reason is not None:
                raise UnsupportedError(reason)
            if isinstance(backend, GeneratedC):
                bits = samples.view(np.int64) if samples.dtype.kind == "f" else samples
                found = backend.answers(model, raw, bits)
            else:
                found = _answers(raw, _codes(raw, backend.run(model, [codes])[0]), codes)
        except (UnsupportedError, InputError) as error:
            if strict:
                raise InputError(f"backend {name} cannot run this model: {error}") from error
            verdicts.append(Verdict(name, skipped=str(error)))
            continue
        verdicts.append(compare(name, ports, expected, found, cause(model, name)))
    return expected, verdicts


def _answers(raw: Raw, outputs: Array, codes: Array) -> list[Array]:
    """0 and the answers of each sample, as the program in C gives them, and the codes."""
    answers = raw.answer(outputs)
    return [np.concatenate([np.zeros_like(answers[:, :1]), answers], axis=1), outputs, codes]


def _codes(raw: Raw, outputs: Array) -> Array:
    """Outputs of a backend that gives reals as the nearest codes."""
    found = raw.output.quantization
    if outputs.dtype.kind != "f" or found is None:
        return outputs
    low, high = limits(raw.output.dtype)
    nearest = np.rint(outputs.astype(np.float64) / float(found.scale)) + found.zero_point
    return np.clip(nearest, low, high).astype(raw.output.dtype)
