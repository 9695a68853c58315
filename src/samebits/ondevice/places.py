"""Where everything lies in the arena: the state first, then the values of a step by their lives."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from samebits.arena import ArenaBuffer, ArenaPlan, aligned, live_bound, plan
from samebits.ondevice.optimizer import POWERS, UpdateOptions
from samebits.ondevice.tape import Room, StepTape, StoredParameter, StoredStatistics

HEADER, SCALE = 24, 16
"""Bytes: of a saved state's header, and of a parameter's exponents in memory."""
MOVES = 5000  # orders that a plan of memory tries
MOVES_OF_SPARE = 500  # the same, where a room that may be left out is tried


@dataclass(frozen=True)
class ParameterPlace:
    """Offsets of a parameter's W, A, moments and exponents."""

    parameter: StoredParameter
    w: int
    a: int
    moments: tuple[int, ...]
    scale: int


@dataclass(frozen=True)
class Places:
    """The arena of a tape.

    moments:    what there is of every parameter
    parameters: in the order of the tape; statistics: with their offsets; powers: of Adam, or None
    rooms:      offsets of the values of a step, but for those that are left out
    frozen:     sha256 of all that no step changes, or ""
    network:    32 bits that tell networks apart, of all that their state depends on
    state:      bytes of the arena that hold it. saved: bytes of a saved state
    arena:      bytes in all; bound: no plan needs less
    """

    moments: tuple[str, ...]
    parameters: tuple[ParameterPlace, ...]
    powers: int | None
    statistics: tuple[tuple[StoredStatistics, int], ...]
    rooms: dict[Room, int]
    frozen: str
    network: int
    state: int
    saved: int
    arena: int
    bound: int


def place(tape: StepTape, options: UpdateOptions, frozen: str = "", limit: int = 0) -> Places:
    """The places of a tape: numbers of 8 bytes first, then those of 4, 2 and 1.

    limit: bytes of the arena up to which room that spares time is taken
    """
    at, statistics, placed = 0, [], []
    for held in tape.statistics:
        statistics.append((held, at))
        at += 8 * held.channels
    powers = at if options.is_adam else None
    at += 8 * len(POWERS) * options.is_adam
    kinds, count = len(options.moments), len(tape.parameters)
    elements = sum(parameter.size for parameter in tape.parameters)
    pairs = at + SCALE * count
    bytes_at = pairs + 2 * (1 + kinds) * elements
    for i, parameter in enumerate(tape.parameters):
        own = [pairs + 2 * k * parameter.size for k in range(1 + kinds)]
        placed.append(ParameterPlace(parameter, bytes_at, own[0], tuple(own[1:]), at + SCALE * i))
        pairs += 2 * (1 + kinds) * parameter.size
        bytes_at += parameter.size
    state = aligned(bytes_at)
    offsets, found = _planned(tape.rooms, limit - state)
    rooms = {room: state + offset for room, offset in offsets.items()}
    reals = sum(held.channels for held in tape.statistics) + len(POWERS) * options.is_adam
    saved = HEADER + 4 * (1 + kinds) * count + (3 + 2 * kinds) * elements + 8 * reals
    return Places(
        options.moments,
        tuple(placed),
        powers,
        tuple(statistics),
        rooms,
        frozen,
        _network(tape, options, frozen),
        state,
        saved,
        state + found.peak,
        state + found.bound,
    )


def _planned(rooms: Sequence[Room], limit: int) -> tuple[dict[Room, int], ArenaPlan]:
    """Offsets of rooms; of those that may be left out, the ones that fit within a limit of bytes or
    beside the others, first what saves the most for its bytes; and the plan."""
    sizes = {room: room.size for room in rooms if room.saves is None}

    def buffers(sizes: dict[Room, int]) -> list[ArenaBuffer]:
        return [ArenaBuffer(aligned(size), r.first, r.last) for r, size in sizes.items()]

    best, over = plan(buffers(sizes), moves=MOVES), dict[Room, Room]()
    saving = [(room.saves / room.size, room) for room in rooms if room.saves is not None]
    for _, room in sorted(saving, key=lambda found: -found[0]):
        places = [room] if room.around is None else [room, room.around]
        for at in places:
            more, most = sizes | {at: room.size}, max(best.peak, limit)
            if live_bound(buffers(more)) > most:
                continue
            offsets = dict(zip(sizes, best.offsets, strict=True))
            order = sorted(range(len(more)), key=[offsets.get(r, most) for r in more].__getitem__)
            found = plan(buffers(more), most, MOVES_OF_SPARE, order)
            if found.peak <= most:
                sizes, best, over[room] = more, found, at
                break
    offsets = dict(zip(sizes, best.offsets, strict=True))
    return offsets | {room: offsets[at] for room, at in over.items()}, best


def _network(tape: StepTape, options: UpdateOptions, frozen: str) -> int:
    """The number of a network: of names and shapes of its state, of its optimizer, and of what no
    step changes."""
    names = [[p.name, p.shape, p.index] for p in tape.parameters]
    running = [[s.name, s.channels] for s in tape.statistics]
    text = json.dumps([names, running, astuple(options), *[frozen] * bool(frozen)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
