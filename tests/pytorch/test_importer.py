"""torch modules as graphs: the interpreter computes what torch computes, in eval mode."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from samebits.errors import InputError, UnsupportedError
from samebits.ir import interpreter
from samebits.pytorch import import_module
from samebits.train.architectures import ARCHITECTURES, LANGUAGE_MODELS, build, initialise


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def randomised(module):
    """Batch-norm statistics and affine parameters that are not their first values."""
    generator = torch.Generator().manual_seed(1)
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            for tensor, low, high in (
                (part.running_mean, -0.5, 0.5), (part.running_var, 0.5, 2.0),
                (part.weight, 0.5, 1.5), (part.bias, -0.5, 0.5),
            ):  # fmt: skip
                if tensor is not None:
                    tensor.data.uniform_(low, high, generator=generator)
    return module


def check(module, *shapes, low=-3.0, high=3.0):
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.empty(shape).uniform_(low, high, generator=generator)
        if isinstance(shape, tuple) else shape
        for shape in shapes
    ]  # fmt: skip
    module = randomised(module).train()
    graph = import_module(module, tuple(inputs))
    assert module.training
    wide = copy.deepcopy(module).eval().double()
    with torch.no_grad():
        expected = wide(*(x.double() if x.is_floating_point() else x for x in inputs))
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    found = interpreter.run(graph, [x.numpy() for x in inputs])
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == tuple(b.shape)
        np.testing.assert_allclose(a.astype(float), b.double().numpy(), rtol=1e-5, atol=1e-5)
    return graph


class Each(nn.Module):
    """Every module on the same inputs: one export for all of them."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, *inputs):
        found = [part(*(x.clone() for x in inputs)) for part in self.parts]
        return [y for result in found for y in (result if isinstance(result, tuple) else [result])]


IMAGE, ROWS, BATCH = (1, 4, 6, 8), (3, 5), (2, 3, 5)
MODULES = {
    "convolutions": (
        lambda: Each(
            nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), groups=2),
            nn.Conv2d(4, 6, (4, 3), padding="same", bias=False),
            nn.Conv2d(4, 6, 3, padding="valid"),
            nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"),
            nn.ConvTranspose2d(4, 6, (3, 2), 2, (1, 0), (1, 0), groups=2, dilation=(1, 2)),
        ),
        IMAGE,
    ),
    "convolutions-1d": (
        lambda: Each(nn.Conv1d(3, 4, 3, padding=1), nn.ConvTranspose1d(3, 4, 3, bias=False)),
        BATCH,
    ),
    "convolution-3d": (lambda: nn.Conv3d(2, 3, 2), (1, 2, 3, 4, 5)),
    "linear": (
        lambda: Each(nn.Linear(5, 4), nn.Linear(5, 4, bias=False), nn.BatchNorm1d(5, affine=False)),
        ROWS,
    ),
    "linear-3d": (lambda: Each(nn.Linear(5, 4), nn.Linear(5, 4, bias=False)), BATCH),
    "norms": (
        lambda: Each(
            *(nn.BatchNorm2d(4), nn.LayerNorm((6, 8)), nn.LayerNorm(8, elementwise_affine=False)),
            *(nn.InstanceNorm2d(4, affine=True), nn.InstanceNorm2d(4), nn.GroupNorm(2, 4)),
        ),
        IMAGE,
    ),
    "pools": (
        lambda: Each(
            nn.MaxPool2d((3, 2), (2, 2), (1, 0), (1, 2), ceil_mode=True),
            *(
                nn.AvgPool2d(3, 2, 1, ceil_mode=True),
                nn.AvgPool2d(3, 2, 1, count_include_pad=False),
            ),
            *(nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d((3, 2)), nn.AdaptiveMaxPool2d(2)),
        ),
        IMAGE,
    ),
    "pools-1d": (lambda: Each(nn.MaxPool1d(2), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(1)), BATCH),
    "images": (
        lambda: Each(
            *(nn.Upsample(scale_factor=2), nn.Upsample(size=(9, 5)), nn.Upsample(scale_factor=1.5)),
            *(nn.PixelShuffle(2), nn.PixelUnshuffle(2), nn.ReflectionPad2d((1, 2, 3, 0))),
            *(nn.ReplicationPad2d(2), nn.ZeroPad2d((1, 0, -1, 2)), nn.Dropout(0.5)),
            *(nn.Dropout2d(0.5), nn.Flatten(), nn.Unflatten(1, (2, 2)), nn.Softmax(1)),
            *(nn.PReLU(4), nn.LogSoftmax(-1)),
        ),
        IMAGE,
    ),
    "interpolated": (
        lambda: Each(
            *(nn.Upsample(scale_factor=k, mode="bilinear") for k in (2, 1.7, 0.6)),
            *(
                nn.Upsample(size=(9, 5), mode=m, align_corners=True)
                for m in ("bilinear", "bicubic")
            ),
            nn.Upsample(scale_factor=(1.5, 2.0), mode="bicubic"),
            Function(lambda x: F.interpolate(x, (4, 11), mode="bilinear", antialias=True)),
            Function(lambda x: F.interpolate(x, (4, 11), mode="bicubic", antialias=True)),
        ),
        IMAGE,
    ),
    "interpolated-1d": (lambda: nn.Upsample(scale_factor=3, mode="linear"), BATCH),
    "attention": (lambda: Function(F.scaled_dot_product_attention), *[BATCH] * 3),
    "activations": (
        lambda: Each(
            *(nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-1.5, 0.7), nn.LeakyReLU(0.1), nn.ELU(0.5)),
            *(nn.SELU(), nn.CELU(0.7), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish()),
            *(nn.Tanh(), nn.Sigmoid(), nn.Hardswish(), nn.Hardsigmoid(), nn.Softplus()),
            *(nn.Softplus(2.0), nn.LogSigmoid(), nn.Softshrink(0.3), nn.Hardshrink(0.3)),
            *(nn.Threshold(0.2, 0.0), nn.Softsign(), nn.Tanhshrink(), nn.Identity(), nn.PReLU()),
            *(nn.ReLU(inplace=True), nn.SiLU(inplace=True), nn.Softmin(1)),
        ),
        ROWS,
    ),
    "input-in-place": (lambda: nn.ReLU(inplace=True), ROWS),
}


