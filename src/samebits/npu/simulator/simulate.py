"""The machine, executed instruction by instruction: slow, obvious, exact. docs/spec/npu.md.

`simulate` runs one sample after the other, each from the initial memory image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from samebits.errors import InputError, NonFiniteError
from samebits.ir.integer.layers import fnv1a
from samebits.npu.machine.chain import Access, Chain, Loop, Send, Statement, base, read_offsets
from samebits.npu.machine.check import check
from samebits.npu.machine.image import entry_count, fitted, pack, unpack
from samebits.npu.machine.isa import REDUCTIONS
from samebits.npu.machine.program import MEMORIES, QUEUE, TILE_FILES, Hint, Image, Program
from samebits.npu.simulator.counts import Counts, count
from samebits.npu.simulator.machine import (
    Array,
    Memory,
    Queue,
    ShortBlocks,
    canonical,
    multiply,
    pointwise,
    quantize,
    reduced,
)


@dataclass(frozen=True)
class Written:
    """The vectors that one execution of the chain at `line` wrote: their 64-bit FNV-1a hash, and
    themselves if they are kept.

    values: binary16 [iterations * vectors, N], or [iterations * tiles, N, N]
    """

    line: int
    hash: int
    values: Array | None


@dataclass(frozen=True)
class Result:
    """The results of a program.

    outputs: by the names of the output hints, in logical shapes, binary16; with a leading batch
             axis if the inputs have one
    scalars: what s_rd sent, in order
    counts:  the work of one sample
    trace:   of each sample, the executed chains in order; empty unless asked for
    """

    outputs: Mapping[str, Array]
    scalars: tuple[int, ...]
    counts: Counts
    trace: tuple[tuple[Written, ...], ...] = ()


def simulate(
    program: Program,
    image: Image,
    inputs: Mapping[str, Array],
    *,
    trace: bool = False,
    keep_values: bool = False,
) -> Result:
    """Run a program on inputs named by its hints: [B, *shape] each, or [*shape] each.

    Inputs are floating-point numbers, rounded to binary16. keep_values: the trace holds what the
    chains wrote beside the hashes.

    Raises InputError for an illegal program, and for inputs with other names, shapes or types than
    the hints say; NonFiniteError for NaN or an infinity in them or in the memory image.
    """
    statements = check(program, image)
    samples, batched = _samples(program, inputs)
    start = _initial_memories(program, image)
    outputs: dict[str, list[Array]] = {h.name: [] for h in _hints(program, "output")}
    traces: list[tuple[Written, ...]] = []
    scalars: tuple[int, ...] = ()
    for vectors in samples:
        machine = Machine(
            program,
            {name: Memory(name, dict(memory.entries)) for name, memory in start.items()},
            Queue(vectors),
            trace or keep_values,
            keep_values,
        )
        machine.run(statements)
        for name, array in _outputs(program, machine.queue).items():
            outputs[name].append(array)
        traces.append(tuple(machine.trace))
        scalars = tuple(machine.scalars)
    arrays = {name: np.stack(a) if batched else a[0] for name, a in outputs.items()}
    kept = tuple(traces) if trace or keep_values else ()
    return Result(arrays, scalars, count(statements, program.native), kept)


@dataclass
class Machine:
    """One sample's run. Chains carry binary16 [count, N]; where messages point: a line."""

    program: Program
    memories: dict[str, Memory]
    queue: Queue
    traced: bool = False
    keep_values: bool = False
    trace: list[Written] = field(default_factory=list)
    scalars: list[int] = field(default_factory=list)

    def run(self, statements: Sequence[Statement]) -> None:
        """Everything, in order."""
        for statement in statements:
            if isinstance(statement, Loop):
                for _ in range(statement.count):
                    self.run(statement.body)
            elif isinstance(statement, Send):
                self.scalars.append(statement.value)
            else:
                self.chain(statement)

    def chain(self, chain: Chain) -> None:
        """All iterations of a chain."""
        written = []
        for iteration in range(chain.iterations):
            if chain.kind == "matrix":
                written.append(self.move_tiles(chain, iteration))
            else:
                written.append(self.move_vectors(chain, iteration))
        if self.traced:
            values = np.concatenate(written)
            self.trace.append(
                Written(chain.line, fnv1a(values), values if self.keep_values else None)
            )

    def move_vectors(self, chain: Chain, iteration: int) -> Array:
        """One iteration of a vector chain; what it wrote."""
        places = read_offsets(chain) + base(chain.read, iteration, chain.iterations_x)
        carried = np.stack([self.read(chain.read, int(place)) for place in places])
        if chain.mvm_address is not None:
            carried = self.mv_mul(chain, carried)
        for operation in chain.operations:
            operands = [carried]
            if operation.operand is not None:
                first = base(operation.operand, iteration, chain.iterations_x)
                read = [self.read(operation.operand, first + k) for k in range(chain.rows)]
                operands.append(np.stack(read))
            apply = reduced if operation.op in REDUCTIONS else pointwise
            carried = apply(operation.op, *operands)
        for access in chain.writes:
            first = base(access, iteration, chain.iterations_x)
            for k, vector in enumerate(carried):
                self.write(access, first + k, vector)
        return carried

    def mv_mul(self, chain: Chain, vectors: Array) -> Array:
        """The tiles at the chain's address, row by row, times `columns` vectors."""
        assert chain.mvm_address is not None
        where = self.where(chain.line)
        tiles = [
            [
                self.memories["mrf"].read(chain.mvm_address + r * chain.columns + c, where)
                for c in range(chain.columns)
            ]
            for r in range(chain.rows)
        ]
        return multiply(tiles, vectors, self.program.mantissa, chain.requantize)

    def move_tiles(self, chain: Chain, iteration: int) -> Array:
        """One iteration of a chain that moves tiles; the tiles, in binary16."""
        first = base(chain.read, iteration, chain.iterations_x)
        tiles = []
        for k in range(chain.read_count):
            if chain.read.memory in TILE_FILES:
                tile = self.read(chain.read, first + k)
            else:  # its rows, one after the other
                at = range(first + k * chain.tile, first + k * chain.tile + self.program.native)
                tile = np.stack([self.read(chain.read, address) for address in at])
            tiles.append(tile.T if chain.turned else tile)
        for access in chain.writes:
            first = base(access, iteration, chain.iterations_x)
            for k, tile in enumerate(tiles):
                self.write(access, first + k, tile)
        return np.stack(tiles)

    def read(self, access: Access, address: int) -> Array:
        """One vector or tile."""
        if access.memory == QUEUE:
            return self.queue.take(self.where(access.line))
        entry: Array = self.memories[access.memory].read(address, self.where(access.line))
        return entry

    def write(self, access: Access, address: int, entry: Array) -> None:
        """One vector or tile; quantized on its way into mrf."""
        if access.memory == QUEUE:
            self.queue.outgoing.append(entry)
        else:
            self.memories[access.memory].entries[address] = _stored(
                access.memory, entry, self.program.mantissa
            )

    def where(self, line: int) -> str:
        """For messages."""
        return f"{self.program.name}:{line}"


