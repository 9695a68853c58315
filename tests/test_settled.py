"""The state of the process: whatever a caller has set, the same results, or one sentence."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import process_states
import samebits as sb
from process_states import ROUNDING, SETTLED, STATES, computed
from samebits.errors import InputError, UnsupportedError
from samebits.settled import check_thread, check_threads, is_traced


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return process_states.network()


@pytest.fixture(scope="module")
def expected(net, tmp_path_factory) -> dict[str, str]:
    """What the calls give in a process whose state nobody has changed."""
    return computed(tmp_path_factory.mktemp("settled") / "run", net)


@contextlib.contextmanager
def all_of(*names: str):
    with contextlib.ExitStack() as stack:
        for name in names:
            if name in STATES:  # rounding modes are those of the machine
                stack.enter_context(STATES[name]())
        yield


def test_all_states_at_once(expected, net, tmp_path):
    """Each gives other results, or an error of torch, where it is not settled."""
    with all_of(*SETTLED):
        found = computed(tmp_path / "run", net)
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", STATES)
def test_a_state(expected, net, tmp_path, name):
    with STATES[name]():
        found = computed(tmp_path / "run", net)
    assert found == expected


@pytest.mark.slow
def test_in_a_thread(expected, net, tmp_path):
    found = []
    with all_of(*SETTLED):  # of which threads inherit some
        thread = threading.Thread(target=lambda: found.append(computed(tmp_path / "run", net)))
        thread.start()
        thread.join()
    assert found == [expected]


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
def test_what_cannot_be_settled_is_refused(tmp_path):
    """Before anything is read: each would run the call on stand-ins."""

    def call(x):
        sb.evaluate(tmp_path / "none", "digits")
        return x.sum()

    around = {
        "a transform of torch.func": [torch.vmap(call), torch.func.grad(call)],
        "torch.jit.trace": [lambda x: torch.jit.trace(call, x)],
    }
    for told, calls in around.items():
        for transformed in calls:
            with pytest.raises(UnsupportedError, match=f"found one under {told}"):
                transformed(torch.ones(2))


def test_calls_inside_calls_keep_what_the_outer_one_set():
    inside = []
    torch.set_default_dtype(torch.float64)
    try:
        with sb.settled.state():
            with sb.settled.state():
                pass
            inside.append(torch.get_default_dtype())
            torch.set_default_dtype(torch.bfloat16)  # by a callback, say: theirs from then on
            with sb.settled.state():
                inside.append(torch.get_default_dtype())
        assert (inside, torch.get_default_dtype()) == ([torch.float32] * 2, torch.bfloat16)
    finally:
        torch.set_default_dtype(torch.float32)


# --- torch.compile, exports and threads ---------------------------------------------------------


@pytest.mark.slow  # Dynamo compiles what is around
@pytest.mark.filterwarnings("ignore")
def test_torch_compile_around(expected, net, tmp_path):
    def around(x):
        run = sb.fit("digits", "mlp", tmp_path / "run", sb.Training(epochs=1, limit=20))
        return x + 1, run.sha256

    y, found = torch.compile(around, backend="eager")(torch.ones(2))
    assert (y.tolist(), found) == ([2, 2], expected["fit"])


class Outer(nn.Module):
    """Calls `work` in another thread whenever it is run, or traced."""

    def __init__(self, work) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.work = work

    def forward(self, x):
        thread = threading.Thread(target=self.work)
        thread.start()
        thread.join()
        return self.inner(x)


def test_an_export_is_none_of_other_threads():
    """torch's flag is one for the process."""
    seen = []
    module = Outer(lambda: seen.append((torch.compiler.is_compiling(), is_traced())))
    sb.load(module, example=torch.ones(1, 2))
    assert (True, False) in seen
    assert not any(traced for _, traced in seen)


@pytest.mark.slow
def test_calls_beside_each_other(expected, net, tmp_path):
    """Each in a loop of its own, until the one that takes longest has ended twice."""
    found, stop = [], threading.Event()

    def again(name, call):
        count = 0
        while not stop.is_set():
            folder = tmp_path / f"{name}{count}"
            folder.mkdir()
            try:
                found.append((name, call(folder)))
            except BaseException as error:
                found.append((name, repr(error)))
                return
            count += 1

    def work():
        for count in range(2):
            folder = tmp_path / f"fit{count}"
            found.append(("fit", process_states.fit(folder, epochs=3)))
        stop.set()

    quantize = lambda folder: process_states.quantize(folder, net)  # noqa: E731
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    plan = lambda folder: sb.plan(model, torch.ones(4, 8)).plan.to_dict()  # noqa: E731
    calls = [(work, ()), (again, ("quantize", quantize)), (again, ("second", quantize))]
    threads = [threading.Thread(target=f, args=a) for f, a in [*calls, (again, ("plan", plan))]]
    reference = {
        "fit": process_states.fit(tmp_path / "reference", epochs=3),
        "quantize": expected["quantize"],
        "second": expected["quantize"],
        "plan": plan(tmp_path),
    }
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name for name, _ in found} == set(reference)
    assert [(name, result) for name, result in found if result != reference[name]] == []


