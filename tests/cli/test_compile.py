"""`samebits compile`: a model in, a folder of C and its ONNX file out; and `eval` of both."""

from __future__ import annotations

import json
import shutil
import subprocess
from hashlib import sha256

import numpy as np
import pytest

from recordings import split_folder
from samebits.ir import GraphBuilder
from samebits.ir.printer import text
from samebits.model import load as load_model
from samebits.onnx import save_qdq
from samebits.verification.accuracy import images
from tiny_models import digits, float_file, quantized_file, trained_folder

FLOAT_MODEL = (
    "expected a quantized model (QuantizeLinear and DequantizeLinear nodes), found a float one; "
    "quantize it first: samebits quantize MODEL.onnx --data X.npz --out Q.onnx"
)
FILES = {
    *("Makefile", "README.md", "model.c", "model.h", "model_constants.c", "model_constants.h"),
    *("model.onnx", "report.json", "samebits", "test"),
}


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    return trained_folder(tmp_path_factory)


@pytest.fixture
def tiny(tmp_path):
    return quantized_file(tmp_path / "tiny.onnx")


@pytest.fixture
def compiled(samebits, tiny, tmp_path):
    out = tmp_path / "c"
    assert samebits("compile", tiny, "--out", out, "--no-sizes").code == 0
    return out


def bad(done, message):
    """Exit code 2 and nothing but this message."""
    assert (done.code, done.out, done.err) == (2, "", f"error: {message}\n")


def accuracy(done):
    """The line of an evaluation that names it."""
    (line,) = (line for line in done.out.splitlines() if line.startswith("accuracy "))
    return line


# --- what it writes -------------------------------------------------------------------------


def test_a_model_of_recordings_comes_with_its_features(samebits, tmp_path):
    data, out = split_folder(tmp_path / "words", 16000), tmp_path / "c"
    run = ("train", "--data", data, "--arch", "mlp", "--batch", 6, "--epochs", 1)
    assert samebits(*run, "--out", tmp_path / "run").code == 0
    done = samebits("compile", tmp_path / "run", "--out", out, "--no-sizes")
    assert done.code == 0
    assert f"features of sound at 16000 Hz: {out / 'audio'}\n" in done.out
    assert {path.name for path in out.iterdir()} == {*FILES, "model_predict.c", "audio"}
    header = (out / "audio/audio.h").read_text()
    assert "#define AUDIO_RATE 16000\n" in header  # tests/codegen/test_audio.py runs such folders
    results = [samebits("eval", path, "--data", data) for path in (tmp_path / "run", out)]
    assert accuracy(results[0]) == accuracy(results[1])
    other = split_folder(tmp_path / "other", 8000)
    message = (
        f"{other}: expected recordings at 16000 Hz as in training, found recordings at 8000 Hz; "
        "give data of the kind the model was trained on"
    )
    bad(samebits("eval", out, "--data", other), message)
    again = samebits("compile", out / "model.onnx", "--out", tmp_path / "again", "--no-sizes")
    assert again.code == 0
    assert (tmp_path / "again/audio/audio.h").read_text() == header
    bad(samebits("eval", tmp_path / "again", "--data", other), message)


def test_an_lstm_of_recordings_is_compiled_as_one_time_step(samebits, tmp_path):
    data, out = split_folder(tmp_path / "words"), tmp_path / "c"
    run = ("train", "--data", data, "--arch", "lstm", "--batch", 6, "--epochs", 2)
    assert samebits(*run, "--out", tmp_path / "run").code == 0
    done = samebits("compile", tmp_path / "run", "--out", out, "--no-sizes")
    assert done.code == 0
    assert "10 transfer functions share 3 tables: " in done.out
    assert {path.name for path in out.iterdir()} == {*FILES, "audio"}
    assert (
        "void model_steps(const model_t *net, model_state_t *state" in (out / "model.h").read_text()
    )
    compared = ("--data", "random:30", "--backends")
    assert samebits("verify", tmp_path / "run", *compared, "training,torch,c").code == 0
    results = [samebits("eval", path, "--data", data) for path in (tmp_path / "run", out)]
    assert [done.code for done in results] == [0, 0]
    assert accuracy(results[0]) == accuracy(results[1])
    assert "\narithmetic: deployed\n" in results[0].out
    assert results[1].out.endswith("\narithmetic: integer\n")


