"""Operators that the ONNX standard itself defines as functions of simpler ones."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto

from samebits.errors import InputError, UnsupportedError
from samebits.ir import Value
from samebits.onnx.reader.node import OnnxNode
from samebits.onnx.reader.structure import opsets_of
from samebits.onnx.reader.tensors import type_number

PREVIEW = "ai.onnx.preview"
_STANDARD = (
    "AffineGrid",
    "Attention",
    "BlackmanWindow",
    "CausalConvWithState",
    "CenterCropPad",
    "HammingWindow",
    "HannWindow",
    "LinearAttention",
    "MeanVarianceNormalization",
    "NegativeLogLikelihoodLoss",
    "RotaryEmbedding",
    "SoftmaxCrossEntropyLoss",
    "SwiGLU",
)
EXPANDED = frozenset({("", name) for name in _STANDARD} | {(PREVIEW, "FlexAttention")})


def standard_function(
    node: OnnxNode, domain: str
) -> tuple[FunctionProto, dict[str, AttributeProto]]:
    """The body that the standard gives the node's operator at its opset, for the types of its
    inputs, and the defaults of its attributes.

    Raises UnsupportedError where there is none, InputError where the node does not fit.
    """
    types = [node.builder.values.get(name) for name in node.inputs]
    try:
        # The package's own annotations leave out the functions of a schema.
        schema: Any = onnx.defs.get_schema(node.op, node.opset, domain)
    except onnx.defs.SchemaError:
        raise UnsupportedError(f"opset {node.opset} has no such operator") from None
    if not schema.has_function and not schema.has_context_dependent_function:
        raise UnsupportedError(f"opset {node.opset} does not define it by other operators")
    if not schema.min_input <= len(types) <= schema.max_input:
        raise InputError(f"expected {schema.min_input} to {schema.max_input} inputs")
    unknown = sorted(set(node.attributes) - set(schema.attributes))
    if unknown:
        raise UnsupportedError(f"the attribute {unknown[0]!r} is not known")
    defaults = {
        name: attribute.default_value
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }
    if schema.has_function:
        return _with_opset(schema.function_body), defaults
    call = NodeProto(
        op_type=node.op, domain=domain, name="call", input=[], output=list(node.proto.output)
    )
    call.input.extend(f"input{i}" if value else "" for i, value in enumerate(types))
    call.attribute.extend(node.attributes.values())
    try:
        body = schema.get_context_dependent_function(
            call.SerializeToString(), [_type(value).SerializeToString() for value in types]
        )
    except Exception as error:  # the library throws what its language has
        raise InputError(f"expected a node that the standard accepts, found {error}") from None
    if not body:
        raise UnsupportedError("the standard does not define it for these inputs")
    return _with_opset(FunctionProto.FromString(body)), defaults


def _with_opset(function: FunctionProto) -> FunctionProto:
    """The body, of the newest opset where it states others alone."""
    stated = opsets_of(function.opset_import, f"function {function.name!r}")
    if stated and "" not in stated:
        function.opset_import.add(domain="", version=onnx.defs.onnx_opset_version())
    return function


def _type(value: Value | None) -> TypeProto:
    proto = TypeProto()
    if value is not None:
        proto.tensor_type.elem_type = type_number(value.dtype)
        for size in value.shape:
            proto.tensor_type.shape.dim.add().dim_value = size
    return proto
