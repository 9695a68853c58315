"""The whole of post-training quantization: accuracy on digits, order of samples, the report."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch

from samebits.data.digits import load_digits
from samebits.errors import InputError
from samebits.ir import Graph
from samebits.ir.interpreter import run
from samebits.ir.rewrite import simplify
from samebits.progress import listening
from samebits.quantization import ACTIVATIONS, WEIGHTS, Settings, quantize_graph
from samebits.recipes.quantization import METHODS

pytest.importorskip("sklearn", reason="scikit-learn holds the digits")


def trained(model, x, y, steps):
    """Full-batch Adam; the weights are the same on every run of one machine."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


@pytest.fixture(scope="module")
def digits():
    """(train images [N, 1, 8, 8], labels, test images, labels), values in 0..1."""
    data = load_digits()
    images, tests = (x.to(torch.float32) / data.peak for x in (data.train_images, data.test_images))
    return images[:800], data.train_labels[:800], tests, data.test_labels


def accuracy(graph, images, labels):
    """In per cent; the graph takes one image."""
    right = [
        int(run(graph, [image[None]])[0].argmax()) == label
        for image, label in zip(images.numpy(), labels.tolist(), strict=True)
    ]
    return 100 * np.mean(right)


@pytest.fixture(scope="module")
def cnn(digits):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(6, 12, 3, padding=1),
        torch.nn.SiLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(192, 10),
    )
    return trained(model, digits[0], digits[1], 60)


def cnn_graph(n, p):
    def constant(name):
        return n.builder.constant(name, p[name])

    conv = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    x = n.input("image", 1, 1, 8, 8)
    a = n.add("Conv", "a", x, constant("0.weight"), constant("0.bias"), **conv)
    m = n.add(
        "MaxPool", "m", n.add("Relu", "r", a), kernel_shape=(2, 2), strides=(2, 2),
        pads=(0, 0, 0, 0), dilations=(1, 1),
    )  # fmt: skip
    b = n.add("Conv", "b", m, constant("3.weight"), constant("3.bias"), **conv)
    f = n.add("Flatten", "f", n.add("Mul", "s", b, n.add("Sigmoid", "z", b)), axis=1)
    return n.build(n.add("Gemm", "y", f, constant("6.weight"), constant("6.bias"), transB=1))


@pytest.mark.parametrize("method", METHODS)
def test_a_cnn_keeps_its_accuracy(net, digits, cnn, method):
    images, _, tests, labels = digits
    tests, labels = tests[:150], labels[:150]
    graph = simplify(cnn_graph(net(), cnn))
    before = accuracy(graph, tests, labels)
    assert before > 85
    samples = [[image[None]] for image in images[:40].numpy()]
    for settings in (
        Settings(calibration=method),
        Settings("power-of-two-s8", "power-of-two-s8", calibration=method, per_channel=False),
    ):
        quantized, report = quantize_graph(graph, samples, settings)
        assert abs(accuracy(quantized, tests, labels) - before) <= 2
        # Pixels are sixteenths: powers of two hold them exactly.
        ratios = [t.sqnr_db for t in report.tensors if t.sqnr_db is not None]
        assert len(ratios) >= 4
        assert min(ratios) > 20


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_an_mlp_in_every_scheme(net, digits, every):
    """every: of the pairs every second, each scheme among them, or all."""
    images, labels, tests, test_labels = digits
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 24), torch.nn.Tanh(), torch.nn.Linear(24, 10)
    )
    p = trained(model, images, labels, 60)
    n = net()
    x = n.add("Flatten", "f", n.input("image", 1, 1, 8, 8), axis=1)

    def gemm(name, x, layer):
        weight, bias = (
            n.builder.constant(f"{layer}.{k}", p[f"{layer}.{k}"]) for k in ("weight", "bias")
        )
        return n.add("Gemm", name, x, weight, bias, transB=1)

    graph = n.build(
        n.add("Softmax", "y", gemm("b", n.add("Tanh", "t", gemm("a", x, 1)), 3), axis=1)
    )
    tests, test_labels = tests[:100], test_labels[:100]
    before = accuracy(graph, tests, test_labels)
    assert before > 85
    samples = [[image[None]] for image in images[:20].numpy()]
    for number, scheme in enumerate(ACTIVATIONS):
        for weights in tuple(WEIGHTS)[number % every :: every]:
            quantized, _ = quantize_graph(
                graph, samples, Settings(scheme, weights, report_samples=1)
            )
            assert abs(accuracy(quantized, tests, test_labels) - before) <= 3


