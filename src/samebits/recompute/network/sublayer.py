"""A model as planning knows it: its sub-layers, their sizes and what they read, as plain data."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

SEPARABLE = ("Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d", "Linear")
"""Kinds whose two gradients are products apart."""
LIGHT = 8  # what a sub-layer saves besides values is always kept if below 1/8 of its output


@dataclass(frozen=True)
class SubLayer:
    """Sub-layer i of a step; its output is value i, and value 0 the input. Sizes in bytes.

    Of an operator of a captured step name, kind, shape, size and `fixed` alone are known.

    inputs, shape: values that its forward pass reads; shape of its output
    size:   of the output's storage, 0 for a view
    alias:  the value of which the output is a view, or None
    needs:  values that its backward pass reads
    extra:  what its backward pass reads besides values and weights, such as a mask
    forward_peak, backward_peak: largest level while it runs, above the level before
    gradients: per differentiable input its storages: k >= 0 is the k-th of `fresh`, -1 - k the k-th
               storage of the gradient that arrived
    fresh:  sizes of the storages that its backward pass allocates for gradients of inputs
    weights: per trained parameter that it reads, the parameter's index in the model and the size of
             its gradient
    state:  what computing it again needs besides its inputs
    operations, gradient_operations: of its forward and of its backward pass
    products: those operations of the forward pass that are products of matrices or convolutions
    differentiable: whether it has a backward pass
    fixed:  whether it cannot be computed again
    apart:  largest levels while its activation gradient and then its weight gradient are computed,
            above the level before; None where they come together only
    """

    name: str
    kind: str
    inputs: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    size: int = 0
    alias: int | None = None
    needs: tuple[int, ...] = ()
    extra: int = 0
    forward_peak: int = 0
    backward_peak: int = 0
    gradients: tuple[tuple[int, tuple[int, ...]], ...] = ()
    fresh: tuple[int, ...] = ()
    weights: tuple[tuple[int, int], ...] = ()
    state: int = 0
    operations: int = 0
    gradient_operations: int = 0
    products: int = 0
    differentiable: bool = True
    fixed: bool = False
    apart: tuple[int, int] | None = None

    @property
    def light(self) -> bool:
        """Whether what it saves besides values is kept even where its output is not."""
        return self.extra * LIGHT <= self.size or self.size == 0


@dataclass(frozen=True)
class Loss:
    """Memory of the loss, in bytes.

    kept: between its forward and its backward pass; forward_peak, backward_peak: largest levels of
    both, above the level before; gradient: size of the gradient of the model's output
    """

    kept: int = 0
    forward_peak: int = 0
    backward_peak: int = 0
    gradient: int = 0


@dataclass(frozen=True)
class PassNetwork:
    """A model as planning knows it.

    layers: in the order of execution; layers[0] is the input
    output: the value that the model returns
    """

    layers: tuple[SubLayer, ...]
    output: int
    loss: Loss = field(default_factory=Loss)

    def root(self, value: int) -> int:
        """The value that owns the storage of `value`."""
        return self._roots[value]

    @functools.cached_property
    def _roots(self) -> list[int]:
        roots: list[int] = []
        for i, layer in enumerate(self.layers):  # a view comes after what it is a view of
            roots.append(i if layer.alias is None else roots[layer.alias])
        return roots

    @functools.cached_property
    def views(self) -> list[list[int]]:
        """Per value, itself and the views of it."""
        found: list[list[int]] = [[] for _ in self.layers]
        for i, root in enumerate(self._roots):
            found[root].append(i)
        return found

    def roots(self, values: Iterable[int]) -> list[int]:
        """The distinct values that own the storages of `values`, in order of first use."""
        return list(dict.fromkeys(self.root(v) for v in values))

    def choices(self) -> tuple[int, ...]:
        """The values that a plan may drop: outputs with a storage of their own."""
        return tuple(
            i
            for i, layer in enumerate(self.layers)
            if i and layer.alias is None and layer.size and not layer.fixed
        )
