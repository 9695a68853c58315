"""No tensor reaches C but the one that C was made for: device, type, order and size are checked."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import samebits
from samebits.errors import InputError, RangeError, UnsupportedError
from samebits.kernels import (
    build,
    library,
    memory,
    native,
    native_norm,
    native_optimize,
    native_parts,
    native_pools,
    native_recurrence,
    native_update,
    native_vectors,
)
from samebits.kernels.adam import AdamTerms
from samebits.kernels.averages import adaptive_averages
from samebits.kernels.eager import Eager
from samebits.kernels.geometry import Window, conv_shape
from samebits.kernels.memory import I8, I16, I32, I64, pointer, word_pointer
from samebits.kernels.moments import Draw, Update
from samebits.kernels.native import Native
from samebits.kernels.optimize import Entry, GradientCells, Roster, StepGradients, StepOptions
from samebits.kernels.protocol import (
    CellLayer,
    CellStates,
    Gradient,
    MultiplyAdds,
    SGDTerms,
    Term,
)
from samebits.kernels.tables import Tables

ROOMS = ("kernels", "train", "numerics")
OPERATIONS = {name for name, _ in inspect.getmembers(Eager, inspect.isfunction) if name[0] != "_"}


def codes(kind: torch.dtype, *shape: int, high: int = 100) -> Tensor:
    order = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-high, high + 1, shape, generator=order).to(kind)


def positive(kind: torch.dtype, *shape: int) -> Tensor:
    return codes(kind, *shape).abs() + 1


def image(kind: torch.dtype, *shape: int) -> Tensor:
    return codes(kind, *shape).contiguous(memory_format=torch.channels_last)


def moments(*shape: int) -> Tensor:
    """Codes e6m9 of ordinary size."""
    return (40 * 512 + positive(I16, *shape)) * (codes(I16, *shape).sign() | 1)


def sgd_terms() -> SGDTerms:
    gradient = Gradient(((codes(I32, 4, 6), -8), (codes(I32, 4, 6, high=50), -9)), (100, 100))
    return SGDTerms(
        gradient,
        codes(I8, 4, 6),
        codes(I16, 4, 6),
        -20,
        (3, -10),
        Term(moments(4, 6), -3, (40000, -16), 40 * 512 + 101),
        Draw(1, 2, 3),
    )


def adam_terms() -> AdamTerms:
    state = (codes(I8, 4, 6), codes(I16, 4, 6), -20)
    return AdamTerms(
        *(codes(I32, 4, 6), -8, *state, moments(4, 6), -3, moments(4, 6).abs(), -3),
        *(0.9, 0.999, 0.0, 0.01, 0.1, 0.0316, 1e-8, Draw(1, 2, 3)),
    )


def at_once() -> tuple[Roster, tuple[StepOptions, ...], StepGradients]:
    """A step of one parameter by Adam, whose gradient has two parts."""
    state = (codes(I8, 4, 6), codes(I16, 4, 6), torch.tensor(-5), (ctypes.c_int64 * 2)(-1, 0))
    held = ((moments(4, 6), moments(4, 6).abs()), library.STRUCTS["Numbers"](1, 3, 0, 0, -3, -3))
    entry = Entry(*state, *held, 127, 0, 0)
    options = StepOptions(
        *(True, False, True, 1, 40000, -26, -10, 0, 0, -1000),
        *(0, 0, 0, -30, 0.9, 0.999, 0.0, 0.0, 1e-8),
    )
    cells = (torch.tensor(-8), torch.tensor(-9))
    parts = ((codes(I32, 4, 6), cells[0]), (codes(I16, 4, 6), cells[1]))
    gradient = GradientCells(parts, (torch.tensor(100), None))
    return Roster((entry,)), (options,), StepGradients((gradient,))


def update(*shape: int) -> Update:
    return Update(moments(*shape), 32768, -78, Draw(1, 2, 3))


def lstm_layer() -> CellLayer:
    return CellLayer(
        *("lstm", (codes(I32, 2, 3, 8), -9), (codes(I8, 8, 2), -7), (state(8), state(8))),
        *((codes(I8, 3, 2), -7), (codes(I16, 3, 2), -15), False, codes(I16, 2, 65535)),
    )


def lstm_states() -> CellStates:
    h = codes(I8, 2, 3, 2), -7
    return CellStates(h, codes(I16, 2, 3, 2), codes(I64, 2, high=3), 0)


def rnn_layer() -> CellLayer:
    return CellLayer(
        *("tanh", (codes(I32, 2, 3, 2), -9), (codes(I8, 2, 2), -7), (None, state(2))),
        *(None, (codes(I8, 3, 2), -15), True, codes(I16, 2, 65535)),
    )


def state(*shape: int) -> tuple[Tensor, Tensor, int]:
    """W, A and the exponent of J of a parameter."""
    return codes(I8, *shape), codes(I16, *shape), -20


def multiply_adds() -> MultiplyAdds:
    """Of batch norm over four channels."""
    return MultiplyAdds(
        codes(I32, 1, 4), codes(I32, 1, 4), -4, torch.tensor([[1 << 24, 99]]), 1 << 24
    )


def tables() -> Tables:
    return Tables(lambda exponent: (range(-127, 128), exponent))


CONV = conv_shape((2, 3, 5, 5), (4, 3, 3, 3))
DEPTHWISE = conv_shape((2, 4, 5, 5), (4, 1, 3, 3), groups=4)
WINDOW = Window((2, 2), (2, 2), (0, 0))
BY_ROWS = torch.tensor([[-1], [0], [2]])

# Operands of every operation that its C takes.
IN_C: dict[str, tuple[str, Callable[[], tuple]]] = {
    name: (name.split(" ")[0], make)
    for name, make in {
        "largest_of": lambda: (codes(I32, 3, 4),),
        "scale": lambda: (codes(I32, 3, 4), -3),
        "scale by rows": lambda: (codes(I32, 3, 4), BY_ROWS.clone()),
        "scale_to": lambda: (codes(I64, 3, 4), -3, 16),
        "resolve": lambda: ([(codes(I32, 3, 4), 0), (codes(I16, 3, 4), -1)],),
        "requantize": lambda: (codes(I64, 3, 4, high=900), 900, -3, 8),
        "shorten": lambda: (codes(I64, 3, 4, high=1 << 40), 1 << 40, -3),
        "stacked": lambda: ([(codes(I32, 3, 4), 0), (codes(I16, 3, 4), -1)], 32, 0),
        "conv": lambda: (codes(I8, 2, 3, 5, 5), codes(I8, 4, 3, 3, 3), CONV),
        "conv depthwise": lambda: (codes(I8, 2, 4, 5, 5), codes(I8, 4, 1, 3, 3), DEPTHWISE),
        "conv product": lambda: (
            *(codes(I8, 1, 3, 1, 4), codes(I8, 4, 3, 1, 1)),
            conv_shape((1, 3, 1, 4), (4, 3, 1, 1)),
        ),
        "conv_input_grad": lambda: (codes(I16, 2, 4, 3, 3), codes(I8, 4, 3, 3, 3), CONV),
        "input_gradient": lambda: (codes(I16, 2, 4, 3, 3), codes(I8, 4, 3, 3, 3), CONV, -9, 16),
        "conv_input_grad depthwise": lambda: (
            *(codes(I16, 2, 4, 3, 3), codes(I8, 4, 1, 3, 3), DEPTHWISE),
        ),
        "conv_weight_grad": lambda: (codes(I16, 2, 4, 3, 3), codes(I8, 2, 3, 5, 5), CONV),
        "conv_weight_grad depthwise": lambda: (
            *(codes(I32, 2, 4, 3, 3), codes(I8, 2, 4, 5, 5), DEPTHWISE),
        ),
        "with_bias": lambda: (codes(I32, 2, 4, 3, 3), 100, -5, state(4)),
        "channel_sum": lambda: (codes(I16, 2, 4, 3, 3), -5),
        "channel_sum by rows": lambda: (codes(I32, 3, 4), BY_ROWS.clone()),
        "channel_sum of products": lambda: (codes(I16, 3, 4), BY_ROWS.clone(), codes(I8, 3, 4)),
        "with_bias by rows": lambda: (
            *(codes(I32, 2, 4, 3, 3), 0, codes(I64, 2, 4, 1, 1, high=9), state(4)),
        ),
        "input_gradient by rows": lambda: (
            *(codes(I16, 2, 4, 3, 3), codes(I8, 4, 3, 3, 3), CONV),
            *(codes(I64, 2, 1, 1, 1, high=9), 16),
        ),
        "batch_norm": lambda: (codes(I8, 2, 4, 3, 3), -4, state(4), state(4), None, 1e-5),
        "batch_norm of 16 bits": lambda: (
            *(codes(I16, 2, 4, 3, 3), -4, state(4), state(4), None, 1e-5),
        ),
        "affine of 16 bits": lambda: (codes(I16, 2, 4, 3, 3), multiply_adds(), 8),
        "affine": lambda: (codes(I8, 2, 4, 3, 3), multiply_adds(), 8),
        "affine_clamped": lambda: (codes(I8, 2, 4, 3, 3), multiply_adds(), 6, 8),
        "affine_sums": lambda: (codes(I8, 2, 4, 3, 3), multiply_adds()),
        "batch_norm by running statistics": lambda: (
            *(codes(I8, 2, 4, 3, 3), -4, state(4), state(4)),
            *((codes(I16, 4).double(), positive(I16, 4).double()), 1e-5),
        ),
        "batch_norm_gradient": lambda: (
            *(codes(I32, 2, 4, 3, 3), -9, codes(I8, 2, 4, 3, 3), -4),
            *(codes(I16, 3, 4).double(), True, True),
        ),
        "quantize": lambda: (codes(I32, 3, 4).float(), 8),
        "quantize by rows": lambda: (codes(I32, 3, 4).float(), 8, True),
        "running_statistics": lambda: (
            (positive(I32, 4).double(), positive(I32, 4).double()),
            *((codes(I64, 4), positive(I64, 4) << 20), 50, -3, 0.1),
        ),
        "channel_grad_sums": lambda: (codes(I16, 2, 4, 3, 3), codes(I8, 2, 4, 3, 3)),
        "vector_stats": lambda: (codes(I8, 3, 6),),
        "vector_norm": lambda: (codes(I8, 3, 6), -4, state(6), state(6), 1e-5, True, 8),
        "vector_norm alone": lambda: (codes(I8, 3, 6), -4, None, None, 1e-5, False, 8),
        "vector_norm of groups": lambda: (
            *(codes(I8, 3, 2, 6), -4, state(1, 2, 6), state(1, 2, 6), 1e-5, True, 8),
        ),
        "vector_norm_gradient": lambda: (
            *(codes(I32, 3, 6), -9, (codes(I8, 3, 6), -6), (positive(I32, 3, 1), -20)),
            *(state(6), True, None),
        ),
        "vector_norm by rows": lambda: (
            *(codes(I8, 3, 2, 6), codes(I64, 3, 1, 1, high=9), state(1, 2, 6), state(1, 2, 6)),
            *(1e-5, True, 8),
        ),
        "vector_norm_gradient by rows": lambda: (
            *(codes(I32, 3, 6), codes(I64, 3, 1, high=9)),
            *((codes(I8, 3, 6), codes(I64, 3, 1, high=9)),),
            *((positive(I32, 3, 1), codes(I64, 3, 1, high=9)), state(6), True, (3, 1)),
        ),
        "aligned": lambda: (codes(I8, 3, 4), codes(I64, 3, 4, high=9), (3, 1), True),
        "requantize_blocks": lambda: (codes(I32, 2, 3, 4), -3, 5, (2, 3, 1), 8),
        "requantize_blocks of rows": lambda: (
            *(codes(I64, 2, 3, 4, high=1 << 40), codes(I64, 2, 3, 1, high=9), 5, (2, 1, 1), 32),
            False,
        ),
        "shorten_blocks": lambda: (
            *(codes(I64, 2, 3, 4, high=1 << 40), codes(I64, 2, 1, 1, high=9), 5, None),
        ),
        "products": lambda: (codes(I8, 2, 3, 4), codes(I8, 2, 5, 4)),
        "products_a": lambda: (codes(I16, 2, 3, 5), codes(I8, 2, 5, 4)),
        "products_b": lambda: (codes(I16, 2, 3, 5), codes(I8, 2, 3, 4)),
        "times": lambda: (codes(I8, 3, 4), 40000, -20, 8),
        "times of gradients": lambda: (codes(I16, 3, 4), -40000, -20, 32),
        "kept": lambda: (40, 1 << 31, (1, 2, 3, 4, 5), "cpu"),
        "where": lambda: (codes(I8, 3, 4) > 0, codes(I16, 3, 4)),
        "summed": lambda: (codes(I16, 2, 3, 4), (1, 3, 1)),
        "at_one": lambda: (codes(I16, 3, 4), codes(I64, 3, 1, high=9), 55),
        "side_by_side": lambda: ([(codes(I8, 3, 4), 0), (codes(I8, 3, 2), -1)], 1),
        "clamp": lambda: (codes(I8, 3, 4), -4, 6),
        "clamp by rows": lambda: (codes(I32, 3, 4), BY_ROWS.clone(), 6),
        "clamped": lambda: (codes(I32, 3, 4), -4, 6, 8),
        "behind_mask": lambda: (codes(I16, 3, 4), positive(torch.uint8, 2)),
        "unpacked": lambda: (positive(torch.uint8, 2), torch.Size((3, 4))),
        "table": lambda: (codes(I8, 3, 4), -3, tables(), 8),
        "table_gradient": lambda: (codes(I16, 3, 4), -9, codes(I8, 3, 4), -3, tables()),
        "add": lambda: (codes(I8, 3, 4), 0, codes(I8, 4, 3).T.contiguous(), 1),
        "add_clamped": lambda: (codes(I8, 3, 4), 0, codes(I8, 4, 3).T.contiguous(), 1, 6, 8),
        "add_sums": lambda: (codes(I8, 3, 4), 0, codes(I8, 4, 3).T.contiguous(), 1),
        "max_pool": lambda: (image(I8, 2, 3, 4, 4), WINDOW),
        "max_pool_grad": lambda: (
            codes(I32, 2, 3, 2, 2),
            codes(I8, 2, 3, 2, 2).abs().to(torch.uint8) % 4,
            *(torch.Size((2, 3, 4, 4)), WINDOW),
        ),
        "window_sums": lambda: (image(I8, 2, 3, 4, 4), adaptive_averages(4, 4, 3, 3)),
        "window_sums_grad": lambda: (
            *(codes(I32, 2, 3, 3, 3), torch.Size((2, 3, 4, 4)), adaptive_averages(4, 4, 3, 3)),
        ),
        "requantize divided": lambda: (codes(I64, 3, 4), 100, -5, 8, 9),
        "divided": lambda: (codes(I64, 3, 4), 100, -5, 9, 40),
        "cross_entropy": lambda: (codes(I32, 3, 5), -4, torch.tensor([0, 4, -1]), 2),
        "cross_entropy by rows": lambda: (
            *(codes(I32, 3, 5), BY_ROWS - 4, torch.tensor([0, 4, -1]), 2),
        ),
        "weighed_entropy": lambda: (codes(I32, 3, 5), -4, positive(I64, 3, 5) << 20),
        "hits": lambda: (torch.tensor([0, 4, -1]), 5, 1 << 24),
        "softmax": lambda: (codes(I8, 3, 5), -4, codes(I8, 3, 5) > -50),
        "softmax by rows": lambda: (codes(I8, 3, 5), BY_ROWS - 4, None),
        "softmax_grad": lambda: (
            *(codes(I16, 3, 5), -9, codes(I8, 3, 5), codes(I64, 3, 1, high=9)),
        ),
        "softmax_grad by rows": lambda: (
            *(codes(I16, 3, 5), BY_ROWS.clone(), codes(I8, 3, 5), codes(I64, 3, 1, high=9)),
        ),
        "direction": lambda: (sgd_terms(), codes(I16, 4, 6)),
        "adam": lambda: (adam_terms(), codes(I16, 4, 6)),
        "optimize": at_once,
        "lazy_carry": lambda: (codes(I8, 4, 6), codes(I16, 4, 6), update(4, 6), True),
        "lazy_resplit": lambda: (codes(I8, 4, 6), codes(I16, 4, 6), update(4, 6), 1),
        "lazy_rows": lambda: (
            *(codes(I8, 3, 6), codes(I16, 3, 6), BY_ROWS - 9, update(3, 6), 127),
        ),
        "block_sums": lambda: (positive(torch.uint8, 5000), codes(I32, 1024)),
        "recurrence of an LSTM": lambda: (lstm_layer(),),
        "recurrence of an RNN": lambda: (rnn_layer(),),
        "recurrence_gradient": lambda: (
            *(lstm_layer(), lstm_states(), (codes(I32, 2, 3, 2), -9), (codes(I16, 3, 2), -9)),
            *(16, (True, True)),
        ),
    }.items()
}
SIZED_BY_THE_FIRST = {
    *("largest_of", "scale", "scale by rows", "scale_to", "with_bias"),
    *(
        "channel_sum",
        "channel_sum by rows",
        "quantize by rows",
        "quantize by rows",
        "batch_norm",
        "batch_norm of 16 bits",
        "affine of 16 bits",
        "batch_norm by running statistics",
        "vector_stats",
    ),
    *("vector_norm alone", "requantize divided", "requantize_blocks", "times"),
    *("times of gradients", "side_by_side", "summed", "requantize_blocks of rows", "at_one"),
    *(
        "shorten_blocks",
        "products_b",
        "clamp",
        "clamp by rows",
        "clamped",
        "affine",
        "affine_clamped",
        "affine_sums",
        "behind_mask",
        "table",
        "max_pool",
        "cross_entropy",
        "softmax by rows",
        "hits",
    ),
    *("cross_entropy by rows", "block_sums", "divided", "quantize", "requantize", "shorten"),
}
SIZED_BY_LATER = {("products_a", 1), ("products_b", 1), ("side_by_side", 1)}
# What `Native` has of torch: nothing of these reaches C, but by the operations above.
IN_TORCH = {
    *("saturated", "divide", "add_bias", "joint", "split", "square_sum"),
    "are_below",
}


def tensors(value) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if is_dataclass(value):
        return tensors([getattr(value, field.name) for field in fields(value)])
    parts = value if isinstance(value, tuple | list) else ()
    return [v for part in parts for v in tensors(part)]


def exchanged(value, old: Tensor, new: Tensor):
    """The operands with another tensor in the place of one."""
    if value is old:
        return new
    if is_dataclass(value):
        given = [f.name for f in fields(value) if f.init]
        own = {name: exchanged(getattr(value, name), old, new) for name in given}
        return replace(value, **own)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(exchanged(v, old, new) for v in value))
    if isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        return type(value)([exchanged(v, old, new) for v in value])
    return value


FOUND = {"int64_t": 1, "int": 0}  # what a function says that does nothing, by its type


class NoC:
    """In the place of the compiled library: functions that do nothing but be counted."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*_):
            self.calls.append(name)
            return FOUND.get(library.functions()[name].result)

        return call


