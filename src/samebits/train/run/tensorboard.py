"""Scalars of a run for TensorBoard: losses, accuracy and learning rate.

A reporter that writes what it hears, and hands it on. It reads numbers that training has made
anyway, so no bit of the run depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samebits.errors import InputError
from samebits.train.run.loop import Reporter
from samebits.train.run.schedule import Schedule


class TensorBoard(Reporter):
    """Writes the scalars of a run to event files in a folder, and tells another reporter.

    By step: loss, and the learning rate it was taken with. By epoch, at its last step: the mean
    loss and the figures of the test samples, such as accuracy. The folder may hold events of an
    earlier run; those of the steps that this run takes again are hidden.
    """

    def __init__(
        self, writer: type[Any], folder: Path, schedule: Callable[[], Schedule], told: Reporter
    ) -> None:
        self._make, self._folder, self._rates = writer, folder, schedule
        self._told = told
        self._schedule: Schedule
        self._writer: Any = None

    def say(self, text: str) -> None:
        self._told.say(text)

    def started(self, first_step: int, steps: int) -> None:
        self._schedule = self._rates()
        self._writer = self._make(str(self._folder), purge_step=first_step + 1)
        self._told.started(first_step, steps)

    def stepped(self, step: int, loss: float) -> None:
        self._writer.add_scalar("loss/step", loss, step)
        self._writer.add_scalar("learning rate", self._schedule.at(step - 1), step)
        self._told.stepped(step, loss)

    def epoch_done(self, record: dict[str, Any]) -> None:
        self._writer.add_scalar("loss/epoch", record["train_loss"], record["step"])
        for name, value in record.items():
            if name.startswith("test_"):  # accuracy, or the figures of another task
                figure = name.removeprefix("test_")
                self._writer.add_scalar(f"{figure}/test", value, record["step"])
        self._told.epoch_done(record)

    def close(self) -> None:
        """Write what is left; nothing where the run never started."""
        if self._writer is not None:
            self._writer.close()


@contextmanager
def written(
    folder: str | Path | None, schedule: Callable[[], Schedule], reporter: Reporter
) -> Iterator[Reporter]:
    """A reporter that also writes to a folder for TensorBoard; None: the reporter itself. The
    schedule is asked for when training begins, which by then has checked what it is made of.

    Raises InputError where the package tensorboard is not installed.
    """
    if folder is None:
        yield reporter
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            f"--tensorboard {folder}: expected the package tensorboard, found none; pip install "
            "tensorboard, or leave --tensorboard out"
        ) from error
    heard = TensorBoard(SummaryWriter, Path(folder), schedule, reporter)
    try:
        yield heard
    finally:
        heard.close()