# --- processes ----------------------------------------------------------------------------------

OTHER = {
    "hash seed": ({"PYTHONHASHSEED": "1"}, []),
    "no assertions": ({}, ["-OO"]),
    "one OpenMP thread": ({"OMP_NUM_THREADS": "1"}, []),
    "C locale": ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, []),
    "spawned": ({"METHOD": "spawn"}, []),
    "forked": ({"METHOD": "fork"}, []),
    "forked after calls": ({"METHOD": "fork", "BEFORE": "1"}, []),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER)
def test_another_process(expected, tmp_path, name):
    environment, options = OTHER[name]
    command = [sys.executable, *options, process_states.__file__, str(tmp_path / "run")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


FORK = """
import os, sys, types
import samebits
torch = types.SimpleNamespace(get_num_threads=lambda: 2, set_num_threads=print)
if sys.argv[1] == "loaded":
    sys.modules["torch"] = torch  # stands for it: what matters is whether it was there
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
sys.modules["torch"] = torch
from samebits.settled import threads
try:
    with threads(2):
        pass
except samebits.errors.InputError as error:
    print(error)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_forked_process_has_one_thread():
    """Where torch was there before: its threads are not in the child."""
    refused = (
        "threads: expected 1 in a process that was forked from one that had loaded torch, found 2; "
        "start processes by the method spawn (multiprocessing.get_context('spawn'))\n"
    )
    for state, told in {"loaded": refused, "not yet": "2\n2\n"}.items():
        done = subprocess.run(
            [sys.executable, "-c", FORK, state], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, told), done.stderr


# --- arithmetic ---------------------------------------------------------------------------------

SCRIPT = """
import ctypes, sys, torch
torch.set_num_threads(2)
from samebits.errors import InputError
from samebits.settled import check_thread, check_threads
from samebits.train import SGD, BFPTensor, convert, mse_loss
libm = ctypes.CDLL("libm.so.6")
model = convert(torch.nn.Sequential(torch.nn.Linear(4, 2)))
optimizer = SGD(model.parameters(), lr=0.1)
mse_loss(model(BFPTensor.from_real(torch.ones(3, 4))), torch.zeros(3, 2)).backward()
check_threads()
before = model.state_dict()
before = {key: value.clone() for key, value in before.items()}
assert libm.fesetround(int(sys.argv[1])) == 0
for check in (check_thread, check_threads, optimizer.step):
    try:
        check()
    except InputError as error:
        assert "expected arithmetic that rounds to nearest" in str(error), error
    else:
        raise AssertionError(f"{check} accepts it")
libm.fesetround(0)
assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
optimizer.step()
"""
THREADS = """
import ctypes, sys, torch
from samebits.errors import InputError
from samebits.settled import check_thread, check_threads
libm = ctypes.CDLL("libm.so.6")
libm.fesetround(int(sys.argv[1]))
torch.set_num_threads(2)
torch.ones(1 << 20).add(1)  # starts the threads, which inherit the mode
libm.fesetround(0)
check_thread()
try:
    check_threads()
except InputError as error:
    assert "expected torch's threads to round to nearest" in str(error), error
else:
    raise AssertionError("the threads' mode is not seen")
"""


def run(script: str, mode: int) -> None:
    command = [sys.executable, "-c", script, str(mode)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not ROUNDING, reason="modes of this machine unknown")
@pytest.mark.parametrize(
    "mode",
    [m if m == "upward" else pytest.param(m, marks=pytest.mark.slow) for m in ROUNDING],
)
def test_a_rounding_mode_is_refused_before_anything_changes(mode: str) -> None:
    run(SCRIPT, ROUNDING[mode])


@pytest.mark.skipif(not ROUNDING, reason="modes of this machine unknown")
def test_a_mode_that_threads_inherited() -> None:
    run(THREADS, ROUNDING["upward"])


def test_flushed_subnormal_numbers() -> None:
    check_threads()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        with pytest.raises(InputError, match="expected subnormal numbers, found them flushed"):
            check_thread()
    finally:
        torch.set_flush_denormal(False)
    check_threads()
