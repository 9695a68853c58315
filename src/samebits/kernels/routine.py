"""Routines: the kernel calls of a computation as data, which one C function runs.

Native kernels call C with addresses alone; exponents and largest magnitudes lie in memory
(csrc/training/parts.c). So what they call while a computation runs once on tensors of some shapes
is all that it ever calls. A `RoutineRecorder` is the native kernels, writing down their calls:
Python that does nothing else with numbers and tensors is told by them completely. Where it does
more, the recorder refuses (`NotRecordableError`): torch computes something, or a number is read.

A routine has memory of its own, in which tensors share places as far as they are not needed at the
same time, and runs in parts ("forward", "backward") one after the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from samebits import arena
from samebits.errors import UnsupportedError
from samebits.kernels import declarations, library, memory
from samebits.kernels.memory import INTEGERS
from samebits.kernels.native import Native
from samebits.kernels.native_parts import steps_of
from samebits.kernels.rows import Exponent
from samebits.kernels.tables import Tables

ALIGNMENT = 64  # bytes
CHUNK = 256  # numbers that lie together
MOST_AXES = 8  # of `samebits_copy`
GEOMETRY, PAIRS = "Conv*", "count"  # parameters of C that tell how many products a call computes
TYPES: dict[torch.dtype, Any] = {
    torch.int8: ctypes.c_int8, torch.uint8: ctypes.c_uint8, torch.int16: ctypes.c_int16,
    torch.int32: ctypes.c_int32, torch.int64: ctypes.c_int64, torch.float64: ctypes.c_double,
    torch.float32: ctypes.c_float,
}  # fmt: skip
_threads = torch.get_num_threads
aten: Any = torch.ops.aten
MADE = {  # of torch's functions that make tensors whose elements nobody knows
    *(aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default),
    *(aten.new_empty.default, aten.new_empty_strided.default),
}
ZEROS = {aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.zero_.default}
COPIES = {aten.clone.default, aten._to_copy.default}
CHOICES = {aten.index.Tensor, aten.index_select.default}
JOINS = {aten.cat.default, aten.stack.default}
SUMS = {aten.add.Tensor: 1, aten.sub.Tensor: -1}  # of exponents
SUMS_OF_EXPONENTS = {
    **dict.fromkeys((Tensor.add, Tensor.__add__, Tensor.__radd__, torch.add), 1),
    **dict.fromkeys((Tensor.sub, Tensor.__sub__, torch.sub), -1),
}
_ONE = torch.zeros((), dtype=torch.int64, device="cpu")  # in the place of a number, for its steps


class NotRecordableError(UnsupportedError):
    """A computation does what no kernel call tells."""


class RoutineNumber(int):
    """A number that a routine finds, as it was when it was recorded. It may go to kernels, and be
    added to others; reading it ends the recording."""

    recorder: RoutineRecorder
    place: int  # its address

    def __add__(self, other: Any) -> Any:
        return self.recorder.sum(self, other, 1)

    def __radd__(self, other: Any) -> Any:
        return self.recorder.sum(self, other, 1)

    def __sub__(self, other: Any) -> Any:
        return self.recorder.sum(self, other, -1)

    def __rsub__(self, other: Any) -> Any:
        return self.recorder.sum(other, self, -1)

    def __neg__(self) -> Any:
        return self.recorder.sum(0, self, -1)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """A tensor of exponents plus or minus such a number."""
        if func not in SUMS_OF_EXPONENTS or kwargs:
            raise NotRecordableError(f"torch reads an exponent ({func.__name__})")
        a, b = args
        recorder = next(v for v in args if isinstance(v, RoutineNumber)).recorder
        return recorder.sum(a, b, SUMS_OF_EXPONENTS[func])

    def _read(self, *_: Any) -> NoReturn:
        raise NotRecordableError("an exponent or a largest magnitude is read")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _read
    __bool__ = __int__ = __index__ = __float__ = __hash__ = __str__ = __format__ = _read
    __mul__ = __rmul__ = __floordiv__ = __mod__ = __lshift__ = __rshift__ = __pow__ = _read
    __rlshift__ = __rrshift__ = __rpow__ = __abs__ = __and__ = __or__ = __xor__ = _read
    bit_length = _read


def number(cell: int) -> int:
    """The number that a cell had when it was recorded; another number as it is."""
    return int.__add__(cell, 0)


class _Place:
    """Where C reads or writes a number while it is recorded."""

    def __init__(self, recorder: RoutineRecorder, address: int) -> None:
        self.recorder, self.address = recorder, address

    def __getitem__(self, _: int) -> RoutineNumber:
        return self.recorder.cell_at(self.address)


@dataclass(frozen=True)
class _Words:
    """Numbers and addresses that C reads as a list; they lie among the words of the call."""

    words: tuple[int | _Address, ...]


@dataclass(frozen=True)
class _Address:
    """A word that is an address."""

    value: int


class CallFacts(NamedTuple):
    """The purpose of a call.

    kernel: the name of its function in C
    layer, phase: on whose behalf it runs (`RoutineRecorder.layer`)
    products: multiply-adds, where it is a product of matrices or a convolution; else, and for
              recurrent cells, 0
    """

    kernel: str
    layer: str
    phase: str
    products: int


@dataclass
class _Call:
    """A call: its kernel's number, a word for each argument, and the lists among them."""

    kernel: int
    words: list[int | _Address | _Words]
    facts: CallFacts


