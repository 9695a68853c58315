"""BFP tensors that flow through autograd: integer codes and one exponent, seen as float32."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.kernels.protocol import BITS, Part, WholePart
from samebits.kernels.rows import Exponent
from samebits.numerics.realise import times_power
from samebits.spec import formats
from samebits.train import advice
from samebits.train.eager import require_eager
from samebits.train.quantize import largest_magnitude, quantize_real, quantize_rows
from samebits.train.signatures import check_arguments, of_aten
from samebits.train.sums import Sums
from samebits.train.widths import Widths

WIDTHS = Widths()

Move = Callable[[Tensor], Tensor]  # codes -> the same codes in other places


class BFPTensor(torch.Tensor):
    """value = codes * 2**exponent over the whole tensor; codes int8, int16 or int32.

    To autograd it is a float32 tensor of the same shape, so modules, `backward()` and optimizers
    work as usual. A gradient with several contributions keeps them apart (`parts`) until it is
    read: sums are taken once, aligned to the largest exponent, whatever the order of arrival
    (docs/spec/training.md, 1.3).

    What a Linear or Conv2d gives has no width of its own (`of_sums`): a layer takes it as bfp8, a
    loss as bfp32 (training.md 5). Reading it (`codes`, `exponent`, `dequantize()`) gives the bfp32
    and decides nothing.
    """

    _parts: tuple[Part, ...]
    _sums: Sums | None = None
    _moves: tuple[Move, ...] = ()  # what to do with codes of the sums to have this tensor's
    bounds: tuple[int | None, ...]  # of max|codes|, per part, where the producer knows one
    _bits: int | None = None  # of a code, where it is less than its type has
    _layer_bits: int = 8  # to which a layer rounds the codes, where they have more
    _allowed: Tensor | None = None  # bool: where a mask by -inf left the value (training.md 14.2)
    _open: bool = False  # deployed sums, of 32 bits: as `_sums`, their width is not decided
    _shifts: Tensor | None = None  # of every channel, int64, which the exponents of parts have
    _sum: tuple[tuple[Part, ...], Part] | None = None  # parts and their sum, once it was read

    @staticmethod
    def __new__(
        cls,
        codes: Tensor,
        exponent: Exponent,
        bound: int | None = None,
        bits: int | None = None,
        shifts: Tensor | None = None,
    ) -> BFPTensor:
        tensor = cls._of_parts(((codes, exponent),), (bound,))
        tensor._bits, tensor._shifts = bits, shifts
        return tensor

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
    def wide(codes: Tensor, exponent: Exponent, layer_bits: int) -> BFPTensor:
        """A bfp32 that stays one until a layer takes it, with codes of `layer_bits`."""
        tensor = BFPTensor(codes, exponent)
        tensor._layer_bits = layer_bits
        return tensor

    @staticmethod
    def opened(codes: Tensor, exponent: int) -> BFPTensor:
        """Deployed sums of 32 bits, which a layer takes as 8 bits and a softmax as 16."""
        tensor = BFPTensor(codes, exponent)
        tensor._open = True
        return tensor

    @staticmethod
    def of_sums(sums: Sums, shape: tuple[int, ...], like: Tensor, *moves: Move) -> BFPTensor:
        """A tensor of a width that is not decided yet: the sums, moved into `shape`.

        like: any tensor on the same device
        """
        tensor = torch.Tensor._make_wrapper_subclass(
            BFPTensor, shape, dtype=torch.float32, device=like.device
        )
        assert isinstance(tensor, BFPTensor)
        tensor.parts, tensor.bounds = (), (None,)
        tensor._sums, tensor._moves = sums, moves
        return tensor

    @property
    def parts(self) -> tuple[Part, ...]:
        """(codes, exponent) of every contribution; of sums the one of their 32-bit value."""
        return self._parts if self._sums is None else (self._moved(self._sums.wide()),)

    @parts.setter
    def parts(self, parts: tuple[Part, ...]) -> None:
        self._parts, self._sums, self._moves = parts, None, ()

    @property
    def sums(self) -> Sums | None:
        """The result of a Linear or Conv2d, where this tensor's width is not decided."""
        return self._sums

    def _moved(self, part: Part) -> Part:
        for move in self._moves:
            part = moved_part(part, move)
        return part

    def narrowed(self) -> BFPTensor:
        """As bfp8, which layers take, with one rounding of the exact value.

        Elements that were moved are rounded as parts of the whole tensor that a layer computed, to
        the width of that layer.
        """
        if self._sums is not None:
            bits, shifts = self._sums.bits, self._sums.shifts
            if shifts is None:
                return BFPTensor(*self._moved(self._sums.narrow()), bits=bits)
            y = BFPTensor(*self._sums.narrow(), bits=bits, shifts=shifts)
            for move in self._moves:
                y = y.moved(move)
            return y
        bits = self.layer_bits
        return BFPTensor(*requantized(*self.resolved(), bits), bits=bits)

    @property
    def layer_bits(self) -> int:
        """Width of the codes that a layer takes: their own up to 8, or what they are rounded to."""
        if self._sums is not None:
            return self._sums.bits
        return self.bits if self.bits <= 8 else self._layer_bits

    @property
    def by_rows(self) -> bool:
        """Whether exponents are those of rows; reads nothing."""
        if self._sums is not None:
            return isinstance(self._sums.exponent, Tensor)
        parts = self.parts or (self.resolved(),)  # used up: the error of reading it
        return isinstance(parts[0][1], Tensor)

    @property
    def is_wide(self) -> bool:
        """Whether codes have more than 8 bits, and the width is decided."""
        return not self.is_open and self.bits > 8

    @property
    def is_open(self) -> bool:
        """Whether the width is not decided: the sums of a Linear or Conv2d."""
        return self._sums is not None or self._open

    def masked(self, allowed: Tensor) -> BFPTensor:
        """The same codes, of which only those at `allowed` count, and only to a softmax."""
        twin = BFPTensor._of_parts(self.parts)
        twin._bits, twin._shifts, twin._open = self._bits, self._shifts, self._open
        twin._layer_bits = self.layer_bits
        twin._allowed = allowed if self._allowed is None else self._allowed & allowed
        return twin

    @property
    def allowed(self) -> Tensor | None:
        """Where a mask by -inf left the value, of the same shape; None: everywhere."""
        return self._allowed

    def moved(self, move: Move) -> BFPTensor:
        """The same codes in other places; no width is decided."""
        if self._shifts is not None:
            codes, exponent, shifts = self.shifted()
            assert isinstance(exponent, Tensor)
            assert shifts is not None
            codes, exponent, shifts = rows.moved_shifts(codes, exponent, shifts, move)
            return BFPTensor(codes, exponent, bits=self._bits, shifts=shifts)
        if self._sums is None:
            twin = BFPTensor(*moved_part(self.resolved(), move), bits=self._bits)
            twin._layer_bits, twin._open = self._layer_bits, self._open
            return twin
        shape = tuple(move(torch.empty(self.shape, device="meta")).shape)
        return BFPTensor.of_sums(self._sums, shape, self, *self._moves, move)

    def replaced_by(self, result: BFPTensor) -> BFPTensor:
        """The result of an operation in place; this tensor is used up: reading it is an error."""
        self.parts = ()
        return result

    @staticmethod
    def from_real(
        x: Tensor, name: str = "input", by_rows: bool = False, bits: int = 8
    ) -> BFPTensor:
        """Quantize a real tensor to bfp8 (training.md 5). NaN or infinity: NonFiniteError.

        by_rows: every row with an exponent of its own (12). bits: 4 to 8 (13).
        `samebits.train.model_input` chooses both as a converted model expects its input.
        """
        part = (quantize_rows if by_rows else quantize_real)(x, bits, name)
        return BFPTensor(*part, bits=bits)

    @property
    def codes(self) -> Tensor:
        """Integers of 8, 16 or 32 bits, of the sum if there are several parts."""
        return self._read()[0]

    @property
    def exponent(self) -> Exponent:
        """Exponent of the whole tensor, of its rows, or of the channels of its rows.

        If there are several parts, that of their sum.
        """
        return self._read()[1]

    @property
    def bits(self) -> int:
        """Width of a code: 4 to 8, 16, or 32, which is what reading sums gives."""
        if self._sums is not None:
            return 32
        return self._bits or BITS[self.codes.dtype]

    def shifted(self) -> tuple[Tensor, Exponent, Tensor | None]:
        """(codes, exponents of rows, shifts of channels on top of them); None: `resolved`."""
        if self._shifts is None:
            return *self.resolved(), None
        codes, exponent = self.parts[0]
        assert isinstance(exponent, Tensor)
        own = exponent.narrow(1 if codes.dim() == 4 else -1, 0, 1) - self._shifts[0]
        return codes, own, self._shifts

    @property
    def shifts(self) -> Tensor | None:
        """int64 [channels] that `exponent` has beside those of the rows (training.md 12.4)."""
        return self._shifts

    def _read(self) -> Part:
        return self.resolved() if self._shifts is None else self.parts[0]

    def resolved(self) -> Part:
        """(codes, exponent), the sum of the parts if there are several.

        The parts stay: one more may come (another shard), and the sum is over all of them. Shifts
        of channels end: codes are aligned to their row.
        """
        if self._shifts is not None:
            codes, exponent = self.parts[0]
            assert isinstance(exponent, Tensor)
            return rows.aligned(codes, exponent, rows.row_size(codes.shape))
        if self._sums is not None:
            return self.parts[0]
        if len(self.parts) == 1:
            return self.parts[0]
        if not self.parts:
            raise UnsupportedError(
                "this BFP tensor was changed in place: use the result of a += b, a *= b or relu(a, "
                "inplace=True), not the old tensor"
            )
        if self._sum is None or self._sum[0] is not self.parts:
            self._sum = (self.parts, kernels.of(self.parts[0][0]).resolve(list(self.parts)))
        return self._sum[1]

    def whole(self) -> WholePart:
        """(codes, exponent) of a tensor with one exponent; UnsupportedError where rows have own."""
        codes, exponent = self.resolved()
        if isinstance(exponent, Tensor):
            raise UnsupportedError("expected one exponent for the tensor, found exponents by rows")
        return codes, exponent

    def dequantize(self) -> Tensor:
        """The values as float64 (exact for 8- and 16-bit codes and ordinary exponents).

        -inf where a mask excludes them. They carry no gradient, of which a UserWarning tells where
        one is recorded for this tensor.
        """
        if self.grad_fn is not None and torch.is_grad_enabled():
            warnings.warn(advice.WITHOUT_GRADIENT, stacklevel=2)
        return self._values()

    def _values(self) -> Tensor:
        """The values, as `dequantize` gives them."""
        codes, exponent = self._read()
        values = times_power(codes.double(), exponent)
        return values if self._allowed is None else values.masked_fill(~self._allowed, -torch.inf)

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
        """Do what autograd itself needs: detach, clone, zero, and sums of gradient parts.

        A sum only joins the lists of parts and of their bounds. Detaching or cloning a parameter
        gives its value (the joint value), not its state. Raises UnsupportedError for all else.
        """
        aten = torch.ops.aten
        same = func is aten.view.default and tuple(args[1]) == tuple(args[0].shape)
        if same or func in (aten.detach.default, aten.alias.default, aten.clone.default):
            if isinstance(args[0], BFPParameter):
                value, exponent = args[0].joint()
                return BFPTensor(value.to(torch.int32), exponent)
            if (sums := args[0].sums) is not None:  # immutable but for what they still hold
                return BFPTensor.of_sums(sums, tuple(args[0].shape), args[0], *args[0]._moves)
            parts = args[0].parts
            if func is aten.clone.default:
                parts = tuple((codes.clone(), exponent) for codes, exponent in parts)
            twin = BFPTensor._of_parts(parts, args[0].bounds)
            twin._bits, twin._shifts = args[0]._bits, args[0]._shifts
            twin._layer_bits, twin._allowed = args[0]._layer_bits, args[0]._allowed
            twin._open = args[0]._open
            return twin
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
        raise _MissingError(
            f"BFP tensors are integers and have no {func}: expected a samebits.train layer or "
            "optimizer, or one of add, mul, mean, cat, activations, poolings, reshape, permute, "
            "indexing; read values with .dequantize()"
        )


