"""The workers of a distributed run: how they meet, exchange numbers, and end together.

`torchrun --nproc-per-node N -m samebits train ...` starts N processes, each of which computes its
contiguous share of every step's shards (training.md section 8). All collective operations of a
worker run in one thread, in the order of submission: the main thread computes meanwhile, and stays
free to hear a signal while a collective waits for a worker that will never answer.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import queue
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from importlib.metadata import version
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from samebits.errors import InputError, SamebitsError, WorkerError
from samebits.train.run.device import CPU

T = TypeVar("T")
TIMEOUT = 600.0  # seconds without an answer after which a worker counts as lost
PATIENCE = 0.5  # seconds a silent worker leaves to the one that prints
TELLING = 10.0  # seconds that the store may take to say who prints an error, at most
_MOMENT = 0.01  # seconds until a signal that was ignored is sent again
_FAILED, _LOST, _VERSION = "samebits/failed", "samebits/lost", "samebits/version"
_ADVICE = "earlier checkpoints are intact: run again with --resume"


class Workers:
    """One process alone: its share is everything. `_Joined` is one of several.

    `largest`, `scatter` and `collect` are collective operations, called inside a job of `run`.
    """

    rank = 0
    size = 1
    sent = 0
    """Bytes that this worker has sent to the others, in ring algorithms."""

    @property
    def first(self) -> bool:
        """Whether this worker writes files and speaks to the user."""
        return self.rank == 0

    def share(self, items: Tensor) -> Tensor:
        """This worker's contiguous part of `items`, whose number is a multiple of `size`."""
        part = len(items) // self.size
        return items[self.rank * part : (self.rank + 1) * part]

    def run(self, job: Callable[[], T]) -> Future[T]:
        """Do a job of collective operations after those before it."""
        future: Future[T] = Future()
        future.set_result(job())
        return future

    def largest(self, values: Tensor) -> Tensor:
        """The largest of every worker's values, element by element."""
        return values

    def scatter(self, rows: Tensor) -> Tensor:
        """Row i goes to worker i; the rows [size, ...] that the others have for this one."""
        return rows

    def collect(self, part: Tensor) -> Tensor:
        """Every worker's `part`, stacked in rank order."""
        return part[None]

    def gather(self, values: Tensor) -> Tensor:
        """`collect` as a job of its own."""
        return self.run(lambda: self.collect(values)).result()

    def total(self, count: int) -> int:
        """The sum of every worker's `count`."""
        return int(self.gather(torch.tensor(count, device="cpu")).sum())

    def replicate(self, model: nn.Module) -> nn.Module:
        """A float model whose backward pass leaves the mean gradient of all workers."""
        return model

    @contextlib.contextmanager
    def answered(self) -> Iterator[None]:
        """Collective operations that fail inside are a WorkerError."""
        yield

    def agree(self, facts: dict[str, str]) -> None:
        """InputError unless every worker holds the same facts (name: text)."""
        digests = [hashlib.sha256(text.encode()).digest()[:8] for text in facts.values()]
        own = torch.tensor(
            [int.from_bytes(digest, "little", signed=True) for digest in digests], device="cpu"
        )
        for rank, other in enumerate(self.gather(own)):
            for index, name in enumerate(facts):
                if other[index] != own[index]:
                    raise InputError(
                        f"expected the same {name} on every worker, found another one on worker "
                        f"{rank} than on worker {self.rank}; give every worker the same command, "
                        "data, --out folder and version of samebits"
                    )


ALONE = Workers()


def world_size() -> int:
    """The number of workers that the environment announces (1 without torchrun)."""
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() and int(text) > 1 else 1


