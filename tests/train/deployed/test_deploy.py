"""Deployed arithmetic against its plain-integer restatement: the same bits."""

import itertools
from fractions import Fraction

import pytest
import torch
from torch import nn

from compare import assert_same
from deploy_nets import (
    FUNCTIONS,
    NETS,
    PARAMETERS,
    Concat,
    Sum,
    make_images,
    make_net,
    plain,
    reference,
    shifted,
    table_codes,
)
from samebits.errors import CheckpointError, NonFiniteError, UnsupportedError
from samebits.ir.interpreter import run as interpret
from samebits.ir.lowering.lower import lower_graph
from samebits.kernels import Window
from samebits.kernels.averages import adaptive_averages, window_averages
from samebits.spec import formats
from samebits.spec.training import deploy as reference_deploy
from samebits.spec.training import pooling
from samebits.spec.training.layers import Array
from samebits.spec.training.step import Node
from samebits.train import BFPTensor, convert
from samebits.train.deployed import deploy, operations
from samebits.train.deployed.deploy import Exponents, FrozenSite, calibrate, deployed
from samebits.train.deployed.export import to_graph
from samebits.train.deployed.weights import frozen_sums, frozen_weights
from samebits.train.operations import resampling
from samebits.train.operations.normalization import BATCH_NORM
from samebits.train.value import BFPValue


@pytest.mark.parametrize("rows", ["tensor", "row"])
@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4, 5))]
)
@pytest.mark.parametrize("name", NETS)
def test_equals_the_reference(realisation, name, seed, rows):
    nodes, model = make_net(name, seed, rows)
    exponents = calibrate(model, [make_images(4, 10), make_images(3, 11)])
    images = make_images(2, 12, scale=2.0)  # some codes saturate
    for used in (exponents, shifted(exponents, seed)):
        codes, exponent = deployed(model, used).codes(images)
        expected = reference(nodes, model, images, used)
        assert exponent == expected.exponent
        assert codes.dtype == (torch.int32 if expected.bits == 32 else torch.int8)
        assert_same(codes, expected.codes, range(codes.numel()))


@pytest.mark.parametrize("rows", ["tensor", "row"])
def test_saturates_at_minus_128(realisation, rows):
    nodes, model = make_net("image", 1, rows)
    exponents = calibrate(model, [make_images(4, 10)])
    low = Exponents(tuple(FrozenSite(s.name, s.exponent - 9) for s in exponents.sites))
    images = make_images(2, 12, scale=4.0)
    steps = []
    deploy.run(deployed(model, low), images, steps.append)
    assert min(int(s.output.codes.min()) for s in steps if s.output.bits == 8) == -128
    codes, _ = deployed(model, low).codes(images)
    assert_same(codes, reference(nodes, model, images, low).codes, range(codes.numel()))


@pytest.mark.parametrize("rows", ["tensor", "row"])
@pytest.mark.parametrize("name", NETS)
def test_logits_do_not_depend_on_the_batch(realisation, name, rows):
    _, model = make_net(name, 3, rows)
    model = deployed(model, calibrate(model, [make_images(5, 10)]))
    images = make_images(7, 20, scale=3.0)
    codes, exponent = model.codes(images)
    for i, j in itertools.combinations(range(8), 2):
        part, same = model.codes(images[i:j])
        assert same == exponent
        assert torch.equal(part, codes[i:j])
    assert torch.equal(model.logits(images), codes.double() * 2.0**exponent)


@pytest.mark.parametrize(
    "exponents", [(0, 0), (-3, 5), (6, -4), (39, 0), (0, 40), (41, 0), (-60, 60)]
)
def test_add_is_exact(exponents):
    every = torch.arange(-128, 128, dtype=torch.int8)
    some = torch.tensor([-128, -127, -64, -3, -1, 0, 1, 2, 127], dtype=torch.int8)
    u = torch.cat([every.repeat_interleave(9), some.repeat_interleave(256)])
    v = torch.cat([some.repeat(256), every.repeat(9)])
    e_u, e_v = exponents
    for site in {max(exponents), max(exponents) + 1, max(exponents) + 4, min(exponents) - 2, 0}:
        if abs(site) > 60:
            continue
        codes, out = operations.add(site, BFPTensor(u, e_u), BFPTensor(v, e_v))
        expected = [
            reference_deploy.sat8(
                (a * formats.power(e_u) + b * formats.power(e_v)) / formats.power(site)
            )
            for a, b in zip(u.tolist(), v.tolist(), strict=True)
        ]
        assert out == site
        assert_same(codes, expected, list(zip(u.tolist(), v.tolist(), strict=True)))


