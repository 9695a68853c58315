"""Shared test set-up: the hypothesis profiles and the golden-file fixture."""

from __future__ import annotations

import os

# Before numpy is imported: its BLAS waits busily, and tests run side by side.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Before triton is imported, as torch.compile does: its interpreter runs kernels on the CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import typer.main
from hypothesis import HealthCheck, settings
from torch._export import utils as export_parts

ROOT = Path(__file__).resolve().parents[1]
# Tests import what they share (`compare`) by name; importlib mode adds no folder to the path.
sys.path.insert(0, str(ROOT / "tests"))

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # of processes that tests start: do not spin
torch.set_num_threads(1)  # tests run side by side; those about threads set their own number

# What tests write need not outlive a loss of power; tests/faults.py checks in a process of its own
# what the library syncs.
os.fsync = lambda _: None

# Once, not for every namespace of operators whenever a module is imported.
export_parts._materialize_cpp_cia_ops = functools.cache(export_parts._materialize_cpp_cia_ops)

# The command line is made from the functions of its commands once, not anew in every call.
typer.main.get_command = functools.cache(typer.main.get_command)

settings.register_profile(
    "samebits",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("samebits"), max_examples=100)
settings.load_profile("samebits")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite golden files and generated tables instead of comparing (review the diff)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr") == "not slow":
        settings.load_profile("quick")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # torch and thousands of tests: what collects garbage need not look at them again


def pytest_unconfigure() -> None:
    gc.unfreeze()  # what libraries count at the end is freed


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of compiled C, one for all of pytest's workers."""
    folder = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        folder = folder.parent
    folder = folder / "objects"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def shared_objects(objects: Path) -> Iterator[None]:
    """Programs of generated C share the objects of their kernels."""
    from object_cache import cached
    from samebits.codegen.run import execute

    compiler = execute.compile_with
    execute.compile_with = cached(compiler, objects)
    yield
    execute.compile_with = compiler


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(path, text): the file `path`, relative to the repository, holds exactly `text`."""
    update = request.config.getoption("--update-golden")

    def check(path: str, text: str) -> None:
        file = ROOT / path
        if update:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            return
        assert file.exists(), f"{path} is missing; run pytest --update-golden"
        assert file.read_text(encoding="utf-8") == text, (
            f"{path} is out of date; run pytest --update-golden and review the diff"
        )

    return check
