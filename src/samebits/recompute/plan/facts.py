"""A training step as plain data: storages, and the nodes that read and make them.

A *storage* is what is kept or computed again, not a tensor: views of one that is kept are free. So
a node stands for an operator that makes memory, and the views between two of them are no nodes.
Storages that the step is given (parameters, buffers, the batch) are always there, count nothing and
are left out.

Example: `h = relu(x @ w); loss = (h @ v).sum()` has three storages (both products and the sum;
relu's is a fourth), and forward nodes mm (makes 0), relu (reads 0, makes 1), mm (reads 1, makes 2),
sum (reads 2, makes 3). Its backward pass reads storage 1 twice, for the gradients of v and of relu.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property


@dataclass(frozen=True)
class StepNode:
    """One operator.

    reads, makes: storages; those that it makes are new memory
    cost:      picoseconds
    temporary: bytes that it takes above its results while it runs
    state:     bytes that are kept from its first time to run it a second time
    replay:    bytes that it takes besides while it runs a second time
    """

    name: str
    kind: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    cost: int = 0
    temporary: int = 0
    state: int = 0
    replay: int = 0


@dataclass(frozen=True)
class StepFacts:
    """A forward and a backward pass.

    sizes:     bytes of every storage
    once:      storages of the forward pass that a second computation cannot give
    given:     storages that the caller gets from the forward pass
    gradients: storages that the backward pass returns, or is given and does not free
    held:      bytes that are there from the beginning to the end
    whole:     whether a node that runs again makes all of its results anew, none of them being kept
    beside:    by forward node what its own gradients read, as far as that is known
    """

    sizes: tuple[int, ...]
    forward: tuple[StepNode, ...]
    backward: tuple[StepNode, ...]
    once: frozenset[int]
    given: frozenset[int]
    gradients: frozenset[int]
    held: int = 0
    whole: bool = False
    beside: Mapping[int, frozenset[int]] = field(default_factory=dict)

    @cached_property
    def maker(self) -> Mapping[int, int]:
        """The forward node that makes a storage."""
        return {s: at for at, node in enumerate(self.forward) for s in node.makes}

    @cached_property
    def again(self) -> tuple[StepNode, ...]:
        """The forward nodes as they run a second time."""
        return tuple(
            replace(
                node,
                makes=tuple(s for s in node.makes if s not in self.once),
                temporary=node.temporary + node.replay,
            )
            for node in self.forward
        )

    @cached_property
    def saved(self) -> frozenset[int]:
        """The storages of the forward pass that the backward pass reads: what eager keeps."""
        return frozenset(s for node in self.backward for s in node.reads if s in self.maker)

    @cached_property
    def last(self) -> Mapping[int, int]:
        """The last forward node that reads or makes a storage."""
        return last_uses(self.forward)


def last_uses(nodes: tuple[StepNode, ...]) -> dict[int, int]:
    """The place of the last node that reads or makes each storage."""
    return {s: at for at, node in enumerate(nodes) for s in (*node.makes, *node.reads)}
