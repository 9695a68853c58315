"""The front door: every function from every kind of source, in any order, and what it refuses."""

from __future__ import annotations

import copy
import inspect
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits as sb
from given_options import called
from samebits import api
from samebits.errors import CheckpointError, InputError, UnsupportedError
from samebits.ir import GraphBuilder
from samebits.recipes import RECIPES, Reading
from samebits.verification.registry import backend_named

ROOT = Path(__file__).parents[1]
FIRMWARE = ROOT / "examples" / "firmware"
RNG = np.random.default_rng(0)
X = RNG.random((12, 1, 6, 6)).astype(np.float32)
SEQUENCES = RNG.normal(size=(6, 5, 4)).astype(np.float32)
FUNCTIONS = [
    *("audit", "compare", "compile_training", "concord", "convert", "doctor", "evaluate"),
    *("explain", "fit", "inspect", "load", "measure_device", "memory_limit", "plan"),
    *("prepared", "profile_training", "quantize", "read", "report", "ship", "simulate"),
    "within",
]
RECORDS = [*(kind.__name__ for kind in RECIPES.values() if kind is not Reading), "Network"]


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 36, 3)
    ).eval()


@pytest.fixture(scope="module")
def net(module):
    return sb.quantize(module, X)


@pytest.fixture(scope="module")
def real(module):
    return sb.load(module, example=torch.from_numpy(X[:1]))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """96 training and 24 test images of 3 classes that their brightness tells apart."""
    labels = np.arange(120) % 3
    images = RNG.integers(0, 120, (120, 6, 6)) + 60 * labels[:, None, None]
    images = images.astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "three.npz"
    np.savez(path, x_train=images[:96], y_train=labels[:96], x_test=images[96:], y_test=labels[96:])
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory, data):
    """A training folder of each numerics, as `fit` leaves it."""
    made = {}
    for numerics in ("bfp", "float32"):
        made[numerics] = tmp_path_factory.mktemp(numerics) / "run"
        sb.fit(
            data,
            "mlp",
            made[numerics],
            sb.Numerics(numerics=numerics),
            sb.Training(epochs=2, batch=16),
            sb.Optimizer(lr=0.02),
        )
    return made


# --- the door itself ----------------------------------------------------------------------------

# Every line of the front door as its first plan has it, options in recipes.
LINES = """
net = sb.quantize(module_or_path, calibration=loader)
print(net.report())
net.verify(samples, backends=["torch", "c", "cortex-m3"])
net.compile("build/net", target="c")
net.save("net.onnx");  net = sb.load("net.onnx")
bfp = sb.convert(module)
run = sb.fit("digits", "cnn", "run", sb.Training(epochs=5))
plan = sb.plan(module, example, sb.Recomputation(memory_budget="40%"))
sb.simulate(program, inputs); sb.concord(program, to="torch")
sb.__version__
"""

PROGRAM = """
import importlib, os, pkgutil, sys
import samebits as sb

for found in pkgutil.walk_packages(sb.__path__, "samebits."):
    if not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:  # text of generated modules, which TensorFlow runs
            assert error.name == "tensorflow", found.name

for name in sb.__all__:
    kind = type(getattr(sb, name)).__name__
    expected = {"__version__": "str", "train": "module"}.get(name, "function")
    assert kind == ("type" if name[0].isupper() else expected), (name, kind)

import numpy as np, torch
from pathlib import Path
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, TESTS)
from object_cache import cached
execute = sys.modules["samebits.codegen.run.execute"]
execute.compile_with = cached(execute.compile_with, Path(OBJECTS))

digits = sys.modules["samebits.data.load"].load_digits()
def few():
    from dataclasses import replace
    return replace(digits.limited(8), test_images=digits.test_images[:20],
                   test_labels=digits.test_labels[:20])
sys.modules["samebits.data.load"].load_digits = few

torch.manual_seed(0)
functions = [layer for _ in range(14) for layer in (nn.Tanh(), nn.Sigmoid())]  # 40% needs many
module = nn.Sequential(
    nn.Conv2d(1, 2, 3, padding=1), *functions, nn.Flatten(), nn.Linear(2 * 64, 3)
)
example = torch.rand(64, 1, 8, 8)
loader = DataLoader(TensorDataset(example, torch.arange(64)), batch_size=32)
samples = example[:2]
sb.load(module, example=example[:1]).save("float.onnx")
program = sb.load("float.onnx").compile("npu", target="npu").path.resolve()
inputs = {value.name: np.ones((1, *value.shape[1:]), np.float32)
          for value in sb.load(program).inputs}
start = os.getcwd()
for round, module_or_path in enumerate((module, os.path.join(start, "float.onnx"))):
    os.makedirs(f"round{round}")
    os.chdir(f"round{round}")
    exec(LINES)
    assert net.verify(samples, ["torch", "c"]) and sorted(os.listdir()) == [
        "build", "net.onnx", "run"]
    os.chdir(start)
print("done")
"""


