"""BFP tensors that flow through autograd: integer codes and one exponent, seen as float32."""

from __future__ import annotations

import copy
import ctypes
import operator
from collections.abc import Callable
from ctypes import c_int64
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels.protocol import BITS, Part, WholePart
from samebits.kernels.rows import Exponent, placed
from samebits.numerics.realise import times_power
from samebits.spec import formats
from samebits.train import advice
from samebits.train.quantize import largest_magnitude, quantize_real
from samebits.train.signatures import check_arguments, of_aten
from samebits.train.sums import Sums
from samebits.train.value import BFPValue, Weight
from samebits.train.widths import Widths

WIDTHS = Widths()


class BFPTensor(torch.Tensor):
    """value = codes * 2**exponent over the whole tensor; codes int8, int16 or int32.

    To autograd it is a float32 tensor of the same shape, so modules, `backward()` and optimizers
    work as usual; all that it holds is a `BFPValue`, by whose words it is read.

    codes:    integers of 8, 16 or 32 bits, of the sum if there are several parts
    exponent: of the whole tensor, of its rows, or of the channels of its rows
    bits:     width of a code: 4 to 8, 16, or 32, which is what reading sums gives
    parts:    (codes, exponent) of every contribution to a gradient; bounds: of their max|codes|
    by_rows:  whether exponents are those of rows; reads nothing
    """

    value: BFPValue
    codes: Tensor
    exponent: Exponent
    bits: int
    parts: tuple[Part, ...]
    bounds: tuple[int | None, ...]
    sums: Sums | None
    layer_bits: int
    by_rows: bool
    is_wide: bool
    is_open: bool
    allowed: Tensor | None
    along: int | None
    shifts: Tensor | None

    @staticmethod
    def __new__(
        cls,
        codes: Tensor,
        exponent: Exponent,
        bound: int | None = None,
        bits: int | None = None,
        shifts: Tensor | None = None,
    ) -> BFPTensor:
        return cls.of(BFPValue(codes, exponent, bits, bound, shifts))

    @classmethod
    def of(cls, value: BFPValue) -> BFPTensor:
        """A tensor that holds a value, which others may hold too."""
        tensor: BFPTensor = torch.Tensor._make_wrapper_subclass(
            cls, value.shape, dtype=torch.float32, device=value.device
        )
        tensor.value = value
        return tensor

    def resolved(self) -> Part:
        """(codes, exponent), the sum of the parts if there are several.

        The parts stay: one more may come (another shard), and the sum is over all of them. Shifts
        of channels end: codes are aligned to their row.
        """
        return self.value.resolved()

    def whole(self) -> WholePart:
        """(codes, exponent) of a tensor with one exponent; UnsupportedError where rows have own."""
        return self.value.whole()

    def narrowed(self) -> BFPTensor:
        """As bfp8, which layers take, with one rounding of the exact value; it has no gradient."""
        return BFPTensor.of(self.value.narrowed())

    def replaced_by(self, result: BFPTensor) -> BFPTensor:
        """The result of an operation in place; this tensor is used up: reading it is an error."""
        self.value = self.value.used_up()
        return result

    @staticmethod
    def from_real(
        x: Tensor, name: str = "input", by_rows: bool = False, bits: int = 8
    ) -> BFPTensor:
        """Quantize a real tensor to bfp8 (training.md 5). NaN or infinity: NonFiniteError.

        by_rows: every row with an exponent of its own (12). bits: 4 to 8 (13).
        `samebits.train.model_input` chooses both as a converted model expects its input.
        """
        part = quantize_real(x, bits, name, by_rows)
        return BFPTensor(*part, bits=bits)

    def dequantize(self) -> Tensor:
        """The values as float64 (exact for 8- and 16-bit codes and ordinary exponents).

        -inf where a mask excludes them. Where a gradient is recorded for this tensor they are
        float32, as it is to autograd, and carry it: what comes back is rounded once, to bfp32.
        """
        if self.grad_fn is not None and torch.is_grad_enabled():
            return cast(Tensor, FUNCTIONS[Tensor.dequantize](self)).float()
        return self.value.values()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        widths = "+".join(str(BITS[codes.dtype]) for codes, _ in self.parts)
        exponents = "+".join(str(exponent) for _, exponent in self.parts)
        grad = ", requires_grad=True" if self.requires_grad else ""
        shape = tuple(self.shape)
        return f"{type(self).__name__}(shape={shape}, bits={widths}, exponent={exponents}{grad})"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """A function of torch by its twin, or by what autograd itself does of it.

        Raises UnsupportedError, which names the module that calls and the nearest function.
        """
        if not all(issubclass(kind, Tensor) for kind in types):
            return NotImplemented  # the others say what they are
        if any(map(_is_loss, args)) and not any(a.dim() for a in args if isinstance(a, Tensor)):
            real = (FUNCTIONS[Tensor.dequantize](a) if isinstance(a, cls) else a for a in args)
            return func(*real, **(kwargs or {}))
        handler = FUNCTIONS.get(func)
        if handler is None:
            handler = next((FUNCTIONS[f] for f in of_aten(func) if f in FUNCTIONS), None)
        try:
            if handler is not None:
                check_arguments(func, handler, args, kwargs or {})
                return handler(*args, **(kwargs or {}))
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        except UnsupportedError as error:
            if func in _BACKWARD:  # whose operations have no place in the stack
                raise
            text = None if isinstance(error, _MissingError) else str(error)
            text = advice.for_operation(func, text, args, kwargs)
            raise UnsupportedError(text) from None

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Do what autograd itself needs: detach, clone, zero, sums of gradient parts, and the look
        of its anomaly mode for what is no number, which integers never are.

        A sum only joins the lists of parts and of their bounds. Detaching or cloning a parameter
        gives its value (the joint value), not its state. Raises UnsupportedError for all else.
        """
        aten = torch.ops.aten
        same = func is aten.view.default and tuple(args[1]) == tuple(args[0].shape)
        if same or func in (aten.detach.default, aten.alias.default):
            return BFPTensor.of(args[0].as_value())
        if func is aten.clone.default:
            return BFPTensor.of(args[0].as_value().cloned())
        if func is aten.zero_.default:
            zero = torch.zeros_like(args[0].parts[0][0], dtype=torch.int32)
            args[0].value = BFPValue(zero, formats.EXPONENT_MIN, bound=0)
            return args[0]
        if func is aten.isnan.default:
            return torch.zeros(args[0].shape, dtype=torch.bool, device=args[0].device)
        both = len(args) > 1 and all(isinstance(a, BFPTensor) for a in args[:2]) and not kwargs
        if func is aten.add.Tensor and both:
            return BFPTensor.of(args[0].value + args[1].value)
        if func is aten.add_.Tensor and both:
            args[0].value = args[0].value + args[1].value
            return args[0]
        raise _MissingError(
            f"BFP tensors are integers and have no {func}: expected a samebits.train layer or "
            "optimizer, or one of add, mul, mean, cat, activations, poolings, reshape, permute, "
            "indexing; go on in floats with .dequantize()"
        )

    def as_value(self) -> BFPValue:
        """The value of a detached or cloned tensor."""
        return self.value


for _name in BFPTensor.__annotations__.keys() - {"value"}:  # what a value tells, a tensor tells
    _told = operator.attrgetter(f"value.{_name}")
    setattr(BFPTensor, _name, property(_told, doc=getattr(BFPValue, _name).__doc__))


def _is_loss(argument: object) -> bool:
    """Whether an argument is a real number with a gradient, as losses of integers are."""
    return type(argument) is Tensor and argument.requires_grad and not argument.dim()


_BACKWARD = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)


class _MissingError(UnsupportedError):
    """An operation that BFP tensors do not have, by the name that autograd knows."""


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {}
"""PyTorch functions on BFP tensors, e.g. torch.add -> residual addition; `offer` fills it."""
_HOMES: dict[str, Any] = {"torch": torch, "Tensor": Tensor, "functional": torch.nn.functional}


def offer(handler: Callable[..., Any], *names: str) -> None:
    """Let PyTorch call a handler for BFP tensors.

    names: of functions of torch and torch.nn.functional, and of methods of tensors, all that have
    the name; or of one alone, "Tensor.view"
    """
    for name in names:
        home, _, own = name.rpartition(".")
        places = [_HOMES[home]] if home else _HOMES.values()
        FUNCTIONS.update({getattr(at, own): handler for at in places if hasattr(at, own)})


def offer_by_name(*handlers: Callable[..., Any]) -> None:
    """`offer` functions that have PyTorch's names."""
    for handler in handlers:
        offer(handler, handler.__name__)


