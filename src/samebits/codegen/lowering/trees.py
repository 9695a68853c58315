"""Decision trees: their tables as csrc/inference/trees.c walks them."""

from __future__ import annotations

import numpy as np

from samebits.codegen.lowering.calls import Array, Data, ValueCalls
from samebits.codegen.lowering.rescale import TYPES
from samebits.codegen.lowering.site import Site
from samebits.errors import UnsupportedError
from samebits.ir.integer.define import limits

LARGEST_SHORT = 1 << 16  # features, and references of two bytes


def tree_ensemble(site: Site) -> ValueCalls:
    """Decision trees, their tables in the narrowest types that hold them."""
    x = site.input(0)
    roots, features, thresholds, yes, no, targets, weights = (
        site.required(index) for index in range(1, 8)
    )
    if x.shape[1] > LARGEST_SHORT:
        raise UnsupportedError(
            f"{site.where}: expected at most {LARGEST_SHORT} features, found {x.shape[1]}"
        )
    low, high = limits(x.dtype)
    links = np.stack([np.where(thresholds < low, no, yes), no], 1)  # no code is below `low`
    wide = len(features) + len(targets) > LARGEST_SHORT
    link, start = ("int32" if wide else "uint16"), _narrowest(targets)
    fields = {
        "rows": x.shape[0],
        "features": x.shape[1],
        "targets": site.a["targets"],
        "trees": len(roots),
        "branches": len(features),
        "width": weights.shape[1],
        "roots": Data(roots.astype(link)),
        "links": Data(links.astype(link)),
        "feature": Data(features.astype(np.uint16)),
        "thresholds": Data(thresholds.clip(low, high).astype(x.dtype)),
        "starts": Data(targets.astype(start)),
        "weights": Data(weights.astype(_narrowest(weights))),
        "type": TYPES[x.dtype],
        "link_type": TYPES[link],
        "start_type": TYPES[start],
        "weight_type": TYPES[_narrowest(weights)],
        "rescale": site.rescale,
    }
    return site.entry(site.call("tree_ensemble", "trees", fields))


def _narrowest(array: Array) -> str:
    """The first of TYPES that holds all numbers of an array."""
    low, high = int(array.min()), int(array.max())
    return next(name for name in TYPES if limits(name)[0] <= low and high <= limits(name)[1])
