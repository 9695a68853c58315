"""Trained models give the same logits on every backend, over a whole test set."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from samebits.codegen import write_package
from samebits.codegen.run.requirements import BOARDS, requirements
from samebits.codegen.run.targets import SANITIZERS, host, valgrind
from samebits.data import load
from samebits.ir.rewrite import simplify
from samebits.model import Model
from samebits.model import load as load_model
from samebits.pytorch import import_module
from samebits.quantization import Settings, quantize_graph
from samebits.train.architectures import build
from samebits.train.run.config import TrainConfig
from samebits.train.run.evaluate import count_correct, final_classifier
from samebits.train.run.loop import train
from samebits.train.run.restore import open_checkpoint, restore_engine
from samebits.verification.accuracy import correct, image_codes, images
from samebits.verification.backends.generated_c import GeneratedC
from samebits.verification.backends.onnxruntime import pairs_saturate
from samebits.verification.backends.reference import Reference
from samebits.verification.compare import compare
from samebits.verification.registry import backend_named
from samebits.verification.run import cause

QUICK = ("training", "torch", "c", "cortex-m0", "cortex-m3", "cortex-m55")
RUNTIMES = ("onnxruntime", "onnxruntime-optimized", "onnxruntime-float", "onnxruntime-integer")
SLOW = ("cortex-m0-large", "aarch64", "s390x", "riscv64")
HOSTS = [
    (compiler, flags)
    for compiler in ("gcc", "clang")
    for flags in (("-O0",), ("-O2",), ("-O3",), ("-Os",), ("-O3", "-march=native"), SANITIZERS)
]


def available(backend):
    reason = backend.unavailable()
    if reason is not None:
        pytest.skip(reason)
    return backend


def optimized_runtime(name):
    """Optimized graphs of 8-bit kernels whose sums of two products saturate compute no bits that
    anybody defined; what says so is measured (`pairs_saturate`)."""
    optimized = name in ("onnxruntime-optimized", "onnxruntime-float")
    if optimized and available(backend_named(name)) and pairs_saturate():
        pytest.skip(f"{name}: 8-bit kernels saturate sums of two products here (no VNNI)")


def assert_equal(backend, model, codes, expected):
    found = available(backend).run(model, codes)
    verdict = compare(backend.name, model.integer, expected, found)
    assert verdict.differing == 0, f"{verdict.differing} of {verdict.total}: {verdict.first}"
    return verdict


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.fixture(scope="module")
def bfp(digits, tmp_path_factory):
    """A BFP network, its deployed form, the test set as codes, and the reference's logits."""
    folder = tmp_path_factory.mktemp("bfp")
    config = TrainConfig(data="digits", arch="cnn", numerics="bfp", epochs=2, batch=64, seed=0)
    result = train(config, digits, folder)
    model = load_model(folder)
    codes = image_codes(model, digits)
    expected = Reference().run(model, codes)
    assert len(codes[0]) == 359
    return folder, result, model, codes, expected


@pytest.mark.parametrize("name", [*QUICK, *RUNTIMES])
def test_bfp_logits_on_the_whole_test_set(bfp, name):
    optimized_runtime(name)
    _, _, model, codes, expected = bfp
    assert_equal(backend_named(name), model, codes, expected)


def test_the_accuracy_is_that_of_the_run(bfp, digits):
    folder, result, model, _, expected = bfp
    assert correct(expected, digits) == result.correct
    path, checkpoint = open_checkpoint(folder, print)
    engine = restore_engine(path, checkpoint, digits)
    classifier, arithmetic = final_classifier(engine, checkpoint.exponents)
    assert arithmetic == "deployed"
    assert count_correct(classifier, digits) == result.correct
    assert len(model.integer.outputs) == 1


def test_the_runtime_provably_agrees_without_batch_norm(bfp, digits, tmp_path):
    """Whose scales go into those of weights, which then are no powers of two."""
    _, _, model, _, _ = bfp
    assert "is no power of two" in cause(model, "onnxruntime")
    train(TrainConfig(data="digits", arch="mlp", epochs=1, batch=64), digits, tmp_path)
    assert cause(load_model(tmp_path), "onnxruntime") == ""


def test_no_floating_point_on_a_processor_without_it(bfp):
    _, _, model, _, _ = bfp
    for board in BOARDS:
        needs = requirements(model.integer, board)
        if needs.flash is None:
            pytest.skip(str(needs.why))
        if board != "cortex-m55":
            assert needs.float_symbols == ()
    assert needs.stack is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_bfp_logits_on_other_processors(bfp, name):
    _, _, model, codes, expected = bfp
    assert_equal(backend_named(name), model, codes, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("compiler", "flags"), HOSTS, ids=lambda v: str(v)[:40])
