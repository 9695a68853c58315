"""BFP tensors that flow through autograd: integer codes and one exponent, seen as float32."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from samebits import kernels
from samebits.errors import NonFiniteError, UnsupportedError
from samebits.kernels.geometry import smallest_exponent
from samebits.kernels.protocol import BITS, CODE_TYPE, Part
from samebits.numerics.realise import times_power
from samebits.spec import formats


class BFPTensor(torch.Tensor):
    """value = codes * 2**exponent over the whole tensor; codes int8, int16 or int32.

    To autograd it is a float32 tensor of the same shape, so modules, `backward()` and optimizers
    work as usual. A gradient with several contributions keeps them apart (`parts`) until it is
    read: sums are taken once, aligned to the largest exponent, whatever the order of arrival
    (docs/spec/training.md, 1.3).
    """

    parts: tuple[Part, ...]
    bounds: tuple[int | None, ...]  # of max|codes|, per part, where the producer knows one
    _sum: tuple[tuple[Part, ...], Part] | None = None  # parts and their sum, once it was read

    @staticmethod
    def __new__(cls, codes: Tensor, exponent: int, bound: int | None = None) -> BFPTensor:
        return cls._of_parts(((codes, exponent),), (bound,))

    @classmethod
    def _of_parts(
        cls, parts: tuple[Part, ...], bounds: tuple[int | None, ...] = (None,)
    ) -> BFPTensor:
        codes = parts[0][0]
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, codes.shape, dtype=torch.float32, device=codes.device
        )
        tensor.parts, tensor.bounds = parts, bounds
        return tensor

    @staticmethod
    def from_real(x: Tensor, name: str = "input") -> BFPTensor:
        """Quantize a real tensor to bfp8 (training.md 5). NaN or infinity: NonFiniteError."""
        codes, exponent = quantize_real(x, 8, name)
        return BFPTensor(codes, exponent)

    @property
    def codes(self) -> Tensor:
        """Integers of 8, 16 or 32 bits, of the sum if there are several parts."""
        return self.resolved()[0]

    @property
    def exponent(self) -> int:
        """Exponent of the whole tensor, of the sum if there are several parts."""
        return self.resolved()[1]

    @property
    def bits(self) -> int:
        """Width of a code: 8, 16 or 32."""
        return BITS[self.codes.dtype]

    def resolved(self) -> Part:
        """(codes, exponent), the sum of the parts if there are several.

        The parts stay: one more may come (another shard), and the sum is over all of them.
        """
        if len(self.parts) == 1:
            return self.parts[0]
        if not self.parts:
            raise UnsupportedError(
                "this BFP tensor was the left side of an addition in place: use the result of "
                "a += b (or c = a + b), not the old tensor"
            )
        if self._sum is None or self._sum[0] is not self.parts:
            self._sum = (self.parts, kernels.of(self.parts[0][0]).resolve(list(self.parts)))
        return self._sum[1]

    def dequantize(self) -> Tensor:
        """The values as float64 (exact for 8- and 16-bit codes and ordinary exponents)."""
        codes, exponent = self.resolved()
        return times_power(codes.double(), exponent)

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
        handler = FUNCTIONS.get(func)
        if handler is not None:
            return handler(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Do what autograd itself needs: detach, clone, zero, and sums of gradient parts.

        A sum only joins the lists of parts and of their bounds. Detaching or cloning a parameter
        gives its value (the joint value), not its state. Raises UnsupportedError for all else.
        """
        aten = torch.ops.aten
        if func in (aten.detach.default, aten.alias.default, aten.clone.default):
            if isinstance(args[0], BFPParameter):
                value, exponent = args[0].joint()
                return BFPTensor(value.to(torch.int32), exponent)
            parts = args[0].parts
            if func is aten.clone.default:
                parts = tuple((codes.clone(), exponent) for codes, exponent in parts)
            return BFPTensor._of_parts(parts, args[0].bounds)
        if func is aten.zero_.default:
            codes = args[0].parts[0][0]
            zero = torch.zeros_like(codes, dtype=torch.int32)
            args[0].parts, args[0].bounds = ((zero, formats.EXPONENT_MIN),), (0,)
            return args[0]
        both = len(args) > 1 and all(isinstance(a, BFPTensor) for a in args[:2]) and not kwargs
        if func is aten.add.Tensor and both:
            both_bounds = args[0].bounds + args[1].bounds
            return BFPTensor._of_parts(args[0].parts + args[1].parts, both_bounds)
        if func is aten.add_.Tensor and both:
            args[0].parts = args[0].parts + args[1].parts
            args[0].bounds = args[0].bounds + args[1].bounds
            return args[0]
        raise UnsupportedError(
            f"BFP tensors are integers and have no {func}: expected a samebits.train layer or "
            "optimizer, or one of add, cat, flatten, reshape, permute, indexing; read values with "
            ".dequantize()"
        )


