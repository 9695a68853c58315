"""One forward and backward pass of a float32 tape, sub-layer by sub-layer.

Every sub-layer has an autograd graph of its own, from its inputs to its output. That makes a value
an object of the pass, which can be dropped and come back, instead of a tensor somewhere inside one
large graph. Three things make it work:

- An input enters a sub-layer through a `_Boundary`, where its graph ends. The backward pass of the
  sub-layer gives the gradients at its boundaries, and `Pass` hands them on to the sub-layers
  before.
- What autograd saves for a backward pass is mostly values: the input of a convolution, the output
  of a ReLU. Hooks replace each such tensor by a reference to the value (`Saved`), so that the graph
  holds no value. Dropping a value then frees its memory, and when it has been computed again, every
  graph that reads it finds it there: the sub-layers that read it need not run a second time.
- The bits are those of the model itself, since the same kernels run on the same inputs, and sums of
  gradients are taken in autograd's own order. Its engine runs nodes by sequence number, the latest
  first, and adds contributions as they come; `Pass` runs sub-layers from the last to the first and
  adds each contribution to the sum of those before.

Example: conv, relu, linear compute values 1, 2 and 3 from the input 0. Saved are 0 (by conv), 2 (by
relu) and 2 (by linear), beside the weights. Nothing refers to value 1: it is freed when relu has
run. If value 2 is dropped, it is freed when linear has run, and value 1 stays in its place; the
references to value 2 stay in both graphs. Before the backward pass of linear, relu runs again on
value 1, without a graph this time, and both backward passes find value 2.

Example of the order: value 1 is read by sub-layers 2, 3 and 4, whose contributions to its gradient
are 1, 1 and 2**24 in binary32. Autograd computes (2**24 + 1) + 1 = 2**24, and so does `Pass`, where
(1 + 1) + 2**24 would be 2**24 + 2.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, _engine_run_backward, saved_tensors_hooks

from samebits.errors import UnsupportedError
from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.network.tape import Tape, autocast
from samebits.recompute.run.hearing import Hearing
from samebits.recompute.run.normalization import normalize_again
from samebits.recompute.run.replay import Replay
from samebits.train.tensor import BFPTensor

Gradients = tuple[Tensor | None, ...]  # of a sub-layer's weights
ANCHOR = torch.zeros((), dtype=torch.float32, device="cpu", requires_grad=True)


class _Boundary(torch.autograd.Function):
    """An input of a sub-layer: where its graph ends. It shares storage and holds none."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, None


class Saved:
    """A tensor that autograd saved: the tensor itself, or the value that it lies in, and where.

    tensor: None once it is a reference; value: then, the value; geometry: shape, strides and offset
    """

    __slots__ = ("geometry", "tensor", "value")

    def __init__(self, tensor: Tensor) -> None:
        # Not its graph: kept here, where the garbage collector cannot see it, a cycle would stay.
        self.tensor: Tensor | None = tensor.detach()
        self.value = -1
        self.geometry: tuple[Any, Any, Any] = ((), (), 0)

    def refer(self, value: int) -> None:
        """Let go of the tensor: it lies in the storage of `value`."""
        assert self.tensor is not None
        self.value = value
        self.geometry = (self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset())
        self.tensor = None


class AutogradGraph:
    """The autograd graph of one sub-layer: its output, its boundaries, and what it saved.

    holder: keeps the graph alive without any storage of the output
    """

    def __init__(self, output: Tensor, inputs: dict[int, GradientEdge], saved: list[Saved]) -> None:
        self.output = GradientEdge(_grad_fn(output), output.output_nr)
        self.inputs, self.saved = inputs, saved
        with torch.enable_grad():
            self.holder = output.view_as(output).grad_fn  # owns the graph; Python nodes do not


def _grad_fn(tensor: Tensor) -> Any:
    assert tensor.grad_fn is not None
    return tensor.grad_fn


def address(tensor: Tensor) -> int:
    """The address of a tensor's storage; 0 if it is empty."""
    return tensor.untyped_storage().data_ptr()


