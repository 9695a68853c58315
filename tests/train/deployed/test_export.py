"""Exported graphs mean exactly what the deployed model computes."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from activation_forms import FORMS
from compare import assert_same
from deploy_nets import NETS, SHAPE, assert_exported, make_images, make_net, shifted
from samebits.errors import UnsupportedError
from samebits.ir.interpreter import run
from samebits.ir.lowering.lower import lower_graph
from samebits.model import Model
from samebits.spec import formats
from samebits.tables import ACTIVATIONS
from samebits.train import convert
from samebits.train.architectures import ARCHITECTURES, build, initialise
from samebits.train.deployed.deploy import Exponents, calibrate, deployed, quantize_input
from samebits.train.deployed.export import to_graph
from samebits.train.tensor import BFPTensor
from samebits.verification.backends.reference import Reference
from samebits.verification.compare import compare
from samebits.verification.inputs import random_codes
from samebits.verification.registry import backend_named
from samebits.verification.run import cause


def check(model, images, exponents=None):
    """The graph of a model; it and its lowering give the codes of the deployed one, exactly."""
    exponents = exponents or calibrate(model, [images])
    graph = to_graph(model, exponents, tuple(images.shape[1:]), batch=len(images))
    codes, exponent = deployed(model, exponents).codes(images)
    values = [code * formats.power(exponent) for code in codes.flatten().tolist()]
    try:
        (out,) = run(graph, [images.numpy()], exact=True)
    except UnsupportedError:  # tanh and its like are no rationals; their codes decide all the same
        (out,) = run(graph, [images.numpy()])
    assert out.shape == tuple(codes.shape)
    found = [v if isinstance(v, Fraction) else Fraction(float(v)) for v in out.flatten()]
    assert_same(found, values, range(len(values)))
    quantized = quantize_input(images, exponents.sites[0].exponent).codes.numpy()
    assert_same(run(lower_graph(graph), [quantized])[0], codes, range(len(values)))
    return graph


def operators(graph):
    plain = ("QuantizeLinear", "DequantizeLinear")
    return [(node.op, node.name) for node in graph.nodes if node.op not in plain]


@pytest.mark.parametrize("rows", ["tensor", "row"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", NETS)
def test_every_layer(name, seed, rows):
    _, model = make_net(name, seed, rows)
    exponents = calibrate(model, [make_images(4, 10), make_images(3, 11)])
    images = make_images(2, 12, scale=2.0)
    check(model, images, exponents)
    check(model, images, shifted(exponents, seed))


@pytest.mark.parametrize("name", NETS)
def test_rows_on_the_backends(name):
    _, model = make_net(name, 1, "row")
    exponents = calibrate(model, [make_images(4, 10)])
    frozen = deployed(model, exponents)
    found = Model(name, to_graph(model, exponents, SHAPE), deployed=frozen)
    inputs = random_codes(found.integer, 40)
    (expected,) = Reference().run(found, inputs)
    for other in ("training", "torch", "c", "onnxruntime"):
        backend = backend_named(other)
        if backend.unavailable() is None and not cause(found, other):
            verdict = compare(other, found.integer, [expected], backend.run(found, inputs))
            assert verdict.differing == 0, f"{other}: {verdict.differing}, {verdict.first}"


SLOW = ("mobilenetv2", "resnet20")
# resnet18: minutes of rationals, no new layer; the others: in test_recurrent and test_attention.
NAMES = sorted(set(ARCHITECTURES) - {"resnet18", "lstm", "vit", "gpt"})


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in NAMES]
)
@pytest.mark.parametrize("rows", ["tensor", "row"])
def test_architectures(name, rows):
    model = build(name, (1, 8, 8), 4)
    initialise(model, 1)
    model = convert(model, exponents=rows)
    check(model, torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)))


def test_structure():
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.BatchNorm2d(3),  # part of the convolution
        nn.ReLU6(),
        nn.AvgPool2d(2, padding=1),
        nn.SiLU(),
        nn.BatchNorm2d(3),
        nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(3, 4),
    )
    graph = check(convert(model), make_images(1, 3))
    assert operators(graph) == [
        ("Conv", "0"),
        ("Clip", "2"),
        ("AveragePool", "3"),
        ("Sigmoid", "4.sigmoid"),
        ("Mul", "4"),
        ("Mul", "5.mul"),
        ("Add", "5"),
        ("Clip", "6"),  # before the rounding of batch norm
        ("GlobalAveragePool", "7"),
        ("Flatten", "8"),
        ("Gemm", "9"),
    ]
    nodes = {node.name: node for node in graph.nodes}
    assert nodes["3"].attributes["count_include_pad"] == 1
    assert nodes["9"].attributes["transB"] == 1
    assert graph.outputs == (nodes["9"].output,)
    assert graph.values[graph.inputs[0]].dtype == "float32"
    assert graph.constants["0.weight.codes"].dtype == np.int8
    assert graph.constants["0.bias.codes"].dtype == np.int32
    codes = graph.values["5.factor"].shape, graph.values["5.shift"].shape
    assert codes == ((1, 3, 1, 1), (1, 3, 1, 1))
    scales = [graph.constants[n.inputs[1]] for n in graph.nodes if n.op == "QuantizeLinear"]
    assert all(np.frexp(scale)[0] == 0.5 for scale in scales)
    assert {graph.constants[n.inputs[2]].dtype.name for n in graph.nodes if "Linear" in n.op} == {
        *("int8", "int32"),
    }


class Residual(nn.Module):
    """Functions in forward(), a value read twice, a layer used twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.act = nn.Conv2d(2, 2, 3, padding=1), nn.ReLU()
        self.last = nn.Linear(144, 3)

    def forward(self, x):
        y = self.act(self.conv(x))
        z = self.act(self.conv(y))
        z += y
        z = torch.relu(torch.cat([z, x], dim=-3))
        return self.last(torch.flatten(z, 1).reshape(-1, 144))


