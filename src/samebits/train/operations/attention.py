"""Attention of products and a softmax (training.md 14; Vaswani et al. 2017)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.train.operation import TrainingOperation
from samebits.train.operations.addition import add
from samebits.train.operations.arrangement import repeat_interleave
from samebits.train.operations.matmul import product
from samebits.train.operations.multiplication import scale
from samebits.train.operations.narrow import as_bfp
from samebits.train.operations.pointwise import functional_dropout
from samebits.train.operations.softmax import mask, softmax
from samebits.train.tensor import BFPTensor, offer
from samebits.train.value import BFPValue


def attention(
    query: BFPTensor,
    key: BFPTensor,
    value: BFPTensor,
    masks: tuple[Tensor, ...] = (),
    causal: bool = False,
    factor: float | None = None,
    drop: Callable[[BFPTensor], BFPTensor] | None = None,
) -> BFPTensor:
    """softmax(query key' * factor) value of query [..., n, d], key [..., m, d], value [..., m, v].

    The result is bfp32 until a layer takes it. masks: of shapes that broadcast to [..., n, m]; bool
    ones are true where a key counts, float ones are added. causal: key j counts for the queries
    from j on. factor: 1 / sqrt(d) unless given. drop: applied to the weights. Raises
    UnsupportedError as `product`.
    """
    given = 1.0 / math.sqrt(query.shape[-1]) if factor is None else factor
    scores = scale(product(query, key, transposed=True), given)
    allowed = None
    if causal:
        n, m = scores.shape[-2:]
        allowed = torch.ones(n, m, dtype=torch.bool, device=scores.device).tril()
    for one in masks:
        if one.dtype == torch.bool:
            allowed = one if allowed is None else allowed & one
        elif not one.is_floating_point():
            raise UnsupportedError(
                f"attention: expected a mask of bool or of real numbers, found {one.dtype}"
            )
        elif scores.allowed is not None:
            raise UnsupportedError("attention: expected one float mask, found two; add them first")
        else:
            scores = add(scores, one)
    if allowed is not None:
        scores = mask(scores, allowed)
    weights = softmax(scores, -1)
    del scores  # 32 bits an element, which nothing reads any more
    return product(weights if drop is None else drop(weights), value)


def scaled_dot_product_attention(
    query: BFPTensor,
    key: BFPTensor,
    value: BFPTensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> BFPTensor:
    """As torch.nn.functional has it.

    With enable_gqa (Ainslie et al. 2023) several heads of query in a row share one of key and
    value; dropout_p is as of `functional_dropout`. Raises UnsupportedError for attn_mask beside
    is_causal, and for heads that are no whole number of groups.
    """
    if is_causal and attn_mask is not None:
        raise UnsupportedError(
            "scaled_dot_product_attention: expected attn_mask or is_causal, found both"
        )
    if enable_gqa:
        key, value = (_of_groups(query, x) for x in (key, value))
    masks = () if attn_mask is None else (attn_mask,)
    drop = functools.partial(functional_dropout, p=dropout_p) if dropout_p else None
    return attention(query, key, value, masks, is_causal, scale, drop)


def _of_groups(query: BFPTensor, x: BFPTensor) -> BFPTensor:
    """Keys or values [..., heads, k, d] with each head as often as a group of query has heads."""
    if query.dim() < 3 or x.dim() < 3 or query.shape[-3] % x.shape[-3]:
        raise UnsupportedError(
            "scaled_dot_product_attention: expected heads of query in groups, one for each head of "
            f"key and value, found {tuple(query.shape)} and {tuple(x.shape)}"
        )
    return repeat_interleave(x, query.shape[-3] // x.shape[-3], -3)


def _split(x: BFPValue, heads: int) -> BFPValue:
    """[n, t, heads * d] as [n * heads, t, d]: vectors stay vectors, so exponents of rows stay."""
    n, t, _ = x.shape
    return x.moved(
        lambda v: v.reshape(n, t, heads, -1).permute(0, 2, 1, 3).reshape(n * heads, t, -1)
    )


def _join(x: BFPValue, heads: int) -> BFPValue:
    """The inverse: [n * heads, t, d] as [n, t, heads * d]."""
    count, t, d = x.shape
    return x.moved(
        lambda v: (
            v.reshape(-1, heads, t, d).permute(0, 2, 1, 3).reshape(count // heads, t, heads * d)
        )
    )


SPLIT_HEADS = TrainingOperation(
    "SplitHeads", _split, lambda call, grad: _join(grad, call.arguments[1])
)
JOIN_HEADS = TrainingOperation(
    "JoinHeads", _join, lambda call, grad: _split(grad, call.arguments[1])
)


def split_heads(x: BFPTensor, heads: int) -> BFPTensor:
    """[n, t, heads * d] as [n * heads, t, d]."""
    return SPLIT_HEADS(as_bfp(x, "attention"), heads)


def join_heads(x: BFPTensor, heads: int) -> BFPTensor:
    """[n * heads, t, d] as [n, t, heads * d]."""
    return JOIN_HEADS(as_bfp(x, "attention"), heads)


offer(scaled_dot_product_attention, "scaled_dot_product_attention")
# torch.nn.TransformerEncoder asks, in evaluation, whether it may leave out what is padded.
offer(lambda x, padding: False, "_nested_tensor_from_mask_left_aligned")
