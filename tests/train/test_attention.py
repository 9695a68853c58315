"""Attention in modules: torch.nn.MultiheadAttention and the layers of transformers, the function
scaled_dot_product_attention, and the same by products and a softmax."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from bfp_arrays import array, same, tensor
from reference_nets import state_of
from samebits.errors import NonFiniteError, UnsupportedError
from samebits.spec.training import attention as reference
from samebits.spec.training import layers, moves, pointwise
from samebits.spec.training.layers import Array, resolve
from samebits.train import BFPTensor, convert, cross_entropy, model_input, mse_loss, set_step
from samebits.train.layers.absent import Absent

pytestmark = [  # of torch, about the float modules
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage"),
]
EXPONENTS = ["tensor", "row", "row-shift"]
N, T, S, E, HEADS = 3, 4, 5, 6, 2
LATER = torch.ones(T, T, dtype=torch.bool).triu(1)  # keys behind their query
PADDED = torch.tensor([[False] * T, [False, False, True, True], [False, True, False, False]])


def real(mask, value=-math.inf):
    """A mask of torch, whose places that do not count are true, as numbers to be added."""
    return torch.zeros(mask.shape).masked_fill(mask, value)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bfp(*shape, by_rows=False, seed=0):
    return BFPTensor.from_real(drawn(*shape, seed=seed), "x", by_rows)


def net(kind=nn.MultiheadAttention, *args, seed=0, **options):
    """A module of torch whose parameters are all drawn."""
    torch.manual_seed(seed)
    module = kind(*args, **options)
    with torch.no_grad():
        for name, p in module.named_parameters():
            centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            p.copy_(centre + torch.randn(p.shape) / math.sqrt(p.shape[-1]))
    return module


def plain(x):
    codes, exponent = x.resolved()
    return codes.tolist(), torch.as_tensor(exponent).tolist()


def near(found, wanted, share=0.1):
    """A sanity check against float32: within a share of it, by the root mean square."""
    found, wanted = found.detach().dequantize(), wanted.detach()
    error = float((found - wanted).norm() / wanted.norm())
    assert error <= share, error


# --- MultiheadAttention in plain integers -----------------------------------------------------


def as_attention(module, by_rows, query, key, value, allowed):
    """The output, from arrays [N, T, E]; allowed: of every element of the scores, or None."""
    own, _ = state_of(module, by_rows, {})
    heads = module.num_heads
    found = []
    for place, x in enumerate((query, key, value)):
        sums = layers.exact_sums(x, own["in_proj_weight"], own["in_proj_bias"], None)
        y = layers.narrow(*sums, 8)
        n, t, whole = y.shape
        size = whole // 3
        at = [(i * whole) + place * size + j for i in range(n * t) for j in range(size)]
        part = moves.placed(y, at, (n, t, size))
        found.append(moves.placed(part, *moves.split_heads(part.shape, heads)))
    q, k, v = found
    scores = reference.matmul(reference.operands(q, k, True))
    scores = pointwise.scale(scores, 1.0 / math.sqrt(q.shape[-1]))
    weights, _ = reference.softmax(scores, allowed)
    mixed = reference.matmul(reference.operands(weights, v))
    shape = (query.shape[0], query.shape[1], heads * v.shape[-1])
    joined = moves.placed(mixed, moves.inverse(moves.split_heads(shape, heads)[0]), shape)
    taken = layers.narrowed(joined)
    return layers.affine(taken, own["out_proj.weight"], own["out_proj.bias"], out_width=32)


def turned(x: Array) -> Array:
    """[T, N, E] as [N, T, E]."""
    t, n, size = x.shape
    at = [(i * n + s) * size + j for s in range(n) for i in range(t) for j in range(size)]
    return moves.placed(x, at, (n, t, size))


def of_scores(mask):
    """A mask of torch that broadcasts to [N * HEADS, n, m], as the places that are allowed."""
    return (~mask).expand(N * HEADS, *mask.shape[-2:]).flatten().tolist()


@pytest.mark.parametrize("exponents", ["tensor", "row"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", ["self", "masked", "padded", "cross", "three"])
def test_heads_are_those_of_the_plain_integers(kind, batch_first, exponents, realisation):
    module, by_rows = net(embed_dim=E, num_heads=HEADS, batch_first=batch_first), exponents == "row"
    model = convert(module, exponents)
    lengths = {"cross": (T, S, S), "three": (T, S, S)}.get(kind, (T, T, T))
    shapes = [(N, t, E) if batch_first else (t, N, E) for t in lengths]
    given = [bfp(*shape, by_rows=by_rows, seed=i) for i, shape in enumerate(shapes)]
    if kind != "three":
        given[2] = given[1]
    if kind not in ("cross", "three"):
        given[1] = given[2] = given[0]
    options, allowed = {}, None
    if kind == "masked":
        options, allowed = {"attn_mask": LATER}, of_scores(LATER)
    if kind == "padded":
        each = PADDED[:, None, None, :].expand(-1, HEADS, T, -1).reshape(N * HEADS, T, T)
        options, allowed = {"key_padding_mask": PADDED}, of_scores(each)
    out, weights = model(*given, **options)
    assert isinstance(weights, Absent)
    arrays = [array(x) if batch_first else turned(array(x)) for x in given]
    wanted = as_attention(module, by_rows, *arrays, allowed)
    same(out if batch_first else out.transpose(0, 1), wanted)


@pytest.mark.parametrize("exponents", EXPONENTS)
def test_the_order_of_axes_changes_no_bit(exponents):
    """Forward and backward; keys and values that are one tensor, or not of 8 bits yet."""
    found = []
    for batch_first in (True, False):
        model = convert(
            nn.Sequential(
                net(nn.Linear, E, E), net(embed_dim=E, num_heads=2, batch_first=batch_first)
            ),
            exponents,
        )
        x, memory = (model_input(model, drawn(N, t, E, seed=t)) for t in (T, S))
        q, m = (model[0](v).requires_grad_() for v in (x, memory))
        order = (lambda v: v) if batch_first else (lambda v: v.transpose(0, 1))
        y = order(model[1](order(q), kv := order(m), kv)[0])
        mse_loss(y, drawn(N, T, E, seed=9)).backward()
        grads = [plain(p.grad) for p in model.parameters()]
        found.append((plain(y), grads))
    assert found[0] == found[1]


# --- masks ------------------------------------------------------------------------------------


def outcome(model, x, **options):
    """The output and all gradients."""
    model.zero_grad()
    y = model(x, x, x, **options)[0]
    mse_loss(y, drawn(*x.shape, seed=7)).backward()
    return plain(y), [plain(p.grad) for p in model.parameters()]


@pytest.mark.parametrize("exponents", EXPONENTS)
@pytest.mark.parametrize("value", [-math.inf, -1e9, -40000.0])
def test_masks_of_every_form_give_the_same_bits(value, exponents):
    model = convert(net(embed_dim=E, num_heads=HEADS, batch_first=True), exponents)
    x = model_input(model, drawn(N, T, E))
    each = LATER.expand(N * HEADS, T, T)
    forms = [
        {"attn_mask": LATER},
        {"attn_mask": each},
        {"attn_mask": real(LATER, value)},
        {"attn_mask": real(LATER, value).double()},
        {"attn_mask": real(LATER, value), "is_causal": True},
        {"attn_mask": real(each, value)},
    ]
    found = [outcome(model, x, **form) for form in forms]
    assert all(f == found[0] for f in found)
    assert found[0] != outcome(model, x)
    forms = [
        {"key_padding_mask": PADDED},
        {"key_padding_mask": real(PADDED, value)},
        {"attn_mask": PADDED[:, None].repeat_interleave(HEADS, 0).expand(-1, T, -1)},
    ]
    found = [outcome(model, x, **form) for form in forms]
    assert all(f == found[0] for f in found)
    forms = [
        {"key_padding_mask": PADDED, "attn_mask": LATER},
        {"key_padding_mask": real(PADDED, value), "attn_mask": real(LATER, value)},
        {"key_padding_mask": PADDED, "attn_mask": real(LATER, value)},
        {"key_padding_mask": real(PADDED, value), "attn_mask": LATER},
    ]
    found = [outcome(model, x, **form) for form in forms]
    assert all(f == found[0] for f in found)


@pytest.mark.parametrize("exponents", ["tensor", "row"])
def test_masks_of_functions_give_the_same_bits(exponents):
    """Here true is a key that counts; a mask is where it is not, in functions of tensors."""
    by_rows, keep = exponents == "row", ~LATER
    found = []
    for form in range(8):
        q, k, v = (bfp(N, 2, T, E, by_rows=by_rows, seed=i).requires_grad_() for i in range(3))
        given = {
            0: {"attn_mask": keep},
            1: {"attn_mask": real(LATER)},
            2: {"is_causal": True},
            3: {"attn_mask": real(LATER).expand(N, 1, T, T)},
        }.get(form)
        if given is not None:
            y = functional.scaled_dot_product_attention(q, k, v, **given)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(E)
            if form == 4:
                scores = scores + real(LATER)
            if form == 5:
                scores = scores.masked_fill(LATER, -math.inf)
            if form == 6:
                scores = torch.where(keep, scores, -1e5)
            if form == 7:
                scores += real(LATER)
            y = torch.softmax(scores, -1) @ v
        mse_loss(y, drawn(N, 2, T, E, seed=8)).backward()
        found.append([plain(y), *(plain(x.grad) for x in (q, k, v))])
    assert all(f == found[0] for f in found)


@pytest.mark.parametrize("shape", [(T, E), (N, T, E), (N, HEADS, T, E)])
def test_the_unfused_form_has_the_same_bits_with_one_exponent(shape):
    found = []
    for fused in (True, False):
        q, k, v = (tensor(shape, seed=i).requires_grad_() for i in range(3))
        if fused:
            y = functional.scaled_dot_product_attention(q, k, v, scale=0.3)
        else:
            y = functional.softmax(torch.matmul(q, k.transpose(-1, -2)) * 0.3, dim=-1).matmul(v)
        mse_loss(y, drawn(*shape, seed=8)).backward()
        found.append([plain(y), *(plain(x.grad) for x in (q, k, v))])
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["tensor", "row"])
def test_one_tensor_as_queries_keys_and_values(kind, realisation):
    """Its gradient is the sum of three parts, in plain integers."""
    x = tensor((2, 3, 4), kind).requires_grad_()
    out = functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    allowed = torch.ones(3, 3, dtype=torch.bool).tril().expand(2, 3, 3).flatten().tolist()
    first = reference.operands(array(x), array(x), True)
    scores = pointwise.scale(reference.matmul(first), 0.5)
    weights, saved = reference.softmax(scores, allowed)
    second = reference.operands(weights, array(x))
    same(out, reference.matmul(second))
    g = tensor((2, 3, 4), kind, 32, 5)
    out.backward(g)
    at_weights, at_values = reference.matmul_backward(array(g), second)
    at_scores = reference.softmax_backward(at_weights, saved)
    at_scores = pointwise.scale(at_scores, 0.5)
    both = reference.matmul_backward(at_scores, first)
    same(x.grad, resolve([*both, at_values]))


def test_a_float_mask_may_hold_other_numbers():
    """They are added; near what torch gives."""
    bias = drawn(T, T, seed=3).masked_fill(LATER, -math.inf)
    q, k, v = (drawn(N, T, E, seed=i) for i in range(3))
    wanted = functional.scaled_dot_product_attention(q, k, v, bias)
    given = [BFPTensor.from_real(t) for t in (q, k, v)]
    near(functional.scaled_dot_product_attention(*given, bias), wanted)
    tables = BFPTensor.from_real(drawn(1, T, T, seed=3)).requires_grad_()  # learned, and repeated
    y = functional.scaled_dot_product_attention(*given, tables)
    near(y, functional.scaled_dot_product_attention(q, k, v, drawn(1, T, T, seed=3)))
    mse_loss(y, drawn(N, T, E, seed=8)).backward()
    assert tables.grad.codes.any()
    assert tables.grad.shape == (1, T, T)


@pytest.mark.parametrize("exponents", ["tensor", "row"])
def test_a_query_without_a_key_gives_zeros_and_no_gradient(exponents):
    allowed = torch.ones(T, T, dtype=torch.bool).tril()
    allowed[1] = False
    q, k, v = (bfp(N, T, E, by_rows=exponents == "row", seed=i).requires_grad_() for i in range(3))
    y = functional.scaled_dot_product_attention(q, k, v, allowed)
    assert not y.codes[:, 1].any()
    assert y.codes[:, 2].any()
    mse_loss(y, drawn(N, T, E, seed=8)).backward()
    assert not q.grad.codes[:, 1].any()
    assert q.grad.codes[:, 2].any()
    nothing = functional.scaled_dot_product_attention(q, k, v, torch.zeros(T, T, dtype=torch.bool))
    assert not nothing.codes.any()


def test_an_earlier_token_does_not_see_later_ones():
    """By rows no exponent comes from another token, so that this is true of every bit."""
    model = convert(net(embed_dim=E, num_heads=HEADS, batch_first=True), "row")
    x = drawn(N, T, E)
    other = x.clone()
    other[:, 2:] = 1000 * drawn(N, T - 2, E, seed=4)
    first, second = (
        model(*[model_input(model, v)] * 3, attn_mask=LATER)[0].detach().dequantize()
        for v in (x, other)
    )
    assert torch.equal(first[:, :2], second[:, :2])
    assert not torch.equal(first[:, 2:], second[:, 2:])


# --- softmax ----------------------------------------------------------------------------------


@pytest.mark.parametrize("exponents", ["tensor", "row"])
@pytest.mark.parametrize("widths", [(8, 16, 32), (5, 12, 32)])
def test_sums_of_a_linear_enter_a_softmax_with_32_bits(widths, exponents, realisation):
    module, by_rows = net(nn.Linear, E, 7), exponents == "row"
    model = convert(module, exponents, widths)
    x = model_input(model, 3 * drawn(N, E))
    own, _ = state_of(module, by_rows, {"weight": widths, "bias": widths})
    sums = layers.wide(*layers.exact_sums(array(x), own["weight"], own["bias"], None))
    wanted, _ = reference.softmax(sums)
    out = functional.softmax(model(x), -1)
    same(out, wanted)
    assert out.layer_bits == widths[0]
    allowed = torch.tensor([True, False, True, True, False, True, True])
    masked, _ = reference.softmax(sums, allowed.expand(N, -1).flatten().tolist())
    same(functional.softmax(model(x).masked_fill(~allowed, -math.inf), -1), masked)
    same(functional.softmax(model(x) + real(~allowed), -1), masked)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_any_axis(dim):
    x = tensor((2, 3, 4), bits=32, exponent=-26)
    out = convert(nn.Sequential(nn.Softmax(dim)))(x)
    wanted = functional.softmax(x.dequantize(), dim)
    assert float((out.dequantize() - wanted).abs().max()) < 1e-4


def test_masked_values_read_as_minus_infinity():
    x = BFPTensor.from_real(torch.ones(2, 3)) + torch.tensor([0.0, -math.inf, -1e5])
    assert x.dequantize().tolist() == [[1.0, -math.inf, -math.inf]] * 2
    again = (x + torch.tensor([-math.inf, 0, 0])).dequantize()
    assert again.isinf().all()


# --- layers of transformers -------------------------------------------------------------------


def encoder(batch_first, norm_first, activation="relu", dropout=0.0):
    layer = nn.TransformerEncoderLayer(
        E, HEADS, 8, dropout, activation, batch_first=batch_first, norm_first=norm_first
    )
    return nn.TransformerEncoder(layer, 2, nn.LayerNorm(E) if norm_first else None)


MASKS = {
    "none": {},
    "bool": {"mask": LATER},
    "real": {"mask": real(LATER)},
    "causal": {"mask": real(LATER), "is_causal": True},
    "padded": {"src_key_padding_mask": PADDED},
    "both": {"mask": LATER, "src_key_padding_mask": PADDED},
}


@pytest.mark.parametrize(
    ("batch_first", "norm_first"),
    [
        (True, False),
        (False, True),
        pytest.param(True, True, marks=pytest.mark.slow),
        pytest.param(False, False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("exponents", EXPONENTS)
def test_encoders(exponents, batch_first, norm_first):
    """Every mask, in training, in evaluation, and without gradients: torch takes other ways."""
    module = net(encoder, batch_first, norm_first, "gelu")
    model = convert(module, exponents)
    real_x = drawn(N, T, E) if batch_first else drawn(T, N, E)
    x = model_input(model, real_x)
    for name, options in MASKS.items():
        found = []
        for training in (True, False):
            module.train(training)
            model.train(training)
            y = model(x, **options)
            found.append(plain(y))
            near(y, module(real_x, **options), 0.15)
        with torch.no_grad():
            found.append(plain(model(x, **options)))
        assert found[1] == found[2], name
        if exponents != "row-shift":  # whose shifts are those that training has seen
            assert found[0] == found[1], name
    assert plain(model(x, mask=LATER)) == plain(model(x, mask=real(LATER)))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_decoders_and_whole_transformers(batch_first, norm_first):
    options = {"batch_first": batch_first, "norm_first": norm_first}
    memory, target = ((N, S, E), (N, T, E)) if batch_first else ((S, N, E), (T, N, E))
    memory, target = drawn(*memory, seed=1), drawn(*target)
    layer = nn.TransformerDecoderLayer(E, HEADS, 8, 0.0, **options)
    for module, given in (
        (net(nn.TransformerDecoder, layer, 2), (target, memory)),
        (net(nn.Transformer, E, HEADS, 1, 1, 8, 0.0, **options), (memory, target)),
    ):
        model = convert(module)
        for training in (True, False):
            module.train(training)
            model.train(training)
            own = [model_input(model, v) for v in given]
            for mask in (LATER, real(LATER), nn.Transformer.generate_square_subsequent_mask(T)):
                near(model(*own, tgt_mask=mask), module(*given, tgt_mask=mask), 0.15)
            padding = {"memory_key_padding_mask": torch.arange(S) > torch.tensor([[4], [2], [3]])}
            near(model(*own, **padding), module(*given, **padding), 0.15)


def test_dropout_is_drawn_by_step_and_shard_and_off_in_evaluation():
    module = net(encoder, True, True, dropout=0.3)
    model, still = convert(module), convert(net(encoder, True, True))
    sites = [m.site for m in model.modules() if hasattr(m, "site")]
    assert sorted(sites) == list(range(len(sites)))
    attention = model.layers[0].self_attn
    assert attention.dropout.name == "layers.0.self_attn.dropout"
    x = model_input(model, drawn(N, T, E))
    found = []
    for step, shard in ((1, 0), (2, 0), (1, 1), (1, 0)):
        set_step(model, 5, step, shard)
        found.append(plain(model(x)))
    assert found[0] == found[3]
    assert len({str(f) for f in found}) == 3
    assert plain(model.eval()(x)) == plain(still.eval()(x))


def test_a_transformer_learns_its_state_and_its_copies():
    model = convert(net(encoder, True, False))
    x = model_input(model, drawn(N, T, E))
    twin = copy.deepcopy(model)
    other = convert(net(encoder, True, False, seed=1))
    other.load_state_dict(model.state_dict())
    wanted = plain(model(x))
    assert plain(twin(x)) == plain(other(x)) == wanted
    float_keys = set(net(encoder, True, False).state_dict())
    assert {key.rpartition(".")[0] for key in model.state_dict()} == float_keys
    other.load_state_dict(net(encoder, True, False).state_dict())
    assert plain(other(x)) == wanted
    assert not any(
        "peak" in key for key in convert(nn.MultiheadAttention(4, 2), "row-shift").state_dict()
    )


def test_a_state_that_does_not_fit_changes_nothing():
    """The module is itself one with parameters, and has a layer inside."""
    model = convert(net(embed_dim=E, num_heads=HEADS))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = net(embed_dim=E, num_heads=HEADS, seed=3).state_dict()
    state["out_proj.weight"] = torch.ones(2)
    with pytest.raises(RuntimeError, match=r"out_proj\.weight: expected real values"):
        model.load_state_dict(state)
    assert all(torch.equal(v, before[key]) for key, v in model.state_dict().items())


# --- tensors of other kinds, and what is kept -------------------------------------------------


@pytest.mark.parametrize("kind", ["tensor", "row"])
def test_other_orders_in_memory(kind, realisation):
    """Views that torch makes of a fused projection, and their copies."""
    found = []
    for contiguous in (True, False):
        x = tensor((N, T, 3 * HEADS * 3), kind, seed=1).requires_grad_()
        parts = x.reshape(N, T, 3, HEADS, 3).permute(2, 0, 3, 1, 4).unbind(0)
        if contiguous:
            parts = [BFPTensor(p.codes.contiguous(), p.exponent).requires_grad_() for p in parts]
        y = functional.scaled_dot_product_attention(*parts, is_causal=True)
        found.append(plain(y.transpose(1, 2).reshape(N, T, -1)))
    assert found[0] == found[1]


def test_what_is_kept_for_the_backward_pass_has_8_bits():
    kept = []
    x = bfp(N, T, E).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda v: kept.append(v) or v, lambda v: v):
        functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    assert {v.dtype for v in kept} == {torch.int8, torch.bool}


def test_a_changed_tensor_of_scores_is_used_up():
    scores = bfp(T, E) @ bfp(E, T, seed=1)
    total = scores
    total += real(LATER)
    assert functional.softmax(total, -1).codes[0].tolist() == [1 << 30, 0, 0, 0]
    with pytest.raises(UnsupportedError, match="was changed in place"):
        functional.softmax(scores, -1)
    scores = bfp(T, E) @ bfp(E, T, seed=1)
    scaled = scores
    scaled *= 0.5
    assert scaled.bits == 32
    with pytest.raises(UnsupportedError, match="was changed in place"):
        scores.dequantize()


# --- errors -----------------------------------------------------------------------------------

X = bfp(N, T, E)
HAS = r"layer '' \(MultiheadAttention\): "
WRONG = {
    "no mask": ({"is_causal": True}, HAS + "expected attn_mask with is_causal"),
    "turned padding": (
        {"key_padding_mask": PADDED.t()},
        HAS + r"key_padding_mask: expected bool .* of shape \(3, 4\), found torch.bool \(4, 3\)",
    ),
    "padding of bytes": (
        {"key_padding_mask": PADDED.byte()},
        "key_padding_mask: expected bool or real numbers .* found torch.uint8",
    ),
    "one row": ({"attn_mask": LATER[:1]}, r"attn_mask: expected .* \(4, 4\) or \(6, 4, 4\)"),
    "samples": ({"attn_mask": LATER.expand(N, T, T)}, r"attn_mask: .* found .* \(3, 4, 4\)"),
    "integers": ({"attn_mask": LATER.long()}, "attn_mask: .* found torch.int64"),
    "a number too large": ({"attn_mask": real(LATER, math.inf)}, "expected finite values"),
    "no number": ({"attn_mask": real(LATER, math.nan)}, "expected finite values"),
    "a gradient": ({"attn_mask": real(LATER).requires_grad_()}, "requires a gradient"),
}


@pytest.mark.parametrize("name", WRONG)
def test_masks_that_do_not_fit(name):
    options, text = WRONG[name]
    model = convert(net(embed_dim=E, num_heads=HEADS, batch_first=True))
    with pytest.raises((UnsupportedError, NonFiniteError), match=text):
        model(X, X, X, **options)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m: m(drawn(N, T, E), X, X), "expected a BFPTensor, found Tensor"),
        (lambda m: m(bfp(N, T, 4), X, X), "convolution: expected 6 input channels, found 4"),
        (lambda m: m(bfp(T, E), X, X), r"expected three times .* found \(4, 6\), \(3, 4, 6\)"),
        (lambda m: m(*[bfp(1, N, T, E)] * 3), "expected three times"),
        (lambda m: m(X, X, bfp(N, S, E)), "matmul: expected matrices"),
        (lambda m: m(X, bfp(2, S, E), bfp(2, S, E)), "matmul: expected matrices"),
    ],
)
def test_tensors_that_do_not_fit(call, text):
    with pytest.raises(UnsupportedError, match=HAS + text):
        call(convert(net(embed_dim=E, num_heads=HEADS, batch_first=True)))


MASKED = bfp(N, T) + real(LATER[1:2])
KEEP = torch.ones(T, T, dtype=torch.bool)


def test_heads_of_query_share_those_of_key_and_value():
    """Two in a row each: the bits, and gradients, of keys and values that are repeated."""
    found = []
    for shared in (True, False):
        q, k, v = (bfp(2, n, 5, 8, seed=i).requires_grad_() for i, n in enumerate((4, 2, 2)))
        if shared:
            y = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        else:
            repeated = (torch.repeat_interleave(x, 2, -3) for x in (k, v))
            y = functional.scaled_dot_product_attention(q, *repeated)
        y.backward(bfp(2, 4, 5, 8, seed=3))
        found.append((y.detach(), *(x.grad for x in (q, k, v))))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a.dequantize(), b.dequantize())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda f: f(X, X, X, KEEP.byte()), "attention: expected a mask of bool or of real num"),
        (lambda f: f(X, X, X, KEEP, is_causal=True), "expected attn_mask or is_causal, found both"),
        (lambda f: f(X, X, X, KEEP[:, :3]), r"mask: expected shapes .* \(3, 4, 4\) and \(4, 3\)"),
        (lambda f: f(X, X, X, dropout_p=0.1), "p=0.1 and no such model; call"),
        (lambda f: f(X, X[:2], X[:2], enable_gqa=True), "heads of query in groups"),
        (lambda f: f(drawn(N, T, E), X, X), "expected a BFPTensor, found Tensor"),
        (lambda f: f(X, X[0], X[0]), "matmul: expected matrices"),
        (lambda f: f(X, X[:, :, :0], X), "matmul: expected matrices"),
        (lambda f: functional.softmax(X), "softmax: expected an axis"),
        (lambda f: functional.softmax(X, 3), "softmax: expected an axis"),
        (lambda f: functional.softmax(X, 1, dtype=torch.float64), "no dtype, found 1 and torch"),
        (lambda f: convert(nn.Sequential(nn.Softmax(1)))(drawn(2, 3)), "expected a BFPTensor"),
        (lambda f: functional.softmax(MASKED, 0), "expected the last axis of masked values"),
        (lambda f: MASKED + 1, "add: expected finite values, found a tensor masked"),
        (lambda f: MASKED @ X[0], "found a tensor masked by -inf"),
        (lambda f: MASKED[0], "found a tensor masked by -inf"),
        (lambda f: cross_entropy(MASKED, torch.tensor([0] * N)), "cross-entropy: .* masked"),
        (lambda f: mse_loss(MASKED, torch.zeros(N, T)), "masked"),
        (lambda f: functional.l1_loss(X[0], MASKED[:, :]), "masked"),
        (lambda f: torch.zeros(N, T, E).add_(X), "in place: expected a BFP tensor to be changed"),
        (lambda f: torch.zeros(N, T, E).mul_(X), "in place: expected a BFP tensor to be changed"),
        (lambda f: X + torch.tensor(1j), "add: expected real numbers, found torch.complex64"),
    ],
)
def test_what_has_no_rule_is_refused(call, text):
    with pytest.raises(UnsupportedError, match=text):
        call(functional.scaled_dot_product_attention)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (nn.MultiheadAttention(4, 2, kdim=3), "kdim or vdim other than embed_dim"),
        (nn.MultiheadAttention(4, 2, vdim=3), "kdim or vdim other than embed_dim"),
        (nn.MultiheadAttention(4, 2, add_bias_kv=True), "add_bias_kv or add_zero_attn"),
        (nn.MultiheadAttention(4, 2, add_zero_attn=True), "add_bias_kv or add_zero_attn"),
        (nn.MultiheadAttention(4, 2, dropout=1.0), "dropout = 1 drops everything"),
        (nn.Softmax(), "no dim, expected an axis"),
    ],
)
def test_modules_that_have_no_twin(module, text):
    with pytest.raises(UnsupportedError, match=text):
        convert(module)