def test_functions_in_forward():
    graph = check(convert(Residual()), make_images(2, 1))
    assert [name for _, name in operators(graph)] == [
        *(
            "conv",
            "act",
            "conv.2",
            "act.2",
            "add",
            "concat",
            "relu",
            "reshape",
            "reshape.2",
            "last",
        ),
    ]
    weights = [node for node in graph.nodes if node.name.startswith("conv.weight")]
    assert len({node.inputs[0] for node in weights}) == 1  # stored once


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_in_forward(name):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 1)

        def forward(self, x):
            return FORMS[name][0](self.conv(x))

    check(convert(Net()), make_images(2, 4, scale=4.0))


def test_relu_waits_where_the_codes_have_another_reader():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.relu = nn.Conv2d(2, 2, 1), nn.ReLU()

        def forward(self, x):
            y = self.conv(x)
            return self.relu(y) + y

    graph = check(convert(nn.Sequential(Both(), nn.Flatten(), nn.Linear(72, 2))), make_images(1, 1))
    nodes = {node.name: node for node in graph.nodes}
    assert nodes["0.relu"].inputs == (nodes["0.conv.dequantize"].output,)


def test_logits_of_eight_bits_and_other_shapes():
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.wide = nn.Linear(6, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(x).view(x.shape[0], 2, 24) + self.wide(self.fc(x)).reshape(-1, 2, 24)

    check(convert(Rows()), make_images(3, 2))
    check(convert(nn.Sequential(nn.Flatten(), nn.Linear(72, 3), nn.Tanh())), make_images(3, 2))
    check(convert(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))), make_images(2, 2))


def pool_nodes(layer, side=6):
    """The operators of a pool in a graph whose meaning is checked, and their attributes."""
    images = torch.randn(2, 2, side, side, generator=torch.Generator().manual_seed(5))
    graph = check(convert(nn.Sequential(nn.ReLU(), layer)), images)
    nodes = {node.name: node for node in graph.nodes}
    return [(op, nodes[name].attributes) for op, name in operators(graph)[1:]]


def test_windows_that_end_behind_the_image_have_the_pads_they_need():
    ((op, found),) = pool_nodes(nn.MaxPool2d(3, 2, ceil_mode=True))
    assert (op, found["pads"], found["ceil_mode"]) == ("MaxPool", (0, 0, 1, 1), 0)
    ((op, found),) = pool_nodes(nn.AvgPool2d(3, 2, ceil_mode=True))
    assert (op, found["pads"], found["ceil_mode"]) == ("AveragePool", (0, 0, 1, 1), 0)
    assert found["count_include_pad"] == 0
    ((op, found),) = pool_nodes(nn.AvgPool2d(4, 2, 1, ceil_mode=True))  # all within the padding
    assert (op, found["pads"], found["count_include_pad"]) == ("AveragePool", (1, 1, 1, 1), 1)


def test_what_a_mean_is_divided_by():
    (pad, mean) = pool_nodes(nn.AvgPool2d(4, 3, 1, ceil_mode=True))
    assert (pad[0], pad[1]["pads"]) == ("Pad", (0, 0, 1, 1, 0, 0, 1, 1))
    assert (mean[0], mean[1]["pads"]) == ("AveragePool", (0, 0, 2, 2))
    assert mean[1]["count_include_pad"] == 0
    ((op, found),) = pool_nodes(nn.AvgPool2d(3, 1, 1, count_include_pad=False))
    assert (op, found["count_include_pad"]) == ("AveragePool", 0)
    for divisor in (1, 3, 36):
        mean, product = pool_nodes(nn.AvgPool2d(3, 2, 1, divisor_override=divisor))
        assert (mean[0], product[0]) == ("AveragePool", "Mul")
        assert mean[1]["count_include_pad"] == 1
    ((op, _),) = pool_nodes(nn.AvgPool2d(6, divisor_override=36))
    assert op == "GlobalAveragePool"
    for size, kernel in ((3, (3, 3)), (2, (4, 4)), ((1, 7), (7, 1))):
        ((op, found),) = pool_nodes(nn.AdaptiveAvgPool2d(size), side=7)
        assert (op, found["kernel_shape"]) == ("AveragePool", kernel)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.AvgPool2d(2, divisor_override=3), "quotient with the 4 positions of the window float3"),
        (nn.AdaptiveAvgPool2d(4), r"1: expected an adaptive pool .* 4x4 of an image \(7, 7\)"),
        (nn.AdaptiveAvgPool2d(14), "use an output size that divides the image's"),
    ],
)
def test_pools_that_onnx_lacks(layer, message):
    """They are deployed all the same; only the file has no form."""
    images = torch.randn(2, 2, 7, 7, generator=torch.Generator().manual_seed(5))
    model = convert(nn.Sequential(nn.ReLU(), layer))
    exponents = calibrate(model, [images])
    deployed(model, exponents).codes(images)
    with pytest.raises(UnsupportedError, match=message):
        to_graph(model, exponents, (2, 7, 7))


