"""How evenly a backward pass loads two units, of which one computes deferred weight gradients.

The pairing of a sub-layer's activation gradient with the weight gradient of the one after it
(samebits' design, section 8): both wait for nothing of each other, and what lies between two
products, such as batch-norm, runs beside a product too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from samebits.recompute.plan.cost import Device, gradient_times, times
from samebits.recompute.plan.schedule import Instruction, Network


class Balance(NamedTuple):
    """Of a backward pass: the work of both units, and how long it takes them, in one unit of time.

    Waiting for one another is the only loss that counts.
    """

    work: int
    span: int

    @property
    def load(self) -> float:
        """Share of the time in which a unit works: 1/2 for one unit alone, 1 for an even load."""
        return self.work / (2 * self.span) if self.span else 0.5


def balance(schedule: Sequence[Instruction], cost: Callable[[Instruction], int]) -> Balance:
    """The balance of a schedule's backward pass, its loss left out.

    Between the beginning of a weight gradient and its join the rest of the schedule goes on.
    """
    half = [action for action, _ in schedule].index("loss")
    work = span = chain = beside = 0
    for instruction in schedule[half + 1 :]:
        if instruction.action in ("weight gradient", "join"):
            span += max(chain, beside)
            chain = beside = 0
        if instruction.action == "weight gradient":
            beside = cost(instruction)
            work += beside
        elif instruction.action != "free":
            chain += cost(instruction)
            work += cost(instruction)
    return Balance(work, span + max(chain, beside))


def predicted_balance(
    network: Network, schedule: Sequence[Instruction], device: Device, numerics: str
) -> Balance:
    """In picoseconds on a device, each unit as fast as the device."""
    forward, gradients = times(network, device, numerics), gradient_times(network, device, numerics)

    def cost(instruction: Instruction) -> int:
        action, index = instruction
        if action == "recompute":
            return forward[index]
        if action == "backward":
            return sum(gradients[index])
        first, second = gradients[index]
        return {"activation gradient": first, "weight gradient": second}.get(action, 0)

    return balance(schedule, cost)
