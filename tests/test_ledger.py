"""The ledger of a load: what is kept, what is in hand, and how much memory there is."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from samebits import ledger
from samebits.data.decode import in_threads
from samebits.entrance import read
from samebits.errors import InputError


@pytest.mark.parametrize(
    ("given", "size"),
    [(5, 5), ("7", 7), ("3M", 3 << 20), ("1.5 GiB", 3 << 29), ("2KB", 2048), ("10B", 10)],
)
def test_numbers_of_bytes(given: int | str, size: int) -> None:
    assert ledger.byte_count(given) == size


@pytest.mark.parametrize("given", [0, -1, "", "0.4", "many", "1T", "5%", "1e9", "٣"])
def test_no_numbers_of_bytes(given: int | str) -> None:
    assert ledger.byte_count(given) is None
    told = "--memory-limit: expected a number of bytes such as"
    with pytest.raises(InputError, match=told), ledger.memory_limit(given):
        pass


def test_a_limit_counts_what_stays_and_what_is_in_hand() -> None:
    with ledger.memory_limit(100), ledger.load():
        ledger.keep(60, "a")
        with ledger.hold(30, "b"), pytest.raises(InputError) as caught:
            ledger.keep(11, "c")
        assert str(caught.value) == (
            "c: expected at most 100 bytes in memory for all that is read, found 101; give fewer "
            "or smaller samples, or a larger --memory-limit such as 8GiB"
        )
        with ledger.load():  # of the load around it
            ledger.keep(40, "d")
        with pytest.raises(InputError, match="e: expected at most 100 bytes"):
            ledger.keep(1, "e")
    with ledger.memory_limit(100), ledger.load():
        ledger.keep(100, "a")


def test_files_may_become_so_much_larger(tmp_path: Path) -> None:
    """Whatever is stored in less than 1 MiB is at most 512 MiB, unless a user says otherwise."""
    path = tmp_path / "x"
    path.write_bytes(bytes(3 << 20))
    most = 512 << 20
    with ledger.load():
        ledger.keep(most, "a")
        with pytest.raises(InputError, match=f"a: expected at most {most} bytes in memory of what"):
            ledger.keep(1, "a")
    with ledger.load():
        for _ in range(5):
            read(path, 1 << 30)  # counted once
        ledger.keep(3 * most - 5 * (3 << 20), "a")
        with pytest.raises(InputError, match="of what is stored in 3145728"):
            ledger.keep(1, "a")
    with ledger.memory_limit("4G"), ledger.load():
        ledger.keep(2 * most, "a")


def test_threads_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight that need 60 of 100 bytes come one after the other; one that needs 101 never."""
    together, most = [], []
    lock = threading.Lock()

    def work(size: int) -> None:
        with ledger.hold(size, "x"):
            with lock:
                together.append(size)
                most.append(len(together))
            time.sleep(0.002)
            with lock:
                together.pop()

    monkeypatch.setattr("os.cpu_count", lambda: 8)
    with ledger.memory_limit(100), ledger.load():
        in_threads(work, [60] * 20)
        assert max(most) == 1
        in_threads(work, [25] * 40)
        assert 1 <= max(most) <= 4
        with pytest.raises(InputError, match="found 101"):
            in_threads(work, [25] * 20 + [101])
        with pytest.raises(InputError, match="found 120"), ledger.hold(60, "x"):
            in_threads(work, [60])  # of one that has bytes in hand: it would wait for ever
        ledger.keep(100, "all are given back")


def test_half_of_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the machine, of a control group of version 2, and of one of version 1."""
    info, own, groups = tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "groups"
    for name, path in (("MEMORY_INFO", info), ("OWN_GROUPS", own), ("GROUPS", groups)):
        monkeypatch.setattr(ledger, name, str(path))
    assert ledger.free_memory() == 2 * ledger.LARGEST
    info.write_text("MemTotal:  9000 kB\nMemAvailable:    3000 kB\n")
    assert ledger.free_memory() == 3000 << 10
    for name, files in {
        "mine": {"memory.max": 5000, "memory.current": 4000, "memory.stat": "inactive_file 500"},
        "free": {"memory.max": "max", "memory.current": 4000, "memory.stat": "inactive_file 5"},
        "memory/old": {
            "memory.limit_in_bytes": 900,
            "memory.usage_in_bytes": 300,
            "memory.stat": "inactive_file 1\ntotal_inactive_file 7",
        },
    }.items():
        (groups / name).mkdir(parents=True)
        for file, text in files.items():
            (groups / name / file).write_text(str(text))
    for line, expected in (
        ("0::/mine", 1500),
        ("0::/free", 3000 << 10),
        ("4:memory:/old\n0::/", 607),
        ("4:memory:/none", 3000 << 10),
    ):
        own.write_text(f"{line}\n3:cpu:/old\n")
        assert ledger.free_memory() == expected
    monkeypatch.setattr(ledger, "FREE", 10)
    own.write_text("0::/mine")
    with ledger.load():
        ledger.keep(10, "nobody asks")
        with pytest.raises(InputError, match="x: expected at most 750 bytes in memory"):
            ledger.keep(741, "x")
