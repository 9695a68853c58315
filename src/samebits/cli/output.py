"""Printing that the commands share: results to stdout, progress and notes to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from samebits import progress
from samebits.errors import visible

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Printed(Protocol):
    """Something that the front door gives: it prints as its report."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""


def print_json(record: Mapping[str, Any]) -> None:
    """Print exactly one JSON object on stdout."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def show(result: Printed, as_json: bool, *written: Path) -> None:
    """Print a result, and as text the files that were written."""
    if as_json:
        print_json(result.to_dict())
        return
    print(result)
    for path in written:
        print(f"written: {path}")


@contextmanager
def working(quiet: bool, as_json: bool = False, drawn: Drawn | None = None) -> Iterator[None]:
    """Inside the `with` block progress and notes are seen on stderr, unless `quiet`.

    Where stdout shall hold one JSON object, what a user's own code prints goes to stderr.
    """
    with ExitStack() as stack:
        if as_json:
            stack.enter_context(redirect_stdout(sys.stderr))
        if not quiet:
            drawn = drawn or Drawn()
            stack.callback(drawn.close)
            stack.enter_context(progress.listening(drawn))
        yield


class Drawn:
    """A `samebits.progress.Listener`: a bar for each stage, on a terminal, and a line per note."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def stage(self, what: str, total: int | None) -> None:
        """Replace the bar by one of another stage."""
        self._draw(what, total, 0)

    def advance(self, done: int) -> None:
        """Move the bar."""
        self._move(done, "")

    def note(self, text: str) -> None:
        """Print a note."""
        self.say(f"note: {text}")

    def say(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        text = visible(text)
        if self._bar is None:
            print(text, file=sys.stderr)
        else:
            self._bar.console.print(
                text, markup=False, highlight=False, emoji=False, soft_wrap=True
            )

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _draw(self, what: str, total: int | None, done: int) -> None:
        """Show a bar: what is done, how far it is, how long it has taken and will take."""
        self.close()
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        known = (MofNCompleteColumn(), TimeRemainingColumn()) if total is not None else ()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *known,
            TimeElapsedColumn(),
            TextColumn("{task.fields[more]}", markup=False),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,  # it may be a file while stderr is a terminal
        )
        self._bar.start()
        self._task = self._bar.add_task(what, total=total, completed=done, more="")

    def _move(self, done: int, more: str) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, more=more)


class RunProgress(Drawn):
    """A `Reporter` (samebits.train.run.loop) too: a bar of steps and a line per epoch."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def titled(self, title: str) -> RunProgress:
        """Itself, for a run of another title."""
        self._title = title
        return self

    def started(self, first_step: int, steps: int) -> None:
        """Show the bar from the step at which the run begins."""
        self._draw(self._title, steps, first_step)

    def stepped(self, step: int, loss: float) -> None:
        """Move the bar to a step that is done."""
        self._move(step, f"loss {loss:.4f}")

    def epoch_done(self, record: dict[str, Any]) -> None:
        """Print an epoch's line of metrics."""
        self.say(
            f"{self._title}: epoch {record['epoch']}  step {record['step']}  "
            f"train loss {record['train_loss']:.4f}  test {_tested(record)}  "
            f"({record['seconds']:.1f} s)"
        )


def _tested(record: Mapping[str, Any]) -> str:
    """The figures of a line of metrics: an accuracy, or those of another task."""
    if "test_accuracy" in record:
        return f"accuracy {100 * record['test_accuracy']:.2f} %"
    names = [name for name in record if name.startswith("test_")]
    return "  ".join(f"{name.removeprefix('test_')} {record[name]:.4f}" for name in names)
