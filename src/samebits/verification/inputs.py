"""Samples for a graph, as a user gives them or drawn at random, as codes and as reals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from samebits import progress
from samebits.errors import InputError, NonFiniteError
from samebits.ir import Graph, Trait, Value, has
from samebits.ir.graph import moved_inputs
from samebits.ir.integer.define import ACCUMULATORS, limits, magnitude
from samebits.model import Model
from samebits.npu.simulator.simulate import binary16_input
from samebits.numerics import philox
from samebits.recipes.reading import reading_of
from samebits.recipes.training import SEEDS
from samebits.samples import gather
from samebits.spec.formats import round_binary32, round_real

Array = np.ndarray[Any, Any]
EXACT_BITS = 53
NEAR_TIE = 2.0**-20
FEW = 0.01  # part of the numbers, beyond the codes, that no note mentions


def quantize_samples(array: Array, value: Value) -> Array:
    """Real numbers as the codes of an input: saturate(rne((x - offset) / scale) + zero_point).

    binary32 numbers and scales have 24-bit significands. If x / scale is not exactly halfway
    between two codes of at most 16 bits, it is at least 2**-42 of itself away from that, more than
    the error of a binary64 division, so the rounded quotient is the exact one. Less an offset, a
    quotient near a tie is computed again in rationals.
    """
    assert value.quantization is not None
    with np.errstate(over="ignore"):  # beyond binary32 is infinite, and said below
        x = np.asarray(array, np.float32).astype(np.float64)
    if not np.isfinite(x).all():
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise NonFiniteError(
            f"input {value.name!r}: expected finite values, found {x[index]} at index {index}; "
            "remove or replace non-finite values"
        )
    low, high = limits(value.dtype)
    scales, offsets = _floats(value)
    with np.errstate(over="ignore"):
        quotients = (x - offsets) / scales
    codes = np.rint(quotients) + value.quantization.zero_point
    if value.quantization.offsets:
        near = np.abs(np.abs(quotients - np.rint(quotients)) - 0.5) < NEAR_TIE
        pairs = np.broadcast_to(np.arange(scales.size).reshape(scales.shape), x.shape)
        for index in map(tuple, np.argwhere(near)):
            scale, offset = value.quantization.table[pairs[index]]
            exact = round_real((Fraction(float(x[index])) - offset) / scale)
            codes[index] = exact + value.quantization.zero_point
    return np.clip(codes, low, high).astype(value.dtype)


def dequantize(codes: Array, value: Value) -> Array:
    """Codes as binary32 reals: the exact value, rounded once where it has more than 24 bits."""
    if value.quantization is None:
        return codes
    found = value.quantization
    centred = codes.astype(np.int64) - found.zero_point
    bits = magnitude(centred).bit_length()
    exact = not found.offsets and all(
        bits + s.numerator.bit_length() <= EXACT_BITS and Fraction(float(s)) == s
        for s in found.scales
    )
    if exact:  # the products are, in binary64
        return np.asarray(centred * _floats(value)[0], np.float32)
    shape = _axis_shape(value)
    places = np.broadcast_to(np.arange(len(found.table)).reshape(shape), codes.shape)
    reals = [
        _binary32(int(code) * found.table[place][0] + found.table[place][1])
        for code, place in zip(centred.flat, places.flat, strict=True)
    ]
    return np.array(reals, np.float32).reshape(codes.shape)


def _floats(value: Value) -> tuple[Array, Array]:
    """The scale and the offset, or one of each for each index of an axis, in shapes that broadcast
    to those of samples."""
    assert value.quantization is not None
    table = np.array([[float(s), float(o)] for s, o in value.quantization.table])
    shape = _axis_shape(value)
    return table[:, 0].reshape(shape), table[:, 1].reshape(shape)


def _axis_shape(value: Value) -> tuple[int, ...]:
    """The shape of factors along their axis of a value: its last axes, the others of size 1."""
    found = value.quantization
    assert found is not None
    return () if found.plain else (len(found.factors), *[1] * (-found.axis - 1))


def _binary32(value: Fraction) -> float:
    rounded = float(round_binary32(abs(value)))
    return -rounded if value < 0 else rounded


def step(value: Value) -> int:
    """Number of elements of one sample along axis 0; 1 for a scalar input."""
    if value.size == 0:
        raise InputError(f"input {value.name!r}: expected elements, found shape {value.shape}")
    return value.shape[0] if value.shape else 1


def random_codes(graph: Graph, samples: int, seed: int = 0) -> list[Array]:
    """Codes over the whole range of each input's type, from (seed, input, element) alone.

    For an input in binary16 every number below 2 in magnitude is equally likely. Inputs of 32 and
    64 bits are indices, or zeros and ones: they are drawn among those.
    """
    out = []
    for site, name in enumerate(graph.inputs):
        value = graph.values[name]
        shape = (samples * step(value), *value.shape[1:])
        words = philox.words(int(np.prod(shape)), (seed, site)).numpy()
        if value.dtype == "float16":
            bits = (words & 0xBFFF).astype(np.uint16)  # without the exponent's highest bit
            out.append(bits.view(np.float16).reshape(shape))
            continue
        low, high = limits(value.dtype)
        if value.dtype in ACCUMULATORS:
            low, high = 0, max(_places(graph, name), 2) - 1
        out.append((low + words % (high - low + 1)).reshape(shape).astype(value.dtype))
    return out


def _places(graph: Graph, name: str) -> int:
    """The positions of the axis that an input indexes; 0 where it is no index."""
    sizes, readers, waiting, seen = [], graph.consumers(), [name], {name}
    while waiting:
        value = waiting.pop()
        for node in readers[value]:
            if has(node.op, Trait.INDEXED) and value not in moved_inputs(node):
                axis = node.attributes["axis"]
                sizes.append(graph.values[node.inputs[0]].shape[axis])
            elif has(node.op, Trait.MOVEMENT) and node.output not in seen:
                seen.add(node.output)
                waiting.append(node.output)
    return min(sizes, default=0)


def drawn(text: str, graph: Graph, seed: int | None = None) -> list[Array]:
    """The codes that random:N stands for. Raises InputError for another N."""
    count = text.removeprefix("random:")
    digits = count.isascii() and count.isdigit() and len(count) <= 7
    if not digits or not 1 <= int(count) <= 1_000_000:
        raise InputError(f"--data: expected random:N with 1 <= N <= 1000000, found {text[:40]!r}")
    return random_codes(graph, int(count), seed or 0)


def is_random(given: Any) -> bool:
    """Whether samples are random:N."""
    given, _ = reading_of(given)
    return isinstance(given, str) and given.startswith("random:")


def check_seed(seed: int | None, given: Any) -> None:
    """Raise InputError for a seed that is none, and for one of samples that are not random:N."""
    whole = seed is None or (isinstance(seed, Integral) and not isinstance(seed, bool))
    if not whole or not 0 <= (seed or 0) <= SEEDS:
        raise InputError(
            f"--seed: expected a whole number from 0 to {SEEDS}, found {seed!r:.80}; leave it out "
            "for 0"
        )
    if seed is not None and not is_random(given):
        found = "none" if given is None else name_of(given) or "others"
        raise InputError(
            f"--seed {seed}: expected samples random:N, which it draws, found {found}; leave it out"
        )


def name_of(given: Any) -> str:
    """Samples as the command line names them; "" for what it cannot name."""
    given, _ = reading_of(given)
    return str(given) if isinstance(given, str | Path) else ""


def read_once(given: Any, graph: Graph, model: Model) -> Any:
    """Samples that may be asked for again: arrays by name, which fit the graph, or random:N or None
    as they are. Raises InputError as `given_codes`."""
    source, options = reading_of(given)
    if source is None and (chosen := options.chosen()):
        raise InputError(
            f"--{next(iter(chosen))}: expected samples that are read with it, found none; give "
            "--data, or leave it out"
        )
    if source is None or is_random(given):
        options.apart_from("samples", "random samples", ())
        return source
    arrays = given_arrays(given, graph, model)
    codes_of(arrays, graph, name_of(given) or "samples")
    return arrays


def given_arrays(given: Any, graph: Graph, model: Model) -> dict[str, Array]:
    """All samples of what `gather` takes or `read` gave, as arrays by name, for a model's graph."""
    source, options = reading_of(given)
    return gather(source, graph, options=options, rate=model.rate, earlier=model.known, whole=True)