@pytest.mark.parametrize("name", MODULES)
def test_module(name):
    make, *shapes = MODULES[name]
    check(make(), *shapes)


FUNCTIONS = {
    "arithmetic": (lambda x, y: (x + y - 2 * y) / 3 + (1 - x) * (y + 0.1), ROWS, (5,)),
    "alpha": (lambda x, y: torch.add(x, y, alpha=2) - torch.rsub(x, y, alpha=3), ROWS, (5,)),
    "division": (lambda x: x / 7 + 2 / (x.abs() + 1), ROWS),
    "reductions": (
        lambda x: (
            x.mean((1, 3), keepdim=True), x.sum(), x.sum(2), x.amax(1), x.amin((0, -1)), x.mean(),
            x.prod(3), torch.logsumexp(x, 1), x.max(), x.std(1), x.var((2, 3)), x.norm(dim=1),
        ),
        IMAGE,
    ),
    "max-and-index": (lambda x: (*x.max(1), *x.min(-1, keepdim=True), x.argmax(1), x.argmax()),
                      IMAGE),
    "functions": (
        lambda x: (x.exp(), torch.erf(x), x.abs().sqrt(), x.neg(), x.abs().log1p(), x.sin(),
                   x.floor(), x.ceil(), x.round(), x.sign(), x.square(), x.abs().rsqrt(),
                   x.abs().add(1).log(), x.clamp(-1, 1), x.clamp(min=0.5), x.clamp(max=0.5)),
        ROWS,
    ),
    "powers": (lambda x: (x**2, x.abs() ** 0.5, x**3, x**1, x.abs() ** 1.3, 2.0**x), ROWS),
    "compare": (
        lambda x, y: (torch.where(x > y, x, y), (x >= 0).float(), (x != y).int(),
                      x.masked_fill(x < y, -1.0), (x < 1) & (y > 0), ~(x <= y)),
        ROWS, ROWS,
    ),
    "extremes": (lambda x, y: torch.maximum(x, y) - torch.minimum(x, y) + torch.max(x, y),
                 ROWS, ROWS),
    "products": (
        lambda x, y: (x @ y, torch.bmm(x, y), x[0] @ y[1], x[0, 0] @ y[0],
                      torch.einsum("bij,bjk->bki", x, y), torch.addmm(x[0, :, :3], x[0], y[0])),
        (2, 3, 5), (2, 5, 3),
    ),
    "cut": (
        lambda x: (*x.split(3, 2), *x.split([1, 3], 1), *x.chunk(3, 3), x[:, 1:3], x[..., ::2],
                   x[0, -1], x[:, :, None, 2], x.narrow(3, 2, 4), *x[0, 0, :2].unbind(0),
                   x.select(1, -2), x.flip(2), x[:, -3:-1]),
        IMAGE,
    ),
    "join": (lambda x, y: (torch.cat((x, y, x), 1), torch.stack((x, y), -1)), ROWS, ROWS),
    "shapes": (
        lambda x: (x.reshape(6, -1), x.view(-1), x.flatten(2), x.permute(0, 2, 3, 1), x.squeeze(0),
                   x.transpose(1, -1), x.unsqueeze(-1), x.squeeze(), x[0, 0].t(),
                   x.expand(3, -1, -1, -1), x.repeat(2, 1, 1, 2), x.movedim(1, -1)),
        IMAGE,
    ),
    "pads": (
        lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, 2, 0, 3), value=0.5),
                   F.pad(x, (1, 2, 0, 3), "reflect"), F.pad(x, (1, 1, 1, 1), "circular")),
        IMAGE,
    ),
    "in-place": (lambda x: _in_place(x.clone()), ROWS),
    "types": (lambda x: ((x.double() * 3).float(), x.int() + 1, x.long().float(), x.contiguous()),
              ROWS),
}  # fmt: skip