@contextlib.contextmanager
def join(timeout: float = TIMEOUT, device: torch.device = CPU) -> Iterator[Workers]:
    """This process among the workers that torchrun started, alone if there is no torchrun.

    Tensors on the CPU go by gloo, those on a GPU, which is `device` then, by NCCL.

    Inside, an error that every worker meets is printed by one: here the others raise SystemExit(2).
    A worker that dies, or gives no answer for `timeout` seconds, is a WorkerError in the others.
    """
    if world_size() == 1:
        yield ALONE
        return
    if not timeout > 0:
        raise InputError(f"expected a worker timeout > 0 seconds, found {timeout}")
    workers = _Joined(*_rendezvous(timeout, device), timeout, device)
    with terminable() as told:
        try:
            yield workers
        except SamebitsError as error:
            told.set()
            atexit.register(workers.leave)
            if workers.speaks_of(error):
                raise
            time.sleep(PATIENCE)  # torchrun stops the others when the first worker ends
            raise SystemExit(2) from None
    workers.close()


def _rendezvous(timeout: float, device: torch.device) -> tuple[Any, int, int]:
    """(store, rank, size), once torchrun's environment is complete and its store answers."""
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise InputError(
            f"found WORLD_SIZE={os.environ['WORLD_SIZE']} but no {missing[0]} in the environment: "
            "start workers with torchrun --nproc-per-node N -m samebits train ..., or unset "
            "WORLD_SIZE"
        )
    wait = timedelta(seconds=timeout)
    try:
        store, rank, size = _within(timeout, lambda: next(rendezvous("env://", timeout=wait)))
        store.set_timeout(wait)
        _within(timeout, lambda: _check_versions(store, rank, size))
        backend = "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:nccl"
        group = {"store": store, "rank": rank, "world_size": size, "timeout": wait}
        _within(timeout, lambda: dist.init_process_group(backend, **group))
    except (RuntimeError, ValueError, TimeoutError) as error:
        raise WorkerError(
            f"the workers did not meet within {timeout:g} seconds ({_first_line(error)}); start "
            "all of them with torchrun, with the same --nnodes and --nproc-per-node"
        ) from error
    return store, rank, size


def _within(timeout: float, work: Callable[[], T]) -> T:
    """Run work that may wait for other workers for `timeout` seconds, and give its result.

    Raises TimeoutError where it takes twice as long: torch's store waits for ever for a host that
    is stopped.
    """
    found: Future[T] = Future()
    threading.Thread(target=_settle, args=(work, found), daemon=True).start()
    try:
        return found.result(2 * timeout + PATIENCE)
    except TimeoutError:
        if found.done():
            raise
        raise TimeoutError("no answer from worker 0, where they meet") from None


def _settle(job: Callable[[], T], future: Future[T]) -> None:
    """Do a job, and let a future have its result or its error."""
    try:
        future.set_result(job())
    except BaseException as error:
        future.set_exception(error)


def _check_versions(store: Any, rank: int, size: int) -> None:
    """InputError where another worker has another version of samebits, before anything is sent
    that only one of them may understand. In all but one worker SystemExit(2) instead."""
    own = version("samebits")
    store.set(f"{_VERSION}/{rank}", own)
    found = [store.get(f"{_VERSION}/{other}").decode() for other in range(size)]
    others = [other for other, theirs in enumerate(found) if theirs != found[0]]
    if not others:
        return
    speaks = store.add(_VERSION, 1) == 1
    time.sleep(PATIENCE)  # the store may end with this process: let the others read it
    if not speaks:
        raise SystemExit(2)
    raise InputError(
        f"expected the same version of samebits on every worker, found {found[others[0]]} on "
        f"worker {others[0]} and {found[0]} on worker 0; install one version everywhere"
    )


