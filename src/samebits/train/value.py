"""Values of training operations: integer codes and their exponents, and weight states."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.kernels.protocol import BITS, Part, State, WholePart
from samebits.kernels.rows import Exponent
from samebits.numerics.realise import times_power
from samebits.spec import formats
from samebits.train.sums import Sums, requantized
from samebits.train.widths import Widths

Move = Callable[[Tensor], Tensor]  # codes -> the same codes in other places


class BFPValue:
    """value = codes * 2**exponent; codes int8, int16 or int32, one exponent or exponents by rows.

    A gradient with several contributions keeps them apart (`parts`) until it is read: sums are
    taken once, aligned to the largest exponent, whatever the order of arrival
    (docs/spec/training.md, 1.3).

    Exact sums, which a product with weights, a batch norm or an addition gives, have no width of
    their own (`of_sums`): a layer takes them as bfp8, a batch norm as bfp16, a loss as bfp32
    (training.md 5).
    Reading them (`codes`, `exponent`, `values()`) gives the bfp32 and decides nothing.

    Values do not change: an operation makes new ones, which may share codes.

    bounds:  of max|codes| beside that of their width, per part, where the producer knows one
    allowed: bool, where a mask by -inf left the value, of the same shape; None: everywhere (14.2)
    shifts:  int64 [channels] that the exponents of rows have on top of their own (12.4)
    along:   the axis of log-probabilities (`scores`), else None
    """

    __slots__ = (
        "_bits", "_layer_bits", "_moves", "_open", "_parts", "_sum", "_sums",
        "allowed", "bounds", "shape", "shifts",
    )  # fmt: skip

    along: int | None = None
    bounds: tuple[int | None, ...]
    shifts: Tensor | None
    _bits: int | None

    def __init__(
        self,
        codes: Tensor,
        exponent: Exponent,
        bits: int | None = None,
        bound: int | None = None,
        shifts: Tensor | None = None,
        layer_bits: int = 8,
    ) -> None:
        """bits: of a code, where it is less than its type has. layer_bits: to which a layer rounds
        the codes, where they have more."""
        self._set(((codes, exponent),), codes.shape)
        self._bits, self._layer_bits, self.bounds = bits, layer_bits, (bound,)
        self.shifts = shifts

    def _set(self, parts: tuple[Part, ...], shape: torch.Size) -> None:
        """All that is known of a value without options."""
        self._parts = parts
        self._describe(len(parts), shape)

    def _describe(self, parts: int, shape: torch.Size) -> None:
        """Set all that is known beside the parts, of which there are so many."""
        self.shape, self.bounds = shape, (None,) * parts
        self._sums: Sums | None = None
        self._moves: tuple[Move, ...] = ()  # what to do with codes of the sums to have these
        self._sum: Part | None = None  # of several parts, once it was read
        self._bits = None
        self._layer_bits, self._open = 8, False
        self.allowed: Tensor | None = None
        self.shifts = None

    @staticmethod
    def of_parts(parts: tuple[Part, ...], bounds: tuple[int | None, ...] = ()) -> BFPValue:
        """A gradient of several contributions, each with its bound where one is known."""
        value = BFPValue.__new__(BFPValue)
        value._set(parts, parts[0][0].shape)
        value.bounds = bounds or value.bounds
        return value

    @staticmethod
    def of_sums(sums: Sums, shape: tuple[int, ...], *moves: Move) -> BFPValue:
        """A value of a width that is not decided yet: the sums, moved into `shape`."""
        value = BFPValue.__new__(BFPValue)
        value._set((), torch.Size(shape))
        value._sums, value._moves, value.bounds = sums, moves, (None,)
        return value

    @staticmethod
    def opened(codes: Tensor, exponent: int) -> BFPValue:
        """Deployed sums of 32 bits, which a layer takes as 8 bits and a softmax as 16."""
        value = BFPValue(codes, exponent)
        value._open = True
        return value

    def used_up(self) -> BFPValue:
        """A value of the same shape and width whose codes are gone: reading them is an error."""
        value = BFPValue.__new__(BFPValue)
        value._set((), self.shape)
        value._bits, value._layer_bits = self._bits, self._layer_bits
        return value

    def without_tensors(self, joint: bool = True) -> tuple[BFPValue, list[Tensor]]:
        """A frame, which has all but the codes, and the codes; for `with_tensors`.

        joint: of a weight, whether the delayed update is taken out, too
        """
        if self._sums is not None or len(self._parts) != 1:
            return BFPValue(*self.resolved(), self._bits).without_tensors()
        ((codes, exponent),) = self._parts
        frame = self._twin()
        frame._parts = ((None, exponent),)  # type: ignore[assignment]
        return frame, [codes]

    @property
    def is_frame(self) -> bool:
        """Whether codes have been taken out."""
        return len(self._parts) == 1 and self._parts[0][0] is None

    def with_tensors(self, tensors: Iterator[Tensor]) -> BFPValue:
        """A frame with the codes that were taken out of it, or others."""
        whole = self._twin()
        whole._parts = ((next(tensors), self._parts[0][1]),)
        return whole

    def _copy(self, other: BFPValue) -> None:
        """All that is known of another value."""
        self._set(other._parts, other.shape)
        self._bits, self._layer_bits, self._open = other._bits, other._layer_bits, other._open
        self._sums, self._moves, self.bounds = other._sums, other._moves, other.bounds
        self.allowed, self.shifts = other.allowed, other.shifts

    def _twin(self) -> BFPValue:
        """The same value in an object of its own."""
        value = BFPValue.__new__(BFPValue)
        value._copy(self)
        return value

    def with_part(self, codes: Tensor, exponent: Exponent) -> BFPValue:
        """The same value with other codes of the same shape, at another exponent."""
        twin = self._twin()
        twin._parts = ((codes, exponent),)
        return twin

    def with_sums(self, sums: Sums) -> BFPValue:
        """The same value of other sums, of the same shape."""
        twin = self._twin()
        twin._sums = sums
        return twin

    def cloned(self) -> BFPValue:
        """The same value with codes of its own; sums, which nobody writes, are shared."""
        if self._sums is not None:
            return self
        twin = self._twin()
        twin._parts = tuple((codes.clone(), exponent) for codes, exponent in self._parts)
        return twin

    # --- codes and exponents ----------------------------------------------------------------

    @property
    def parts(self) -> tuple[Part, ...]:
        """(codes, exponent) of every contribution; of sums the one of their 32-bit value."""
        return self._parts if self._sums is None else (self._moved(self._sums.wide()),)

    def held(self) -> list[Tensor]:
        """The codes in memory, of every part; of sums what they hold at this moment."""
        return [codes for codes, _ in self._parts] if self._sums is None else self._sums.held()

    @property
    def sums(self) -> Sums | None:
        """The exact sums that this value is made of, where its width is not decided."""
        return self._sums

    def _moved(self, part: Part) -> Part:
        for move in self._moves:
            part = moved_part(part, move)
        return part

    def resolved(self) -> Part:
        """(codes, exponent), the sum of the parts if there are several.

        The parts stay: one more may come (another shard), and the sum is over all of them. Shifts
        of channels end: codes are aligned to their row.
        """
        if self.shifts is not None:
            codes, exponent = self._parts[0]
            assert isinstance(exponent, Tensor)
            k, size = kernels.of(codes), rows.row_size(codes.shape)
            return k.aligned(codes, exponent, size, keep=False)
        if self._sums is not None:
            return self.parts[0]
        if len(self._parts) == 1:
            return self._parts[0]
        if not self._parts:
            raise UnsupportedError(
                "this BFP tensor was changed in place: use the result of a += b, a *= b or relu(a, "
                "inplace=True), not the old tensor"
            )
        if self._sum is None:
            self._sum = kernels.of(self._parts[0][0]).resolve(list(self._parts))
        return self._sum

    def whole(self) -> WholePart:
        """(codes, exponent) of a tensor with one exponent; UnsupportedError where rows have own."""
        codes, exponent = self.resolved()
        if isinstance(exponent, Tensor):
            raise UnsupportedError("expected one exponent for the tensor, found exponents by rows")
        return codes, exponent

    def shifted(self) -> tuple[Tensor, Exponent, Tensor | None]:
        """(codes, exponents of rows, shifts of channels on top of them); None: `resolved`."""
        if self.shifts is None:
            return *self.resolved(), None
        codes, exponent = self._parts[0]
        assert isinstance(exponent, Tensor)
        own = exponent.narrow(1 if codes.dim() == 4 else -1, 0, 1) - self.shifts[0]
        return codes, own, self.shifts

    def _read(self) -> Part:
        return self.resolved() if self.shifts is None else self._parts[0]

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

    def values(self) -> Tensor:
        """The values as float64, -inf where a mask excludes them."""
        codes, exponent = self._read()
        found = times_power(codes.double(), exponent)
        return found if self.allowed is None else found.masked_fill(~self.allowed, -torch.inf)

    # --- what is known without reading ------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the codes lie."""
        return self._parts[0][0].device if self._sums is None else self._sums.device

    def dim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def bits(self) -> int:
        """Width of a code: 4 to 8, 16, or 32, which is what reading sums gives."""
        if self._sums is not None:
            return 32
        return self._bits or BITS[self.codes.dtype]

    @property
    def layer_bits(self) -> int:
        """Width of the codes that a layer takes: their own up to 8, or what they are rounded to."""
        if self._sums is not None:
            return self._sums.bits
        return self.bits if self.bits <= 8 else self._layer_bits

    @property
    def by_rows(self) -> bool:
        """Whether exponents are those of rows."""
        if self._sums is not None:
            return self._sums.by_rows
        parts = self._parts or (self.resolved(),)  # used up: the error of reading it
        return isinstance(parts[0][1], Tensor)

    @property
    def is_wide(self) -> bool:
        """Whether codes have more than 8 bits, and the width is decided."""
        return not self.is_open and self.bits > 8

    @property
    def is_open(self) -> bool:
        """Whether the width is not decided: exact sums."""
        return self._sums is not None or self._open

    # --- the same value, otherwise ----------------------------------------------------------

    def narrowed(self, bits: int | None = None) -> BFPValue:
        """As bfp8, which layers take, or as bfp16, with one rounding of the exact value.

        Elements that were moved are rounded as parts of the whole tensor that a layer computed, to
        the width of that layer.
        """
        own = self.layer_bits
        if self._sums is not None:
            found = self._of_sums(self._sums, self._sums.narrow(bits), bits)
        else:
            bits = bits or own
            part = requantized(*self._read(), bits, shifts=self.shifts)
            found = BFPValue(*part, bits, shifts=self.shifts)
        found._layer_bits = own
        return found

    def clamped(self, clip: int) -> tuple[BFPValue, tuple[Tensor, torch.Size, tuple[Move, ...]]]:
        """Sums as bfp8, clamped before they are rounded (training.md 5); the mask of all of them,
        their shape, and what moves them."""
        assert self._sums is not None
        part, mask = self._sums.clamped(clip)
        return self._of_sums(self._sums, part, None), (mask, part[0].shape, self._moves)

    def _of_sums(self, sums: Sums, part: Part, bits: int | None) -> BFPValue:
        """Codes of the sums, moved."""
        if sums.shifts is None:
            return BFPValue(*self._moved(part), bits or sums.bits)
        y = BFPValue(*part, bits or sums.bits, shifts=sums.shifts)
        for move in self._moves:
            y = y.moved(move)
        return y

    def masked(self, allowed: Tensor) -> BFPValue:
        """The same codes, of which only those at `allowed` count, and only to a softmax."""
        twin = self._twin()
        twin._parts, twin._layer_bits = self.parts, self.layer_bits
        twin._sums, twin._moves = None, ()
        twin.allowed = allowed if self.allowed is None else self.allowed & allowed
        return twin

    def moved(self, move: Move) -> BFPValue:
        """The same codes in other places; no width is decided."""
        if self.shifts is not None:
            codes, exponent, shifts = self.shifted()
            assert isinstance(exponent, Tensor)
            assert shifts is not None
            codes, exponent, shifts = rows.moved_shifts(
                codes, exponent, shifts, move, k=kernels.of(codes)
            )
            return BFPValue(
                *(codes, exponent, self._bits), shifts=shifts, layer_bits=self._layer_bits
            )
        if self._sums is None:
            twin = BFPValue(*moved_part(self.resolved(), move), self._bits)
            twin._layer_bits, twin._open = self._layer_bits, self._open
            return twin
        shape = tuple(move(torch.empty(self.shape, device="meta")).shape)
        return BFPValue.of_sums(self._sums, shape, *self._moves, move)

    def summed(self) -> BFPValue:
        """A gradient as one part of 16 or 32 bits, which kernels take.

        Codes of 8 bits, which a caller of `backward` may give, are widened.
        """
        if len(self._parts) > 1:  # not `resolved`, which would keep the sum beside the parts
            return BFPValue(*kernels.of(self._parts[0][0]).resolve(list(self._parts)))
        codes, exponent = self.resolved()
        if codes.dtype == torch.int8:
            return BFPValue(codes.to(torch.int16), exponent)
        return self if self.shifts is None and self._sums is None else BFPValue(codes, exponent)

    def __add__(self, other: BFPValue) -> BFPValue:
        """Both contributions to a gradient, apart."""
        return BFPValue.of_parts(self.parts + other.parts, self.bounds + other.bounds)


