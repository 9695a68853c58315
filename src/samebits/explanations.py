"""Explanations of errors: a topic for each, and a section of `troubleshooting.md` for each topic.

Nobody types a topic where an error is raised. It follows from the error's class and from the room
of samebits in which it was raised, the innermost one of its traceback: an `UnsupportedError` of
`samebits/onnx` is `unsupported-onnx`. Rooms whose errors have the same causes share a topic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from types import TracebackType

from samebits.errors import (
    CheckpointError,
    FidelityError,
    InputError,
    NonFiniteError,
    PackageError,
    RangeError,
    SamebitsError,
    UnsupportedError,
    WorkerError,
)

PAGE = "troubleshooting.md"

# Errors that no class of samebits stands for; the command line finds out which they are.
FILE, MEMORY, USAGE = "file", "memory", "usage"

# The topic of a class in a room; None stands for every other room.
TOPICS: dict[type[SamebitsError], dict[str | None, str]] = {
    CheckpointError: {None: "checkpoint"},
    FidelityError: {None: "fidelity"},
    PackageError: {None: "package"},
    WorkerError: {None: "worker"},
    NonFiniteError: {None: "non-finite"},
    RangeError: {None: "range-training", "ir": "range-network", "pytorch": "range-network"},
    UnsupportedError: {
        None: "unsupported-network",
        "codegen": "unsupported-c",
        "kernels": "unsupported-training",
        "npu": "unsupported-npu",
        "ondevice": "unsupported-c",
        "onnx": "unsupported-onnx",
        "pytorch": "unsupported-pytorch",
        "recompute": "unsupported-plan",
        "settled": "state",
        "train": "unsupported-training",
        "verification": "unsupported-backend",
    },
    InputError: {
        None: "input-options",
        "callables": "input-callable",
        "codegen": "input-c",
        "csrc": "input-c",
        "data": "input-data",
        "elsewhere": "input-format",
        "files": "input-samples",
        "ir": "input-samples",
        "model": "input-model",
        "npu": "input-npu",
        "numerics": "input-numbers",
        "ondevice": "input-c",
        "onnx": "input-onnx",
        "pytorch": "input-pytorch",
        "quantization": "input-quantization",
        "recompute": "input-plan",
        "reports": "input-model",
        "samples": "input-samples",
        "settled": "state",
        "sources": "input-callable",
        "tables": "input-numbers",
        "train": "input-training",
        "verification": "input-verification",
    },
    SamebitsError: {None: "failed-write", "codegen": "failed-run"},
}


@dataclass(frozen=True)
class Explanation:
    """A section of Troubleshooting: what an error means, its commonest causes, what to do.

    topic: what stands under the error, and is its heading
    text: Markdown, written to be read as text
    """

    topic: str
    text: str

    @property
    def title(self) -> str:
        """The first sentence."""
        return " ".join(self.text.partition("\n\n")[0].split())

    def to_dict(self) -> dict[str, str]:
        """As JSON data."""
        return {"topic": self.topic, "title": self.title, "text": self.text}

    def __str__(self) -> str:
        return f"{self.topic}\n\n{self.text}"


def topic_of(error: BaseException) -> str | None:
    """The topic of an error that a user can mend; None for one that is a fault of the program."""
    for kind in type(error).__mro__:
        rooms = TOPICS.get(kind)
        if rooms is not None:
            return rooms.get(room_of(error.__traceback__), rooms[None])
    if isinstance(error, MemoryError):
        return MEMORY
    return FILE if isinstance(error, OSError) else None


def room_of(trace: TracebackType | None) -> str | None:
    """The room of samebits in which a traceback ends, libraries that it called left out."""
    found = None
    while trace is not None:
        package, _, module = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")
        if package == "samebits" and module:
            found = module.partition(".")[0]
        trace = trace.tb_next
    return found


def explanations() -> dict[str, Explanation]:
    """Every explanation, by its topic, in the order of the page."""
    page = resources.files("samebits").joinpath(PAGE).read_text(encoding="utf-8")
    _, *parts = re.split(r"^## (.+)\n", page, flags=re.MULTILINE)
    return {
        topic: Explanation(topic, text.strip() + "\n")
        for topic, text in zip(parts[::2], parts[1::2], strict=True)
    }


def explain(about: str | BaseException) -> Explanation:
    """The explanation of a topic, or of an error that was caught.

    Raises InputError for another text, and for an error that is no user's to mend.
    """
    known = explanations()
    topic = about if isinstance(about, str) else topic_of(about)
    if topic not in known:
        found = repr(about) if isinstance(about, str) else type(about).__name__
        raise InputError(
            f"expected the topic of an error, found {found}; samebits explain lists them"
        )
    return known[topic]
