"""Tensor memory as torch's allocator saw it: every allocation and release, none left out.

Kernels that allocate inside torch (temporaries of an operator, sums of gradients in the autograd
engine) are seen too; what C code takes with malloc is not (docs/spec/recompute.md, 8).
"""

from __future__ import annotations

import bisect
import contextlib
import gc
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from samebits.train.run.measure import distinct_storages, storages


@dataclass(frozen=True)
class MemorySpan:
    """Tensor memory while a labelled part of the code ran, in bytes above that at the start of the
    recording.

    start, end: level before and after; peak: largest level in between, `start` included
    """

    label: str
    start: int
    peak: int
    end: int


class Recording:
    """Spans in the order in which they began, and the level after every event; filled at the end.

    levels: pairs of a time in nanoseconds and bytes
    """

    def __init__(self) -> None:
        self.spans: list[MemorySpan] = []
        self.levels: list[tuple[int, int]] = []

    def span(self, label: str) -> contextlib.AbstractContextManager[Any]:
        """A with block whose memory is recorded under `label`."""
        return record_function(_PREFIX + label)

    @property
    def peak(self) -> int:
        """Largest level, at least 0."""
        return max((level for _, level in self.levels), default=0)

    def named(self, label: str) -> MemorySpan:
        """The only span of that label."""
        (span,) = (span for span in self.spans if span.label == label)
        return span


_PREFIX = "samebits memory: "
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own remarks on standard error


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the garbage collector: what ran before must not be freed while something is recorded.

    To collect it first takes a quarter of a second, more than most recordings.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def recording(device: str = "cpu") -> Iterator[Recording]:
    """Record the allocations of a with block on `device` ("cpu" or "cuda")."""
    result = Recording()
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with _uncollected(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the profiler's remarks on its own configuration
        with profile(activities=activities, profile_memory=True) as recorder:
            yield result
    assert recorder.profiler is not None
    assert recorder.profiler.kineto_results is not None
    changes: list[tuple[int, int]] = []
    ranges: list[tuple[int, int, str]] = []
    _collect(recorder.profiler.kineto_results.experimental_event_tree(), device, changes, ranges)
    changes.sort(key=lambda change: change[0])  # stable: events of one nanosecond keep their order
    level = 0
    for time, change in changes:
        level += change
        result.levels.append((time, level))
    result.spans = [_span(result.levels, *r) for r in sorted(ranges, key=lambda r: r[0])]


def _collect(
    events: Sequence[Any],
    device: str,
    changes: list[tuple[int, int]],
    ranges: list[tuple[int, int, str]],
) -> None:
    """Add the allocations of a tree of profiler events to `changes`, as (time, bytes), and the
    labelled parts to `ranges`, as (start, end, label); times in nanoseconds."""
    stack = list(reversed(events))
    while stack:
        event = stack.pop()
        tag = str(event.tag)
        if tag.endswith("Allocation"):
            fields = event.extra_fields
            if fields.device.type == device:
                changes.append((event.start_time_ns, fields.alloc_size))
        elif event.name.startswith(_PREFIX) and not tag.endswith("Kineto"):
            end = event.start_time_ns + event.duration_time_ns
            ranges.append((event.start_time_ns, end, event.name[len(_PREFIX) :]))
        stack.extend(reversed(event.children))


def _span(levels: list[tuple[int, int]], start: int, end: int, label: str) -> MemorySpan:
    first = bisect.bisect_left(levels, start, key=lambda level: level[0])
    last = bisect.bisect_right(levels, end, key=lambda level: level[0])
    before = levels[first - 1][1] if first else 0
    inside = [before, *(level for _, level in levels[first:last])]
    return MemorySpan(label, before, max(inside), inside[-1])


def step_peak(step: Any, device: str = "cpu") -> int:
    """Largest tensor memory of `step()` above the level at its start, in bytes."""
    with recording(device) as record, record.span("step"):
        step()
    span = record.named("step")
    return span.peak - span.start


def tensor_storages(value: Any) -> list[tuple[int, int]]:
    """Address and bytes of each distinct storage in a tensor, BFP or not."""
    found = distinct_storages(storages(value))
    return [(address, size) for address, (size, _) in found.items()]