class Bookkeeping:
    """The values and gradients of one forward and backward pass, as far as it has come.

    recomputed: the values that will be computed again; what this takes is kept from the first time
    values, gradients: those that are there, by the number of the value
    parameter_gradients: parameter and gradient, by the id of the parameter, until it is handed over
    """

    def __init__(self, tape: Any, network: PassNetwork, recomputed: frozenset[int]) -> None:
        self.tape, self.network, self.recomputed = tape, network, recomputed
        self.values: dict[int, Any] = {}
        self.gradients: dict[int, Any] = {}
        self.parameter_gradients: dict[int, tuple[Tensor, Tensor]] = {}  # of shared parameters
        self.replays: dict[int, Any] = {}
        self.hearing: Hearing | None = None

    def compute(self, index: int) -> Any:
        """The value of a sub-layer, of which nothing is kept; its inputs are there."""
        raise TypeError(f"{type(self).__name__} defines no compute")

    def read(self, index: int) -> Any:
        """A value that is there; a view is made again from what it is a view of."""
        value = self.values.get(index)
        if value is None:
            if self.network.layers[index].alias is None:
                raise AssertionError(f"value {index} is read after it was freed")
            with torch.no_grad():
                value = self.compute(index)
        return value

    def free(self, index: int) -> None:
        """Drop a value and the views of it."""
        for v in self.network.views[index]:
            self.values.pop(v, None)

    def settle(self, parameters: Sequence[int], listened: bool = False) -> None:
        """Hand the gradients of parameters (by id) over to `.grad`: no more contributions come."""
        for key in parameters:
            entry = self.parameter_gradients.pop(key, None)
            if entry is not None:
                _accumulate(*entry, listened)


