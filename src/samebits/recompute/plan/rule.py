"""The local rule: a value is computed again where that is faster than loading it.

Value i is dropped when load(input) + time(i) < load(output). This is the time that the choice
adds to the backward pass, on either side, and nothing else of the step changes with it:

- time(i) is what computing i once takes anywhere (`cost.times`), its start and the traffic of what
  it touches included: the total of a plan counts the same;
- the output, if stored, is loaded from the nearest tier that holds everything written between its
  forward and its backward pass, since what is written later displaces it from nearer ones;
- an input that a backward pass close by (that of i, or one that reads value i) reads anyway is
  free;
- an input that is dropped itself costs what it takes to compute it again, or nothing if that is
  done for its own sake;
- what a sub-layer saves besides its value, where that goes with it, is loaded with it;
- where no backward pass reads either, nothing is loaded, so nothing is stored.

Nodes are decided in the order of execution, as what an input costs depends on decisions about
values before.

Example: three values of 100 bytes and a near tier of 150 with one byte a picosecond, a far one with
a tenth of that. The first value's output lives in the far tier, as 300 bytes are written before its
backward pass: loading it takes 1000 ps. Its input is read by its own backward pass, and computing
it takes 600 ps, so it is computed again: 0 + 600 < 1000. The third lives in the near tier: loading
it takes 100 ps, computing it again no less than its traffic, so it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from samebits.recompute.plan.cost import Device, load
from samebits.recompute.plan.facts import StepFacts

UNREAD = "no backward pass reads it"
CHEAPER = "computing it again is cheaper than loading it"
DEARER = "loading it is cheaper than computing it again"


@dataclass(frozen=True)
class Sides:
    """The decision about what one forward node makes, and the times that it compares."""

    stored: bool
    tier: str
    fetch: int
    compute: int
    load: int
    reason: str


def local_rule(
    facts: StepFacts, device: Device, sizes: Sequence[int] | None = None
) -> dict[int, Sides]:
    """The decision for every forward node that makes what may be computed again.

    sizes: bytes of every storage, where some that count nothing for the memory are loaded
    """
    return _Rule(facts, device, facts.sizes if sizes is None else sizes).decisions()


@dataclass
class _Rule:
    """Nodes decided so far.

    produce: picoseconds to have what a node makes again, where it is dropped
    """

    facts: StepFacts
    device: Device
    sizes: Sequence[int]
    produce: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.users: dict[int, list[int]] = {}
        for at, node in enumerate(self.facts.backward):
            for s in node.reads:
                self.users.setdefault(s, []).append(at)
        written, self.distance = 0, dict[int, int]()
        for at in range(len(self.facts.forward) - 1, -1, -1):
            makes = self.facts.forward[at].makes
            written += sum(self.sizes[s] for s in makes if s in self.users or not at)
            self.distance[at] = max(written, sum(self.sizes[s] for s in makes))

    def decisions(self) -> dict[int, Sides]:
        found = {}
        for at, node in enumerate(self.facts.forward):
            if open_ := [s for s in node.makes if s not in self.facts.once]:
                found[at] = self._decide(at, open_)
        return found

    def _decide(self, at: int, makes: Sequence[int]) -> Sides:
        node, read = self.facts.forward[at], [s for s in makes if s in self.users]
        backward = {t for s in read for t in self.users[s]}
        near = {s for t in backward for s in self.facts.backward[t].reads}
        near |= self.facts.beside.get(at, frozenset())
        fetch = sum(self._fetch(s) for s in node.reads if s not in near)
        far = self.device.tier(self.distance[at])
        loaded = load(far, sum(self.sizes[s] for s in read))
        if not read or fetch + node.cost < loaded:
            self.produce[at] = fetch + node.cost
            tier = self.device.tier(sum(self.sizes[s] for s in makes))
            reason = CHEAPER if read else UNREAD
            return Sides(False, tier.name, fetch, node.cost, loaded, reason)
        return Sides(True, far.name, fetch, node.cost, loaded, DEARER)

    def _fetch(self, s: int) -> int:
        """Picoseconds to have an input: to load it, or to compute it again unless that is done
        anyway."""
        maker = self.facts.maker[s]
        if maker in self.produce:
            anyway = any(made in self.users for made in self.facts.forward[maker].makes)
            return 0 if anyway else self.produce[maker]
        return load(self.device.tier(self.distance[maker]), self.sizes[s])