class TensorOperation(torch.autograd.Function):
    """Base of the differentiable operations: forward and backward over BFP tensors."""

    @classmethod
    def word(cls) -> str:
        """Name of the operation in messages, frozen exponents and exported graphs: "MaxPool"."""
        return cls.__name__.removesuffix("Function")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Compute in the training arithmetic, or as the interpreter of this context says."""
        interpreter = _INTERPRETER.get()
        return cls.compute(*args) if interpreter is None else interpreter(cls, *args)

    @classmethod
    def compute(cls, *args: Any) -> Any:
        """Compute in the training arithmetic: torch.autograd.Function.apply, without a type."""
        return super().apply(*args)  # type: ignore[no-untyped-call]


Interpreter = Callable[..., BFPTensor]  # (operation, *its arguments)
_INTERPRETER: ContextVar[Interpreter | None] = ContextVar("interpreter", default=None)


@contextlib.contextmanager
def interpreting(interpreter: Interpreter) -> Iterator[None]:
    """Give every operation inside a with block to `interpreter` (deployment does)."""
    token = _INTERPRETER.set(interpreter)
    try:
        yield
    finally:
        _INTERPRETER.reset(token)


Side = Literal["input", "weight"]
_SIDE: ContextVar[Side | None] = ContextVar("side", default=None)


@contextlib.contextmanager
def backward_side(side: Side) -> Iterator[None]:
    """Let backward passes of products inside a with block compute one of their gradients only.

    `torch.autograd.grad` does not tell a Python function which gradients it was asked for.
    """
    token = _SIDE.set(side)
    try:
        yield
    finally:
        _SIDE.reset(token)


def is_wanted(side: Side) -> bool:
    """Whether a backward pass shall compute this side's gradient."""
    return _SIDE.get() in (None, side)


def gradient(grad: Tensor) -> Part:
    """(codes, exponent) of a gradient that arrives in a backward pass, its parts summed.

    The sum takes the place of the parts, whose memory is free then. Raises TypeError for a float.
    """
    if not isinstance(grad, BFPTensor):
        raise TypeError(
            "expected a BFP gradient, found a float tensor: use samebits.train losses and layers"
        )
    part = grad.resolved()
    grad.parts, grad.bounds, grad._sum = (part,), (None,), None  # nothing is added to it any more
    return part


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {}
"""PyTorch functions on BFP tensors, e.g. torch.add -> residual addition; `pointwise` fills it."""


class BFPParameter(BFPTensor):
    """A trained tensor: codes W (int8) and delayed update A (int16), 3 bytes an element.

    Value: (W * 2**15 - A) * 2**(exponent - 15). Products take W alone; A holds what updates have
    not yet carried into it (training.md 2). Changed in place by the optimizers only.
    """

    delayed: Tensor
    _largest: tuple[int, int] = (0, -1)
    exponent_cell: Tensor  # the exponent as a 0-dim int64 tensor, kept current for state_dict()
    _is_param = True  # what torch.nn.Module asks of a parameter

    @staticmethod
    def __new__(
        cls, codes: Tensor, exponent: int, delayed: Tensor, requires_grad: bool = True
    ) -> BFPParameter:
        parameter = cls._of_parts(((codes, exponent),))
        assert isinstance(parameter, BFPParameter)
        parameter.delayed, parameter.exponent_cell = delayed, torch.tensor(exponent)
        parameter.requires_grad_(requires_grad)
        return parameter

    @staticmethod
    def from_real(x: Tensor, name: str = "weight") -> BFPParameter:
        """The weight state of real values (training.md 2); conv weights are kept channels-last.

        Raises NonFiniteError, which names the tensor, for NaN or infinity.
        """
        values = x.detach().double()
        exponent = formats.initial_weight([largest_magnitude(values, name)], name)[2]
        value = torch.round(times_power(values, formats.DELAYED_BITS - exponent)).long()
        codes, delayed = kernels.of(value).split(value)
        order = torch.channels_last if x.dim() == 4 else torch.contiguous_format
        return BFPParameter(
            codes.to(torch.int8).contiguous(memory_format=order),
            exponent,
            delayed.to(torch.int16).contiguous(memory_format=order),
        )

    def joint(self) -> Part:
        """J = W * 2**15 - A (int64) and its exponent: the exact value of the parameter."""
        codes, exponent = self.parts[0]
        value = kernels.of(codes).joint(codes, self.delayed)
        return value, exponent - formats.DELAYED_BITS

    def set_exponent(self, exponent: int) -> None:
        """Change e_W (the optimizers and checkpoints do)."""
        self.parts = ((self.parts[0][0], exponent),)
        self.exponent_cell.fill_(exponent)

    def dequantize(self) -> Tensor:
        value, exponent = self.joint()
        return times_power(value.double(), exponent)

    def largest_code(self) -> int | None:
        """max|W| where the last update left it, None if W may have changed since."""
        largest, version = self._largest
        return largest if version == self.parts[0][0]._version else None

    def remember_largest_code(self, largest: int) -> None:
        """Keep max|W| for as long as W is not written."""
        self._largest = (largest, self.parts[0][0]._version)

    def to_device(self, device: torch.device) -> BFPParameter:
        """A copy on another device; layers that share this parameter get the same copy."""
        twin = _MOVED.get(self)
        if twin is None or twin.device != device:
            codes, exponent = self.parts[0]
            twin = _MOVED[self] = BFPParameter(
                codes.to(device), exponent, self.delayed.to(device), self.requires_grad
            )
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> BFPParameter:
        codes, exponent = self.parts[0]
        twin = BFPParameter(
            copy.deepcopy(codes, memo),
            exponent,
            copy.deepcopy(self.delayed, memo),
            self.requires_grad,
        )
        memo[id(self)] = twin
        return twin