@pytest.fixture
def watched(monkeypatch) -> tuple[Native, list[str]]:
    """The native kernels without a library, and the functions of C that they have called."""
    empty = NoC()
    monkeypatch.setattr(native, "load", lambda arch: empty)
    return Native(), empty.calls


@pytest.fixture(scope="module")
def real() -> Native:
    try:
        return Native()
    except build.BuildError as error:
        pytest.skip(str(error))


def places() -> list:
    return [
        pytest.param(name, at, id=f"{name}-{at}")
        for name, (_, make) in IN_C.items()
        for at in range(len(tensors(make())))
    ]


def test_every_operation_is_here():
    assert {operation for operation, _ in IN_C.values()} | IN_TORCH == OPERATIONS
    for name in IN_TORCH:
        assert getattr(Native, name) is getattr(Eager, name)


@pytest.mark.parametrize("name", IN_C)
def test_these_operands_are_taken_by_c(watched, real, name):
    operation, make = IN_C[name]
    k, calls = watched
    with contextlib.suppress(RangeError):  # what a result of 1 says here and there
        getattr(k, operation)(*make())
    assert calls
    given, alike = make(), make()
    found, expected = (getattr(k, operation)(*v) for k, v in ((real, given), (Eager(), alike)))
    if expected is not None:  # `optimize` of torch: has none
        for a, b in zip(tensors([found, given]), tensors([expected, alike]), strict=True):
            assert torch.equal(a.long(), b.long())


