"""Passes of a graph as routines: all kernel calls of a forward or a backward pass in one call of C.

A graph that is walked once under a recorder gives a routine (`kernels.routine`). It takes the
place of walks where it gives the same bits on numbers that it has not seen. What cannot be recorded
is walked. So is a pass in which an exponent leaves its range, as the walk knows in which layer, and
one in which an activation has no table for an exponent yet, as the walk makes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import RangeError
from samebits.kernels.memory import address_of, addresses
from samebits.kernels.optimize import GradientCells
from samebits.kernels.protocol import Part
from samebits.kernels.routine import NotRecordableError, Routine, RoutineNumber, RoutineRecorder
from samebits.kernels.rows import Exponent
from samebits.train.deferred import ShardUpdate, defer, deferred_updates
from samebits.train.graph import (
    BACKWARD,
    FORWARD,
    TrainingGraph,
    TrainingNode,
    backward,
    called,
    forward,
)
from samebits.train.operations.pointwise import DROPOUT, MASK, Drawn, Mask
from samebits.train.sums import Sums
from samebits.train.tensor import BFPTensor
from samebits.train.value import BFPValue, Weight, WeightAt, exponents_of, same_parts


class RecordedGraph:
    """A graph whose passes are a routine as soon as one is recorded, and walks till then."""

    def __init__(
        self, graph: TrainingGraph, tell: Callable[[str], None] = lambda reason: None
    ) -> None:
        """tell: is told why there can be no routine, where the native kernels serve."""
        self.graph = graph
        self._masks = masks_of(graph)
        self.reason = ""  # why there is no routine
        self._tell = tell
        self._recorded: RecordedPasses | None = None
        self._user: weakref.ref[_Kept] | None = None  # whose values the routine's memory holds

    def __call__(self, x: Tensor) -> BFPTensor:
        """The output for an input, as autograd sees it."""
        return called(self.graph, self, x)

    def forward(self, x: Any, weights: Sequence[Weight], keep: bool) -> tuple[BFPValue, _Kept]:
        """The output, and with `keep` what a backward pass needs. Raises as `graph.forward`."""
        draws = [mask() for mask in self._masks]
        kept = _Kept(x, weights, self.graph, draws)
        recorded = self._recorded
        if recorded is not None and not (keep and self._is_used()) and recorded.fits(x, weights):
            output = recorded.forward(x, draws)
            if output is not None:
                if keep:
                    kept.recorded, self._user = recorded, weakref.ref(kept)
                return output, kept
        output, kept.walked = forward(kept.drawn, x, weights, keep)
        if not keep:
            self._record(kept, None)
        return output, kept

    def backward(self, kept: _Kept, grad: BFPValue) -> list[BFPValue | None]:
        """The gradients of the parameters. `kept` is used up. Raises as `graph.backward`."""
        if kept.recorded is not None:
            self._user = None
            found = kept.recorded.backward(grad)
            if found is not None:
                return found
            with deferred_updates():  # the first pass has told them
                _, kept.walked = forward(kept.drawn, kept.x, kept.weights, True)
        found = backward(self.graph, kept.walked, grad)
        self._record(kept, grad)
        return found

    def forget(self, reason: str) -> None:
        """Give the routine and its memory up, and walk from now on."""
        self._recorded, self._user, self.reason = None, None, reason

    def _is_used(self) -> bool:
        """Whether a forward pass waits for its backward pass."""
        return self._user is not None and self._user() is not None

    def _record(self, kept: _Kept, grad: BFPValue | None) -> None:
        """Record a routine, if none was tried yet."""
        if self._recorded is not None or self.reason:
            return
        try:
            self._recorded = record(kept.graph, kept.x, kept.weights, grad, kept.draws)
        except NotRecordableError as error:
            self.reason = str(error)
            if kernels.realisation() == "native":
                self._tell(self.reason)


@dataclass(eq=False)
class _Kept:
    """A forward pass that may be followed by a backward pass: its operands, and where the values
    are that the latter reads.

    draws: the masks of the graph's dropouts
    """

    x: Any
    weights: Sequence[Weight]
    graph: TrainingGraph
    draws: Sequence[Drawn]
    walked: Any = None
    recorded: RecordedPasses | None = None

    @functools.cached_property
    def drawn(self) -> TrainingGraph:
        """The graph with these masks."""
        return with_masks(self.graph, self.draws)


Place = ctypes.c_int64
Placed = Place | Tensor | int | None  # where a routine leaves a number, or exponents; or a constant
PlacedPart = tuple[Tensor, Placed]  # codes, and the place of their exponent


@dataclass(frozen=True)
class PlacedGradient:
    """Where a routine leaves a gradient: its parts, and of each its bound or the bound's place."""

    parts: tuple[PlacedPart, ...]
    bounds: tuple[Placed, ...]

    @staticmethod
    def of(gradient: BFPValue, routine: Routine) -> PlacedGradient:
        """The places of a gradient that was recorded."""
        parts = ((routine.tensor(codes), placed(e, routine)) for codes, e in gradient.parts)
        bounds = (placed(b, routine) for b in gradient.bounds)
        return PlacedGradient(tuple(parts), tuple(bounds))

    def cells(self) -> GradientCells:
        """The places, as an optimizer takes them."""
        parts = ((codes, _tensor_of(place)) for codes, place in self.parts)
        bounds = (_tensor_of(b) if isinstance(b, Place) else None for b in self.bounds)
        return GradientCells(tuple(parts), tuple(bounds))

    def value(self) -> BFPValue:
        """The gradient, in memory of its own."""
        parts = tuple((codes.clone(), found(place)) for codes, place in self.parts)
        return BFPValue.of_parts(parts, tuple(map(found, self.bounds)))