@pytest.mark.parametrize("site", [-60, -40, -8, -3, 0, 1, 2, 5, 60])
@pytest.mark.parametrize("window", [(1, 1), (1, 3), (2, 2), (7, 7)])
def test_average_is_exact(site, window):
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(-128, 128, (4, 3, 7, 7), generator=generator, dtype=torch.int8)
    codes[0], codes[1] = 127, -128
    pool = window_averages(Window(window, window, (0, 0)), 7, 7)
    for exponent in (-60, -5, 0, 3, 60):
        out, _ = operations.average_pool(site, BFPTensor(codes, exponent), pool)
        sums = codes.long().unfold(2, window[0], window[0]).unfold(3, window[1], window[1])
        unit = formats.power(exponent - site) / (window[0] * window[1])
        sums = sums.sum((-1, -2)).flatten().tolist()
        assert_same(out, [reference_deploy.sat8(s * unit) for s in sums], sums)


@pytest.mark.parametrize("site", [-60, -8, -3, 0, 2, 60])
@pytest.mark.parametrize("size", [(2, 3), (4, 4), (8, 10)])
def test_adaptive_average_is_exact(site, size):
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(-128, 128, (4, 3, 5, 7), generator=generator, dtype=torch.int8)
    codes[0], codes[1] = 127, -128
    shape, members, divisors = pooling.adaptive_windows(tuple(codes.shape), size)
    flat = codes.flatten().tolist()
    means = [Fraction(sum(flat[i] for i in m), d) for m, d in zip(members, divisors, strict=True)]
    for exponent in (-60, -5, 0, 3, 60):
        x, pool = BFPTensor(codes, exponent), adaptive_averages(5, 7, *size)
        out, _ = operations.average_pool(site, x, pool)
        assert tuple(out.shape) == shape
        unit = formats.power(exponent - site)
        assert_same(out, [reference_deploy.sat8(mean * unit) for mean in means], means)


@pytest.mark.parametrize("site", [-60, -8, -3, 0, 2, 60])
@pytest.mark.parametrize(
    ("size", "corners"),
    [
        *(((7, 2), corners) for corners in (False, True)),
        ((2048, 3), False),
        pytest.param((2048, 3), True, marks=pytest.mark.slow),
    ],
)
def test_linear_upsampling_is_exact(site, size, corners):
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(-128, 128, (3, 1, 3, 4), generator=generator, dtype=torch.int8)
    codes[0], codes[1] = 127, -128
    down, across = (resampling.line(n, m, corners) for n, m in zip((3, 4), size, strict=True))
    for exponent in (-60, -5, 0, 3, 60):
        out, _ = operations.interpolated(site, BFPValue(codes, exponent), down, across)
        x = Array(codes.flatten().tolist(), (3, 1, 3, 4), exponent, 8)
        sums, _, whole, _ = pooling.weighted_sums(x, size, corners)
        unit = formats.power(exponent - site) / whole
        assert_same(out, [reference_deploy.sat8(s * unit) for s in sums], sums)


@pytest.mark.parametrize(("kernel", "divisor"), [((4096, 2049), None), ((1, 1), (1 << 23) + 1)])
def test_averages_over_too_many(kernel, divisor):
    x = BFPTensor(torch.zeros(1, 1, *kernel, dtype=torch.int8), 0)
    pool = window_averages(Window(kernel, kernel, (0, 0)), *kernel, True, divisor)
    with pytest.raises(UnsupportedError, match=r"at most 8388608 positions, and .*, found \d{7}"):
        operations.average_pool(0, x, pool)


