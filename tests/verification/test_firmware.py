"""Firmware as something to verify: its ports, samples, comparison by bits, accuracy."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from samebits.data import load
from samebits.errors import InputError, NonFiniteError
from samebits.ir.rewrite import simplify
from samebits.model import Model, kind_of, load_firmware
from samebits.model import load as load_model
from samebits.npu.compiler.lower import lower_real_graph
from samebits.pytorch import import_module
from samebits.train.architectures import build, initialise
from samebits.verification.accuracy import correct, firmware_images, images
from samebits.verification.backends import concordant
from samebits.verification.backends.npu import Npu
from samebits.verification.compare import compare
from samebits.verification.inputs import codes_of, random_codes
from samebits.verification.registry import check_needs, known_backends
from samebits.verification.run import FIRMWARE_BACKENDS, chosen_backends, verify_model
from samebits.verification.trace import to_record
from tiny_models import quantized_graph

FOLDER = Path(__file__).parents[2] / "examples" / "firmware"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise OSError('no AVX')", "importable, found exit code 1: OSError: no AVX; install it a"),
        ("import time; time.sleep(100)", "within 0.5 seconds, found it still running"),
        ("", None),
    ],
)
def test_a_package_that_cannot_be_imported(tmp_path, monkeypatch, code, told):
    """That Python finds it is not enough."""
    (tmp_path / "broken_flow.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(concordant.PACKAGES, "tensorflow", "broken_flow")
    if told is not None and "seconds" in told:
        monkeypatch.setattr(concordant, "IMPORT", 0.5)
    concordant._broken.cache_clear()
    found = concordant.Concordant("tensorflow").unavailable()
    concordant._broken.cache_clear()
    if told is None:
        assert found is None
    else:
        assert str(found).startswith("concordant-tensorflow: expected ")
        assert told in str(found)


@pytest.fixture
def lstm() -> Model:
    return load_firmware(FOLDER / "lstm.nnp")


def halves(*values: float) -> np.ndarray:
    return np.array([values], np.float16)


def test_a_program_or_a_folder_with_one(tmp_path, lstm):
    for name in ("lstm.nnp", "lstm.safetensors"):
        shutil.copy(FOLDER / name, tmp_path)
    assert kind_of(tmp_path) == "firmware"
    assert kind_of(FOLDER / "gru.nnp") == "firmware"
    found = load_model(tmp_path)
    assert found.firmware is not None
    assert found.source == str(tmp_path / "lstm.nnp")
    assert found.program.instructions == lstm.program.instructions
    with pytest.raises(InputError, match=r"expected one \.nnp program in the folder, found 'aver"):
        load_firmware(FOLDER)
    assert kind_of(tmp_path / "none") != "firmware"


def test_the_interface_is_that_of_the_hints(lstm):
    ports = lstm.interface
    hints = {hint.name: hint for hint in lstm.program.hints}
    assert [hints[name].kind for name in ports.inputs] == ["input"]
    assert {hints[name].kind for name in ports.outputs} == {"output"}
    for name, value in ports.values.items():
        assert (value.dtype, value.shape) == ("float16", (1, *hints[name].shape))


def test_random_samples_are_every_number_below_two(lstm):
    (found,) = random_codes(lstm.interface, 40)
    (name,) = lstm.interface.inputs
    assert found.dtype == np.float16
    assert found.shape == (40, *lstm.interface.values[name].shape[1:])
    assert abs(found.astype(np.float64)).max() < 2
    assert (found < 0).any()
    assert ((found != 0) & (abs(found.astype(np.float64)) < 2.0**-14)).any()  # subnormal
    assert found.tobytes() == random_codes(lstm.interface, 40)[0].tobytes()
    assert found.tobytes() != random_codes(lstm.interface, 40, seed=1)[0].tobytes()


def test_given_samples_are_rounded_once_to_binary16(lstm):
    (name,) = lstm.interface.inputs
    shape = lstm.interface.values[name].shape[1:]
    given = np.full((2, *shape), 1 + 2.0**-11 + 2.0**-40)
    given[1] = 65519.9
    (found,) = codes_of({"x": given}, lstm.interface, "a.npz")
    assert found.dtype == np.float16
    assert (found[0] == 1 + 2.0**-10).all()
    assert (found[1] == 65504).all()
    with pytest.raises(InputError, match=r"a\.npz: input .*expected floating-point numbers, found"):
        codes_of({"x": np.zeros(shape, np.int8)}, lstm.interface, "a.npz")
    given[1].flat[3] = np.nan
    with pytest.raises(
        NonFiniteError, match=r"expected finite numbers .*, found nan at index \[1, 0, 3\]"
    ):
        codes_of({"x": given}, lstm.interface, "a.npz")
    with pytest.raises(InputError, match="expected shape"):
        codes_of({"x": given[:, :1, :1]}, lstm.interface, "a.npz")


def test_comparison_is_by_bits(lstm):
    ports = Model("f", firmware=(lstm.program, lstm.image)).interface
    (name,) = ports.outputs
    expected = halves(0.0, 1.0, np.nan, np.inf)
    same = compare("x", ports, [expected], [expected.copy()])
    assert same.equal
    negative = np.array([0x8000, 0x3C00, 0xFE01, 0x7C00], np.uint16).view(np.float16)[None]
    found = compare("x", ports, [expected], [negative])
    assert (found.differing, found.total, found.samples) == (1, 4, 1)  # -0; a NaN is a NaN
    assert found.first[0].output == name
    assert found.first[0].index == (0, 0)
    last = compare("x", ports, [expected], [halves(0.0, 1.0, np.nan, 65504.0)])
    assert (last.differing, last.largest) == (1, np.inf)
    json.dumps(last.to_dict(), allow_nan=False)
    with pytest.raises(ValueError, match="expected binary16, found float32"):
        compare("x", ports, [expected], [expected.astype(np.float32)])


def test_backends_run_what_they_are_for(lstm):
    assert chosen_backends(lstm, None, False) == (FIRMWARE_BACKENDS, False)
    model = Model("tiny.onnx", quantized_graph())
    for name, make in known_backends().items():
        backend = make(None)
        right, wrong = (lstm, model) if backend.needs == "firmware" else (model, lstm)
        check_needs(backend, right)
        with pytest.raises(InputError, match=f"backend {name} runs "):
            check_needs(backend, wrong)


def test_verify_and_trace(lstm):
    samples = random_codes(lstm.interface, 3)
    expected, verdicts = verify_model(lstm, samples, (*FIRMWARE_BACKENDS, "npu"))
    assert [v.backend for v in verdicts] == list(FIRMWARE_BACKENDS)
    assert all(v.equal and v.total == expected[0].size for v in verdicts)
    runs = Npu().trace(lstm, samples)
    record = to_record(lstm, "lstm.nnp", "npu", runs)
    assert len(record["runs"]) == len(record["codes"]) == 3
    assert record["layers"][0]["op"] == "chain"
    assert len({entry["name"] for entry in record["layers"]}) == len(runs[0])


@pytest.mark.parametrize("arch", ["cnn", "mlp"])
def test_accuracy_of_images(arch):
    data = load("digits")
    module = build(arch, data.input_shape, data.classes)
    initialise(module, 0)
    graph = simplify(import_module(module.eval(), (torch.zeros(1, *data.input_shape),)))
    firmware = Model(arch, firmware=lower_real_graph(graph, 16))
    (samples,) = firmware_images(firmware, data, 20)
    shape = {"cnn": (20, *data.input_shape), "mlp": (20, 64)}[arch]
    assert (samples.dtype, samples.shape) == (np.float16, shape)
    assert samples.reshape(20, -1).tolist() == images(data, "test", 20).reshape(20, -1).tolist()
    expected, (verdict,) = verify_model(firmware, [samples], ("concordant-torch",))
    assert verdict.equal
    guesses = expected[0].reshape(20, -1).argmax(1)
    assert correct(expected, data) == (guesses == data.test_labels[:20].numpy()).sum()


def test_images_that_do_not_fit(lstm):
    with pytest.raises(InputError, match=r"images .1, 8, 8. do not fit the model: expected one"):
        firmware_images(lstm, load("digits"))
