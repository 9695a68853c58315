"""Training traces of a planned pass: what a recorder is told, the same as by the model itself.

A recorder of traces hooks the modules of a model. Under a plan modules are called more than once,
or in parts, or not at all, so the hooks are off (`taken_over`) and the pass itself tells the
recorder: an output when its sub-layer has been computed for the first time, and the gradient of an
output when the backward pass of its sub-layer begins. By then all sub-layers that read the output
have had their backward passes, as these run from the last to the first, so the gradient is whole.

Example: conv, identity, linear compute values 1, 2 and 3; identity hands on the tensor of value 1.
Told are: conv's output (1), identity's (2, the same tensor), linear's (3); then the gradient of 3,
and, when it has come through to value 1, that tensor's gradient for both identity and conv. If
value 1 is dropped and computed again in between, nothing is told of that.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.recompute.network.tape import Tape
from samebits.train.run.trace import Recorder


class Hearing:
    """The ear of a recorder in one pass of a tape.

    Raises UnsupportedError for a sub-layer with layers inside, which a plan takes as a whole.
    """

    def __init__(self, tape: Tape, recorder: Recorder) -> None:
        for call in tape.calls:
            if call.module is not None and any(call.module.children()):
                raise UnsupportedError(
                    f"{call.name}: expected sub-layers without layers inside for a trace under a "
                    f"plan, found {call.kind}; leave out --trace, or give --plan none"
                )
        self._tape, self._recorder = tape, recorder
        self._gradients: dict[int, list[Callable[[Tensor], None]]] = {}

    def computed(self, index: int, read: Callable[[int], Tensor]) -> None:
        """Tell the outputs of the modules that end with sub-layer `index`, now that it is computed
        for the first time. read: gives a value."""
        for heard in self._tape.heard.get(index, ()):
            gradient = self._recorder.hear(heard.name, read(heard.value))
            self._gradients.setdefault(heard.origin, []).append(gradient)

    def arrived(self, index: int, gradient: Tensor) -> None:
        """Tell the gradient of value `index`, which is whole."""
        for hear in self._gradients.pop(index, ()):
            hear(gradient)