@pytest.mark.slow
def test_every_line_runs_twice_after_every_room_is_imported(tmp_path, objects):
    """In one fresh process: importing a sub-package sets an attribute of its name."""
    for name in ("c", "cortex-m3"):
        reason = backend_named(name).unavailable()
        if reason is not None:
            pytest.skip(reason)
    given = f"LINES, OBJECTS, TESTS = {LINES!r}, {str(objects)!r}, {str(ROOT / 'tests')!r}\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", given + PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("multiply-adds") == 2
    assert done.stdout.endswith("done\n")
    # TensorFlow, where it is installed, greets on stderr.
    greeting = (
        r"(I0000 |WARNING: All log messages before absl|To enable the following instruct).*\n"
    )
    assert re.sub(rf"(?m)^{greeting}", "", done.stderr) == ""


def test_importing_it_loads_little():
    code = (
        "import sys; import samebits as sb; dir(sb)\n"
        "loaded = {'torch', 'numpy', 'onnx', 'typer', 'rich'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "sb.__version__\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_its_names():
    assert dir(sb) == sorted(["__version__", "train", *RECORDS, *FUNCTIONS])
    assert sb.__version__ == sb.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", sb.__version__)
    assert isinstance(sb.train, types.ModuleType)
    assert all(isinstance(getattr(sb, name), type) for name in RECORDS)
    for name in FUNCTIONS:
        function = getattr(sb, name)
        assert inspect.isfunction(function), name
        assert inspect.getdoc(function), name
    with pytest.raises(AttributeError, match=r"^module 'samebits' has no attribute 'quantise'$"):
        sb.quantise  # noqa: B018


# --- load ---------------------------------------------------------------------------------------


def test_load_a_module(module, real):
    assert (real.kind, real.source) == ("float network", "Sequential")
    assert module(torch.from_numpy(X)).shape == (12, 3)
    two = sb.load(nn.PairwiseDistance(), example=(torch.ones(1, 2), torch.ones(1, 2)))
    assert [value.shape for value in two.inputs] == [(1, 2), (1, 2)]


def same(a, b):
    (left,), (right,) = a.run(X[:3]).values(), b.run(X[:3]).values()
    np.testing.assert_array_equal(left, right)


def test_load_files_of_float_networks(module, real, tmp_path):
    program = torch.export.export(module, (torch.from_numpy(X[:1]),))
    torch.export.save(program, tmp_path / "net.pt2")
    for source in (program, tmp_path / "net.pt2", str(real.save(tmp_path / "net.onnx")),
                   real.model.graph, real.model):  # fmt: skip
        found = sb.load(source)
        assert found.kind == "float network"
        same(found, real)


def test_load_a_callable(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own_net.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.ReLU())\n"
    )
    found = sb.load("own_net.py:make", example=torch.ones(1, 2, 3))
    assert found.source == "own_net.py:make"
    assert found.inputs[0].shape == (1, 2, 3)
    assert sb.quantize("own_net.py:make", X).quantized  # the example comes from the calibration


def test_load_training_folders(folders, data):
    bfp, plain = (sb.load(folders[numerics]) for numerics in ("bfp", "float32"))
    assert (bfp.kind, plain.kind) == ("quantized network", "float network")
    assert bfp.verify("random:5", ["torch", "training"])
    (checkpoint, *_) = sorted(folders["bfp"].glob("*.safetensors"), reverse=True)
    same(sb.load(checkpoint), bfp)
    quantized = sb.quantize(folders["float32"], data)
    assert quantized.source == str(folders["float32"])
    assert quantized.verify(data, ["torch"])


def test_load_compiled_folders(net, real, tmp_path):
    same(sb.load(net.compile(tmp_path / "c").folder), net)
    path = real.compile(tmp_path / "npu", target="npu").path
    assert [sb.load(place).kind for place in (path, path.parent)] == ["firmware"] * 2


def test_open_dimensions_are_fixed_by_name(tmp_path):
    shape = ["N", 3, "height", 4]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "open",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    path = tmp_path / "open.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    with pytest.raises((InputError, UnsupportedError), match="height"):
        sb.load(path)
    net = sb.load(path, shapes={"x": (1, 3, 2, 4)})
    assert net.inputs[0].shape == (1, 3, 2, 4)
    assert sb.quantize(sb.load(path, shapes={"x": (1, 3, 2, 4)}), np.ones((2, 3, 2, 4), np.float32))