KINDS = {
    "int8_t": {I8}, "int16_t": {I16}, "int32_t": {I32}, "int64_t": {I64}, "double": {memory.F64},
    "float": {memory.F32},
    "uint8_t": {memory.U8, memory.BOOL}, "uint32_t": {I32}, "uint64_t": {I64},
    "void": set(memory.INTEGERS),
}  # fmt: skip

NAMES = (
    *("Conv", "Pool", "Windows", "Rows", "Addend", "Terms", "Draw", "Update"),
    *("AdamTerms", "Options"),
)


def fits(kind: str, value, given: dict[int, torch.dtype]) -> bool:
    """Whether a value is what C declares: a number, or a place where there is this type.

    given: the type of what lies at every address
    """
    own, star, _ = kind.partition("*")
    if value is None:
        return star == "*"
    if isinstance(value, int | float):
        return given.get(value) in (KINDS[own] if star else {None})
    made = getattr(value, "_obj", value)  # of `byref`
    element = made._type_ if isinstance(made, ctypes.Array) else type(made)
    return issubclass(element, library.ctype(own))


@pytest.fixture
def declared(monkeypatch) -> Native:
    """The native kernels with a library that takes only what C declares, and does nothing."""
    given = {}

    def check(what: str, kinds: list[str], values: tuple) -> None:
        assert len(values) == len(kinds), what
        wrong = [pair for pair in zip(kinds, values, strict=True) if not fits(*pair, given)]
        assert not wrong, f"{what}: {wrong}"

    class Library:
        def __getattr__(self, name):
            result, parameters = library.functions()[name]
            kinds = [kind for _, kind in parameters]
            return lambda *values: check(name, kinds, values) or FOUND.get(result)

    def checked(real):
        class Checked(real):
            def __init__(self, *values):
                kinds = [kind for _, kind in library.fields(real.__name__)]
                check(real.__name__, kinds, values)
                super().__init__(*values)

        return Checked

    def noted(give):
        def place(v, *arguments):
            if (address := give(v, *arguments)) is not None:
                given[address] = v.dtype
            return address

        return place

    structs = library.StructTable()
    structs.update({name: checked(library.STRUCTS[name]) for name in NAMES})
    for room in (library, native_optimize):
        monkeypatch.setattr(room, "STRUCTS", structs)
    monkeypatch.setattr(native_update, "groups", native_optimize.groups.__wrapped__)
    for cached in ("conv_struct", "rows_struct"):
        monkeypatch.setattr(library, cached, getattr(library, cached).__wrapped__)
    for room in (native, native_vectors):
        monkeypatch.setattr(room, "conv_struct", library.conv_struct)
        monkeypatch.setattr(room, "rows_struct", library.rows_struct)
    monkeypatch.setattr(native, "load", lambda arch: Library())
    rooms = (native_norm, native_optimize, native_parts, native_pools, native_recurrence)
    rooms += (native_update, native_vectors)
    for room in (library, native, *rooms):
        for name in {"pointer", "word_pointer", "mask_pointer"} & set(vars(room)):
            monkeypatch.setattr(room, name, noted(getattr(memory, name)))
    return Native()