@dataclass(frozen=True)
class _PlacedUpdate:
    """A change of running state, and where a routine leaves the arrays and numbers in it."""

    update: ShardUpdate
    arrays: dict[str, np.ndarray[Any, Any]]
    numbers: dict[str, Placed]

    def value(self) -> ShardUpdate:
        """The change, in memory of its own."""
        arrays = {name: array.copy() for name, array in self.arrays.items()}
        numbers = {name: found(place) for name, place in self.numbers.items()}
        return replace(self.update, **arrays, **numbers)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class RecordedPasses:
    """A routine of a graph's passes, and where its operands and results lie.

    states: addresses of codes, delayed updates and exponents of the parameters
    output: the value that it gives, which tells all but the numbers; sums: where these are
    grad:   of the output; None: there is no backward pass
    updates: of running state
    draws:  numbers of the masks of dropouts, one after the other
    """

    routine: Routine
    states: list[int]
    x: PlacedPart
    output: BFPValue
    result: PlacedPart
    largest: Placed
    grad: PlacedPart | None
    gradients: list[PlacedGradient | None]
    updates: list[_PlacedUpdate]
    draws: list[Place]

    def fits(self, x: Any, weights: Sequence[Weight]) -> bool:
        """Whether operands lie where the routine reads them, or can be put there."""
        return addresses(state_of(weights)) == self.states

    def forward(self, x: BFPValue | Tensor, draws: Sequence[Drawn]) -> BFPValue | None:
        """The output in memory of its own; None where the routine could not end."""
        if not put(part_of(x), self.x):
            return None
        for cell, drawn in zip(self.draws, numbers_of(draws), strict=True):
            cell.value = drawn
        if not self.routine.run(FORWARD):
            return None
        for update in self.updates:
            defer(update.value())
        codes, exponent = self.result
        return _like(self.output, codes.clone(), found(exponent), found(self.largest))

    def backward(self, grad: BFPValue) -> list[BFPValue | None] | None:
        """The gradients in memory of their own; None where the routine could not end."""
        if self.grad is None or len(grad.parts) != 1:
            return None
        if not put(grad.parts[0], self.grad) or not self.routine.run(BACKWARD):
            return None
        return [None if g is None else g.value() for g in self.gradients]


def _like(output: BFPValue, codes: Tensor, exponent: Exponent, largest: int) -> BFPValue:
    """A value as `output`, of other codes; of sums, which stay, their largest magnitude."""
    if output.sums is None:
        return output.with_part(codes, exponent)
    known = output.sums
    sums = Sums(lambda: (codes, largest, exponent), known.bits, known.by_rows, codes.device)
    sums.where = output.sums.where
    sums.keep()
    return output.with_sums(sums)


def part_of(x: BFPValue | Tensor) -> Part:
    """The codes of an input and their exponent; indices are as they are, and have none."""
    return (x, 0) if isinstance(x, Tensor) else x.parts[0]


# --- recording --------------------------------------------------------------------------------


