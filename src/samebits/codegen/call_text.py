"""C text of kernel calls and of their constant parameters.

Parameters are static constant structs with designated initialisers; a field that is an array is the
name of one (`Constants`), which is stored once however many calls read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from samebits.codegen.lowering.calls import Array, Data, Field, KernelCall, Struct, Structs

INT32_MIN, INT64_MIN = -(1 << 31), -(1 << 63)


TABLES = frozenset({"table", "coefficients", "heights"})  # fields that are transfer functions


class Constants:
    """Constant arrays by content, equal ones stored once: `<prefix>_w0` ... what was learned and
    what goes with it, `<prefix>_t0` ... the tables of transfer functions."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.names: dict[tuple[str, str, bytes], str] = {}
        self.weights: list[tuple[str, Array]] = []
        self.tables: list[tuple[str, Array]] = []

    def name(self, array: Array, *, table: bool = False) -> str:
        """The C name of an array."""
        array = np.ascontiguousarray(array).reshape(-1)
        letter, arrays = ("t", self.tables) if table else ("w", self.weights)
        key = (letter, array.dtype.name, array.tobytes())
        if key not in self.names:
            self.names[key] = f"{self.prefix}_{letter}{len(arrays)}"
            arrays.append((self.names[key], array))
        return self.names[key]


def byte_count(arrays: Sequence[tuple[str, Array]]) -> int:
    """Flash that constant arrays take."""
    return sum(array.nbytes for _, array in arrays)


class CallWriter:
    """Writes the calls of a source file; `declared`: lines with their parameters, each stored
    once."""

    def __init__(self, prefix: str, constants: Constants) -> None:
        self.prefix, self.constants = prefix, constants
        self.declared: list[str] = []
        self.count = 0
        self.known: dict[int, tuple[KernelCall, str]] = {}

    def text(
        self, call: KernelCall, pointer: Callable[[str], str], output: str, scratch: str
    ) -> list[str]:
        """Lines of a call. pointer: the C expression of an input."""
        return self.with_parameters(f"&{self.parameters(call)}", call, pointer, output, scratch)

    def with_parameters(
        self,
        parameters: str,
        call: KernelCall,
        pointer: Callable[[str], str],
        output: str,
        scratch: str,
    ) -> list[str]:
        """The same with the C expression of a pointer to the parameters.

        Kernels of several inputs take an array of pointers, which needs a block of its own.
        """
        inputs = [pointer(name) for name in call.inputs]
        lines: list[str] = []
        indent = "    "
        if call.listed:
            lines.append(f"    {{\n        const void *sources[{len(inputs)}];")
            lines += [f"        sources[{i}] = {text};" for i, text in enumerate(inputs)]
            inputs, indent = ["sources"], "        "
        arguments = ", ".join([parameters, *inputs, output, *([scratch] if call.scratch else [])])
        lines.append(f"{indent}samebits_run_{call.function}({arguments});")
        if call.listed:
            lines.append("    }")
        return lines

    def locals(self) -> list[str]:
        """Lines that a function begins with whose calls were written since the last such lines."""
        return []

    def parameters(self, call: KernelCall) -> str:
        """The static constant struct of a call."""
        if id(call) not in self.known:
            text = self._initialiser(call.parameters, "    ")
            name = self._fresh()
            self.declared.append(f"static const samebits_{call.parameters.type} {name} = {text};\n")
            self.known[id(call)] = call, name
        return self.known[id(call)][1]

    def _fresh(self) -> str:
        self.count += 1
        return f"{self.prefix}_p{self.count - 1}"

    def _initialiser(self, struct: Struct, indent: str) -> str:
        inner = f",\n{indent}".join(
            f".{key} = {self._field(struct.type, key, field, indent + '    ')}"
            for key, field in struct.fields.items()
        )
        return f"{{\n{indent}{inner}}}"

    def _field(self, struct: str, key: str, field: Field, indent: str) -> str:
        """The initialiser of a struct's field. An array of structs is declared before, by a
        name."""
        if field is None:
            return "0"
        if isinstance(field, Data):
            return self.constants.name(field.array, table=key in TABLES)
        if isinstance(field, Struct):
            return self._initialiser(field, indent)
        if isinstance(field, tuple):
            return f"{{{', '.join(map(number, field))}}}"
        if isinstance(field, Structs):
            items = ",\n    ".join(self._initialiser(item, "        ") for item in field.items)
            name = self._fresh()
            kind = f"samebits_{field.items[0].type}"
            self.declared.append(
                f"static const {kind} {name}[{len(field.items)}] = {{\n    {items}}};\n"
            )
            return name
        return number(field)


def number(value: int) -> str:
    """An integer constant expression; the least one of a type has no literal in C."""
    value = int(value)
    if value in (INT32_MIN, INT64_MIN):
        return f"(-{-value - 1} - 1)"
    return str(value)


def numbers(array: Array) -> str:
    """C constants, in rows of a power of two of columns that fit in 100 characters."""
    columns = {1: 16, 2: 8, 4: 8, 8: 4}[array.itemsize]
    least = int(array.min(initial=0))
    texts = list(map(number if least in (INT32_MIN, INT64_MIN) else str, array.tolist()))
    rows = (", ".join(texts[i : i + columns]) for i in range(0, len(texts), columns))
    return "    " + ",\n    ".join(rows) + "\n"
