"""Drafts joined: point-wise operations to what they follow, copies to what they copy.

docs/spec/npu.md section 3 says what fits one chain. A draft goes into the chain that wrote the
buffer it reads if it reads that whole buffer once, pixel by pixel: then the value is in the chain
at the right moment, and no rounding changes. Four things can stand against it:

* the units are in fixed order (`with_units` finds none left);
* something else reads the buffer too, and would get the result of the added operation;
* an operand is computed only later than the chain that would read it;
* the chain reads a state that this write would change before its other readers come.

For example (N = 8) `Conv, bias, Relu, + x` of an image x is, before and after:

    network x -> x                                v_rd netq; v_wr ivrf (x)
    window of x, tiles -> Conv                    v_rd ivrf (window of x); mv_mul;
    Conv, vv_add bias -> Conv_bias                  vv_add asvrf0 (bias); v_relu;
    Conv_bias, v_relu -> Relu                       vv_add asvrf1 (x); v_wr netq
    Relu, vv_add x -> Add
    Add -> network

The first `vv_add` and `v_relu` are unit 0's. The second `vv_add` comes after an activation, so it
is unit 1's, and x gets a copy in `asvrf1`. x cannot come to the product straight from the network,
because it is read twice: by the window and by the sum.

Of `a + b` either may be in the chain and the other the operand. The one written last is tried in
the chain first: by then the other is in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from samebits.npu.compiler.layout import (
    Buffer,
    BufferAccess,
    Draft,
    Port,
    UnitOperation,
    WeightTiles,
    with_units,
)
from samebits.npu.compiler.memory import TilePlace
from samebits.npu.machine.isa import INSTRUCTIONS, REDUCTIONS


def fuse(chains: Sequence[Draft], tiles: Mapping[WeightTiles, TilePlace]) -> list[Draft]:
    """The same computation in fewer chains, each after all that writes what it reads.

    The operations of the result have their units.
    """
    joiner = _Joiner(chains, tiles)
    for chain in chains:
        joiner.add(chain)
    joiner.read_states()
    joined = joiner.with_queue_reads()
    return [replace(chain, operations=with_units(chain.operations) or ()) for chain in joined]


class _Joiner:
    """The chains so far, and who reads and writes which buffer.

    uses: accesses of a buffer that are left in `done` or come; reads: all there ever were.
    """

    def __init__(self, chains: Sequence[Draft], tiles: Mapping[WeightTiles, TilePlace]) -> None:
        self.tiles = tiles
        self.done: list[Draft] = []
        self.uses = Counter(a.buffer for chain in chains for _, a in chain.accesses)
        self.reads = Counter(self.uses)
        self.kept: dict[Buffer, Buffer] = {}  # what becomes a state as it is written
        self.writers: dict[Buffer, list[int]] = {}  # indices into `done`

    def add(self, chain: Draft) -> None:
        """Join a chain to those that write what it reads, else append it."""
        variants = [chain, *_exchanged(chain)]
        variants.sort(key=lambda s: self.last_writer(s.read), reverse=True)
        if not any(self.join(variant) for variant in variants):
            for buffer in chain.buffers:
                self.writers.setdefault(buffer, []).append(len(self.done))
            self.done.append(chain)

    def last_writer(self, read: BufferAccess | Port) -> int:
        found = self.writers.get(read.buffer, []) if isinstance(read, BufferAccess) else []
        return max(found, default=-1)

    def join(self, chain: Draft) -> bool:
        """Whether the chain went into the chains that write the buffer it reads."""
        read = chain.read
        if (
            not isinstance(read, BufferAccess)
            or chain.tiles is not None
            or not read.whole(*chain.grid)
        ):
            return False
        source = read.buffer
        writers = self.writers.get(source, [])
        last = self.uses[source] == 1
        if not writers or len(set(writers)) < len(writers) or (chain.operations and not last):
            return False
        joined = [self.joined(self.done[i], chain, source, last) for i in writers]
        first = min(writers)
        operands = [a.buffer for slot, a in chain.accesses if slot >= 0 and a.buffer.values is None]
        if any(max(self.writers[b]) >= first for b in operands):
            return False
        changed = [found for found in joined if found is not None]
        if len(changed) < len(joined) or not all(self.over(b, first) for b in chain.buffers):
            return False
        for i, made in zip(writers, changed, strict=True):
            self.done[i] = made
        for buffer in chain.buffers:
            self.writers.setdefault(buffer, []).extend(writers)
            if buffer.values is not None:
                self.kept[source] = buffer
        self.uses[source] -= 1
        if last:
            del self.writers[source]
        return True

    def over(self, buffer: Buffer, index: int) -> bool:
        """Whether a state may be written from this chain on: all that read it come before."""
        if buffer.values is None:
            return True
        before = (a.buffer for chain in self.done[:index] for _, a in chain.accesses)
        return sum(b is buffer for b in before) == self.reads[buffer]

    def joined(self, before: Draft, chain: Draft, source: Buffer, last: bool) -> Draft | None:
        """`before` followed by `chain`, which reads what `before` writes; None if it cannot be.

        source: the buffer between them. last: nothing else reads it, so it is not written any more.
        """
        at = next(t.vector for t in before.targets if t.place is source)
        grids = (before.height, before.width), (chain.height, chain.width)
        if grids[0] != grids[1] or before.looped != chain.looped:
            return None
        if chain.operations and len(before.targets) > 1:
            return None  # the others would get the result of `chain`
        operations = (
            *before.operations,
            *(_moved(operation, at) for operation in chain.operations),
        )
        kept = [t for t in before.targets if not (last and t.place is source)]
        added = [replace(t, vector=t.vector + at) for t in chain.targets]
        queues = [t for t in (*kept, *added) if isinstance(t.place, Port)]
        whole = before.rows == chain.rows and self.groups(before) == 1
        if not whole and any(operation.op in REDUCTIONS for operation in operations):
            return None  # it would join other lanes
        if with_units(operations) is None or len(queues) > 1 or (queues and not whole):
            return None
        return replace(before, operations=operations, targets=(*kept, *added))

    def groups(self, chain: Draft) -> int:
        """Pieces in which its tiles are loaded."""
        return 1 if chain.tiles is None else self.tiles[chain.tiles].groups

    def read_states(self) -> None:
        """Reads of a state's next value become reads of the state if `v_rd` reads that anyway.

        A state that operands alone read has no copy where `v_rd` could find it.
        """
        read = {chain.read.buffer for chain in self.done if isinstance(chain.read, BufferAccess)}
        for source, state in self.kept.items():
            if state not in read:
                continue
            for index, chain in enumerate(self.done):
                if isinstance(chain.read, BufferAccess) and chain.read.buffer is source:
                    self.done[index] = replace(chain, read=replace(chain.read, buffer=state))
                    self.uses[source] -= 1
            if not self.uses[source]:
                for index in self.writers.pop(source, ()):
                    chain = self.done[index]
                    targets = tuple(t for t in chain.targets if t.place is not source)
                    self.done[index] = replace(chain, targets=targets)

    def with_queue_reads(self) -> list[Draft]:
        """Inputs that one chain reads, once and in order, come to it straight from the network.

        The queue is read in the order of the chains. That may change the order of inputs, and the
        hints follow it.
        """
        done: list[Draft | None] = list(self.done)
        for i, chain in enumerate(self.done):
            if not isinstance(chain.read, Port) or chain.operations or len(chain.targets) > 1:
                continue
            (buffer,) = chain.buffers or (None,)
            if buffer is None or self.uses[buffer] != 1:
                continue
            j = next(
                j
                for j, other in enumerate(self.done)
                if any(a.buffer is buffer for _, a in other.accesses)
            )
            reader = self.done[j]
            if reader.looped == chain.looped and self.in_order(reader, buffer):
                done[i], done[j] = None, replace(reader, read=chain.read)
        return [chain for chain in done if chain is not None]

    def in_order(self, chain: Draft, buffer: Buffer) -> bool:
        """Whether a chain begins by reading all of a buffer as the network gives it."""
        read = chain.read
        if (
            not isinstance(read, BufferAccess)
            or read.buffer is not buffer
            or self.groups(chain) > 1
        ):
            return False
        size = (buffer.height, buffer.width)
        if (chain.height, chain.width) == (1, 1) and read.kernel == size and read.dilation == 1:
            return (read.y, read.x, read.vector) == (0, 0, 0)
        rows = chain.rows if chain.tiles is None else buffer.vectors
        return read.whole(chain.height, chain.width, rows)


def _exchanged(chain: Draft) -> list[Draft]:
    """The chain with the tensor and the first operand exchanged, if that gives the same."""
    if chain.tiles is not None or not chain.operations or not isinstance(chain.read, BufferAccess):
        return []
    first, *rest = chain.operations
    other, exchanged = first.operand, INSTRUCTIONS[first.op].exchanged
    if other is None or exchanged is None or other.buffer.values is not None:
        return []
    if not (other.whole(*chain.grid) and chain.read.whole(*chain.grid)):
        return []
    swapped = UnitOperation(exchanged, chain.read)
    return [replace(chain, read=other, operations=(swapped, *rest))]


def _moved(operation: UnitOperation, vector: int) -> UnitOperation:
    """With an operand that begins at a later vector."""
    if operation.operand is None:
        return operation
    operand = operation.operand
    return replace(operation, operand=replace(operand, vector=operand.vector + vector))