class Weight(BFPValue):
    """The state of a trained tensor: codes W (int8) and delayed update A (int16).

    Value: (W * 2**15 - A) * 2**(exponent - 15). Products take W alone; A holds what updates have
    not yet carried into it (training.md 2).

    widths: of the layer that it belongs to
    cell:   the exponent, int64 [] or, by rows, int8 [rows]; whoever changes it writes it here
    tensors: all three
    """

    __slots__ = ("_codes", "_held", "_seen", "cell", "delayed", "tensors", "widths")

    def __init__(
        self, codes: Tensor, cell: Tensor, delayed: Tensor, widths: Widths, shape: torch.Size
    ) -> None:
        """shape: of the codes, which a frame has not."""
        self._describe(1, shape)
        self._codes, self.cell, self.delayed, self.widths = codes, cell, delayed, widths
        self.tensors = (codes, delayed, cell)
        self._seen = -1  # the version of the cell when the parts were made
        self._held: tuple[Part, ...] = ()

    @property
    def _parts(self) -> tuple[Part, ...]:  # type: ignore[override]  # follows from the cell
        version = self.cell._version
        if version != self._seen:
            # By rows a new tensor: a backward pass may hold the old one.
            one = self.cell.dim() == 0
            exponent = kernels.number(self.cell) if one else exponents_of(self.cell, self.dim())
            self._seen, self._held = version, ((self._codes, exponent),)
        return self._held

    def held(self) -> list[Tensor]:
        return [*super().held(), self.delayed]

    def joint(self) -> Part:
        """J = W * 2**15 - A (int64) and its exponent: the exact value."""
        codes, exponent = self._parts[0]
        value = kernels.of(codes).joint(codes, self.delayed)
        return value, exponent - formats.DELAYED_BITS

    def state(self) -> State:
        """W, A and the exponent of J, of a weight that has one exponent."""
        codes, exponent = self._parts[0]
        assert isinstance(exponent, int)
        return codes, self.delayed, exponent - formats.DELAYED_BITS

    def values(self) -> Tensor:
        """The joint values as float64."""
        value, exponent = self.joint()
        return times_power(value.double(), exponent)

    def without_tensors(self, joint: bool = True) -> tuple[BFPValue, list[Tensor]]:
        tensors = [self._codes, self.delayed] if joint else [self._codes]
        delayed = None if joint else self.delayed
        frame = Weight(None, self.cell, delayed, self.widths, self.shape)  # type: ignore[arg-type]
        return frame, tensors

    def with_tensors(self, tensors: Iterator[Tensor]) -> Weight:
        codes = next(tensors)
        delayed = next(tensors) if self.delayed is None else self.delayed
        return Weight(codes, self.cell, delayed, self.widths, self.shape)

    def versions(self) -> tuple[int, int, int]:
        """Numbers of which one changes whenever the state does."""
        return self._codes._version, self.delayed._version, self.cell._version


