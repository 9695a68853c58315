"""Quotients, roots, scores and interpolation: divide, root, log_softmax, top_k and resample."""

from __future__ import annotations

import math

from samebits.codegen.lowering.calls import Data, ValueCalls
from samebits.codegen.lowering.conv import wrapped
from samebits.codegen.lowering.rescale import TYPES
from samebits.codegen.lowering.shapes import broadcast_strides, collapsed, contiguous, shape_struct
from samebits.codegen.lowering.site import Site
from samebits.errors import UnsupportedError


def divide(site: Site) -> ValueCalls:
    """Quotients of two broadcast tensors, element by element. UnsupportedError where a product
    might not fit in 62 bits."""
    values = [site.input(0), site.input(1)]
    strides = [broadcast_strides(v.shape, site.shape) for v in values]
    sizes, steps = collapsed(site.shape, [contiguous(site.shape), *strides], site.where)
    numerator, denominator = site.a["ratio"].as_integer_ratio()
    ends = [site.context.bounds[v.name].hull for v in values]
    reach = [max(-end.low[0], end.high[0], 1) for end in ends]
    if max(reach[0] * numerator, reach[1] * denominator) >= 1 << 61:
        raise UnsupportedError(
            f"{site.where}: expected products below 2**61, found the ratio {site.a['ratio']} of "
            f"numbers up to {reach[0]} and {reach[1]}; use scales nearer to one another"
        )
    fields = {
        "shape": shape_struct(sizes),
        "a_strides": tuple(steps[1]),
        "b_strides": tuple(steps[2]),
        "numerator": numerator,
        "denominator": denominator,
        **{key: site.a[key] for key in ("zero", "low", "high")},
        "a_type": TYPES[values[0].dtype],
        "b_type": TYPES[values[1].dtype],
        "out_type": TYPES[site.a["dtype"]],
    }
    site.bounded("zero")
    return site.entry(site.call("divide", "divide", fields, *site.node.inputs))


def root(site: Site) -> ValueCalls:
    """Square roots of sums, rounded once; `bounds` holds 4 * x * p below 2**63."""
    x, a = site.input(0), site.a
    fields = {
        "size": x.size,
        "factor": 4 * a["p"],
        "divisor": a["q"],
        **{key: a[key] for key in ("zero", "low", "high")},
        "type": TYPES[x.dtype],
        "out_type": TYPES[a["dtype"]],
    }
    return site.entry(site.call("root", "roots", fields), in_place=[x.name])


def log_softmax(site: Site) -> ValueCalls:
    """Rows along the last axis: the sum of powers by table, its logarithm, one rounding a code. The
    bounds of docs/spec/graph.md 3.2 hold all products below 2**62."""
    x, a = site.input(0), site.a
    fields = {
        "rows": math.prod(x.shape[:-1]),
        "columns": x.shape[-1],
        "table": Data(site.required(1)),
        "step": a["m"],
        "unit": a["b"],
        **{key: a[key] for key in ("zero", "low", "high", "shift")},
        "type": TYPES[x.dtype],
        "out_type": TYPES[a["dtype"]],
    }
    site.bounded("zero")
    return site.entry(site.call("log_softmax", "log_softmax", fields))


def top_k(site: Site) -> ValueCalls:
    """The codes, or their places, by one walk over the line for each of the k: no memory."""
    x, axis = site.input(0), site.a["axis"]
    fields = {
        "outer": math.prod(x.shape[:axis]),
        "count": x.shape[axis],
        "inner": math.prod(x.shape[axis + 1 :]),
        "k": site.a["k"],
        "largest": int(site.a["largest"]),
        "places": int(site.node.op == "top_k_index"),
        "type": TYPES[x.dtype],
    }
    return site.entry(site.call("top_k", "top_k", fields))


def resample(site: Site) -> ValueCalls:
    """Sums of a few weighted rows and columns, in 64 bits where 32 do not hold them."""
    x, bits = site.input(0), 32 if site.narrow else 64
    rows, w, columns, v = (site.required(i) for i in range(1, 5))
    names = ("batch", "height", "width", "channels")
    fields = {
        **dict(zip(names, x.shape, strict=True)),
        "out_height": site.shape[1],
        "out_width": site.shape[2],
        "row_taps": rows.shape[1],
        "column_taps": columns.shape[1],
        "rows": Data(rows.reshape(-1)),
        "columns": Data(columns.reshape(-1)),
        "row_weights": Data(wrapped(w.astype(object).reshape(-1), bits)),
        "column_weights": Data(wrapped(v.astype(object).reshape(-1), bits)),
        "zero": site.bounded("zero"),
        "type": TYPES[x.dtype],
        "wide": int(not site.narrow),
        "rescale": site.rescale,
    }
    return site.entry(site.call("resample", "resample", fields))
