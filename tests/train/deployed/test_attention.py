"""Deployed norms, products of activations and softmax against the plain integers: the same bits."""

import functools
import math
import random

import mpmath
import pytest
import torch
from torch import nn
from torch.nn import functional

from compare import assert_same
from deploy_nets import assert_exported, plain, shifted, spread_rows, table
from samebits.errors import UnsupportedError
from samebits.model import Model
from samebits.spec import formats
from samebits.spec.training import deploy
from samebits.spec.training import deploy_attention as reference
from samebits.spec.training.layers import Array
from samebits.spec.training.step import Node
from samebits.train import convert
from samebits.train.architectures import build, gpt, initialise
from samebits.train.deployed import attention
from samebits.train.deployed.deploy import calibrate, deployed
from samebits.train.deployed.export import to_graph
from samebits.train.operations.attention import attention as attended
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.verification.backends.reference import Reference
from samebits.verification.compare import compare
from samebits.verification.deployable import deployable
from samebits.verification.inputs import random_codes
from samebits.verification.registry import backend_named
from samebits.verification.run import cause


class Powers:
    """rne(2**24 * exp(-d * 2**e)), one at a time, from 200 bits: none lies closer to a tie."""

    def __init__(self, exponent, entries):
        self.exponent, self.entries = exponent, entries

    @functools.cache  # noqa: B019  # of one test
    def __getitem__(self, d):
        assert 0 <= d < self.entries
        with mpmath.workprec(200):
            return int(mpmath.nint(mpmath.ldexp(mpmath.exp(-mpmath.ldexp(d, self.exponent)), 24)))


def array(x):
    """A BFP tensor with one exponent as the plain integers have it."""
    codes, exponent = x.whole()
    bits = 8 if x.bits <= 8 else 16 if x.bits == 16 else 32
    return Array(codes.flatten().tolist(), tuple(x.shape), exponent, bits)


def codes(rng, *shape, low=-128, high=127):
    numbers = [rng.choice((low, high, rng.randint(low, high))) for _ in range(math.prod(shape))]
    return torch.tensor(numbers).view(shape)


def parameter(rng, *shape, by_rows=False):
    value = torch.tensor([rng.gauss(0, 2.0 ** rng.randint(-6, 3)) for _ in range(math.prod(shape))])
    value = value.view(shape)
    return BFPParameter.from_real(spread_rows(value, rng) if by_rows else value, by_rows=by_rows)


# --- norms ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_norms(seed):
    rng = random.Random(seed)
    groups = rng.choice((None, None, 1, 2, 4))
    shape = (3, 4) if rng.random() < 0.3 else (2, 4, 3, 2) if groups else (2, 3, 4)
    x = BFPTensor(codes(rng, *shape).to(torch.int8), rng.randint(-20, 4))
    if rng.random() < 0.1:
        x = BFPTensor(torch.full(shape, rng.randint(-1, 1), dtype=torch.int8), x.exponent)
    gamma, beta = (parameter(rng, 4) if rng.random() < 0.8 else None for _ in range(2))
    centred = groups is not None or rng.random() < 0.7
    eps, site = 10.0 ** rng.randint(-12, 0), rng.randint(-9, 0)
    y, out = attention.layer_norm(site, x, gamma, beta, eps, centred, groups, None)
    own = [None if p is None else plain(p) for p in (gamma, beta)]
    expected = reference.layer_norm(array(x), *own, eps, site, centred, groups)
    assert out == site
    assert y.dtype == torch.int8
    assert_same(y, expected.codes, range(y.numel()))


def test_eps_is_a_binary32_number_and_has_a_bound():
    x = BFPTensor(torch.tensor([[1, 2, 3]], dtype=torch.int8), -60)
    with pytest.raises(UnsupportedError, match=r"epsilon below 2\*\*61"):
        attention.layer_norm(0, x, None, None, 1e-5, True, None, None)
    with pytest.raises(OverflowError, match="eps that fits"):
        reference.layer_norm(array(x), None, None, 1e-5, 0)
    one = BFPTensor(torch.tensor([[0, 0, 1]], dtype=torch.int8), -24)
    y, _ = attention.layer_norm(-8, one, None, None, 1 / 3, True, None, None)
    assert_same(y, reference.layer_norm(array(one), None, None, 1 / 3, -8).codes, range(3))


