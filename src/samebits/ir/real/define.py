"""Shared by all real operators: their definition with its checks, and exact arrays.

A tensor of real numbers is an array of float64 (float mode) or an object array of Fraction (exact
mode). Tensors that ONNX types as integers or booleans are integer or boolean arrays in both modes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.errors import NonFiniteError, UnsupportedError
from samebits.ir.ops import REQUIRED, Array, Attributes, Op, Type, broadcast, elements, register
from samebits.ir.real.minifloat import STORAGE, TYPES, widened
from samebits.ir.traits import Trait

Inputs = Sequence[Any]  # Values or arrays, None where an optional input is left out

FLOATS = ("float16", "bfloat16", "float32", "float64")
REALS = (*FLOATS, *STORAGE)  # real numbers in a graph; operators compute with FLOATS
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
# numpy has no such types: their codes lie in int8 and uint8 arrays
NARROW = ("int4", "uint4", "int2", "uint2")
NUMBERS = (*FLOATS, *INTEGERS)
ANY = (*NUMBERS, *NARROW, *STORAGE, "bool")

ELEMENTS_MAX = 2**28  # of one tensor: 2 GiB of float64
UNIT_EXPONENTS = (-900, 900)  # of two of them the product is far from the ends of binary64
SAMPLES = "samples"  # of a node whose first operand holds so many along its first axis (`ir.many`)
EXACT_FLOAT = 2**53  # float64 holds every integer up to here


def code_range(dtype: str) -> tuple[int, int]:
    """The least and greatest integer of a type, narrow types and bool included."""
    if dtype in NARROW:
        half = 1 << (int(dtype[-1]) - 1)
        return (-half, half - 1) if dtype[0] == "i" else (0, 2 * half - 1)
    if dtype == "bool":
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def array_type(dtype: str) -> np.dtype[Any]:
    """The numpy type of the arrays that hold tensors of this type."""
    return np.dtype(f"{dtype[:-1]}8" if dtype in NARROW else dtype)


def is_real(dtype: np.dtype[Any]) -> bool:
    """Whether an array of this type holds floating-point numbers."""
    return dtype.kind == "f" or dtype.name in TYPES


# --- definition -----------------------------------------------------------------------------


def define(
    name: str,
    inputs: int | tuple[int, int | None],
    attributes: Attributes,
    infer: Callable[[Inputs, Attributes], list[Type]],
    meaning: Callable[[Inputs, Attributes], list[Array]],
    *traits: Trait,
    rational: bool = True,
    unbounded: Sequence[str] = (),
) -> Op:
    """Register a real operator. Both functions get the inputs at full length, None where left out.

    traits: what passes may conclude from it; those that they imply need not be stated.
    rational: the meaning also takes object arrays; otherwise it is UnsupportedError in exact mode.
    unbounded: the attributes that may be infinite.
    `infer` need not check the number of inputs or the size of the outputs: that is done here.
    """
    defaults = dict(attributes)
    least, most = (inputs, inputs) if isinstance(inputs, int) else inputs

    def full(given: Inputs) -> list[Any]:
        listed = list(given)
        if most is not None:
            listed += [None] * (most - len(listed))
        return listed

    def checked(values: Inputs, attributes: Attributes) -> list[Type]:
        if len(values) < least or (most is not None and len(values) > most):
            wanted = f"{least}" if least == most else f"{least} to {most or 'many'}"
            raise ValueError(f"expected {wanted} inputs of {name}, found {len(values)}")
        required = values if most is None else values[:least]
        if any(value is None for value in required):
            raise ValueError(f"expected every required input of {name}, found one left out")
        _check_numbers(name, defaults, attributes, unbounded)
        types = infer(full(values), attributes)
        for _, shape in types:
            check_elements(shape)
        return types

    def evaluated(arrays: Inputs, attributes: Attributes) -> list[Array]:
        exact = any(array is not None and array.dtype == object for array in arrays)
        if exact and not rational:
            raise UnsupportedError(
                f"expected rational operators in exact mode, found {name}; compute in float mode"
            )
        results = meaning(full(arrays), attributes)
        return [_fractions(r) if r.dtype == object else r for r in map(np.asarray, results)]

    return register(Op(name, (least, most), defaults, checked, evaluated, traits=frozenset(traits)))


def _check_numbers(
    name: str, defaults: Attributes, attributes: Attributes, unbounded: Sequence[str]
) -> None:
    """ValueError for an attribute that is no number where its default is one, or not finite."""
    for key, default in defaults.items():
        value = attributes[key]
        if isinstance(default, float) and (
            isinstance(value, bool) or not isinstance(value, (int, float, Fraction))
        ):
            raise ValueError(f"expected {key} of {name} to be a number, found {value!r}")
    for key, value in attributes.items():
        if isinstance(value, float) and not math.isfinite(value):
            if key in unbounded and not math.isnan(value):
                continue
            raise ValueError(f"expected a finite {key} of {name}, found {value}")


# --- checks ---------------------------------------------------------------------------------


def check_elements(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape, unless it has more than ELEMENTS_MAX elements (ValueError)."""
    if elements(shape) > ELEMENTS_MAX:
        raise ValueError(f"expected at most {ELEMENTS_MAX} elements, found {list(shape)}")
    return tuple(shape)


