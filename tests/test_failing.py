"""Commands in which memory, a file or a worker fails: one sentence, nothing lost, the same bits."""

from __future__ import annotations

import shutil
import sys

import pytest

import faults
from samebits.csrc import compiler

QUICK = {"resume": 6}
WHOLE = {
    "train": 420, "resume": 300, "workers": 420, "quantize": 260, "compile": 260, "plan": 220,
    "report": 160, "report of a run": 100,
}  # fmt: skip

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which(compiler()[0]) is None,
    reason="needs Linux and a C compiler, to preload a library that lets calls fail",
)


@pytest.mark.parametrize(
    "cases",
    [
        QUICK,
        *(pytest.param({case: number}, marks=pytest.mark.slow) for case, number in WHOLE.items()),
    ],
)
def test_nothing_is_lost_and_one_sentence_is_said(tmp_path, cases, record_property):
    for case, number in cases.items():
        (found,) = faults.preloaded("failing.py", tmp_path, str(number), case)
        record_property(case, found)
        assert found["wrong"] == []
        assert sum(found["points"].values()) == number
        kinds = set(found["points"])
        if case == "workers":
            assert kinds == {"stopped worker", "dead worker", "connection cut"}
        else:
            assert kinds > {"memory", "memory from there on"}
