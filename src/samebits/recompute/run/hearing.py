"""What a recorder of training traces hears of a planned pass: each layer's output once, when it is
first computed, and its gradient, as from the model itself."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.recompute.network.tape import Program
from samebits.train.run.trace import Recorder


class Hearing:
    """Tells a recorder of one pass of a program. Raises UnsupportedError for a sub-layer with
    layers inside, which a plan takes as a whole."""

    def __init__(self, program: Program, recorder: Recorder) -> None:
        for call in program.calls:
            if call.module is not None and any(call.module.children()):
                raise UnsupportedError(
                    f"{call.name}: expected sub-layers without layers inside for a trace under a "
                    f"plan, found {call.kind}; leave out --trace, or give --plan none"
                )
        self._program, self._recorder = program, recorder
        self._gradients: dict[int, list[Callable[[Tensor], None]]] = {}

    def computed(self, index: int, read: Callable[[int], Tensor]) -> None:
        """A sub-layer was computed for the first time."""
        for heard in self._program.heard.get(index, ()):
            gradient = self._recorder.hear(heard.name, read(heard.value))
            self._gradients.setdefault(heard.origin, []).append(gradient)

    def arrived(self, index: int, gradient: Tensor) -> None:
        """The whole gradient of a value has come."""
        for hear in self._gradients.pop(index, ()):
            hear(gradient)
