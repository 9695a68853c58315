"""A captured step between torch's graphs and plain data: read into facts, written by a plan.

Both graphs hold ATen operators in eager's order. What is written differs from what was read in two
ways: the forward graph returns what a plan keeps, and the backward graph runs forward nodes again.
Views stand where they are first read, and a graph's code lets go of every value after its last
reader, arguments included.

- A random operator that runs again hands over the generator's state before it, and is replayed.
- Batch-norm runs again without running statistics. Its new ones are part of the first time alone.
- What reads an input that the forward pass changes does not run again.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput

from samebits.recompute.capture.costs import Prices
from samebits.recompute.capture.kernels import replayed, training, with_state
from samebits.recompute.plan.facts import StepFacts, StepNode
from samebits.recompute.plan.simulation import Outcome

STATE = torch.empty(5056, dtype=torch.uint8, device="meta")  # of the CPU's generator
STATISTICS = torch.ops.aten._native_batch_norm_legit_functional.default
WITHOUT_STATISTICS = torch.ops.aten._native_batch_norm_legit.no_stats
RESULTS = 3  # of batch-norm, before its new running statistics


@dataclass
class Captured:
    """Facts, and the graphs that they were read from.

    forward, backward: the graph's node of every node of the facts
    saved:  the forward graph's node that an input of the backward graph stands for
    """

    facts: StepFacts
    graphs: tuple[fx.GraphModule, fx.GraphModule]
    forward: list[fx.Node]
    backward: list[fx.Node]
    storages: dict[fx.Node, tuple[int, ...]]
    saved: dict[fx.Node, fx.Node]
    returned: list[Any]  # to the caller


def changed_inputs(joint: fx.GraphModule) -> frozenset[int]:
    """Positions of the inputs that a joint graph's forward pass changes, such as statistics."""
    described = _output(joint).meta["desc"]
    changed = {d.mutated_input for d in described if isinstance(d, InputMutationAOTOutput)}
    inputs = [n for n in joint.graph.nodes if n.op == "placeholder"]
    return frozenset(at for at, n in enumerate(inputs) if n.meta["desc"] in changed)


def capture(
    graphs: tuple[fx.GraphModule, fx.GraphModule],
    outputs: int,
    changed: frozenset[int],
    prices: Prices,
) -> Captured:
    """The facts of a forward and a backward graph as AOTAutograd's default partition makes them.

    outputs: number of results of the forward graph that go to the caller
    changed: positions of inputs that the forward pass changes
    """
    return _Reader(graphs, outputs, prices).read(changed)


def _output(module: fx.GraphModule) -> fx.Node:
    node: fx.Node = next(iter(reversed(module.graph.nodes)))
    return node