# --- exact values -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_products_sums_and_roundings(seed):
    rng = random.Random(seed)
    k, transposed = rng.randint(1, 5), rng.random() < 0.5
    a = BFPTensor(codes(rng, 2, 3, k).to(torch.int8), rng.randint(-9, 3))
    if rng.random() < 0.5:
        a = BFPTensor(codes(rng, 2, 3, k, low=0, high=65535).int(), -16, bits=16)
    b = BFPTensor(codes(rng, *((2, 4, k) if transposed else (2, k, 4))).to(torch.int8), -5)
    y = attention.product(None, a, b, transposed)
    expected = reference.matmul(array(a), array(b), transposed)
    assert_same(y.codes, expected.codes, range(24))
    assert y.exponent == expected.exponent
    assert max(map(abs, expected.codes)) < 2 ** (y.bits - 1)
    y, expected = attention.scaled(None, y, -0.3), reference.scaled(expected, -0.3)
    assert_same(y.codes, expected.codes, range(24))
    term = BFPTensor(codes(rng, 2, 3, 4).to(torch.int8), rng.randint(-20, 3))
    constant = BFPTensor.from_real(torch.linspace(-9, 9, 24).view(2, 3, 4), bits=32)
    y = attention.added(None, attention.added(None, term, y), constant)
    expected = reference.added(array(term), expected)
    expected = reference.added(expected, reference.constant16(array(constant)))
    assert (y.exponent, y.codes.flatten().tolist()) == (expected.exponent, expected.codes)
    site = expected.exponent + rng.randint(5, 30)
    scores = attention.narrow16(site, y)
    assert scores.codes.dtype == torch.int16
    assert_same(scores.codes, reference.narrow(expected, site, 16).codes, range(24))


def test_a_constant_of_zeros_adds_nothing():
    y = attention.exact(torch.tensor([5]), -3, 9)
    zero = BFPTensor.from_real(torch.zeros(1), bits=32)
    found = attention.added(None, y, zero)
    assert (found.codes.item(), found.exponent) == (5, -3)


def test_terms_too_far_apart_are_refused():
    one = attention.exact(torch.tensor([1]), -60, 20)
    with pytest.raises(UnsupportedError, match="at most 53 bits, found 58: the exponents"):
        attention.added(None, one, BFPTensor(torch.tensor([1], dtype=torch.int8), -11))


@pytest.mark.parametrize("exponent", [-60, -16, -12, -8, -5, 0, 60])
def test_softmax(exponent):
    rng = random.Random(exponent)
    for bits, kind in ((8, torch.int8), (16, torch.int16)):
        limit = 1 << (bits - 1)
        x = BFPTensor(codes(rng, 6, 5, low=-limit, high=limit - 1).to(kind), exponent)
        x.codes[0] = x.codes[0, 0]  # equal scores: shares of 2**16 / 5 each
        x.codes[1, :4], x.codes[1, 4] = -limit, limit - 1  # one of everything
        y = attention.softmax(None, x)
        assert (y.exponent, y.bits, y.codes.dtype) == (-16, 16, torch.int32)
        assert_same(y.codes, reference.softmax(array(x), Powers).codes, range(30))
        allowed = codes(rng, 6, 5, low=0, high=1).bool()
        allowed[2] = False
        y = attention.softmax(None, x.value.masked(allowed))
        expected = reference.softmax(array(x), Powers, allowed.flatten().tolist())
        assert_same(y.codes, expected.codes, range(30))
        assert not y.codes[2].any()


