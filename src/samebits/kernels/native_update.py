"""Directions and lazy updates in C (training.md 2 to 4)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import byref, c_int64
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from samebits.kernels.adam import AdamTerms
from samebits.kernels.eager import Eager
from samebits.kernels.library import (
    adam_struct,
    addends,
    draw_struct,
    real_of,
    state_pointers,
    terms_struct,
    update_struct,
)
from samebits.kernels.memory import I16, I64, is_in_word_order, pointer, word_pointer
from samebits.kernels.moments import BIAS, Update, exponent_for
from samebits.kernels.native_optimize import groups, tables
from samebits.kernels.native_parts import NativeParts
from samebits.kernels.optimize import Roster, StepGradients, StepOptions
from samebits.kernels.protocol import Gradient, SGDTerms, WholePart
from samebits.kernels.update import combine_shifts, direction_exponent
from samebits.spec import formats
from samebits.spec.training.moments import TOP_FIELD

_threads = torch.get_num_threads
Weight = TypeVar("Weight", Tensor, SGDTerms, AdamTerms)
P = ParamSpec("P")
DONE, FULL = 0, 2  # what `samebits_optimize` gives, beside 1: it does not surely fit
WITNESSES = 256  # elements of a sum of gradients that are looked at before it is used
T = TypeVar("T")


def _in_word_order(
    method: Callable[Concatenate[NativeUpdate, Weight, P], T],
) -> Callable[Concatenate[NativeUpdate, Weight, P], T]:
    """A method for weights whose memory has the order of random words; `Eager` does all others."""
    plain = getattr(Eager, method.__name__)

    @functools.wraps(method)
    def call(self: NativeUpdate, weight: Weight, /, *args: P.args, **kwargs: P.kwargs) -> T:
        codes = weight if isinstance(weight, Tensor) else weight.codes
        chosen = method if is_in_word_order(codes) else plain
        return chosen(self, weight, *args, **kwargs)

    return call


class NativeUpdate(NativeParts):
    """The optimizers' part of `Native`."""

    @_in_word_order
    def direction(self, terms: SGDTerms, out: Tensor) -> tuple[int, int]:
        """One pass: the exponent follows from the terms' own."""
        struct, exponent = self._terms(terms)
        result, draw = direction_exponent(exponent), draw_struct(terms.draw)
        count = terms.codes.numel()
        arguments = (byref(struct), byref(draw), count, result - exponent + BIAS)
        place = word_pointer(out, count, I16)
        largest = int(self._c.samebits_combine(*arguments, place, _threads()))
        return (result, largest) if largest else (formats.EXPONENT_MIN, 0)

    def _terms(self, terms: SGDTerms) -> tuple[ctypes.Structure, int]:
        """The terms of a direction as C reads them, and their exponent.

        Two gradient parts whose sum surely fits 32 bits are added where they are used, without a
        tensor for their sum. Only one thing can then differ from `resolve`: parts that cancel
        everywhere would give an exponent of -128, and so a lower common exponent. Where the first
        elements do not show that some sum is not zero, the parts are summed first.
        """
        second, by_first, by_second = None, 0, 0
        sides = _two_parts(terms.gradient)
        if sides is not None and self._counts(*sides[:2], terms.codes):
            (g, by_first), (second, by_second), e = sides
        else:
            g, e_g = self.resolve(list(terms.gradient.parts))
            e = int(e_g)
        exponent, by_g, by_decay, by_momentum = combine_shifts(e, terms)
        shifts = (by_first, by_second, by_g, by_decay, by_momentum)
        return terms_struct(terms, g, second, shifts), exponent

    def _counts(self, first: WholePart, second: WholePart, codes: Tensor) -> bool:
        """Whether some sum among the first elements in the memory order of codes is not zero."""
        (a, by_a), (b, by_b) = first, second
        if not a.stride() == b.stride() == codes.stride():
            return False
        seen = min(a.numel(), WITNESSES)
        sides = addends(a.numel(), (a, by_a), (b, by_b))
        return bool(self._c.samebits_add_grad(sides, 2, seen, None, None, 1))

    @_in_word_order
    def adam(self, terms: AdamTerms, out: Tensor) -> tuple[int, int, int]:
        """Three passes: for the exponents of the moments, that of the direction, and its codes."""
        t = terms
        if abs(t.e_g) > 900:  # e_A is that of a weight
            return super().adam(terms, out)
        struct = adam_struct(t)
        size, tops, draw = t.codes.numel(), (c_int64 * 2)(), draw_struct(t.draw)
        self._c.samebits_adam_tops(byref(struct), size, tops, _threads())
        e_m, e_s = (exponent_for(real_of(top)) for top in tops)
        struct.bias_first, struct.bias_root = e_m + BIAS, e_s + BIAS
        self._c.samebits_adam_store(byref(struct), byref(draw), size, _threads())
        struct.base_first, struct.base_root = e_m - TOP_FIELD, e_s - TOP_FIELD
        measure = (byref(struct), size)
        e_p = exponent_for(real_of(self._c.samebits_adam_direction(*measure, 0, None, _threads())))
        place = word_pointer(out, size, I16)
        self._c.samebits_adam_direction(*measure, e_p + BIAS, place, _threads())
        return e_m, e_s, e_p

    def optimize(
        self, roster: Roster, options: tuple[StepOptions, ...], gradients: StepGradients
    ) -> bool | None:
        table, parts = tables(roster, gradients)
        table.take(parts.counts)
        operands = (table.rows, table.count, groups(options), parts.rows)
        found = self._c.samebits_optimize(*operands, _threads())
        if found == FULL:
            raise MemoryError("no memory for the directions of an optimizer's step")
        if found == DONE:
            table.count_versions(options)
        return bool(found == DONE)

    @_in_word_order
    def lazy_carry(
        self, codes: Tensor, delayed: Tensor, update: Update, commit: bool
    ) -> tuple[int, int]:
        count, tops = codes.numel(), (c_int64 * 2)()
        arguments = (*state_pointers(codes, delayed), byref(update_struct(update, count)))
        self._c.samebits_lazy_update(*arguments, count, commit, tops, _threads())
        return tops[0], tops[1]

    @_in_word_order
    def lazy_resplit(self, codes: Tensor, delayed: Tensor, update: Update, by: int) -> None:
        count = codes.numel()
        arguments = (*state_pointers(codes, delayed), byref(update_struct(update, count)))
        self._c.samebits_lazy_resplit(*arguments, by, count, _threads())

    @_in_word_order
    def lazy_rows(
        self, codes: Tensor, delayed: Tensor, exponent: Tensor, update: Update, limit: int
    ) -> Tensor:
        """Row by row, rows that lie in memory one after the other."""
        moved = exponent.clone()
        count, of = codes.numel(), codes.shape[0]
        state = (*state_pointers(codes, delayed), byref(update_struct(update, count)))
        sizes = (limit, of, count // max(of, 1), _threads())
        self._c.samebits_lazy_rows(*state, pointer(moved, of, I64), *sizes)
        return moved


def _two_parts(gradient: Gradient) -> tuple[WholePart, WholePart, int] | None:
    """Two 32-bit parts whose sum surely fits: ((a, shift), (b, shift), exponent), else None.

    Then `resolve` is a plain aligned sum, taken element by element where the sum is used.
    """
    if len(gradient.parts) != 2:
        return None
    (a, ea), (b, eb) = gradient.parts
    bound_a, bound_b = gradient.bounds
    if not (bound_a and bound_b and a.dtype == b.dtype == torch.int32):
        return None
    exponent = max(ea, eb)
    by_a, by_b = ea - exponent, eb - exponent
    if formats.scaled(bound_a, by_a) + formats.scaled(bound_b, by_b) > formats.Q32:
        return None
    return (a, by_a), (b, by_b), exponent
