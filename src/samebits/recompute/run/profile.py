"""The facts that planning needs about a model, measured in one pass with everything stored.

The pass is one that executes plans, so that what is measured is what will run."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from samebits.recompute.network import guards
from samebits.recompute.network.graph import GraphTape, trace_graph
from samebits.recompute.network.operations import step_operations
from samebits.recompute.network.sublayer import SEPARABLE, Loss, PassNetwork, SubLayer
from samebits.recompute.run.memory import recording, tensor_storages
from samebits.recompute.run.walk import GraphPass, state_size
from samebits.train.run.measure import storages
from samebits.train.value import same_parts

LossFunction = Callable[[Tensor], Tensor]


def survey(model: nn.Module, example: Tensor, loss: LossFunction) -> tuple[GraphTape, PassNetwork]:
    """The tape of a BFP model in training mode, parts of which may be frozen in evaluation mode,
    and the facts of its sub-layers.

    example: one input of the shard to plan for; its values matter little, its shape does
    loss:    computes the loss from the model's output

    The model, its gradients and torch's generators are left as they were. Raises UnsupportedError
    for a model that cannot be planned.
    """
    with untouched(model):
        in_training(model)
        tape = trace_graph(model, example)
    # Twice: the first pass makes what a process makes once (kernels, tables), which otherwise would
    # be counted as held by the pass that comes first.
    for _ in range(2):
        with untouched(model):
            in_training(model)
            network = _Survey(tape, example).run(loss)
    return tape, network


def blank(tape: GraphTape) -> PassNetwork:
    """A network of which nothing is known but names, for a pass that drops nothing."""
    return PassNetwork(tuple(SubLayer(call.name, "") for call in tape.calls), tape.output)


def in_training(model: nn.Module) -> None:
    """Set training mode, unless the model is in it and parts of it are frozen on purpose."""
    if not model.training:
        model.train()


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restore buffers, gradients, modes, attributes of modules and generators afterwards."""
    restore = guards.keep(model)
    modes = [(m, m.training) for m in model.modules()]
    buffers = [(b, b.clone()) for b in model.buffers()]
    gradients = [(p, p.grad) for p in model.parameters()]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    for p, _ in gradients:
        p.grad = None
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        restore()
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for parameter, gradient in gradients:
            parameter.grad = gradient


