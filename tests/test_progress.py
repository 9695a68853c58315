"""Progress: listeners hear of stages, items and notes; without one nothing happens."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import samebits as sb
from samebits import progress
from samebits.progress import listening, note, stage, track
from samebits.train.run.record import read_metrics


class Heard:
    """A listener that writes down what it hears."""

    def __init__(self):
        self.events = []

    def stage(self, what, total):
        self.events.append((what, total))

    def advance(self, done):
        self.events.append(done)

    def note(self, text):
        self.events.append(text)


def test_a_listener_hears_stages_items_and_notes():
    heard = Heard()
    with listening(heard):
        stage("thinking")
        note("an assumption was made")
        assert list(track("abc", "spelling", 3)) == ["a", "b", "c"]
        assert list(track(iter(()), "idling")) == []
    assert heard.events == [
        ("thinking", None), "an assumption was made", ("spelling", 3), 1, 2, ("idling", None),
    ]  # fmt: skip


def test_an_item_counts_as_done_when_the_next_is_asked_for():
    heard = Heard()
    with listening(heard):
        items = track([10, 20], "work")
        assert heard.events == []  # nothing is begun yet
        next(items)
        assert heard.events == [("work", None)]
        next(items)
        assert heard.events == [("work", None), 1]


def test_nobody_need_listen():
    stage("thinking")
    note("unheard")
    assert list(track([1, 2], "work")) == [1, 2]


def test_listeners_end_with_their_block():
    outer, inner = Heard(), Heard()
    with listening(outer):
        with listening(inner):
            note("inner")
        with pytest.raises(ZeroDivisionError), listening(inner):
            1 / 0  # noqa: B018
        note("outer")
    note("unheard")
    assert (outer.events, inner.events) == (["outer"], ["inner"])


def test_other_threads_are_not_heard():
    heard = Heard()
    with listening(heard):
        thread = threading.Thread(target=note, args=("elsewhere",))
        thread.start()
        thread.join()
    assert heard.events == []


def test_the_front_door_tells_what_it_does(tmp_path):
    heard = Heard()
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    with listening(heard):
        net = sb.quantize(nn.Linear(4, 2), [x[:1], x[1:]])
        net.verify(x, ["torch"])
        net.compile(tmp_path / "net")
    stages = [event[0] for event in heard.events if isinstance(event, tuple)]
    assert stages == [
        "reading calibration", "calibrating", "comparing with the float network",
        "measuring the integers against the float network",
        "verifying: reference", "verifying: torch",
        "generating C",
    ]  # fmt: skip
    assert ("calibrating", 3) in heard.events
    assert progress._listener.get() is None


# --- Python's logging ---------------------------------------------------------------------------


def test_stages_and_notes_are_logged(caplog):
    with caplog.at_level("DEBUG", logger="samebits"):
        note("an assumption, of 100 %s, was made")
        assert list(track("ab", "spelling", 2)) == ["a", "b"]
        stage("thinking")
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("samebits.progress", "INFO", "an assumption, of 100 %s, was made"),
        ("samebits.progress", "DEBUG", "spelling: 2"),
        ("samebits.progress", "DEBUG", "thinking"),
    ]


def test_nothing_is_printed_unless_logging_is_configured():
    """Not by logging's handler of last resort either, and no handler is on the root."""
    code = (
        "import logging; from samebits import progress; progress.note('told'); "
        "logging.getLogger('samebits').warning('told'); assert not logging.root.handlers"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_the_library_prints_nothing_by_itself():
    """Results go through reports, warnings through `warnings`, all else through logging."""
    sources = Path(progress.__file__).parent
    found = [
        f"{path.relative_to(sources)}:{node.lineno}"
        for path in sources.rglob("*.py")
        if "cli" not in path.relative_to(sources).parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
    ]
    assert found == []


def test_a_run_logs_its_epochs(caplog, tmp_path):
    with caplog.at_level("INFO", logger="samebits.train"):
        sb.fit("digits", "mlp", tmp_path / "run", sb.Training(epochs=1, limit=10))
        sb.fit(
            "digits",
            "mlp",
            tmp_path / "run",
            sb.Training(epochs=1, limit=10),
            sb.Execution(resume=True),
        )
    first, *others = [record.getMessage() for record in caplog.records]
    where, _, line = first.partition(": ")
    assert where == str(tmp_path / "run")
    assert json.loads(line) == read_metrics(tmp_path / "run")[0]
    assert others[-1].endswith("resuming after step 1")
