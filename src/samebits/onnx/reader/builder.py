"""The builder of a real graph from an untrusted model.

It limits what a model may ask for, keeps the names of the model apart from made ones, and computes
operators on constants at once: exporters write shapes and index arithmetic as operators, whose
results other operators must know while importing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

from samebits.errors import InputError, RangeError, UnsupportedError
from samebits.ir import GraphBuilder, Node, Quantization, Trait, Value, has
from samebits.ir.interpreter import carry, evaluate
from samebits.ir.ops import Array, Attributes, Type, op_named
from samebits.ir.real.define import NARROW, REALS, array_type
from samebits.ir.real.minifloat import stored
from samebits.onnx.reader.tensors import check_shape

MAX_COMPUTED = 2**24  # elements of constants that importing computes, beside those of the file
MAX_WORK = 2**30  # multiplications of one folded product
MAX_RESIZED = 2**16
MAX_SMALL = 2**12


class FoldingBuilder(GraphBuilder):
    """A GraphBuilder that folds constants, for an untrusted model.

    folder: where external data lies, None for none. reserved: names of the model's values, which
    no made name may take. labels: indices that stand for labels (`mapping.classical`): which
    node of the model looks them up, and the constant where.
    """

    def __init__(self, name: str, folder: Path | None) -> None:
        super().__init__(name)
        self.folder = folder
        self.reserved: set[str] = set()
        self.labels: dict[str, tuple[str, str]] = {}
        self._budget = MAX_COMPUTED
        self._small: dict[str, Array] = {}  # dequantized constants that may be read as numbers
        self._made: dict[str, int] = {}  # hint -> number of names made from it
        self._producers: dict[str, Node] = {}

    def known(self, name: str) -> Array | None:
        """The array of a value that does not depend on the model's inputs, None where it does or
        where its array was not computed."""
        found = self.constants.get(name)
        return found if found is not None else self._small.get(name)

    def producer(self, name: str) -> Node | None:
        """The node that writes a value, None for an input or a constant."""
        return self._producers.get(name)

    def allow(self, count: int) -> None:
        """Note that a tensor of `count` elements was read from the file: what is computed from it
        may be as large, a few times over."""
        self._budget += 4 * count

    def charge(self, count: int) -> None:
        """Account for a constant of `count` elements before it is computed.

        Raises UnsupportedError where the budget is spent: a small file can ask for large constants.
        """
        if count > self._budget:
            raise UnsupportedError(
                f"expected at most {MAX_COMPUTED} elements of computed constants beside those of "
                f"the file, found {count} with {self._budget} left"
            )
        self._budget -= count

    def constant(self, name: str, array: Array, quantization: Quantization | None = None) -> str:
        """A constant under a fresh name; see `stored`."""
        return self.stored(name, array)

    def stored(self, hint: str, array: Array, dtype: str = "", own: bool = False) -> str:
        """A constant of the graph; its name.

        dtype: the type of its codes where it is not the array's; codes of 2 and 4 bits are stored
        in arrays of 8. own: `hint` is the ONNX model's name of it, to be kept as it is. Raises
        InputError for a shape beyond the limits.
        """
        check_shape(array.shape, "a constant")
        name = hint if own else self.fresh(hint)
        dtype = dtype or array.dtype.name
        if dtype not in NARROW:
            return super().constant(name, array.astype(dtype, copy=False))
        codes = array.astype(array_type(dtype))
        key = (dtype, codes.shape, hashlib.sha256(codes.tobytes()).digest())
        if key not in self._shared:
            self._shared[key] = self._declare(Value(self.unique(name), dtype, codes.shape))
            self.constants[self._shared[key]] = codes
        return self._shared[key]

    def add_all(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Attributes | None = None,
        name: str = "",
        outputs: Sequence[str] = (),
        quantization: Quantization | None = None,
    ) -> tuple[str, ...]:
        """Append a node, or constants where every input is constant and the work is bounded; the
        names of all outputs.

        name: from which fresh names are made. outputs: the ONNX model's names of the outputs, ""
        for none. Raises ValueError where the operator's rules are broken, InputError for results
        beyond the limits, before anything is computed.
        """
        record = op_named(op)
        filled = record.complete(attributes or {}, op)
        types = record.infer([self.values[i] if i else None for i in inputs], filled)
        for _, shape in types:
            check_shape(shape, f"the result of {op}")
        arrays = [self.constants.get(i) for i in inputs]
        constant = any(inputs) and all(
            array is not None for array, i in zip(arrays, inputs, strict=True) if i
        )
        total = sum(math.prod(shape) for _, shape in types)
        if constant and self._affordable(op, arrays, total):
            self.charge(total)
            folded = _evaluate(name, op, arrays, filled, types)
            names = [outputs[i] if i < len(outputs) else "" for i in range(len(folded))]
            return tuple(
                self.stored(own or f"{name}.{op}", array, dtype, own=bool(own))
                for own, array, (dtype, _) in zip(names, folded, types, strict=True)
            )
        node = self.fresh(name)
        names = [
            outputs[i] if i < len(outputs) and outputs[i] else self.fresh(f"{node}.{op}")
            for i in range(len(types))
        ]
        made = super().add_all(op, inputs, filled, node, names)
        self._producers.update(dict.fromkeys(made, self.nodes[-1]))
        if constant and op == "DequantizeLinear" and total <= MAX_SMALL:
            self._small[made[0]] = _evaluate(name, op, arrays, filled, types)[0]
        return made

    def renamed(self, value: str, name: str) -> str:
        """The value under another name: an Identity, which is kept where the value is constant."""
        return super().add_all("Identity", [value], {}, self.fresh(name), [name])[0]

    def _affordable(self, op: str, arrays: Sequence[Array | None], total: int) -> bool:
        """Whether a node on constants may be evaluated; lowering needs a DequantizeLinear."""
        if op == "DequantizeLinear" or has(op, Trait.HEAVY) or total > self._budget:
            return False
        if op == "Resize" and total > MAX_RESIZED:
            return False
        largest = max(array.size for array in arrays if array is not None)
        return not has(op, Trait.PRODUCT) or total * largest <= MAX_WORK

    def fresh(self, hint: str) -> str:
        """A name made from `hint` that neither the graph nor the ONNX model has."""
        count = self._made.get(hint, 0) + 1
        name = hint if count == 1 else f"{hint}.{count}"
        while name in self.reserved or self.unique(name) != name:
            count += 1
            name = f"{hint}.{count}"
        self._made[hint] = count
        return name


def _evaluate(
    name: str,
    op: str,
    arrays: Sequence[Array | None],
    attributes: Attributes,
    types: Sequence[Type],
) -> list[Array]:
    """The operator's own meaning, on constants, rounded to the declared types."""
    outputs = tuple(str(index) for index in range(len(types)))
    node = Node(op, name, tuple("" if a is None else "c" for a in arrays), outputs, attributes)
    values = {key: Value(key, *kind) for key, kind in zip(outputs, types, strict=True)}
    carried = [None if a is None else carry(a, a.dtype.name, False) for a in arrays]
    try:
        results = evaluate(node, carried, values)
    except RangeError as error:
        raise InputError(f"node {name!r} ({op}): {error}; check the model") from None
    return [
        stored(result, dtype) if dtype in REALS else result
        for result, (dtype, _) in zip(results, types, strict=True)
    ]