def test_input_rounds_ties_to_even_and_saturates():
    reals = [0.5, 1.5, -0.5, -2.5, 126.5, 127.5, 1e30, -128.5, -129.0, 2.0**-140, -0.49999997]
    x = deploy.quantize_input(torch.tensor([reals]) * 0.25, -2)
    assert x.codes.tolist() == [[0, 2, 0, -2, 126, 127, 127, -128, -128, 0, 0]]
    with pytest.raises(NonFiniteError, match="tensor 'input': expected finite values, found nan"):
        deploy.quantize_input(torch.tensor([1.0, float("nan")]), 0)


# --- calibration --------------------------------------------------------------------------------


def linear(*rows):
    layer = nn.Linear(len(rows[0]), len(rows), bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows))
    return layer


def exponents_of(model, *batches):
    return [(site.name, site.exponent) for site in calibrate(model, batches).sites]


@pytest.mark.parametrize("large", [0, 1, 2, 3])
@pytest.mark.parametrize("rows", ["tensor", "row"])
def test_the_exponent_of_nine_tenths_of_the_samples_is_frozen(rows, large):
    """Of 20 samples two of the largest may saturate, and no third."""
    layers = linear([1.0, 0.0]), nn.ReLU(), linear([1.0])
    model = convert(nn.Sequential(*layers), exponents=rows)
    samples = torch.tensor([[1.0, 0.0]]).repeat(20, 1)
    samples[torch.randperm(20, generator=torch.Generator().manual_seed(large))[:large]] *= 100
    exponent = 0 if large > 2 else -6
    expected = [("input", exponent), ("0 (Linear)", exponent)]
    assert exponents_of(model, *samples.split(1)) == expected
    found = calibrate(model, samples.split(1))
    above, spread = (0 if large > 2 else large), (6 if large else 0)
    assert found.samples == 20
    assert [(site.above, site.spread) for site in found.sites] == [(above, spread)] * 2
    assert exponents_of(model, samples) == [(name, 0 if large else -6) for name, _ in expected]


def test_zeros_do_not_count():
    model = convert(nn.Sequential(linear([0.0, 1.0]), nn.ReLU(), linear([1.0])))
    zero, one = torch.tensor([[200.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    assert exponents_of(model, zero, one) == [("input", 1), ("0 (Linear)", -6)]
    assert exponents_of(model, zero) == [("input", 1), ("0 (Linear)", -7)]
    assert exponents_of(model, 0 * zero) == [("input", -7), ("0 (Linear)", -7)]


def test_sites_are_named_by_path():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))

        def forward(self, x):
            return torch.cat([self.body(x) + x, x], 1)

    model = convert(nn.Sequential(Block(), nn.Flatten(), nn.Linear(4, 2)))
    names = [name for name, _ in exponents_of(model, torch.ones(1, 2, 1, 1))]
    assert names == [
        *("input", "0.body.0 (Conv2d) and 0.body.1 (BatchNorm)", "0 (add)", "0 (concat)"),
    ]


class Together(nn.Module):
    """A convolution, a batch norm, and others that take the sums, too, or not."""

    def __init__(self, others):
        super().__init__()
        self.others = others
        self.conv, self.norm, self.head = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1)

    def forward(self, x):
        sums = self.conv(x)
        if self.others == "another way":
            return self.head(self.norm(sums.transpose(2, 3)))
        y = self.norm(sums)
        if self.others == "a layer":
            y = y + self.head(sums)
        if self.others == "a copy":
            y = y + self.head(sums.detach())
        if self.others == "a ReLU":
            y = y + sums.relu()
        if self.others == "moved":
            y = y + sums.flatten(1).unflatten(1, (2, 2, 2))
        return self.head(y)


