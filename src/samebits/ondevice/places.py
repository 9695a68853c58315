"""Where everything lies in the arena: the state first, then the values of a step by their lives."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from samebits.arena import ArenaBuffer, aligned, plan
from samebits.ondevice.tape import Room, StepTape, StoredParameter, StoredStatistics

HEADER, SCALE, SAVED_SCALE = 24, 12, 8
"""Bytes: of a saved state's header, of a parameter's exponents in memory, and saved."""


@dataclass(frozen=True)
class SgdOptions:
    """The constants of SGD with momentum: part of what a network is."""

    momentum: float
    weight_decay: float
    seed: int


@dataclass(frozen=True)
class ParameterPlace:
    """Offsets of a parameter's W, A, V and exponents."""

    parameter: StoredParameter
    w: int
    a: int
    v: int
    scale: int


@dataclass(frozen=True)
class Places:
    """The arena of a tape.

    parameters: in the order of the tape; statistics: with their offsets
    network:    32 bits that tell networks apart, of all that their state depends on
    state:      bytes of the arena that hold it. saved: bytes of a saved state
    arena:      bytes in all; bound: no plan needs less
    """

    parameters: tuple[ParameterPlace, ...]
    statistics: tuple[tuple[StoredStatistics, int], ...]
    rooms: dict[Room, int]
    network: int
    state: int
    saved: int
    arena: int
    bound: int


def place(tape: StepTape, options: SgdOptions) -> Places:
    """The places of a tape: numbers of 8 bytes first, then those of 4, 2 and 1."""
    at, statistics, parameters = 0, [], []
    for held in tape.statistics:
        statistics.append((held, at))
        at += 8 * held.channels
    scales = [at + SCALE * i for i in range(len(tape.parameters))]
    at += SCALE * len(tape.parameters)
    for parameter in tape.parameters:
        parameters.append((at, at + 2 * parameter.size))
        at += 4 * parameter.size
    placed = []
    for parameter, (a, v), scale in zip(tape.parameters, parameters, scales, strict=True):
        placed.append(ParameterPlace(parameter, at, a, v, scale))
        at += parameter.size
    state = aligned(at)
    buffers = [ArenaBuffer(aligned(r.size), r.first, r.last) for r in tape.rooms]
    found = plan(buffers)
    rooms = {r: state + offset for r, offset in zip(tape.rooms, found.offsets, strict=True)}
    elements = sum(parameter.size for parameter in tape.parameters)
    saved = HEADER + SAVED_SCALE * len(tape.parameters) + 5 * elements
    saved += 8 * sum(held.channels for held in tape.statistics)
    return Places(
        tuple(placed),
        tuple(statistics),
        rooms,
        _network(tape, options),
        state,
        saved,
        state + found.peak,
        state + found.bound,
    )


def _network(tape: StepTape, options: SgdOptions) -> int:
    """The number of a network: of names and shapes of its state, and of its optimizer."""
    names = [[p.name, p.shape, p.index] for p in tape.parameters]
    running = [[s.name, s.channels] for s in tape.statistics]
    chosen = [options.momentum, options.weight_decay, options.seed]
    text = json.dumps([names, running, chosen])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