def record(
    graph: TrainingGraph,
    x: Any,
    weights: Sequence[Weight],
    grad: BFPValue | None,
    draws: Sequence[Drawn] = (),
) -> RecordedPasses:
    """The routine of a graph's forward pass, and with a gradient of its backward pass; proved.

    draws: the masks of its dropouts. Raises NotRecordableError where there can be none.
    """
    _check_operands(x, weights, grad)
    recorder, results = kernels.recorder(), list[Tensor]()

    def given_part(part: Part) -> Part:
        """An operand that the routine's caller writes."""
        codes, exponent = part[0].clone(), part[1]
        results.append(recorder.made(codes))
        if isinstance(exponent, Tensor):
            results.append(recorder.made(exponent := exponent.clone()))
        return codes, recorder.input_cell(exponent) if isinstance(exponent, int) else exponent

    own = given_part(part_of(x))
    value = own[0] if isinstance(x, Tensor) else x.with_part(*own)
    cells = [[recorder.input_cell(number) for number in numbers_of([drawn])] for drawn in draws]
    drawn = with_masks(graph, [((a, b), (c, d, e)) for a, b, c, d, e in cells])
    with kernels.recording(recorder, FORWARD), deferred_updates() as updates:
        states = [as_recorded(w, recorder) for w in weights]
        output, kept = forward(drawn, value, states, grad is not None)
        sums = None if output.sums is None else output.sums.exact()
    result, top = (output.parts[0], None) if sums is None else ((sums[0], sums[2]), sums[1])
    results += [torch.from_numpy(v) for update in updates for v in arrays(update).values()]
    results += [v for v in result if isinstance(v, Tensor)]
    given, gradients = None, list[BFPValue | None]()
    if grad is not None:
        given = given_part(grad.parts[0])
        with kernels.recording(recorder, BACKWARD):
            gradients = backward(drawn, kept, BFPValue(*given))
        results += [codes for g in gradients if g is not None for codes, _ in g.parts]
    routine = recorder.finish(*results)

    def placed_part(part: Any) -> PlacedPart:
        return routine.tensor(part[0]), placed(part[1], routine)

    passes = RecordedPasses(
        routine,
        addresses(state_of(weights)),
        placed_part(own),
        output,
        placed_part(result),
        placed(top, routine),
        None if given is None else placed_part(given),
        [None if g is None else PlacedGradient.of(g, routine) for g in gradients],
        [_placed_update(update, routine) for update in updates],
        [Place.from_address(number.place) for own in cells for number in own],
    )
    _prove(passes, graph, x, weights, grad, draws)
    return passes


def _tensor_of(place: Placed) -> Tensor:
    """The number at a place, int64 []."""
    assert isinstance(place, Place)
    return torch.frombuffer(place, dtype=torch.int64).view(())


def arrays(update: ShardUpdate) -> dict[str, Any]:
    """The fields of an update that are arrays."""
    return {name: v for name, v in vars(update).items() if isinstance(v, np.ndarray)}


def _placed_update(update: ShardUpdate, routine: Routine) -> _PlacedUpdate:
    own = {name: routine.tensor(torch.from_numpy(v)).numpy() for name, v in arrays(update).items()}
    numbers = {
        n: placed(v, routine) for n, v in vars(update).items() if isinstance(v, RoutineNumber)
    }
    return _PlacedUpdate(update, own, numbers)


def state_of(weights: Sequence[Weight]) -> list[Tensor]:
    """The tensors of weights."""
    return [t for w in weights for t in w.tensors]


def placed(v: Any, routine: Routine) -> Placed:
    """Where a routine leaves a number or a tensor that was recorded; all else as it is."""
    if isinstance(v, RoutineNumber):
        return Place.from_address(v.place)
    return routine.tensor(v) if isinstance(v, Tensor) else v


def found(v: Placed) -> Any:
    """The number or tensor at a place, in memory of its own."""
    if isinstance(v, Place):
        return v.value
    return v.clone() if isinstance(v, Tensor) else v


def put(part: Any, place: PlacedPart) -> bool:
    """Write an operand where a routine reads it; whether it is of the recorded kind."""
    (codes, exponent), (room, own) = part, place
    if codes.dtype is not room.dtype or isinstance(exponent, int) is not isinstance(own, Place):
        return False
    room.copy_(codes)
    if isinstance(own, Place):
        own.value = exponent
    elif isinstance(own, Tensor):
        own.copy_(exponent)
    return True


def masks_of(graph: TrainingGraph) -> list[Mask]:
    """The masks of a graph's dropouts, in order."""
    return [node.arguments[MASK] for node in graph.instructions if node.operation is DROPOUT]


def with_masks(graph: TrainingGraph, draws: Sequence[Drawn]) -> TrainingGraph:
    """A graph whose dropouts have these masks."""
    if not draws:
        return graph
    given, steps = iter(draws), list[TrainingNode]()
    for node in graph.instructions:
        if node.operation is DROPOUT:
            arguments = list(node.arguments)
            drawn = next(given)
            arguments[MASK] = lambda drawn=drawn: drawn
            node = replace(node, arguments=tuple(arguments))
        steps.append(node)
    return replace(graph, instructions=tuple(steps))


def numbers_of(draws: Sequence[Drawn]) -> list[int]:
    """The five numbers of every mask, one after the other."""
    return [number for key, place in draws for number in (*key, *place)]


