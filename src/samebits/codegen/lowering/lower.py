"""Integer graph -> kernel calls: one entry per layer, accumulators fused into `requantize`.

Every rule turns one node into calls with constant parameters; what a kernel needs in another
form (packed weights, strides, multipliers) is computed here, in Python integers. No decision is
left to C: kernels have no tests for overflow, as the bounds of every sum are known here.

Example: an image x of int8 [1, 8, 8, 4], convolved, rectified, convolved again and added to what
was rectified, then a linear layer; `->` is a requantization by the ratio given.

    acc1 = conv(x, w1), h1 = acc1 -> 1/64      conv8, form SHIFT      h1
    r = table(h1, relu)                        table, in place of h1  r
    acc2 = conv(r, w2), h2 = acc2 -> 1/64      conv8, form SHIFT      h2
    sum = h2 + r, s = sum -> 1/2               broadcast, form SHIFT  s, in place of h2
    v = reshape(s)                             no call                v, a view of s
    y = linear(v, w3), int32                   conv8, form STORE      y

Six entries for nine nodes: acc1, acc2 and sum are read by one `requantize` each and never stored.
The bounds of acc1 fit in 32 bits with the rounding constant, so its ratio 2**-6 is a shift; a ratio
of 1/3 would be a multiplier that lowering/rescale.py proves. codegen/memory.py goes on with the
example: where h1, h2 and what takes their places lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from samebits.codegen.lowering.add import add_entry
from samebits.codegen.lowering.calls import (
    CallList,
    Data,
    Field,
    KernelCall,
    Struct,
    Structs,
    ValueCalls,
)
from samebits.codegen.lowering.conv import (
    any_call,
    conv_calls,
    conv_geometry,
    row_geometry,
    transposed_calls,
    window_fields,
    window_geometry,
    wrapped,
)
from samebits.codegen.lowering.cpu import PORTABLE, Cpu
from samebits.codegen.lowering.extents import LARGEST_TENSOR, check_call
from samebits.codegen.lowering.move import concat, gather, moved, pad, scatter
from samebits.codegen.lowering.packed import packed_entry
from samebits.codegen.lowering.packed16 import packed16_entry
from samebits.codegen.lowering.rescale import (
    NARROW,
    PRODUCT,
    TYPES,
    WIDE,
    WIDTHS,
    in_words,
    rescaling,
    store,
)
from samebits.codegen.lowering.scores import divide, log_softmax, resample, root, top_k
from samebits.codegen.lowering.shapes import broadcast_strides, collapsed, contiguous, shape_struct
from samebits.codegen.lowering.site import Context, Site
from samebits.codegen.lowering.sums import sums_entry
from samebits.codegen.lowering.table import table_entry
from samebits.codegen.lowering.trees import tree_ensemble
from samebits.errors import UnsupportedError
from samebits.ir import Graph, Node, Trait, ops_with
from samebits.ir.integer.bounds import bounds
from samebits.ir.integer.define import limits
from samebits.ir.integer.layers import fused
from samebits.ir.integer.windows import balance_factors
from samebits.spec.fixed import ONE, Shares

MAX_SOURCES = 16


def lower_to_calls(graph: Graph, cpu: Cpu = PORTABLE, draft: bool = False) -> CallList:
    """The kernel calls of an integer graph, one entry for every stored value, in its order: the
    kernels that suit `cpu`. A draft keeps whole tables in place of cubics, whose fit takes seconds.

    A node whose inputs are all constant is computed now and becomes a table. Raises
    UnsupportedError, which names the node, for what C has no kernel for: real operators, tensors
    of 2**29 bytes or more, what else extents.py refuses, and the limits of the single rules.
    """
    _check(graph)
    context = Context(graph, bounds(graph), {}, cpu, draft)
    hidden, producers = fused(graph), graph.producers()
    entries = []
    for node in graph.nodes:
        if node.output in hidden:
            continue
        parts = [node]
        if node.op == "requantize" and node.inputs[0] in hidden:
            parts = [producers[node.inputs[0]], node]
        if all(context.constant(name) is not None for name in parts[0].inputs):
            for part in parts:
                context.fold(part)
            entries.append(ValueCalls(node.output))
        else:
            entries.append(_entry(context, parts[0], parts[1] if len(parts) == 2 else None))
    for entry in entries:
        for call in entry.calls:
            check_call(call, entry.value)
    layers = {entry.value for entry in entries}
    folded = {name: array for name, array in context.folded.items() if name in layers}
    return CallList(graph, tuple(entries), folded)


def _check(graph: Graph) -> None:
    """UnsupportedError for a graph that is not integer, without ends, or with a huge tensor."""
    if not graph.integer:
        raise UnsupportedError(
            f"graph {graph.name!r}: expected an integer graph, found real operators; quantize "
            "and lower the model first"
        )
    if not graph.inputs or not graph.outputs:
        raise UnsupportedError(f"graph {graph.name!r}: expected inputs and outputs, found none")
    for value in graph.values.values():
        if value.dtype not in TYPES or not 0 < value.size * WIDTHS[value.dtype] < LARGEST_TENSOR:
            raise UnsupportedError(
                f"value {value.name!r}: expected at least one code of {', '.join(TYPES)} and less "
                f"than {LARGEST_TENSOR} bytes, found {value.dtype} {list(value.shape)}"
            )


def _entry(context: Context, node: Node, requantize: Node | None) -> ValueCalls:
    if requantize is None:
        output, rescale = node.output, store(context.value(node.output).dtype)
    else:
        output = requantize.output
        where = f"node {requantize.name!r} (requantize)"
        interval = context.bounds[node.output]
        rescale = rescaling(interval, requantize.attributes, where)
        if context.cpu.quick_words and rescale.fields["form"] in (NARROW, PRODUCT, WIDE):
            rescale = in_words(interval, requantize.attributes) or rescale
    return _RULES[node.op](Site(context, node, output, rescale, requantize))


# --- products -------------------------------------------------------------------------------


def _conv(site: Site) -> ValueCalls:
    """conv, conv_transpose and linear: a packed kernel where weights and biases are constant and of
    types that one takes, else the kernel for any types."""
    x, w, b = (site.input(i) for i in range(3))
    if site.node.op == "linear":
        geometry = row_geometry(math.prod(x.shape[:-1]), x.shape[-1], w.shape[0])
    elif site.node.op == "conv":
        geometry = conv_geometry(x.shape, w.shape, site.shape, site.a)
    else:
        geometry = window_geometry(x.shape, w.shape, site.shape, site.a, site.a["zero"])
    transposed = site.node.op == "conv_transpose"
    weights, bias = (site.context.constant(name) for name in site.node.inputs[1:])
    if weights is not None and bias is not None:
        make = transposed_calls if transposed else conv_calls
        sums = sums_entry(site, weights, bias) if site.node.op == "linear" else None
        if sums is not None:
            return sums
        weights = weights.reshape(w.shape[0], *geometry.kernel, -1)
        pack = packed16_entry if x.dtype == "int16" else packed_entry
        packed = None if transposed else pack(site, geometry, weights, bias)
        if packed is not None:
            return packed
        calls = make(
            geometry, x.dtype, weights, bias, site.narrow, site.rescale, site.node.inputs[0]
        )
        if calls is not None:
            return site.entry(*calls)
    if transposed:
        site.bounded("zero")
    dtypes = (x.dtype, w.dtype, b.dtype)
    return site.entry(any_call(geometry, dtypes, transposed, site.rescale, site.node.inputs))


def _matmul(site: Site) -> ValueCalls:
    """Products of two tensors: matrices as rows and columns, leading axes broadcast by strides
    (those of axes of size 1 are 0), in 64 bits where 32 do not hold the sums."""
    a, b = site.input(0), site.input(1)
    leading = site.shape[:-2]
    strides = []
    for value in (a, b):
        matrix = math.prod(value.shape[-2:])
        strides.append([s * matrix for s in broadcast_strides(value.shape[:-2], leading)])
    sizes, steps = collapsed(leading, strides, site.where)
    fields = {
        "leading": shape_struct(sizes),
        "a_strides": tuple(steps[0]),
        "b_strides": tuple(steps[1]),
        "rows": a.shape[-2],
        "depth": a.shape[-1],
        "columns": b.shape[-1],
        "a_zero": site.bounded("a_zero"),
        "b_zero": site.bounded("b_zero"),
        "a_type": TYPES[a.dtype],
        "b_type": TYPES[b.dtype],
        "wide": int(not site.narrow),
        "rescale": site.rescale,
    }
    return site.entry(site.call("matmul", "matmul", fields, *site.node.inputs))


def _affine(site: Site) -> ValueCalls:
    """x * m + b by channel, in place where it can be; a depthwise convolution of single pixels
    where m or b is computed."""
    x = site.input(0)
    m, b = (site.context.constant(name) for name in site.node.inputs[1:])
    channels = x.shape[-1]
    if m is None or b is None:  # a depthwise convolution of single pixels
        geometry = row_geometry(x.size // channels, channels, channels, channels)
        dtypes = [site.input(i).dtype for i in range(3)]
        return site.entry(any_call(geometry, dtypes, False, site.rescale, site.node.inputs))
    bits = 32 if site.narrow else 64
    fields = {
        "size": x.size,
        "channels": channels,
        "factors": Data(wrapped(m.astype(object), bits)),
        "offsets": Data(wrapped(b.astype(object), bits)),
        "type": TYPES[x.dtype],
        "wide": int(not site.narrow),
        "rescale": site.rescale,
    }
    return site.entry(site.call("affine", "affine", fields), in_place=site.node.inputs[:1])


_SUM, _MULTIPLY, _MAXIMUM, _MINIMUM = range(4)


def _broadcast(site: Site) -> ValueCalls:
    """add, multiply, maximum and minimum of up to MAX_SOURCES broadcast tensors.

    The output's strides go through `collapsed` too, so that axes merge only where the output walks
    evenly as well, and are then dropped: the kernel writes in order. A source of the output's shape
    may give its memory. Factors and offsets wrap as the sums do.
    """
    op, names = site.node.op, site.node.inputs
    if len(names) > MAX_SOURCES:
        raise UnsupportedError(
            f"{site.where}: expected at most {MAX_SOURCES} inputs, found {len(names)}"
        )
    quick = None if site.context.cpu is PORTABLE else add_entry(site)
    if quick is not None:
        return quick
    values = [site.context.value(name) for name in names]
    strides = [broadcast_strides(v.shape, site.shape) for v in values]
    sizes, steps = collapsed(site.shape, [contiguous(site.shape), *strides], site.where)
    if op == "add":
        operation, factors, offset = _SUM, list(site.a["factors"]), site.a["offset"]
    elif op == "multiply":
        operation, offset = _MULTIPLY, 0
        factors = [site.bounded("a_zero"), site.bounded("b_zero")]
    else:
        operation, offset = (_MAXIMUM if op == "maximum" else _MINIMUM), 0
        factors = [0, 0]
    wide = any(v.dtype == "int64" for v in values) or not site.narrow
    sources = [
        Struct(
            "source",
            {"strides": tuple(s), "factor": int(wrapped([f], 64)[0]), "type": TYPES[v.dtype]},
        )
        for v, s, f in zip(values, steps[1:], factors, strict=True)
    ]
    fields: dict[str, Field] = {
        "shape": shape_struct(sizes),
        "sources": Structs(tuple(sources)),
        "count": len(values),
        "offset": int(wrapped([offset], 64)[0]),
        "operation": operation,
        "wide": int(wide),
        "rescale": site.rescale,
    }
    same = [v.name for v in values if v.shape == site.shape]
    call = KernelCall("broadcast", Struct("broadcast", fields), names, listed=True)
    return site.entry(call, in_place=same)


# --- element by element -----------------------------------------------------------------------


def _requantize(site: Site) -> ValueCalls:
    x = site.input(0)
    rescale = rescaling(site.context.bounds[x.name], site.a, site.where)
    fields = {"size": x.size, "type": TYPES[x.dtype], "rescale": rescale}
    return site.entry(site.call("requantize", "requantize", fields), in_place=[x.name])


def _clip(site: Site) -> ValueCalls:
    x = site.input(0)
    least, most = limits(x.dtype)
    low, high = max(site.a["low"], least), min(site.a["high"], most)
    if low > high:
        raise UnsupportedError(
            f"{site.where}: expected bounds that meet the codes of {x.dtype}, found "
            f"[{site.a['low']}, {site.a['high']}]"
        )
    fields = {"size": x.size, "low": low, "high": high, "type": TYPES[x.dtype]}
    return site.entry(site.call("clip", "clip", fields), in_place=[x.name])


# --- pools and reductions ---------------------------------------------------------------------


def _pool(site: Site) -> ValueCalls:
    """max_pool and sum_pool. A mean over windows of several sizes sums with `balance`: a common
    multiple of the sizes, over the size of each window, is its factor, so that one exact ratio ends
    them all. Windows have at most 2**15 columns: what a row's 32-bit sum of 16-bit codes holds."""
    x, a = site.input(0), site.a
    if a["kernel"][1] > 1 << 15:
        raise UnsupportedError(f"{site.where}: expected a window of at most 2**15 columns")
    balance = 0
    if a.get("balance"):
        balance = balance_factors((x.shape[1], x.shape[2]), a)[1]
    names = ("batch", "height", "width", "channels")
    fields = {
        **dict(zip(names, x.shape, strict=True)),
        "out_height": site.shape[1],
        "out_width": site.shape[2],
        **window_fields(a["kernel"], a["strides"], a["pads"], a["dilations"]),
        "zero": site.bounded("zero") if "zero" in a else 0,
        "balance": balance,
        "type": TYPES[x.dtype],
        "rescale": site.rescale,
    }
    return site.entry(site.call(site.node.op, "pool", fields))