class BFPParameter(BFPTensor):
    """A trained tensor: codes W (int8) and delayed update A (int16), 3 bytes an element.

    Value: (W * 2**15 - A) * 2**(exponent - 15). Products take W alone; A holds what updates have
    not yet carried into it (training.md 2). Changed in place by the optimizers only.
    """

    value: Weight
    delayed: Tensor  # A, int16: what updates have not yet carried into the codes
    widths: Widths  # of the layer that it belongs to
    exponent_cell: Tensor  # the exponent where it is kept: int64 [] or int8 [rows]
    _peak: ctypes.Array[c_int64] | None = None
    _is_param = True  # what torch.nn.Module asks of a parameter

    @staticmethod
    def __new__(
        cls,
        codes: Tensor,
        exponent: Exponent,
        delayed: Tensor,
        requires_grad: bool = True,
        widths: Widths = WIDTHS,
    ) -> BFPParameter:
        """A parameter of these tensors, which it holds, and of its exponent, which it copies."""
        with torch.inference_mode(False):  # the cell has versions
            if isinstance(exponent, int):
                cell = kernels.cell(exponent, codes.device)
            else:
                cell = exponent.flatten().to(torch.int8, copy=True)
        parameter = cls.of(Weight(codes, cell, delayed, widths, codes.shape))
        assert isinstance(parameter, BFPParameter)
        parameter.requires_grad_(requires_grad)
        return parameter

    def as_value(self) -> BFPValue:
        """The joint value: a detached or cloned parameter is no state."""
        value, exponent = self.joint()
        return BFPValue(value.to(torch.int32), exponent)

    @staticmethod
    def from_real(  # type: ignore[override]  # a layer's widths, not one of codes
        x: Tensor, name: str = "weight", by_rows: bool = False, widths: Widths = WIDTHS
    ) -> BFPParameter:
        """The weight state of real values (training.md 2); conv weights are kept channels-last.

        by_rows: an exponent for each index of the first axis (12), if x has two axes or more.
        Raises NonFiniteError, which names the tensor, for NaN or infinity.
        """
        values = x.detach().double()
        tops = [largest_magnitude(values, name)]
        bits = widths.values
        exponent: Exponent = formats.initial_weight(tops, name, bits)[2]
        if by_rows and x.dim() > 1:
            tops = values.abs().flatten(1).amax(1).tolist()
            own = [formats.initial_weight([top], name, bits)[2] for top in tops]
            exponent = torch.tensor(own, device=x.device).view(-1, *[1] * (x.dim() - 1))
        value = torch.round(times_power(values, formats.DELAYED_BITS - exponent)).long()
        codes, delayed = kernels.of(value).split(value)
        order = torch.channels_last if x.dim() == 4 else torch.contiguous_format
        return BFPParameter(
            codes.to(torch.int8).contiguous(memory_format=order),
            exponent,
            delayed.to(torch.int16).contiguous(memory_format=order),
            widths=widths,
        )

    def joint(self) -> Part:
        """J = W * 2**15 - A (int64) and its exponent: the exact value of the parameter."""
        return self.value.joint()

    def set_exponent(self, exponent: Exponent) -> None:
        """Change e_W (the optimizers and checkpoints do); by rows [rows], or as in `parts`."""
        cell = self.value.cell
        if isinstance(exponent, Tensor):
            cell.copy_(exponent.view(cell.shape))
        else:
            cell.fill_(exponent)

    @property
    def largest_allowed(self) -> int:
        """The largest code that W may have, by the width of its layer."""
        return formats.CODE_MAX[self.widths.values]

    def largest_joint(self) -> int | None:
        """max|J| where the last update left it, None if W may have changed since."""
        largest, version = self.largest_cell
        return largest if version == self.parts[0][0]._version and largest >= 0 else None

    @property
    def largest_cell(self) -> ctypes.Array[c_int64]:
        """max|J| (-1: unknown), and the version of W that it is true of; C writes it, too."""
        if self._peak is None:
            self._peak = (c_int64 * 2)(-1, -1)
        return self._peak

    def remember_largest_joint(self, largest: int) -> None:
        """Keep max|J| for as long as W is not written."""
        self.largest_cell[:] = [largest, self.parts[0][0]._version]

    def to_device(self, device: torch.device) -> BFPParameter:
        """A copy on another device; layers that share this parameter get the same copy."""
        twin = _MOVED.get(self)
        if twin is None or twin.device != device:
            codes, exponent = self.parts[0]
            twin = _MOVED[self] = BFPParameter(
                codes.to(device),
                placed(exponent, lambda e: e.to(device)),
                self.delayed.to(device),
                self.requires_grad,
                self.widths,
            )
        return twin

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """The state alone: what is remembered of it, and its gradient, are not copied."""
        codes, exponent = self.parts[0]
        return BFPParameter, (codes, exponent, self.delayed, self.requires_grad, self.widths)

    def __deepcopy__(self, memo: dict[int, Any]) -> BFPParameter:
        make, state = self.__reduce_ex__(4)
        twin: BFPParameter = make(*copy.deepcopy(state, memo))
        memo[id(self)] = twin
        return twin


for _name, _own in (("delayed", "delayed"), ("widths", "widths"), ("exponent_cell", "cell")):
    setattr(BFPParameter, _name, property(operator.attrgetter(f"value.{_own}")))
_MOVED: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Copies on another device, for as long as the original lives: tied parameters stay tied."""
