"""A model through several backends: equal, different, or skipped with the reason."""

from __future__ import annotations

import numpy as np
import pytest

from samebits.errors import InputError, UnsupportedError
from samebits.ir import GraphBuilder
from samebits.model import Model
from samebits.verification.backends.reference import Reference
from samebits.verification.inputs import random_codes
from samebits.verification.registry import backend_named, known_backends
from samebits.verification.run import BOARDS, DEFAULT_BACKENDS, cause, chosen_backends, verify_model
from tiny_models import quantized_graph


@pytest.fixture(scope="module")
def model():
    return Model("tiny", quantized_graph())


@pytest.fixture(scope="module")
def samples(model):
    return random_codes(model.integer, 9)


class Fake:
    """The reference with something wrong."""

    name = "fake"
    needs = "graph"

    def __init__(self, reason=None, error=None, change=None):
        self.reason, self.error, self.change = reason, error, change

    def unavailable(self):
        return self.reason

    def run(self, model, inputs):
        if self.error is not None:
            raise self.error
        outputs = Reference().run(model, inputs)
        if self.change is not None:
            outputs[0][self.change] ^= 1
        return outputs

    def trace(self, model, inputs):
        raise UnsupportedError("no trace")


@pytest.fixture
def fake(monkeypatch):
    """Registers a backend named fake."""

    def register(**settings):
        known = {**known_backends(), "fake": lambda work: Fake(**settings)}
        monkeypatch.setattr("samebits.verification.registry.known_backends", lambda: known)

    return register


def test_the_registry():
    known = known_backends()
    assert {"reference", *DEFAULT_BACKENDS, *BOARDS, "training", "s390x"} <= set(known)
    for name in known:
        assert backend_named(name).name == name
    with pytest.raises(InputError) as caught:
        backend_named("gpu")
    assert str(caught.value) == f"unknown backend 'gpu'; expected one of {', '.join(known)}"


def test_equal(model, samples):
    expected, verdicts = verify_model(model, samples, ("torch", "onnxruntime-integer"))
    assert [e.tolist() for e in expected] == [e.tolist() for e in Reference().run(model, samples)]
    assert [v.backend for v in verdicts] == ["torch", "onnxruntime-integer"]
    for verdict in verdicts:
        if verdict.skipped is None:
            assert verdict.equal
            assert (verdict.total, verdict.sample_count, verdict.note) == (27, 9, "")


def test_the_reference_is_not_compared_with_itself(model, samples):
    _, verdicts = verify_model(model, samples, ("reference", "torch"))
    assert [v.backend for v in verdicts] == ["torch"]


def test_a_difference(model, samples, fake):
    fake(change=(4, 1))
    (expected,), (verdict,) = verify_model(model, samples, ["fake"])
    assert (verdict.differing, verdict.samples, verdict.equal) == (1, 1, False)
    (difference,) = verdict.first
    assert (difference.output, difference.index) == (model.integer.outputs[0], (4, 1))
    assert difference.expected == expected[4, 1]
    assert difference.found == expected[4, 1] ^ 1


def test_skipped(model, samples, fake):
    fake(reason="fake: expected a machine, found none")
    _, (verdict,) = verify_model(model, samples, ["fake"])
    assert verdict.skipped == "fake: expected a machine, found none"
    for error in (UnsupportedError("it has no table"), InputError("too large")):
        fake(error=error)
        _, (verdict,) = verify_model(model, samples, ["fake"])
        assert (verdict.skipped, verdict.equal) == (str(error), False)
        with pytest.raises(InputError, match=f"backend fake cannot run this model: {error}"):
            verify_model(model, samples, ["fake"], strict=True)


def test_a_backend_that_must_run_and_cannot(model, samples, fake):
    fake(reason="fake: expected a machine, found none")
    with pytest.raises(InputError, match=r"backend fake cannot run here: fake: .* --available"):
        verify_model(model, samples, ["torch", "fake"], strict=True)


def test_the_backends_that_are_compared(model, fake):
    usual = (*DEFAULT_BACKENDS, "onnxruntime-integer")
    assert chosen_backends(model, None, False) == (usual, False)
    assert chosen_backends(model, ["c"], False) == (("c",), True)
    assert chosen_backends(model, ["c"], True) == (("c",), False)
    fake(reason="fake: expected a machine, found none")
    found, strict = chosen_backends(model, None, True)
    assert {"reference", "torch", "onnxruntime-integer"} <= set(found)
    assert not {"fake", "npu", "concordant-torch"} & set(found)
    assert not strict
    with pytest.raises(InputError, match="unknown backend 'gpu'"):
        chosen_backends(model, ["gpu"], False)


def test_a_runtime_that_provably_has_the_bits_is_compared_itself(samples):
    pytest.importorskip("onnxruntime")
    builder = GraphBuilder("exact")
    scale, zero = builder.constant("s", np.float32(0.5)), builder.constant("z", np.int8(0))
    given = builder.add("QuantizeLinear", [builder.input("x", "float32", (1, 4)), scale, zero])
    x = builder.add("DequantizeLinear", [given, scale, zero])
    codes = builder.add("QuantizeLinear", [builder.add("Relu", [x]), scale, zero])
    exact = Model("exact", builder.build([builder.add("DequantizeLinear", [codes, scale, zero])]))
    assert chosen_backends(exact, None, False) == (DEFAULT_BACKENDS, False)
    _, (verdict,) = verify_model(exact, samples, ["onnxruntime"], promised=True)
    assert verdict.equal


def test_a_model_that_was_not_trained_here_has_no_training_backend(model, samples):
    _, (verdict,) = verify_model(model, samples, ["training"])
    assert verdict.skipped == (
        "tiny: expected a training output folder for the training backend, found another kind of "
        "model"
    )


def test_unknown_names_are_refused(model, samples):
    with pytest.raises(InputError, match="unknown backend 'gpu'"):
        verify_model(model, samples, ["gpu"])


def test_only_runtimes_of_reals_have_a_cause(model):
    for name in known_backends():
        found = cause(model, name)
        runtime = name.startswith("onnxruntime") and not name.endswith("integer")
        assert isinstance(found, str)
        if not runtime:
            assert found == ""


def test_samples_are_cut_into_the_pieces_of_a_batched_graph():
    one, four = (Model("tiny", quantized_graph(batch)) for batch in (1, 4))
    codes = random_codes(four.integer, 3)
    assert codes[0].shape == (12, 4)
    (a,), (b,) = Reference().run(one, codes), Reference().run(four, codes)
    assert np.array_equal(a, b)
    _, verdicts = verify_model(four, codes, ("torch", "onnxruntime-integer"))
    assert [v.equal or v.skipped is not None for v in verdicts] == [True, True]
