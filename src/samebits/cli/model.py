"""Opening the MODEL argument of a command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from samebits.cli.output import log_console
from samebits.errors import InputError

if TYPE_CHECKING:
    from samebits.train.checkpoint import Checkpoint


def open_model(path: Path) -> tuple[Path, Checkpoint]:
    """The checkpoint a training folder (its newest intact one) or a checkpoint file holds.

    Raises InputError for anything else and CheckpointError for a damaged file.
    """
    from samebits.train.checkpoint import checkpoint_path, newest_checkpoint, read_checkpoint

    if path.is_dir():
        checkpoint = newest_checkpoint(path, log_console().print)
        if checkpoint is None:
            raise InputError(
                f"{path}: expected a training output folder, found no checkpoint-*.safetensors in "
                "it; train first, or give a checkpoint file"
            )
        return checkpoint_path(path, checkpoint.step), checkpoint
    if not path.exists():
        raise InputError(
            f"{path}: no such file or folder; expected a training output folder or a checkpoint"
        )
    if path.suffix != ".safetensors":
        raise InputError(
            f"{path}: expected a training output folder or a .safetensors checkpoint, found a "
            f"file ending in {path.suffix or 'nothing'}"
        )
    return path, read_checkpoint(path)
