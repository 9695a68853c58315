"""Float modules inside a BFP network: their bits depend on the machine."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map

from samebits.settled import outside
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.quantize import quantize_real
from samebits.train.tensor import FUNCTIONS, BFPTensor
from samebits.train.value import BFPValue

WORDS = "float32: bits depend on the machine here"


def _to_real(x: BFPValue, along: int | None) -> tuple[Tensor, tuple[Tensor, ...]]:
    """BFP -> float64, log-probabilities along an axis if it says so; the gradient becomes bfp32
    with one exponent."""
    values = x.values()
    return values, () if along is None else (values.exp(),)


def _to_real_gradient(call: OperationCall, grad: Tensor) -> BFPValue:
    """The gradient of log-probabilities becomes that by the logits, which they hand on."""
    if call.saved:
        grad = grad - call.saved[0] * grad.sum(call.arguments[1], keepdim=True)
    return BFPValue(*quantize_real(grad, 32, "gradient of real numbers"))


TO_REAL = TrainingOperation("ToReal", _to_real, _to_real_gradient, saves=True)


def _dequantize(x: BFPTensor) -> Tensor:
    """The values of a tensor that carries gradients, which carry them on: a loss of floats."""
    found: Tensor = TO_REAL(x, x.along)
    return found


FUNCTIONS[Tensor.dequantize] = _dequantize


class FloatWarning(UserWarning):
    """A loss is computed in floats: from there on bits depend on the machine."""


def _in_floats(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss of PyTorch over the values of BFP tensors, with a warning."""

    @functools.wraps(loss)
    def compute(*args: Any, **options: Any) -> Tensor:
        text = (
            f"{loss.__name__} has no form in integers and is computed in float64: bits depend on "
            "the machine from there on"
        )
        warnings.warn(text, FloatWarning, stacklevel=outside())
        given = tree_map(
            lambda x: _dequantize(x) if isinstance(x, BFPTensor) else x, (args, options)
        )
        return loss(*given[0], **given[1])

    return compute


FUNCTIONS.update(
    {
        loss: _in_floats(loss)
        for loss in (
            *(functional.kl_div, functional.triplet_margin_loss, functional.ctc_loss),
            *(functional.triplet_margin_with_distance_loss, functional.hinge_embedding_loss),
            *(functional.cosine_embedding_loss, functional.margin_ranking_loss),
            *(functional.multi_margin_loss, functional.multilabel_margin_loss),
            *(functional.multilabel_soft_margin_loss, functional.soft_margin_loss),
            *(functional.poisson_nll_loss, functional.gaussian_nll_loss),
        )
    }
)


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

        Raises NonFiniteError where one holds NaN or an infinity.
        """
        given = tree_map(self._real, (args, options))
        result = super().forward(*given[0], **given[1])
        return tree_map(self._quantized, result)

    def _real(self, value: Any) -> Any:
        if not isinstance(value, BFPTensor):
            return value
        return _dequantize(value).float()

    def _quantized(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            name, by_rows, bits = self.island
            return FROM_REAL(value, f"output of {name!r}", by_rows or not self.training, bits)
        return value

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The parts that copy and pickle make a module from: no file names this class."""
        return _empty, (type(self).__mro__[2],), vars(self)

    def extra_repr(self) -> str:
        """The options, as torch prints them, and a warning."""
        own = super().extra_repr()
        return f"{own}, {WORDS}" if own else WORDS


def island_of(module: nn.Module, name: str, by_rows: bool, bits: int) -> nn.Module:
    """A copy of a module that computes in float32 inside a BFP network.

    name: its path. by_rows, bits: of what it hands on.
    """
    twin = copy.deepcopy(module)
    twin.__class__ = _like(type(module))
    twin.island = (name, by_rows, bits)  # type: ignore[assignment]
    return twin


def _like(kind: type[nn.Module]) -> type[nn.Module]:
    """A class of modules like `kind`, of the same name, that compute in float32."""
    return type(kind.__name__, (Island, kind), {"__module__": kind.__module__})


def _empty(kind: type[nn.Module]) -> nn.Module:
    """A module like `kind` without any state."""
    island = _like(kind)
    return island.__new__(island)


def float_islands(model: nn.Module) -> list[str]:
    """A line for every module of a converted model that computes in float32.

    Empty where every bit of the model is the same on every machine.
    """
    return [
        f"{path} ({type(module).__name__}): {WORDS}"
        for path, module in model.named_modules()
        if isinstance(module, Island)
    ]