def _reduce(site: Site) -> ValueCalls:
    """Sums, maxima and minima over axes: one walk over the axes that are kept and, at each of its
    elements, one over the axes that are reduced, both with their strides in x."""
    x, axes = site.input(0), set(site.a["axes"])
    strides = contiguous(x.shape)
    kept = [i for i in range(len(x.shape)) if i not in axes]
    rest = [i for i in range(len(x.shape)) if i in axes]
    walks = [
        collapsed([x.shape[i] for i in part], [[strides[i] for i in part]], site.where)
        for part in (kept, rest)
    ]
    fields = {
        "kept": shape_struct(walks[0][0]),
        "reduced": shape_struct(walks[1][0]),
        "kept_strides": tuple(walks[0][1][0]),
        "reduced_strides": tuple(walks[1][1][0]),
        "zero": site.bounded("zero") if "zero" in site.a else 0,
        "operation": {"reduce_sum": 0, "reduce_max": 1, "reduce_min": 2}[site.node.op],
        "type": TYPES[x.dtype],
        "rescale": site.rescale,
    }
    return site.entry(site.call("reduce", "reduce", fields))


def _softmax(site: Site) -> ValueCalls:
    """Softmax of the last axis by a table of exp(-scale * d) and one exact division a code.

    numerator / denominator: the ratio of the attributes. UnsupportedError where a product of the
    largest entry, the number of columns and either of them would not fit in 62 bits.
    """
    x, table, a = site.input(0), site.required(1), site.a
    columns, largest = x.shape[-1], int(table.max())
    fixed = isinstance(a["ratio"], Shares)
    numerator, denominator = (1, 1) if fixed else a["ratio"].as_integer_ratio()
    products = max(largest * numerator, largest * columns * denominator)
    if int(table.min()) < 0 or int(table[0]) < 1 or products >= 1 << 62:
        raise UnsupportedError(
            f"{site.where}: expected a table of non-negative powers, the first positive, and "
            f"products below 2**62, found products up to 2**{products.bit_length()}; use an "
            "output scale that is a power of two"
        )
    if fixed and int(table[0]) != ONE:
        raise UnsupportedError(f"{site.where}: expected powers from {ONE}, found {table[0]}")
    leading = x.shape[:-1]
    rows = [s * columns for s in contiguous(leading)]
    kept = site.input(2) if len(site.node.inputs) > 2 else None
    masked = [0] * len(x.shape) if kept is None else broadcast_strides(kept.shape, x.shape)
    sizes, steps = collapsed(leading, [rows, masked[:-1]], site.where)
    fields = {
        "leading": shape_struct(sizes),
        "strides": tuple(steps[0]),
        "mask_strides": tuple(steps[1]),
        "mask_step": masked[-1],
        "mask_type": 0 if kept is None else TYPES[kept.dtype],
        "columns": columns,
        "table": Data(table),
        "numerator": a["ratio"].bits if fixed else numerator,
        "denominator": denominator,
        **{key: a[key] for key in ("zero", "low", "high")},
        "type": TYPES[x.dtype],
        "out_type": TYPES[a["dtype"]],
    }
    site.bounded("zero")
    if fixed:
        return site.entry(site.call("fixed_softmax", "softmax", fields))
    if kept is None:
        return site.entry(site.call("softmax", "softmax", fields))
    inputs = (site.node.inputs[0], site.node.inputs[2])
    return site.entry(site.call("masked_softmax", "softmax", fields, *inputs))


