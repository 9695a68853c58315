"""Attention over sequences."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.train.layers.absent import Absent
from samebits.train.layers.affine import Linear
from samebits.train.layers.base import Layer
from samebits.train.layers.elementwise import Dropout
from samebits.train.operations import attention, pointwise
from samebits.train.operations.indexing import indexed, transpose
from samebits.train.operations.linear import linear
from samebits.train.operations.narrow import as_bfp8
from samebits.train.tensor import BFPParameter, BFPTensor


class MultiheadAttention(Layer):
    """The parameters and arguments of torch.nn.MultiheadAttention, whose heads are matrices.

    Except: the weights stay inside; in their place is None, or what refuses any use.
    """

    in_proj_weight: BFPParameter
    in_proj_bias: BFPParameter | None
    _qkv_same_embed_dim = True  # what torch.nn.TransformerEncoderLayer asks of it

    def __init__(
        self,
        in_proj_weight: BFPParameter,
        in_proj_bias: BFPParameter | None,
        out_proj: Linear,
        num_heads: int,
        batch_first: bool,
        dropout: Dropout | None = None,
    ) -> None:
        super().__init__()
        self.hold(in_proj_weight=in_proj_weight, in_proj_bias=in_proj_bias)
        self.out_proj, self.dropout = out_proj, dropout
        self.num_heads, self.batch_first = num_heads, batch_first

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[BFPTensor, Absent | None]:
        """[T, N, E] ([N, T, E] with batch_first), or [T, E] -> output of query's shape, weights.

        Masks as torch has them: bool ones are true where a key does not count. is_causal is a hint
        about attn_mask, which has to be there. The weights, which nothing keeps, are an object that
        raises UnsupportedError in any use; None without need_weights.
        """
        with self.named() as where:
            if is_causal and attn_mask is None:
                raise UnsupportedError(f"{where}: expected attn_mask with is_causal, found none")
            given = (query, key, value)
            if {x.dim() for x in given} not in ({2}, {3}):
                shapes = ", ".join(str(tuple(x.shape)) for x in given)
                raise UnsupportedError(
                    f"{where}: expected three times [sequence, batch, features], or [sequence, "
                    f"features], found {shapes}"
                )
            each = {id(x): x for x in given}  # one product for each, however often it is given
            taken = {at: self._batched(as_bfp8(x, where)) for at, x in each.items()}
            q, k, v = self._projected(*(taken[id(x)] for x in given))
            masks = self._masks(attn_mask, key_padding_mask, q, k, query.dim() == 2)
            y = attention.attention(q, k, v, masks, drop=self.dropout)
            y = self.out_proj(attention.join_heads(y, self.num_heads))
            weights = _not_kept(where) if need_weights else None
            if query.dim() == 2:
                return pointwise.reshape(y, tuple(query.shape)), weights
            return (y if self.batch_first else transpose(y, 0, 1)), weights

    def _batched(self, x: BFPTensor) -> BFPTensor:
        """Tokens as [N, T, E]."""
        if x.dim() == 2:
            return pointwise.reshape(x, (1, *x.shape))
        return x if self.batch_first else transpose(x, 0, 1)

    def _projected(self, *given: BFPTensor) -> list[BFPTensor]:
        """Queries, keys and values, [N * heads, T, d]; one product for each tensor given."""
        found: dict[int, BFPTensor] = {}
        parts = []
        for place, x in enumerate(given):
            if id(x) not in found:
                found[id(x)] = linear(x, self.in_proj_weight, self.in_proj_bias)
            size = x.shape[-1]
            own = indexed(found[id(x)], (..., slice(place * size, (place + 1) * size)))
            parts.append(attention.split_heads(own, self.num_heads))
        return parts

    def _masks(
        self,
        attn_mask: Tensor | None,
        padding: Tensor | None,
        queries: BFPTensor,
        keys: BFPTensor,
        flat: bool,
    ) -> tuple[Tensor, ...]:
        """Masks of [N * heads, n, m], or [n, m], bool ones true where a key counts.

        queries, keys: [N * heads, n or m, d]. flat: whether tokens came without N. Raises
        UnsupportedError for shapes and types that torch refuses.
        """
        (count, n, _), m = queries.shape, keys.shape[1]
        samples, masks = count // self.num_heads, []
        if padding is not None:
            _check_mask("key_padding_mask", padding, (m,) if flat else (samples, m))
            whole = padding.reshape(samples, 1, 1, -1).expand(-1, self.num_heads, -1, -1)
            masks.append(whole.reshape(-1, 1, m))
        if attn_mask is not None:
            _check_mask("attn_mask", attn_mask, (n, m), (count, n, m))
            masks.append(attn_mask)
        boolean = [~m for m in masks if m.dtype == torch.bool]
        real = [m for m in masks if m.dtype != torch.bool]
        return (*boolean, *([functools.reduce(torch.add, real)] if real else []))

    def extra_repr(self) -> str:
        """The options, as torch prints them."""
        return f"num_heads={self.num_heads}, batch_first={self.batch_first}"


def _not_kept(where: str) -> Absent:
    """In the place of the attention weights."""
    return Absent(
        f"{where}: expected a model that reads the output of attention, found one that reads its "
        "weights, which are not kept; compute softmax(q @ k.mT * factor, -1) in the module, or "
        "keep this one in float32 (keep_float of convert)"
    )


def _check_mask(what: str, mask: Tensor, *shapes: tuple[int, ...]) -> None:
    if tuple(mask.shape) not in shapes or not (
        mask.dtype == torch.bool or mask.is_floating_point()
    ):
        expected = " or ".join(map(str, shapes))
        raise UnsupportedError(
            f"{what}: expected bool or real numbers of shape {expected}, found {mask.dtype} "
            f"{tuple(mask.shape)}"
        )