class WeightAt(Weight):
    """A weight at another exponent than that in its cell."""

    __slots__ = ("_at",)

    def __init__(self, weight: Weight, exponent: Exponent) -> None:
        super().__init__(weight._codes, weight.cell, weight.delayed, weight.widths, weight.shape)
        self._at = exponent

    @property
    def _parts(self) -> tuple[Part, ...]:  # type: ignore[override]  # of the codes
        return ((self._codes, self._at),)


def exponents_of(cell: Tensor, rank: int) -> Tensor:
    """The exponents by rows in a cell, to meet a weight of a rank."""
    return cell.long().view(-1, *[1] * (rank - 1))


def is_activation(argument: object) -> bool:
    """Whether an argument of an operation is a value that is no weight."""
    return isinstance(argument, BFPValue) and not isinstance(argument, Weight)


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
    return rows.moved(codes, exponent, move, k=kernels.of(codes))


def bfp32(acc: Tensor, exponent: Exponent, layer_bits: int = 8) -> BFPValue:
    """acc * 2**exponent as bfp32, shifted right only as far as it must be (training.md 1.2).

    layer_bits: of the codes that a layer takes
    """
    k = kernels.of(acc)
    largest = k.largest_of(acc) if isinstance(exponent, int) else 0
    return BFPValue(*k.shorten(acc, largest, exponent), layer_bits=layer_bits)


Term = rows.Term
common_exponent = rows.common_exponent
SUM_BITS = rows.SUM_BITS


def combined(*terms: Term) -> Part:
    """The sum of (integers, exponent, bits) at one exponent, int64 (training.md 3)."""
    return rows.combined(kernels.of(terms[0][0]), *terms)


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