class _Joined(Workers):
    """One of several workers."""

    def __init__(
        self, store: Any, rank: int, size: int, timeout: float, device: torch.device
    ) -> None:
        self.rank, self.size = rank, size
        self._store, self._timeout = store, timeout
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]
        self._jobs = queue.SimpleQueue()
        # A daemon: one that waits for a dead worker does not keep the process alive.
        self._thread = threading.Thread(
            target=self._serve, args=(torch.get_num_threads(), device), daemon=True
        )
        self._thread.start()

    def _serve(self, threads: int, device: torch.device) -> None:
        torch.set_num_threads(threads)  # torch's settings are one per thread
        if device.type == "cuda":
            torch.cuda.set_device(device)
        while (item := self._jobs.get()) is not None:
            _settle(*item)

    def run(self, job: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._jobs.put((job, future))
        return future

    def largest(self, values: Tensor) -> Tensor:
        with self.answered():
            dist.all_reduce(values, dist.ReduceOp.MAX)
        self.sent += 2 * (self.size - 1) * values.nbytes // self.size
        return values

    def scatter(self, rows: Tensor) -> Tensor:
        received = torch.empty_like(rows)
        with self.answered():
            dist.all_to_all_single(received, rows)
        self.sent += (self.size - 1) * rows.nbytes // self.size
        return received

    def collect(self, part: Tensor) -> Tensor:
        data = part.contiguous().view(-1).view(torch.uint8)  # gloo has no 16-bit integers
        everything = data.new_empty((self.size, len(data)))
        with self.answered():
            dist.all_gather(list(everything), data)
        self.sent += (self.size - 1) * data.nbytes
        return everything.view(part.dtype).view(self.size, *part.shape)

    def replicate(self, model: nn.Module) -> nn.Module:
        with self.answered(), warnings.catch_warnings():
            # Deprecated in torch 2.13; what replaces it does not exist in 2.11.
            warnings.simplefilter("ignore", FutureWarning)
            return DistributedDataParallel(model, broadcast_buffers=False)

    @contextlib.contextmanager
    def answered(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = _first_line(error)
            late = "imed out" in reason or "imeout" in reason
            what = f"gave no answer for {self._timeout:g} seconds" if late else "ended"
            raise WorkerError(
                f"one of the {self.size} workers of this run {what} ({reason}); {_ADVICE}, on any "
                "number of workers that divides the shards"
            ) from error

    def speaks_of(self, error: SamebitsError) -> bool:
        """Whether this worker is the one to print an error; the first that asks about it is."""
        try:
            return _within(min(self._timeout, TELLING), lambda: self._first_to_tell(error))
        except (RuntimeError, TimeoutError):  # the store died with its host, or is stopped with it
            return True

    def _first_to_tell(self, error: SamebitsError) -> bool:
        if isinstance(error, WorkerError):
            return not self._store.check([_FAILED]) and self._store.add(_LOST, 1) == 1
        self._store.set(_FAILED, "")
        return bool(self._store.add(hashlib.sha256(str(error).encode()).hexdigest(), 1) == 1)

    def leave(self) -> None:
        """End the process, where this worker's thread may wait for one that is dead: neither can be
        joined, and the library aborts when they are torn down."""
        if self._thread.is_alive():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(2)

    def close(self) -> None:
        """Leave the group once all jobs are done."""
        self._jobs.put(None)
        self._thread.join()
        dist.destroy_process_group()


def _first_line(error: BaseException) -> str:
    """An error's first line, without the source line of the library that raised it."""
    text = str(error).strip().split("\n")[0].split(". ")[0]
    return text.rpartition(".cc:")[2].partition("] ")[2] or text


@contextlib.contextmanager
def terminable() -> Iterator[threading.Event]:
    """SIGTERM, with which torchrun stops a worker when another one has ended, is a WorkerError,
    unless the event yielded is set: an error is being told already.

    Python ignores what is raised while it calls back (of a weak reference, say), and reports it as
    unraisable: the signal is then sent once more, a moment later.
    """
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return

    def stop(*_: object) -> None:
        if not told.is_set():
            told.set()
            raise WorkerError(
                f"stopped by SIGTERM: another worker ended, or torchrun was stopped; {_ADVICE}"
            )

    def unraised(found: sys.UnraisableHookArgs) -> None:
        if not isinstance(found.exc_value, WorkerError):
            ignored(found)
            return
        told.clear()
        again.append(threading.Timer(_MOMENT, os.kill, (os.getpid(), signal.SIGTERM)))
        again[-1].start()

    again: list[threading.Timer] = []
    before = signal.signal(signal.SIGTERM, stop)
    ignored, sys.unraisablehook = sys.unraisablehook, unraised
    try:
        yield told
    finally:
        for timer in again:
            timer.cancel()
        sys.unraisablehook = ignored
        signal.signal(signal.SIGTERM, before)
