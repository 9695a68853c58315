"""A lower bound of every plan of a tape within a budget: the relaxation of captured steps.

A tape's facts become a step's: a value is a storage, and so is what a sub-layer saves besides where
that goes with its value. All else that is in memory at an action (gradients, temporaries, masks
that are always kept) is the same in every plan, so it is taken from the simulation of the plan that
drops nothing, and counts as a temporary.
"""

from __future__ import annotations

from collections.abc import Sequence

from samebits.recompute.capture.facts import StepFacts, StepNode
from samebits.recompute.capture.relaxation import Relaxation
from samebits.recompute.capture.simulation import simulate
from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.plan.schedule import Simulation, compile_schedule

NODES = 200  # of the solver, for each solution: a plan is the same on every machine
ROUNDS = 12  # of them
LARGEST = 100  # sub-layers of a network that is bounded so


def relaxed_bound(network: PassNetwork, costs: Sequence[int], budget: int) -> int:
    """Picoseconds of computing again below which no plan within the budget goes; 0 if unknown."""
    facts = step_facts(network, costs)
    if len(facts.forward) > LARGEST:
        return 0
    relaxation, bound = Relaxation(facts, node_limit=NODES), 0
    for _ in range(ROUNDS):
        found = relaxation.solve(budget)
        if found is None:
            break
        bound = max(bound, found.bound)
        outcome = simulate(facts, found.kept)
        if outcome.peak <= budget or not relaxation.tighten(outcome):
            break
    return bound


def step_facts(network: PassNetwork, costs: Sequence[int]) -> StepFacts:
    """The storages and nodes of a tape: storage i is value i, behind them what is saved besides."""
    layers, count, choices = network.layers, len(network.layers), set(network.choices())
    besides = {i for i in choices if layers[i].differentiable and not layers[i].light}
    sizes = [layer.size if i in choices else 0 for i, layer in enumerate(layers)]
    sizes += [layer.extra if i in besides else 0 for i, layer in enumerate(layers)]
    forward: list[StepNode] = []
    backward: list[StepNode] = []
    state, live = Simulation(network, set()), set[int]()
    for action in compile_schedule(network, ()):
        kind, i = action
        top = max(state.step(action), state.level)
        if kind == "free":
            live.discard(i)
            continue
        needs = {"forward": layers[i].inputs, "loss": (i,)}.get(kind, layers[i].needs)
        reads = [v for v in network.roots(needs) if v]
        saved = [count + i] if i in besides and kind != "loss" else []
        makes: list[int] = []
        if kind == "forward":
            makes = [] if layers[i].alias is not None else [i, *saved]
            live.update(makes)
        elif kind == "backward":
            reads += saved
        rest = top - sum(sizes[s] for s in live)
        if kind == "backward":
            live.difference_update(saved)
        cost = costs[i] if kind == "forward" else 0
        node = StepNode(layers[i].name, layers[i].kind, tuple(reads), tuple(makes), cost, rest)
        (backward if kind == "backward" else forward).append(node)
    owned = {i for i, layer in enumerate(layers) if i and layer.alias is None}
    once, none = frozenset(owned - choices), frozenset[int]()
    return StepFacts(tuple(sizes), tuple(forward), tuple(backward), once, none, none)