def given_codes(given: Any, model: Model, seed: int | None = None) -> list[Array]:
    """Codes (firmware: binary16) for the inputs of a model, in order, of what `gather` takes or
    random:N. Raises InputError as `gather`, `codes_of` and `check_seed`.
    """
    graph = model.interface
    check_seed(seed, given)
    if is_random(given):
        source, options = reading_of(given)
        options.apart_from(source, "random samples", ())
        return drawn(source, graph, seed)
    arrays = given_arrays(given, graph, model)
    return codes_of(arrays, graph, name_of(given) or "samples")


def given_reals(given: Any, graph: Graph, seed: int | None = None) -> list[Array]:
    """The same for the inputs of the real graph: numbers as they were given, so that rounding and
    clipping of the inputs count as errors; codes as what they stand for."""
    if is_random(given):
        arrays = dict(zip(graph.inputs, drawn(given, graph, seed), strict=True))
    else:
        named = gather(given, graph)
        codes = codes_of(named, graph, "samples")  # refuses what does not fit
        if len(graph.inputs) == 1:
            named = dict(zip(graph.inputs, named.values(), strict=False))
        arrays = {
            name: named[name].reshape(found.shape) if named[name].dtype.kind == "f" else found
            for name, found in zip(graph.inputs, codes, strict=True)
        }
    return [
        array.astype(np.float32)
        if array.dtype.kind == "f"
        else dequantize(array, graph.values[name])
        for name, array in arrays.items()
    ]


