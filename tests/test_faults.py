"""A kill, an error, a full disk, a loss of power at every call of the file system: nothing lost."""

from __future__ import annotations

import shutil
import sys

import pytest

import faults
from samebits.csrc import compiler

QUICK = ("file", "checkpoint", "cache", "damaged cache")
LONG = ("first file", "archive", "folder", "first folder", "two renames", "package", "run")
WRONG = ("unsynced file", "file in place", "two renames, unchecked")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which(compiler()[0]) is None,
    reason="needs Linux and a C compiler, to preload a library that counts calls",
)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Every fault at every call of what is quick."""
    folder = tmp_path_factory.mktemp("quick")
    return faults.run(folder, 1, *QUICK, *WRONG) | faults.run(folder, 6, "folder", "two renames")


@pytest.mark.parametrize("case", QUICK)
def test_nothing_is_lost(quick, case):
    found = quick[case]
    assert found == {"calls": found.get("calls"), "faults": 4 * found.get("calls", 0)}
    assert found["calls"] >= 5


def test_folders(quick):
    """At every sixth call; the slow test has all."""
    for case, calls in (("folder", 23), ("two renames", 24)):
        assert quick[case] == {"calls": calls, "faults": 16}


@pytest.mark.parametrize(
    ("case", "what"),
    [
        ("unsynced file", "FOLDER/file: before a sync of FOLDER/.file.1.tmp"),
        ("file in place", "found ['file'], neither as before ['file'] nor after ['file']"),
        (
            "two renames, unchecked",
            "-> FOLDER/deep/out: found [], neither as before ['deep/out/a'",
        ),
    ],
)
def test_what_would_be_lost_is_found(quick, case, what):
    """Files written as they should not be."""
    assert what in quick[case]["lost"]


@pytest.mark.slow
@pytest.mark.parametrize("case", LONG)
def test_every_call_of_a_long_operation(tmp_path, case):
    found = faults.run(tmp_path, 1, case)[case]
    assert found == {"calls": found.get("calls"), "faults": 4 * found.get("calls", 0)}
