"""From raw values to answers in C: the same as in Python, value by value and network by network."""

from __future__ import annotations

import ctypes
import subprocess
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import samebits as sb
from samebits.codegen.raw import MOST_WORDS, Raw, raw_of
from samebits.csrc import FOLDER, compiler, source
from samebits.data import from_arrays
from samebits.data.columns import ColumnScale
from samebits.errors import InputError
from samebits.spec.tables import code, device_code, device_parts, device_scale

FLAGS = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror"]
REALS = st.floats(-1e6, 1e6) | st.floats(-1e150, 1e150) | st.integers(-300, 300).map(float)
SPREADS = st.floats(1e-6, 1e6) | st.sampled_from((0.5, 1.0, 3.0, 2.0**-40, 1e100, 1 / 3))


def near(centre: float, spread: float, place: float) -> float:
    """A value at a place, in codes, from the centre."""
    return float(Fraction(centre) + Fraction(spread) * Fraction(place) / 4096)


@given(REALS, SPREADS, st.integers(-33_000, 33_000), st.sampled_from((-0.5, 0.0, 0.5, 0.25)))
def test_a_device_computes_the_code_that_the_specification_says(centre, spread, step, away):
    for x in (near(centre, spread, step + away), centre + spread, 0.0, -1e-300, 1e149, -1e149):
        exact = Fraction(x)
        assert device_code(exact, centre, spread) == code(exact, centre, spread, 12, 32767)


def test_ties_go_to_even_codes_and_what_is_beside_them_does_not():
    for x, wanted in ((0.5, 0), (1.5, 2), (-0.5, 0), (-1.5, -2), (2.5, 2), (-2.5, -2)):
        value = Fraction(x) / 4096
        assert device_code(value, 0.0, 1.0) == wanted
        assert device_code(value + Fraction(1, 2**200), 0.0, 1.0) == np.floor(x) + 1
        assert device_code(value - Fraction(1, 2**200), 0.0, 1.0) == np.floor(x)


@given(st.floats(-1e9, 1e9), st.floats(1e-9, 1e6), st.sampled_from((127, 255, 65535, 2**32)))
def test_values_of_a_regression_are_exact_within_their_last_place(centre, scale, largest):
    scale = Fraction(scale)
    m, b, k = device_scale(centre, scale, largest)
    assert largest * abs(m) + abs(b) < 1 << 63
    assert abs(Fraction(centre)) + scale * largest < Fraction(2) ** (31 - k)
    for centred in (-largest, -1, 0, 1, largest):
        exact = (Fraction(centre) + scale * centred) * Fraction(2) ** k
        off = Fraction(1, 2) if largest < 2**31 else Fraction(3, 2)
        assert abs(Fraction(centred * m + b, 1 << 31) - exact) <= off
    assert device_scale(2.0**62, scale, largest) is None


