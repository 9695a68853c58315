"""Devices, and the times of loads and computations on them, in whole picoseconds.

Times are those of the roofline model (Williams, Waterman, Patterson 2009): a sub-layer is bound
either by its arithmetic or by its memory traffic, so it takes the longer of the two. The traffic is
that of the nearest tier of memory which holds everything the sub-layer touches, as consecutive
kernels leave it there. All times are whole numbers: plans are compared by them, and the same plan
must come out on every machine.

Example: 10**12 operations a second; a near tier of 12 bytes with one byte a picosecond, a far one
with a quarter of that; no latency, no dispatch. A convolution of 48 operations that reads 4 bytes
and writes 8 fits the near tier: max(48, 12) = 48 ps. A batch-norm of 16 operations that reads 8
bytes twice, for its statistics first, and writes 8 touches 16 bytes, so it works in the far tier:
max(16, 24 * 4) = 96 ps.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from samebits.entrance import read
from samebits.errors import InputError
from samebits.recompute.network.sublayer import SEPARABLE, PassNetwork

PICOSECONDS = 10**12
LARGEST_FILE = 1 << 20  # bytes of a device file
LARGEST = 10**18  # of any number in it
FROM_ZERO = ("dispatch_ns", "overhead_ns", "latency_ns")  # the other numbers are at least 1


@dataclass(frozen=True)
class Tier:
    """A level of memory: its size, its bandwidth for one step, its latency."""

    name: str
    bytes: int
    bytes_per_second: int
    latency_ns: int


@dataclass(frozen=True)
class Device:
    """A machine, as far as plans need it.

    integer_operations_per_second, float_operations_per_second: of products; pointwise ones are all
                 others, in either numerics
    dispatch_ns: time to start one operator, whatever its size
    overhead_ns: time that a sub-layer in BFP takes besides
    tiers:       from the nearest to the largest
    """

    name: str
    integer_operations_per_second: int
    float_operations_per_second: int
    pointwise_operations_per_second: int
    dispatch_ns: int
    overhead_ns: int
    tiers: tuple[Tier, ...]

    def tier(self, size: int) -> Tier:
        """The nearest tier that holds `size` bytes; the last one if none does."""
        return next((tier for tier in self.tiers if tier.bytes >= size), self.tiers[-1])

    def compute(self, operations: int, numerics: str) -> int:
        """Picoseconds of a number of operations of products at the full rate of the numerics."""
        rate = (
            self.integer_operations_per_second
            if numerics == "bfp"
            else self.float_operations_per_second
        )
        return operations * PICOSECONDS // rate

    def arithmetic(self, operations: int, products: int, numerics: str) -> int:
        """Picoseconds of so many operations, some of which are of products."""
        pointwise = (operations - products) * PICOSECONDS // self.pointwise_operations_per_second
        return self.compute(products, numerics) + pointwise

    @property
    def start(self) -> int:
        """Picoseconds to start a sub-layer in BFP."""
        return 1000 * (self.overhead_ns + self.dispatch_ns)


def load(tier: Tier, size: int) -> int:
    """Picoseconds to read or write `size` bytes in a tier; 0 for no bytes."""
    if size == 0:
        return 0
    return tier.latency_ns * 1000 + size * PICOSECONDS // tier.bytes_per_second


def times(network: PassNetwork, device: Device) -> list[int]:
    """Picoseconds to compute each sub-layer of a pass in BFP once, as this project runs it.

    What starting it takes, and the longer of its arithmetic and its traffic: inputs are read (twice
    if statistics of them are taken first) and the output is written, in the tier that holds them
    all.
    """
    result = []
    for layer in network.layers:
        read = sum(network.layers[v].size for v in network.roots(layer.inputs))
        twice = read if "Norm" in layer.kind else 0
        traffic = load(device.tier(read + layer.size), read + layer.size + twice)
        arithmetic = device.arithmetic(layer.operations, layer.products, "bfp")
        result.append(device.start + max(arithmetic, traffic))
    return result


def gradient_times(network: PassNetwork, device: Device) -> list[tuple[int, int]]:
    """Picoseconds of each sub-layer's activation gradient and of its weight gradient.

    The roofline as in `times`. The operations of a product's backward pass are shared out evenly
    over its gradients. The whole backward pass of any other sub-layer counts as its activation
    gradient.
    """
    result = []
    for layer in network.layers:
        arriving, leaving = 2 * math.prod(layer.shape), sum(layer.fresh)
        read = sum(network.layers[v].size for v in network.roots(layer.needs))
        weights = sum(size for _, size in layer.weights)
        separable = layer.kind in SEPARABLE
        gradients = bool(layer.gradients) + bool(layer.weights) if separable else 1
        operations = layer.gradient_operations // max(gradients, 1)

        def roofline(traffic: int, operations: int = operations) -> int:
            moved = load(device.tier(traffic), traffic)
            return device.start + max(device.compute(operations, "bfp"), moved)

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
    """The device of that name in the package, or in an untrusted TOML file. Raises InputError."""
    if name in known_devices():
        text = (resources.files("samebits.recompute") / "devices" / f"{name}.toml").read_text()
        return parse_device(text, name)
    path = Path(name)
    try:
        data = read(path, LARGEST_FILE, "give another device")
        return parse_device(data.decode("utf-8").removeprefix("\ufeff"), str(path))
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
    made = (Tier(**_fields(Tier, t, f"{source}: field tier[{i}].")) for i, t in enumerate(tiers))
    device = Device(**_fields(Device, record, f"{source}: field "), tiers=tuple(made))
    for i, (near, far) in enumerate(zip(device.tiers, device.tiers[1:], strict=False)):
        if near.bytes >= far.bytes:
            raise InputError(
                f"{source}: field tier[{i + 1}].bytes: expected more than the {near.bytes} of the "
                f"tier before it, found {far.bytes}; list the tiers from the nearest to the largest"
            )
    return device


def _fields(cls: Any, record: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The checked names and numbers of a Device or a Tier, `place` being where they stand."""
    values = {field.name: record.get(field.name) for field in fields(cls) if field.name != "tiers"}
    for name, value in values.items():
        least = 0 if name in FROM_ZERO else 1
        if name == "name":
            good = isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable()
            expected = "a name"
        else:
            good = type(value) is int and least <= value <= LARGEST
            expected = f"a whole number in {least}..{LARGEST}"
        if not good:
            raise InputError(f"{place}{name}: expected {expected}, found {_shown(value)}")
    return values


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:60]


def device_text(device: Device) -> str:
    """The TOML file of a device."""
    tables = [("", device), *(("\n[[tier]]\n", tier) for tier in device.tiers)]
    return "".join(title + _lines(vars(record)) for title, record in tables)


def _lines(record: Mapping[str, Any]) -> str:
    texts = (f'{k} = "{v}"' if k == "name" else f"{k} = {v}" for k, v in record.items())
    return "".join(f"{line}\n" for line in texts if not line.startswith("tiers"))
