"""Printing that the commands share: results to stdout, logs and progress bars to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table


def print_json(record: Mapping[str, Any]) -> None:
    """Print exactly one JSON object on stdout."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def print_table(table: Table, width: int | None = None) -> None:
    """Print a table on stdout; names in it are taken literally."""
    Console(highlight=False, markup=False, emoji=False, width=width).print(table)


def log_console() -> Console:
    """A console for logs: stderr, whole lines, file names taken literally."""
    return Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)


def set_threads(threads: int | None) -> None:
    """Set torch's CPU threads, which change the speed of a BFP run and never its bits."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


class RunProgress:
    """A `Reporter` (samebits.train.run.loop) that shows a progress bar and a line per epoch."""

    def __init__(self, title: str) -> None:
        self._console = log_console()
        self._title = title
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def say(self, text: str) -> None:
        """Print a line of the log."""
        self._console.print(text)

    def started(self, first_step: int, steps: int) -> None:
        """Show the progress bar, on a terminal, from the step at which the run begins."""
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}", markup=False),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._progress.start()
        self._task = self._progress.add_task(
            self._title, total=steps, completed=first_step, loss=""
        )

    def stepped(self, step: int, loss: float) -> None:
        """Move the bar to a step that is done."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=step, loss=f"loss {loss:.4f}")

    def epoch_done(self, record: dict[str, Any]) -> None:
        """Print an epoch's line of metrics."""
        self._console.print(
            f"{self._title}: epoch {record['epoch']}  step {record['step']}  "
            f"train loss {record['train_loss']:.4f}  test accuracy "
            f"{100 * record['test_accuracy']:.2f} %  ({record['seconds']:.1f} s)"
        )

    def close(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
