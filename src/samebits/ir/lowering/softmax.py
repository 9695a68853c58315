"""Softmax, or its logarithm: one integer operator. docs/spec/graph.md 3.2 and 5."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.integer.define import limits
from samebits.ir.integer.normalize import FRACTION_BITS, LARGEST_SHIFT
from samebits.ir.integer.reduce import LARGEST_LEVEL, LARGEST_STEP
from samebits.ir.lowering.states import Codes, CodeTarget, LoweringBuilder, Softmax
from samebits.spec.formats import round_binary32, round_real
from samebits.tables.expression import Variable, apply
from samebits.tables.interval import CodeRange
from samebits.tables.transfer import exp_table, transfer_table

_LOGARITHM = apply("Log", Variable())


def operands(
    e: LoweringBuilder, x: Softmax, to: CodeTarget
) -> tuple[str, list[str], dict[str, Any]]:
    """The operator that makes the codes of a target, its inputs and attributes: powers of e from a
    table, and one quotient per element, or their logarithm.

    Raises UnsupportedError as `log_factors`.
    """
    low, high = limits(e.dtype(x.source.name))
    order = x.source.last(x.axis)
    powers = np.array(exp_table(x.unit, high - low + 1), np.int32)
    inputs = [e.arranged(x.source, order), e.constant(f"{to.name}.exp", powers)]
    attributes = {"zero": to.zero, "dtype": to.dtype, **to.ends(x)}
    if x.logarithm:
        return "log_softmax", inputs, attributes | log_factors(x.unit, to.scale)
    if isinstance(x.kept, Codes):
        inputs.append(e.arranged(x.kept, order))
    elif x.kept is not None:
        inputs.append(e.constant(f"{to.name}.mask", x.kept.transpose(order).astype(np.uint8)))
    return "softmax", inputs, attributes | {"ratio": round_binary32(1 / to.scale)}


def log_factors(unit: Fraction, scale: Fraction) -> dict[str, int]:
    """The m, b and shift of log_softmax: a distance of one code, and ln 2 over 2**24, times the
    largest power of two for which both are within their bounds.

    Raises UnsupportedError where the output's scale is too fine for one.
    """
    for shift in range(LARGEST_SHIFT, 0, -1):
        step = round_real(unit / scale * 2**shift)
        fine = CodeRange(scale * Fraction(2) ** (FRACTION_BITS - shift), 0, 0, LARGEST_LEVEL + 1)
        (level,) = transfer_table(_LOGARITHM, CodeRange(Fraction(1), 0, 2, 2), fine).codes
        if step <= LARGEST_STEP and level <= LARGEST_LEVEL:
            return {"m": step, "b": level, "shift": shift}
    raise UnsupportedError(
        f"expected a scale of the logarithms above 2**-44 of the scale of the scores, found "
        f"{float(scale):.3g} and {float(unit):.3g}; quantize the output with a larger scale"
    )
