"""A planned step compared with a plain one before a plan is trusted.

`network.guards` refuses what Python shows of a forward pass with state. A counter in a global
variable, or a clock, it does not show: the tape holds the number that was read when the model was
traced. So the first batch is computed twice, once by the model and once by the plan, and output,
loss and gradients must have the same bits. The model is left as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.profile import in_training, untouched
from samebits.train.tensor import BFPTensor
from samebits.train.value import same_parts


class ProofError(UnsupportedError):
    """A planned step has other bits than a plain one."""


Loss = Callable[[Tensor], Tensor]


def prove(executor: Executor, example: Tensor, loss: Loss) -> None:
    """Compare a planned step with one of the model itself, on an example of the plan's shape.

    Raises ProofError, naming what differs, where the bits are not the same.
    """
    model = executor.tape.model
    plain, planned = (_step(model, forward, example, loss) for forward in (model, executor))
    for name, expected in plain.items():
        if not _same(expected, planned[name]):
            raise ProofError(
                f"{type(model).__name__}: {name} of a planned step differs from that of a plain "
                "one: the forward code reads something that changes between passes (a global "
                "variable, a clock, a file); train without a plan"
            )


def _step(
    model: nn.Module, forward: Callable[[Tensor], Tensor], example: Tensor, loss: Loss
) -> Mapping[str, Any]:
    """Output, loss and gradients of one step from the model's present state."""
    with untouched(model):
        in_training(model)
        output = forward(example)
        value = loss(output)
        value.backward()
        found: dict[str, Any] = {"the output": _plain(output), "the loss": _plain(value)}
        for name, parameter in model.named_parameters():
            found[f"the gradient of {name!r}"] = _plain(parameter.grad)
    return found


def _plain(value: Tensor | None) -> Any:
    """Something to compare: a tensor (of a loss), or codes with their exponent."""
    if isinstance(value, BFPTensor):
        parts = list(value.parts)
        return kernels.of(parts[0][0]).resolve(parts)
    return None if value is None else value.detach().clone()


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return isinstance(b, tuple) and same_parts(a, b)
    if a is None or b is None:
        return a is b
    return bool(((a == b) | ((a != a) & (b != b))).all())