@pytest.mark.parametrize(
    ("others", "joined"),
    [
        ("none", True),
        *((other, False) for other in ("a layer", "a copy", "a ReLU", "moved", "another way")),
    ],
)
def test_batch_norm_is_part_of_sums_that_it_alone_takes(others, joined):
    torch.manual_seed(4)
    model = convert(Together(others))
    images = torch.randn(2, 2, 2, 2)
    exponents = calibrate(model, images.split(1))
    names = [site.name for site in exponents.sites]
    assert ("conv (Conv2d) and norm (BatchNorm)" in names) is joined
    assert ("norm (BatchNorm)" in names) is not joined
    codes, _ = deployed(model, exponents).codes(images)
    graph = lower_graph(to_graph(model, exponents, (2, 2, 2), batch=2))
    inputs = deploy.quantize_input(images, exponents.sites[0].exponent).codes
    assert_same(interpret(graph, [inputs.numpy()])[0], codes, range(codes.numel()))


class Branches(nn.Module):
    """Two products before their batch norms, one of which may serve another value in between."""

    def __init__(self, serves):
        super().__init__()
        self.serves = serves
        self.a, self.b = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)
        self.of_a, self.of_b = nn.BatchNorm2d(2), nn.BatchNorm2d(2)
        self.head = nn.Conv2d(2, 2, 1)

    def forward(self, x):
        a, b = self.a(x), self.b(x)
        other = self.of_b(x) if self.serves else x
        return self.head(self.of_a(a) + self.of_b(b) + other)


@pytest.mark.parametrize("serves", [False, True])
def test_batch_norms_are_told_apart_by_what_they_take(serves):
    torch.manual_seed(5)
    model = convert(Branches(serves))
    images = torch.randn(2, 2, 2, 2)
    exponents = calibrate(model, images.split(1))
    assert [site.name for site in exponents.sites[: 3 + serves]] == [
        *("input", "a (Conv2d) and of_a (BatchNorm)", "b (Conv2d) and of_b (BatchNorm)"),
        *["of_b (BatchNorm)"] * serves,
    ]
    steps = []
    x, y = deploy.run(deployed(model, exponents), images, steps.append)
    apart = [step for step in steps if step.operation is BATCH_NORM]
    assert [step.arguments[0] is x for step in apart] == [True] * serves
    codes = y.codes
    graph = lower_graph(to_graph(model, exponents, (2, 2, 2), batch=2))
    inputs = deploy.quantize_input(images, exponents.sites[0].exponent).codes
    assert_same(interpret(graph, [inputs.numpy()])[0], codes, range(codes.numel()))


def test_a_joined_site_of_another_model_is_refused():
    model = convert(nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.ReLU()))
    images = torch.ones(1, 2, 1, 1)
    good = calibrate(model, [images])
    for name in ("0 (Conv2d) and 2 (BatchNorm)", "0 (Conv2d) and 7 (BatchNorm)", "0 (Conv2d) and"):
        sites = (good.sites[0], FrozenSite(name, 0))
        with pytest.raises(CheckpointError, match="belong to another model"):
            deployed(model, Exponents(sites)).codes(images)


def normed(scale, shift, weights=((1, 2), (3, -4)), bias=None, seed=0):
    """A Linear and a batch norm with this scale and shift of its two outputs, deployed."""
    layer, norm = linear(*weights), nn.BatchNorm1d(2, eps=1e-6)
    if bias is not None:
        layer.bias = nn.Parameter(torch.tensor(bias))
    with torch.no_grad():
        norm.weight.copy_(torch.tensor(scale))
        norm.bias.copy_(torch.tensor(shift))
    return convert(nn.Sequential(layer, norm, linear([1.0, 0.0], [0.0, 1.0])))


@pytest.mark.parametrize(
    ("scale", "shift"),
    [
        ([1.0, -0.5], [0.0, 0.25]),  # a sign
        ([0.0, 1.0], [0.5, 0.0]),  # no weights
        ([2.0**-22, 1.0], [1.0, -1.0]),  # a bias that 32 bits hold on a coarser grid alone
    ],
)
def test_scales_of_either_sign_and_none(scale, shift):
    nodes = [
        Node("x", "input"),
        Node("0", "linear", ("x",)),
        Node("1", "batch_norm", ("0",), {"eps": 1e-6}),
        Node("2", "linear", ("1",)),
    ]
    model = normed(scale, shift, bias=[0.5, -0.25])
    images = torch.randn(8, 2, generator=torch.Generator().manual_seed(1))
    exponents = calibrate(model, images.split(1))
    codes, _ = deployed(model, exponents).codes(images)
    assert_same(codes, reference(nodes, model, images, exponents).codes, range(codes.numel()))
    graph = lower_graph(to_graph(model, exponents, (2,), batch=8))
    inputs = deploy.quantize_input(images, exponents.sites[0].exponent).codes
    assert_same(interpret(graph, [inputs.numpy()])[0], codes, range(codes.numel()))