def _stored(memory: str, entry: Array, mantissa: int) -> Array | ShortBlocks:
    return quantize(entry, mantissa) if memory == "mrf" else entry


def _initial_memories(program: Program, image: Image) -> dict[str, Memory]:
    memories = {name: Memory(name) for name in MEMORIES if name != QUEUE}
    for name, entries in image.entries.items():
        for address, entry in entries.items():
            memories[name].entries[address] = _stored(name, canonical(entry), program.mantissa)
    return memories


# --- inputs and outputs -----------------------------------------------------------------------


def _hints(program: Program, kind: str) -> list[Hint]:
    return [hint for hint in program.hints if hint.kind == kind]


def _samples(program: Program, inputs: Mapping[str, Array]) -> tuple[list[list[Array]], bool]:
    """(of each sample, the vectors of the queue; whether there is a batch axis)."""
    hints = _hints(program, "input")
    wanted = {hint.name: hint for hint in hints}
    if set(inputs) != set(wanted):
        raise InputError(
            f"{program.name}: expected inputs {_listed(wanted)}, found {_listed(inputs)}"
        )
    arrays = {}
    for name, array in inputs.items():
        try:
            shape = wanted[name].shape
            rounded = binary16_input(array)
            arrays[name] = rounded if rounded.shape == shape else fitted(rounded, shape)
        except InputError as error:
            raise type(error)(
                f"{program.name}:{wanted[name].line}: input {name!r}: {error}"
            ) from None
    leads = {
        name: array.shape[: array.ndim - len(wanted[name].shape)] for name, array in arrays.items()
    }
    for name, array in arrays.items():
        shape, lead = wanted[name].shape, leads[name]
        if array.shape != (*lead, *shape) or len(lead) > 1 or 0 in array.shape:
            program.fail(
                wanted[name].line,
                f"input {name!r}: expected shape {list(shape)}, or a batch "
                f"[B, {', '.join(map(str, shape))}], found {list(array.shape)}",
            )
    if len(set(leads.values())) > 1:
        found = ", ".join(f"{list(array.shape)} of {name!r}" for name, array in arrays.items())
        raise InputError(f"{program.name}: expected inputs of one batch size, found {found}")
    lead = next(iter(leads.values()), ())
    samples = [
        [
            vector
            for hint in hints
            for vector in pack(arrays[hint.name].reshape(-1, *hint.shape)[b], program.native)
        ]
        for b in range(lead[0] if lead else 1)
    ]
    return samples, bool(lead)


def binary16_input(array: Array) -> Array:
    """Numbers rounded to binary16, as an input of a program.

    Raises InputError, NonFiniteError for NaN, infinities and what is too large for binary16, that
    says what was expected and found, for the caller to say where.
    """
    if not np.issubdtype(array.dtype, np.floating):
        raise InputError(f"expected floating-point numbers, found {array.dtype}")
    with np.errstate(all="ignore"):
        rounded = array.astype(np.float16)
    wrong = np.argwhere(~np.isfinite(rounded))
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise NonFiniteError(
            f"expected finite numbers of magnitude below 65520 (binary16), found {array[at]} at "
            f"index {list(at)}; remove, replace or scale such numbers"
        )
    return rounded


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"


def _outputs(program: Program, queue: Queue) -> dict[str, Array]:
    """The vectors written to the network as the tensors of the output hints."""
    arrays, taken = {}, 0
    for hint in _hints(program, "output"):
        count = entry_count(hint.shape, QUEUE, program.native)
        vectors = queue.outgoing[taken : taken + count]
        arrays[hint.name] = unpack(np.stack(vectors), hint.shape)
        taken += count
    return arrays
