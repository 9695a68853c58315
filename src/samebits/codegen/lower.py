"""Integer graph -> kernel calls: one step per layer, accumulators fused into `requantize`.

Every rule turns one node into calls with constant parameters; what a kernel needs in another
form (packed weights, strides, multipliers) is computed here, in Python integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.codegen.lower_conv import (
    any_call,
    conv_calls,
    conv_geometry,
    row_geometry,
    transposed_calls,
    transposed_geometry,
    wrapped,
)
from samebits.codegen.program import Array, Call, Data, Field, Program, Step, Struct, Structs
from samebits.codegen.rescale import TYPES, fits32, rescaling, store
from samebits.codegen.shapes import broadcast_strides, collapsed, contiguous, shape_struct
from samebits.errors import UnsupportedError
from samebits.ir.bounds import Interval, bounds
from samebits.ir.graph import Graph, Node, Value
from samebits.ir.integer import balance_factors, limits
from samebits.ir.interpreter import evaluate
from samebits.ir.layers import fused

MAX_SOURCES = 16
LARGEST = 1 << 31  # elements of a tensor: indices are int32
WIDTHS = {name: np.dtype(name).itemsize for name in TYPES}


def lower(graph: Graph) -> Program:
    """The program of an integer graph. UnsupportedError names what C has no kernel for."""
    _check(graph)
    context = _Context(graph, bounds(graph), {})
    hidden, producers = fused(graph), graph.producers()
    steps = []
    for node in graph.nodes:
        if node.output in hidden:
            continue
        parts = [node]
        if node.op == "requantize" and node.inputs[0] in hidden:
            parts = [producers[node.inputs[0]], node]
        if all(context.constant(name) is not None for name in parts[0].inputs):
            for part in parts:
                context.fold(part)
            steps.append(Step(node.output))
        else:
            steps.append(_step(context, parts[0], parts[1] if len(parts) == 2 else None))
    layers = {step.value for step in steps}
    folded = {name: array for name, array in context.folded.items() if name in layers}
    return Program(graph, tuple(steps), folded)


def _check(graph: Graph) -> None:
    if not graph.integer:
        raise UnsupportedError(
            f"graph {graph.name!r}: expected an integer graph, found real operators; quantize "
            "and lower the model first"
        )
    for value in graph.values.values():
        if value.dtype not in TYPES or not 0 < value.size < LARGEST:
            raise UnsupportedError(
                f"value {value.name!r}: expected 1 to {LARGEST - 1} codes of "
                f"{', '.join(TYPES)}, found {value.dtype} {list(value.shape)}"
            )


@dataclass(frozen=True)
class _Context:
    graph: Graph
    bounds: Mapping[str, Interval]
    folded: dict[str, Array]

    def value(self, name: str) -> Value:
        return self.graph.values[name]

    def constant(self, name: str) -> Array | None:
        found = self.graph.constants.get(name)
        return self.folded.get(name) if found is None else found

    def fold(self, node: Node) -> None:
        """Compute a node whose inputs are all constant."""
        arrays = [self.constant(name) for name in node.inputs]
        for name, array in zip(
            node.outputs, evaluate(node, arrays, self.graph.values), strict=True
        ):
            self.folded[name] = array.astype(self.value(name).dtype)


@dataclass(frozen=True)
class _Site:
    """A node with the requantization that ends it."""

    context: _Context
    node: Node
    output: str
    rescale: Struct

    @property
    def a(self) -> Mapping[str, Any]:
        return self.node.attributes

    @property
    def narrow(self) -> bool:
        """The accumulator is proved to fit in 32 bits."""
        return fits32(self.context.bounds[self.node.output])

    @property
    def where(self) -> str:
        return f"node {self.node.name!r} ({self.node.op})"

    def input(self, index: int) -> Value:
        return self.context.value(self.node.inputs[index])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.context.value(self.node.output).shape

    def required(self, index: int) -> Array:
        """An input that has to be constant."""
        found = self.context.constant(self.node.inputs[index])
        if found is None:
            raise UnsupportedError(
                f"{self.where}: expected constant data for input {index}, found a computed "
                "tensor; the C target has no kernel for that"
            )
        return found

    def bounded(self, key: str) -> int:
        """An attribute that a kernel subtracts in 32 bits."""
        found = int(self.a[key])
        if abs(found) >= 1 << 30:
            raise UnsupportedError(f"{self.where}: expected |{key}| < 2**30, found {found}")
        return found

    def step(self, *calls: Call, in_place: Sequence[str] = ()) -> Step:
        return Step(self.output, calls, tuple(in_place))

    def call(self, function: str, type_: str, fields: Mapping[str, Any], *inputs: str) -> Call:
        return Call(function, Struct(type_, fields), inputs or self.node.inputs[:1])

    def view(self) -> Step:
        return Step(self.output, view_of=self.node.inputs[0])


def _step(context: _Context, node: Node, requantize: Node | None) -> Step:
    if requantize is None:
        output, rescale = node.output, store(context.value(node.output).dtype)
    else:
        output = requantize.output
        where = f"node {requantize.name!r} (requantize)"
        rescale = rescaling(context.bounds[node.output], requantize.attributes, where)
    return _RULES[node.op](_Site(context, node, output, rescale))


# --- products -------------------------------------------------------------------------------


def _conv(site: _Site) -> Step:
    x, w, b = (site.input(i) for i in range(3))
    if site.node.op == "linear":
        geometry = row_geometry(math.prod(x.shape[:-1]), x.shape[-1], w.shape[0])
    elif site.node.op == "conv":
        geometry = conv_geometry(x.shape, w.shape, site.shape, site.a)
    else:
        geometry = transposed_geometry(x.shape, w.shape, site.shape, site.a)
    transposed = site.node.op == "conv_transpose"
    weights, bias = (site.context.constant(name) for name in site.node.inputs[1:])
    if weights is not None and bias is not None:
        make = transposed_calls if transposed else conv_calls
        weights = weights.reshape(w.shape[0], *geometry.kernel, -1)
        calls = make(
            geometry, x.dtype, weights, bias, site.narrow, site.rescale, site.node.inputs[0]
        )
        if calls is not None:
            return site.step(*calls)
    if transposed:
        site.bounded("zero")
    dtypes = (x.dtype, w.dtype, b.dtype)
    return site.step(any_call(geometry, dtypes, transposed, site.rescale, site.node.inputs))


def _matmul(site: _Site) -> Step:
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
    return site.step(site.call("matmul", "matmul", fields, *site.node.inputs))


def _affine(site: _Site) -> Step:
    x = site.input(0)
    m, b = (site.context.constant(name) for name in site.node.inputs[1:])
    channels = x.shape[-1]
    if m is None or b is None:  # a depthwise convolution of single pixels
        geometry = row_geometry(x.size // channels, channels, channels, channels)
        dtypes = [site.input(i).dtype for i in range(3)]
        return site.step(any_call(geometry, dtypes, False, site.rescale, site.node.inputs))
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
    return site.step(site.call("affine", "affine", fields), in_place=site.node.inputs[:1])


_SUM, _MULTIPLY, _MAXIMUM, _MINIMUM = range(4)


def _broadcast(site: _Site) -> Step:
    op, names = site.node.op, site.node.inputs
    if len(names) > MAX_SOURCES:
        raise UnsupportedError(
            f"{site.where}: expected at most {MAX_SOURCES} inputs, found {len(names)}"
        )
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
    call = Call("broadcast", Struct("broadcast", fields), names, listed=True)
    return site.step(call, in_place=same)


# --- element by element -----------------------------------------------------------------------


def _requantize(site: _Site) -> Step:
    x = site.input(0)
    rescale = rescaling(site.context.bounds[x.name], site.a, site.where)
    fields = {"size": x.size, "type": TYPES[x.dtype], "rescale": rescale}
    return site.step(site.call("requantize", "requantize", fields), in_place=[x.name])


def _clip(site: _Site) -> Step:
    x = site.input(0)
    least, most = limits(x.dtype)
    low, high = max(site.a["low"], least), min(site.a["high"], most)
    if low > high:
        raise UnsupportedError(
            f"{site.where}: expected bounds that meet the codes of {x.dtype}, found "
            f"[{site.a['low']}, {site.a['high']}]"
        )
    fields = {"size": x.size, "low": low, "high": high, "type": TYPES[x.dtype]}
    return site.step(site.call("clip", "clip", fields), in_place=[x.name])


def _table(site: _Site) -> Step:
    x, table = site.input(0), site.required(1)
    fields = {
        "size": x.size,
        "channels": len(table) if table.ndim == 2 else 1,
        "table": Data(table.reshape(-1)),
        "type": TYPES[x.dtype],
        "out_type": TYPES[table.dtype.name],
    }
    return site.step(site.call("table", "table", fields), in_place=[x.name])


def _interpolate(site: _Site) -> Step:
    x = site.input(0)
    fields = {
        "size": x.size,
        "base": Data(site.required(1).astype(np.int64)),
        "slope": Data(site.required(2).astype(np.int64)),
        **{key: site.a[key] for key in ("low", "high", "bits", "shift")},
        "type": TYPES[x.dtype],
        "out_type": TYPES[site.a["dtype"]],
    }
    return site.step(site.call("interpolate", "interpolate", fields), in_place=[x.name])


# --- pools and reductions ---------------------------------------------------------------------


def _pool(site: _Site) -> Step:
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
        "kernel_height": a["kernel"][0],
        "kernel_width": a["kernel"][1],
        "stride_y": a["strides"][0],
        "stride_x": a["strides"][1],
        "pad_top": a["pads"][0],
        "pad_left": a["pads"][1],
        "dilation_y": a["dilations"][0],
        "dilation_x": a["dilations"][1],
        "zero": site.bounded("zero") if "zero" in a else 0,
        "balance": balance,
        "type": TYPES[x.dtype],
        "wide": int(not site.narrow),
        "rescale": site.rescale,
    }
    return site.step(site.call(site.node.op, "pool", fields))


def _reduce(site: _Site) -> Step:
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
        "operation": ("reduce_sum", "reduce_max", "reduce_min").index(site.node.op),
        "type": TYPES[x.dtype],
        "rescale": site.rescale,
    }
    return site.step(site.call("reduce", "reduce", fields))


def _softmax(site: _Site) -> Step:
    x, table, a = site.input(0), site.required(1), site.a
    columns, largest = x.shape[-1], int(table.max())
    numerator, denominator = a["ratio"].as_integer_ratio()
    products = max(largest * numerator, largest * columns * denominator)
    if int(table.min()) < 0 or int(table[0]) < 1 or products >= 1 << 62:
        raise UnsupportedError(
            f"{site.where}: expected a table of non-negative powers, the first positive, and "
            f"products below 2**62, found products up to 2**{products.bit_length()}; use an "
            "output scale that is a power of two"
        )
    fields = {
        "rows": x.size // columns,
        "columns": columns,
        "table": Data(table),
        "numerator": numerator,
        "denominator": denominator,
        **{key: a[key] for key in ("zero", "low", "high")},
        "type": TYPES[x.dtype],
        "out_type": TYPES[a["dtype"]],
    }
    site.bounded("zero")
    return site.step(site.call("softmax", "softmax", fields))


def _argmax(site: _Site) -> Step:
    x, axis = site.input(0), site.a["axis"]
    fields = {
        "outer": math.prod(x.shape[:axis]),
        "count": x.shape[axis],
        "inner": math.prod(x.shape[axis + 1 :]),
        "type": TYPES[x.dtype],
    }
    return site.step(site.call("argmax", "argmax", fields))


# --- data movement ----------------------------------------------------------------------------


def _copy(
    site: _Site,
    index: int,
    shape: Sequence[int],
    source: tuple[Sequence[int], int],
    target: tuple[Sequence[int], int],
) -> Call:
    """Elements of one input at the indices of `shape`: (strides, start) in both tensors."""
    sizes, (a, b) = collapsed(shape, [source[0], target[0]], site.where)
    fields: dict[str, Field] = {
        "shape": shape_struct(sizes),
        "from": tuple(a),
        "to": tuple(b),
        "from_start": source[1],
        "to_start": target[1],
        "width": WIDTHS[site.input(index).dtype],
    }
    return site.call("copy", "copy", fields, site.node.inputs[index])


def _moved(site: _Site) -> Step:
    """transpose, expand, slice: one strided copy, or no copy where nothing moves."""
    x, a = site.input(0), site.a
    strides, start = contiguous(x.shape), 0
    if site.node.op == "transpose":
        strides = [strides[axis] for axis in a["perm"]]
    elif site.node.op == "expand":
        strides = broadcast_strides(x.shape, site.shape)
    elif site.node.op == "slice":
        start = sum(s * begin for s, begin in zip(strides, a["starts"], strict=True))
        strides = [s * step for s, step in zip(strides, a["steps"], strict=True)]
    target = contiguous(site.shape)
    _, walks = collapsed(site.shape, [strides, target], site.where)
    if x.size == math.prod(site.shape) and walks[0] == walks[1]:
        return site.view()
    return site.step(_copy(site, 0, site.shape, (strides, start), (target, 0)))


def _concat(site: _Site) -> Step:
    if len(site.node.inputs) == 1:
        return site.view()
    target, axis = contiguous(site.shape), site.a["axis"]
    calls, at = [], 0
    for index in range(len(site.node.inputs)):
        shape = site.input(index).shape
        start = at * target[axis]
        calls.append(_copy(site, index, shape, (contiguous(shape), 0), (target, start)))
        at += shape[axis]
    return site.step(*calls)


def _pad(site: _Site) -> Step:
    x, a = site.input(0), site.a
    if x.shape == site.shape:
        return site.view()
    target = contiguous(site.shape)
    start = sum(s * before for s, before in zip(target, a["before"], strict=True))
    size = math.prod(site.shape)
    fill = Struct("fill", {"size": size, "code": a["code"], "type": TYPES[x.dtype]})
    copy = _copy(site, 0, x.shape, (contiguous(x.shape), 0), (target, start))
    return site.step(Call("fill", fill, ()), copy)


def _gather(site: _Site) -> Step:
    x, indices, axis = site.input(0), site.required(1), site.a["axis"]
    if int(indices.min()) < 0 or int(indices.max()) >= x.shape[axis]:
        raise UnsupportedError(
            f"{site.where}: expected indices in [0, {x.shape[axis]}), found "
            f"{int(indices.min())} to {int(indices.max())}"
        )
    fields = {
        "outer": math.prod(x.shape[:axis]),
        "source": x.shape[axis],
        "count": len(indices),
        "inner": math.prod(x.shape[axis + 1 :]) * WIDTHS[x.dtype],
        "indices": Data(indices.astype(np.int32)),
    }
    return site.step(site.call("gather", "gather", fields))


_RULES: dict[str, Callable[[_Site], Step]] = {
    **dict.fromkeys(("conv", "conv_transpose", "linear"), _conv),
    "matmul": _matmul,
    "affine": _affine,
    **dict.fromkeys(("add", "multiply", "maximum", "minimum"), _broadcast),
    "requantize": _requantize,
    "clip": _clip,
    "table": _table,
    "interpolate": _interpolate,
    **dict.fromkeys(("max_pool", "sum_pool"), _pool),
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min"), _reduce),
    "softmax": _softmax,
    "argmax": _argmax,
    "reshape": lambda site: site.view(),
    **dict.fromkeys(("transpose", "expand", "slice"), _moved),
    "concat": _concat,
    "pad": _pad,
    "gather": _gather,
}
