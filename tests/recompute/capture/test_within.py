"""Steps within a budget against eager PyTorch: bits of three steps, and measured peaks."""

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samebits as sb
from samebits.errors import InputError, UnsupportedError
from samebits.recompute.capture.step import EagerWarning
from samebits.recompute.run.memory import step_peak

X, Y = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 10
IMAGES, SEQUENCE = X[:48].reshape(8, 3, 8, 8), X.reshape(8, 8, 32)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Made(nn.Module):
    """A module of a function and its parts."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.function(self, x)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


def mlp():
    return nn.Sequential(
        *(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 64), nn.GELU()),
        *(nn.LayerNorm(64), nn.Dropout(0.15), nn.Linear(64, 10)),
    )


def frozen():
    model = mlp()
    model[0].weight.requires_grad_(False)
    model[5].bias.requires_grad_(False)
    return model


def cnn():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)),
        *(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(128, 10)),
    )


def lstm():
    recurrent = nn.LSTM(32, 16, 2, dropout=0.2, batch_first=True)
    return Made(lambda m, x: m.last(m.lstm(x)[0][:, -1]), lstm=recurrent, last=nn.Linear(16, 10))


def attention():
    heads = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)
    return Made(
        lambda m, x: m.last(m.heads(x, x, x)[0].mean(1)), heads=heads, last=nn.Linear(32, 10)
    )


def chunked():
    return Made(lambda m, x: torch.mul(*m.first(x).tanh().chunk(2, -1)), first=nn.Linear(32, 64))


def in_dictionary():
    parts = {"first": nn.Linear(32, 10), "unread": nn.Linear(32, 10)}
    return Made(lambda m, x: {"y": m.first(x).exp(), "z": m.unread(x)}, **parts)


def in_tuple():
    parts = {"first": nn.Linear(32, 10), "second": nn.Linear(32, 10)}
    return Made(lambda m, x: (m.first(x).relu(), m.second(x).exp()), **parts)


def casting():
    def forward(m, x):
        with torch.autocast("cpu", torch.bfloat16):
            h = m.first(x)
        return m.last(F.gelu(h.float()))

    return Made(forward, first=nn.Linear(32, 64), last=nn.Linear(64, 10))


def of_its_own():
    parts = {"first": nn.Linear(32, 16), "last": nn.Linear(16, 10)}
    return Made(lambda m, x: m.last(Square.apply(m.first(x)).sigmoid()), **parts)


MODELS = {
    "dropout": (mlp, X, F.cross_entropy),
    "frozen parameters": (frozen, X, F.cross_entropy),
    "batch-norm": (cnn, IMAGES, F.cross_entropy),
    "LSTM": (lstm, SEQUENCE, F.cross_entropy),
    "MultiheadAttention": (attention, SEQUENCE, F.cross_entropy),
    "chunk": (chunked, X, lambda out, y: out.square().mean()),
    "dictionary": (in_dictionary, X, lambda out, y: F.cross_entropy(out["y"], y)),
    "tuple": (in_tuple, X, lambda out, y: F.cross_entropy(out[0] + out[1], y)),
    "autocast": (casting, X, F.cross_entropy),
    "autograd.Function": (of_its_own, X, F.cross_entropy),
}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()


def bits(tensor):
    return None if tensor is None else tensor.detach().contiguous().flatten().view(torch.uint8)


def three_steps(call, model, batches):
    """All that three steps of gradient descent leave, as bits."""
    torch.manual_seed(1)
    found = []
    for batch in batches:
        model.zero_grad()
        loss = call(*batch)
        loss.backward()
        left = {"loss": bits(loss), "generator": torch.get_rng_state()}
        left |= {f"gradient of {n}": bits(p.grad) for n, p in model.named_parameters()}
        left |= {f"buffer {n}": bits(b).clone() for n, b in model.named_buffers()}
        found.append(left)
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= 0.05 * p.grad
    return found


def differences(want, got):
    """What differs, with the step."""
    same = lambda a, b: a is b if a is None or b is None else torch.equal(a, b)  # noqa: E731
    steps = enumerate(zip(want, got, strict=True))
    return [(at, name) for at, (w, g) in steps for name in w if not same(w[name], g[name])]


def peak(step, model, batch):
    """Bytes of a step, measured, the second of its kind."""
    for _ in range(2):
        model.zero_grad()
        found = step_peak(lambda: step(*batch).backward())
    return found


def least(model, loss, batch):
    """The smallest peak and that of storing everything."""
    with pytest.raises(InputError) as error:
        sb.within(copy.deepcopy(model), loss, batch, budget=1)
    step = sb.within(model, loss, batch)
    return int(str(error.value).split()[4]), step.plans[0].store_all


QUICK = ("dropout",)
NAMES = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODELS]


@pytest.mark.parametrize("name", NAMES)
def test_three_steps_have_the_bits_of_eager_within_the_budget(name):
    make, x, loss = MODELS[name]
    torch.manual_seed(0)
    model = make()
    batch, smaller = (x, Y[: len(x)]), (x[:-3], Y[: len(x) - 3])
    plain = copy.deepcopy(model)
    batches = (batch, batch, smaller)
    want = three_steps(lambda x, y: loss(plain(x), y), plain, batches)
    smallest, everything = least(copy.deepcopy(model), loss, batch)
    for share in (0.3, 0.6):
        budget = int(smallest + share * (everything - smallest))
        mine = copy.deepcopy(model)
        step = sb.within(mine, loss, batch, budget=budget, fallback="error")
        assert differences(want, three_steps(step, mine, batches)) == []
        first, last = step.plans
        assert last.store_all < first.store_all
        measured = peak(step, mine, batch)
        assert measured <= budget
        assert first.peak * 0.998 <= measured <= first.peak
        assert first.bound_ps <= first.recompute_ps


def test_a_budget_below_the_smallest_names_it():
    with pytest.raises(InputError, match=r"^--memory-budget: expected at least \d+ bytes for"):
        sb.within(mlp(), F.cross_entropy, (X, Y), budget=100)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": "much"}, "--memory-budget: expected a number of bytes"),
        ({"fallback": "none"}, "fallback: expected error or eager, found 'none'"),
        ({"device": "none"}, "none: no such device"),
        ({"loss": None}, "expected a torch.nn.Module and a function of its output"),
    ],
)
def test_arguments_are_checked(arguments, message):
    given = {"model": mlp(), "loss": F.cross_entropy, "example": (X, Y)} | arguments
    with pytest.raises(InputError, match=message):
        sb.within(**given)


def test_a_model_that_is_not_captured_runs_eagerly_and_the_reason_is_named():
    model = Made(lambda m, x: m.last(x * float(x.sum() > 0)), last=nn.Linear(32, 10))
    with pytest.warns(EagerWarning, match="run eagerly, without a memory plan: Made cannot be"):
        step = sb.within(model, F.cross_entropy, (X, Y), budget="50%")
    step(X, Y).backward()
    assert step.plans == []
    (reason,) = step.refused.values()
    assert str(step) == f"runs eagerly: {reason}"
    with pytest.raises(UnsupportedError, match=r"train without a plan$"):
        sb.within(model, F.cross_entropy, (X, Y), fallback="error")


def test_a_model_that_asks_whether_it_is_traced_runs_eagerly():
    def forward(m, x):
        return m.last(x if torch.compiler.is_compiling() else x * 1.0625)

    model = Made(forward, last=nn.Linear(32, 10))
    with pytest.warns(EagerWarning, match="the loss of a planned step differs from that of eager"):
        step = sb.within(model, F.cross_entropy, (X, Y))
    assert torch.equal(step(X, Y), F.cross_entropy(model(X), Y))


def test_a_proof_leaves_the_model_as_it_was():
    model, states = cnn(), (torch.get_rng_state(), random.getstate())
    before = copy.deepcopy(model.state_dict())
    sb.within(model, F.cross_entropy, (IMAGES, Y[:8]), budget="90%")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()


def test_values_beside_the_loss_have_no_gradients():
    step = sb.within(mlp(), lambda out, y: (F.cross_entropy(out, y), out), (X, Y), budget="90%")
    loss, out = step(X, Y)
    loss.backward()
    assert out.shape == (64, 10)
    assert not out.requires_grad


def test_evaluation_and_steps_without_gradients():
    model = cnn()
    step = sb.within(model, F.cross_entropy, (IMAGES, Y[:8]), budget="90%")
    with torch.no_grad():
        assert (
            torch.equal(step(IMAGES, Y[:8]), F.cross_entropy(model.eval()(IMAGES), Y[:8])) is False
        )
        assert torch.equal(step(IMAGES, Y[:8]), F.cross_entropy(model(IMAGES), Y[:8]))
    assert torch.equal(step(IMAGES, Y[:8]), F.cross_entropy(model(IMAGES), Y[:8]))
    assert len(step.plans) == 2  # evaluation with gradients is a plan of its own


def test_gradients_add_up_over_steps():
    torch.manual_seed(0)
    model = mlp().eval()
    plain = copy.deepcopy(model)
    step = sb.within(model, F.cross_entropy, (X, Y), budget="90%")
    for _ in range(2):
        step(X, Y).backward()
        F.cross_entropy(plain(X), Y).backward()
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(bits(a.grad), bits(b.grad)) for a, b in pairs)