# --- the function in C --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def c_code(tmp_path_factory):
    """samebits_raw_code of this machine's compiler: codes of values of one column."""
    folder = tmp_path_factory.mktemp("raw")
    (folder / "raw.c").write_text(
        source("inference/reals.c") + '#include "samebits_raw.h"\n'
        "void codes(const double *values, int32_t count, int32_t b, const uint32_t *numbers,\n"
        "           uint32_t words, int32_t *found);\n"
        "void codes(const double *values, int32_t count, int32_t b, const uint32_t *numbers,\n"
        "           uint32_t words, int32_t *found) {\n"
        "    int32_t i;\n"
        "    for (i = 0; i < count; i++) {\n"
        "        union {\n"
        "            double value;\n"
        "            uint64_t bits;\n"
        "        } each;\n"
        "        each.value = values[i];\n"
        "        found[i] = samebits_raw_code(each.bits, b, numbers, words);\n"
        "    }\n"
        "}\n"
    )
    command = [*compiler(), *FLAGS, "-shared", "-fPIC", "-I", FOLDER, "-I", FOLDER / "inference"]
    subprocess.run([*command, "raw.c", "-o", "raw.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "raw.so"))

    def run(values, scale):
        b, c, h = device_parts(scale.centre, scale.spread)
        most = max(abs(c), 65535 * h + abs(c), h << 17).bit_length()
        words = -(-(most + 3) // 32)
        assert words <= MOST_WORDS
        parts = [
            number % (1 << 32 * words) >> 32 * i & 0xFFFFFFFF
            for number in (65535 * h - c, h << 17)
            for i in range(words)
        ]
        numbers, found = np.array(parts, np.uint32), np.empty(len(values), np.int32)
        library.codes(
            values.ctypes.data_as(ctypes.c_void_p), len(values), b,
            numbers.ctypes.data_as(ctypes.c_void_p), words,
            found.ctypes.data_as(ctypes.c_void_p),
        )  # fmt: skip
        return found

    return run


@pytest.mark.parametrize(
    ("centre", "spread"),
    [
        (0.0, 1.0), (14.127291739894552, 3.520950760711062), (1e6, 0.01), (-3e-17, 1.0),
        (1e-30, 3.0), (2.0**40, 2.0**-10), (0.1, 1e6), (-1234.5, 1 / 3), (1e100, 1e97),
    ],
)  # fmt: skip
def test_c_computes_the_codes_of_python(c_code, centre, spread):
    """Around every code and every tie, at their neighbours in binary64, and far away."""
    scale, rng = ColumnScale(centre, spread), np.random.default_rng(0)
    places = np.concatenate([rng.integers(-32800, 32800, 3000) + 0.5, np.arange(-4, 4.5, 0.5)])
    exact = np.array([near(centre, spread, place) for place in places.tolist()])
    values = np.concatenate(
        [
            exact, np.nextafter(exact, np.inf), np.nextafter(exact, -np.inf),
            rng.normal(centre, 4 * spread, 3000), rng.normal(0, 1e-300, 20),
            np.array([0.0, -0.0, 5e-324, -5e-324, 1e149, -1e149, 2.0**499, -(2.0**499), centre]),
        ]
    )  # fmt: skip
    wanted = scale.features(values)
    assert len(np.unique(wanted)) > 60
    assert np.array_equal(c_code(values, scale), wanted)


# --- networks -----------------------------------------------------------------------------------


def rows(count: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    made = pd.DataFrame({"torque": rng.normal(500, 100, count), "speed": rng.normal(3, 1, count)})
    made["hue"] = rng.choice(["blue", "grün", 'r"ed'], count)
    made["state"] = np.where(made.torque / 100 > made.speed + 2, "faulty", "healthy")
    made["load"] = made.torque * made.speed / 9
    return made


@pytest.fixture(scope="module")
def nets(tmp_path_factory):
    """A classifier, a regressor and a network of labels, of 8-bit codes; and one in BFP."""
    folder, made = tmp_path_factory.mktemp("nets"), {}
    table = rows(200)
    feature = ["torque", "speed", "hue"]
    run = sb.fit(
        table[[*feature, "state"]],
        "mlp",
        folder / "bfp",
        sb.Training(epochs=3),
        sb.Execution(threads=1),
    )
    made["bfp"] = sb.load(run.folder)
    numbers = table[["torque", "speed"]].to_numpy()
    thirds, halves = np.arange(200) % 3, np.eye(2, dtype=int)[np.arange(200) % 2]
    targets = {"argmax": (thirds, 3), "regression": (table.load, 1), "threshold": (halves, 2)}
    for name, (target, outputs) in targets.items():
        torch.manual_seed(len(made))
        data = from_arrays([numbers], [np.asarray(target)])
        net = sb.quantize(
            nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, outputs)),
            data,
            sb.Calibration(floor="none"),
        )
        meaning = {"name": net.outputs[0].name, "rule": name}
        meaning |= {"names": ["a", "b", "c"][:outputs]} if name != "regression" else {}
        if name == "regression":
            scale = data.preparation.targets[0]
            meaning["scales"] = [{"centre": scale.centre, "spread": scale.spread}]
        made[name] = net.with_contract({"outputs": [meaning]})
    return made


def raw(name: str) -> pd.DataFrame:
    made = rows(60, seed=3)[["hue", "speed", "torque"]]
    return made if name == "bfp" else made.set_axis(["hue", "1", "0"], axis=1).drop(columns="hue")


@pytest.mark.parametrize("weights_file", [False, True])
@pytest.mark.parametrize("name", ["bfp", "argmax", "regression", "threshold"])
def test_raw_to_answer_is_the_same_in_c(nets, name, weights_file, tmp_path):
    """0 differences in answers, output codes and input codes."""
    net, data = nets[name], raw(name)
    net.compile(tmp_path / "c", weights_file=weights_file)
    found = sb.load(tmp_path / "c").verify(data, ["torch", "c"], raw=True)
    assert found.same_bits, str(found)
    assert found.samples == 60
    answer = net.predict(data)
    if name in ("bfp", "argmax"):
        assert np.array_equal(found.outputs["answer"][:, 1], answer.chosen)
    elif name == "threshold":
        assert np.array_equal(found.outputs["answer"][:, 1:], answer.chosen)
    else:
        form = raw_of(net.model.integer, net.contract)
        *_, places = form.known_scales[0]
        assert np.abs(found.outputs["answer"][:, 1] * 2.0**-places - answer.chosen[:, 0]).max() < (
            2.0**-places
        )


@pytest.mark.slow
@pytest.mark.parametrize("weights_file", [False, True])
@pytest.mark.parametrize("name", ["bfp", "argmax", "regression", "threshold"])
def test_packages_pass_their_own_test_without_a_warning(nets, name, weights_file, tmp_path):
    nets[name].compile(tmp_path / "c", weights_file=weights_file)
    made = subprocess.run(["make", "-sC", tmp_path / "c", "test"], capture_output=True, text=True)
    assert made.stdout.startswith("0 of "), made.stderr
    assert made.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cortex-m0", "cortex-m3", "cortex-m55"])
def test_raw_to_answer_is_the_same_on_boards(nets, backend):
    for name, net in nets.items():
        assert net.verify(raw(name)[:20], [backend], raw=True), name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer", "diabetes", "digits"])
def test_real_tables(name, tmp_path):
    """Every row has an answer, and C has the same from raw values."""
    made = getattr(pytest.importorskip("sklearn.datasets"), f"load_{name}")(as_frame=True)
    frame = made.frame
    run = sb.fit(
        sb.read(frame, target="target"),
        "mlp",
        tmp_path / "run",
        sb.Training(epochs=3, batch=32),
        sb.Execution(threads=1),
    )
    features = frame.drop(columns="target")
    assert len(run.predict(features)) == len(frame)
    found = sb.load(run.folder).verify(features, ["torch", "c"], raw=True)
    assert found.same_bits, str(found)
    assert found.samples == len(frame)


def test_cells_without_a_value_and_wrong_ones(nets, tmp_path):
    net, data = nets["bfp"], raw("bfp")[:4].reset_index(drop=True)
    data.loc[1, "speed"], data.loc[2, "hue"] = np.nan, None
    name = net.inputs[0].name
    ruled = net.with_contract({"inputs": [{"name": name, "missing": "mean"}]})
    assert ruled.verify(data, ["c"], raw=True)
    program = (
        "#include <math.h>\n#include <stdio.h>\n#include \"../model.h\"\nMODEL_INSTANCE(net);\n"
        "static model_answer_t answer;\nint main(void) {\n"
        "    const double rows[5][3] = {{500, 3, 0}, {NAN, 3, 0}, {500, INFINITY, 0},\n"
        "                               {500, 3, 3}, {500, 3, 0.5}};\n    int i;\n"
        "    for (i = 0; i < 5; i++) printf(\"%d \", model_predict(&net, rows[i], &answer));\n"
        "    printf(\"%d %s %d\\n\", MODEL_CLASSES_COUNT, MODEL_CLASSES[1],\n"
        "           model_predict_selftest(&net, &answer));\n    return 0;\n}\n"
    )  # fmt: skip
    net.compile(tmp_path / "c")
    (tmp_path / "c/test/model_main.c").write_text(program)
    subprocess.run(["make", "-sC", tmp_path / "c", "OPTIMIZE=-O0"], check=True)
    done = subprocess.run([tmp_path / "c/model"], capture_output=True, text=True, check=True)
    assert done.stdout == "0 1 2 3 3 2 healthy 0\n"


def test_images():
    torch.manual_seed(0)
    images = np.random.default_rng(0).integers(0, 256, (30, 3, 4, 5), np.uint8)
    net = sb.quantize(
        nn.Sequential(nn.Flatten(), nn.Linear(60, 3)), torch.rand(20, 3, 4, 5) * 4 - 2
    )
    net = net.with_contract(
        {
            "inputs": [
                {"name": net.inputs[0].name, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}
            ],
            "outputs": [{"name": net.outputs[0].name, "rule": "argmax", "names": ["a", "b", "c"]}],
        }
    )
    found = net.verify(images, ["torch", "c"], raw=True)
    assert found.same_bits, str(found)
    assert np.array_equal(found.outputs["answer"][:, 1], net.predict(images).chosen)


def test_a_network_without_raw_values_says_why(nets):
    torch.manual_seed(0)
    net = sb.quantize(nn.Linear(3, 2), torch.rand(20, 3))
    with pytest.raises(InputError, match="its contract does not say what columns, pixels or re"):
        net.verify(torch.rand(3, 3), ["c"], raw=True)
    assert not isinstance(raw_of(net.model.integer, net.contract), Raw)
    with pytest.raises(InputError, match="expected rows of a table, in the units of the contract"):
        nets["argmax"].verify(sb.prepared(np.zeros((2, 2), np.float32)), ["c"], raw=True)
