"""The state that a sub-layer's result depends on besides its inputs, kept to compute it again.

A second computation has to see what the first saw, and must leave no trace, since the step goes on
from the state that the first one left. So the state before the first computation is kept, put in
place for the second, and taken away again after it.

Example: a batch-norm whose running mean is m0 computes its output from the batch, and leaves the
mean m1 in the buffer; a dropout draws its mask from the generator at state s0, and others go on
from there to s5. To compute both again, a copy of m0 takes the place of the buffer and the
generator goes back to s0: the same output, the same mask. The update of the mean is written into
the copy. At the end the buffer with m1 is back in its place and the generator at s5: the mean has
moved once, and what is drawn next is what would have been drawn without a plan.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from samebits.recompute.network.tape import Tape


class Replay:
    """The state before the first computation of sub-layer `index`, to be used once as a context.

    Copies of the buffers, and the position of torch's generators (if the sub-layer is `random`).
    Inside the context they are in place; after it everything is as the step left it.
    """

    def __init__(self, tape: Tape, random: bool, index: int) -> None:
        module = tape.calls[index].module
        modules = () if module is None else tuple(module.modules())
        self.buffers = [
            (m, name, buffer.clone())
            for m in modules
            for name, buffer in m._buffers.items()
            if buffer is not None
        ]
        self.generator = _generator_state() if random else None
        self.stack = contextlib.ExitStack()

    @property
    def size(self) -> int:
        """Number of bytes held."""
        held = [buffer for _, _, buffer in self.buffers]
        if self.generator is not None:
            held += [self.generator[0], *self.generator[1]]
        return sum(tensor.untyped_storage().nbytes() for tensor in held)

    def __enter__(self) -> None:
        for module, name, buffer in self.buffers:
            self.stack.callback(module._buffers.__setitem__, name, module._buffers[name])
            module._buffers[name] = buffer
        if self.generator is not None:
            self.stack.callback(_set_generator_state, _generator_state())
            _set_generator_state(self.generator)

    def __exit__(self, *_: object) -> None:
        self.stack.close()


def _generator_state() -> tuple[Tensor, list[Tensor]]:
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), devices


def _set_generator_state(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