_MOVED: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Copies on another device, for as long as the original lives: tied parameters stay tied."""


def largest_magnitude(x: Tensor, name: str) -> float:
    """max|x| of a real tensor, 0 if it is empty.

    Raises NonFiniteError, which names the tensor and the first index, for NaN or infinity.
    """
    if x.numel() == 0:
        return 0.0
    low, high = torch.aminmax(x)  # NaN comes through
    largest = max(-float(low), float(high))
    if math.isfinite(largest) and not math.isnan(float(low)):
        return largest
    index = tuple(int(i) for i in (~torch.isfinite(x)).nonzero()[0])
    raise NonFiniteError(
        f"tensor {name!r}: expected finite values, found {float(x[index])} at index {index}; "
        "remove or replace non-finite values"
    )


def quantize_real(x: Tensor, bits: int, name: str) -> Part:
    """A real tensor as bfp8, bfp16 or bfp32 codes with the smallest exponent in [-128, 127].

    One rounding (rne). Raises NonFiniteError, which names the tensor, for NaN or infinity, and
    RangeError for values that ask for a larger exponent.
    """
    values = x.detach()
    exponent = smallest_exponent(largest_magnitude(values, name), bits)
    # binary32 holds the scaled values exactly (or below 2**-126, which rounds to 0) where it holds
    # the factor and the codes.
    narrow = values.dtype == torch.float32 and bits <= 16 and -126 <= exponent <= 126
    codes = torch.round(times_power(values if narrow else values.double(), -exponent))
    return codes.to(CODE_TYPE[bits]), exponent


def requantized(acc: Tensor, exponent: int, bits: int) -> Part:
    """acc * 2**exponent as bfp8 or bfp16 codes with the smallest exponent (training.md 1.1)."""
    k = kernels.of(acc)
    return k.requantize(acc, k.largest_of(acc), exponent, bits)


def bfp32(acc: Tensor, exponent: int) -> BFPTensor:
    """acc * 2**exponent as bfp32, shifted right only as far as it must be (training.md 1.2)."""
    k = kernels.of(acc)
    return BFPTensor(*k.shorten(acc, k.largest_of(acc), exponent))


def combined(*terms: tuple[Tensor, int, int]) -> Part:
    """The sum of (integers, exponent, bits) at one exponent, int64 (training.md 3).

    The integers of a term are below 2**bits. The exponent leaves the largest 60 bits, to which each
    term is rounded, so that the sum is exact and below 2**62.
    """
    k = kernels.of(terms[0][0])
    common = max(exponent + bits for _, exponent, bits in terms) - 60
    first, *others = (k.scale(v, exponent - common) for v, exponent, _ in terms)
    return sum(others, first), common


def gradient_in_16_bits(g: Tensor, exponent: int) -> Part:
    """A gradient as input gradients are computed from it: bfp16, bfp32 requantized to it."""
    return (g, exponent) if g.dtype == torch.int16 else requantized(g, exponent, 16)