EXPECTED = (
    "a torch.nn.Module, an exported program, a graph, or the path of an .onnx, .pt2 or .tflite "
    "file, a training folder or checkpoint, a compiled folder or an .nnp program"
)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (3, {}, f"expected {EXPECTED}, found int"),
        (None, {}, f"expected {EXPECTED}, found NoneType"),
        (nn.Linear, {}, f"expected {EXPECTED}, found type"),
        (X, {}, f"expected {EXPECTED}, found ndarray"),
        (nn.Linear(2, 2), {},
         "Linear: expected an example input of a torch.nn.Module, found none; give example=tensor "
         "(a tuple of several)"),
        (nn.Linear(2, 2), {"example": 3},
         "Linear: expected example=tensor (a tuple of several), found int"),
        (nn.Linear(2, 2), {"example": np.ones((1, 2))},
         "Linear: expected example=tensor (a tuple of several), found ndarray"),
        (nn.Linear(2, 2), {"example": torch.ones(1, 3)},
         "Linear: expected example inputs that the module takes, found [1, 3] (RuntimeError: mat1 "
         "and mat2 shapes cannot be multiplied (1x3 and 2x2))"),
        (nn.Linear(2, 2), {"example": torch.ones(1, 2), "arch": "cnn"},
         "arch does not apply to such a source, found cnn; leave it out"),
        (nn.Linear(2, 2), {"example": torch.ones(1, 2), "shapes": {"x": (1, 2)}},
         "shapes does not apply to such a source, found dict; leave it out"),
        ("net.onnx", {"example": torch.ones(1, 2)},
         "example does not apply to such a source, found Tensor; leave it out"),
        ("net.pt2", {"shapes": {"x": (1, 2)}},
         "net.pt2: --shape applies to ONNX files, found one for another model; leave it out"),
        ("net.onnx", {"arch": "cnn"},
         "net.onnx: --arch applies to training folders and checkpoints, found 'cnn' for another "
         "model; leave it out"),
        ("own_absent:make", {"example": X},
         "model own_absent:make: cannot import 'own_absent' (ModuleNotFoundError: No module named "
         "'own_absent'); expected module:callable or path/to/file.py:callable"),
        ("os.path:join", {"example": X},
         "os.path:join: calling it failed (TypeError: join() missing 1 required positional "
         "argument: 'a'); expected a function without arguments that gives a torch.nn.Module"),
        ("os:sync", {"example": X},
         "os:sync: expected a torch.nn.Module from calling it, found NoneType"),
        ("os:getcwd", {"example": X},
         "os:getcwd: expected a torch.nn.Module from calling it, found str"),
        ("nowhere", {},
         "nowhere: no such file or folder; expected an .onnx, .pt2 or .tflite file, a training "
         "output folder, a checkpoint, or a compiled folder (with model.onnx)"),
        ("notes.txt", {},
         "notes.txt: expected an .onnx, .pt2 or .tflite file, a training output folder, a "
         "checkpoint or a compiled folder, found a file ending in .txt; write ONNX with the tool "
         "that it is from, or give a callable of yours that gives the torch.nn.Module, as "
         "file.py:callable"),
    ],
)  # fmt: skip
def test_loads_that_are_refused(source, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("no model")
    with pytest.raises(InputError) as caught:
        sb.load(source, **options)
    assert str(caught.value) == message


def test_a_network_takes_no_options(net):
    for option in ({"example": torch.ones(1)}, {"arch": "cnn"}, {"shapes": {"x": (1,)}}):
        with pytest.raises(InputError, match="does not apply to such a source"):
            sb.load(net, **option)


# --- quantize -----------------------------------------------------------------------------------


def test_any_samples_calibrate(module, net, real, tmp_path):
    tensor = torch.from_numpy(X)
    np.savez(tmp_path / "x.npz", x=X)
    for given in (
        tensor,
        {"input": X},
        DataLoader(TensorDataset(tensor, torch.arange(12)), batch_size=5),
        (X[i : i + 3] for i in range(0, 12, 3)),  # read once, for the example and for ranges
        tmp_path / "x.npz",
        str(tmp_path / "x.npz"),
    ):
        same(sb.quantize(module, given), net)
    same(sb.quantize(sb.load(module, example=tensor[:1]), list(tensor)), net)
    same(sb.quantize(real, X), net)
    same(sb.quantize(real.save(tmp_path / "net.onnx"), X), net)


def test_a_file_that_calibrates_a_module_is_read_once(module, tmp_path, monkeypatch):
    from samebits import data

    read, load_samples = [], data.load_samples
    monkeypatch.setattr(
        data,
        "load_samples",
        lambda *given, **how: read.append(given) or load_samples(*given, **how),
    )
    images, labels = RNG.random((10, 1, 6, 6)).astype(np.float32), np.arange(10) % 2
    path = tmp_path / "x.npz"
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    same(sb.quantize(module, path), sb.quantize(module, images))
    assert read == [(str(path),)]


def test_a_target_is_that_of_tables(tmp_path):
    """Of calibration, of data to fine-tune on, or of both; without one it is refused at once."""
    pytest.importorskip("pandas", reason="tables are read by pandas")
    rows = RNG.random((100, 2)).astype(np.float32)
    table, archive = tmp_path / "t.csv", tmp_path / "c.npz"
    lines = [f"{int(a > b)},{a},{b}" for a, b in rows]
    table.write_text("y,a,b\n" + "\n".join(lines) + "\n")
    np.savez(archive, rows)
    linear = nn.Sequential(nn.Linear(2, 2))
    for calibration, finetune in ((archive, table), (rows, table), (table, None)):
        given, tuned = api.read_each(Reading(target="y"), calibration, finetune)
        made = sb.quantize(linear, given, finetune=tuned)
        assert any("fine-tuned" in note for note in made.notes) == (finetune is not None)
    with pytest.raises(
        InputError,
        match=r"c\.npz: --target does not apply to it, nor to digits; leave",
    ):
        api.read_each(Reading(target="y"), archive, "digits")
    with pytest.raises(InputError, match=r"c\.npz: --resample does not apply to an archive"):
        sb.quantize(linear, sb.read(archive, resample=True))


def test_settings_change_the_network(module, net):
    found = sb.quantize(
        module,
        X,
        sb.Formats(scheme="symmetric-s16", weights="symmetric-s8", per_tensor=True, output_bits=8),
        sb.Calibration(calibrate="percentile", percentile=99.0),
    )
    assert [value.dtype for value in (*found.inputs, *found.outputs)] == ["int16", "int8"]
    assert found.quantization.settings.percentile == 99.0
    assert [value.dtype for value in net.inputs] == ["int8"]


@pytest.fixture(scope="module")
def lstm():
    torch.manual_seed(0)
    return sb.load(nn.LSTM(4, 3, batch_first=True), example=torch.zeros(1, 5, 4))


def test_a_recurrent_network_becomes_a_step(lstm):
    net = sb.quantize(lstm, SEQUENCES)
    assert [value.shape for value in net.inputs] == [(1, 1, 4), (1, 3), (1, 3)]
    assert net.verify("random:3", ["torch"])
    assert "SQNR of the outputs" in str(net)
    wide = sb.quantize(
        lstm,
        SEQUENCES,
        sb.Recurrence(bits=16, symmetry=0.5, gates="symmetric"),
        sb.Calibration(calibrate="minmax"),
    )
    assert wide.inputs[0].dtype == "int16"
    assert sb.quantize(lstm, SEQUENCES, sb.Recurrence(float_bias=True)).kind == "quantized network"


NOT_RECURRENT = {
    "scheme": ("symmetric-s8", "its activations have 8 or 16 bits: give --bits"),
    "weights": ("symmetric-s8", "its weights have 8 bits"),
    "output_bits": (8, "its outputs have the bits of h: give --bits"),
    "per_tensor": (
        True, "its weights have a scale for each matrix of a gate, with --bits 16 each row"
    ),
}  # fmt: skip
RECURRENT = {
    "bits": (16, "give --scheme asymmetric-s16"),
    "symmetry": (0.5, "leave it out"),
    "gates": ("q0.15", "leave it out"),
    "float_bias": (True, "leave it out"),
}


@pytest.mark.parametrize("option", [*NOT_RECURRENT, *RECURRENT])
def test_options_of_the_other_kind_of_network(real, lstm, option):
    value, advice = (NOT_RECURRENT | RECURRENT)[option]
    recurrent = option in NOT_RECURRENT
    source, samples = (lstm, SEQUENCES) if recurrent else (real, X)
    with pytest.raises(InputError) as caught:
        called(sb.quantize, source=source, calibration=samples, **{option: value})
    kind = "a recurrent" if recurrent else "a feed-forward"
    assert str(caught.value) == (
        f"--{option.replace('_', '-')} does not apply to {kind} network, found {value}; {advice}"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "int8"}, "expected one of asymmetric-s8, asymmetric-u8, symmetric-s8, "),
        ({"weights": "int8"}, "expected one of symmetric-s8, asymmetric-s8, power-of-two-s8, "),
        ({"calibrate": "best"}, "expected one of minmax, percentile, mse, found 'best'"),
        ({"output_bits": 4}, "--output-bits: expected 8 or 16, found 4"),
        ({"percentile": 99.0},
         "--percentile 99.0 needs --calibrate percentile, found the default; give both, or leave "
         "--percentile out"),
        ({"percentile": 99.0, "calibrate": "mse"}, "needs --calibrate percentile, found mse"),
        ({"percentile": 20.0, "calibrate": "percentile"}, "expected above 50 and up to 100"),
    ],
)  # fmt: skip
def test_values_that_no_option_has(real, options, message):
    with pytest.raises(InputError) as caught:
        called(sb.quantize, source=real, calibration=X, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 4}, "--bits: expected 8 or 16, found 4"),
        ({"symmetry": 2.0}, "--symmetry: expected from 0 to 1, found 2.0"),
        ({"gates": "none"}, "--gates: expected one of q0.15, symmetric, asymmetric, found 'none'"),
        ({"percentile": 99.0}, "--percentile 99.0 needs --calibrate percentile"),
    ],
)
def test_values_that_no_option_of_recurrent_networks_has(lstm, options, message):
    with pytest.raises(InputError) as caught:
        called(sb.quantize, source=lstm, calibration=SEQUENCES, **options)
    assert message in str(caught.value)


