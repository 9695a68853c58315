"""Where everything lies in the arena: the state first, then the values of a step by their lives."""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple, dataclass

from samebits.arena import ArenaBuffer, aligned, plan
from samebits.ondevice.optimizer import POWERS, UpdateOptions
from samebits.ondevice.tape import Room, StepTape, StoredParameter, StoredStatistics

HEADER, SCALE = 24, 16
"""Bytes: of a saved state's header, and of a parameter's exponents in memory."""


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
    network:    32 bits that tell networks apart, of all that their state depends on
    state:      bytes of the arena that hold it. saved: bytes of a saved state
    arena:      bytes in all; bound: no plan needs less
    """

    moments: tuple[str, ...]
    parameters: tuple[ParameterPlace, ...]
    powers: int | None
    statistics: tuple[tuple[StoredStatistics, int], ...]
    rooms: dict[Room, int]
    network: int
    state: int
    saved: int
    arena: int
    bound: int


def place(tape: StepTape, options: UpdateOptions) -> Places:
    """The places of a tape: numbers of 8 bytes first, then those of 4, 2 and 1."""
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
    found = plan([ArenaBuffer(aligned(r.size), r.first, r.last) for r in tape.rooms])
    rooms = {r: state + offset for r, offset in zip(tape.rooms, found.offsets, strict=True)}
    reals = sum(held.channels for held in tape.statistics) + len(POWERS) * options.is_adam
    saved = HEADER + 4 * (1 + kinds) * count + (3 + 2 * kinds) * elements + 8 * reals
    return Places(
        options.moments,
        tuple(placed),
        powers,
        tuple(statistics),
        rooms,
        _network(tape, options),
        state,
        saved,
        state + found.peak,
        state + found.bound,
    )


def _network(tape: StepTape, options: UpdateOptions) -> int:
    """The number of a network: of names and shapes of its state, and of its optimizer."""
    names = [[p.name, p.shape, p.index] for p in tape.parameters]
    running = [[s.name, s.channels] for s in tape.statistics]
    text = json.dumps([names, running, astuple(options)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