@pytest.mark.parametrize("seed", range(4))
def test_parameters_enter_at_the_exponent_of_their_largest_row(seed):
    rng = random.Random(seed)
    weight = parameter(rng, 5, 4, by_rows=seed > 0)
    if seed == 3:
        weight.parts[0][0][1:3] = 0
    table = reference.entered(plain(weight))
    found, exponent = attention.entry(None, weight)
    assert exponent == table.exponent
    assert_same(found, table.codes, range(20))
    index = torch.tensor([[4, 0], [0, 2]])
    rows, _ = attention.embedding(None, index, weight, None)
    expected = deploy.rows_of(table, Array([4, 0, 0, 2], (2, 2), 0, 32))
    assert_same(rows, expected.codes, range(16))
    zero = BFPParameter.from_real(torch.zeros(2, 3), by_rows=True)
    assert attention.entry(None, zero)[1] == reference.entered(plain(zero)).exponent


# --- a layer of a transformer --------------------------------------------------------------------


class Block(nn.Module):
    """Tokens [n, 3, 4] behind one that is learned, one layer of a transformer, logits."""

    def __init__(self, mask=None):
        super().__init__()
        self.first, self.places = (
            nn.Parameter(torch.randn(1, 1, 4)),
            nn.Parameter(torch.randn(4, 4)),
        )
        self.norm1, self.norm2 = nn.LayerNorm(4), nn.RMSNorm(4, eps=1e-5)
        self.q, self.k, self.v, self.out = (nn.Linear(4, 4) for _ in range(4))
        self.up, self.down, self.head = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 3)
        self.mask = mask

    def forward(self, x):
        n = len(x)
        x = torch.cat((self.first.expand(n, -1, -1), x), 1) + self.places
        z = self.norm1(x)
        q, k, v = (f(z).view(n, 4, 2, 2).transpose(1, 2) for f in (self.q, self.k, self.v))
        masks = () if self.mask is None else (self.mask,)
        z = attended(q, k, v, masks).transpose(1, 2).reshape(n, 4, 4)
        x = x + self.out(z)
        x = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return self.head(x[:, 0])


def block_nodes(n, mask=None):
    """The same as nodes, and the names of its sites."""
    heads = {"heads": 2}
    allowed = None if mask is None else mask.expand(n * 2, 4, 4).flatten().tolist()
    nodes = [
        Node("x", "input"),
        Node("first", "own", (), {"weight": "first"}),
        Node("firsts", "expand", ("first",), {"shape": (n, 1, 4)}),
        Node("tokens", "concat", ("firsts", "x")),
        Node("place", "own", (), {"weight": "places"}),
        Node("places", "expand", ("place",), {"shape": (n, 4, 4)}),
        Node("placed", "add", ("tokens", "places")),
        Node("norm1", "layer_norm", ("placed",)),
        *(Node(name, "linear", ("norm1",)) for name in "qkv"),
        *(Node(f"{name}s", "split_heads", (name,), heads) for name in "qkv"),
        Node("product", "matmul", ("qs", "ks"), {"transposed": True}),
        Node("scaled", "scale", ("product",), {"factor": 1 / math.sqrt(2)}),
        Node("scores", "narrow16", ("scaled",)),
        Node("shares", "softmax", ("scores",), {"powers": Powers, "allowed": allowed}),
        Node("attended", "matmul", ("shares", "vs")),
        Node("joined", "join_heads", ("attended",), heads),
        Node("narrow", "narrow", ("joined",)),
        Node("out", "linear", ("narrow",)),
        Node("sum1", "add", ("placed", "out")),
        Node("norm2", "rms_norm", ("sum1",)),
        Node("up", "linear", ("norm2",)),
        Node("gelu", "table", ("up",), table("gelu")),
        Node("down", "linear", ("gelu",)),
        Node("sum2", "add", ("sum1", "down")),
        Node("one", "select", ("sum2",), {"axis": 1, "index": 0}),
        Node("head", "linear", ("one",)),
    ]
    sites = ["x", "tokens", "placed", "norm1", *"qkv", "scores", "narrow", "out", "sum1", "norm2"]
    return nodes, [*sites, "up", "gelu", "down", "sum2"]


CAUSAL = torch.ones(4, 4, dtype=torch.bool).tril()