@dataclass(eq=False)
class Routine:
    """Kernel calls over memory of their own.

    parts:  words of the calls of each part (see `declarations.RUNNER`)
    memory: in which the tensors of the calls lie
    kept:   what else they read: it lives as long
    facts:  about the calls of each part
    """

    parts: dict[str, Tensor]
    memory: Tensor
    kept: list[Any]
    run_words: Callable[..., int] = field(repr=False)
    moved: Callable[[int], int] = field(repr=False)  # where what lay at an address lies now
    facts: dict[str, list[CallFacts]] = field(repr=False)

    def __post_init__(self) -> None:
        self._places = {n: (memory.address_of(v), v.numel()) for n, v in self.parts.items()}

    def run(self, part: str) -> bool:
        """Run the calls of a part; whether all of them could be run (memory, exponents)."""
        found: int = self.run_words(*self._places[part], _threads())
        return found < 0

    def seconds(self, part: str, clock: Callable[[], float]) -> list[float] | None:
        """Run a part call by call, and give the time that each takes (of `facts`), with some
        microseconds of Python; None where a call could not be run."""
        place, words = self._places[part][0], self.parts[part].tolist()
        at, found = 0, list[float]()
        while at < len(words):
            size = 2 + words[at + 1]
            began = clock()
            failed = self.run_words(place + 8 * at, size, _threads()) >= 0
            found.append(clock() - began)
            if failed:
                return None
            at += size
        return found

    def tensor(self, v: Tensor) -> Tensor:
        """A tensor of the recording in the routine's memory."""
        kind = TYPES[v.dtype]
        span = 1 + sum((n - 1) * step for n, step in zip(v.shape, v.stride(), strict=True))
        room = (kind * span).from_address(self.moved(memory.address_of(v)))
        flat = torch.frombuffer(room, dtype=v.dtype)
        return flat.as_strided(v.shape, v.stride())


