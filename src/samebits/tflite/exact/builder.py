"""The builder of a real graph from a file whose images have their channels last.

Real operators on images have them in front. Between two such operators nothing moves: the builder
knows both forms of a value, and `remove_dead` drops the form that nothing reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from samebits.ir import GraphBuilder, Quantization
from samebits.ir.ops import Attribute

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)


class ImageBuilder(GraphBuilder):
    """A GraphBuilder that moves the channels of an image once."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._first: dict[str, str] = {}  # value -> the same with its channels in front
        self._last: dict[str, str] = {}
        self._writers: dict[str, int] = {}  # value -> place of the node that writes it

    def channels_first(self, value: str) -> str:
        """The image [N, H, W, C] as [N, C, H, W]."""
        return self._moved(value, FIRST, self._first, self._last)

    def channels_last(self, value: str) -> str:
        """The image [N, C, H, W] as [N, H, W, C]."""
        return self._moved(value, LAST, self._last, self._first)

    def known_first(self, value: str) -> str | None:
        """The form with its channels in front, where there is one already."""
        return self._first.get(value)

    def _moved(
        self, value: str, perm: tuple[int, ...], forms: dict[str, str], others: dict[str, str]
    ) -> str:
        if value not in forms:
            forms[value] = self.add("Transpose", [value], {"perm": perm}, "transpose")
            others[forms[value]] = value
        return forms[value]

    def add_all(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Attribute] | None = None,
        name: str = "",
        outputs: Sequence[str] = (),
        quantization: Quantization | None = None,
    ) -> tuple[str, ...]:
        """As of a GraphBuilder; which node writes a value is noted."""
        made = super().add_all(op, inputs, attributes, name, outputs, quantization)
        self._writers.update(dict.fromkeys(made, len(self.nodes) - 1))
        return made

    def named(self, value: str, name: str, first: int) -> str:
        """A value by another name, where a node from `first` on writes it and none but the movement
        of its channels reads it; the value as it is elsewhere. Returns its name."""
        index = self._writers.get(value, -1)
        if index < first:
            return value
        name, node = self.unique(name), self.nodes[index]
        outputs = tuple(name if held == value else held for held in node.outputs)
        self.nodes[index] = replace(node, outputs=outputs)
        for other in (self._first.get(value), self._last.get(value)):
            reader = self._writers.get(other or "", -1)
            if reader > index:
                self.nodes[reader] = replace(self.nodes[reader], inputs=(name,))
        self._writers[name] = self._writers.pop(value)
        self.values[name] = replace(self.values.pop(value), name=name)
        for forms, others in ((self._first, self._last), (self._last, self._first)):
            if value in forms:
                forms[name] = forms.pop(value)
                others[forms[name]] = name
        return name