_BACKWARD = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)


class _MissingError(UnsupportedError):
    """An operation that BFP tensors do not have, by the name that autograd knows."""


class TensorOperation(torch.autograd.Function):
    """Base of the differentiable operations: forward and backward over BFP tensors."""

    @classmethod
    def word(cls) -> str:
        """Name of the operation in messages, frozen exponents and exported graphs: "MaxPool"."""
        return cls.__name__.removesuffix("Function")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Compute in the training arithmetic, or as the interpreter of this context says."""
        require_eager()
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


def is_interpreted() -> bool:
    """Whether operations compute something else than the training arithmetic (deployment does)."""
    return _INTERPRETER.get() is not None


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

    The sum takes the place of the parts, whose memory is free then. Codes have 16 or 32 bits, which
    kernels take: those of 8 bits, which a caller of `backward` may give, are widened. Raises
    TypeError for a float.
    """
    if not isinstance(grad, BFPTensor):
        raise TypeError(
            "expected a BFP gradient, found a float tensor: use samebits.train losses and layers"
        )
    part = grad.resolved()
    if part[0].dtype == torch.int8:
        part = as_gradient(part)
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
    widths: Widths  # of the layer that it belongs to
    _largest: tuple[int, int] = (0, -1)
    exponent_cell: Tensor  # int64 [] or int8 [rows], kept current for state_dict()
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
        parameter = cls._of_parts(((codes, exponent),))
        assert isinstance(parameter, BFPParameter)
        if isinstance(exponent, int):
            cell = torch.tensor(exponent, device="cpu")
        else:
            cell = exponent.flatten().to(torch.int8)
        parameter.delayed, parameter.exponent_cell, parameter.widths = delayed, cell, widths
        parameter.requires_grad_(requires_grad)
        return parameter

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
        codes, exponent = self.parts[0]
        value = kernels.of(codes).joint(codes, self.delayed)
        return value, exponent - formats.DELAYED_BITS

    def set_exponent(self, exponent: Exponent) -> None:
        """Change e_W (the optimizers and checkpoints do); by rows [rows], or as in `parts`."""
        codes, old = self.parts[0]
        if isinstance(exponent, Tensor) and isinstance(old, Tensor):
            exponent = exponent.view(old.shape).long().clone()  # the old one: for a backward pass
            self.exponent_cell.copy_(exponent.flatten())
        else:
            exponent = int(exponent)
            self.exponent_cell.fill_(exponent)
        self.parts = ((codes, exponent),)

    def _values(self) -> Tensor:
        value, exponent = self.joint()
        return times_power(value.double(), exponent)

    @property
    def largest_allowed(self) -> int:
        """The largest code that W may have, by the width of its layer."""
        return formats.CODE_MAX[self.widths.values]

    def largest_joint(self) -> int | None:
        """max|J| where the last update left it, None if W may have changed since."""
        largest, version = self._largest
        return largest if version == self.parts[0][0]._version else None

    def remember_largest_joint(self, largest: int) -> None:
        """Keep max|J| for as long as W is not written."""
        self._largest = (largest, self.parts[0][0]._version)

    def to_device(self, device: torch.device) -> BFPParameter:
        """A copy on another device; layers that share this parameter get the same copy."""
        twin = _MOVED.get(self)
        if twin is None or twin.device != device:
            codes, exponent = self.parts[0]
            if isinstance(exponent, Tensor):
                exponent = exponent.to(device)
            twin = _MOVED[self] = BFPParameter(
                codes.to(device),
                exponent,
                self.delayed.to(device),
                self.requires_grad,
                self.widths,
            )
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> BFPParameter:
        codes, exponent = self.parts[0]
        twin = BFPParameter(
            copy.deepcopy(codes, memo),
            exponent,
            copy.deepcopy(self.delayed, memo),
            self.requires_grad,
            self.widths,
        )
        memo[id(self)] = twin
        return twin