class Pass(Bookkeeping):
    """A pass of a float32 tape; `graphs`: those that are there, by the number of the sub-layer."""

    def __init__(self, tape: Tape, network: PassNetwork, recomputed: frozenset[int]) -> None:
        super().__init__(tape, network, recomputed)
        self.differentiable: dict[int, bool] = {}
        self.graphs: dict[int, AutogradGraph] = {}

    # --- values -----------------------------------------------------------------------------

    def start(self, x: Tensor, differentiable: bool) -> None:
        """Take the input."""
        self.values[0] = x.detach()
        self.differentiable[0] = differentiable

    def result(self) -> Tensor:
        """The model's output."""
        found: Tensor = self.read(self.tape.output)
        return found

    def compute(self, index: int) -> Tensor:
        found: Tensor = self.tape.compute(index, self.read)
        return found

    def forward(self, index: int) -> None:
        """Compute a sub-layer for the first time.

        Its graph is kept if its value stays, or if what it saves besides values is little
        (`light`).
        """
        layer = self.network.layers[index]
        if index in self.recomputed and not layer.statistics:
            self.replays[index] = Replay(self.tape, layer.random, index)
        keep = index not in self.recomputed or layer.light
        self._compute(index, keep)
        if self.hearing is not None:
            self.hearing.computed(index, self.read)

    def recompute(self, index: int) -> None:
        """Compute a sub-layer again, with the state it had the first time.

        A batch-norm follows from its statistics where planning has found the same bits; a sub-layer
        whose graph was kept runs without a graph; any other gets the graph it did without so far.
        """
        with contextlib.ExitStack() as stack:
            if autocast():  # around the backward pass; the forward pass had none
                for device in ("cpu", "cuda"):
                    stack.enter_context(torch.autocast(device, enabled=False))
            self._recompute(index)

    def _recompute(self, index: int) -> None:
        if self.network.layers[index].statistics:
            again = self.normalize_again(index)
            assert again is not None
            self.values[index] = again
            return
        with self.replays.pop(index):
            if index not in self.graphs and self.network.layers[index].differentiable:
                self._compute(index, keep=True)
            else:
                with torch.no_grad():
                    self.values[index] = self.compute(index)

    def normalize_again(self, index: int) -> Tensor | None:
        """The output of a batch-norm from the statistics in its graph, if it is one."""
        call, graph = self.tape.calls[index], self.graphs.get(index)
        if graph is None or not call.plain or len(call.inputs) != 1:
            return None
        with torch.no_grad():
            return normalize_again(call.module, self.read(call.inputs[0]), graph.output.node)

    def _compute(self, index: int, keep: bool) -> None:
        """Compute a sub-layer with a graph from its boundaries to its output; keep the graph or
        not.

        An input that is read in several places has one boundary, so that autograd itself adds the
        gradients of these places.
        """
        boundaries: dict[int, Tensor] = {}

        def enter(v: int) -> Tensor:
            if v not in boundaries:
                value = self.read(v)
                boundaries[v] = (
                    _Boundary.apply(ANCHOR, value) if self.differentiable[v] else value  # type: ignore[no-untyped-call]
                )
            return boundaries[v]

        saved: list[Saved] = []

        def pack(tensor: Tensor) -> Saved:
            saved.append(Saved(tensor))
            return saved[-1]

        this = weakref.ref(self)  # hooks live as long as the graphs that the pass holds

        def unpack(entry: Saved) -> Tensor:
            alive = this()
            assert alive is not None
            return alive._unpack(entry)

        with torch.enable_grad(), saved_tensors_hooks(pack, unpack):
            output = self.tape.compute(index, enter)
        self.differentiable[index] = output.requires_grad
        value = self.values[index] = output.detach()
        if keep and output.requires_grad:
            if saved:
                self._refer(index, value, saved)
            inputs = {
                v: GradientEdge(_grad_fn(b), b.output_nr)
                for v, b in boundaries.items()
                if self.differentiable[v]
            }
            self.graphs[index] = AutogradGraph(output, inputs, saved)

    def _refer(self, index: int, value: Tensor, saved: Sequence[Saved]) -> None:
        """Replace those saved tensors that are values, or views of values, by references.

        They are known by the address of their storage, the output's or an input's. Address 0 is
        that of every empty tensor, so it says nothing.
        """
        known = {address(value): self.network.root(index)}
        for v in self.tape.calls[index].inputs:
            known[address(self.read(v))] = self.network.root(v)
        known.pop(0, None)
        for entry in saved:
            assert entry.tensor is not None
            found = known.get(address(entry.tensor))
            if found is not None:
                entry.refer(found)

    def _unpack(self, saved: Saved) -> Tensor:
        if saved.tensor is not None:
            return saved.tensor
        value: Tensor = self.read(saved.value)
        size, stride, offset = saved.geometry
        if value.shape == size and value.stride() == stride and value.storage_offset() == offset:
            return value
        return value.as_strided(size, stride, offset)

    # --- gradients --------------------------------------------------------------------------

    def arrive(self, gradient: Tensor) -> None:
        """Take the gradient of the output."""
        self.gradients[self.tape.output] = gradient

    def has_backward(self, index: int) -> bool:
        """Whether a sub-layer has a backward pass to run."""
        return index in self.graphs and index in self.gradients

    def targets(self, index: int) -> list[int]:
        """The values that a backward pass to run has gradients of."""
        return list(self.graphs[index].inputs)

    def backward(self, index: int) -> None:
        """Gradients of a sub-layer's inputs and weights from the gradient of its output.

        A sub-layer that reads one input or weight in several places (`repeated`) contributes
        several times to its gradient. Autograd adds each contribution to the sum so far, so that
        sum enters its graph as if it were the first of them. Raises UnsupportedError for sparse
        gradients.
        """
        graph = self.graphs.pop(index, None)
        arrived = self.gradients.pop(index, None)
        if graph is None or arrived is None:  # nothing that is learned depends on it
            return
        if self.hearing is not None:
            self.hearing.arrived(index, arrived)
        parameters = self.tape.parameters(index)
        inputs = list(graph.inputs)
        targets: list[Any] = [*graph.inputs.values(), *parameters]
        chained = self.network.layers[index].repeated
        roots: list[Any] = [graph.output]
        arriving = [arrived]
        if chained:  # the engine adds to what has come so far, contribution by contribution
            earlier = [*map(self.gradients.get, inputs), *map(self._earlier, parameters)]
            known = [(t, e) for t, e in zip(targets, earlier, strict=True) if e is not None]
            roots = [*(t for t, _ in known), *roots]
            arriving = [*(e for _, e in known), *arriving]
            del earlier, known
        found = _gradients(roots, targets, arriving)
        del arriving
        if any(gradient is not None and gradient.is_sparse for gradient in found):
            raise UnsupportedError(
                f"{self.tape.calls[index].name}: expected dense gradients, found a sparse one; "
                "train without a plan"
            )
        self._pass_on(inputs, found, arrived, chained)
        self._keep(parameters, found[len(inputs) :], arrived, chained)

    def merged(self, a: Tensor, b: Tensor) -> Tensor:
        """Two gradients of a value, both of which count."""
        return a + b

    def _pass_on(
        self,
        inputs: Sequence[int],
        found: Sequence[Tensor | None],
        arrived: Tensor,
        whole: bool = False,
    ) -> None:
        """Gradients of a sub-layer's inputs; `whole`: with what had come before."""
        for v, gradient in zip(inputs, found, strict=False):
            if gradient is not None:
                before = self.gradients.pop(v, None)
                if before is not None and not whole:
                    gradient = _sum(before, gradient, arrived)
                self.gradients[v] = gradient

    def _keep(
        self,
        parameters: Sequence[nn.Parameter],
        found: Sequence[Tensor | None],
        arrived: Tensor,
        whole: bool = False,
    ) -> None:
        """Gradients of a sub-layer's weights, in storages of their own, as autograd leaves them."""
        taken: set[int] = set()
        for p, gradient in zip(parameters, found, strict=False):
            if gradient is None:
                continue
            before = self._earlier(p)
            if before is not None and not whole:
                gradient = _sum(before, gradient, arrived)
            if not owns(gradient, arrived) or address(gradient) in taken:
                gradient = gradient.clone()
            taken.add(address(gradient))
            self.parameter_gradients[id(p)] = (p, gradient)

    def activation_gradient(self, index: int) -> None:
        """Gradients of a sub-layer's inputs alone; its graph stays for the weights."""
        graph, arrived = self.graphs.get(index), self.gradients.get(index)
        if graph is None or arrived is None:
            return
        if self.hearing is not None:
            self.hearing.arrived(index, arrived)
        if not graph.inputs:
            return
        targets = list(graph.inputs.values())
        found = _gradients([graph.output], targets, [arrived], retain=True)
        self._pass_on(list(graph.inputs), found, arrived)

    def weight_gradient(self, index: int, retain: bool = False) -> Gradients:
        """Gradients of a sub-layer's weights alone, changing nothing: in any thread."""
        graph, arrived = self.graphs.get(index), self.gradients.get(index)
        parameters = self.tape.parameters(index)
        if graph is None or arrived is None or not parameters:
            return ()
        return _gradients([graph.output], parameters, [arrived], retain)

    def join(self, index: int, found: Gradients) -> None:
        """Take the gradients of weights that `weight_gradient` has found."""
        self.graphs.pop(index, None)
        arrived = self.gradients.pop(index, None)
        if arrived is not None:
            self._keep(self.tape.parameters(index), found, arrived)

    def _earlier(self, parameter: Tensor) -> Tensor | None:
        entry = self.parameter_gradients.get(id(parameter))
        return None if entry is None else entry[1]


