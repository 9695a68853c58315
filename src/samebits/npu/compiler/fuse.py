"""Steps joined to chains: point-wise operations to what they follow, copies to what they copy.

docs/spec/npu.md section 3 says what fits one chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from samebits.npu.compiler.layout import (
    Access,
    Buffer,
    Point,
    Port,
    Step,
    Target,
    Tiles,
    with_units,
)
from samebits.npu.compiler.memory import TilePlace
from samebits.npu.machine.isa import INSTRUCTIONS


def fuse(steps: Sequence[Step], tiles: Mapping[Tiles, TilePlace]) -> list[Step]:
    """The same computation in fewer steps; every step in the order of its inputs.

    The points of the result have their units.
    """
    chains = _Chains(steps, tiles)
    for step in steps:
        chains.add(step)
    chains.read_states()
    joined = chains.with_queue_reads()
    return [replace(step, points=with_units(step.points) or ()) for step in joined]


class _Chains:
    def __init__(self, steps: Sequence[Step], tiles: Mapping[Tiles, TilePlace]) -> None:
        self.tiles = tiles
        self.done: list[Step] = []
        self.uses = Counter(a.buffer for step in steps for _, a in step.accesses)
        self.reads = Counter(self.uses)
        self.kept: dict[Buffer, Buffer] = {}  # what becomes a state as it is written
        self.writers: dict[Buffer, list[int]] = {}  # indices into `done`

    def add(self, step: Step) -> None:
        """Join a step to those that write what it reads, else append it."""
        variants = [step, *_exchanged(step)]
        variants.sort(key=lambda s: self.last_writer(s.read), reverse=True)
        if not any(self.join(variant) for variant in variants):
            for buffer in step.buffers:
                self.writers.setdefault(buffer, []).append(len(self.done))
            self.done.append(step)

    def last_writer(self, read: Access | Port) -> int:
        found = self.writers.get(read.buffer, []) if isinstance(read, Access) else []
        return max(found, default=-1)

    def join(self, step: Step) -> bool:
        """Whether the step went into the chains that write the buffer it reads."""
        read = step.read
        if not isinstance(read, Access) or step.tiles is not None or not read.whole(*step.grid):
            return False
        source = read.buffer
        writers = self.writers.get(source, [])
        last = self.uses[source] == 1
        if not writers or len(set(writers)) < len(writers) or (step.points and not last):
            return False
        joined = [self.joined(self.done[i], step, source, last) for i in writers]
        first = min(writers)
        operands = [a.buffer for slot, a in step.accesses if slot >= 0 and a.buffer.values is None]
        if any(max(self.writers[b]) >= first for b in operands):
            return False
        changed = [found for found in joined if found is not None]
        if len(changed) < len(joined) or not all(self.over(b, first) for b in step.buffers):
            return False
        for i, made in zip(writers, changed, strict=True):
            self.done[i] = made
        for buffer in step.buffers:
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
        before = (a.buffer for step in self.done[:index] for _, a in step.accesses)
        return sum(b is buffer for b in before) == self.reads[buffer]

    def joined(self, before: Step, step: Step, source: Buffer, last: bool) -> Step | None:
        """`before` followed by `step`, which reads only what `before` writes; None if it cannot."""
        at = next(t.vector for t in before.targets if t.place is source)
        grids = (before.height, before.width), (step.height, step.width)
        if grids[0] != grids[1] or before.looped != step.looped:
            return None
        if step.points and len(before.targets) > 1:
            return None  # the others would get the result of `step`
        points = (*before.points, *(_moved(point, at) for point in step.points))
        kept = [t for t in before.targets if not (last and t.place is source)]
        added = [Target(t.place, t.vector + at) for t in step.targets]
        queues = [t for t in (*kept, *added) if isinstance(t.place, Port)]
        whole = before.rows == step.rows and self.groups(before) == 1
        if with_units(points) is None or len(queues) > 1 or (queues and not whole):
            return None
        return replace(before, points=points, targets=(*kept, *added))

    def groups(self, step: Step) -> int:
        return 1 if step.tiles is None else self.tiles[step.tiles].groups

    def read_states(self) -> None:
        """What a state becomes is read from the state where `v_rd` reads that anyway."""
        read = {step.read.buffer for step in self.done if isinstance(step.read, Access)}
        for source, state in self.kept.items():
            if state not in read:
                continue
            for index, step in enumerate(self.done):
                if isinstance(step.read, Access) and step.read.buffer is source:
                    self.done[index] = replace(step, read=replace(step.read, buffer=state))
                    self.uses[source] -= 1
            if not self.uses[source]:
                for index in self.writers.pop(source, ()):
                    step = self.done[index]
                    targets = tuple(t for t in step.targets if t.place is not source)
                    self.done[index] = replace(step, targets=targets)

    def with_queue_reads(self) -> list[Step]:
        """Inputs that one step reads, once and in order, come to it straight from the network."""
        done: list[Step | None] = list(self.done)
        for i, step in enumerate(self.done):
            if not isinstance(step.read, Port) or step.points or len(step.targets) > 1:
                continue
            (buffer,) = step.buffers or (None,)
            if buffer is None or self.uses[buffer] != 1:
                continue
            j = next(
                j
                for j, other in enumerate(self.done)
                if any(a.buffer is buffer for _, a in other.accesses)
            )
            reader = self.done[j]
            if reader.looped == step.looped and self.in_order(reader, buffer):
                done[i], done[j] = None, replace(reader, read=step.read)
        return [step for step in done if step is not None]

    def in_order(self, step: Step, buffer: Buffer) -> bool:
        read = step.read
        if not isinstance(read, Access) or read.buffer is not buffer or self.groups(step) > 1:
            return False
        size = (buffer.height, buffer.width)
        if (step.height, step.width) == (1, 1) and read.kernel == size and read.dilation == 1:
            return (read.y, read.x, read.vector) == (0, 0, 0)
        rows = step.rows if step.tiles is None else buffer.vectors
        return read.whole(step.height, step.width, rows)


def _exchanged(step: Step) -> list[Step]:
    """The step with the tensor and the first operand exchanged, if that gives the same."""
    if step.tiles is not None or not step.points or not isinstance(step.read, Access):
        return []
    first, *rest = step.points
    other, exchanged = first.operand, INSTRUCTIONS[first.op].exchanged
    if other is None or exchanged is None or other.buffer.values is not None:
        return []
    if not (other.whole(*step.grid) and step.read.whole(*step.grid)):
        return []
    swapped = Point(exchanged, step.read)
    return [replace(step, read=other, points=(swapped, *rest))]


def _moved(point: Point, vector: int) -> Point:
    """With an operand that begins at a later vector."""
    if point.operand is None:
        return point
    operand = point.operand
    return replace(point, operand=replace(operand, vector=operand.vector + vector))