class RoutineRecorder(Native):
    """Native kernels that write down their calls. Use it by `kernels.recording`.

    layer, phase: on whose behalf calls are made, as who makes them says (`kernels.on_behalf_of`)
    """

    layer, phase = "", ""

    def __init__(self, native: Native) -> None:
        super().__init__(library=_Names())
        self._library = native._c
        names = declarations.routine_names(library.text())
        self._numbers = {name: number for number, name in enumerate(names)}
        self._calls: dict[str, list[_Call]] = {}
        self._part: list[_Call] = []
        self._own: dict[int, Tensor] = {}  # tensors that calls write and read, by storage
        self._kept: list[Any] = []
        self._free: list[int] = []  # places for numbers

    # --- numbers ----------------------------------------------------------------------------

    def _new_place(self) -> int:
        if not self._free:
            self._kept.append(chunk := (ctypes.c_int64 * CHUNK)())
            first = ctypes.addressof(chunk)
            self._free = list(range(first, first + 8 * CHUNK, 8))
        return self._free.pop(0)

    def cell_at(self, address: int) -> RoutineNumber:
        """The number at an address, as it is now."""
        made = RoutineNumber(ctypes.c_int64.from_address(address).value)
        made.recorder, made.place = self, address
        return made

    def input_cell(self, value: int) -> RoutineNumber:
        """A number that the routine's caller gives, by writing it (`RoutineNumber.place`)."""
        address = self._new_place()
        ctypes.c_int64.from_address(address).value = value
        return self.cell_at(address)

    def sum(self, a: Exponent, b: Exponent, sign: int) -> Any:
        """a + sign * b of exponents, numbers or tensors."""
        tensors = [v for v in (a, b) if isinstance(v, Tensor)]
        size = torch.broadcast_shapes(*(v.shape for v in tensors))
        result = None
        if tensors:
            with _disable_current_modes():
                result = self.made(tensors[0].new_empty(size))
        out: Any = self._out() if result is None else memory.address_of(result)
        steps = [(v.expand(size) if isinstance(v, Tensor) else _ONE.expand(size)) for v in (a, b)]
        layout = steps_of(*steps)
        if len(layout) > 3 * MOST_AXES or any(v.dtype is not torch.int64 for v in tensors):
            raise NotRecordableError("torch adds what are no exponents")
        self._run(
            self._c.samebits_exponent_sum,
            *(self._exponents_at(a), self._exponents_at(b), sign, out),
            *(len(layout) // 3, _Words(tuple(layout))),
        )
        return out[0] if result is None else result

    def _exponents_at(self, v: Exponent) -> Any:
        """Where a number lies, or the first of a tensor's."""
        return memory.address_of(v) if isinstance(v, Tensor) else self._at(v)

    def _at(self, value: Exponent) -> Any:
        if isinstance(value, RoutineNumber):
            return _Place(self, value.place)
        assert isinstance(value, int)
        return _Place(self, self.input_cell(value).place)

    def _out(self) -> Any:
        return _Place(self, self._new_place())

    def _words(self, words: Sequence[Any]) -> Any:
        """A list of numbers, and of addresses: places, and integers as large as these."""
        return _Words(tuple(_Address(w.address) if isinstance(w, _Place) else w for w in words))

    def _address(self, address: int | None) -> Any:
        return _Address(address or 0)

    def _meet(self, tables: Tables, exponent: Exponent) -> None:
        """None: they are those that the routine is going to read."""

    # --- calls ------------------------------------------------------------------------------

    def _run(self, function: Any, *arguments: Any, **_: Any) -> None:
        """Call a function of C, and write it down."""
        kinds = library.functions()[function].parameters
        words: list[int | _Address | _Words] = []
        given: list[Any] = []
        products, pairs = 0, 1
        for argument, (name, kind) in zip(arguments, kinds, strict=True):
            if name == declarations.THREADS:
                given.append(argument)
                continue
            word: int | _Address | _Words
            passed: Any
            if isinstance(argument, RoutineNumber):
                raise NotRecordableError(f"{function} takes an exponent that is read")
            if isinstance(argument, _Words):
                word = argument
                values = [w.value if isinstance(w, _Address) else w for w in argument.words]
                passed = (ctypes.c_int64 * len(values))(*values)
            elif isinstance(argument, _Place):
                word, passed = _Address(argument.address), argument.address
            elif isinstance(argument, ctypes.Structure):
                self._kept.append(argument)
                if kind == GEOMETRY:
                    products = products_of(argument)
                word, passed = _Address(ctypes.addressof(argument)), ctypes.byref(argument)
            elif "*" in kind:
                word, passed = _Address(argument or 0), argument
            elif kind == "double":
                word, passed = library.bits_of(argument), argument
            else:
                word = passed = int(argument)
                pairs = passed if name == PAIRS else pairs
            words.append(word)
            given.append(passed)
        if getattr(self._library, function)(*given):
            raise NotRecordableError(f"{function} fails")
        facts = CallFacts(str(function), self.layer, self.phase, products * pairs)
        self._part.append(_Call(self._numbers[function], words, facts))

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Write down the calls of a part, or more of them, in a with block. Raises
        NotRecordableError in it."""
        self._part = self._calls.setdefault(name, [])
        memory.WATCHED.append(self._kept.append)
        try:
            with _Torch(self):
                yield
        finally:
            memory.WATCHED.pop()

    # --- memory -----------------------------------------------------------------------------

    def made(self, v: Tensor) -> Tensor:
        """Take a tensor into the routine's memory: nobody needs what it held before."""
        self._own.setdefault(memory.storage_of(v)[0], v)
        return v

    def zeroed(self, v: Tensor) -> None:
        """A call that writes zeros to a dense tensor."""
        place = memory.pointer(v, v.numel(), v.dtype)
        self._run(self._c.samebits_zeros, place, v.numel() * v.element_size())

    def copied(self, source: Tensor, target: Tensor) -> None:
        """A call that copies integers, in any order of memory."""
        kinds = {source.dtype, target.dtype}
        if not kinds <= {*INTEGERS} and kinds != {torch.bool}:
            raise NotRecordableError(f"torch copies {source.dtype} as {target.dtype}")
        if not target.numel():
            return
        steps = steps_of(source.expand(target.shape), target)
        if len(steps) > 3 * MOST_AXES:
            raise NotRecordableError(f"torch copies {len(steps) // 3} axes")
        sides = [(memory.address_of(v), 8 * v.element_size()) for v in (source, target)]
        self._run(
            self._c.samebits_copy, *sides[0], *sides[1], len(steps) // 3, _Words(tuple(steps))
        )

    def joined(self, func: Any, args: Sequence[Any], result: Tensor) -> None:
        """Calls that copy tensors beside each other along an axis, or along one of their own."""
        parts, axis = args[0], args[1] if len(args) > 1 else 0
        with _disable_current_modes():
            if func is aten.stack.default:
                places = result.unbind(axis)
            else:
                places = result.split([v.shape[axis] for v in parts], axis)
        for part, place in zip(parts, places, strict=True):
            self.copied(part, place)

    def chosen(self, source: Tensor, axis: int, index: Tensor, target: Tensor) -> None:
        """A call that copies elements along an axis; it fails where an index is none."""
        own = target if target.is_contiguous() else target.new_empty(target.shape)
        places = (*self._along(source, axis), source.element_size(), *self._index(index))
        place = memory.pointer(self.made(own), own.numel(), own.dtype)
        self._run(self._c.samebits_chosen, *places, place)
        if own is not target:
            self.copied(own, self.made(target))

    def added(self, target: Tensor, axis: int, index: Tensor, source: Tensor) -> None:
        """A call that adds elements, int64, at indices along an axis of a dense tensor."""
        if {target.dtype, source.dtype} != {torch.int64} or not target.is_contiguous():
            raise NotRecordableError(f"torch adds {source.dtype} at indices")
        places = (*self._along(target, axis), *self._index(index), *self._along(source, axis)[:1])
        self._run(self._c.samebits_added_at, *places)

    def _along(self, v: Tensor, axis: int) -> tuple[int, int, int, int]:
        """The address of a tensor's elements, in the order of its axes, and its sizes before, along
        and behind an axis."""
        sizes = math.prod(v.shape[:axis]), v.shape[axis], math.prod(v.shape[axis + 1 :])
        if not v.is_contiguous():
            own = self.made(v.new_empty(v.shape))
            self.copied(v, own)
            v = own
        return memory.address_of(v), *sizes

    def _index(self, index: Tensor) -> tuple[int | None, int]:
        n = index.numel()
        return memory.pointer(index, n, torch.int64), n

    def are_below(self, index: Tensor, count: int) -> bool:
        """A call that fails where an index is outside [0, count)."""
        self._run(self._c.samebits_are_below, *self._index(index), count)
        return True

    def loss_units(self, logs: Tensor, distances: Tensor, exponent: Exponent) -> Tensor:
        """A call that adds the rows of a cross-entropy up: int64 [3] (csrc/training/loss.c)."""
        found, n = self.made(logs.new_empty(3)), logs.numel()
        rows = [memory.pointer(v, n, torch.int64) for v in (logs, distances)]
        own, count, _held = self._of_rows(exponent, n)
        places = (n, own, count > 1, memory.pointer(found, 3, torch.int64))
        self._run(self._c.samebits_loss_units, *rows, *places)
        return found

    def finish(self, *results: Tensor) -> Routine:
        """The routine of all that was written down.

        results: tensors that are read from outside, whenever; their storages are never shared
        """
        starts = sorted(self._own)
        sizes = [memory.storage_of(self._own[start])[1] for start in starts]

        def owner(address: int) -> int | None:
            at = bisect_right(starts, address) - 1
            return at if at >= 0 and address < starts[at] + max(sizes[at], 1) else None

        uses: dict[int, list[int]] = {}
        calls = [call for part in self._calls.values() for call in part]
        for place, call in enumerate(calls):
            for address in _addresses(call):
                if (index := owner(address)) is not None:
                    uses.setdefault(index, []).append(place)
        for v in results:
            index = owner(memory.address_of(v))
            assert index is not None
            uses[index] = [0, len(calls)]
        indices = list(uses)
        buffers = [
            arena.ArenaBuffer(arena.aligned(sizes[i], ALIGNMENT), min(uses[i]), max(uses[i]))
            for i in indices
        ]
        planned = arena.plan(buffers)
        room = torch.empty(planned.peak + ALIGNMENT, dtype=torch.uint8, device="cpu")
        base = arena.aligned(memory.address_of(room), ALIGNMENT)
        moved = {i: base + o - starts[i] for i, o in zip(indices, planned.offsets, strict=True)}

        def new(address: int) -> int:
            index = owner(address)
            return address if index is None else address + moved[index]

        parts = {name: _encoded(own, new) for name, own in self._calls.items()}
        kept = [v for v in self._kept if not self._is_own(v)]
        # A tensor may be given other memory: that which calls read lives on.
        kept += [v.untyped_storage() for v in kept if isinstance(v, Tensor)]
        facts = {name: [call.facts for call in own] for name, own in self._calls.items()}
        return Routine(parts, room, kept, self._library.samebits_run, new, facts)

    def _is_own(self, v: Any) -> bool:
        return isinstance(v, Tensor) and memory.storage_of(v)[0] in self._own


def products_of(geometry: ctypes.Structure) -> int:
    """Multiply-adds of a convolution, of its gradients too (csrc/training/conv.h)."""
    s: Any = geometry
    found: int = s.n * s.oh * s.ow * s.co * (s.ci // s.groups) * s.kh * s.kw
    return found


class _Names:
    """The functions of C by name alone: they are called by `RoutineRecorder._run` or not at all."""

    def __getattr__(self, name: str) -> Any:
        function = library.functions().get(name)
        if function is None or not function.is_routine:
            return _refused(name)
        return _Name(name)


class _Name(str):
    """A function of C; calling it refuses."""

    def __call__(self, *_: Any) -> NoReturn:
        _refused(self)()


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise NotRecordableError(f"{name} gives numbers to Python")

    return refuse


class _Torch(TorchDispatchMode):
    """A watch on what torch does beside the kernels: views are free, copies and zeros are calls."""

    def __init__(self, recorder: RoutineRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call the function, and write down what it does to elements."""
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_meta:  # a shape alone
            return result
        if func in MADE:
            return self._recorder.made(result)
        if func in ZEROS:
            if func is not aten.zero_.default:
                self._recorder.made(result)
            self._recorder.zeroed(result)
        elif func in COPIES:
            self._recorder.copied(args[0], self._recorder.made(result))
        elif func is aten.copy_.default:
            self._recorder.copied(args[1], args[0])
        elif func in CHOICES:
            self._recorder.chosen(args[0], *_choice(func, args), result)
        elif func in JOINS:
            self._recorder.joined(func, args, self._recorder.made(result))
        elif func is aten.index_add_.default and not kwargs:
            self._recorder.added(*args)
        elif func in SUMS and result.dtype is torch.int64 and not kwargs:
            return self._recorder.sum(args[0], args[1], SUMS[func])
        elif not _is_view(func, result, args):
            raise NotRecordableError(f"torch computes {func.__name__.partition('.')[0]}")
        return result


def _choice(func: Any, args: Sequence[Any]) -> tuple[int, Tensor]:
    """The axis along which a function takes elements, and their indices."""
    if func is not aten.index.Tensor:
        return args[1] % args[0].dim(), args[2]
    given = [axis for axis, index in enumerate(args[1]) if index is not None]
    if len(given) != 1 or args[1][given[0]].dtype is torch.bool:
        raise NotRecordableError("torch takes elements by several indices, or by a mask")
    return given[0], args[1][given[0]]


def _is_view(func: Any, result: Any, args: Any) -> bool:
    """Whether a function only gives tensors over the memory of its arguments."""
    if func._schema.is_mutable:
        return False
    given, found = (
        {memory.storage_of(t)[0] for t in tree_leaves(those) if isinstance(t, Tensor)}
        for those in (args, result)
    )
    return bool(found) and found <= given


def _addresses(call: _Call) -> Iterator[int]:
    """All addresses that a call is given."""
    for word in call.words:
        for each in word.words if isinstance(word, _Words) else (word,):
            if isinstance(each, _Address):
                yield each.value


def _encoded(calls: Sequence[_Call], new: Callable[[int], int]) -> Tensor:
    """The words of calls, in whose lists and arguments addresses are those of the routine."""

    def plain(word: int | _Address) -> int:
        return new(word.value) if isinstance(word, _Address) else word

    sizes = [
        len(c.words) + sum(len(w.words) for w in c.words if isinstance(w, _Words)) for c in calls
    ]
    made = torch.empty(sum(sizes) + 2 * len(calls), dtype=torch.int64, device="cpu")
    base, found = memory.address_of(made), list[int]()
    for call, size in zip(calls, sizes, strict=True):
        found += (call.kernel, size)
        lists, end = list[int](), len(found) + len(call.words)
        for word in call.words:
            if isinstance(word, _Words):
                found.append(base + 8 * (end + len(lists)))
                lists += map(plain, word.words)
            else:
                found.append(plain(word))
        found += lists
    made.copy_(torch.tensor(found, dtype=torch.int64, device="cpu"))
    return made
