"""Traces of training: a hash of every tensor of every step, so that two runs can be audited.

A trace is JSON lines. The first is its header, each further one a step:

    {"format": ..., "run": {...}, "layers": [...], "parameters": [...], "step": 0, "state": [...]}
    {"step": 1, "shards": [{"outputs": [...], "loss": ..., "gradients": [...]}], "state": [...]}

`run` holds options and data, `layers` and `parameters` names; `outputs` one hash per layer in the
order of execution, `gradients` those of the loss by the same outputs (null where there is none),
`state` those of the parameters after the step.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samebits import kernels
from samebits.entrance import opened
from samebits.errors import InputError, SamebitsError, UnsupportedError
from samebits.files import sync_folder
from samebits.numerics import philox
from samebits.train.operation import setting
from samebits.train.run.distributed import Workers
from samebits.train.tensor import BFPTensor

FORMAT = "samebits-training-trace-1"
FAMILY = FORMAT.removesuffix("1")  # begins every version
LONGEST_LINE = 1 << 24  # bytes
NONE = 0  # stands for no gradient


def tensor_hash(tensor: Tensor) -> int:
    """64 bits of codes and exponent (of a float tensor: its bits).

    The first 8 bytes (little-endian, signed) of the SHA-256 over the exponent (none for plain
    tensors; of every row where they differ), the number of bytes, and the block sums (`block_sums`
    of the kernels; keys: the Philox words of key (0, 0)) of the elements in row-major order,
    image-like ones channels last; all numbers as 8 little-endian bytes.
    """
    digest = hashlib.sha256()
    if isinstance(tensor, BFPTensor):
        tensor, exponent = tensor.resolved()
        own = [exponent] if isinstance(exponent, int) else exponent.flatten().tolist()
        for number in own:
            digest.update(number.to_bytes(8, "little", signed=True))
    rows = tensor.detach().permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor.detach()
    data = rows.contiguous().view(-1).view(torch.uint8)
    digest.update(data.numel().to_bytes(8, "little"))
    sums = kernels.of(data).block_sums(data, _keys(data.device)).cpu().numpy()
    digest.update(sums.astype("<i8", copy=False).data)
    return int.from_bytes(digest.digest()[:8], "little", signed=True)


@functools.cache
def _keys(device: torch.device) -> Tensor:
    words = philox.words(1024, (0, 0))
    return words.to(torch.uint32).view(torch.int32).to(device)


class Recorder:
    """Hears every layer's output, and its gradient, through hooks on a model's leaf modules."""

    def __init__(self, model: nn.Module) -> None:
        self.layers: list[str] = []  # in the order of execution
        self._names: list[str] = []
        self._shards: list[list[int]] = []
        self._outputs: list[int] = []
        self._gradients: list[int] = []
        self._model = model
        for name, module in model.named_modules():
            if not any(module.children()):
                module.register_forward_hook(
                    lambda _, inputs, output, name=name: self._heard(name, output)
                )

    @contextlib.contextmanager
    def forward_pass(self) -> Iterator[None]:
        """A shard's forward pass; what its backward pass computes again is not heard."""
        self._names, self._outputs, self._gradients = [], [], []
        with setting(_LISTENING, self):
            yield

    def shard_ends(self, loss: Tensor) -> None:
        """Hear that a shard's backward pass is done.

        Raises UnsupportedError where its layers ran in another order than the shards' before.
        """
        if self.layers != self._names:
            if self.layers:
                raise UnsupportedError(
                    "a trace needs layers that run in the same order in every step, found "
                    f"{len(self._names)} instead of {len(self.layers)}, or in another order; "
                    "train without --trace"
                )
            self.layers = self._names
        self._shards.append([*self._outputs, tensor_hash(loss), *self._gradients])

    def take(self) -> Tensor:
        """Hashes of the shards since the last call: outputs, loss, gradients; int64 [shards, .]."""
        shards, self._shards = self._shards, []
        return torch.tensor(shards, dtype=torch.int64, device="cpu")

    def state(self) -> list[int]:
        """The hash of every entry of the state dict, in sorted order of their names."""
        state = self._model.state_dict()
        return [tensor_hash(state[name]) for name in sorted(state)]

    def parameters(self) -> list[str]:
        """The names whose hashes `state` gives."""
        return sorted(self._model.state_dict())

    def hear(self, name: str, output: Tensor) -> Callable[[Tensor], None]:
        """Note the output of the next layer; gives the function that is to hear its gradient."""
        index = len(self._outputs)
        self._names.append(name)
        self._outputs.append(tensor_hash(output))
        self._gradients.append(NONE)
        gradients = self._gradients  # of this shard
        return lambda gradient: gradients.__setitem__(index, tensor_hash(gradient))

    def _heard(self, name: str, output: object) -> None:
        if _LISTENING.get() is self and isinstance(output, Tensor):
            gradient = self.hear(name, output)
            if output.requires_grad:
                output.register_hook(gradient)