@pytest.mark.parametrize("read", [False, True])
def test_sums_that_the_model_reads_are_rounded_where_they_are_taken(read):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = linear([1.0, 0.0]), linear([1.0])

        def forward(self, x):
            y = self.first(x)
            if read:
                assert y.dequantize().tolist() == [[1.0]]
            return self.second(torch.relu(y))

    found = exponents_of(convert(Reader()), torch.tensor([[1.0, 0.0]]))
    assert found == [("input", -6), ("narrow" if read else "first (Linear)", -6)]


@pytest.mark.parametrize("value", [2.0**80, 2.0**-80])
def test_exponents_out_of_range_name_their_site(value):
    model = convert(nn.Sequential(linear([value]), nn.ReLU(), linear([1.0])))
    with pytest.raises(UnsupportedError) as caught:
        calibrate(model, [torch.ones(1, 1)])
    assert str(caught.value).startswith(
        "0 (Linear): expected a frozen exponent in [-60, 60], found"
    )


def test_forward_must_not_depend_on_the_data():
    class Moody(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x + x if self.calls == 2 else x

    with pytest.raises(UnsupportedError, match="the same operations for every batch, found 2 "):
        calibrate(convert(Moody()), [torch.ones(1, 2)] * 2)
    with pytest.raises(ValueError, match="at least one batch"):
        calibrate(convert(Moody()), [])


def test_bias_beyond_32_bits_is_refused():
    layer = nn.Linear(1, 1)
    with torch.no_grad():
        layer.weight.fill_(2.0**-20)
        layer.bias.fill_(2.0**12)
    model = convert(nn.Sequential(layer, nn.ReLU(), linear([1.0])))
    exponents = calibrate(model, [torch.ones(1, 1) * 2.0**-3])
    with pytest.raises(
        UnsupportedError, match=r"layer '0' \(Linear\): expected sums that fit 32 b"
    ):
        deployed(model, exponents).codes(torch.ones(1, 1))


def test_exponents_of_another_model_are_refused():
    _, model = make_net("vector", 0)
    sites = calibrate(model, [make_images(2, 1)]).sites
    for wrong, text in (
        (sites[:-1], "expected one for 'out (Linear)', found no more"),
        ((*sites, FrozenSite("more", 0)), "found one for 'more', which it does not run"),
        ((FrozenSite("other", 0), *sites[1:]), "expected one for 'input', found 'other'"),
    ):
        with pytest.raises(CheckpointError) as caught:
            deployed(model, Exponents(wrong)).codes(make_images(1, 1))
        assert text in str(caught.value)


def test_exponents_are_json_and_not_trusted():
    exponents = Exponents((FrozenSite("input", -7), FrozenSite("0 (Linear)", 60, 2, 4)), 20)
    assert exponents.to_dict() == {
        "sites": [["input", -7, 0, 0], ["0 (Linear)", 60, 2, 4]],
        "samples": 20,
    }
    assert exponents.spread == 2
    assert Exponents.from_dict(exponents.to_dict(), "x") == exponents
    for record in (
        None,
        [],
        {},
        {"sites": []},
        *({"sites": [], "samples": samples} for samples in (-1, 1.0, True, None)),
        *(
            {"sites": sites, "samples": 4}
            for sites in (
                {"input": 1},
                [["input", 61, 0, 0]],
                [["input", True, 0, 0]],
                [["input", 1.0, 0, 0]],
                [[1, 1, 0, 0]],
                [["input", 1]],
                [["input", 1, 5, 0]],
                [["input", 1, -1, 0]],
                [["input", 1, 0, -1]],
                [["input", 1, 0, 1 << 17]],
                ["abcd"],
                [["n" * 1001, 1, 0, 0]],
            )
        ),
    ):
        with pytest.raises(CheckpointError, match=r"^here: damaged: expected a"):
            Exponents.from_dict(record, "here")


def test_training_is_not_touched():
    _, model = make_net("image", 5)
    model.eval()
    images = make_images(3, 1)
    before = model(BFPTensor.from_real(images)).resolved()
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    exponents = calibrate(model, [images])
    with pytest.raises(NonFiniteError):
        deployed(model, exponents).codes(images / 0)
    after = model(BFPTensor.from_real(images)).resolved()
    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]


