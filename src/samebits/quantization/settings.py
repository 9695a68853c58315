"""Settings of quantization: schemes by name, calibration, outputs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from samebits.errors import InputError
from samebits.numerics import Format, catalog
from samebits.recipes.quantization import EQUALIZATIONS, METHODS, ROUNDINGS


def _power_of_two(bits: int) -> Format:
    """Qm.n of any n: a signed format whose scale is the power of two that the range asks for."""
    name = f"power-of-two-s{bits}"
    return replace(catalog.qmn(0, bits - 1), name=name, fraction_bits=0)


def _schemes(bits: int) -> list[Format]:
    return [
        catalog.asymmetric(bits, signed=True),
        catalog.asymmetric(bits, signed=False),
        catalog.symmetric(bits),
        catalog.symmetric(bits, full=True),
        _power_of_two(bits),
    ]


ACTIVATIONS: dict[str, Format] = {fmt.name: fmt for bits in (8, 16) for fmt in _schemes(bits)}
WIDTHS = (8, 10, 12, 16)  # bits that an activation may have; 10 and 12 lie in 16
_WIDTHS: dict[str, Format] = {fmt.name: fmt for bits in WIDTHS for fmt in _schemes(bits)}
# Codes less a zero point of 16 bits need 17, for which products of integers have no room.
WEIGHTS: dict[str, Format] = {
    fmt.name: fmt
    for fmt in (
        catalog.symmetric(8),
        catalog.asymmetric(8, signed=True),
        _power_of_two(8),
        catalog.symmetric(4),
        catalog.symmetric(16),
        _power_of_two(16),
    )
}


def with_bits(fmt: Format, bits: int, *, weights: bool = False) -> Format | None:
    """The format of the same kind with other bits, of activations or of weights; None: there is
    none. Of activations there are WIDTHS."""
    name = re.sub(rf"(?<=[su]){fmt.bits}\b", str(bits), fmt.name)
    return (WEIGHTS if weights else _WIDTHS).get(name)


def code_type(fmt: Format) -> str:
    """numpy's name of the integer type that holds the codes; 4 bits lie in one of 8."""
    return f"{'uint' if fmt.code_min == 0 else 'int'}{8 if fmt.bits <= 8 else 16}"


def ends_within(fmt: Format) -> tuple[bool, bool]:
    """Whether the type of the codes holds some below code_min, and some above code_max."""
    held = np.iinfo(code_type(fmt))
    return fmt.code_min > held.min, fmt.code_max < held.max