# --- determinism ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_the_samples_does_not_matter(residual_net, method):
    graph, samples = residual_net
    settings = Settings(calibration=method)
    one, report = quantize_graph(graph, samples, settings)
    other, again = quantize_graph(graph, iter(samples[::-1]), settings)
    for a, b in zip(report.tensors, again.tensors, strict=True):
        assert (a.scale, a.zero_point, a.low, a.high) == (b.scale, b.zero_point, b.low, b.high)
        assert (a.seen_low, a.seen_high, a.clip_rate) == (b.seen_low, b.seen_high, b.clip_rate)
    assert one.nodes == other.nodes
    assert list(one.constants) == list(other.constants)
    for name, array in one.constants.items():
        assert array.tobytes() == other.constants[name].tobytes()


# --- report -----------------------------------------------------------------------------------


def test_report(residual_net):
    graph, samples = residual_net
    _, report = quantize_graph(graph, samples, Settings(report_samples=4))
    assert (report.calibration_samples, report.samples) == (10, 4)
    assert [t.op for t in report.tensors] == [
        "Input", "Relu", "Conv", "HardSwish", "Relu", "GlobalAveragePool", "Gemm",
    ]  # fmt: skip
    for tensor in report.tensors:
        assert tensor.low <= 0 <= tensor.high
        assert tensor.low <= tensor.seen_low <= tensor.seen_high <= tensor.high
        assert tensor.clip_rate == 0
        assert tensor.sqnr_db > 25
    assert [(c.name, c.format, c.scales) for c in report.constants] == [
        ("c_w", "symmetric-s8", 4),
        ("c_b", "bias-s32", 4),
        ("d_w", "symmetric-s8", 4),
        ("y_w", "symmetric-s8", 3),
        ("y_b", "bias-s32", 3),
    ]
    weights = report.constants[0]
    assert (weights.shape, weights.bytes_before) == ((4, 2, 3, 3), 288)
    assert weights.bytes_after == 72 + 4 * 5  # codes; a scale and a zero point for each channel
    assert report.bytes_before == sum(c.bytes_before for c in report.constants)
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["settings"]["activations"] == "asymmetric-s8"
    assert len(data["tensors"]) == 7


def test_clip_rate_and_ratio_by_definition(net):
    """Percentile 60 keeps the middle: count what lies more than half a step outside."""
    n = net()
    graph = n.build(n.add("Identity", "y", n.input("x", 1, 1000)))
    x = n.normal(1, 1000)
    settings = Settings(calibration="percentile", percentile=60.0)
    quantized, report = quantize_graph(graph, [[x]], settings)
    (tensor,) = report.tensors
    steps = x.astype(np.float64) / tensor.scale + tensor.zero_point
    assert tensor.clip_rate == np.mean((steps < -128.5) | (steps > 127.5))
    assert 0.3 < tensor.clip_rate < 0.45
    y = run(quantized, [x])[0].astype(np.float64)
    noise = np.sum((x.astype(np.float64) - y) ** 2)
    assert tensor.sqnr_db == pytest.approx(10 * np.log10(np.sum(x.astype(np.float64) ** 2) / noise))


def test_ratios_without_noise_or_signal(net):
    n = net()
    x = n.input("x", 1, 2)
    graph = n.build(n.add("Exp", "y", n.add("Sub", "z", x, x)), n.add("Floor", "f", x))
    zeros = np.zeros((1, 2), np.float32)
    _, report = quantize_graph(graph, [[zeros]])
    assert [t.sqnr_db for t in report.tensors] == [None, None, None]
    _, report = quantize_graph(graph, [[np.full((1, 2), -1e-9, np.float32)], [zeros + 5]])
    assert report.to_dict()["tensors"][1]["name"] in ("y", "f")
    json.dumps(report.to_dict(), allow_nan=False)