def _in_place(x):
    x += 1
    x.mul_(2).relu_()
    return x


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name):
    function, *shapes = FUNCTIONS[name]
    check(Function(function), *shapes)


def test_embedding_and_indices():
    indices = torch.tensor([[0, 3, 2]])
    check(nn.Embedding(5, 4), indices)
    check(Function(lambda x, i: x.index_select(1, i)), ROWS, torch.tensor([4, 0]))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name not in ("cnn", "smooth", "vit") else name
        for name in ARCHITECTURES
        if name not in LANGUAGE_MODELS
    ],
)
def test_architecture(name):
    module = build(name, (3, 16, 16), 10)
    initialise(module, 1)
    graph = check(module, (2, 3, 16, 16))
    assert [graph.values[graph.inputs[0]].shape] == [(2, 3, 16, 16)]
    parameters = {name for name, _ in module.named_parameters()}
    assert parameters & set(graph.constants)


def test_names_and_restored_modes():
    module = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5)).train()
    module[1].eval()
    graph = import_module(module, (torch.zeros(3, 5),))
    assert module.training
    assert not module[1].training
    assert graph.inputs == ("input",)
    assert graph.name == "Sequential"
    assert [node.name for node in graph.nodes] == ["0.linear"]
    assert set(graph.constants) == {"0.weight", "0.bias"}


def message(error, module, *inputs):
    with pytest.raises(error) as caught:
        import_module(module, inputs)
    return str(caught.value)


def test_all_unsupported_operators_in_one_error():
    class Inner(nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Inner(), Inner()

        def forward(self, x):
            return torch.special.airy_ai(self.second(self.first(x)))

    assert message(UnsupportedError, Outer(), torch.zeros(2)) == (
        "Outer: expected ATen operators that graphs have, found aten.special_bessel_j0.default in "
        "first, second; aten.special_airy_ai.default in the module itself; "
        "replace these modules or functions"
    )


def test_what_a_call_makes_is_bounded():
    class Count(nn.Module):
        def forward(self, x):
            return x + torch.arange(2**25)[:1]

    text = message(UnsupportedError, Count(), torch.zeros(1))
    assert text.endswith("found 33554432; replace it in the module")
    assert "expected at most 4096 windows of several sizes, found 4897" in message(
        UnsupportedError, nn.AdaptiveAvgPool2d((83, 59)), torch.zeros(1, 1, 7, 7)
    )


def test_what_cannot_be_imported():
    assert "aten._native_batch_norm_legit.no_stats in the module itself" in message(
        UnsupportedError, nn.BatchNorm2d(2, track_running_stats=False), torch.zeros(1, 2, 3, 3)
    )
    assert message(InputError, nn.Linear(5, 4), torch.zeros(2, 3)).startswith(
        "Linear: expected example inputs that the module takes, found [2, 3] (RuntimeError: "
    )
    with pytest.raises(InputError, match="expected a tuple of tensors as example inputs"):
        import_module(nn.ReLU(), torch.zeros(2))
    branch = Function(lambda x: x + 1 if x.sum() > 0 else x)
    assert "expected a module that torch.export can trace" in message(
        UnsupportedError, branch, torch.zeros(2)
    )
    assert "found torch.bfloat16" in message(
        UnsupportedError, nn.ReLU(), torch.zeros(2, dtype=torch.bfloat16)
    )

    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count += 1
            return x + self.count

    assert message(UnsupportedError, Counter(), torch.zeros(1)) == (
        "Counter: expected a module that keeps its buffers, found changes of count; "
        "import it in a form without state"
    )


def test_a_tensor_that_is_the_example_of_two_inputs():
    """torch.export takes one for the other: the graph was that of y - 2 y."""
    given = torch.zeros(3)
    graph = import_module(Function(lambda x, y: x - 2 * y), (given, given))
    x, y = np.float32([1, 2, 3]), np.float32([5, 7, 9])
    assert interpreter.run(graph, [x, y])[0].tolist() == [-9, -12, -15]
