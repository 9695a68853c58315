"""Devices and what things cost on them, in whole picoseconds."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from samebits.errors import InputError
from samebits.recompute.plan.schedule import SEPARABLE, Network

PICOSECONDS = 10**12
LARGEST_FILE = 1 << 20  # bytes of a device file
LARGEST = 10**18  # of any number in it


@dataclass(frozen=True)
class Tier:
    """A level of memory: its size, its bandwidth for one step, its latency."""

    name: str
    bytes: int
    bytes_per_second: int
    latency_ns: int


@dataclass(frozen=True)
class Device:
    """What a plan needs to know of a machine. tiers: from the nearest to the largest.

    dispatch_ns: what starting one operation costs, whatever its size.
    """

    name: str
    integer_operations_per_second: int
    float_operations_per_second: int
    dispatch_ns: int
    tiers: tuple[Tier, ...]

    def tier(self, size: int) -> Tier:
        """The nearest tier that holds `size` bytes; the last one if none does."""
        return next((tier for tier in self.tiers if tier.bytes >= size), self.tiers[-1])

    def compute(self, operations: int, numerics: str) -> int:
        """Picoseconds of that many operations at full width."""
        rate = (
            self.integer_operations_per_second
            if numerics == "bfp"
            else self.float_operations_per_second
        )
        return operations * PICOSECONDS // rate


def load(tier: Tier, size: int) -> int:
    """Picoseconds to read (or write) `size` bytes in a tier; nothing costs nothing."""
    if size == 0:
        return 0
    return tier.latency_ns * 1000 + size * PICOSECONDS // tier.bytes_per_second


def times(network: Network, device: Device, numerics: str) -> list[int]:
    """Picoseconds to compute each sub-layer once, as this project runs it.

    The longer of its arithmetic and its traffic (the roofline of Williams et al. 2009): inputs are
    read (twice for statistics of theirs, unless they are kept) and the output is written in the
    tier that holds them all, as consecutive kernels do.
    """
    result = []
    for layer in network.layers:
        read = sum(network.layers[v].size for v in network.roots(layer.inputs))
        twice = read if "Norm" in layer.kind and not layer.statistics else 0
        traffic = load(device.tier(read + layer.size), read + layer.size + twice)
        arithmetic = device.compute(layer.operations, numerics)
        result.append(device.dispatch_ns * 1000 + max(arithmetic, traffic))
    return result


def gradient_times(network: Network, device: Device, numerics: str) -> list[tuple[int, int]]:
    """Picoseconds of each sub-layer's activation gradient and of its weight gradient.

    As `times`. A product has both, each of the operations of its forward pass (twice as many in
    BFP, whose gradients are two bytes wide). What any other sub-layer does counts as the first.
    """
    width = 2 if network.summed else 4
    result = []
    for layer in network.layers:
        arriving, leaving = width * math.prod(layer.shape), sum(layer.fresh)
        read = sum(network.layers[v].size for v in network.roots(layer.needs))
        weights = sum(size for _, size in layer.weights)
        separable = layer.kind in SEPARABLE
        operations = layer.operations * (2 if separable and network.summed else 1)

        def roofline(traffic: int, operations: int = operations) -> int:
            moved = load(device.tier(traffic), traffic)
            return device.dispatch_ns * 1000 + max(device.compute(operations, numerics), moved)

        if separable:
            result.append(
                (
                    roofline(arriving + weights + leaving) if layer.gradients else 0,
                    roofline(arriving + read + weights) if layer.weights else 0,
                )
            )
        else:
            result.append((roofline(arriving + read + leaving), 0))
    return result


# --- device files -------------------------------------------------------------------------------


def known_devices() -> tuple[str, ...]:
    """Names of the devices that come with the package."""
    folder = resources.files("samebits.recompute") / "devices"
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml")))


def find_device(name: str) -> Device:
    """A device of the package by its name, or that of a TOML file. Raises InputError."""
    if name in known_devices():
        text = (resources.files("samebits.recompute") / "devices" / f"{name}.toml").read_text()
        return parse_device(text, name)
    path = Path(name)
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise InputError(
                f"{path}: expected a device file of at most {LARGEST_FILE} bytes; give another "
                "device"
            )
        return parse_device(data.decode("utf-8"), str(path))
    except OSError as error:
        raise InputError(
            f"{path}: no such device ({error.strerror or error}); expected one of "
            f"{', '.join(known_devices())}, or a TOML file as samebits device writes it"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a TOML file ({error}); expected UTF-8 text") from error


def parse_device(text: str, source: str) -> Device:
    """A device from TOML; InputError naming the field that is missing or wrong."""
    try:
        record = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{source}: not a TOML file ({error})") from error
    tiers = record.get("tier")
    if not isinstance(tiers, list) or not tiers or not all(isinstance(t, dict) for t in tiers):
        raise InputError(
            f"{source}: field tier: expected one or more [[tier]] tables, found {_shown(tiers)}"
        )
    device = Device(
        _text(record, "name", source),
        _number(record, "integer_operations_per_second", source, 1),
        _number(record, "float_operations_per_second", source, 1),
        _number(record, "dispatch_ns", source, 0),
        tuple(_tier(tier, source, f"tier[{i}].") for i, tier in enumerate(tiers)),
    )
    for i, (near, far) in enumerate(zip(device.tiers, device.tiers[1:], strict=False)):
        if near.bytes >= far.bytes:
            raise InputError(
                f"{source}: field tier[{i + 1}].bytes: expected more than the {near.bytes} of the "
                f"tier before it, found {far.bytes}; list the tiers from the nearest to the largest"
            )
    return device


def _tier(record: Mapping[str, Any], source: str, place: str) -> Tier:
    return Tier(
        _text(record, "name", source, place),
        _number(record, "bytes", source, 1, place),
        _number(record, "bytes_per_second", source, 1, place),
        _number(record, "latency_ns", source, 0, place),
    )


def _text(record: Mapping[str, Any], field: str, source: str, place: str = "") -> str:
    value = record.get(field)
    if not isinstance(value, str) or not value or not value.isprintable() or len(value) > 200:
        raise InputError(f"{source}: field {place}{field}: expected a name, found {_shown(value)}")
    return value


def _number(record: Mapping[str, Any], field: str, source: str, least: int, place: str = "") -> int:
    value = record.get(field)
    if type(value) is not int or not least <= value <= LARGEST:
        raise InputError(
            f"{source}: field {place}{field}: expected a whole number in {least}..{LARGEST}, "
            f"found {_shown(value)}"
        )
    return value


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:60]


def device_text(device: Device) -> str:
    """The TOML file of a device."""
    lines = [
        f'name = "{device.name}"',
        f"integer_operations_per_second = {device.integer_operations_per_second}",
        f"float_operations_per_second = {device.float_operations_per_second}",
        f"dispatch_ns = {device.dispatch_ns}",
    ]
    for tier in device.tiers:
        lines += [
            "",
            "[[tier]]",
            f'name = "{tier.name}"',
            f"bytes = {tier.bytes}",
            f"bytes_per_second = {tier.bytes_per_second}",
            f"latency_ns = {tier.latency_ns}",
        ]
    return "\n".join(lines) + "\n"