def test_constant_inputs(net):
    n = net()
    y = n.conv("y", n.input("x", 1, 2, 4, 4), 2, 2, 3, 3)
    for value in (0.0, -2.0, 1e-30):
        quantized, report = quantize_graph(n.build(y), [[np.full((1, 2, 4, 4), value, np.float32)]])
        assert report.tensors[0].seen_low == report.tensors[0].seen_high == np.float32(value)
        assert np.isfinite(run(quantized, [np.ones((1, 2, 4, 4), np.float32)])[0]).all()


def test_bad_samples_end_in_messages(residual_net):
    graph, _ = residual_net
    with pytest.raises(InputError, match="expected at least one sample, found none"):
        quantize_graph(graph, [])
    with pytest.raises(InputError, match=r"sample 0: expected the inputs x, found z"):
        quantize_graph(graph, [{"z": np.zeros(1, np.float32)}])


# --- progress and an early end -----------------------------------------------------------------


class Heard:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int | None]] = []
        self.done: list[int] = []
        self.notes: list[str] = []

    def stage(self, what: str, total: int | None) -> None:
        self.stages.append((what, total))

    def advance(self, done: int) -> None:
        self.done.append(done)

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_calibration_tells_how_far_it_is(residual_net):
    graph, samples = residual_net
    heard = Heard()
    with listening(heard):
        quantize_graph(graph, samples)
    assert heard.stages == [("calibrating", 10), ("comparing with the float network", None)]
    assert heard.done == list(range(1, 10))
    assert heard.notes == []


def test_options_without_a_layer_are_told(net, residual_net):
    n = net()
    graph = n.build(n.add("Sigmoid", "y", n.input("x", 1, 4)))
    options = {"equalize": "weights", "rounding": "least-error", "bias_correction": True}
    heard = Heard()
    with listening(heard):
        samples = [{"x": n.normal(1, 4)} for _ in range(4)]
        quantize_graph(graph, samples, Settings(mixed=9, **options))
    *idle, mixed = heard.notes
    assert idle == [
        f"--{option} changed nothing: the network has no layer for it"
        for option in ("equalize", "weight-rounding", "bias-correction")
    ]
    assert mixed.startswith("--mixed 9: ")
    heard = Heard()
    with listening(heard):
        quantize_graph(*residual_net, Settings(mixed=1, **options))
    assert heard.notes == idle[:1]  # no layer's channels are another layer's alone


@pytest.mark.parametrize("method", METHODS)
def test_calibration_stops_where_more_samples_change_nothing(residual_net, method):
    graph, samples = residual_net
    read = []

    def endless():
        for index in itertools.count():
            read.append(index)
            yield samples[min(index, 4)]  # from the fifth on always the same

    heard = Heard()
    with listening(heard):
        found, report = quantize_graph(graph, endless(), Settings(calibration=method, stop_early=4))
    assert report.calibration_samples == len(read) >= 8
    assert len(read) % 4 == 0
    assert heard.notes == [
        f"calibration: stopped after {len(read)} samples, of which the last 4 changed no scale"
    ]
    shorter = [samples[min(index, 4)] for index in read]
    assert same(found, quantize_graph(graph, shorter, Settings(calibration=method))[0])
    before = [samples[min(index, 4)] for index in read[:-4]]
    assert same(found, quantize_graph(graph, before, Settings(calibration=method))[0])


def test_calibration_does_not_stop_while_scales_change(residual_net):
    graph, samples = residual_net
    growing = [{"x": sample["x"] * 1.25**i} for i, sample in enumerate(samples)]
    heard = Heard()
    with listening(heard):
        found, report = quantize_graph(graph, growing, Settings(stop_early=1))
    assert report.calibration_samples == 10
    assert heard.notes == []
    assert same(found, quantize_graph(graph, growing)[0])


def same(one: Graph, other: Graph) -> bool:
    """Whether two graphs have the same nodes and the same constants, to the bit."""
    constants = [{n: a.tobytes() for n, a in g.constants.items()} for g in (one, other)]
    return one.nodes == other.nodes and constants[0] == constants[1]