@pytest.mark.parametrize("name", IN_C)
def test_c_is_given_what_it_declares(declared, name):
    """Numbers and addresses of every call, and what lies there, against the text of the C."""
    operation, make = IN_C[name]
    with contextlib.suppress(RangeError):
        getattr(declared, operation)(*make())


def short(v: Tensor) -> Tensor:
    return v.flatten()[:-1].clone() if v.dim() == 1 else v[..., :-1].clone()


@pytest.mark.parametrize(
    "spoiled",
    [
        pytest.param(lambda v: v.to("meta"), id="meta"),
        pytest.param(lambda v: v.long() if v.is_floating_point() else v.double(), id="type"),
        pytest.param(lambda v: v.to_sparse(), id="sparse"),
        pytest.param(short, id="short"),
    ],
)
@pytest.mark.parametrize(("name", "at"), places())
def test_no_other_tensor_reaches_c(watched, name, at, spoiled):
    """A tensor of another device, type, layout or size in the place of any operand.

    There is an error, by the check or by torch before; or the operation is left to torch.
    """
    operation, make = IN_C[name]
    given = make()
    chosen = tensors(given)[at]
    sized = name in SIZED_BY_THE_FIRST if at == 0 else (name, at) in SIZED_BY_LATER
    if spoiled is short and sized:
        assert chosen.numel() > short(chosen).numel()  # a smaller problem, and no error
        return
    k, calls = watched
    try:
        getattr(k, operation)(*exchanged(given, chosen, spoiled(chosen)))
    except (InputError, UnsupportedError, RuntimeError, IndexError, ValueError):
        return
    # It asks C for a largest magnitude of what torch has made, before it leaves the rest to it; and
    # does not read the ends of sums which are not rounded.
    assert calls == [] or (operation, at) in {("with_bias", 0), ("affine_sums", 3)}


