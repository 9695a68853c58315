"""Building the real graph: names, constants, and operators on constants folded away."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from samebits.errors import InputError, RangeError, UnsupportedError
from samebits.ir import GraphBuilder, Node, Trait, Value, has
from samebits.ir.interpreter import carry, evaluate
from samebits.ir.ops import Attribute, Attributes, Type, op_named
from samebits.ir.real.define import FLOATS
from samebits.onnx.reader.tensors import check_shape

Array = np.ndarray[Any, Any]

MAX_COMPUTED = 2**24  # elements of constants that importing computes, beside those of the file
MAX_WORK = 2**30  # multiplications of one folded product
MAX_RESIZED = 2**16
MAX_SMALL = 2**12

NARROW = ("int2", "uint2", "int4", "uint4")


class Emission:
    """A GraphBuilder for an untrusted model. folder: where external data lies, None for none."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self.builder = GraphBuilder(name)
        self.folder = folder
        self.reserved: set[str] = set()  # names of the model, which no other value may take
        self._budget = MAX_COMPUTED
        self._small: dict[str, Array] = {}  # dequantized constants that may be read as numbers
        self._counts: dict[str, int] = {}

    def known(self, name: str) -> Array | None:
        """The array of a value that does not depend on the model's inputs, if it is at hand."""
        found = self.builder.constants.get(name)
        return found if found is not None else self._small.get(name)

    def allow(self, count: int) -> None:
        """A tensor of the file was read: what is computed may be larger by its size."""
        self._budget += 4 * count

    def charge(self, count: int) -> None:
        """Account for a constant of `count` elements before it is computed: a small file can ask
        for large ones."""
        if count > self._budget:
            raise UnsupportedError(
                f"expected at most {MAX_COMPUTED} elements of computed constants beside those of "
                f"the file, found {count} with {self._budget} left"
            )
        self._budget -= count

    def stored(self, hint: str, array: Array, dtype: str = "", own: bool = False) -> str:
        """A constant. dtype: the type of its codes where it is not the array's: the codes of 2 and
        4 bits lie in arrays of 8. own: the name is the ONNX model's."""
        check_shape(array.shape, "a constant")
        name = hint if own else self.fresh(hint)
        dtype = dtype or array.dtype.name
        if dtype not in NARROW:
            return self.builder.constant(name, array.astype(dtype, copy=False))
        name = self.builder.unique(name)
        self.builder.values[name] = Value(name, dtype, array.shape)
        self.builder.constants[name] = array.astype("uint8" if dtype[0] == "u" else "int8")
        return name

    def emit(
        self,
        hint: str,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Attribute],
        outputs: Sequence[str],
    ) -> tuple[str, ...]:
        """A node, or constants where every input is constant. Sizes are checked first."""
        record = op_named(op)
        filled = record.complete(attributes, op)
        values = [self.builder.values[name] if name else None for name in inputs]
        types = record.infer(values, filled)
        for _, shape in types:
            check_shape(shape, f"the result of {op}")
        arrays = [self.builder.constants.get(name) for name in inputs]
        constant = any(inputs) and all(
            array is not None for array, name in zip(arrays, inputs, strict=True) if name
        )
        total = sum(math.prod(shape) for _, shape in types)
        if constant and self._affordable(op, arrays, total):
            self.charge(total)
            folded = _evaluate(hint, op, arrays, filled, types)
            names = [outputs[i] if i < len(outputs) else "" for i in range(len(folded))]
            return tuple(
                self.stored(name or f"{hint}.{op}", array, dtype, own=bool(name))
                for name, array, (dtype, _) in zip(names, folded, types, strict=True)
            )
        node = self.fresh(hint)
        names = [
            outputs[i] if i < len(outputs) and outputs[i] else self.fresh(f"{node}.{op}")
            for i in range(len(types))
        ]
        made = self.builder.add_all(op, inputs, filled, node, names)
        if constant and op == "DequantizeLinear" and total <= MAX_SMALL:
            self._small[made[0]] = _evaluate(hint, op, arrays, filled, types)[0]
        return made

    def _affordable(self, op: str, arrays: Sequence[Array | None], total: int) -> bool:
        """Whether a node on constants may be evaluated; lowering needs a DequantizeLinear."""
        if op == "DequantizeLinear" or has(op, Trait.HEAVY) or total > self._budget:
            return False
        if op == "Resize" and total > MAX_RESIZED:
            return False
        largest = max(array.size for array in arrays if array is not None)
        return not has(op, Trait.PRODUCT) or total * largest <= MAX_WORK

    def fresh(self, hint: str) -> str:
        """A name that neither the graph nor the ONNX model has."""
        count = self._counts.get(hint, 0) + 1
        name = hint if count == 1 else f"{hint}.{count}"
        while name in self.reserved or self.builder.unique(name) != name:
            count += 1
            name = f"{hint}.{count}"
        self._counts[hint] = count
        return name


def _evaluate(
    hint: str,
    op: str,
    arrays: Sequence[Array | None],
    attributes: Attributes,
    types: Sequence[Type],
) -> list[Array]:
    """The operator's own meaning, on constants, rounded to the declared types."""
    outputs = tuple(str(index) for index in range(len(types)))
    node = Node(op, hint, tuple("" if a is None else "c" for a in arrays), outputs, attributes)
    values = {name: Value(name, *kind) for name, kind in zip(outputs, types, strict=True)}
    carried = [None if a is None else carry(a, a.dtype.name, False) for a in arrays]
    try:
        results = evaluate(node, carried, values)
    except RangeError as error:
        raise InputError(f"node {hint!r} ({op}): {error}; check the model") from None
    with np.errstate(over="ignore"):
        return [
            result.astype(dtype) if dtype in FLOATS else result
            for result, (dtype, _) in zip(results, types, strict=True)
        ]
