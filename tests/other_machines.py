"""Other machine code for the same Python: numpy's and BLAS's for other processors and threads.

A process has one of each, so a function of a test module is computed in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from numpy._core._multiarray_umath import __cpu_dispatch__

MACHINES = {
    "one thread": {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    "an old BLAS kernel": {"OPENBLAS_CORETYPE": "Nehalem", "OPENBLAS_NUM_THREADS": "2"},
    "numpy without vectors": {
        "NPY_DISABLE_CPU_FEATURES": " ".join(__cpu_dispatch__),
        "OPENBLAS_CORETYPE": "Prescott",
    },
}


def elsewhere(machine: str, module: str, function: str) -> str:
    """What function() of a test module returns, a text, on one of MACHINES."""
    here = Path(module).resolve()
    folders = [str(here.parent), str(Path(__file__).resolve().parent)]
    program = (
        f"import sys; sys.path[:0] = {folders!r}; import {here.stem}; "
        f"print({here.stem}.{function}())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, **MACHINES[machine]},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