def check_type(value: Any, allowed: Sequence[str], what: str = "input") -> str:
    """The type of a value, which is one of `allowed`."""
    if value.dtype not in allowed:
        raise ValueError(f"expected {what} of {', '.join(allowed)}, found {value.dtype}")
    return str(value.dtype)


def check_same_type(values: Inputs, allowed: Sequence[str]) -> str:
    """The one type that all values (None skipped) have."""
    types = [check_type(value, allowed) for value in values if value is not None]
    if len(set(types)) > 1:
        raise ValueError(f"expected inputs of one type, found {', '.join(types)}")
    return types[0]


def broadcasting(
    allowed: Sequence[str], result: str = ""
) -> Callable[[Inputs, Attributes], list[Type]]:
    """The rule of operators whose operands have one type of `allowed` and broadcast. result: the
    type of the result where it is another."""

    def infer(values: Inputs, attributes: Attributes) -> list[Type]:
        kind = check_same_type(values, allowed)
        return [(result or kind, broadcast(*(value.shape for value in values)))]

    return infer


def check_axis(axis: Any, rank: int, what: str = "axis") -> int:
    """The axis counted from 0; -rank <= axis < rank."""
    if not is_integer(axis) or not -rank <= axis < rank:
        raise ValueError(f"expected {what} in [{-rank}, {rank}), found {axis!r}")
    return int(axis) % rank


def check_axes(axes: Any, rank: int) -> tuple[int, ...]:
    """Distinct axes, counted from 0, in order."""
    listed = tuple(check_axis(axis, rank) for axis in integers(axes, "axes"))
    if len(set(listed)) != len(listed):
        raise ValueError(f"expected axes that differ, found {list(axes)}")
    return tuple(sorted(listed))


def counted_from_zero(indices: Array, size: int) -> Array:
    """Indices counted from 0; ValueError for one outside [-size, size)."""
    outside = (indices < -size) | (indices >= size)
    if outside.any():
        raise ValueError(f"expected indices in [{-size}, {size}), found {indices[outside].flat[0]}")
    return np.where(indices < 0, indices + size, indices).astype(np.int64)


