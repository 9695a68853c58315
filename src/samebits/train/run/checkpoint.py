"""Checkpoints: one safetensors file each, written atomically, checked by SHA-256, no pickle.

`checkpoint-<step>.safetensors` holds the model's tensors as `model.<name>`, the optimizer's as
`optimizer.<index>.<key>`, those of a run with an average of its weights besides as `average.<key>`,
and in its header one JSON text with everything that is not a tensor,
the version of this format included.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from samebits import progress
from samebits.entrance import read
from samebits.errors import CheckpointError
from samebits.files import write_atomically
from samebits.train.deployed.deploy import Exponents

FORMAT = "samebits-checkpoint-3"
HEADER_KEY = "samebits"
KEPT = 2
LARGEST = 1 << 36  # bytes of a file of weights
_NAME = re.compile(r"checkpoint-(\d+)\.safetensors")

State = dict[str, Any]
RESUME = "earlier checkpoints are intact: free some space and run again with --resume"


class _OtherFormatError(CheckpointError):
    """A checkpoint of another version: not damaged, so that no earlier one takes its place."""


@dataclass(frozen=True)
class Checkpoint:
    """State of a run after a step. `optimizer` is shaped like torch's `Optimizer.state_dict()`.

    `progress` holds ints, floats, strings and None (epoch, partial sums); `config` is the run's;
    `exponents` are the frozen ones of a finished run that can be deployed. Where the weights of
    `model` are averages, `average` is what training goes on with (`RunAverage.state`).
    """

    step: int
    model: dict[str, torch.Tensor]
    optimizer: State
    config: State
    progress: State
    exponents: Exponents | None = None
    average: State | None = None


def parameter_sha256(state: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of a state dict (docs/spec/training.md section 9)."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = ",".join(str(size) for size in tensor.shape)
        for text in (name, dtype, shape):
            digest.update(text.encode() + b"\0")
        array = tensor.numpy()
        digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()


def checkpoint_path(folder: Path, step: int) -> Path:
    """The file of the checkpoint after `step` steps."""
    return folder / f"checkpoint-{step:08d}.safetensors"


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoint files of a folder, oldest step first."""
    found = [
        (int(match[1]), path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := _NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found)]


def write_checkpoint(folder: Path, checkpoint: Checkpoint, *, keep: int = KEPT) -> Path:
    """Write a checkpoint atomically, then drop all but the newest `keep`.

    One that cannot be deleted is noted, and tried again after the next checkpoint. Raises
    SamebitsError as `write_atomically`.
    """
    tensors = {f"model.{name}": _plain(tensor) for name, tensor in checkpoint.model.items()}
    optimizer = _encode(checkpoint.optimizer, "optimizer", tensors)
    document: State = {
        "format": FORMAT,
        "step": checkpoint.step,
        "optimizer": optimizer,
        "config": _encode(checkpoint.config, "config", tensors),
        "progress": _encode(checkpoint.progress, "progress", tensors),
    }
    if checkpoint.average is not None:
        document["average"] = _encode(checkpoint.average, "average", tensors)
    if checkpoint.exponents is not None:
        document["exponents"] = checkpoint.exponents.to_dict()
    document["sha256"] = _content_sha256(tensors, document)
    path = checkpoint_path(folder, checkpoint.step)
    data = save(tensors, {HEADER_KEY: json.dumps(document, sort_keys=True)})
    write_atomically(path, data, advice=RESUME)
    for old in list_checkpoints(folder)[:-keep]:
        if old != path:
            try:
                old.unlink(missing_ok=True)
            except OSError as error:
                progress.note(f"{old}: cannot be deleted ({error.strerror or error})")
    return path


def read_checkpoint(path: Path, within: Path | None = None) -> Checkpoint:
    """Read and verify a checkpoint. Raises CheckpointError when it is missing or damaged.

    within: the folder that a user named, where the file is one inside it
    """
    data = read_weights(path, within)
    entries = checked_entries(path, data)
    try:
        header = entries.get("__metadata__", {}).get(HEADER_KEY)
        if header is None:
            raise CheckpointError(
                f"{path}: expected a checkpoint written by samebits, found a safetensors file "
                "without its header; give a training output folder, or of weights of another tool "
                "a callable that builds their network and loads them, as file.py:callable"
            )
        # The header of another kind of file of samebits is the name of its format.
        document = {"format": header} if header.startswith("samebits-") else json.loads(header)
        _check_format(path, document)
        tensors = load(data)
        recorded = document.pop("sha256")
        found = _content_sha256(tensors, document)
        if recorded != found:
            raise CheckpointError(
                f"{path}: damaged: expected content SHA-256 {recorded}, found {found}; {_ADVICE}"
            )
        checkpoint = Checkpoint(
            step=document["step"],
            model={
                name.removeprefix("model."): tensor
                for name, tensor in tensors.items()
                if name.startswith("model.")
            },
            optimizer=_decode(document["optimizer"], tensors),
            config=_decode(document["config"], {}),
            progress=_decode(document["progress"], {}),
            exponents=(
                Exponents.from_dict(document["exponents"], path)
                if "exponents" in document
                else None
            ),
            average=_decode(document.get("average"), tensors),
        )
        for name, kind in (
            ("step", int),
            ("optimizer", dict),
            ("config", dict),
            ("progress", dict),
            ("average", dict if "average" in document else type(None)),
        ):
            value = getattr(checkpoint, name)
            if type(value) is not kind:
                raise TypeError(f"{name}: expected {kind.__name__}, found {type(value).__name__}")
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # a hostile file may raise anything while it is taken apart
        raise CheckpointError(
            f"{path}: damaged ({type(error).__name__}: {error}); {_ADVICE}"
        ) from error
    return checkpoint


