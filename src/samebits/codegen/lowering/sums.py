"""Fully connected layers whose sums stay sums: what recurrent steps add before they round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from samebits.codegen.lowering.calls import Array, Data, ValueCalls
from samebits.codegen.lowering.conv import wrapped
from samebits.codegen.lowering.rescale import STORE, TYPES, fits
from samebits.codegen.lowering.site import Site
from samebits.ir.integer.define import limits

STEP = 16  # codes that a vector multiplies


def sums_entry(site: Site, w: Array, b: Array) -> ValueCalls | None:
    """The call of csrc/inference/linear_sums.c for int8 codes and weights [O, K] whose sums are
    stored in 32 bits; None for others, and where memory does not count most."""
    x, rescale = site.input(0), site.rescale.fields
    stored = rescale["form"] == STORE and rescale["type"] == TYPES["int32"]
    small = fits(int(w.min()), int(w.max()), limits("int8"))
    if not (site.context.cpu.small and x.dtype == "int8" and stored and small and site.narrow):
        return None
    outputs, depth = w.shape
    padded = -(-depth // STEP) * STEP
    weights = np.zeros((outputs, padded), np.int8)
    weights[:, :depth] = w
    fields = {
        "rows": x.size // depth,
        "depth": depth,
        "padded": padded,
        "outputs": outputs,
        "weights": Data(weights.reshape(-1)),
        "bias": Data(wrapped(b.astype(object), 32)),
    }
    call = site.call("linear_sums", "linear_sums", fields)
    return site.entry(replace(call, scratch=3 * padded))  # a row of codes, and their halfwords
