"""Float modules inside a BFP network: their bits depend on the machine."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from samebits.errors import UnsupportedError
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.quantize import quantize_real
from samebits.train.tensor import FUNCTIONS, BFPTensor
from samebits.train.value import BFPValue

WORDS = "float32: bits depend on the machine here"


def _to_real(x: BFPValue) -> Tensor:
    """BFP -> float64; the gradient becomes bfp32 with one exponent."""
    return x.values()


def _to_real_gradient(call: OperationCall, grad: Tensor) -> BFPValue:
    return BFPValue(*quantize_real(grad, 32, "gradient of real numbers"))


TO_REAL = TrainingOperation("ToReal", _to_real, _to_real_gradient)


def _dequantize(x: BFPTensor) -> Tensor:
    """The values of a tensor that carries gradients, which carry them on: a loss of floats."""
    if x.along is not None:
        raise UnsupportedError(
            "dequantize: expected BFP values, found log-probabilities, whose gradient is that by "
            "logits; dequantize the logits, and take torch.log_softmax of that"
        )
    found: Tensor = TO_REAL(x)
    return found


FUNCTIONS[Tensor.dequantize] = _dequantize


def _from_real(x: Tensor, name: str, by_rows: bool, bits: int) -> BFPValue:
    """float32 -> BFP, as an input of the network is quantized; the gradient becomes float32."""
    return BFPTensor.from_real(x, name, by_rows, bits).value


def _from_real_gradient(call: OperationCall, grad: BFPValue) -> Tensor:
    return grad.values().float()


FROM_REAL = TrainingOperation("FromReal", _from_real, _from_real_gradient)


class Island(nn.Module):
    """A module that computes in float32 between BFP layers, a class of modules like its own."""

    island: tuple[str, bool, int]  # its path; of its output: by rows, bits

    def forward(self, *args: Any, **options: Any) -> Any:
        """The float module's result, its real tensors quantized as inputs of a network are.

        Raises NonFiniteError where one holds NaN or an infinity, UnsupportedError where one given
        holds log-probabilities: the gradient that log_softmax takes is that by logits.
        """
        given = tree_map(self._real, (args, options))
        result = super().forward(*given[0], **given[1])
        return tree_map(self._quantized, result)

    def _real(self, value: Any) -> Any:
        if not isinstance(value, BFPTensor):
            return value
        if value.along is not None:
            raise UnsupportedError(
                f"float module {self.island[0]!r}: expected BFP values, found log-probabilities, "
                "whose gradient is that by logits; keep log_softmax in the float module too"
            )
        return TO_REAL(value).float()

    def _quantized(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            name, by_rows, bits = self.island
            return FROM_REAL(value, f"output of {name!r}", by_rows or not self.training, bits)
        return value

    def extra_repr(self) -> str:
        """The options, as torch prints them, and a warning."""
        own = super().extra_repr()
        return f"{own}, {WORDS}" if own else WORDS


def island_of(module: nn.Module, name: str, by_rows: bool, bits: int) -> nn.Module:
    """A copy of a module that computes in float32 inside a BFP network.

    name: its path. by_rows, bits: of what it hands on.
    """
    twin = copy.deepcopy(module)
    kind = type(module)
    twin.__class__ = type(kind.__name__, (Island, kind), {"__module__": kind.__module__})
    twin.island = (name, by_rows, bits)  # type: ignore[assignment]
    return twin


def float_islands(model: nn.Module) -> list[str]:
    """A line for every module of a converted model that computes in float32.

    Empty where every bit of the model is the same on every machine.
    """
    return [
        f"{path} ({type(module).__name__}): {WORDS}"
        for path, module in model.named_modules()
        if isinstance(module, Island)
    ]