def test_bfp_logits_under_every_compiler_and_level(bfp, compiler, flags):
    _, _, model, codes, expected = bfp
    assert_equal(GeneratedC(host(compiler, *flags)), model, codes, expected)


@pytest.mark.slow
def test_bfp_logits_under_valgrind(bfp):
    _, _, model, codes, expected = bfp
    few = [c[:8] for c in codes]
    assert_equal(GeneratedC(valgrind()), model, few, [e[:8] for e in expected])


SCHEMES = ("asymmetric-s8", "asymmetric-u8", "symmetric-s8", "power-of-two-s8", "asymmetric-s16")


@pytest.fixture(scope="module")
def smooth(digits, tmp_path_factory):
    """A float32 network with tanh, GELU and sigmoid as a real graph."""
    config = TrainConfig(
        data="digits", arch="smooth", numerics="float32", epochs=2, batch=64, seed=0, lr=0.2
    )
    module = build("smooth", digits.input_shape, digits.classes)
    train(config, digits, tmp_path_factory.mktemp("smooth"), model=module)
    return simplify(import_module(module, (torch.zeros(1, *digits.input_shape),)))


@pytest.fixture(scope="module")
def quantized(digits, smooth):
    """Scheme -> (model, codes, reference logits), made once each."""
    made = {}

    def make(scheme):
        if scheme not in made:
            name = smooth.inputs[0]
            samples = [{name: x[None]} for x in images(digits, "train", 64)]
            weights = "power-of-two-s8" if scheme.startswith("power") else "symmetric-s8"
            settings = Settings(activations=scheme, weights=weights)
            model = Model(scheme, quantize_graph(smooth, samples, settings)[0])
            codes = image_codes(model, digits)
            made[scheme] = (model, codes, Reference().run(model, codes))
        return made[scheme]

    return make


# One scheme on each of them, and each scheme on one.
PAIRS = [("asymmetric-s8", name) for name in ("torch", "c", "cortex-m3", "onnxruntime-integer")]
PAIRS += [("asymmetric-u8", "torch"), ("symmetric-s8", "onnxruntime-integer")]
PAIRS += [("power-of-two-s8", "c")]


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        pytest.param(scheme, name, marks=() if (scheme, name) in PAIRS else pytest.mark.slow)
        for scheme in SCHEMES
        for name in ("torch", "c", "cortex-m3", "onnxruntime-integer")
    ],
)
def test_quantized_logits_on_the_whole_test_set(quantized, scheme, name):
    model, codes, expected = quantized(scheme)
    assert_equal(backend_named(name), model, codes, expected)


@pytest.mark.parametrize("name", ["cortex-m0", "cortex-m55"])
def test_quantized_logits_on_other_boards(quantized, name):
    model, codes, expected = quantized("asymmetric-s8")
    assert_equal(backend_named(name), model, codes, expected)


@pytest.mark.parametrize("name", ["onnxruntime", "onnxruntime-float"])
def test_differences_of_a_float_runtime_have_a_cause(quantized, name):
    model, codes, expected = quantized("asymmetric-s8")
    assert cause(model, name) != ""
    optimized_runtime(name)
    backend = available(backend_named(name))
    verdict = compare(name, model.integer, expected, backend.run(model, codes))
    assert verdict.largest <= 2  # steps of the output scale


def test_every_table_has_one_load(quantized, tmp_path):
    model, _, _ = quantized("asymmetric-s8")
    assert sum(node.op == "table" for node in model.integer.nodes) == 3
    report = write_package(model.integer, tmp_path / "c")
    assert report.arena == report.arena_bound


@pytest.mark.slow
def test_cifar_logits(tmp_path):
    """500 test images of CIFAR-10, given as a folder of images in $SAMEBITS_CIFAR."""
    folder = os.environ.get("SAMEBITS_CIFAR")
    if not folder:
        pytest.skip(
            "set SAMEBITS_CIFAR to a folder of CIFAR-10 images (train/<class>, test/<class>)"
        )
    data = load(folder)
    config = TrainConfig(data=folder, arch="resnet8", numerics="bfp", epochs=1, batch=64, seed=0)
    train(config, data, tmp_path / "run")
    model = load_model(tmp_path / "run")
    codes = image_codes(model, data, 500)
    expected = Reference().run(model, codes)
    assert len(np.unique(expected[0])) > 100
    for name in ("training", "torch", "c", "onnxruntime", "cortex-m0-large", "cortex-m3"):
        backend = backend_named(name)
        if backend.unavailable() is None:
            assert_equal(backend, model, codes, expected)