def _tensors(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


@dataclass
class _Reader:
    graphs: tuple[fx.GraphModule, fx.GraphModule]
    outputs: int
    prices: Prices
    sizes: list[int] = field(default_factory=list)
    number: dict[int, int] = field(default_factory=dict)  # storages by identity
    storages: dict[fx.Node, tuple[int, ...]] = field(default_factory=dict)

    def read(self, changed: frozenset[int]) -> Captured:
        """All facts."""
        forward, backward = self.graphs
        inputs = [n for n in forward.graph.nodes if n.op in ("placeholder", "get_attr")]
        outside = {s for n in inputs for s in self._of(n)}
        moved = {s for at, n in enumerate(inputs) if at in changed for s in self._of(n)}
        moved |= {
            s
            for n in forward.graph.nodes
            if _changes(n)
            for a in n.all_input_nodes[:1]
            for s in self.storages.get(a, ())
        }
        made = [(n, self._node(n, outside)) for n in forward.graph.nodes if n.op == CALL]
        first = [(n, node) for n, node in made if node is not None]
        once: set[int] = set()
        for n, node in first:
            read = {s for a in n.all_input_nodes for s in self.storages[a]}
            if n.target is STATISTICS:
                once.update(node.makes[RESULTS:])
            elif read & moved or _changes(n):
                once.update(node.makes)
        results = list(_output(forward).args[0])  # type: ignore[arg-type]
        names = {n.name: n for n in results[self.outputs :] if isinstance(n, fx.Node)}
        saved: dict[fx.Node, fx.Node] = {}
        for n in backward.graph.nodes:
            if n.op == "placeholder" and n.name in names:
                saved[n] = names[n.name]
                self.storages[n] = self.storages[names[n.name]]
            elif n.op == "get_attr":
                outside.update(self._of(n))
        made = [(n, self._node(n, outside)) for n in backward.graph.nodes if n not in saved]
        second = [(n, node) for n, node in made if node is not None]
        second.append((_output(backward), self._accumulation(_output(backward))))
        given, gradients = results[: self.outputs], list(_output(backward).args[0])  # type: ignore[arg-type]
        own = [n for n in backward.graph.nodes if n.op == "placeholder" and n not in saved]
        beside: dict[Any, set[int]] = {}  # by autograd's number of an operator and its gradients
        for n, node in second:
            beside.setdefault(n.meta.get("seq_nr"), set()).update(node.reads)
        numbers = [n.meta.get("seq_nr") for n, _ in first]
        facts = StepFacts(
            tuple(self.sizes),
            tuple(node for _, node in first),
            tuple(node for _, node in second),
            frozenset(once),
            frozenset(self._all(given)) - outside,
            frozenset(self._all((*gradients, *own))) - outside,
            whole=True,
            beside={
                at: frozenset(beside.get(number, ()))
                for at, number in enumerate(numbers)
                if number is not None
            },
        )
        return Captured(
            facts, self.graphs, [n for n, _ in first], [n for n, _ in second], self.storages, saved,
            given,
        )  # fmt: skip

    def _accumulation(self, output: fx.Node) -> StepNode:
        """The end of a backward pass: of gradients in one storage, all but one are copied."""
        found = [s for n in output.args[0] if isinstance(n, fx.Node) for s in self.storages[n]]  # type: ignore[union-attr]
        copies = sum(self.sizes[s] for s in found) - sum(self.sizes[s] for s in set(found))
        return StepNode("gradients", "accumulation", (), (), 0, copies)

    def _all(self, nodes: Any) -> Iterator[int]:
        return (s for n in nodes if isinstance(n, fx.Node) for s in self.storages[n])

    def _of(self, node: fx.Node) -> tuple[int, ...]:
        """The storages of a node's results, numbered as they appear."""
        if node in self.storages:
            return self.storages[node]
        value = node.meta.get("val")
        if node.target is operator.getitem:
            source, place = _part_of(node)
            value = source.meta["val"][place]
        found = []
        for t in _tensors(value):
            if isinstance(t, Tensor):
                storage = t.untyped_storage()
                if storage._cdata not in self.number:
                    self.number[storage._cdata] = len(self.sizes)
                    self.sizes.append(storage.nbytes())
                found.append(self.number[storage._cdata])
        self.storages[node] = tuple(found)
        return self.storages[node]

    def _node(self, node: fx.Node, outside: set[int]) -> StepNode | None:
        """The facts of a call, or of a gradient that arrives; None for a view, for one of several
        results, and for what is no call."""
        known = len(self.sizes)
        own = self._of(node)
        if node.target is operator.getitem or node.op in ("get_attr", "output"):
            return None
        makes = tuple(dict.fromkeys(s for s in own if s >= known))
        if node.op == "placeholder":
            return StepNode(node.name, "gradient", (), makes)
        if not makes and own and not _changes(node):
            return None
        for s, size in zip(own, self.prices.sizes(node), strict=False):
            self.sizes[s] = size if s in makes else self.sizes[s]
        reads = dict.fromkeys(s for a in node.all_input_nodes for s in self.storages[a])
        cost, temporary = self.prices(node)
        return StepNode(
            node.name,
            str(getattr(node.target, "__name__", node.target)).partition(".")[0],
            tuple(s for s in reads if s not in outside),
            makes,
            cost,
            temporary,
            *[STATE.numel() if _random(node) else 0] * 2,
        )


CALL = "call_function"


def _part_of(node: fx.Node) -> tuple[fx.Node, int]:
    """The call that one of several results is of, and its place there."""
    source, place = node.args
    assert isinstance(source, fx.Node)
    assert isinstance(place, int)
    return source, place


def _changes(node: fx.Node) -> bool:
    """Whether a node writes into what it is given."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


# --- writing --------------------------------------------------------------------------------------


def write(step: Captured, plan: Outcome) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward graph of a plan."""
    return _Writer(step, plan).write()


class _Writer:
    """The backward graph under way.

    wanted: nodes of the forward graph whose results the backward graph is given
    """

    def __init__(self, step: Captured, plan: Outcome) -> None:
        self.step, self.plan, self.graph = step, plan, fx.Graph()
        self.here: dict[fx.Node, fx.Node] = {}
        self.wanted: dict[fx.Node, fx.Node] = {}
        self.states: dict[fx.Node, fx.Node] = {}
        self.again = {step.forward[at] for at in plan.again}

    def write(self) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Both graphs: inputs are made as they are found to be wanted, then sorted."""
        forward, backward = self.step.graphs
        root = self.graph.create_node("placeholder", "start")  # all inputs stand before it
        self.root = root
        own = [
            n for n in backward.graph.nodes if n.op == "placeholder" and n not in self.step.saved
        ]
        arriving = [self._input(n, n.name) for n in own]
        for at, second in self.plan.order:
            node = self.step.forward[at] if second else self.step.backward[at]
            if node.op == CALL:
                self._emit(node, second)
        results = fx.map_arg(_output(backward).args[0], self._find)
        self.graph.output(results).meta = dict(_output(backward).meta)
        for given in (*self.wanted.values(), *self.states.values(), *arriving):
            root.prepend(given)
        self.graph.erase_node(root)
        self.graph.lint()
        self._hand_over(forward)
        return forward, fx.GraphModule(backward, self.graph)

    def _input(self, node: fx.Node, name: str) -> fx.Node:
        """An input of the backward graph."""
        if node not in self.here:
            with self.graph.inserting_before(self.root):
                self.here[node] = self.graph.placeholder(name)
            self.here[node].meta = dict(node.meta)
        return self.here[node]

    def _find(self, node: fx.Node) -> fx.Node:
        """Find or make the twin of a node of either graph."""
        node = self.step.saved.get(node, node)
        if node in self.here:
            return self.here[node]
        if node.graph is self.step.graphs[0].graph:
            own = self.step.storages[node]
            kept = len(own) == 1 and own[0] in self.plan.kept
            if node.op != CALL or (kept and isinstance(node.meta["val"], Tensor)):
                self.wanted[node] = self._input(node, f"kept_{node.name}")
                return self.here[node]
        self._emit(node, False)
        return self.here[node]

    def _emit(self, node: fx.Node, second: bool) -> None:
        """Add a call, and each of its results if it has several."""
        args: Any = node.args
        kwargs: Any = node.kwargs
        target: Any = node.target
        if node.op == "get_attr":
            new = self.graph.get_attr(target)
        elif second and node.target is STATISTICS:
            x, weight, bias, _, _, *rest = args
            args = fx.map_arg((x, weight, bias, *rest), self._find)
            new = self.graph.call_function(WITHOUT_STATISTICS, args)
        else:
            args, kwargs = fx.map_arg((args, kwargs), self._find)
            if second and _random(node):
                target, args = replayed, (target, self._state(node), *args)
            new = self.graph.call_function(target, args, kwargs)
        new.meta = dict(node.meta)
        self.here[node] = new
        for part in node.users:
            if part.target is operator.getitem:
                place = _part_of(part)[1]
                kept = second and self.plan.kept.issuperset(self.step.storages[part])
                if not kept and not (second and node.target is STATISTICS and place >= RESULTS):
                    self.here[part] = self.graph.call_function(operator.getitem, (new, place))
                    self.here[part].meta = dict(part.meta)

    def _state(self, node: fx.Node) -> fx.Node:
        """The generator's state before a forward node."""
        with self.graph.inserting_before(self.root):
            self.states[node] = self.graph.placeholder(f"state_{node.name}")
        self.states[node].meta["val"] = STATE
        return self.states[node]

    def _hand_over(self, forward: fx.GraphModule) -> None:
        """Make the forward graph return what is wanted of it."""
        graph, given, states = forward.graph, list(self.step.returned), []
        for node in self.states:
            many = isinstance(node.meta["val"], list | tuple)
            with graph.inserting_after(node):
                place = len(node.meta["val"]) if many else 1
                state = graph.call_function(operator.getitem, (node, place))
                state.meta["val"] = STATE
            if not many:
                with graph.inserting_after(node):
                    only = graph.call_function(operator.getitem, (node, 0))
                    only.meta = dict(node.meta)
                for user in [user for user in node.users if user not in (only, state)]:
                    user.replace_input_with(node, only)
                given = [only if g is node else g for g in given]
                self.wanted = {only if n is node else n: v for n, v in self.wanted.items()}
            operation: Any = node.target
            node.args, node.target = (operation, *node.args), with_state
            states.append(state)
        _output(forward).args = ((*given, *self.wanted, *states),)
        graph.lint()
        forward.recompile()


def boxed(module: fx.GraphModule, _: Any) -> Callable[..., Any]:
    """A graph as one function, which lets go of its arguments and of what was read last."""
    module.graph.set_codegen(fx.graph._BoxedCodeGen())
    module.recompile()
    call = module.forward
    recurrent = any("mkldnn_rnn_layer.default" in str(n.target) for n in module.graph.nodes)

    def run(arguments: list[Any]) -> Any:
        with training() if recurrent else contextlib.nullcontext():
            return call(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
