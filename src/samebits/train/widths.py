"""The widths of a layer's codes: parameters of the method (docs/spec/training.md, section 13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from samebits.errors import InputError

INPUT = "input"
"""The name under which a mapping holds the widths of a model's input."""


class Widths(NamedTuple):
    """Bits of weights and activations, of gradients, and of intermediates: 32, or 16 of the
    gradients from which those of weights are computed."""

    values: int = 8
    gradients: int = 16
    sums: int = 32

    @staticmethod
    def of(given: Sequence[int], where: str = "widths") -> Widths:
        """Checked widths. Raises InputError, which says `where`, for others than section 13's."""
        numbers = tuple(given)
        if len(numbers) != 3 or any(type(n) is not int for n in numbers):
            raise InputError(
                f"{where}: expected three whole numbers, e.g. 8, 16, 32, found {given}"
            )
        widths = Widths(*numbers)
        for what, found, allowed in (
            ("weights and activations", widths.values, range(4, 9)),
            ("gradients", widths.gradients, range(widths.values + 1, 17)),
            ("intermediates", widths.sums, range(16, 33, 16)),
        ):
            if found not in allowed:
                last, between = allowed[-1], "to" if allowed.step == 1 else "or"
                ends = f"{allowed[0]} {between} {last}" if len(allowed) > 1 else f"{last}"
                raise InputError(f"{where}: expected {ends} bits for {what}, found {found}")
        return widths

    @staticmethod
    def parse(text: str, where: str = "widths") -> Widths:
        """Widths written as `6,12,32`. Raises InputError, which says `where`."""
        parts = text.split(",")
        if not all(part.strip().isdecimal() for part in parts):
            raise InputError(f"{where}: expected three numbers such as 8,16,32, found {text!r}")
        return Widths.of(tuple(int(part) for part in parts), where)


class WidthsByLayer:
    """The widths of every layer of a model, by its path.

    given: widths for the whole model, or a mapping from paths of modules to those of all layers in
           them (the longest path that fits counts; "" is the whole model, "input" its input, which
           otherwise has the widths of the whole model)
    """

    def __init__(self, given: Sequence[int] | Mapping[str, Sequence[int]]) -> None:
        entries = given if isinstance(given, Mapping) else {"": given}
        self._by_path = {
            path: Widths.of(widths, f"widths of {path!r}" if path else "widths")
            for path, widths in entries.items()
        }

    def __getitem__(self, path: str) -> Widths:
        """The widths of the layer at a path."""
        at = path
        while at not in self._by_path and at:
            at = at.rpartition(".")[0]
        return self._by_path.get(at, Widths())

    def unused(self, paths: Sequence[str]) -> list[str]:
        """Paths of the mapping at which a model with modules at `paths` has nothing."""
        return [path for path in self._by_path if path not in (*paths, "", INPUT)]