def _gradients(
    roots: Sequence[Any], targets: Sequence[Any], arriving: Sequence[Tensor], retain: bool = False
) -> Gradients:
    """torch.autograd.grad, without its checks, which would take a percent of a small net's step.

    None for a target that nothing depends on.
    """
    found: Gradients = _engine_run_backward(
        tuple(roots), tuple(arriving), retain, False, tuple(targets), True, accumulate_grad=False
    )
    return found


def _sum(old: Tensor, new: Tensor, arrived: Tensor) -> Tensor:
    """old + new, into `new` where nobody else can see it."""
    if owns(new, arrived) and new.stride() == old.stride() and new.dtype == old.dtype:
        return new.add_(old)
    return old + new


def owns(gradient: Tensor, arrived: Tensor) -> bool:
    """Whether a new gradient fills a storage other than that of the gradient it came from."""
    storage = gradient.untyped_storage()
    whole = storage.nbytes() == gradient.numel() * gradient.element_size()
    return whole and storage.data_ptr() != address(arrived)


def _accumulate(parameter: Tensor, gradient: Tensor, listened: bool) -> None:
    """Add a gradient to a parameter's `.grad`, as autograd does at a leaf.

    The first gradient is taken over, not copied, unless somebody listens to autograd's own node for
    the leaf; hooks are called either way.
    """
    fits = isinstance(gradient, BFPTensor) or gradient.stride() == parameter.stride()
    if parameter.grad is None and fits and not listened:
        parameter.grad = gradient
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            hook(parameter)
    else:
        torch.autograd.backward([parameter], [gradient])