KINDS = "expected an array, a tensor, a dict of them by the names of the inputs, a DataLoader or"


@pytest.mark.parametrize("by_module", [True, False])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, KINDS),
        (None, KINDS),
        (b"x", KINDS),
        ([], "expected at least one sample, found none"),
        (X[:0], "expected at least one sample, found none"),
        ({"y": X}, "calibration: expected the names input (the "),
        ("nowhere", "nowhere: no such file or folder"),
        (np.float64(3), "expected "),
    ],
)
def test_calibrations_that_are_none(module, real, by_module, given, message):
    with pytest.raises(InputError) as caught:
        sb.quantize(module if by_module else real, given)
    assert message in str(caught.value)


def test_samples_that_do_not_fit(real):
    for given, message in (
        (X.astype(np.float64), "expected float32, found float64"),
        (X[:, :, :3], "expected shape [samples, 1, 6, 6], found [12, 1, 3, 6]"),
        (X * np.inf, "inf"),
        ({}, "expected the arrays input (the model's inputs), found none"),
    ):
        with pytest.raises(InputError) as caught:
            sb.quantize(real, given)
        assert message in str(caught.value)


def test_only_float_networks_are_quantized(net):
    with pytest.raises(InputError) as caught:
        sb.quantize(net, X)
    assert str(caught.value) == "Sequential: expected a float network, found: quantized network"
    with pytest.raises(InputError, match="expected a float network, found: firmware"):
        sb.quantize(FIRMWARE / "lstm.nnp", X)