def _normalize(site: Site) -> ValueCalls:
    """Vectors by their statistics, two passes over each. The output may be the memory of x: every
    element is read before it is written."""
    x, a = site.input(0), site.a
    fields = {
        "samples": math.prod(x.shape[: a["batch"]]),
        "places": math.prod(x.shape[a["batch"] : -1]),
        "channels": x.shape[-1],
        "groups": a["groups"],
        "factors": Data(site.required(1).astype(np.int32)),
        "terms": Data(site.required(2).astype(np.int64)),
        **{key: a[key] for key in ("epsilon", "x_zero", "zero", "low", "high", "shift")},
        "centered": int(a["centered"]),
        "type": TYPES[x.dtype],
        "out_type": TYPES[a["dtype"]],
    }
    site.bounded("zero")
    return site.entry(site.call("normalize", "normalize", fields), in_place=[x.name])


def _argmax(site: Site) -> ValueCalls:
    x, axis = site.input(0), site.a["axis"]
    fields = {
        "outer": math.prod(x.shape[:axis]),
        "count": x.shape[axis],
        "inner": math.prod(x.shape[axis + 1 :]),
        "type": TYPES[x.dtype],
    }
    return site.entry(site.call("argmax", "argmax", fields))


_RULES: dict[str, Callable[[Site], ValueCalls]] = {
    **dict.fromkeys(ops_with(Trait.WEIGHTED, integer=True), _conv),
    "matmul": _matmul,
    "affine": _affine,
    "add": _broadcast,
    "multiply": _broadcast,
    "maximum": _broadcast,
    "minimum": _broadcast,
    "requantize": _requantize,
    "clip": _clip,
    "table": table_entry,
    **dict.fromkeys(("max_pool", "sum_pool"), _pool),
    **dict.fromkeys(ops_with(Trait.REDUCES, integer=True), _reduce),
    "softmax": _softmax,
    "normalize": _normalize,
    "argmax": _argmax,
    "divide": divide,
    "root": root,
    "log_softmax": log_softmax,
    **dict.fromkeys(("top_k", "top_k_index"), top_k),
    "resample": resample,
    "tree_ensemble": tree_ensemble,
    "reshape": lambda site: site.view(),
    "transpose": moved,
    "expand": moved,
    "slice": moved,
    "concat": concat,
    "pad": pad,
    "gather": gather,
    "scatter": scatter,
}