def test_dropout_and_identity_leave_no_node():
    model = nn.Sequential(nn.Identity(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(72, 3))
    assert operators(check(convert(model), make_images(1, 2))) == [("Flatten", "1"), ("Gemm", "3")]


@pytest.mark.parametrize("layers", [(), (nn.ReLU(),)])
def test_a_model_ends_before_log_softmax(layers):
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 3), *layers)
    images = make_images(2, 2)
    ends = [convert(net) for net in (model, nn.Sequential(model, nn.LogSoftmax(1)))]
    frozen = [calibrate(end, [images]) for end in ends]
    found, wanted = (deployed(*pair).codes(images) for pair in zip(ends, frozen, strict=True))
    assert torch.equal(found[0], wanted[0])
    assert found[1] == wanted[1]
    check(ends[1], images)


@pytest.mark.parametrize("rows", ["tensor", "row"])
def test_copies_and_pads(rows):
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.ReflectionPad2d((1, 0, 2, 1)),
        nn.Conv2d(2, 3, 3, 2, padding=1, padding_mode="circular"),
        nn.Upsample((5, 9)),
        nn.Conv2d(3, 2, (2, 1), padding="same"),
        nn.ReLU(),
        nn.ReplicationPad2d((0, 3, 0, 0)),
        nn.ZeroPad2d((0, 1, 2, 0)),
        nn.Conv2d(2, 2, 1),
    )
    graph = check(convert(model, rows), make_images(2, 2))
    counts = [op for op, _ in operators(graph)]
    assert (counts.count("Gather"), counts.count("Pad")) == (6, 2)


@pytest.mark.parametrize("corners", [False, True])
def test_linear_upsampling(corners):
    """Of lines and of images: an Interpolate whose rounding is the only one."""
    lines = nn.Sequential(
        nn.Flatten(2), nn.Upsample(90, mode="linear", align_corners=corners), nn.Conv1d(2, 3, 3)
    )
    images = nn.Sequential(nn.Upsample((9, 3), mode="bilinear", align_corners=corners), nn.ReLU())
    for model in (lines, images):
        graph = check(convert(model), make_images(2, 1, 2.0))
        assert [op for op, _ in operators(graph)].count("Interpolate") == 1


def test_a_model_that_rounds_nowhere():
    """Integers go in and the sums of a Linear come out: no exponent is frozen."""
    model = convert(nn.Sequential(nn.EmbeddingBag(10, 6, mode="max"), nn.Linear(6, 3)))
    tokens = torch.randint(0, 10, (4, 5), generator=torch.Generator().manual_seed(0))
    exponents = calibrate(model, [tokens])
    assert Exponents.from_dict(exponents.to_dict(), "") == exponents == Exponents((), 1)
    assert_exported(model, tokens, exponents)


@pytest.mark.parametrize("rows", ["tensor", "row"])
def test_lines(rows):
    torch.manual_seed(3)
    layers = (nn.Conv1d(2, 4, 3, 2), nn.ReLU(), nn.ConvTranspose1d(4, 3, 4, 3, 1, 1))
    model = nn.Sequential(nn.Flatten(2), *layers, nn.ReLU())
    check(convert(model, rows), make_images(2, 2))


def test_constants_beyond_float32_are_refused():
    layer = nn.Linear(72, 2, bias=True)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(2, 72) * 2.0**-110)
        layer.bias.zero_()
    model = convert(nn.Sequential(nn.Flatten(), layer))
    images = make_images(1, 1) * 2.0**-30
    exponents = calibrate(model, [images])
    with pytest.raises(UnsupportedError) as caught:
        to_graph(model, exponents, SHAPE)
    assert str(caught.value).startswith(
        "1.bias: expected constants that float32 holds, found 1 * 2"
    )


def test_tensors_of_its_own_are_constants():
    class Own(nn.Module):
        def forward(self, x):
            return BFPTensor.from_real(torch.tensor([[1.0, 0.3]])) + x

    check(convert(Own()), torch.tensor([[1.0, -1.0]]))
    check(convert(Own()), torch.zeros(1, 2))