@dataclass(frozen=True)
class Settings:
    """How `quantize` quantizes.

    activations: a key of ACTIVATIONS. asymmetric-*, symmetric-* (the range restricted to
                 +-code_max), symmetric-*-full (one code more below), power-of-two-* (scale 2**-n)
    weights:     a key of WEIGHTS
    per_channel: one weight scale for each output channel, else one for the tensor
    calibration: minmax; percentile (each tail beyond it is clipped); mse (the clipping
                 thresholds of least squared error). Of activations: weights keep their range
    percentile:  the share of elements kept, in per cent, above 50 and up to 100
    output_bits: of graph outputs; None: as the activations
    symmetry:    weights are symmetric where the smaller end of their range is at least this part of
                 the larger one, else asymmetric; None: as `weights` says
    float_bias:  biases stay float32, for targets with a floating-point unit
    scale_bits:  significant bits of scales, which are rounded up to them
    equalize:    channels between layers are scaled for even ranges of weights, or of activations
                 and weights (`equalize`); None: as they are
    rounding:    of weights: nearest; least-error of their layer's output (`descent`)
    bias_correction: the mean error of each output channel goes into its bias (`refine`)
    report_samples: samples that the report compares
    mixed:       the number of tensors, activations and weights, that get twice the bits: those
                 whose rounding costs the outputs most (`sensitivity`); None: none
    widths:      bits of single tensors: of groups of activations (`placement`) one of WIDTHS, of
                 constants 16; others have those of their format
    entries:     input -> the value behind it that gets the codes of the input (`levels`)
    headroom:    16-bit activations reach twice as far as calibration saw: a sequence may go on
    repair:      tensors get more bits where the outputs would be lost (`sensitivity`)
    refine_samples: samples, at most, that roundings and biases are chosen on
    stop_early: samples after which calibration ends if they changed no scale; None: all are read
    """

    activations: str = "asymmetric-s8"
    weights: str = "symmetric-s8"
    per_channel: bool = True
    calibration: str = "minmax"
    percentile: float = 99.99
    output_bits: int | None = None
    report_samples: int = 16
    symmetry: float | None = None
    float_bias: bool = False
    scale_bits: int = 24
    stop_early: int | None = None
    equalize: str | None = None
    rounding: str = "nearest"
    bias_correction: bool = False
    mixed: int | None = None
    widths: Mapping[str, int] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)
    headroom: bool = False
    repair: bool = False
    refine_samples: int = 128

    def __post_init__(self) -> None:
        """InputError that names the first setting out of range."""
        _one_of("--scheme", self.activations, ACTIVATIONS)
        _one_of("--weights", self.weights, WEIGHTS)
        _one_of("--calibrate", self.calibration, METHODS)
        _one_of("--weight-rounding", self.rounding, ROUNDINGS)
        if self.equalize is not None:
            _one_of("--equalize", self.equalize, EQUALIZATIONS)
        if not (math.isfinite(self.percentile) and 50 < self.percentile <= 100):
            raise InputError(
                f"--percentile: expected above 50 and up to 100, found {self.percentile}"
            )
        if self.output_bits not in (None, 8, 16):
            raise InputError(f"--output-bits: expected 8 or 16, found {self.output_bits}")
        if self.symmetry is not None and not 0 <= self.symmetry <= 1:
            raise InputError(f"--symmetry: expected from 0 to 1, found {self.symmetry}")
        if self.symmetry is not None and self.weight_format.bits != 8:
            raise InputError(
                f"--symmetry: expected weights of 8 bits, found {self.weights}; codes of 16 bits "
                "have no room for a zero point"
            )
        if not 1 <= self.scale_bits <= 24:
            raise InputError(f"scale bits: expected from 1 to 24, found {self.scale_bits}")
        if self.report_samples < 1:
            raise InputError(f"report samples: expected 1 or more, found {self.report_samples}")
        if self.mixed is not None and self.mixed < 1:
            raise InputError(f"--mixed: expected 1 tensor or more, found {self.mixed}")
        if self.refine_samples < 1:
            raise InputError(f"refine samples: expected 1 or more, found {self.refine_samples}")
        if self.stop_early is not None and self.stop_early < 1:
            raise InputError(f"--stop-early: expected 1 or more, found {self.stop_early}")

    @property
    def refines(self) -> bool:
        """Whether codes of weights or biases are chosen on samples."""
        return self.rounding != "nearest" or self.bias_correction

    @property
    def activation_format(self) -> Format:
        """The format of activations."""
        return ACTIVATIONS[self.activations]

    @property
    def output_format(self) -> Format:
        """The format of graph outputs: that of activations, in `output_bits`."""
        fmt = self.activation_format
        return with_bits(fmt, self.output_bits or fmt.bits) or fmt

    def width_of(self, name: str, fmt: Format, *, weights: bool = False) -> Format:
        """The format of a group or constant: with bits of its own, where it has them."""
        bits = self.widths.get(name)
        return fmt if bits is None else with_bits(fmt, bits, weights=weights) or fmt

    @property
    def weight_format(self) -> Format:
        """The format of weights before `symmetry` is considered."""
        return WEIGHTS[self.weights]

    def format_of(self, low: float, high: float) -> Format:
        """The format of weights with this range."""
        fmt = self.weight_format
        if self.symmetry is None:
            return fmt
        ends = sorted((abs(min(low, 0.0)), abs(max(high, 0.0))))
        if ends[0] >= self.symmetry * ends[1]:
            return catalog.symmetric(fmt.bits)
        return catalog.asymmetric(fmt.bits, signed=True)


def _one_of(what: str, found: str, known: dict[str, Format] | tuple[str, ...]) -> None:
    if found not in known:
        raise InputError(f"{what}: expected one of {', '.join(known)}, found {found!r}")