_MOVED: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Copies on another device, for as long as the original lives: tied parameters stay tied."""


def same_parts(a: Part, b: Part) -> bool:
    """Whether two tensors have the same codes and exponents."""
    (x, e), (y, f) = a, b
    if isinstance(e, Tensor) and isinstance(f, Tensor):
        return torch.equal(e, f) and torch.equal(x, y)
    return isinstance(e, int) and e == f and torch.equal(x, y)


def moved_part(part: Part, move: Move) -> Part:
    """The same codes in other places; exponents by rows go along (training.md 12.2)."""
    codes, exponent = part
    if isinstance(exponent, int):
        return move(codes), exponent
    return rows.moved(codes, exponent, move)


def requantized(
    acc: Tensor, exponent: Exponent, bits: int, divisor: int = 1, largest: int | None = None
) -> Part:
    """acc * 2**exponent / divisor as codes of the smallest exponent (training.md 1.1 and 12.1).

    largest: max|acc|, where it is known and the exponent is one integer
    """
    k = kernels.of(acc)
    if largest is None:
        largest = k.largest_of(acc) if isinstance(exponent, int) else 0
    return k.requantize(acc, largest, exponent, bits, divisor)


def bfp32(acc: Tensor, exponent: Exponent, layer_bits: int = 8) -> BFPTensor:
    """acc * 2**exponent as bfp32, shifted right only as far as it must be (training.md 1.2).

    layer_bits: of the codes that a layer takes
    """
    k = kernels.of(acc)
    largest = k.largest_of(acc) if isinstance(exponent, int) else 0
    return BFPTensor.wide(*k.shorten(acc, largest, exponent), layer_bits)


Term = tuple[Tensor, Exponent, int]  # integers below 2**bits, their exponent and bits
SUM_BITS = 60  # of the largest term of a sum at a common exponent


def common_exponent(*terms: tuple[Exponent, int]) -> Exponent:
    """The exponent at which `combined` adds terms of these exponents and bits (training.md 3)."""
    return rows.maximum(*(exponent + bits for exponent, bits in terms)) - SUM_BITS


def combined(*terms: Term) -> Part:
    """The sum of (integers, exponent, bits) at one exponent, int64 (training.md 3).

    The integers of a term are below 2**bits. The exponent leaves the largest 60 bits, to which each
    term is rounded, so that the sum is exact and below 2**62.
    """
    common = common_exponent(*((exponent, bits) for _, exponent, bits in terms))
    k = kernels.of(terms[0][0])
    first, *others = (k.scale(v, exponent - common) for v, exponent, _ in terms)
    return sum(others, first), common


def gradient_in(bits: int, g: Tensor, exponent: Exponent) -> Part:
    """A gradient as input gradients are computed from it: a bfp16 that fits, or requantized."""
    if g.dtype == torch.int16 and (
        bits == 16 or kernels.of(g).largest_of(g) <= formats.CODE_MAX[bits]
    ):
        return g, exponent
    return as_gradient(requantized(g, exponent, bits))


def as_gradient(part: Part) -> Part:
    """Codes of a gradient in int16, however few bits they have: the type says what they are."""
    codes, exponent = part
    return codes.to(torch.int16), exponent