@pytest.mark.parametrize(("name", "at"), places())
def test_memory_in_another_order_gives_the_same_or_is_refused(real, name, at):
    """Every second element of a larger tensor."""
    operation, make = IN_C[name]
    given, alike = make(), make()
    chosen = tensors(given)[at]
    wide = torch.stack([chosen, chosen + 1], -1)[..., 0]
    assert wide.numel() < 2 or not wide.is_contiguous()
    given = exchanged(given, chosen, wide)
    expected = getattr(real, operation)(*alike)
    try:
        found = getattr(real, operation)(*given)
    except InputError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "expected a tensor of" in refused
        return
    for a, b in zip(tensors([found, given]), tensors([expected, alike]), strict=True):
        assert torch.equal(a.long(), b.long())


# --- the check --------------------------------------------------------------------------------


def test_pointers_of_what_c_takes():
    v = codes(I32, 2, 3, 4, 5)
    assert pointer(v, 120, I16, I32) == v.data_ptr()
    last = v.contiguous(memory_format=torch.channels_last)
    assert pointer(last, 120, I32) == last.data_ptr()
    assert pointer(None, 120, I32) is None
    assert pointer(v[:0], 0, I32) is not None
    at_odd_bytes = torch.zeros(9, dtype=I8)[1:]
    assert pointer(at_odd_bytes, 8, I8) == at_odd_bytes.data_ptr()
    assert pointer(codes(I32, 9)[1:], 8, I32) % 8 == 4  # aligned as its type needs


