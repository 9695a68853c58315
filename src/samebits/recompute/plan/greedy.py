"""Choices that are found without a search: regular ones, the cheapest per byte, and repairs.

They are what a large network falls back on, and what shows a search which plans are not worth its
steps. Every function here simulates a number of schedules that its arguments fix, so the same call
takes the same choice on every machine.

Example: values of 10, 20 and 10 bytes that cost 1, 4 and 5 to compute again. By worth they are
dropped in this order, as a byte costs 0.1, 0.2 and 0.5: the first alone, if its peak fits, else the
first two, else all. Had the first two been dropped where the second alone would do, `restore` would
store the first again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.plan.schedule import Action, compile_schedule, peak

TRIALS = 48  # schedules that `restore` simulates, at most


def cost_of(network: PassNetwork, costs: Sequence[int], dropped: Sequence[int]) -> int:
    """Cost of a choice: that of what is computed again, as not all that is dropped is needed."""
    return sum(costs[i] for i in _again(compile_schedule(network, dropped)))


def _again(schedule: Sequence[Action]) -> list[int]:
    return [i for kind, i in schedule if kind == "recompute"]


def _worths(network: PassNetwork, costs: Sequence[int]) -> dict[int, int]:
    """The cost per byte, in 2**-64, of having each value that may be dropped again.

    What no backward pass reads is not worth its memory, so the cost includes that of such inputs.
    """
    layers = network.layers
    needed = {v for x in layers if x.differentiable for v in network.roots(x.needs)}
    whole = list(costs)
    for i, layer in enumerate(layers):
        whole[i] += sum(whole[v] for v in network.roots(layer.inputs) if v and v not in needed)
    return {v: (whole[v] << 64) // layers[v].size for v in network.choices()}


def regular(network: PassNetwork) -> Iterator[tuple[int, ...]]:
    """Choices that keep nothing, and every second value, every third and so on.

    On a chain of n equal sub-layers one kept value in sqrt(n) is nearly the best (Chen et al.
    2016).
    """
    choices = network.choices()
    yield choices
    for distance in (2, 3, 4, 6, 8, 12, 16, 24, 32):
        if distance < len(choices):
            yield tuple(v for at, v in enumerate(choices) if at % distance)


def by_worth(network: PassNetwork, costs: Sequence[int], budget: int) -> tuple[int, ...] | None:
    """The values that cost the least per byte, so many that the peak fits; None if all do not.

    The number is bisected. More dropped values mean a lower peak nearly always; where they do not,
    the result drops more than it has to.
    """
    worth = _worths(network, costs)
    order = sorted(worth, key=lambda v: (worth[v], v))

    def first(count: int) -> tuple[int, ...]:
        return tuple(sorted(order[:count]))

    def fits(count: int) -> bool:
        return peak(network, compile_schedule(network, first(count))) <= budget

    low, high = -1, len(order)  # too few, enough
    if not fits(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return first(high)


def restore(
    network: PassNetwork,
    costs: Sequence[int],
    dropped: tuple[int, ...],
    budget: int,
    expired: Callable[[], bool],
) -> tuple[int, ...]:
    """A choice that fits, with values stored again for which there is room.

    The dearest per byte first, in groups: a group that fits is stored and the next one is twice as
    large, one that does not is halved.
    """
    worth = _worths(network, costs)
    again = _again(compile_schedule(network, dropped))
    again.sort(key=lambda v: (-worth[v], v))
    at, size = 0, max(len(again) // 8, 1)
    for _ in range(TRIALS):
        if at >= len(again) or expired():
            break
        group = set(again[at : at + size])
        trial = tuple(v for v in dropped if v not in group)
        if peak(network, compile_schedule(network, trial)) <= budget:
            dropped, at, size = trial, at + size, size * 2
        elif size > 1:
            size //= 2
        else:
            at += 1
    return dropped
