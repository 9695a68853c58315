"""The saved corpus, read again: every case ends as it did, in bounded memory and without a word on
the standard error; and a short run of every target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
CORPUS = Path(__file__).parent / "corpus"
BYTES = 300_000  # of the whole corpus in the repository
NAMES = sorted(path.name for path in CORPUS.iterdir())


def fuzzing(*arguments: str, timeout: int = 600) -> subprocess.CompletedProcess[str]:
    """`python -m fuzzing` in a process of its own, which bounds memory."""
    return subprocess.run(
        [sys.executable, "-m", "fuzzing", *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_a_fifth_of_every_corpus_is_accepted() -> None:
    """As the names say, which the next test holds against the readers."""
    for name in NAMES:
        ends = [path.name.split("-")[0] for path in (CORPUS / name).iterdir()]
        assert set(ends) == {"ok", "no"}, name
        assert len(ends) >= 6, name
        assert ends.count("ok") * 5 >= len(ends), name
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) <= BYTES


def test_every_case_ends_as_it_did() -> None:
    done = fuzzing("--check-corpus")
    assert done.returncode == 0, done.stderr[-4000:]
    tallies = json.loads(done.stdout)
    assert [tally["name"] for tally in tallies] == NAMES
    for tally in tallies:
        assert tally["defects"] == {}
        cases = tally["accepted"] + tally["refused"]
        assert cases == len(list((CORPUS / tally["name"]).iterdir()))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_short_run(name: str, tmp_path: Path) -> None:
    done = fuzzing(name, "--seconds", "20", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    (tally,) = json.loads((tmp_path / "report.json").read_text())
    assert tally["defects"] == {}
    assert tally["accepted"] > 0
    assert tally["refused"] > 0


def test_a_defect_is_saved_and_replayed(tmp_path: Path) -> None:
    """A reader with a defect: of another exception, of memory, of a message and of a print."""
    script = tmp_path / "broken.py"
    script.write_text(
        "import json, sys\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from fuzzing import harness\n"
        "from fuzzing.mutations import flip\n"
        "from samebits.errors import InputError\n"
        "def read(folder, data):\n"
        "    kind = (data or bytes([5]))[0] % 6\n"
        "    if kind == 0:\n"
        "        raise KeyError('x')\n"
        "    if kind == 1:\n"
        "        np.empty(1 << 34, np.uint8)\n"
        "    if kind == 2:\n"
        "        raise InputError('expected another')\n"
        "    if kind == 3:\n"
        "        print('Traceback', file=sys.stderr)\n"
        "    if kind == 4:\n"
        "        raise InputError(f'{folder}/case: expected another, found this')\n"
        "target = harness.Target('broken', lambda: iter([b'abcdef']), flip, read)\n"
        "harness.bound_memory()\n"
        "out = Path(sys.argv[1])\n"
        "tally, _ = harness.fuzz(target, out=out, cases=400, start=[b'\\5bcdef'])\n"
        "print(json.dumps([tally.accepted > 0, tally.refused > 0, len(tally.defects)]))\n"
        "for path in tally.defects.values():\n"
        "    print(harness.read(target, Path(path).read_bytes())[0])\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    first, *ends = done.stdout.splitlines()
    assert json.loads(first) == [True, True, 4]
    assert ends == ["defect"] * 4
    assert done.stderr.count("replay: PYTHONPATH=tests ") == 4
    assert len(list((tmp_path / "out").glob("defect-*"))) == 4