def freed() -> Tensor:
    v = codes(I32, 8)
    v.untyped_storage().resize_(0)
    return v


UNALIGNED = torch.frombuffer(bytearray(33), dtype=I32, offset=1)
REFUSED = {
    "another device": codes(I32, 8).to("meta"),
    "another type": codes(I64, 8),
    "a size": codes(I32, 9),
    "gaps": codes(I32, 8, 2)[:, 0],
    "one element for all": torch.zeros(1, dtype=I32).expand(8),
    "an order of axes": codes(I32, 4, 2).T,
    "a sparse layout": codes(I32, 8).to_sparse(),
    "no memory": freed(),
    "not aligned": UNALIGNED,
}


@pytest.mark.parametrize("v", REFUSED.values(), ids=REFUSED)
def test_pointers_of_others_are_refused(v):
    with pytest.raises(InputError, match=r"expected a tensor of 8 .* of int32 .*, found int") as e:
        pointer(v, 8, I32)
    assert str(e.value).endswith(
        "give the model, its input and its targets one device and types "
        "as `samebits.train` makes them"
    )


def test_weights_lie_in_the_order_of_random_words():
    v = codes(I16, 2, 3, 4, 5)
    last = v.contiguous(memory_format=torch.channels_last)
    assert word_pointer(last, 120, I16) == last.data_ptr()
    with pytest.raises(InputError, match="channels last in memory"):
        word_pointer(v, 120, I16)