# --- convert, fit, evaluate ---------------------------------------------------------------------


def test_convert(module):
    converted = sb.convert(module)
    assert any(isinstance(part, sb.train.Layer) for part in converted.modules())
    assert not any(isinstance(part, sb.train.Layer) for part in module.modules())
    with pytest.raises(InputError, match=r"^expected a torch\.nn\.Module, found int$"):
        sb.convert(3)
    with pytest.raises(UnsupportedError, match="Softsign"):
        sb.convert(nn.Softsign())


class Reporter:
    def __init__(self):
        self.heard = []

    def say(self, text):
        self.heard.append(text)

    def started(self, first_step, steps):
        self.heard.append((first_step, steps))

    def stepped(self, step, loss):
        self.heard.append(step)

    def epoch_done(self, record):
        self.heard.append(record["epoch"])


def test_fit_leaves_a_folder_and_a_result(data, tmp_path):
    reporter, results = Reporter(), []
    options = {"epochs": 1, "batch": 48, "reporter": reporter, "done": results.append}
    run = called(sb.fit, data=data, arch="mlp", out=tmp_path / "run", **options)
    assert results == [run]
    assert reporter.heard == [(0, 2), 1, 2, 1]
    assert (run.folder, run.config.arch) == (tmp_path / "run", "mlp")
    assert run.accuracy == run.result.correct / 24
    assert str(run).endswith(f"sha256 {run.sha256}")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["sha256"] == run.sha256
    assert json.loads(json.dumps(run.to_dict()))["config"]["batch"] == 48
    found = sb.evaluate(tmp_path / "run", data)
    assert (found.accuracy, found.sha256) == (run.accuracy, run.sha256)
    with pytest.raises(InputError, match="already holds a training run"):
        sb.fit(data, "mlp", tmp_path / "run", sb.Training(epochs=1, batch=48))
    again = sb.fit(
        data,
        "mlp",
        tmp_path / "run",
        sb.Training(epochs=1, batch=48),
        sb.Execution(overwrite=True, threads=1),
    )
    assert again.sha256 == run.sha256
    assert sb.fit(
        data, "mlp", tmp_path / "run", sb.Training(epochs=1, batch=48), sb.Execution(resume=True)
    ).sha256 == (run.sha256)


def test_fit_takes_data_and_modules_of_your_own(tmp_path, data):
    from samebits.data import Dataset, load

    given = load(str(data))
    assert isinstance(given, Dataset)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    run = sb.fit(given, net, tmp_path / "run", sb.Training(epochs=1, batch=32))
    assert run.config.arch == "Sequential"
    weight = net[1].weight.detach().clone()
    assert sb.load(tmp_path / "run", arch=net).verify("random:3", ["torch"])
    assert sb.evaluate(tmp_path / "run", given, arch=net).accuracy == run.accuracy
    assert torch.equal(net[1].weight, weight)  # the module given stays as it is
    with pytest.raises(CheckpointError, match="of class 'Sequential', whose layers it does not ho"):
        sb.load(tmp_path / "run")
    with pytest.raises(CheckpointError, match="expected the architecture 'Linear', found 'Sequent"):
        sb.load(tmp_path / "run", arch=nn.Linear(36, 3))
    other = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    with pytest.raises(CheckpointError, match=r"expected int8 \[4, 36\], found int8 \[3"):
        sb.load(tmp_path / "run", arch=other)
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\n"
        "def make(input_shape, classes):\n"
        "    channels, height, width = input_shape\n"
        "    size = channels * height * width\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(size, classes))\n"
    )
    name = f"{tmp_path}/own_net.py:make"
    named = sb.fit(data, name, tmp_path / "named", sb.Training(epochs=1, batch=32))
    assert named.sha256 == run.sha256  # the same layers from the same seed
    with pytest.raises(CheckpointError, match="is code outside samebits, which is not run unasked"):
        sb.load(tmp_path / "named")
    assert sb.load(tmp_path / "named", arch=name).verify("random:3", ["torch"])


