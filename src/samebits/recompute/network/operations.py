"""Number of operations of an ATen operator and of a BFP operation, from their shapes.

A multiplication and an addition are two operations. ATen operators that multiply are counted from
the shapes of their arguments by the formulas of torch.utils.flop_counter, and by those below where
it has none or a wrong one (2.13 counts the weight gradient of a grouped convolution as if it had
one group). All others count by their elements.

Example: a matmul of [8, 16, 64] and [8, 64, 32] has 2 * 8 * 16 * 64 * 32 = 524,288 operations, 128
for each of its 4,096 results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from samebits.recompute.network.graph import Step
from samebits.train.operations.linear import PRODUCTS
from samebits.train.operations.matmul import MAT_MUL
from samebits.train.operations.transposed import TRANSPOSED_PRODUCTS

Shape = tuple[int, ...]
Work = tuple[int, int]
aten = torch.ops.aten

# Operations per element of the result, by the name of a BFP operation or of an operator: how many
# times longer than a ReLU's they took on one core with AVX2 (torch 2.13), in whole numbers.
PER_ELEMENT = {
    "BatchNorm": 6,
    "LayerNorm": 8,
    "Dropout": 4,
    "TableActivation": 2,
    "native_batch_norm": 6,
    "native_batch_norm_backward": 10,
    "native_layer_norm": 5,
    "native_layer_norm_backward": 10,
    "native_group_norm": 5,
    "native_group_norm_backward": 10,
    "_softmax": 3,
    "_safe_softmax": 3,
    "_log_softmax": 3,
    "exp": 3,
    "gelu": 3,
    "gelu_backward": 6,
    "silu": 3,
    "sigmoid": 6,
    "sigmoid_": 6,
    "tanh": 12,
    "tanh_": 12,
    "bernoulli_": 6,
    "dropout": 8,
    "max_pool2d_with_indices": 10,
}
# Operators that give less than they read, or write less than their result.
BY_INPUT = ("sum", "mean", "var", "std", "amax", "amin", "max", "min", "prod", "norm", "any", "all")


def multiplies(packet: Any) -> bool:
    """Whether an operator's count is one of products."""
    return packet in _OWN or packet in flop_registry


def operations(packet: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Count the operations of one call of an ATen operator."""
    name = packet.__name__
    formula = _OWN.get(packet)
    if formula is not None:
        return formula(args, result)
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=result))
    by_input = name in BY_INPUT or "pool" in name or "backward" in name
    given = args[0] if by_input and args else result
    per_element = PER_ELEMENT.get(name, 1)
    return per_element * sum(x.numel() for x in _tensors(given)[:1])


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [x for item in value for x in _tensors(item)]
    return []


def _product(args: Any, result: Any) -> int:
    """mv, dot and their like: the larger of both operands once."""
    return 2 * max(x.numel() for x in _tensors(args))


def _convolution_backward(args: Any, result: Any) -> int:
    """Every gradient has the multiplications of the forward pass."""
    gradient, x, weight = args[:3]
    transposed, wanted = args[7], args[10]
    places = (x if transposed else gradient).shape
    forward = 2 * places[0] * math.prod(places[2:]) * weight.numel()
    return int(forward * (bool(wanted[0]) + bool(wanted[1])))


def _attention(args: Any, result: Any) -> int:
    """Both products of query, key and value [N, heads, length, width]."""
    query, key, value = (x.shape for x in args[:3])
    pairs = query[0] * query[1] * query[2] * key[2]
    return int(2 * pairs * (query[3] + value[3]))


def _attention_backward(args: Any, result: Any) -> int:
    """Two gradients for each product, and the first product again."""
    query, key, value = (x.shape for x in args[1:4])
    pairs = query[0] * query[1] * query[2] * key[2]
    return int(2 * pairs * (3 * query[3] + 2 * value[3]))


def _recurrent(args: Any, result: Any) -> int:
    """A layer of oneDNN: the weights [gates * H, F] and [gates * H, H] for every step."""
    steps, samples = args[0].shape[:2]
    return int(2 * steps * samples * (args[1].numel() + args[2].numel()))


def _trilinear(args: Any, result: Any) -> int:
    """The three operands with one-sized axes expanded, multiplied twice and summed."""
    shapes = []
    for tensor, added in zip(args[:3], args[3:6], strict=True):
        shape = list(tensor.shape)
        for axis in sorted(added):
            shape.insert(axis, 1)
        shapes.append(shape)
    return 3 * math.prod(max(sizes) for sizes in zip(*shapes, strict=True))


_OWN: dict[Any, Callable[[Any, Any], int]] = {
    aten.mv: _product,
    aten.dot: _product,
    aten.vdot: _product,
    aten.addmv: lambda args, result: 2 * args[1].numel(),
    aten.addr: lambda args, result: 2 * result.numel(),
    aten.addbmm: lambda args, result: 2 * args[1].numel() * args[2].shape[-1],
    aten._cdist_forward: lambda args, result: 3 * result.numel() * args[0].shape[-1],
    aten._cdist_backward: lambda args, result: 4 * args[0].numel() * args[2].shape[-2],
    aten._trilinear: _trilinear,
    aten._embedding_bag: lambda args, result: args[1].numel() * args[0].shape[-1],
    aten._embedding_bag_backward: lambda args, result: args[1].numel() * args[0].shape[-1],
    aten.convolution_backward: _convolution_backward,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten.mkldnn_rnn_layer: _recurrent,
    aten.mkldnn_rnn_layer_backward: lambda args, result: 2 * _recurrent(args, result),
}


def step_operations(step: Step, weights: Sequence[Shape], given: Shape, output: Shape) -> Work:
    """Number of operations of a BFP step, and how many of them are of products, from shapes.

    weights: of the parameters that it reads; given, output: of its first input, and of its output.
    Each weight of products meets a convolution's places and a linear layer's rows, a recurrent
    layer's steps and samples. Other operations count by their elements.
    """
    operation, size = step.operation, math.prod(output)
    if operation is PRODUCTS:
        count = 2 * size * math.prod(weights[0][1:])
    elif operation is TRANSPOSED_PRODUCTS:
        count = 2 * math.prod(given) * math.prod(weights[0][1:])
    elif operation is MAT_MUL:
        count = 2 * size * given[-1]
    elif "w" in operation.reads:  # of a recurrent layer, beside biases
        count = 2 * math.prod(given[:-1]) * sum(math.prod(w) for w in weights if len(w) > 1)
    else:
        by_input = "Pool" in operation.name
        return PER_ELEMENT.get(operation.name, 1) * (math.prod(given) if by_input else size), 0
    return count, count
