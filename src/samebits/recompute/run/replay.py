"""What a sub-layer's result depends on besides its inputs, kept to compute it again."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from samebits.recompute.network.tape import Program
from samebits.train.layers import Dropout


class Replay:
    """The state that decides a sub-layer's result besides its inputs, to compute it again.

    Buffers, the position of a generator, the step and shard of a dropout. Computing again leaves
    all of them as the step left them.
    """

    def __init__(self, program: Program, random: bool, index: int) -> None:
        module = program.calls[index].module
        modules = () if module is None else tuple(module.modules())
        self.buffers = [
            (m, name, buffer.clone())
            for m in modules
            for name, buffer in m._buffers.items()
            if buffer is not None
        ]
        self.dropouts = [(m, _position(m)) for m in modules if isinstance(m, Dropout)]
        self.generator = _generator_state() if random else None
        self.stack = contextlib.ExitStack()

    @property
    def size(self) -> int:
        """Bytes held."""
        held = [buffer for _, _, buffer in self.buffers]
        if self.generator is not None:
            held += [self.generator[0], *self.generator[1]]
        return sum(tensor.untyped_storage().nbytes() for tensor in held)

    def done(self) -> None:
        """The first computation is over: from now on dropouts count no more passes."""
        self.dropouts = [(m, (*_position(m)[:3], False)) for m, _ in self.dropouts]

    def __enter__(self) -> None:
        for module, name, buffer in self.buffers:
            self.stack.callback(module._buffers.__setitem__, name, module._buffers[name])
            module._buffers[name] = buffer
        for dropout, position in self.dropouts:
            self.stack.callback(_move, dropout, _position(dropout))
            _move(dropout, position)
        if self.generator is not None:
            self.stack.callback(_set_generator_state, _generator_state())
            _set_generator_state(self.generator)

    def __exit__(self, *_: object) -> None:
        self.stack.close()


def _position(dropout: Dropout) -> tuple[int, int, int, bool]:
    return dropout.seed, dropout.step, dropout.shard, dropout.counting


def _move(dropout: Dropout, position: tuple[int, int, int, bool]) -> None:
    dropout.seed, dropout.step, dropout.shard, dropout.counting = position


def _generator_state() -> tuple[Tensor, list[Tensor]]:
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), devices


def _set_generator_state(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
