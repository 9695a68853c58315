"""`Network`: run, verify, trace, compile, save and report, of every kind of model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import samebits as sb
from given_options import called
from samebits.errors import InputError, UnsupportedError
from samebits.ir import interpreter
from samebits.verification import registry
from samebits.verification import run as verification_run
from samebits.verification.backends.pytorch import PyTorch

FIRMWARE = Path(__file__).parents[1] / "examples" / "firmware" / "lstm.nnp"
X = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).eval()


@pytest.fixture(scope="module")
def net(module):
    return sb.quantize(module, X)


@pytest.fixture(scope="module")
def real(module):
    return sb.load(module, example=torch.zeros(1, 4))


@pytest.fixture(scope="module")
def firmware():
    return sb.load(FIRMWARE)


# --- what it is ---------------------------------------------------------------------------------


def test_kinds(module, net, real, firmware):
    integer = sb.load(net.model.integer)
    found = [n.kind for n in (real, net, integer, firmware)]
    assert found == ["float network", "quantized network", "integer network", "firmware"]
    assert [n.quantized for n in (real, net, integer, firmware)] == [False, True, True, False]
    assert sb.load(net) is net


def test_inputs_and_outputs(net, real, firmware):
    assert repr(net) == (
        "<quantized network Sequential: input: int8[1, 4] -> 2.linear_1.out: int8[1, 3]>"
    )
    assert repr(real) == (
        "<float network Sequential: input: float32[1, 4] -> 2.linear_1.out: float32[1, 3]>"
    )
    (x,), (y,) = net.inputs, net.outputs
    assert (x.name, x.dtype, x.shape) == ("input", "int8", (1, 4))
    assert (y.name, y.dtype, y.shape) == ("2.linear_1.out", "int8", (1, 3))
    assert float(x.quantization.scale) > 0
    assert [x.dtype for x in firmware.inputs] == ["float16"]


# --- run ----------------------------------------------------------------------------------------


def test_run_of_a_float_network(module, real):
    (found,) = real.run(X).values()
    with torch.no_grad():
        expected = module.double()(torch.from_numpy(X).double()).numpy()
    module.float()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    (one,) = real.run(torch.from_numpy(X[:1])).values()
    np.testing.assert_array_equal(one, found[:1])


def test_run_of_a_quantized_network(net):
    codes = net.run(X, codes=True)["2.linear_1.out"]
    assert (codes.dtype, codes.shape) == (np.int8, (9, 3))
    (value,) = net.outputs
    reals = net.run(X)["2.linear_1.out"]
    assert reals.dtype == np.float32
    expected = float(value.quantization.scale) * (codes - float(value.quantization.zero_point))
    np.testing.assert_allclose(reals, expected, rtol=1e-6)
    np.testing.assert_array_equal(net.run(X, "torch", codes=True)["2.linear_1.out"], codes)


def test_codes_are_samples_too(net):
    (x,) = net.inputs
    codes = np.arange(-4, 4, dtype=np.int8).reshape(2, 4)
    (found,) = net.run({x.name: codes}, codes=True).values()
    expected = [interpreter.run(net.model.integer, [row[None]])[0][0] for row in codes]
    np.testing.assert_array_equal(found, expected)


def test_run_of_firmware(firmware):
    (port,) = firmware.inputs
    x = np.random.default_rng(1).normal(size=(2, *port.shape[1:])).astype(np.float32)
    (found,) = firmware.run(x).values()
    assert found.dtype == np.float16
    (translated,) = firmware.run(x, "concordant-torch").values()
    np.testing.assert_array_equal(found, translated)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (X, {"codes": True},
         "Sequential: expected a quantized network for a backend and for codes, found a float one; "
         "quantize it first, or leave backend and codes out"),
        (X, {"backend": "torch"},
         "Sequential: expected a quantized network for a backend and for codes, found a float one; "
         "quantize it first, or leave backend and codes out"),
        (X[:, :3], {}, "samples: array input: expected shape [samples, 4], found [9, 3]"),
        (X.astype(np.float64), {},
         "samples: array input: expected float32, found float64; convert it with "
         "astype('float32')"),
        (X[:0], {}, "samples: expected at least one sample, found none"),
    ],
)  # fmt: skip
def test_runs_of_a_float_network_that_are_refused(real, given, options, message):
    with pytest.raises(InputError) as caught:
        real.run(given, **options)
    assert str(caught.value) == message


def test_runs_of_a_quantized_network_that_are_refused(net):
    with pytest.raises(InputError) as caught:
        net.run(X[:, :3])
    assert str(caught.value) == (
        "samples: input 'input': expected shape [N, 4] with N a multiple of 1, found [9, 3]"
    )
    with pytest.raises(InputError, match=r"^samples: input 'input': expected real numbers or int8"):
        net.run(np.zeros((1, 4), np.int64))
    with pytest.raises(InputError, match=r"^unknown backend 'rust'; expected one of aarch64, c, "):
        net.run(X, "rust")
    with pytest.raises(InputError, match="backend npu runs firmware, not this"):
        net.run(X, "npu")


# --- verify -------------------------------------------------------------------------------------


class Missing(PyTorch):
    def unavailable(self):
        return "expected a board, found none; plug one in"


class Wrong(PyTorch):
    def run(self, model, inputs):
        (found,) = super().run(model, inputs)
        return [found ^ 1]


@pytest.fixture
def backends(monkeypatch):
    """Only these backends are known: the definition, one that agrees, two that do not."""
    known = registry.known_backends()
    only = {
        "missing": lambda work: _named(Missing(), "missing"),
        "reference": known["reference"],
        "torch": known["torch"],
        "wrong": lambda work: _named(Wrong(), "wrong"),
    }
    for module in (registry, verification_run):
        monkeypatch.setattr(module, "known_backends", lambda: only)


def _named(backend, name):
    object.__setattr__(backend, "name", name)
    return backend


def test_the_same_bits(net):
    result = net.verify(X, ["torch"])
    assert result
    assert (result.samples, result.same_bits) == (9, True)
    assert list(result.outputs) == ["2.linear_1.out"]
    np.testing.assert_array_equal(
        result.outputs["2.linear_1.out"], net.run(X, codes=True)["2.linear_1.out"]
    )
    assert str(result).startswith("Sequential on 9 samples\n\nbackend  differing  of  largest")
    assert str(result).endswith("\n\nsame bits: yes")


def test_random_samples_are_those_of_the_seed(net):
    first, again, other = (net.verify("random:5", ["torch"], seed=seed) for seed in (1, 1, 2))
    (a,), (b,), (c,) = (r.outputs.values() for r in (first, again, other))
    assert first.samples == 5
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


def test_other_bits(net, backends):
    result = net.verify(X, ["torch", "wrong"])
    assert not result
    assert [v.equal for v in result.verdicts] == [True, False]
    assert "wrong: output '2.linear_1.out' [0, 0]: " in str(result)
    assert str(result).endswith("same bits: NO")
    assert json.loads(json.dumps(result.to_dict()))["same_bits"] is False


def test_a_backend_that_is_named_must_be_able_to_run(net, backends):
    with pytest.raises(InputError) as caught:
        net.verify(X, ["torch", "missing"])
    assert str(caught.value) == (
        "backend missing cannot run here: expected a board, found none; plug one in; leave it out, "
        "or give --available to compare those that can"
    )
    with pytest.raises(UnsupportedError, match="backend missing cannot run here: expected a board"):
        net.run(X, "missing")


def test_available_backends_are_those_that_can_run(net, backends):
    result = net.verify(X, available=True)
    assert [v.backend for v in result.verdicts] == ["torch", "wrong"]
    result = net.verify(X, ["missing", "torch"], available=True)
    assert result
    assert "missing: not compared: expected a board, found none; plug one in" in str(result)
    assert str(result).endswith("same bits: yes (1 not compared)")


def test_without_names_what_cannot_run_is_said(net, monkeypatch):
    monkeypatch.setattr(verification_run, "DEFAULT_BACKENDS", ("torch", "missing"))
    known = registry.known_backends() | {"missing": lambda work: _named(Missing(), "missing")}
    monkeypatch.setattr(registry, "known_backends", lambda: known)
    result = net.verify(X)
    assert [v.backend for v in result.verdicts] == ["torch", "missing"]
    assert str(result).endswith("same bits: yes (1 not compared)")


def test_nothing_compared_is_not_the_same_bits(net, backends):
    result = net.verify(X, ["missing"], available=True)
    assert result.same_bits is None
    assert not result
    assert str(result).endswith("nothing compared (1 not compared)")


@pytest.mark.parametrize(
    ("samples", "backends", "message"),
    [
        ("random:0", None, "--data: expected random:N with 1 <= N <= 1000000, found 'random:0'"),
        (X[:0], None, "samples: expected at least one sample, found none"),
        (X, "torch", "backends: expected a list of names, found the text 'torch'"),
        (X, ["rust"], "unknown backend 'rust'; expected one of aarch64, c, "),
        (X, ["npu"], "backend npu runs firmware, not this; compile it first"),
        (X, ["training"], "backend training cannot run this model: Sequential: expected a training "
         "output folder"),
        (X * np.nan, None, "input 'input': expected finite values, found nan at index (0, 0)"),
    ],
)  # fmt: skip
def test_verifications_that_are_refused(net, samples, backends, message):
    with pytest.raises(InputError) as caught:
        net.verify(samples, backends)
    assert message in str(caught.value)


def test_a_float_network_has_no_bits_to_compare(real):
    for call in (real.verify, real.trace):
        with pytest.raises(
            InputError, match=r"^Sequential: expected a quantized model .* found a "
        ):
            call(X)


# --- trace --------------------------------------------------------------------------------------


def test_traces_of_two_backends_agree(net, tmp_path):
    a = net.trace(X[:2])
    paths = [
        a.save(tmp_path / "a.json"),
        net.trace(X[:2], "torch").save(tmp_path / "b.json"),
        net.trace(X[1:3]).save(tmp_path / "c.json"),
    ]
    assert sb.audit(*paths[:2])
    assert str(a).splitlines()[0] == "Trace of Sequential on reference"
    assert "2 runs" in str(a)
    assert a.to_dict() == json.loads(paths[0].read_text())


def test_an_audit_names_the_first_layer(net, tmp_path):
    path = net.trace(X[:1], "torch").save(tmp_path / "a.json")
    record = json.loads(path.read_text())
    record["runs"][0][2] = "0" * len(record["runs"][0][2])
    (tmp_path / "b.json").write_text(json.dumps(record))
    found = sb.audit(path, tmp_path / "b.json")
    assert not found
    assert record["layers"][2]["name"] in str(found)
    assert str(found).endswith("same bits: NO")


# --- compile ------------------------------------------------------------------------------------


def test_generated_c(net, tmp_path):
    made = net.compile(tmp_path / "c", sb.Packaging(prefix="tiny"))
    assert made.folder == tmp_path / "c"
    assert "tiny_run" in (made.folder / "tiny.h").read_text()
    assert made.targets == ()  # nothing was built
    assert "weights and tables, arena" in str(made)
    assert str(made).endswith(f"try: make -C {made.folder} test")
    again = sb.load(made.folder)
    np.testing.assert_array_equal(
        again.run(X, codes=True)["2.linear_1.out"], net.run(X, codes=True)["2.linear_1.out"]
    )
    assert json.loads(json.dumps(made.to_dict()))["out"] == str(made.folder)


def test_the_network_and_its_features_are_part_of_the_folder(tmp_path, monkeypatch):
    """All files of generated C take their place at once: a crash leaves no folder without some."""
    from samebits.codegen.packaging import package
    from samebits.onnx import FileFacts, save_qdq
    from tiny_models import quantized_graph

    written = {}
    monkeypatch.setattr(package, "write_folder", lambda out, files: written.update({out: files}))
    save_qdq(quantized_graph(), tmp_path / "speech.onnx", facts=FileFacts(16000))
    made = sb.load(tmp_path / "speech.onnx").compile(tmp_path / "c")
    assert list(written) == [tmp_path / "c"]
    assert {"model.c", "report.json", "model.onnx", "audio/audio.c"} <= set(written[tmp_path / "c"])
    (tmp_path / "again.onnx").write_bytes(written[tmp_path / "c"]["model.onnx"])
    again = sb.load(tmp_path / "again.onnx")
    assert again.model.rate == 16000
    for use in (again.verify, again.run, again.trace, again.report, again.finetune):
        with pytest.raises(InputError, match="digits: expected recordings at 16000 Hz as in"):
            use("digits")
    assert made.audio == tmp_path / "c" / "audio"
    assert not made.folder.exists()


def test_firmware(real, tmp_path):
    made = real.compile(tmp_path / "npu", sb.Accelerator(native_dim=8, mantissa=5), target="npu")
    assert made.path == tmp_path / "npu" / "model.nnp"
    assert (made.program.native, made.program.mantissa) == (8, 5)
    assert "native dimension 8" in str(made)
    program = sb.load(made.path)
    assert program.kind == "firmware"
    assert program.verify("random:2", ["concordant-torch"])


TARGETS = {
    "c": {"native_dim": 32, "mantissa": 5, "requantize": True, "steps": 3},
    "npu": {"prefix": "net", "sizes": True},
}


@pytest.mark.parametrize(
    ("target", "option"), [(target, option) for target in TARGETS for option in TARGETS[target]]
)
def test_options_of_the_other_target(net, tmp_path, target, option):
    value, other = TARGETS[target][option], "npu" if target == "c" else "c"
    with pytest.raises(InputError) as caught:
        called(net.compile, out=tmp_path / "out", target=target, **{option: value})
    assert str(caught.value) == (
        f"--{option.replace('_', '-')} does not apply to --target {target}, found {value}; leave "
        f"it out, or give --target {other}"
    )
    assert not (tmp_path / "out").exists()


def test_compilations_that_are_refused(net, real, firmware, tmp_path):
    with pytest.raises(InputError, match=r"^--target: expected one of c, npu, found 'rust'"):
        net.compile(tmp_path / "out", target="rust")
    with pytest.raises(InputError, match=r"^Sequential: expected a quantized model"):
        real.compile(tmp_path / "out")
    with pytest.raises(InputError, match=r"lstm\.nnp: expected a network, found firmware"):
        firmware.compile(tmp_path / "out", target="npu")
    with pytest.raises(
        InputError, match="--mantissa: expected a whole number from 2 to 15, found 30"
    ):
        net.compile(tmp_path / "out", sb.Accelerator(mantissa=30), target="npu")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    with pytest.raises(InputError, match="mine"):
        net.compile(tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep me"


# --- save and report ----------------------------------------------------------------------------


def test_files_hold_the_same_network(net, real, firmware, tmp_path):
    path = net.save(tmp_path / "below" / "net.onnx")  # the folder is made
    assert path == tmp_path / "below" / "net.onnx"
    again = sb.load(path)
    assert again.quantization is None  # a file does not say what quantization did
    np.testing.assert_array_equal(
        again.run(X, codes=True)["2.linear_1.out"], net.run(X, codes=True)["2.linear_1.out"]
    )
    plain = sb.load(real.save(tmp_path / "float.onnx"))
    assert plain.kind == "float network"
    np.testing.assert_array_equal(plain.run(X)["2.linear_1.out"], real.run(X)["2.linear_1.out"])
    assert sb.load(firmware.save(tmp_path / "copy.nnp")).verify("random:1", ["concordant-torch"])


def test_names_with_another_ending(net, firmware, tmp_path):
    with pytest.raises(InputError) as caught:
        net.save(tmp_path / "net.nnp")
    assert str(caught.value) == (
        f"{tmp_path}/net.nnp: expected a name ending in .onnx or .tflite for a quantized network"
    )
    with pytest.raises(InputError, match=r"expected a name ending in \.nnp for a firmware$"):
        firmware.save(tmp_path / "lstm.onnx")


def test_reports(net, real, firmware, tmp_path):
    text = str(net.report())
    assert text == str(net)
    for part in ("Sequential", "input", "int8[1, 4]", "scale", "multiply-adds", "SQNR"):
        assert part in text, part
    assert "SQNR" not in str(real)
    again = str(sb.load(net.save(tmp_path / "net.onnx")))
    assert "integers against the float network" in again  # the file says it
    assert "clipped" not in again
    assert "float16" in str(firmware)
    for any_net in (net, real, firmware):
        assert any_net._repr_html_().startswith("<iframe srcdoc=")
    page = net.report().save(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "SQNR" in page