def test_a_budget_is_a_plan(data, tmp_path):
    options = {"epochs": 1, "batch": 48}
    plain = called(sb.fit, data=data, arch="mlp", out=tmp_path / "plain", **options)
    planned = called(
        sb.fit, data=data, arch="mlp", out=tmp_path / "planned", **options, memory_budget="100%"
    )
    assert plain.result.plan is None
    assert planned.result.plan["budget"] > 0
    assert planned.sha256 == plain.sha256


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_budget": "1M", "plan": "none"},
         "--memory-budget needs --plan auto, found --plan none; give --plan auto, or plan with "
         "samebits plan and leave --memory-budget out here"),
        ({"memory_budget": "1M", "plan": "plan.json"},
         "--memory-budget needs --plan auto, found --plan plan.json; give --plan auto, or plan "
         "with samebits plan and leave --memory-budget out here"),
        ({"plan_device": "laptop-cpu"},
         "--plan-device needs --plan auto, found --plan none; give --plan auto, or plan with "
         "samebits plan and leave --plan-device out here"),
        ({"backward": "paired"},
         "--backward paired needs a plan, found --plan none; give --plan auto (with a large "
         "--memory-budget to keep everything) or a plan file"),
        ({"arch": 3},
         "expected an architecture's name, module:callable, file.py:callable or a "
         "torch.nn.Module, found int"),
        ({"numerics": "int8"}, "--numerics: expected one of bfp, float32, found 'int8'"),
        ({"optimizer": "lion"}, "--optimizer: expected one of sgd, adam, adamw, found 'lion'"),
        ({"epochs": 0}, "--epochs: expected a whole number from 1, found 0"),
        ({"epochs": "1"}, "--epochs: expected a whole number from 1, found '1'"),
        ({"threads": 0}, "--threads: expected a whole number from 1, found 0"),
        ({"device": "tpu"}, "expected --device among cpu, cuda, found 'tpu'"),
    ],
)  # fmt: skip
def test_fits_that_are_refused(data, tmp_path, options, message):
    with pytest.raises(InputError) as caught:
        called(sb.fit, **{"data": data, "arch": "mlp", "out": tmp_path / "run"} | options)
    assert str(caught.value) == message
    assert not (tmp_path / "run").exists()


def test_threads_are_those_of_the_call(data, tmp_path):
    before = torch.get_num_threads()
    seen = []
    sb.fit(
        data,
        "mlp",
        tmp_path / "run",
        sb.Training(epochs=1, batch=96),
        sb.Execution(threads=before + 1),
        done=lambda run: seen.append(torch.get_num_threads()),
    )
    assert (seen, torch.get_num_threads()) == ([before + 1], before)


def test_evaluate(folders, data, tmp_path):
    bfp, plain = folders["bfp"], folders["float32"]
    trained = sb.evaluate(bfp, data)
    assert (trained.arithmetic, trained.total) == ("deployed", 24)
    integer = sb.evaluate(sb.load(bfp), data)
    assert (integer.arithmetic, integer.correct) == ("integer", trained.correct)
    assert sb.evaluate(sb.load(bfp).save(tmp_path / "net.onnx"), data).correct == trained.correct
    real, stored = sb.evaluate(sb.load(plain), data), sb.evaluate(plain, data)
    assert (real.arithmetic, stored.arithmetic) == ("float", "float32")
    assert real.correct == stored.correct
    program = sb.load(plain).compile(tmp_path / "npu", sb.Accelerator(native_dim=8), target="npu")
    assert sb.evaluate(program.path, data).arithmetic == "npu (native dimension 8, mantissa 15)"
    assert "accuracy" in str(trained)
    assert json.loads(json.dumps(trained.to_dict()))["accuracy"] == trained.accuracy


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("net", {"device": "cuda"}, "expected --device cpu for an exported model, found cuda"),
        ("net", {"data": "nowhere"}, "nowhere: no such file or folder; expected 'digits', a "),
        ("net", {"data": "digits"}, "digits: images [1, 8, 8] do not fit the model: "),
        ("net", {"threads": 0}, "threads: expected at least 1, found 0"),
        ("run", {"data": "digits"},
         "digits: expected images [1, 6, 6] as in training, found [1, 8, 8]"),
        ("run", {"device": "tpu"}, "expected --device among cpu, cuda, found 'tpu'"),
        ("run", {"arch": "cnn"}, "expected the architecture 'cnn', found 'mlp'"),
        (3, {}, f"expected {EXPECTED}, found int"),
        ("nowhere", {}, "nowhere: no such file or folder"),
        (nn.Linear(2, 2), {}, "Linear: expected an example input of a torch.nn.Module"),
    ],
)  # fmt: skip
def test_evaluations_that_are_refused(net, folders, data, source, options, message):
    given = (
        {"net": net, "run": folders["bfp"]}.get(source, source)
        if isinstance(source, str)
        else source
    )
    with pytest.raises((InputError, CheckpointError)) as caught:
        sb.evaluate(**{"source": given, "data": data} | options)
    assert message in str(caught.value)
    assert "iframe" not in str(caught.value)
    assert str(caught.value).count("\n") == 0


# --- plan ---------------------------------------------------------------------------------------