def test_a_package(samebits, tiny, tmp_path):
    out = tmp_path / "deep" / "c"
    done = samebits("compile", tiny, "--out", out, "--no-sizes")
    assert (done.code, done.err) == (0, "")
    assert {path.name for path in out.iterdir()} == FILES
    assert "1 transfer functions share 1 tables: 256 bytes in C instead of 256\n" in done.out
    assert done.out.endswith(f"written: {out}; try: make -C {out} test\n")
    assert not [path for path in out.parent.iterdir() if path != out]


def test_json_is_one_object(samebits, tiny, tmp_path):
    out = tmp_path / "c"
    done = samebits("compile", tiny, "--out", out, "--no-sizes", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.out.count("\n") == 1
    record = json.loads(done.out)
    assert list(record) == [
        "model", "out", "package", "report_sha256", "signature", "memory", "tables", "targets",
    ]  # fmt: skip
    assert record["report_sha256"] == sha256((out / "report.json").read_bytes()).hexdigest()
    assert (record["model"], record["out"], record["targets"]) == (str(tiny), str(out), [])
    assert record["tables"] == {"pairs": 1, "tables": 1, "bytes": 256, "unshared": 256}
    assert record["memory"]["inputs"][0]["shape"] == [1, 4]
    assert [layer["op"] for layer in record["memory"]["layers"]] == [
        "requantize", "table", "requantize",
    ]  # fmt: skip


def test_the_test_vectors_pass(compiled):
    if not (shutil.which("make") and shutil.which("cc")):
        pytest.skip("needs make and cc")
    done = subprocess.run(["make", "-C", compiled, "test"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_same_model_gives_the_same_files(samebits, tiny, compiled, tmp_path):
    again = tmp_path / "again"
    assert samebits("compile", tiny, "--out", again, "--no-sizes").code == 0
    files = [path.relative_to(again) for path in again.rglob("*") if path.is_file()]
    assert {file.parts[0] for file in files} == FILES
    for name in files:
        assert (again / name).read_bytes() == (compiled / name).read_bytes(), name


def test_a_prefix(samebits, tiny, tmp_path):
    out = tmp_path / "c"
    done = samebits("compile", tiny, "--out", out, "--no-sizes", "--prefix", "Net_2")
    assert done.code == 0
    assert "Net_2_run" in (out / "Net_2.h").read_text()
    assert not (out / "model.c").exists()
    assert (out / "model.onnx").exists()


def test_an_earlier_package_is_replaced(samebits, tiny, compiled):
    (compiled / "stale.c").write_text("")
    done = samebits("compile", tiny, "--out", compiled, "--no-sizes", "--prefix", "other")
    assert done.code == 0
    names = {path.name for path in compiled.iterdir()}
    own = {name.replace("model", "other") for name in FILES - {"model.onnx"}}
    assert names == own | {"model.onnx"}


def test_a_compiled_folder_compiles_again(samebits, compiled, tmp_path):
    out = tmp_path / "again"
    assert samebits("compile", compiled, "--out", out, "--no-sizes").code == 0
    assert text(load_model(out).integer) == text(load_model(compiled).integer)


def test_into_the_working_folder(samebits, tiny, tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    done = samebits("compile", tiny, "--out", ".", "--no-sizes")
    assert (done.code, done.err) == (0, "")
    assert {path.name for path in empty.iterdir()} == FILES


# --- what it refuses ------------------------------------------------------------------------


def test_float_models(samebits, tmp_path):
    path = float_file(tmp_path / "f.onnx", (1, 4))
    bad(samebits("compile", path, "--out", tmp_path / "c"), f"{path}: {FLOAT_MODEL}")
    assert not (tmp_path / "c").exists()


def test_float_training(samebits, tmp_path, tmp_path_factory):
    folder = trained_folder(tmp_path_factory, "float32")
    done = samebits("compile", folder, "--out", tmp_path / "c")
    assert (done.code, done.out) == (2, "")
    assert done.err == f"error: {folder}: {FLOAT_MODEL}\n"


@pytest.mark.parametrize("target", ["", "C", "c,npu"])
def test_unknown_targets(samebits, tiny, tmp_path, target):
    done = samebits("compile", tiny, "--out", tmp_path / "c", "--target", target)
    bad(done, f"--target: expected one of c, npu, found {target!r}")


@pytest.mark.parametrize(
    "prefix",
    [
        *(
            "",
            "2x",
            "a-b",
            "a b",
            "int",
            "while",
            "main",
            "Samebits",
            "samebits_x",
            "_x",
            "caf\u00e9",
        ),
        *("a" * 41, "x\n", "../x", 'x"', "x;", "x\x1b[31m"),
    ],
    ids=repr,
)
def test_bad_prefixes(samebits, tiny, tmp_path, prefix):
    done = samebits("compile", tiny, "--out", tmp_path / "c", "--prefix", prefix, "--no-sizes")
    bad(
        done,
        "prefix of the generated C: expected a C identifier of at most 40 letters, digits and "
        "underscores that is no keyword, neither main nor samebits..., "
        f"found {prefix!r}; choose another, such as 'model'",
    )
    assert not (tmp_path / "c").exists()


def test_out_that_holds_something_else(samebits, tiny, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "report.json").write_text('{"generator": "other"}')
    for out in (file, folder):
        bad(
            samebits("compile", tiny, "--out", out, "--no-sizes"),
            f"{out}: expected a new or empty folder or an earlier package, found other files; "
            "choose another folder",
        )
    assert file.read_text() == "mine"
    assert [path.name for path in folder.iterdir()] == ["report.json"]


def test_out_that_cannot_be_written(samebits, tiny, tmp_path):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "c"
    done = samebits("compile", tiny, "--out", out, "--no-sizes")
    bad(done, f"{out}: cannot be written (Not a directory); check the folder and its permissions")
    done = samebits("compile", tiny, "--out", tmp_path / ("x" * 300), "--no-sizes")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")


def test_models_that_are_none(samebits, tmp_path):
    done = samebits("compile", tmp_path / "none", "--out", tmp_path / "c")
    bad(
        done,
        f"{tmp_path / 'none'}: no such file or folder; expected an .onnx, .pt2 or .tflite file, a "
        "training output folder, a checkpoint, or a compiled folder (with model.onnx)",
    )
    (tmp_path / "m.onnx").write_bytes(b"hello")
    done = samebits("compile", tmp_path / "m.onnx", "--out", tmp_path / "c")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {tmp_path / 'm.onnx'}: not a readable ONNX file")


def test_missing_options(samebits, tiny):
    assert samebits("compile", tiny).code == 2
    assert samebits("compile").code == 2


# --- eval -----------------------------------------------------------------------------------


def evaluated(done):
    assert done.code == 0, done.err
    assert all(line.startswith("note: ") for line in done.err.splitlines())
    assert done.out.count("\n") == 1
    return json.loads(done.out)


def test_eval_of_everything_a_trained_model_becomes(samebits, trained, tmp_path):
    """The training folder, its C package and that package's ONNX file: one accuracy."""
    out = tmp_path / "c"
    assert samebits("compile", trained, "--out", out, "--no-sizes").code == 0
    first = evaluated(samebits("eval", trained, "--data", "digits", "--json"))
    assert first["test_count"] == 359
    for path in (out, out / "model.onnx"):
        record = evaluated(samebits("eval", path, "--data", "digits", "--json"))
        assert record == {
            "model": str(path),
            "data": "digits",
            "accuracy": first["accuracy"],
            "arithmetic": "integer",
            "correct": first["correct"],
            "test_count": 359,
        }
    done = samebits("eval", out, "--data", "digits")
    assert done.out == (
        f"{out} on digits\n\naccuracy {100 * first['accuracy']:.2f} % ({first['correct']} of 359)\n"
        "arithmetic: integer\n"
    )


def right(path) -> int:
    """Correct answers of `float_file` on the test set, from its weights."""
    import onnx
    from onnx import numpy_helper

    weights = numpy_helper.to_array(onnx.load(path).graph.initializer[0]).astype(np.float64)
    data = digits()
    x = images(data, "test").reshape(359, -1).astype(np.float64)
    return int(((x @ weights.T).argmax(1) == data.test_labels.numpy()).sum())


@pytest.mark.parametrize("batch", ["N", 1, 359, 7, 180, 400])
def test_eval_of_a_float_onnx_file(samebits, tmp_path, batch):
    """Also of a fixed batch that does not divide the 359 test images: none is left out."""
    path = float_file(tmp_path / "f.onnx", (batch, 1, 8, 8), 10)
    record = evaluated(samebits("eval", path, "--data", "digits", "--json"))
    assert record["arithmetic"] == "float"
    assert (record["correct"], record["test_count"]) == (right(path), 359)
    assert record["accuracy"] == record["correct"] / 359


def test_eval_of_a_model_for_other_data(samebits, tiny, tmp_path):
    done = samebits("eval", tiny, "--data", "digits")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: digits: images [1, 8, 8] do not fit the model: expected one")
    assert done.err.endswith("int8 [1, 4]; give data of the shape it was made for\n")
    path = float_file(tmp_path / "f.onnx", ("N", 1, 8, 9), 10)
    done = samebits("eval", path, "--data", "digits")
    assert "float32 [1, 1, 8, 9]; give data of the shape it was made for\n" in done.err
    path = float_file(tmp_path / "f.onnx", (1, 1, 8, 8), 3)
    bad(
        samebits("eval", path, "--data", "digits"),
        "digits: expected at most 3 classes, found 10",
    )


def test_eval_of_files_that_are_no_models(samebits, tmp_path):
    path = tmp_path / "none.onnx"
    bad(
        samebits("eval", path, "--data", "digits"),
        f"{path}: expected an ONNX file, found no such file; give the path of an .onnx file",
    )
    path.write_bytes(b"hello")
    done = samebits("eval", path, "--data", "digits")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {path}: not a readable ONNX file")


def test_firmware_runs_in_the_simulator(samebits, tmp_path):
    model = float_file(tmp_path / "m.onnx")
    out = tmp_path / "npu"
    options = ("--target", "npu", "--native-dim", "8", "--out", out, "--json")
    done = samebits("compile", model, *options)
    record = json.loads(done.out)
    assert (done.code, record["native"], record["mantissa"]) == (0, 8, 15)
    (name,) = record["inputs"]
    np.savez(tmp_path / "x.npz", **{name: np.ones((2, *record["inputs"][name]), np.float32)})
    done = samebits(
        "simulate", out / "model.nnp", "--data", tmp_path / "x.npz", "--out", tmp_path / "y.npz"
    )
    assert done.code == 0
    with np.load(tmp_path / "y.npz") as outputs:
        assert {n: outputs[n].shape for n in outputs.files} == {
            n: (2, *shape) for n, shape in record["outputs"].items()
        }


def test_firmware_of_a_recurrent_network(samebits, tmp_path):
    model, out = tmp_path / "lstm.onnx", tmp_path / "npu"
    builder = GraphBuilder("lstm")
    x = builder.input("x", "float32", (7, 1, 20))
    random = np.random.default_rng(0)
    shapes = ((1, 128, 20), (1, 128, 32), (1, 256))
    weights = [builder.constant("w", random.normal(0, 0.2, s).astype("f4")) for s in shapes]
    y, _, c = builder.add_all("LSTM", [x, *weights], {"hidden_size": 32})
    save_qdq(builder.build([y, c]), model)
    for extra, steps in ((), 7), (("--steps", 11), 11):
        options = ("--target", "npu", "--native-dim", "16", "--out", out, "--json", *extra)
        record = json.loads(samebits("compile", model, *options).out)
        assert list(record["inputs"].values()) == [[steps, 20]]
        assert list(record["outputs"].values()) == [[steps, 32], [32]]
        np.savez(tmp_path / "x.npz", x=np.ones((steps, 20), np.float32))
        done = samebits(
            *("simulate", out / "model.nnp", "--data", tmp_path / "x.npz"),
            *("--out", tmp_path / "y.npz"),
        )
        assert done.code == 0
        with np.load(tmp_path / "y.npz") as outputs:
            assert sorted(a.shape for a in outputs.values()) == [(steps, 32), (32,)]
    plain = float_file(tmp_path / "m.onnx")
    done = samebits("compile", plain, "--target", "npu", "--out", out, "--steps", "3")
    assert done.code == 2
    assert "expected recurrent layers for 3 steps, found none; leave the number of" in done.err