@pytest.mark.parametrize("mask", [None, CAUSAL], ids=["whole", "causal"])
@pytest.mark.parametrize("rows", ["tensor", "row"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_a_layer_of_a_transformer(realisation, seed, rows, mask):
    torch.manual_seed(seed)
    model = convert(Block(mask), exponents=rows).eval()
    exponents = calibrate(model, [torch.randn(4, 3, 4), torch.randn(3, 3, 4)])
    nodes, sites = block_nodes(2, mask)
    assert len(sites) == len(exponents.sites)
    images = 2 * torch.randn(2, 3, 4)
    parameters = {name: plain(p) for name, p in model.named_parameters()}
    for used in (exponents, shifted(exponents, seed)):
        found, exponent = deployed(model, used).codes(images)
        frozen = dict(zip(sites, (s.exponent for s in used.sites), strict=True))
        values = images.double().flatten().tolist()
        done = deploy.evaluate(nodes, parameters, {}, values, (2, 3, 4), frozen)
        assert exponent == done["head"].exponent
        assert_same(found, done["head"].codes, range(6))
        assert_exported(model, images, used)


def test_scores_are_frozen_at_what_masks_leave():
    """The largest scores, each token's with itself, are excluded."""

    class Scores(nn.Module):
        def __init__(self, excluded):
            super().__init__()
            self.excluded = excluded

        def forward(self, x):
            y = (x @ x.transpose(1, 2)).masked_fill(self.excluded, -math.inf)
            return torch.softmax(y, -1) @ x

    x = torch.tensor([[[64.0, 0.0], [0.0, 64.0], [1.0, 1.0]]])
    for excluded, largest in ((torch.eye(3) > 0, 64), (torch.eye(3) > 1, 4096)):
        scores = calibrate(convert(Scores(excluded)), [x]).sites[1]
        assert scores.name == "narrow16"
        assert scores.exponent == formats.requantize([largest], 0, 16)[1]


@pytest.mark.parametrize("rows", ["tensor", "row"])
def test_a_language_model_does_not_depend_on_the_batch(realisation, rows):
    model = gpt(7, 5, width=32, depth=1)
    initialise(model, 3)
    model = convert(model, exponents=rows)
    tokens = torch.randint(0, 7, (6, 5), generator=torch.Generator().manual_seed(1))
    exponents = calibrate(model, [tokens])
    assert exponents.sites[0].name == "add"  # indices are no site
    frozen = deployed(model, exponents)
    found, exponent = frozen.codes(tokens)
    for i in range(6):
        part, same = frozen.codes(tokens[i : i + 1])
        assert same == exponent
        assert torch.equal(part[0], found[i])
    assert_exported(model, tokens, exponents)
    logits = frozen.logits(tokens)
    trained = model(tokens).detach().dequantize()
    assert float((logits - trained).norm() / trained.norm()) < 0.2


class Odd(nn.Module):
    """Sums of a Linear to a softmax and to a layer; a product of products; shares to a layer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        y = self.first(x)
        shares = torch.softmax(y, -1)
        z = (x @ y.transpose(-2, -1)) @ x
        return self.last(y + shares + z + 0.5 * z.transpose(-2, -1).transpose(-2, -1)) @ x


def test_values_with_several_uses():
    torch.manual_seed(0)
    module = Odd()
    model, x = convert(module), torch.randn(3, 3, 4)
    exponents = calibrate(model, [x])
    logits = deployed(model, exponents).logits(x)
    wanted = module(x).detach()
    assert float((logits - wanted).norm() / wanted.norm()) < 0.1
    assert [s.name for s in exponents.sites].count("narrow16") == 2  # the softmax's, and the result
    assert_exported(model, x, exponents)


def test_what_has_no_deployed_form_is_one_error():
    layers = (nn.LayerNorm(4), nn.Linear(4, 4), nn.LSTMCell(4, 4))
    model = convert(nn.Sequential(*layers), keep_float=["1"])
    with pytest.raises(UnsupportedError) as caught:
        calibrate(model, [torch.randn(2, 4)])
    rounded = "it computes in float32, and devices in integers: leave it out of keep_float"
    assert str(caught.value) == (
        "3 operation(s) cannot be deployed:\n"
        f"  1 (toreal): {rounded}\n"
        f"  1 (fromreal): {rounded}\n"
        "  2 (LSTMCell): a cell hands its states to its caller: use the layer, whose states stay "
        "in it"
    )


# --- choices ------------------------------------------------------------------------------------


class Chosen(nn.Module):
    """Scores x @ x', and what is taken in their place where CAUSAL is false."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def forward(self, x):
        y = x @ x.transpose(-2, -1)
        return torch.where(CAUSAL, y, self.other(x, y))


RAMP = torch.arange(16.0).view(4, 4) / 7
OTHERS = {
    "the product, scaled": lambda x, y: y * 2.0,
    "codes of 8 bits": lambda x, y: x,
    "a number": lambda x, y: 0.75,
    "zeros": lambda x, y: 0.0,
    "a constant": lambda x, y: RAMP,
}


@pytest.mark.parametrize("rows", ["tensor", "row"])
@pytest.mark.parametrize("name", OTHERS)
def test_choices_of_scores(name, rows):
    model = convert(nn.Sequential(Chosen(OTHERS[name]), nn.LayerNorm(4)), rows)
    x = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(1))
    exponents = calibrate(model, [x])
    assert_exported(model, x, exponents)
    alone = convert(Chosen(OTHERS[name]), rows)
    found = deployed(alone, calibrate(alone, [x])).logits(x)
    wanted = Chosen(OTHERS[name])(x)
    assert float((found - wanted).norm() / wanted.norm()) < 0.05


@pytest.mark.parametrize("rows", ["tensor", "row"])
def test_choices_equal_the_reference(rows):
    model = convert(Chosen(OTHERS["codes of 8 bits"]), rows)
    x = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(2))
    exponents = shifted(calibrate(model, [x]), 3)
    chosen = CAUSAL.expand(2, 4, 4).flatten().tolist()
    nodes = [
        Node("x", "input"),
        Node("product", "matmul", ("x", "x"), {"transposed": True}),
        Node("scores", "narrow16", ("product",)),
        Node("where", "where", ("scores", "x"), {"chosen": chosen}),
        Node("out", "narrow16", ("where",)),
    ]
    used = dict(zip(("x", "scores", "out"), (s.exponent for s in exponents.sites), strict=True))
    done = deploy.evaluate(nodes, {}, {}, x.double().flatten().tolist(), (2, 4, 4), used)
    codes, exponent = deployed(model, exponents).codes(x)
    assert exponent == done["out"].exponent
    assert_same(codes, done["out"].codes, range(32))