def _check_operands(x: Any, weights: Sequence[Weight], grad: BFPValue | None) -> None:
    values = [*weights, *([] if grad is None else [grad])]
    if isinstance(x, BFPValue):
        values.append(x)
    elif x.dtype is not torch.int64 or x.device.type != "cpu":
        raise NotRecordableError(f"the input is of {x.dtype} on {x.device}")
    check_values(*values)


def check_values(*values: BFPValue) -> None:
    """NotRecordableError for values whose numbers do not lie in memory as one part."""
    for value in values:
        if value.shifts is not None:
            raise NotRecordableError("channels have shifts")
        if value.sums is not None or len(value.parts) != 1 or value.allowed is not None:
            raise NotRecordableError("an operand is masked, or has several parts")
        if not value.device.type == "cpu":
            raise NotRecordableError(f"tensors are on {value.device}")


def as_recorded(weight: Weight, recorder: RoutineRecorder) -> Weight:
    """A weight whose exponent is read where it lies, in a part that is recorded."""
    if weight.cell.dim():
        return WeightAt(weight, exponents_of(weight.cell, weight.dim()))
    return WeightAt(weight, recorder.cell_at(address_of(weight.cell)))


# --- proof ------------------------------------------------------------------------------------


def _prove(
    passes: RecordedPasses,
    graph: TrainingGraph,
    x: BFPValue | Tensor,
    weights: Sequence[Weight],
    grad: BFPValue | None,
    draws: Sequence[Drawn],
) -> None:
    """Run the routine beside a walk, on these operands and on others.

    Others have other codes, and every exponent is another: a number that was read by Python while
    the routine was recorded would show. Raises NotRecordableError where a bit differs.
    """
    codes, exponent = _other(part_of(x), 2)
    other_x = codes if isinstance(x, Tensor) else x.with_part(codes, exponent)
    others = other_x, None if grad is None else _other_grad(grad)
    for other, (own, g) in ((False, (x, grad)), (True, others)):
        with moved(weights) if other else contextlib.nullcontext(weights) as states:
            _compare(passes, graph, own, states, g, _other_draws(draws) if other else draws)


def _compare(
    passes: RecordedPasses,
    graph: TrainingGraph,
    x: BFPValue | Tensor,
    weights: Sequence[Weight],
    grad: BFPValue | None,
    draws: Sequence[Drawn],
) -> None:
    """One run after one walk, which makes the tables that it has to find."""
    graph = with_masks(graph, draws)
    try:
        with deferred_updates() as updates:
            output, kept = forward(graph, x, weights, grad is not None)
        expected = [] if grad is None else backward(graph, kept, grad)
    except RangeError:
        raise NotRecordableError("a proof leaves the range of exponents") from None
    with deferred_updates() as own_updates:
        found = passes.forward(x, draws)
    if found is None or not same_parts(found.resolved(), output.resolved()):
        raise NotRecordableError("the routine gives another output than the walk")
    if [u.to_bytes() for u in own_updates] != [u.to_bytes() for u in updates]:
        raise NotRecordableError("the routine gives other running state than the walk")
    own = [] if grad is None else passes.backward(grad)
    if own is None or not all(map(is_same, own, expected)):
        raise NotRecordableError("the routine gives other gradients than the walk")


def is_same(a: BFPValue | None, b: BFPValue | None) -> bool:
    """Whether two gradients have the same parts and bounds."""
    if a is None or b is None:
        return a is b
    return a.bounds == b.bounds and all(map(same_parts, a.parts, b.parts))


def _other(part: Any, by: int) -> Any:
    """The same codes, each in another place, at an exponent that is `by` more."""
    codes, exponent = part
    if isinstance(exponent, Tensor):
        exponent = exponent.flatten().roll(1).view(exponent.shape)
    return torch.empty_like(codes).copy_(codes.flatten().roll(1).view(codes.shape)), exponent + by


def _other_draws(draws: Sequence[Drawn]) -> list[Drawn]:
    return [((a ^ 1, b), (c + 1, d + 1, e + 1)) for (a, b), (c, d, e) in draws]


def _other_grad(grad: BFPValue) -> BFPValue:
    return BFPValue(*_other(grad.parts[0], -3))


@contextlib.contextmanager
def moved(weights: Sequence[Weight]) -> Iterator[list[Weight]]:
    """Weights whose exponents are one more or less inside a with block, in memory, too."""
    steps = [1 - 2 * (place % 2) for place in range(len(weights))]
    cells = [w.cell.numpy() for w in weights]
    for cell, step in zip(cells, steps, strict=True):
        cell += step
    try:
        yield [WeightAt(w, w.parts[0][1] + s) for w, s in zip(weights, steps, strict=True)]
    finally:
        for cell, step in zip(cells, steps, strict=True):
            cell -= step