def test_a_sum_of_modules_and_a_shared_layer():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.sum, self.join = nn.Tanh(), Sum(), Concat()

        def forward(self, x):
            y = self.layer(x)
            y += self.layer(y)
            return self.join(y, self.sum(x, y))

    model = convert(Twice())
    images = torch.linspace(-1, 1, 40).view(4, 10)
    names = [site.name for site in calibrate(model, [images]).sites]
    assert names == [
        *("input", "layer (Activation)", "layer (Activation)", "add", "sum (add)", "join (concat)"),
    ]
    x = deployed(model, calibrate(model, [images])).logits(images)[:, :10]
    assert float((x - 2 * torch.tanh(images)).abs().max()) < 0.3


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("e_x", [-60, -9, -5, 0, 3, 60])
def test_activation_tables(name, e_x):
    for site in {-60, -8, -7, e_x, max(e_x - 2, -60), 60}:
        codes = operations.activation_codes(name, PARAMETERS.get(name), e_x, site)
        assert_same(codes, table_codes(name, e_x, site), range(-128, 128))


# --- sums of rows with exponents of their own, without a site -------------------------------------


def rows_apart(*sizes, bias=None):
    """A Linear of four inputs whose rows are the same numbers at these sizes."""
    layer = nn.Linear(4, len(sizes), bias=bias is not None)
    with torch.no_grad():
        row = torch.tensor([127.0, -93.0, 3.0, 1.0]) / 128
        layer.weight.copy_(torch.stack([row * 2.0**size for size in sizes]))
        if bias is not None:
            layer.bias.copy_(torch.tensor(bias))
    return convert(nn.Sequential(layer), exponents="row").eval()


@pytest.mark.parametrize(
    ("sizes", "bias", "exponents", "weights"),
    [
        ((0, -3, 5), None, [-14, -17, -9], [[127, -93, 3, 1]] * 3),  # every row as it is
        # 224 * 128 * 2**16 is below 2**31, 2**17 times 224 * 128 is not
        ((0, -16), None, [-14, -30], [[127, -93, 3, 1]] * 2),
        ((0, -17), None, [-14, -30], [[127, -93, 3, 1], [64, -46, 2, 0]]),
        ((0, -60), None, [-14, -30], [[127, -93, 3, 1], [0, 0, 0, 0]]),
        ((-60, 0, -16), None, [-30, -14, -30], [[0, 0, 0, 0], *[[127, -93, 3, 1]] * 2]),
        ((0, -16), [9.0, 0.0], [-14, -27], [[127, -93, 3, 1], [16, -12, 0, 0]]),
    ],
)
def test_sums_of_several_exponents_have_one(realisation, sizes, bias, exponents, weights):
    model = rows_apart(*sizes, bias=bias)
    frozen = Exponents((FrozenSite("input", -7),))
    (layer,) = model.children()
    x = BFPTensor(torch.tensor([[-128] * 4, [127] * 4, [-128, 127, 0, 5]], dtype=torch.int8), -7)
    found = frozen_sums(x.value, layer.weight.value, None if bias is None else layer.bias.value)
    assert (found.exponents, found.codes.tolist()) == (exponents, weights)
    codes, exponent = deployed(model, frozen).codes(x.dequantize())
    array = Array(x.codes.flatten().tolist(), (3, 4), -7, 8)
    offsets = None if bias is None else plain(layer.bias)
    expected = reference_deploy.products(array, plain(layer.weight), offsets, None, None)
    assert (codes.dtype, exponent, expected.exponent) == (torch.int32, min(exponents), exponent)
    assert_same(codes, expected.codes, range(codes.numel()))
    graph = to_graph(model, frozen, (4,), batch=3)
    (out,) = interpret(graph, [x.dequantize().float().numpy()], exact=True)
    values = [code * formats.power(exponent) for code in expected.codes]
    assert_same(out, values, range(len(values)))
    (out,) = interpret(lower_graph(graph), [x.codes.numpy()])
    assert out.dtype == "int32"
    assert_same(out, expected.codes, range(codes.numel()))