def test_plans_of_modules(module, tmp_path):
    example = torch.from_numpy(X)
    for planned in (module, sb.convert(module)):
        made = sb.plan(planned, example, sb.Recomputation(memory_budget="100%"))
        assert made.plan.budget == made.plan.store_all
        assert (made.forward is None, made.step is None) == (
            planned is module,
            planned is not module,
        )
        assert "peak" in str(made)
        again = sb.plan(made.save(tmp_path / "plan.json"))
        assert again.plan == made.plan
        assert again.forward is None
        assert again.step is None
        assert made.save_picture(tmp_path / "plan.svg").read_bytes().lstrip().startswith(b"<")
        with pytest.raises(InputError, match="expected a plan that was just made"):
            again.save_picture(tmp_path / "again.svg")
        assert json.loads(json.dumps(made.to_dict()))["budget"] == made.plan.budget


def test_a_plan_takes_the_place_of_a_step(module):
    """The same gradients, from results that are computed again."""
    module, example = copy.deepcopy(module), torch.from_numpy(X)
    made = sb.plan(
        module, example, sb.Recomputation(memory_budget=1 << 20), loss=lambda y: (y * y).mean()
    )
    module.train()  # the mode that a plan is for
    gradients = []

    def eager(x):
        y = module(x)
        return (y * y).mean()

    for step in (eager, made.step):
        module.zero_grad()
        step(example).backward()
        gradients.append([p.grad.clone() for p in module.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_plans_of_architectures():
    made = sb.plan(
        "mlp",
        None,
        sb.Training(batch=32),
        sb.Numerics(numerics="float32"),
        input_shape=(1, 8, 8),
        classes=3,
    )
    assert (made.plan.arch, made.plan.numerics) == ("mlp", "float32")
    assert made.forward is None


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (nn.Linear(2, 2), {},
         "expected a torch.nn.Module and an example batch (a tensor), an architecture's name or a "
         "plan file, found Linear and NoneType"),
        (3, {"example": torch.ones(1)},
         "expected a torch.nn.Module and an example batch (a tensor), an architecture's name or a "
         "plan file, found int and Tensor"),
        (nn.Linear(2, 2), {"example": X}, "found Linear and ndarray"),
        *(
            (nn.Linear(2, 2), {"example": torch.ones(1, 2), option: value},
             f"{option} does not apply to such a source, found {shown}; leave it out")
            for option, value, shown in (
                ("batch", 4, "4"), ("shards", 2, "2"), ("numerics", "float32", "float32"),
                ("input_shape", (3, 8, 8), "tuple"), ("classes", 3, "3"),
            )
        ),
        ("mlp", {"example": torch.ones(1), "batch": 4}, "example does not apply to such a source"),
        ("mlp", {"loss": torch.sum, "batch": 4}, "loss does not apply to such a source"),
        ("mlpx", {"batch": 4}, "unknown architecture 'mlpx'; expected one of mlp, cnn, "),
        ("plan.json", {"memory_budget": "3M"},
         "memory_budget does not apply to such a source, found 3M"),
        ("plan.json", {"batch": 3}, "batch does not apply to such a source, found 3"),
        ("plan.json", {}, "plan.json: cannot be read (No such file or directory)"),
        (nn.Linear(2, 2), {"example": torch.ones(1, 2), "memory_budget": "much"},
         "--memory-budget: expected a number of bytes such as 3000000, 3M or 1.5G, or a share of "),
        (nn.Linear(2, 2), {"example": torch.ones(1, 2), "memory_budget": 1},
         "--memory-budget: expected at least "),
        (nn.Linear(2, 2), {"example": torch.ones(1, 2), "plan_device": "toaster"},
         "toaster: no such device"),
        (nn.Linear(2, 2), {"example": torch.ones(1, 2), "backward": "sideways"},
         "--backward: expected one of sequential, paired, found 'sideways'"),
        (nn.Linear(2, 2), {"example": torch.ones(1, 2), "loss": 3},
         "loss: expected a function of the output, found int"),
        (nn.Linear(2, 2), {"example": torch.ones(1, 2), "threads": 0},
         "threads: expected at least 1, found 0"),
    ],
)  # fmt: skip
def test_plans_that_are_refused(source, options, message):
    with pytest.raises(InputError) as caught:
        called(sb.plan, source=source, **options)
    assert message in str(caught.value)


def test_measure_device(monkeypatch, tmp_path):
    from samebits.recompute.plan.cost import find_device

    laptop = find_device("laptop-cpu")
    monkeypatch.setattr("samebits.recompute.plan.measure.measure_device", lambda: laptop)
    made = sb.measure_device(threads=1)
    path = made.save(tmp_path / "mine.toml")
    assert path.read_text() == made.text
    assert find_device(str(path)) == laptop
    assert str(made) == made.text.rstrip("\n")
    assert json.loads(json.dumps(made.to_dict()))["name"] == laptop.name


# --- simulate, concord, audit, inspect ----------------------------------------------------------


@pytest.fixture(scope="module")
def inputs():
    (port,) = sb.load(FIRMWARE / "lstm.nnp").inputs
    return {port.name: RNG.normal(size=(2, *port.shape[1:])).astype(np.float32)}