def is_integer(value: Any) -> bool:
    """An int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def integers(
    value: Any, what: str, length: int | None = None, least: int | None = None
) -> tuple[int, ...]:
    """The attribute as a tuple of integers, of this length and each at least `least`."""
    if not isinstance(value, (tuple, list)) or not all(map(is_integer, value)):
        raise ValueError(f"expected {what} to be a tuple of integers, found {value!r}")
    if length is not None and len(value) != length:
        raise ValueError(f"expected {length} numbers in {what}, found {list(value)}")
    if least is not None and any(number < least for number in value):
        raise ValueError(f"expected {what} of at least {least}, found {list(value)}")
    return tuple(value)


def choice(attributes: Attributes, key: str, allowed: Sequence[str]) -> str:
    """A text attribute that is one of `allowed`."""
    if attributes[key] not in allowed:
        raise ValueError(f"expected {key} of {', '.join(allowed)}, found {attributes[key]!r}")
    return str(attributes[key])


def float32(value: float) -> float:
    """The binary32 value next to a decimal: what a default of ONNX is."""
    return float(np.float32(value))


# --- exact arrays ---------------------------------------------------------------------------


def _fraction(value: Any) -> Fraction:
    if type(value) is Fraction:
        return value
    if isinstance(value, float):
        raise TypeError(f"expected a rational, found the float {value}")
    return Fraction(value)


_to_fraction = np.frompyfunc(_fraction, 1, 1)
_float_to_fraction = np.frompyfunc(Fraction, 1, 1)
_numerator = np.frompyfunc(lambda value: value.numerator, 1, 1)
_denominator = np.frompyfunc(lambda value: value.denominator, 1, 1)


def _elementwise(function: Any, array: Array) -> Array:
    # frompyfunc gives a bare object for a 0-d array.
    result = np.empty(array.shape, dtype=object)
    result[...] = function(array.astype(object))
    return result


def _fractions(array: Array) -> Array:
    """An object array of ints and Fractions as Fractions."""
    return _elementwise(_to_fraction, array)


def rationals(array: Array, name: str = "tensor") -> Array:
    """An array of floats, ints or Fractions as Fractions; NonFiniteError for NaN or infinity."""
    if array.dtype == object:
        return _fractions(array)
    if is_real(array.dtype):
        array = widened(array)
        finite = np.isfinite(array)
        if not finite.all():
            index = int(np.argmin(finite.reshape(-1)))
            raise NonFiniteError(
                f"tensor {name!r}: expected finite values in exact mode, found "
                f"{array.reshape(-1)[index]} at flat index {index}; compute in float mode"
            )
        return _elementwise(_float_to_fraction, array)
    return _fractions(array.astype(object))


def map_exact(function: Callable[..., Any], *arrays: Array) -> Array:
    """A Python function over the elements of object arrays, broadcast."""
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*arrays), dtype=object)


def number(value: float | Fraction, like: Array) -> Any:
    """An attribute as the number that computes with `like`: Fraction, float, or int."""
    if like.dtype == object:
        return Fraction(value)
    return float(value) if like.dtype.kind == "f" else int(value)


def common_unit(array: Array, axis: int | None = None) -> tuple[Array, Array]:
    """Integers and units with array = integers * unit, the units as large as can be.

    One unit for the whole array, or one for each position along `axis` (its dimension is kept,
    the others have size 1). Both are object arrays, of Python ints and of Fractions.
    """
    others = tuple(i for i in range(array.ndim) if i != axis)
    shape = tuple(array.shape[i] if i == axis else 1 for i in range(array.ndim))
    numerators, denominators = _elementwise(_numerator, array), _elementwise(_denominator, array)
    greatest = np.asarray(np.gcd.reduce(_flat(numerators, others), axis=-1, initial=0)).reshape(
        shape
    )
    least = np.asarray(np.lcm.reduce(_flat(denominators, others), axis=-1, initial=1)).reshape(
        shape
    )
    greatest = map_exact(lambda g: g or 1, greatest)
    # array / unit = numerator / greatest * (least / denominator), both divisions exact.
    whole = numerators // greatest * (least // denominators)
    return np.asarray(whole, dtype=object), map_exact(Fraction, greatest, least)


def _flat(array: Array, axes: tuple[int, ...]) -> Array:
    kept = [i for i in range(array.ndim) if i not in axes]
    moved = array.transpose([*kept, *axes])
    return moved.reshape((*(array.shape[i] for i in kept), math.prod(array.shape[i] for i in axes)))


def bilinear(
    function: Callable[[Array, Array], Array],
    a: Array,
    b: Array,
    axis: int | None = None,
    unit_shape: tuple[int, ...] = (),
    terms: int | None = None,
    samples: int = 1,
) -> Array:
    """function(a, b), whose every output is a sum of products a * b, each b used at most once.

    axis: the axis of `b` that reaches the output, if one does, and there reshaped to `unit_shape`.
    terms: the most products in one sum; None: the elements of `b`, of one position along `axis`.
    samples: the number of samples that lie along the first axis of `a` and of the result; each has
    the bits that it has alone.
    Everything goes through float64 matrix products where every partial sum is an integer of at
    most 2**53, hence exact in any order: integers and exact numbers (through Python integers where
    those are larger), and binary64 numbers in parts (`_sums_of_parts`).
    """
    if a.dtype.kind == "f" and b.dtype.kind == "f":
        if terms is None:
            terms = b.size // max(1, 1 if axis is None else b.shape[axis])
        return _sums_of_parts(function, a, b, axis, unit_shape, terms, samples)
    if a.dtype != object and b.dtype != object:
        return _integer_sums(function, a.astype(np.int64), b.astype(np.int64), axis)
    whole_a, unit_a = common_unit(rationals(a))
    whole_b, unit_b = common_unit(rationals(b), axis)
    sums = _integer_sums(function, whole_a, whole_b, axis)
    scale = unit_a.reshape(()) * unit_b.reshape(() if axis is None else unit_shape)
    return np.asarray(sums * scale, dtype=object)


def _sums_of_parts(
    function: Callable[[Array, Array], Array],
    a: Array,
    b: Array,
    axis: int | None,
    unit_shape: tuple[int, ...],
    terms: int,
    samples: int,
) -> Array:
    """function(a, b) of binary64 numbers with the same bits in whatever order a library adds.

    Each operand is p high and p low bits below its largest magnitude (of b along `axis`), as
    integers, with 2 * p + log2(terms) <= 53. The sums of high by high, and of high by low with low
    by high, are exact; adding the two rounds once. What is lost is below 2**-(2 * p) of the largest
    sum of magnitudes. (The splitting is that of K. Ozaki, T. Ogita, S. Oishi, S. M. Rump,
    "Error-free transformations of matrix multiplication", 2012.) NaN and infinity go as they are:
    no statistics are taken of them.
    """
    bits = (53 - (max(terms, 1) - 1).bit_length()) // 2
    rows = a.reshape(samples, -1) if samples > 1 else a
    a_unit, b_unit = _units(rows, 0 if samples > 1 else None, bits), _units(b, axis, bits)
    if not (a.size and b.size and np.isfinite(a_unit).all() and np.isfinite(b_unit).all()):
        if samples == 1:
            return function(a, b)
        each = (
            _sums_of_parts(function, x, b, axis, unit_shape, terms, 1) for x in np.split(a, samples)
        )
        return np.concatenate(list(each))
    if samples == 1:
        a_unit = a_unit.reshape(())
    else:
        a_unit = np.repeat(a_unit, len(a) // samples).reshape(-1, *[1] * (a.ndim - 1))
    (a_high, a_low), (b_high, b_low) = _parts(a, a_unit, bits), _parts(b, b_unit, bits)
    low = function(a_high, b_low) + function(a_low, b_high)
    sums = function(a_high, b_high) + low * 2.0**-bits
    return np.asarray(sums * a_unit * b_unit.reshape(unit_shape if axis is not None else ()))


def _units(array: Array, axis: int | None, bits: int) -> Array:
    """The powers of two of which the largest magnitude is at most 2**bits: one, or one for each
    position along `axis`. NaN for NaN and infinity."""
    others = tuple(i for i in range(array.ndim) if i != axis)
    ends = (
        array.max(axis=others, keepdims=True, initial=0),
        array.min(axis=others, keepdims=True, initial=0),
    )
    largest = np.maximum(ends[0], -ends[1])
    exponents = np.clip(np.frexp(largest)[1] - bits, *UNIT_EXPONENTS)
    return np.where(np.isfinite(largest), np.ldexp(1.0, exponents), np.nan)


def _parts(array: Array, unit: Array, bits: int) -> tuple[Array, Array]:
    """Integers with array = (high + low * 2**-bits) * unit, but for what is below: high up to
    2**bits, low up to half of it."""
    high = array * (1.0 / unit)
    low = high.copy()
    np.rint(high, out=high)
    low -= high
    low *= 2.0**bits
    return high, np.rint(low, out=low)


def _integer_sums(
    function: Callable[[Array, Array], Array], a: Array, b: Array, axis: int | None
) -> Array:
    others = tuple(i for i in range(b.ndim) if i != axis)
    # float64 sums of magnitudes: off by less than a factor of 2, so half of the limit is safe.
    sums = _flat(np.abs(b), others).astype(np.float64).sum(axis=-1)
    largest = np.max(np.abs(a).astype(np.float64), initial=0.0) * np.max(sums, initial=0.0)
    if largest <= EXACT_FLOAT // 2:
        return function(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)
    return function(a, b)


def attributes_of(*required: str, **defaults: Any) -> Mapping[str, Any]:
    """The attributes of an operator: those without a default, then those with one."""
    return {**dict.fromkeys(required, REQUIRED), **defaults}