@pytest.mark.parametrize(
    ("sizes", "bias", "exponents", "weights"),
    [
        ((0, -25), [0.5, 0.75], [-14, -31], [[127, -93, 3, 1], [0, 0, 0, 0]]),
        ((0, -16, 0), [0.0, -7.0, 0.0], [-14, -28, -14], [[127, -93, 3, 1], [32, -23, 1, 0], 0]),
        ((0, -16), [0.0, 1.0], [-14, -30], [[127, -93, 3, 1]] * 2),
    ],
)
def test_channels_too_fine_for_their_bias_are_raised(realisation, sizes, bias, exponents, weights):
    model = nn.Sequential(rows_apart(*sizes, bias=bias), convert(nn.Sequential(nn.ReLU())))
    frozen = Exponents((FrozenSite("input", -7), FrozenSite("0.0 (Linear)", -3)))
    layer = model[0][0]
    x = BFPTensor(torch.tensor([[-128] * 4, [127] * 4, [-128, 127, 0, 5]], dtype=torch.int8), -7)
    found = frozen_weights(x.value, layer.weight.value, None if bias is None else layer.bias.value)
    weights = [row or weights[0] for row in weights]
    assert (found.exponents, found.codes.tolist()) == (exponents, weights)
    codes, exponent = deployed(model, frozen).codes(x.dequantize())
    array = Array(x.codes.flatten().tolist(), (3, 4), -7, 8)
    sums = reference_deploy.products(array, plain(layer.weight), plain(layer.bias), None, -3)
    assert exponent == -3
    assert_same(codes, [max(code, 0) for code in sums.codes], range(codes.numel()))
    graph = to_graph(model, frozen, (4,), batch=3)
    (out,) = interpret(lower_graph(graph), [x.codes.numpy()])
    assert_same(out, codes, range(codes.numel()))


def test_sums_that_fit_at_no_exponent_are_refused():
    model = rows_apart(-20, -25, bias=[2.0**12, 0.0])
    with pytest.raises(
        UnsupportedError, match=r"layer '0' \(Linear\): expected sums that fit 32 b"
    ):
        deployed(model, Exponents((FrozenSite("input", -7),))).codes(torch.ones(1, 4))


def test_rows_of_zeros_do_not_count():
    model = convert(nn.Sequential(linear([0.0, 1.0]), nn.ReLU(), linear([1.0])), exponents="row")
    batch = torch.tensor([[200.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    assert exponents_of(model, batch) == [("input", 1), ("0 (Linear)", -6)]
    assert exponents_of(model, batch[:1]) == [("input", 1), ("0 (Linear)", -7)]


class Both(nn.Module):
    """Exact sums that a ReLU takes, and a batch norm."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.ReLU()

    def forward(self, x):
        y = self.conv(x)
        return self.relu(y) + self.norm(y)


def test_what_a_batch_norm_takes_counts_beside_a_relu():
    """Negative sums are far larger than those that the ReLU lets through."""
    net = Both()
    with torch.no_grad():
        net.conv.weight.mul_(0.1)
        net.conv.bias.copy_(torch.tensor([0.3, -20.0, -20.0]))
        net.norm.running_mean.fill_(-20.0)
    model, images = convert(net), make_images(4, 3)
    exponents = calibrate(model, images.split(1))
    (site,) = (site for site in exponents.sites if site.name == "conv (Conv2d)")
    assert site.exponent == -2  # of -20.2 to 0.4; the clamped sums alone have -9
