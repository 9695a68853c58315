"""Costs of captured operators on a device, and the memory that they take while they run.

Times are those of `plan.cost`: the roofline, from shapes alone, so that the same plan comes out on
every machine. Temporaries are the kernel's own, and no shape tells them: every distinct call runs
once, on numbers made up, and its allocations are recorded.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from samebits.recompute.capture.kernels import training
from samebits.recompute.network.operations import multiplies, operations
from samebits.recompute.plan.cost import Device, load
from samebits.recompute.run.memory import recording
from samebits.recompute.run.timing import PICOSECONDS_PER_NANOSECOND, shortest

OPAQUE = ("workspace", "reserve", "reserveSpace", "reserve_space", "rng_state", "philox_seed")


class Prices:
    """Costs and memory of calls in a graph.

    temporaries: bytes by kind of call, while it runs
    results:     bytes of the storages of its results, which may be more than their shapes say
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.temporaries: dict[str, int] = {}
        self.results: dict[str, list[int]] = {}

    def learn(self, graphs: Sequence[fx.GraphModule]) -> None:
        """Run one call of each kind in a forward and a backward graph. Generators stay."""
        nodes = [n for graph in graphs for n in graph.graph.nodes]
        sources = {n.name: n for n in reversed(nodes) if n.op == "call_function"}
        calls = {_key(n): n for n in reversed(nodes) if _makes(n)}
        with _aside(), recording() as record:
            for key, node in calls.items():
                if key in self.temporaries:
                    continue
                try:
                    given = _Given(node, sources).arguments()
                    with record.span(key):
                        out = _run(node, *given)
                    self.results[key] = [t.untyped_storage().nbytes() for t in _flat(out)]
                except Exception:  # numbers that this operator does not take
                    self.temporaries[key] = 0
                out = given = None  # so that nothing of it counts in the next one
        for span in record.spans:
            self.temporaries.setdefault(span.label, max(0, span.peak - span.end))

    def sizes(self, node: fx.Node) -> list[int]:
        """Bytes of the storages of a call's results; none where it could not be run."""
        return self.results.get(_key(node), [])

    def __call__(self, node: fx.Node) -> tuple[int, int]:
        """Picoseconds and temporary bytes of a call."""
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta.get("val"))
        result = node.meta.get("val")
        packet = getattr(node.target, "_overloadpacket", None)
        count = operations(packet, args, kwargs, result) if packet is not None else 0
        products = count if multiplies(packet) else 0
        moved = sum(t.numel() * t.element_size() for t in _flat((args, kwargs, result)))
        device = self.device
        work = device.arithmetic(count, products, "float32")
        cost = 1000 * device.dispatch_ns + max(work, load(device.tier(moved), moved))
        return cost, self.temporaries.get(_key(node), 0)


def measured_times(calls: Sequence[fx.Node], seconds: float = 0.01) -> list[int]:
    """Picoseconds of each call of a forward graph on this machine, on numbers made up.

    Of calls of a kind the first is timed. Times serve calibration alone: no plan depends on them.
    """
    found: dict[str, int] = {}
    with _aside():
        for node in calls:
            if (key := _key(node)) not in found:
                given = _Given(node, {}).arguments()
                taken = shortest(partial(_run, node, *given), seconds)
                found[key] = taken * PICOSECONDS_PER_NANOSECOND
    return [found[_key(node)] for node in calls]


@contextlib.contextmanager
def _aside() -> Iterator[None]:
    """A with block that computes real numbers while a graph is captured. Generators stay."""
    with unset_fake_temporarily(), torch.random.fork_rng(), torch.no_grad():
        yield


def _makes(node: fx.Node) -> bool:
    """Whether a node is a call that makes memory."""
    view = getattr(node.target, "is_view", False)
    return node.op == "call_function" and hasattr(node.target, "_schema") and not view


def _run(node: fx.Node, args: Any, kwargs: Any) -> Any:
    recurrent = "mkldnn_rnn_layer" in node.name
    with training() if recurrent else contextlib.nullcontext():
        return node.target(*args, **kwargs)  # type: ignore[operator]


class _Given:
    """Arguments of one call, made up.

    A kernel's own data cannot be: numbers that are none of it would let the kernel read anywhere.
    So where a call takes such data, whatever the call's forward pass gave it is computed.
    """

    def __init__(self, node: fx.Node, sources: Mapping[str, fx.Node]) -> None:
        self.node, self.sources = node, sources
        names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
        self.opaque = any(name in OPAQUE for name in names)
        self.results: dict[fx.Node, Any] = {}

    def arguments(self) -> Any:
        """Positional and named ones."""
        return fx.map_arg((self.node.args, dict(self.node.kwargs)), self._value)

    def _value(self, node: fx.Node) -> Any:
        node = self.sources.get(node.name, node)
        if self.opaque and node.target is operator.getitem:
            source: Any = node.args[0]
            if source not in self.results:
                self.results[source] = _run(source, *_Given(source, self.sources).arguments())
            return self.results[source][node.args[1]]
        value = node.meta["val"]
        return (
            type(value)(map(_filled, value)) if isinstance(value, list | tuple) else _filled(value)
        )


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [t for item in value for t in _flat(item)]
    return [value] if isinstance(value, Tensor) else []


def _filled(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    count = value.untyped_storage().nbytes() // value.element_size()
    flat = torch.zeros(count, dtype=value.dtype, device=value.device)
    if value.is_floating_point():
        flat.uniform_()
    return flat.as_strided(value.shape, value.stride(), value.storage_offset())


def _key(node: fx.Node) -> str:
    """The operator and its arguments, tensors by shape, order in memory and type."""

    def word(value: Any) -> Any:
        if isinstance(value, Tensor):
            return tuple(value.shape), value.stride(), value.dtype
        if isinstance(value, list | tuple):
            return [word(item) for item in value]
        return value

    given = fx.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta.get("val"))
    return (
        f"{node.target} {[word(a) for a in given[0]]} {[(k, word(v)) for k, v in given[1].items()]}"
    )