class _Survey:
    """The measured pass of a tape; the graph says what gradients read.

    facts: the fields of each sub-layer, as they become known
    """

    def __init__(self, tape: GraphTape, example: Tensor) -> None:
        self.tape, self.example = tape, example
        self.state = GraphPass(tape, blank(tape), frozenset())
        own = (*tape.model.parameters(), *tape.model.buffers())
        constants = tensor_storages([list(step.arguments) for step in tape.calls])
        self.own = {a for tensor in own for a, _ in tensor_storages(tensor)}
        self.own.update(address for address, _ in constants)
        self.weights = {id(p): i for i, p in enumerate(tape.model.parameters())}
        self.readers = Counter(id(p) for i in range(1, len(tape.calls)) for p in tape.parameters(i))
        self.facts: list[dict[str, Any]] = []

    def run(self, loss: LossFunction) -> PassNetwork:
        """Run the pass under a recording of memory and put the facts together.

        Peaks are relative to the level at the start of a sub-layer's own span, so they count what
        it allocates itself and not what the pass holds.
        """
        device = self.example.device.type
        count = len(self.tape.calls)
        state = self.state
        state.start(self.example, self.example.requires_grad)
        self.facts.append(
            {"shape": tuple(self.example.shape), "size": self._size(0), "differentiable": False}
        )
        with recording(device) as record:
            for index in range(1, count):
                with record.span(f"forward {index}"):
                    state.forward(index)
                self._describe(index)
            output = state.result().detach().requires_grad_()
            with torch.enable_grad(), record.span("loss"):
                value = loss(output)
            with record.span("loss backward"):
                (gradient,) = torch.autograd.grad(value, [output])
            first = gradient
            del value
            state.arrive(gradient)
            del gradient
            for index in range(count - 1, 0, -1):
                self._backward(index, record)
        spans = {span.label: span for span in record.spans}
        for index in range(1, count):
            facts = self.facts[index]
            span = spans[f"forward {index}"]
            facts["forward_peak"] = span.peak - span.start
            if facts.get("apart") is not None:
                down, own = (spans[f"{s} gradient {index}"] for s in ("activation", "weight"))
                left = max(down.end - down.start - sum(facts["fresh"]), 0)  # a sum of gradients
                facts["apart"] = (down.peak - down.start, left + own.peak - own.start)
            if (after_span := spans.get(f"backward {index}")) is not None:
                facts["backward_peak"] = after_span.peak - after_span.start
        ahead, back = spans["loss"], spans["loss backward"]
        network_loss = Loss(
            ahead.end - ahead.start,
            ahead.peak - ahead.start,
            back.peak - back.start,
            sum(size for _, size in tensor_storages(first)),
        )
        calls = self.tape.calls
        layers = tuple(
            SubLayer(name=call.name, kind=call.kind, inputs=call.inputs, **facts)
            for call, facts in zip(calls, self.facts, strict=True)
        )
        return PassNetwork(layers, self.tape.output, network_loss)

    def _size(self, index: int) -> int:
        return sum(size for _, size in tensor_storages(self.state.values[index]))

    def _describe(self, index: int) -> None:
        """Note what the records of operations state, and the sizes of what is there."""
        state, step = self.state, self.tape.calls[index]
        value = state.values[index]
        held = dict(tensor_storages(value))
        before = {v: dict(tensor_storages(state.values[v])).keys() for v in step.inputs}
        alias = next((v for v, known in before.items() if known & held.keys()), None)
        known = self.own.union(dict(tensor_storages(state.values[0])))
        kept = dict(tensor_storages(state.saved.get(index, ())))  # once, if it is in a value too
        size = sum(n for a, n in held.items() if a not in self.own and a not in kept)
        shape, given = tuple(value[0].shape), state.values[step.inputs[0] if step.inputs else 0]
        weights = [tuple(p.shape) for p in self.tape.read_parameters(index)]
        operations, products = step_operations(step, weights, tuple(given[0].shape), shape)
        self.facts.append(
            {
                "shape": shape,
                "size": size if alias is None else 0,
                "alias": alias,
                "needs": tuple(sorted({self._root(v) for v in step.needs(index)})),
                "extra": sum(n for a, n in kept.items() if a not in known),
                "operations": operations,
                "products": products,
                "differentiable": index in state.saved,
                "state": state_size(step.arguments),
            }
        )

    def _root(self, index: int) -> int:
        while index < len(self.facts) and (alias := self.facts[index].get("alias")) is not None:
            index = alias
        return index

    def _backward(self, index: int, record: Any) -> None:
        """Run one backward pass, and note the facts that it shows.

        Gradients that the inputs have already are set aside meanwhile, and added afterwards, so
        that the storages found are those of this backward pass alone.
        """
        state = self.state
        if not state.has_backward(index):
            return
        arrived = [ref for ref, _ in _storage_refs(state.gradients[index])]
        inputs = state.targets(index)
        others = {v: state.gradients.pop(v) for v in inputs if v in state.gradients}
        weights, state.parameter_gradients = state.parameter_gradients, {}
        trial = self._apart(index, record) if self._separable(index, inputs) else None
        with record.span(f"backward {index}"):
            state.backward(index)
        fresh: dict[StorageWeakRef, int] = {}
        entries = []
        for v in inputs:
            if v in state.gradients:
                places = (
                    _place(ref, size, arrived, fresh)
                    for ref, size in _storage_refs(state.gradients[v])
                )
                entries.append((v, tuple(places)))
        self.facts[index]["gradients"] = tuple(entries)
        self.facts[index]["fresh"] = tuple(fresh.values())
        self.facts[index]["weights"] = tuple(
            (self.weights[id(p)], sum(size for _, size in tensor_storages(g)))
            for p, g in state.parameter_gradients.values()
        )
        # Two passes of 8 bits for the 16-bit gradient that each product reads.
        ways = bool(entries) + bool(self.facts[index]["weights"])
        self.facts[index]["gradient_operations"] = 2 * ways * self.facts[index]["operations"]
        if trial is not None:
            whole = [state.gradients.get(v) for v in inputs]
            whole += [g for _, g in state.parameter_gradients.values()]
            same = len(whole) == len(trial) and all(map(_same, whole, trial))
            self.facts[index]["apart"] = (0, 0) if same else None  # filled in from the spans
        for v, other in others.items():
            new = state.gradients.get(v)
            state.gradients[v] = other if new is None else state.merged(other, new)
        state.parameter_gradients = weights | state.parameter_gradients

    def _separable(self, index: int, inputs: list[int]) -> bool:
        """Whether a sub-layer may have a weight gradient of its own."""
        own = self.tape.parameters(index)
        counts = (self.readers[id(p)] for p in own)
        return (
            self.tape.calls[index].kind in SEPARABLE
            and bool(inputs and own)
            and all(count == 1 for count in counts)
        )

    def _apart(self, index: int, record: Any) -> list[Tensor | None]:
        """Activation gradient and weight gradient one after the other, forgotten by the pass."""
        state = self.state
        arrived = state.gradients[index]
        with record.span(f"activation gradient {index}"):
            state.activation_gradient(index)
        found = [state.gradients.pop(v, None) for v in state.targets(index)]
        with record.span(f"weight gradient {index}"):
            found += state.weight_gradient(index)
        state.gradients[index] = arrived
        return found


def _same(a: Any, b: Any) -> bool:
    """Whether two gradients have the same bits."""
    if a is None or b is None:
        return a is b
    if isinstance(a, tuple):
        return all(map(_same, a, b))
    return same_parts(a.resolved(), b.resolved())


def _storage_refs(gradient: Any) -> list[tuple[StorageWeakRef, int]]:
    """The storages of a gradient and their bytes. Weak: that a storage is freed meanwhile is part
    of what is measured, and its address may come again; the reference does not."""
    found: dict[StorageWeakRef, int] = {}
    for tensor in storages(gradient):
        storage = tensor.untyped_storage()
        found.setdefault(StorageWeakRef(storage), storage.nbytes())
    return list(found.items())


def _place(
    ref: StorageWeakRef, size: int, arrived: list[StorageWeakRef], fresh: dict[StorageWeakRef, int]
) -> int:
    if ref in arrived:
        return -1 - arrived.index(ref)
    fresh.setdefault(ref, size)
    return list(fresh).index(ref)