_LISTENING: ContextVar[Recorder | None] = ContextVar("listening", default=None)


def is_heard() -> bool:
    """Whether a recorder listens."""
    return _LISTENING.get() is not None


class TraceFile:
    """The trace of a run, written step by step by the first of its workers."""

    def __init__(
        self, path: Path, model: nn.Module, run: Mapping[str, Any], workers: Workers
    ) -> None:
        self.recorder = Recorder(model)
        self._path, self._workers = path, workers
        self._run = {key: value for key, value in run.items() if key != "data"}
        self._file: Any = None

    def start(self, step: int) -> None:
        """Open the file after `step` steps.

        A trace of the same run that goes so far is continued, any other file is replaced. Raises
        InputError if the file cannot be written, or holds a trace of another format to continue.
        """
        if not self._workers.first:
            return
        self._header: dict[str, Any] | None = None
        kept = _end_of_step(self._path, self._run, step) if step else 0
        if not kept:
            self._header = {"format": FORMAT, "run": self._run, "step": step}
            self._header["state"] = _texts(self.recorder.state())
        try:
            self._file = opened(self._path, os.O_RDWR | os.O_CREAT)
            self._file.truncate(kept)
            self._file.seek(kept)
            sync_folder(self._path.parent)
        except OSError as error:
            raise InputError(
                f"{self._path}: cannot be written ({error.strerror or error}); give another --trace"
            ) from error

    def step_done(self, step: int) -> None:
        """Write what the recorders of all workers heard in a step, and the state after it."""
        shards = self._workers.gather(self.recorder.take()).flatten(0, 1)
        if not self._workers.first:
            return
        if self._header is not None:
            names = {"layers": self.recorder.layers, "parameters": self.recorder.parameters()}
            self._write({**self._header, **names})
            self._header = None
        layers = len(self.recorder.layers)
        record = {
            "step": step,
            "shards": [
                {
                    "outputs": _texts(row[:layers]),
                    "loss": _texts(row[layers : layers + 1])[0],
                    "gradients": _texts(row[layers + 1 :]),
                }
                for row in shards.tolist()
            ],
            "state": _texts(self.recorder.state()),
        }
        self._write(record)

    def _write(self, record: dict[str, Any]) -> None:
        try:
            self._file.write((json.dumps(record) + "\n").encode())
            self._file.flush()
            os.fsync(self._file.fileno())  # no checkpoint is to be ahead of its trace
        except OSError as error:
            raise SamebitsError(
                f"{self._path}: cannot be written ({error.strerror or error}); earlier checkpoints "
                "are intact: free some space, or leave --trace out, and run again with --resume"
            ) from error

    def close(self) -> None:
        """Close the file, where this worker has one."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # of a step whose error was raised: it tries again
                self._file.close()


def _end_of_step(path: Path, run: Mapping[str, Any], step: int) -> int:
    """Offset of the end of a step's line in a trace of this run; 0 if there is no such line.

    Raises InputError for a trace of another format.
    """
    try:
        with opened(path) as file:
            header = json.loads(file.readline(LONGEST_LINE))
            check_format(path, header)
            if header["format"] != FORMAT or header["run"] != run:
                return 0
            found = header["step"]
            while found < step:
                found = json.loads(file.readline(LONGEST_LINE))["step"]
            return file.tell() if found == step else 0
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 0


def check_format(path: Path, header: object) -> None:
    """InputError where the header is that of a training trace of another format."""
    found = header.get("format") if isinstance(header, Mapping) else None
    if isinstance(found, str) and found.startswith(FAMILY) and found != FORMAT:
        raise InputError(
            f"{path}: expected format {FORMAT!r} of samebits, found {found!r:.60}; use the "
            "release of samebits that wrote it, or trace again with: samebits train --trace FILE"
        )


def _texts(hashes: Sequence[int]) -> list[str | None]:
    return [None if value == NONE else f"{value & (2**64 - 1):016x}" for value in hashes]
