"""Two runtimes that differ in the width in which they form ratios: models that tell them apart.

Codes are those of tflite-micro 0.dev20260930204519 and 0.dev20261023182759 (both from PyPI). Random
models of some operators tell; for the others sums or scales are chosen.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from lite_models import Build, make
from samebits.ir.interpreter import run_steps
from samebits.tflite import parse
from samebits.tflite.file import Scaling
from samebits.tflite.peers.process import computed, missing, version
from samebits.tflite.same.importer import import_same
from samebits.tflite.same.multiplier import doubled, split
from samebits.tflite.same.versions import RUNTIMES, Runtime
from tflite.test_operators import inputs
from tflite_files import Array, Net

OLD, NEW = RUNTIMES.values()
SEEDS = {  # of a random model that tells
    ("ABS", "int16"): 41,
    ("BATCH_MATMUL", "int16"): 475,
    ("DIV", "int8"): 9,
    ("FULLY_CONNECTED", "int16"): 633,
    ("LEAKY_RELU", "int16"): 7,
    ("RELU", "int16"): 45,
    ("SUB", "int16"): 31,
    ("UNIDIRECTIONAL_SEQUENCE_LSTM", "int16"): 224,
}


def f32(value: float) -> float:
    return float(np.float32(value))


def telling(runtimes_ratio, rng: np.random.Generator) -> list[int]:
    """Sums below 2**30 that get other codes of int8 by the two ratios. runtimes_ratio: of one."""
    (m, s), _ = pair = [split(runtimes_ratio(runtime)) for runtime in (OLD, NEW)]
    first, second = (doubled(*one) for one in pair)
    found = []
    for k in rng.integers(-120, 120, 400):
        middle = round((float(k) + 0.5) * 2.0 ** (31 - s) / m)
        for sum_ in range(middle - 24, middle + 25):
            if abs(sum_) < 1 << 30 and first.code(sum_) != second.code(sum_):
                found.append(sum_)
    return found


def dense(rng: np.random.Generator) -> tuple[Net, tuple[int, ...]] | None:
    """Biases that tell, and inputs that add nothing."""
    b = Build(rng, "int8")
    x = b.codes((1, 4), scale=f32(rng.uniform(0.01, 0.1)), zero=3)
    b.given(x)
    w = b.rows((8, 4), 0, each=False)
    scale = f32(b.unit(x) * b.unit(w) * 2.0**22 * rng.uniform(1, 2))
    y = b.codes((1, 8), scale=scale, zero=0)
    own = (b.unit(x), b.unit(w))
    good = telling(lambda of: of.ratio("FULLY_CONNECTED", own, scale), rng)
    if len(good) < 8:
        return None
    bias = b.tensor((8,), "int32", array=np.array(good[:8], np.int32),
                    quantization=Scaling((f32(b.unit(x) * b.unit(w)),), (0,)))  # fmt: skip
    return b, (b.add("FULLY_CONNECTED", [x, w, bias], y),)


def filters(rng: np.random.Generator) -> tuple[Net, tuple[int, ...]] | None:
    """The same behind a state of 0."""
    b = Build(rng, "int8")
    x = b.codes((1, 4), scale=0.05, zero=0)
    b.given(x)
    features = b.rows((8, 4), 0, each=False)
    array = rng.integers(-99, 99, (8, 3)).astype(np.int16)
    found = Scaling((f32(rng.uniform(1e-5, 1e-4)),), (0,))
    times = b.tensor((8, 3), "int16", array=array, quantization=found)
    state = b.codes((1, 24), "int16", rng.uniform(1e-4, 1e-3), 0, variable=True)
    scale = f32(b.unit(state) * b.unit(times) * 2.0**22 * rng.uniform(1, 2))
    y = b.codes((1, 8), scale=scale, zero=0)

    def ratio(of: Runtime) -> float:
        held, by = (b.tensors[number].quantization for number in (state, times))
        assert held is not None
        assert by is not None
        return of.quotient("SVDF", of.product("SVDF", held, by), scale)

    good = [v for v in telling(ratio, rng) if abs(v) < 1 << 29]
    if len(good) < 8:
        return None
    found = Scaling((f32(b.unit(state) * b.unit(times)),), (0,))
    bias = b.tensor((8,), "int32", array=np.array(good[:8], np.int32), quantization=found)
    inputs = [x, features, times, bias, state]
    return b, (b.add("SVDF", inputs, y, rank=1, activation="RELU"),)


def swish(rng: np.random.Generator) -> tuple[Net, tuple[int, ...]] | None:
    """All codes."""
    b = Build(rng, "int8")
    x = b.codes((1, 256), scale=f32(rng.uniform(0.02, 0.06)), zero=int(rng.integers(-20, 20)))
    b.given(x)
    y = b.codes((1, 256), scale=f32(b.unit(x) * rng.uniform(0.4, 1.5)), zero=-100)
    return b, (b.add("HARD_SWISH", [x], y),)


CHOSEN = {
    "FULLY_CONNECTED chosen": (dense, 0),
    "HARD_SWISH chosen": (swish, 931),
    "SVDF chosen": (filters, 0),
}
CASES = (*SEEDS, *CHOSEN)
RECORDED = {  # by the older and by the newer package
    ("ABS", "int16"): ("8c15ec4dbb8b42f9", "8b830c69bd449ea1"),
    ("BATCH_MATMUL", "int16"): ("ae7c7beac7ca50f1", "6adcf34cadaeccb4"),
    ("DIV", "int8"): ("da497353e9e9df1c", "8dffa4602cd75037"),
    ("FULLY_CONNECTED", "int16"): ("e90d421c28257145", "99e604b7565d510f"),
    ("LEAKY_RELU", "int16"): ("a9280dbf9306ecae", "371664ba2a9b18e1"),
    ("RELU", "int16"): ("1a5f5bb0ea23c60d", "00d46de6bcef9cc0"),
    ("SUB", "int16"): ("3ac7145c49fddc07", "5fe852bf6561020e"),
    ("UNIDIRECTIONAL_SEQUENCE_LSTM", "int16"): ("09dcccb76c8fe71e", "abf7db971bff8845"),
    "FULLY_CONNECTED chosen": ("d17913b7d065992f", "05dac5979df38275"),
    "HARD_SWISH chosen": ("0ffa4537019cfa67", "5cf246e241d2039d"),
    "SVDF chosen": ("6fcdd3c1cd897611", "279722d189cc1d76"),
}


def model_of(case: tuple[str, str] | str) -> tuple[bytes, tuple[int, ...]]:
    """The bytes of a file and its outputs."""
    if isinstance(case, str):
        build, seed = CHOSEN[case]
        made = build(np.random.default_rng(seed))
    else:
        made = make(*case, np.random.default_rng(SEEDS[case]))
    assert made is not None
    net, outputs = made
    return net.bytes(*outputs), outputs


def samples(graph, case: tuple[str, str] | str) -> list[Array]:
    """Random codes; of a chosen model those that it is chosen for."""
    seed = 1 if isinstance(case, str) else SEEDS[case]
    found = inputs(graph, seed)
    if case == "HARD_SWISH chosen":
        found[0][2] = np.arange(-128, 128).astype(np.int8)
    elif isinstance(case, str):
        found[0][0] = graph.values[graph.own_inputs[0]].quantization.zero_point
    return found


def ours(case: tuple[str, str] | str, runtime: Runtime) -> tuple[str, list[Array]]:
    """The digest of all outputs, and what was given."""
    data, outputs = model_of(case)
    graph = import_same(parse(data, "f"), "f", runtime)
    given = samples(graph, case)
    return digest(run_steps(graph, given)[: len(outputs)]), given


def digest(arrays: list[Array]) -> str:
    data = b"".join(array.astype(np.int64).tobytes() for array in arrays)
    return hashlib.sha256(data).hexdigest()[:16]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_version_has_its_own_bits(case, runtime):
    recorded = dict(zip(RUNTIMES, RECORDED[case], strict=True))
    assert ours(case, RUNTIMES[runtime])[0] == recorded[runtime]
    assert len(set(recorded.values())) == 2


def test_every_operator_with_a_width_is_told():
    told = {case.split()[0] if isinstance(case, str) else case[0] for case in CASES}
    assert told == OLD.short


def test_versions_of_packages():
    assert OLD.holds("0.dev20260930204519")
    assert NEW.holds("0.dev20261023182759")
    assert not OLD.holds("0.dev20261013214400")
    assert not NEW.holds("0.dev20270101000000")
    assert not NEW.holds("0.0.stand-in")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_installed_package_has_the_bits_of_its_version(case):
    if reason := missing("tflm"):
        pytest.skip(reason)
    held = [runtime for runtime in RUNTIMES.values() if runtime.holds(version("tflm"))]
    if not held:
        pytest.skip(f"tflite-micro {version('tflm')} has no name here")
    found, given = ours(case, held[0])
    data, outputs = model_of(case)
    theirs = computed("tflm", data, given, outputs)
    assert found == digest([theirs[number] for number in outputs])