class Tempered(nn.Module):
    """Attention by cosines, with a temperature for each token, and a product of wide values."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor([0.7, 5.0, -1.3, 0.0]).view(1, 4, 1))

    def forward(self, x):
        q = functional.normalize(x, dim=-1)
        scores = q @ q.transpose(1, 2)
        shares = torch.softmax(scores * self.temperature, -1)
        return (shares * scores) @ x


@pytest.mark.parametrize("rows", ["tensor", "row"])
def test_products_of_wide_values_equal_the_reference(rows):
    model = convert(Tempered(), rows)
    x = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(2))
    x[1, 2] = 0.0
    exponents = calibrate(model, [x])
    assert [s.name for s in exponents.sites].count("narrow16") == 4  # the last is the result
    nodes = [
        Node("x", "input"),
        Node("norm", "rms_norm", ("x",), {"eps": 1e-24 / 4}),
        Node("q", "scale", ("norm",), {"factor": 0.5}),
        Node("product", "matmul", ("q", "q"), {"transposed": True}),
        Node("cosines", "narrow16", ("product",)),
        Node("own", "own", (), {"weight": "temperature"}),
        Node("tempered", "multiply", ("cosines", "own")),
        Node("scores", "narrow16", ("tempered",)),
        Node("shares", "softmax", ("scores",), {"powers": Powers}),
        Node("again", "narrow16", ("product",)),
        Node("mixed", "multiply", ("shares", "again")),
        Node("weights", "narrow", ("mixed",)),
        Node("sum", "matmul", ("weights", "x")),
        Node("out", "narrow16", ("sum",)),
    ]
    sites = ["x", "norm", "q", "cosines", "scores", "again", "weights", "out"]
    parameters = {name: plain(p) for name, p in model.named_parameters()}
    for used in (exponents, shifted(exponents, 3)):
        frozen = dict(zip(sites, (s.exponent for s in used.sites), strict=True))
        values = (2 * x).double().flatten().tolist()
        done = deploy.evaluate(nodes, parameters, {}, values, (2, 4, 4), frozen)
        found, exponent = deployed(model, used).codes(2 * x)
        assert exponent == done["out"].exponent
        assert_same(found, done["out"].codes, range(32))
        assert_exported(model, 2 * x, used)
    near = deployed(model, exponents).logits(x)
    wanted = Tempered()(x).detach()
    assert float((near - wanted).norm() / wanted.norm()) < 0.05


# --- graphs -------------------------------------------------------------------------------------


class Given(nn.Module):
    """Something of its own beside a Linear."""

    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(torch.relu(self.fc(x)))


FROM_VALUES = {
    "a constant": lambda x: x + x.dequantize(),
    "a mask": lambda x: torch.softmax(x.masked_fill(x.dequantize() > 0, -math.inf), -1),
    "indices": lambda x: x[x.dequantize()[:, 0].argsort()],
}


@pytest.mark.parametrize("name", FROM_VALUES)
def test_what_follows_from_values_is_refused(name):
    torch.manual_seed(0)
    model, x = convert(Given(FROM_VALUES[name])), torch.randn(5, 4)
    exponents = calibrate(model, [x])
    deployed(model, exponents).codes(x)
    with pytest.raises(UnsupportedError, match="constants, masks and indices that are the same"):
        to_graph(model, exponents, (4,), 5)


def test_a_constant_that_is_read_as_a_bias():
    """Of one number beside a product: exact on its grid, refused off it or behind a factor."""
    torch.manual_seed(0)
    x, fine, coarse = torch.randn(1, 4, 4), 1.0 + 2.0**-14, 3.0
    for number, factor, refused in ((coarse, 1, 0), (fine * 2.0**-9, 1, 1), (coarse, 0.3, 1)):
        made = Given(lambda x, n=number, f=factor: (x @ x if f == 1 else (x @ x) * f) + n)
        model = convert(nn.Sequential(made, nn.Linear(4, 2)))
        exponents = calibrate(model, [x])
        if not refused:
            assert_exported(model, x, exponents)
            continue
        with pytest.raises(UnsupportedError, match=r"0\.add: expected a constant beside a product"):
            to_graph(model, exponents, (4, 4), 1)


@pytest.mark.slow  # six layers: seconds
@pytest.mark.parametrize("rows", ["tensor", "row"])
def test_the_architecture_vit(rows):
    model = build("vit", (1, 8, 8), 4)
    initialise(model, 1)
    model = convert(model, exponents=rows)
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert_exported(model, images, calibrate(model, [images]))


def same_on_the_backends(model, exponents, shape):
    frozen = deployed(model, exponents)
    found = Model("model", to_graph(model, exponents, shape), deployed=frozen)
    read = deployable(found)
    inputs = random_codes(found.integer, 40)
    (expected,) = Reference().run(found, inputs)
    for other in ("training", "torch", "c", "onnxruntime-integer"):
        backend = backend_named(other)
        if backend.unavailable() is None and not cause(found, other):
            for one in (found,) if other == "training" else (found, read):
                verdict = compare(other, one.integer, [expected], backend.run(one, inputs))
                assert verdict.differing == 0, f"{other}: {verdict.differing}, {verdict.first}"


@pytest.mark.parametrize("rows", ["tensor", "row"])
def test_a_transformer_on_the_backends(rows):
    torch.manual_seed(5)
    model = convert(Block(CAUSAL), exponents=rows)
    same_on_the_backends(model, calibrate(model, [torch.randn(8, 3, 4)]), (3, 4))


@pytest.mark.parametrize("name", OTHERS)
def test_choices_on_the_backends(name):
    model = convert(nn.Sequential(Chosen(OTHERS[name]), nn.LayerNorm(4)))
    x = torch.randn(8, 4, 4, generator=torch.Generator().manual_seed(1))
    same_on_the_backends(model, calibrate(model, [x]), (4, 4))