def codes_of(arrays: Mapping[str, Array], graph: Graph, source: str) -> list[Array]:
    """One array of codes per graph input: given by name, or a single one of any name.

    Inputs in binary16 are rounded to it.
    """
    names = graph.inputs
    if len(names) == 1 and len(arrays) == 1:
        arrays = {names[0]: next(iter(arrays.values()))}
    missing = [name for name in names if name not in arrays]
    if missing:
        raise InputError(
            f"{source}: expected an array for each input ({', '.join(map(repr, names))}), found "
            f"{', '.join(map(repr, arrays)) or 'none'}"
        )
    out = []
    for name in names:
        value, array = graph.values[name], arrays[name]
        size = step(value)
        if value.shape[:1] == (1,) and array.shape == value.shape[1:]:
            array = array[None]
        fits = array.ndim == max(len(value.shape), 1) and array.shape[1:] == value.shape[1:]
        if not fits or len(array) == 0 or len(array) % size:
            wanted = ["N", *value.shape[1:]]
            raise InputError(
                f"{source}: input {name!r}: expected shape [{', '.join(map(str, wanted))}] with N "
                f"a multiple of {size}, found {list(array.shape)}"
            )
        if value.dtype == "float16":
            try:
                out.append(binary16_input(array))
            except InputError as error:
                raise type(error)(f"{source}: input {name!r}: {error}") from None
        elif array.dtype.name == value.dtype:
            out.append(array.astype(value.dtype))  # in this machine's byte order
        elif array.dtype.kind == "f" and value.quantization is not None:
            out.append(quantize_samples(array, value))
            _say_beyond(array, out[-1], value, source)
        else:
            raise InputError(
                f"{source}: input {name!r}: expected real numbers or {value.dtype} codes, found "
                f"{array.dtype}"
            )
    counts = {len(a) // step(graph.values[n]) for n, a in zip(names, out, strict=True)}
    if len(counts) > 1:
        raise InputError(f"{source}: expected as many samples for every input")
    return out


def _say_beyond(array: Array, codes: Array, value: Value, source: str) -> None:
    """Note where more than a few samples' numbers lie beyond what the codes of an input stand for:
    they count as the nearest end, which is seldom meant."""
    low, high = limits(value.dtype)
    at_ends = (codes == low) | (codes == high)
    if at_ends.mean() <= FEW:
        return
    assert value.quantization is not None
    scales, offsets = _floats(value)
    exact = (array.astype(np.float64) - offsets) / scales + value.quantization.zero_point
    beyond = float(((exact < low - 1) | (exact > high + 1)).mean())
    if beyond > FEW:
        reach = "the ranges of its features"
        if value.quantization.plain:
            ends = dequantize(np.array([low, high]), value).tolist()
            reach = " to ".join(f"{x:g}" for x in ends)
        progress.note(
            f"{source}: {beyond:.0%} of the numbers for the input {value.name!r} lie beyond "
            f"{reach}, all that its codes stand for, and count as these ends; give "
            "values like those that the network was trained or calibrated on"
        )


def chunks(graph: Graph, inputs: Sequence[Array]) -> list[list[Array]]:
    """The samples cut along axis 0 into pieces of the graph's own size."""
    values = [graph.values[name] for name in graph.inputs]
    if not values:
        raise InputError(f"model {graph.name!r}: expected an input, found none; nothing to verify")
    sizes = [step(value) for value in values]
    pieces = []
    for i in range(len(inputs[0]) // sizes[0]):
        piece = [a[i * size : (i + 1) * size] for a, size in zip(inputs, sizes, strict=True)]
        pieces.append([p.reshape(v.shape) for p, v in zip(piece, values, strict=True)])
    return pieces


def joined(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """The outputs of pieces (`chunks`), joined along axis 0."""
    return [
        np.concatenate([np.atleast_1d(p) for p in column]) for column in zip(*parts, strict=True)
    ]
