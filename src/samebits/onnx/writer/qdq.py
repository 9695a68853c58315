"""Real graphs as standard ONNX: QuantizeLinear and DequantizeLinear around ordinary operators."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import onnx

from samebits.errors import UnsupportedError
from samebits.ir import Graph, Node, Trait, has, ops_with
from samebits.ir.ops import op_named
from samebits.ir.real.cell import LAYERS, activations
from samebits.ir.real.minifloat import STORAGE
from samebits.ir.real.recurrent import PROJECTION
from samebits.ir.real.trees import MODES, THRESHOLDS, ensemble_of
from samebits.onnx.metadata import CLASSICAL, FileFacts
from samebits.onnx.writer.emit import Emitter, element_type, unsupported, write_model
from samebits.onnx.writer.exact import exact_form
from samebits.onnx.writer.loadable import OPSET, loadable_form

Tables = Literal["gather", "float"]
IR_VERSIONS = {18: 8, 19: 9, 20: 9, 21: 10, 23: 11, 24: 12}  # the first that has the opset
NARROW_CODES = ("int8", "uint8", "int32")  # what QuantizeLinear knew before opset 21


NO_FACTS = FileFacts()


def save_qdq(
    graph: Graph,
    path: str | os.PathLike[str],
    tables: Tables = "float",
    facts: FileFacts = NO_FACTS,
) -> None:
    """Write `to_qdq(graph, tables, facts)` atomically. Raises as it, SamebitsError for the file.

    The default keeps every operator as it is: such a file can be loaded and lowered again.
    """
    write_model(to_qdq(graph, tables, facts), path)


def to_qdq(graph: Graph, tables: Tables = "gather", facts: FileFacts = NO_FACTS) -> onnx.ModelProto:
    """A real graph as ONNX, of the lowest opset from 18 to 24 that has its operators and types.

    tables: "gather" writes transfer tables, average pools and resizes in the exact forms of
    `exact_form`, so that `binary32_exact` can hold; "float" writes every operator as it is, and
    loading gives the same graph again, but for Swish, which opset 24 brought (Mul and Sigmoid),
    and from opset 21 on for the pairs of `loadable_form`, which do not change the integer graph.
    facts: what the metadata say of the model

    Raises UnsupportedError for an integer graph and for what ONNX cannot say: attributes that are
    no binary32 numbers, quantization of binary64 tensors.
    """
    if tables not in ("gather", "float"):
        raise ValueError(f"expected tables 'gather' or 'float', found {tables!r}")
    if any(op_named(node.op).integer for node in graph.nodes):
        raise UnsupportedError(
            f"graph {graph.name!r}: expected a real graph, found integer operators; "
            "export it with save_integer"
        )
    if tables == "gather":
        graph = exact_form(graph)
    opset = max((_opset(graph, node) for node in graph.nodes), default=18)
    if opset >= OPSET:
        graph = loadable_form(graph)
    _check_types(graph)
    emitter = Emitter(graph)
    trees = [node for node in graph.nodes if has(node.op, Trait.TALLIES)]
    kept = {name for node in graph.nodes if node not in trees for name in node.inputs}
    inlined = {name for node in trees for name in node.inputs[1:]} - kept - {*graph.outputs}
    for name, array in graph.constants.items():
        if name not in inlined:
            emitter.store(name, array, graph.values[name].dtype)
    for node in graph.nodes:
        rule = _RULES.get(node.op)
        if rule is None or not rule(emitter, node):
            inputs, attributes = _standard(emitter, node)
            emitter.ops(node.op, inputs, attributes, node.outputs, node.name)
    metadata = facts.properties()
    return emitter.model(opset, IR_VERSIONS[opset], metadata)


def _check_types(graph: Graph) -> None:
    """UnsupportedError for a value of a type that the operators of these opsets do not know."""
    for value in graph.values.values():
        if value.dtype in (*STORAGE, "int2", "uint2"):
            raise UnsupportedError(
                f"graph {graph.name!r}: expected types of opset 21, found {value.dtype} (value "
                f"{value.name!r}); convert the tensor"
            )


# --- attributes -------------------------------------------------------------------------------

# The attributes that ONNX reads from tensors, in the order of its inputs.
_AS_INPUTS: Mapping[str, Sequence[str]] = {
    "Clip": ("min", "max"),
    "CumSum": ("axis",),
    "Expand": ("shape",),
    "Pad": ("pads", "value"),
    "Reshape": ("shape",),
    "Slice": ("starts", "ends", "axes", "steps"),
    "Split": ("sizes",),
    "Squeeze": ("axes",),
    "Tile": ("repeats",),
    "TopK": ("k",),
    "Unsqueeze": ("axes",),
    **dict.fromkeys(ops_with(Trait.REDUCES), ("axes",)),
}
_OF_X = ("min", "max", "value")  # numbers of the type of the first input


def _standard(emitter: Emitter, node: Node) -> tuple[list[str], dict[str, Any]]:
    """Inputs and attributes as ONNX wants them."""
    moved = _AS_INPUTS.get(node.op, ())
    dtype = emitter.graph.values[node.inputs[0]].dtype
    inputs = list(node.inputs)
    for key in moved:
        value = node.attributes[key]
        if value is None:
            inputs.append("")
        else:
            value = [value] if key == "k" else value
            inputs.append(_constant(emitter, node, key, value, dtype if key in _OF_X else "int64"))
    attributes = {
        key: _attribute(node, key, value)
        for key, value in node.attributes.items()
        if key not in moved
    }
    if has(node.op, Trait.REDUCES) and not node.attributes["axes"]:
        attributes["noop_with_empty_axes"] = 1
    if node.op == "Reshape" and 0 in node.attributes["shape"]:
        attributes["allowzero"] = 1
    if node.op == "AveragePool" and set(node.attributes["dilations"]) == {1}:
        del attributes["dilations"]  # new in opset 19
    return inputs, attributes


def _constant(emitter: Emitter, node: Node, key: str, value: Any, dtype: str) -> str:
    array = np.array(value, dtype)
    if key in _OF_X and float(array) != float(value):
        raise unsupported(node, f"{key} to be a number of {dtype}", value, "round it first")
    return emitter.constant(array)


def _attribute(node: Node, key: str, value: Any) -> Any:
    if isinstance(value, float):
        with np.errstate(over="ignore"):
            stored = float(np.float32(value))
        if stored != value:
            raise unsupported(
                node, f"{key} to be a binary32 number", value, f"ONNX stores {stored}: use that"
            )
    if isinstance(value, bool):
        return int(value)
    return list(value) if isinstance(value, tuple) else value


def _opset(graph: Graph, node: Node) -> int:
    """The first opset, from 18 on, that has the node."""
    types = {graph.values[name].dtype for name in (*node.inputs, *node.outputs) if name}
    if node.op == "TensorScatter":
        return 24
    if node.op == "RMSNormalization":
        return 23
    if types & {"int4", "uint4"} or node.op == "GroupNormalization":
        return 21
    if node.op in ("QuantizeLinear", "DequantizeLinear"):
        codes = {t for t in types if not t.startswith("float")}
        return 21 if node.attributes["block_size"] or codes - set(NARROW_CODES) else 18
    if node.op == "Gelu" or (node.op in ("ReduceMax", "ReduceMin") and "bool" in types):
        return 20
    dilated = node.op == "AveragePool" and set(node.attributes["dilations"]) != {1}
    return 19 if dilated or (node.op == "Pad" and node.attributes["mode"] == "wrap") else 18


# --- operators with a form of their own: True if the rule has emitted the node ----------------


def _cast(emitter: Emitter, node: Node) -> bool:
    to = element_type(node.attributes["to"])
    emitter.ops("Cast", node.inputs, {"to": to}, node.outputs, node.name)
    return True


def _resize(emitter: Emitter, node: Node) -> bool:
    """A Resize with sizes, or with scales that say more than the sizes do; a region as input."""
    a = node.attributes
    keys = ["mode", "coordinate_transformation_mode", "nearest_mode"]
    inputs = [node.inputs[0], "", "", ""]
    if node.op == "Interpolate":
        keys += ["cubic_coeff_a", "exclude_outside", "antialias"]
        if a["roi"] is not None:
            ends = [_attribute(node, "roi", float(end)) for end in a["roi"]]
            inputs[1] = emitter.constant(ends, "float32")
    shape = emitter.graph.values[node.inputs[0]].shape
    ratios = [Fraction(out, size) for out, size in zip(a["sizes"], shape, strict=True)]
    if a["scales"] is None or list(a["scales"]) == ratios:
        inputs[3] = emitter.constant(a["sizes"], "int64")
    else:
        scales = [_attribute(node, "scales", float(scale)) for scale in a["scales"]]
        inputs[2] = emitter.constant(scales, "float32")
    given = {key: _attribute(node, key, a[key]) for key in keys}
    emitter.ops("Resize", inputs, given, node.outputs, node.name)
    return True


def _pool(emitter: Emitter, node: Node) -> bool:
    """A pool whose last windows would start in the end pad, which are none (as PyTorch has it, and
    ONNX from opset 22 on), with the pads of those that remain; False for the others. Pads that
    count in a mean cannot be added: there the file keeps the ceil mode."""
    a = node.attributes
    if not a["ceil_mode"]:
        return False
    size, out = (emitter.graph.values[name].shape[2:] for name in (node.inputs[0], node.output))
    rank = len(size)
    begins, ends = a["pads"][:rank], list(a["pads"][rank:])
    dropped = False
    for i, stride in enumerate(a["strides"]):
        covered = size[i] + begins[i] + ends[i] - a["dilations"][i] * (a["kernel_shape"][i] - 1) - 1
        dropped |= -(-covered // stride) + 1 > out[i]
        ends[i] += max((out[i] - 1) * stride - covered, 0)
    added = (*begins, *ends) != tuple(a["pads"])
    if not dropped or (added and a.get("count_include_pad")):
        return False
    plain = replace(node, attributes={**a, "ceil_mode": 0, "pads": (*begins, *ends)})
    inputs, attributes = _standard(emitter, plain)
    emitter.ops(node.op, inputs, attributes, node.outputs, node.name)
    return True


def _round_dynamic(emitter: Emitter, node: Node) -> bool:
    parts = ("codes", "scale", "zero_point")
    names = [emitter.fresh(f"{node.output}.{part}") for part in parts]
    emitter.ops("DynamicQuantizeLinear", node.inputs, {}, names)
    emitter.ops("DequantizeLinear", names, {}, node.outputs, node.name)
    return True


def _newer(emitter: Emitter, node: Node) -> bool:
    found = f"{node.op} ({onnx.defs.get_schema(node.op).since_version})"
    raise unsupported(node, "an operator of opset 21 or older", found, "compute it before")


def _swish(emitter: Emitter, node: Node) -> bool:
    x, alpha = node.inputs[0], node.attributes["alpha"]
    dtype = emitter.graph.values[x].dtype
    _attribute(node, "alpha", alpha)
    scaled = x if alpha == 1 else emitter.op("Mul", x, emitter.constant(alpha, dtype))
    emitter.ops("Mul", [x, emitter.op("Sigmoid", scaled)], {}, node.outputs, node.name)
    return True


def _quantize(emitter: Emitter, node: Node) -> bool:
    """QuantizeLinear, and a Clip of its codes where they have ends of their own."""
    values = emitter.graph.values
    if "float64" in (values[node.inputs[0]].dtype, values[node.inputs[1]].dtype):
        raise unsupported(node, "binary32 numbers", "float64", "ONNX quantizes no binary64 tensors")
    low, high = (node.attributes[key] for key in ("low", "high"))
    if low is None and high is None:
        emitter.ops(node.op, node.inputs, _axis(emitter, node), node.outputs, node.name)
        return True
    dtype = values[node.output].dtype
    wide = dtype if dtype in NARROW_CODES else "int32"  # onnxruntime clips no 16-bit integers
    codes = emitter.op(node.op, *node.inputs, **_axis(emitter, node))
    codes = codes if wide == dtype else emitter.cast(codes, wide)
    ends = [emitter.constant(end, wide) if end is not None else "" for end in (low, high)]
    if wide == dtype:
        emitter.ops("Clip", [codes, *ends], {}, node.outputs, node.name)
        return True
    to = {"to": element_type(dtype)}
    emitter.ops("Cast", [emitter.op("Clip", codes, *ends)], to, node.outputs, node.name)
    return True


def _axis(emitter: Emitter, node: Node) -> dict[str, Any]:
    """axis where there is more than one scale, block_size where there are blocks."""
    attributes = {key: node.attributes[key] for key in ("axis", "block_size")}
    if not attributes["block_size"]:
        del attributes["block_size"]
        if emitter.graph.values[node.inputs[1]].size == 1:
            del attributes["axis"]
    return attributes


def _dequantize(emitter: Emitter, node: Node) -> bool:
    """A binary64 scale (products of two binary32 numbers) has no DequantizeLinear in ONNX."""
    values = emitter.graph.values
    if values[node.inputs[1]].dtype != "float64":
        emitter.ops(node.op, node.inputs, _axis(emitter, node), node.outputs, node.name)
        return True
    if node.attributes["block_size"]:
        raise unsupported(node, "binary32 scales of blocks", "float64", "use one scale a channel")
    shape = [1] * len(values[node.inputs[0]].shape)
    numbers = []
    for index, name in enumerate(name for name in node.inputs if name):
        wide = name if values[name].dtype == "float64" else emitter.cast(name, "float64")
        if index and values[name].size > 1:
            shape[node.attributes["axis"]] = values[name].size
            wide = emitter.op("Reshape", wide, emitter.constant(shape, "int64"))
        numbers.append(wide)
    x, scale, *zero = numbers
    centred = emitter.op("Sub", x, zero[0]) if zero else x
    emitter.ops("Mul", [centred, scale], {}, node.outputs, node.name)
    return True


def _recurrent(emitter: Emitter, node: Node) -> bool:
    """alpha and beta as ONNX lists them: of the functions that have them, in order."""
    attributes = dict(node.attributes)
    if len(node.inputs) > PROJECTION and node.inputs[PROJECTION]:
        raise unsupported(
            node, "no projection", repr(node.inputs[PROJECTION]), "ONNX's LSTM has none"
        )
    sizes = 2 if attributes["direction"] == "bidirectional" else 1
    found = [a for each in activations(LAYERS[node.op], attributes, sizes) for a in each]
    for index, key in enumerate(("activation_alpha", "activation_beta")):
        numbers = [a.numbers[index] for a in found if len(a.numbers) > index]
        attributes[key] = [_attribute(node, key, n) for n in numbers] if attributes[key] else None
    attributes["activations"] = list(attributes["activations"]) or None
    if attributes["clip"] is not None:
        _attribute(node, "clip", float(attributes["clip"]))
    emitter.ops(node.op, node.inputs, attributes, node.outputs, node.name)
    return True


def _trees(emitter: Emitter, node: Node) -> bool:
    """A TreeEnsembleRegressor, whose lists name nodes as the tables do: by reference."""
    arrays = [emitter.graph.constants.get(name) for name in node.inputs]
    if any(array is None for array in arrays[1:]):
        raise unsupported(node, "constant trees", "computed ones", "ONNX has attributes for them")
    trees, nodes = ensemble_of(arrays), []
    for tree, root in enumerate(trees.roots.tolist()):
        waiting = [root]
        while waiting:
            at = waiting.pop()
            nodes.append((tree, at))
            if at < trees.branches:
                waiting += [int(trees.no[at]), int(trees.yes[at])]
            if len(nodes) > trees.branches + len(trees.targets):
                raise unsupported(node, "trees", "shared branches", "ONNX has one parent each")
    own = np.array(nodes)
    branch = own[:, 1] < trees.branches
    leaf = np.where(branch, -1, own[:, 1] - trees.branches)
    thresholds, modes = np.asarray(arrays[THRESHOLDS]), np.asarray(arrays[MODES])

    def listed(table: Any, other: int = 0) -> list[Any]:
        found = np.full(len(own), other, np.asarray(table).dtype)
        found[branch] = table[own[branch, 1]]
        return list(found.tolist())

    width = trees.weights.shape[1]
    leaves = np.flatnonzero(leaf >= 0)
    names = [name.encode() for name in ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_EQ", "LEAF")]
    attributes = {
        "domain": CLASSICAL,
        "n_targets": node.attributes["targets"],
        "nodes_treeids": own[:, 0].tolist(),
        "nodes_nodeids": own[:, 1].tolist(),
        "nodes_featureids": listed(trees.features),
        "nodes_values": listed(thresholds),
        "nodes_modes": [names[mode] for mode in listed(modes, len(names) - 1)],
        "nodes_truenodeids": listed(trees.yes),
        "nodes_falsenodeids": listed(trees.no),
        "target_treeids": np.repeat(own[leaves, 0], width).tolist(),
        "target_nodeids": np.repeat(own[leaves, 1], width).tolist(),
        "target_ids": (trees.targets[leaf[leaves], None] + np.arange(width)).reshape(-1).tolist(),
        "target_weights": trees.weights[leaf[leaves]].reshape(-1).tolist(),
    }
    emitter.ops("TreeEnsembleRegressor", node.inputs[:1], attributes, node.outputs, node.name)
    return True


_RULES: Mapping[str, Callable[[Emitter, Node], bool]] = {
    **dict.fromkeys(ops_with(Trait.TALLIES), _trees),
    "Cast": _cast,
    "AveragePool": _pool,
    "MaxPool": _pool,
    "BitCast": _newer,
    "RoundDynamic": _round_dynamic,
    "CumProd": _newer,
    **dict.fromkeys(("Resize", "Interpolate"), _resize),
    "Swish": _swish,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    **dict.fromkeys(LAYERS, _recurrent),
}