def test_simulate(inputs, tmp_path):
    program = FIRMWARE / "lstm.nnp"
    made = sb.simulate(program, inputs, trace=True)
    (y,) = made.outputs.values()
    assert y.dtype == np.float16
    assert len(y) == 2
    np.savez(tmp_path / "x.npz", **inputs)
    (array,) = inputs.values()
    for again in (
        sb.simulate(str(program), tmp_path / "x.npz"),
        sb.simulate(sb.load(program), array),
        sb.simulate(program, torch.from_numpy(array)),
    ):
        np.testing.assert_array_equal(again.outputs["y"], y)
    with np.load(made.save(tmp_path / "y.npz")) as stored:
        np.testing.assert_array_equal(stored["y"], y)
    assert sb.audit(made.save_trace(tmp_path / "a.json"), made.save_trace(tmp_path / "b.json"))
    with pytest.raises(InputError, match="expected a simulation with trace=True"):
        again.save_trace(tmp_path / "c.json")
    assert "multiply-adds a sample" in str(made)
    assert json.loads(json.dumps(made.to_dict()))["multiply_adds"] > 0


def test_concord(inputs, tmp_path):
    program = FIRMWARE / "lstm.nnp"
    expected = sb.simulate(program, inputs).outputs["y"]
    for to in ("torch", "onnx"):
        made = sb.concord(program, to=to)
        np.testing.assert_array_equal(made(inputs)["y"], expected)
    assert all(file.exists() for file in made.files)
    kept = sb.concord(sb.load(program), out=tmp_path / "own.py")
    assert [file.name for file in kept.files] == ["own.py", "own.safetensors"]
    np.testing.assert_array_equal(kept(inputs)["y"], expected)
    assert str(tmp_path / "own.py") in str(kept)


@pytest.mark.parametrize("function", [lambda p: sb.simulate(p, {"x": X}), sb.concord])
def test_programs_that_are_none(function, net):
    for source, message in (
        (3, "expected an .nnp program, a compiled folder or a Network of firmware, found int"),
        (net, "Sequential: expected firmware, found a network; compile it first (samebits compile "
              "--target npu)"),
        ("absent.nnp", "absent.nnp: expected a file, found no such file; give the path of a .nnp "
                       "file"),
    ):  # fmt: skip
        with pytest.raises(InputError) as caught:
            function(source)
        assert str(caught.value) == message


def test_simulations_and_translations_that_are_refused(tmp_path):
    program = FIRMWARE / "lstm.nnp"
    with pytest.raises(InputError, match="expected the names x"):
        sb.simulate(program, {"z": X})
    with pytest.raises(InputError, match="x"):
        sb.simulate(program, X)
    with pytest.raises(InputError, match="torch, onnx"):
        sb.concord(program, to="rust", out=tmp_path / "x.py")


def test_audits_that_are_refused(net, tmp_path):
    trace = net.trace("random:1").save(tmp_path / "a.json")
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(InputError, match=r"b\.json"):
        sb.audit(trace, tmp_path / "b.json")
    other = net.trace("random:2").save(tmp_path / "c.json")
    with pytest.raises(InputError, match="run"):
        sb.audit(trace, other)


def test_an_audit_of_training(data, tmp_path):
    paths = [tmp_path / name for name in ("a.trace", "b.trace", "c.trace")]
    for index, path in enumerate(paths):
        sb.fit(
            data,
            "mlp",
            tmp_path / path.stem,
            sb.Training(epochs=1, batch=48),
            sb.Execution(trace=path),
            sb.Optimizer(lr=0.1 if index < 2 else 0.05),
        )
    found = sb.audit(*paths[:2])
    assert found
    assert (found.steps, found.parting) == (2, None)
    with pytest.raises(InputError, match="one of training and one not"):
        sb.audit(paths[0], sb.load(tmp_path / "a").trace("random:1").save(tmp_path / "t.json"))


def test_inspect(net, folders, tmp_path):
    plan = sb.plan(nn.Linear(2, 2), torch.ones(1, 2)).save(tmp_path / "plan.json")
    trace = net.trace("random:1").save(tmp_path / "trace.json")
    files = {
        net.save(tmp_path / "net.onnx"): "multiply-adds",
        net.compile(tmp_path / "c").folder: "multiply-adds",
        folders["bfp"]: "mlp",
        FIRMWARE / "lstm.nnp": "instructions",
        plan: "sub-layers",
        trace: "layers",
    }
    for path, word in files.items():
        report = sb.inspect(path)
        assert word in str(report), path
        assert len(str(report).splitlines()) <= 17, path
        assert len(str(sb.inspect(path, nodes=True))) >= len(str(report))
    (tmp_path / "notes.txt").write_text("notes")
    for path in (tmp_path / "notes.txt", tmp_path / "nowhere"):
        with pytest.raises(InputError, match=re.escape(str(path))):
            sb.inspect(path)


def test_a_graph_is_a_source():
    builder = GraphBuilder("own")
    x = builder.input("x", "float32", (1, 3))
    graph = builder.build([builder.add("Relu", [x], outputs=["y"])])
    net = sb.quantize(graph, RNG.normal(size=(5, 3)).astype(np.float32))
    assert repr(net) == "<quantized network own: x: int8[1, 3] -> y: int8[1, 3]>"
