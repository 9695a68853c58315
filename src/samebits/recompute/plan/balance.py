"""The load balance of a backward pass on two units, one of which computes weight gradients.

The chain rule makes each sub-layer's activation gradient wait for that of the one after it, but
nothing waits for a weight gradient before the optimizer does. So a weight gradient may run beside
the activation gradient of the sub-layer before: neither reads what the other writes, and no bit of
either changes. What lies between two products, such as batch-norm, runs beside a product too.

Example: three linear layers, activation gradients of 4 and weight gradients of 3 units of time; the
first layer's input needs no gradient (`A` and `W` for the two kinds of gradients).

    first unit:   A3 A3 A3 A3 | A2 A2 A2 A2 |
    second unit:              | W3 W3 W3    | W2 W2 W2 | W1 W1 W1

takes 4 + max(4, 3) + 3 + 3 = 14 units for 4 + 4 + 3 * 3 = 17 units of work: the load is
17 / (2 * 14) = 0.61, where one unit alone would take 17 and have 0.50.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.plan.cost import Device, gradient_times, times
from samebits.recompute.plan.schedule import Action


class Balance(NamedTuple):
    """The work of a backward pass, and the time in which two units do it, in one unit of time.

    The units lose time by waiting for each other, and by nothing else.
    """

    work: int
    span: int

    @property
    def load(self) -> float:
        """Share of the time in which a unit works: 1/2 for one unit alone, 1 for an even load."""
        return self.work / (2 * self.span) if self.span else 0.5


def balance(schedule: Sequence[Action], cost: Callable[[Action], int]) -> Balance:
    """The balance of a schedule's backward pass, whose actions take `cost`; the loss is left out.

    Between the beginning of a weight gradient and its join the rest of the schedule goes on, so
    this section takes as long as the longer of the two. The sections follow one another, because at
    most one weight gradient is under way.
    """
    half = [kind for kind, _ in schedule].index("loss")
    work = span = chain = beside = 0
    for action in schedule[half + 1 :]:
        if action.kind in ("weight gradient", "join"):
            span += max(chain, beside)
            chain = beside = 0
        if action.kind == "weight gradient":
            beside = cost(action)
            work += beside
        elif action.kind != "free":
            chain += cost(action)
            work += cost(action)
    return Balance(work, span + max(chain, beside))


def predicted_balance(network: PassNetwork, schedule: Sequence[Action], device: Device) -> Balance:
    """The balance in picoseconds, each of the two units being as fast as the device."""
    forward, gradients = times(network, device), gradient_times(network, device)

    def cost(action: Action) -> int:
        kind, index = action
        if kind == "recompute":
            return forward[index]
        if kind == "backward":
            return sum(gradients[index])
        first, second = gradients[index]
        return {"activation gradient": first, "weight gradient": second}.get(kind, 0)

    return balance(schedule, cost)