_ADVICE = "delete it and run again with --resume to continue from the checkpoint before it"


def _check_format(path: Path, document: Any) -> None:
    """Before anything else is read: only this format says how the rest is to be checked."""
    found = document["format"]
    if found != FORMAT:
        known = re.fullmatch(r"samebits-checkpoint-\d{1,9}", str(found))
        raise (_OtherFormatError if known else CheckpointError)(
            f"{path}: expected format {FORMAT!r} of samebits, that of edition 3 of the training "
            f"arithmetic, found {found!r:.60}; use the release of samebits that wrote it, or train "
            "again in another folder"
        )


def newest_checkpoint(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest intact checkpoint, or None if there is no checkpoint file at all.

    A damaged one is announced by `say` and the one before it is tried. Raises CheckpointError
    when every one is damaged, and for one of another format.
    """
    damage: CheckpointError | None = None
    for path in reversed(list_checkpoints(folder)):
        try:
            return read_checkpoint(path, folder)
        except _OtherFormatError:
            raise
        except CheckpointError as error:
            damage = damage or error
            say(f"warning: {error}; falling back to the checkpoint before it")
    if damage is not None:
        raise CheckpointError(
            f"{folder}: no intact checkpoint is left; the newest: {damage}; otherwise train again "
            "in another folder"
        )
    return None


def check_same_tensors(
    path: Path, expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]
) -> None:
    """Raise CheckpointError naming the first tensor in which a checkpoint is of another model."""

    def describe(state: Mapping[str, torch.Tensor], name: str) -> str:
        if name not in state:
            return "none"
        return f"{str(state[name].dtype).removeprefix('torch.')} {list(state[name].shape)}"

    names = [*expected, *(name for name in found if name not in expected)]
    for name in names:
        want, have = describe(expected, name), describe(found, name)
        if want != have:
            raise CheckpointError(
                f"{path}: belongs to another architecture: tensor {name!r}: expected {want}, "
                f"found {have}; give the architecture it was trained with, or another folder"
            )


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous CPU copy that shares no storage."""
    return tensor.detach().cpu().contiguous().clone()


def _encode(value: object, name: str, tensors: dict[str, torch.Tensor]) -> object:
    """JSON form of nested containers; tensors move to `tensors` under their dotted path."""
    if isinstance(value, torch.Tensor):
        tensors[name] = _plain(value)
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {
            "map": [[key, _encode(item, f"{name}.{key}", tensors)] for key, item in value.items()]
        }
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encode(v, f"{name}.{i}", tensors) for i, v in enumerate(value)]}
    if isinstance(value, float):
        return {"float": value.hex()}
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"{name}: a checkpoint cannot hold {type(value).__name__}")


def _decode(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, body),) = value.items()
    if kind == "tensor":
        return tensors[body]
    if kind == "map":
        return {key: _decode(item, tensors) for key, item in body}
    if kind == "float":
        return float.fromhex(body)
    items = [_decode(item, tensors) for item in body]
    return tuple(items) if kind == "tuple" else items


def _content_sha256(tensors: Mapping[str, torch.Tensor], document: Mapping[str, object]) -> str:
    text = json.dumps(document, sort_keys=True)
    return hashlib.sha256(f"{parameter_sha256(tensors)}\n{text}".encode()).hexdigest()


def read_weights(path: Path, within: Path | None = None) -> bytes:
    """The bytes of a safetensors file: safetensors opens no path that is not UTF-8, and a path
    twice might be two files. Raises CheckpointError, InputError for what is no file."""
    try:
        return read(path, LARGEST, within=within)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror or error}); give a training output folder "
            "or a checkpoint file"
        ) from error


def checked_entries(path: Path, data: bytes) -> dict[str, Any]:
    """The safetensors header of a file that is as long as it promises.

    Compared here for a message with both numbers.
    """
    found = len(data)
    length = int.from_bytes(data[:8], "little")
    if found < 8 or length > found - 8:
        expected = 8 + (length if found >= 8 else 1)
        raise CheckpointError(
            f"{path}: truncated: expected at least {expected} bytes, found {found}; {_ADVICE}"
        )
    try:
        entries: dict[str, Any] = json.loads(data[8 : 8 + length])
        ends = [entry["data_offsets"][1] for key, entry in entries.items() if key[:2] != "__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged header ({error}); {_ADVICE}") from error
    if found != expected:
        raise CheckpointError(
            f"{path}: truncated or extended: expected {expected} bytes, found {found}; {_ADVICE}"
        )
    return entries