def test_only_whole_numbers_are_widened():
    assert memory.integers(codes(I8, 4), I32).dtype == I32
    for other in (torch.ones(4), torch.ones(4, dtype=torch.bool)):
        with pytest.raises(InputError, match="int8 or int16 or int32 or int64"):
            memory.integers(other, I32)


def test_nothing_else_gives_addresses_away():
    """`data_ptr` is asked for where it is checked, and where only numbers are compared."""
    compared = {"train/deployed/export.py", "train/run/measure.py"}
    root = Path(samebits.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if ".data_ptr()" in path.read_text(encoding="utf-8")
    }
    assert found == {"kernels/memory.py"} | compared


# --- a caller's default device and type -------------------------------------------------------

FACTORIES = {
    *("empty", "zeros", "ones", "full", "tensor", "as_tensor", "asarray", "scalar_tensor"),
    *("arange", "linspace", "logspace", "eye", "empty_strided", "tril_indices", "triu_indices"),
    *("rand", "randn", "randint", "randperm", "hann_window", "hamming_window"),
}
OF_FLOATS = {"empty", "zeros", "ones", "linspace", "eye", "rand", "randn"}  # by default
FLOAT_MODELS = "architectures.py"  # the layers of a float model follow the caller's defaults


def made_by_default(text: str) -> list[str]:
    """Calls of torch in which a default device, or a default type, decides what is made."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if ast.unparse(node.func.value) != "torch" or node.func.attr not in FACTORIES:
            continue
        named = {keyword.arg for keyword in node.keywords}
        on_meta = any(k.arg == "device" and ast.unparse(k.value) == "'meta'" for k in node.keywords)
        untyped = node.func.attr in OF_FLOATS and "dtype" not in named and not on_meta
        if "device" not in named or untyped:
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_tensors_made_by_default_are_found():
    assert len(made_by_default("torch.zeros(3, device=d)\ntorch.arange(3)\ntorch.full(3, 0)")) == 3
    assert not made_by_default("x.new_zeros(3)\ntorch.zeros(3, dtype=k, device=d)")


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_made_has_a_device_and_a_type_of_its_own(room):
    """A default device of the caller's would give C other memory, a default type other bits."""
    folder = Path(samebits.__file__).parent / room
    paths = [path for path in folder.rglob("*.py") if path.name != FLOAT_MODELS]
    assert len(paths) > 5
    found = {str(path): made_by_default(path.read_text(encoding="utf-8")) for path in paths}
    assert {path: calls for path, calls in found.items() if calls} == {}
