import os
import signal
import time
import weakref

import pytest
import torch

from samebits.errors import InputError, WorkerError
from samebits.train.run import distributed
from samebits.train.run.distributed import ALONE, join, terminable, world_size
from worker_threads import Hub


@pytest.mark.parametrize(("text", "size"), [("", 1), ("0", 1), ("1", 1), ("x", 1), ("3", 3)])
def test_world_size(monkeypatch, text, size):
    monkeypatch.setenv("WORLD_SIZE", text)
    assert world_size() == size


def test_one_process_is_alone(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with join() as workers:
        assert workers is ALONE
    assert workers.first
    assert workers.share(torch.arange(6)).tolist() == list(range(6))
    assert workers.total(5) == 5
    workers.agree({"options": "a"})


def test_shares_are_contiguous_and_in_order():
    parts = Hub(3).run(lambda worker: worker.share(torch.arange(12)).tolist())
    assert parts == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_totals():
    assert Hub(4).run(lambda worker: worker.total(10**12 * worker.rank)) == [6 * 10**12] * 4


def test_agreement():
    Hub(3).run(lambda worker: worker.agree({"options": "a", "steps": "7"}))
    with pytest.raises(InputError, match="expected the same steps on every worker, found another"):
        Hub(3).run(lambda worker: worker.agree({"options": "a", "steps": str(worker.rank // 2)}))


def test_another_version_is_refused_by_name(monkeypatch):
    """By a store that all have, before any message; one worker speaks, the others end."""
    monkeypatch.setattr(distributed, "PATIENCE", 0)
    store, said = torch.distributed.HashStore(), []
    for rank, number in enumerate(("1.2", "1.2", "1.3")):
        store.set(f"samebits/version/{rank}", number)
    for rank, own in ((2, "1.3"), (0, "1.2"), (1, "1.2")):
        monkeypatch.setattr(distributed, "version", lambda name, own=own: own)
        with pytest.raises((InputError, SystemExit)) as caught:
            distributed._check_versions(store, rank, 3)
        said.append(caught.value)
    assert str(said[0]) == (
        "expected the same version of samebits on every worker, found 1.3 on worker 2 and 1.2 on "
        "worker 0; install one version everywhere"
    )
    assert [error.code for error in said[1:]] == [2, 2]


def test_incomplete_environment(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InputError, match="found WORLD_SIZE=2 but no RANK"), join():
        pass


def test_timeout_must_be_positive(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="expected a worker timeout > 0 seconds, found 0"), join(0):
        pass


class Held:
    """Something that a weak reference may be of."""


def stopped(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0)


def called_back():
    held = Held()
    reference = weakref.ref(held, stopped)
    del held
    assert reference() is None


def work(interrupted):
    interrupted()
    time.sleep(5)


@pytest.mark.parametrize("where", [stopped, called_back])
def test_a_signal_to_stop_is_an_error_wherever_it_arrives(where, capfd):
    """What is raised while Python calls back is ignored there, and said a moment later."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(WorkerError, match="stopped by SIGTERM"), terminable():
        work(where)
    assert signal.getsignal(signal.SIGTERM) is before
    assert capfd.readouterr().err == ""
