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

Sub-layers are decided in the order of execution, as the second and third point need decisions about
values before.

Example: three values of 100 bytes and a near tier of 150 with one byte a picosecond, a far one with
a tenth of that. The first value's output lives in the far tier, as 300 bytes are written before its
backward pass: loading it takes 1000 ps. Its input is read by its own backward pass, and computing
it takes 600 ps, so it is computed again: 0 + 600 < 1000. The third lives in the near tier: loading
it takes 100 ps, computing it again no less than its traffic, so it is stored.
"""

from __future__ import annotations

from dataclasses import replace

from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.plan.cost import Device, load, times
from samebits.recompute.plan.plan import UNREAD, Decision


def local_rule(network: PassNetwork, device: Device, numerics: str) -> tuple[Decision, ...]:
    """The decision for every sub-layer, in the order of execution.

    numerics: bfp or float32, which decides the rate of the device
    """
    layers = network.layers
    choices = set(network.choices())
    users: dict[int, list[int]] = {v: [] for v in range(len(layers))}
    for t, layer in enumerate(layers):
        for v in network.roots(layer.needs) if layer.differentiable else ():
            users[v].append(t)
    written, distance = 0, [0] * len(layers)
    for v in range(len(layers) - 1, -1, -1):
        written += layers[v].size if users[v] or v == 0 else 0
        distance[v] = max(written, layers[v].size)
    compute = times(network, device, numerics)
    produce: dict[int, int] = {}  # picoseconds to have a dropped value again
    decisions = []
    for v, layer in enumerate(layers):
        base = Decision(layer.name, layer.kind, layer.shape, layer.size, True, "", 0, 0, 0, "")
        if v not in choices:
            reason = "the input" if v == 0 else "a view of another result"
            decisions.append(replace(base, reason=reason))
            continue
        stored_in = device.tier(distance[v])
        near = {x for t in (v, *users[v]) for x in network.roots(layers[t].needs)}
        fetch = sum(
            _fetch(network, device, x, distance[x], produce, users)
            for x in network.roots(layer.inputs)
            if x not in near
        )
        heavy = layer.extra if layer.differentiable and not layer.light else 0
        read = heavy + (layer.size if users[v] else 0)
        left, right = fetch + compute[v], load(stored_in, read)
        sides = replace(base, fetch_ps=fetch, recompute_ps=compute[v], load_ps=right)
        if not read:
            produce[v] = left
            tier = device.tier(layer.size).name
            decisions.append(replace(sides, stored=False, tier=tier, reason=UNREAD))
        elif left < right:
            produce[v] = left
            reason = "computing it again is cheaper than loading it"
            tier = device.tier(layer.size).name
            decisions.append(replace(sides, stored=False, tier=tier, reason=reason))
        else:
            reason = "loading it is cheaper than computing it again"
            decisions.append(replace(sides, tier=stored_in.name, reason=reason))
    return tuple(decisions)


def _fetch(
    network: PassNetwork,
    device: Device,
    value: int,
    distance: int,
    produce: dict[int, int],
    users: dict[int, list[int]],
) -> int:
    """Picoseconds to have an input: to load it, or to compute it again unless that is done anyway.

    distance: bytes written between the value's forward and its backward pass; produce: times of the
    values dropped so far; users: sub-layers whose backward pass reads a value
    """
    if value in produce:
        return 0 if users[value] else produce[value]
    return load(device.tier(distance), network.layers[value].size)
