"""Reports of quantization: scale, clipping, signal-to-noise ratio and bytes of every tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from samebits.ir import Graph
from samebits.ir.many import traces
from samebits.ir.signal import finite, sqnr
from samebits.quantization.changes import LayerChange
from samebits.quantization.convert import Converted, QuantizedConstant, QuantizedTensor
from samebits.quantization.observe import Statistics
from samebits.quantization.settings import Settings

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TensorReport:
    """One activation. low, high: the range its scale was chosen for; seen: in calibration. scale:
    the largest, where each feature has one.

    clip_rate: share of the elements of the compared samples beyond the codes
    sqnr_db:   10 log10(sum x**2 / sum (x - y)**2), x from the float graph and y from the quantized
               one, errors of the layers before included; None if they are equal
    """

    name: str
    op: str
    format: str
    scale: float
    zero_point: int
    low: float
    high: float
    seen_low: float
    seen_high: float
    clip_rate: float
    sqnr_db: float | None


@dataclass(frozen=True)
class ConstantReport:
    """One weight, bias or other constant. scales: their number, with the least and the greatest.

    bytes_after: of the codes, scales and zero points
    """

    name: str
    node: str
    op: str
    format: str
    shape: tuple[int, ...]
    scales: int
    scale_min: float
    scale_max: float
    sqnr_db: float | None
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class StepReport:
    """A step of `--effort high`. sqnr_db: of the outputs on the samples held out, with this step
    and those kept before it; None if they are equal to the float network's."""

    name: str
    sqnr_db: float | None
    kept: bool


@dataclass(frozen=True)
class QuantizationReport:
    """The result of quantizing a graph. Bytes are those of the quantized constants; samples: the
    number that was compared; changes: what was done beyond rounding to nearest, layer by layer;
    steps: what was tried, measured on `held_out` samples."""

    settings: Settings
    calibration_samples: int
    samples: int
    tensors: tuple[TensorReport, ...]
    constants: tuple[ConstantReport, ...]
    bytes_before: int
    bytes_after: int
    changes: tuple[LayerChange, ...] = ()
    steps: tuple[StepReport, ...] = ()
    held_out: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; infinite ratios become None."""
        found: dict[str, Any] = finite(asdict(self))
        return found


@dataclass
class _Sums:
    """Sums over the compared samples: squared signal and noise, elements, saturated elements."""

    signal: float = 0.0
    noise: float = 0.0
    count: int = 0
    clipped: int = 0


def report(
    graph: Graph,
    converted: Converted,
    seen: Mapping[str, Statistics],
    samples: Sequence[Sequence[Array]],
    calibration_samples: int,
    settings: Settings,
    changes: tuple[LayerChange, ...] = (),
    greatest: Mapping[str, str] = MappingProxyType({}),
) -> QuantizationReport:
    """Compare the float graph with the quantized one, tensor by tensor, on the samples.

    greatest: value -> the value, in both graphs, that is compared in its place (`placement`)

    Ratios are measurements in float64; nothing that is computed later depends on them.
    """
    sums = {tensor.name: _Sums() for tensor in converted.tensors}
    pairs = zip(traces(graph, samples), traces(converted.graph, samples), strict=True)
    for before, after in pairs:
        for tensor in converted.tensors:
            left = greatest.get(tensor.name)
            x = np.asarray(before[left or tensor.name], np.float64)
            y = np.asarray(after[left or tensor.dequantized], np.float64)
            total = sums[tensor.name]
            total.signal += float(np.sum(x * x))
            total.noise += float(np.sum((x - y) ** 2))
            total.count += x.size
            total.clipped += clipped(x, tensor)
    constants = tuple(constant_report(constant) for constant in converted.constants)
    return QuantizationReport(
        settings,
        calibration_samples,
        len(samples),
        tuple(_tensor(t, seen.get(t.name), sums[t.name]) for t in converted.tensors),
        constants,
        sum(c.bytes_before for c in constants),
        sum(c.bytes_after for c in constants),
        changes,
    )


def clipped(x: Array, tensor: QuantizedTensor) -> int:
    """The number of elements more than half a step beyond the least and greatest code."""
    numbers = tensor.numbers
    scales = [float(each.scale) for each in tensor.features or (numbers,)]
    steps = x / (np.array(scales) if tensor.features else scales[0])
    low = numbers.format.code_min - numbers.zero_point
    high = numbers.format.code_max - numbers.zero_point
    return int(np.count_nonzero((steps < low - 0.5) | (steps > high + 0.5)))


def _tensor(tensor: QuantizedTensor, stats: Statistics | None, sums: _Sums) -> TensorReport:
    """The line of one activation."""
    numbers = tensor.numbers
    each = tensor.features or (numbers,)
    return TensorReport(
        tensor.name,
        tensor.op,
        numbers.format.name + (" by feature" if tensor.features else ""),
        float(numbers.scale),
        numbers.zero_point,
        float(min(one.low for one in each)),
        float(max(one.high for one in each)),
        stats.low if stats else 0.0,
        stats.high if stats else 0.0,
        sums.clipped / sums.count if sums.count else 0.0,
        sqnr(sums.signal, sums.noise),
    )


def constant_report(constant: QuantizedConstant) -> ConstantReport:
    """Scales, error and bytes of one constant."""
    codes = constant.codes
    x = constant.values.astype(np.float64)
    y = codes.reals()
    scales = [float(s) for s in codes.scales]
    zero_points = 0 if codes.format.bits == 32 else codes.codes.itemsize
    return ConstantReport(
        constant.name,
        constant.node,
        constant.op,
        codes.format.name,
        tuple(x.shape),
        len(scales),
        min(scales),
        max(scales),
        sqnr(float(np.sum(x * x)), float(np.sum((x - y) ** 2))),
        constant.values.nbytes,
        codes.codes.nbytes + len(scales) * (4 + zero_points),
    )
