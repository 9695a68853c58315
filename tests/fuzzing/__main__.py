"""PYTHONPATH=tests python -m fuzzing: fuzz all targets, or those that are named.

Every target runs in a process of its own; cases, ends and defects are reported for each, and
written to OUT/report.json. Exit code 1 where there is a defect.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from fuzzing.harness import (
    TARGETS,
    Tally,
    bound_memory,
    command,
    corpus_of,
    fuzz,
    make_corpus,
    prepare,
    read,
    replay,
)
from fuzzing.targets import SECONDS

OUT = Path("runs/fuzz")


def child(arguments: list[str], seconds: float, name: str, out: Path) -> Tally:
    """The tally of one target from a process of its own; a killed one is a defect."""
    target = TARGETS[name]
    line = [sys.executable, "-m", "fuzzing", "--only", name, "--out", str(out), *arguments]
    problem = ""
    try:
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, timeout=seconds)
        if done.returncode == 0:
            return Tally(**json.loads(done.stdout.splitlines()[-1]))
        problem = f"ended with {done.returncode}"
    except subprocess.TimeoutExpired:
        problem = f"did not end in {seconds:.0f} seconds"
    tally, current = Tally(target.name), out / target.name / "current"
    path = current
    if current.exists():
        path = current.rename(out / target.name / "killed")
    tally.defects[problem] = str(path)
    print(f"{name}: {problem}\nreplay: {command(target, path)}", file=sys.stderr)
    return tally


def everything(names: list[str], seconds: float, seed: int, jobs: int, out: Path) -> int:
    """All targets, `jobs` at a time."""
    arguments = ["--seconds", str(seconds), "--seed", str(seed)]
    limit = seconds + 5 * SECONDS
    with ThreadPoolExecutor(jobs) as pool:
        made = [pool.submit(child, arguments, limit, name, out) for name in names]
        tallies = []
        for future in made:
            tallies.append(future.result())
            print(tallies[-1].text(), flush=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps([asdict(t) for t in tallies], indent=1) + "\n")
    return int(any(tally.defects for tally in tallies))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="fuzzing", description=__doc__)
    known = sorted(TARGETS)
    parser.add_argument("names", nargs="*", help=f"targets: {', '.join(known)}")
    parser.add_argument("--seconds", type=float, default=600, help="of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", help="one target, in this process")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "FILE"), help="one case")
    parser.add_argument("--make-corpus", action="store_true")
    parser.add_argument("--check-corpus", action="store_true")
    given = parser.parse_args()
    names = [name.replace("-", "_") for name in given.names] or known
    if given.replay:
        target = TARGETS[given.replay[0].replace("-", "_")]
        prepare(target)
        bound_memory()
        end, problem = read(target, Path(given.replay[1]).read_bytes())
        print(end, problem)
        return int(end == "defect")
    if given.only:
        target = TARGETS[given.only]
        prepare(target)
        bound_memory()
        tally, _ = fuzz(target, out=given.out / target.name, seed=given.seed, seconds=given.seconds)
        print(json.dumps(asdict(tally)))
        return 0
    if given.make_corpus:
        for name in names:
            prepare(TARGETS[name])
            print(make_corpus(name).text(), sum(p.stat().st_size for p in corpus_of(name)), "bytes")
        return 0
    if given.check_corpus:
        for name in names:
            prepare(TARGETS[name])
        bound_memory()
        tallies = [replay(name) for name in names]
        print(json.dumps([asdict(tally) for tally in tallies]))
        return int(any(tally.defects for tally in tallies))
    return everything(names, given.seconds, given.seed, given.jobs, given.out)


if __name__ == "__main__":
    sys.exit(main())
