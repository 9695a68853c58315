import gc
import random
import threading
import time
import weakref

import pytest
import torch
from torch import fx, nn

from recompute_nets import CLASSES, NETS, Case, assert_same_outcome, make
from samebits.errors import InputError, RangeError, UnsupportedError
from samebits.recompute.plan.schedule import compile_schedule, peak
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.memory import recording, step_peak
from samebits.recompute.run.passes import Bookkeeping, Pass
from samebits.recompute.run.profile import survey
from samebits.recompute.run.walk import GraphPass
from samebits.train import BFPTensor, CrossEntropyLoss, convert, layers
from samebits.train.deferred import deferred_updates

# The two deep nets repeat the blocks of the small ones.
DEEP = ("resnet18", "mobilenetv2")


def cases(quick):
    """Every net in every numerics; those that `quick` does not hold are slow."""
    return [
        pytest.param(name, numerics, marks=() if (name, numerics) in quick else pytest.mark.slow)
        for numerics in ("float32", "bfp")
        for name in NETS
        if (name, numerics) != ("in place", "bfp")
    ]


IN_FLOAT = {("shared", "float32"), ("in place", "float32")}
CASES = cases(IN_FLOAT | {(name, "bfp") for name in NETS if name not in DEEP})
# Memory is predicted by the same rules for every net: a few are measured every time.
MEASURED = cases({("in place", "float32"), *((n, "bfp") for n in ("dropout", "shared", "words"))})


def larger(name, numerics, **sizes):
    """A case whose tensors are most of its memory: in tiny networks the scratch of a kernel is."""
    tiny = name in ("dropout", "nested", "smooth", "in place")
    return make(name, numerics, **{"batch": 64} if tiny else sizes)


def droppings(network, count, seed=0):
    """Nothing, everything, and random subsets of what may be dropped."""
    choices = network.choices()
    generator = random.Random(seed)
    yield ()
    yield choices
    for _ in range(count):
        share = generator.random()
        yield tuple(v for v in choices if generator.random() < share)


def executor(case, dropped=None, keep=()):
    tape, network = survey(case.model, case.inputs, case.loss)
    if dropped is None:
        dropped = tuple(v for v in network.choices() if v not in keep)
    return Executor(tape, network, compile_schedule(network, dropped))


@pytest.mark.parametrize(("name", "numerics"), CASES)
def test_every_plan_gives_the_bits_of_eager_execution(name, numerics):
    case = make(name, numerics)
    start = case.state()
    tape, network = survey(case.model, case.inputs, case.loss)

    def two_steps(forward):
        """Two: the second pass adds to the gradients of the first, as accumulation does."""
        case.restore(start)
        torch.manual_seed(3)
        return [case.step(forward), case.step(forward)], case.outcome()

    losses, outcome = two_steps(case.model)
    for dropped in droppings(network, 3 if name in DEEP else 5):
        run = Executor(tape, network, compile_schedule(network, dropped))
        found, planned = two_steps(run)
        assert losses == found
        assert_same_outcome(outcome, planned)


@pytest.mark.parametrize("numerics", ["float32", "bfp"])
def test_a_layer_of_a_transformer_is_one_sub_layer_or_its_operations(numerics):
    """In float32 one, with its dropouts, and an attention that gives a tuple, inside."""
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(8, 2, 16, 0.2, batch_first=True) for _ in range(3)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, CLASSES))
    x, labels = torch.randn(4, 4, 8), torch.arange(4)
    case = Case(model, x, labels, nn.CrossEntropyLoss())
    if numerics == "bfp":
        case = Case(convert(model), BFPTensor.from_real(x), labels, CrossEntropyLoss())
    start, (tape, network) = case.state(), survey(case.model, case.inputs, case.loss)
    kinds = [layer.kind for layer in network.layers]
    whole = {"float32": 3, "bfp": 0}[numerics]
    assert kinds.count("TransformerEncoderLayer") == whole
    assert kinds.count("MultiheadAttention") == 3 - whole
    assert kinds.count("Dropout") == 4 * (3 - whole)
    found = []
    runs = [Executor(tape, network, compile_schedule(network, d)) for d in droppings(network, 2)]
    for forward in (case.model, *runs):
        case.restore(start)
        torch.manual_seed(3)
        found.append((case.step(forward), case.outcome()))
    for loss, outcome in found[1:]:
        assert loss == found[0][0]
        assert_same_outcome(found[0][1], outcome)


@pytest.mark.parametrize(("name", "numerics"), MEASURED)
def test_the_paired_order_gives_the_bits_of_the_sequential_one(name, numerics):
    """And its memory is at most what is predicted."""
    case = larger(name, numerics)
    start = case.state()
    torch.manual_seed(3)
    losses = [case.step(case.model), case.step(case.model)]
    outcome = case.outcome()
    tape, network = survey(case.model, case.inputs, case.loss)
    for dropped in droppings(network, 1):
        schedule = compile_schedule(network, dropped, paired=True)
        kinds = [kind for kind, _ in schedule]
        assert kinds.count("weight gradient") == kinds.count("join") > 0
        run = Executor(tape, network, schedule)
        ran = {}
        run.clock = ran.__setitem__
        case.restore(start)
        torch.manual_seed(3)
        assert losses == [case.step(run), case.step(run)]
        assert_same_outcome(outcome, case.outcome())
        assert ran.keys() == set(run.second)
        case.restore(start)
        run.inline = True
        measured = step_peak(lambda run=run: case.step(run)) + network.layers[0].size
        predicted = peak(network, schedule)
        close = measured <= 1.02 * predicted <= 1.35 * measured
        capability = torch.backends.cpu.get_cpu_capability()
        if not close and numerics == "float32" and capability != "AVX512":
            pytest.skip(
                f"the bits agree; the scratch memory of float32 convolutions under {capability} is "
                f"another for a weight gradient alone: {measured} bytes measured, {predicted} "
                "predicted"
            )
        assert close, (measured, predicted)


def test_an_error_beside_a_deferred_gradient_waits_for_it(monkeypatch):
    case = make("resnet8", "float32")
    tape, network = survey(case.model, case.inputs, case.loss)
    run = Executor(tape, network, compile_schedule(network, (), paired=True))
    ended = threading.Event()
    real = Pass.weight_gradient

    def slow(self, index):
        ended.clear()
        time.sleep(0.05)
        found = real(self, index)
        ended.set()
        return found

    def fails(self, index):
        raise RuntimeError("here")

    monkeypatch.setattr(Pass, "weight_gradient", slow)
    monkeypatch.setattr(Pass, "backward", fails)
    with pytest.raises(RuntimeError, match="here"):
        case.step(run)
    assert ended.is_set()


def test_an_error_in_a_deferred_gradient_reaches_the_caller(monkeypatch):
    case = make("resnet8", "bfp")
    tape, network = survey(case.model, case.inputs, case.loss)
    run = Executor(tape, network, compile_schedule(network, (), paired=True))

    def fails(self, index):
        raise RangeError("too large")

    monkeypatch.setattr(GraphPass, "weight_gradient", fails)
    with pytest.raises(RangeError, match="too large"):
        case.step(run)


@pytest.mark.parametrize(("name", "numerics"), CASES)
def test_survey_leaves_everything_as_it_was(name, numerics):
    case = make(name, numerics)
    before = case.copy().outcome()
    modes = [m.training for m in case.model.eval().modules()]
    survey(case.model, case.inputs, case.loss)
    assert_same_outcome(before, case.outcome())
    assert modes == [m.training for m in case.model.modules()]


@pytest.mark.parametrize(("name", "numerics"), MEASURED)
def test_predicted_peak_is_the_measured_peak(name, numerics):
    """Within 1 % of all tensor memory."""
    case = larger(name, numerics, batch=16, size=8 if name in ("resnet18", "dropout") else 16)
    tape, network = survey(case.model, case.inputs, case.loss)
    state = case.state()
    for dropped in droppings(network, 2):
        schedule = compile_schedule(network, dropped)
        run = Executor(tape, network, schedule)
        case.step(run)  # the first pass meets what is made once: tables, kernels
        case.restore(state)
        measured = step_peak(lambda run=run: case.step(run)) + network.layers[0].size
        case.restore(state)
        predicted = peak(network, schedule)
        assert abs(measured - predicted) <= 0.01 * measured, (dropped, predicted, measured)


@pytest.mark.parametrize("numerics", ["float32", "bfp"])
def test_a_budgeted_step_frees_what_it_no_longer_needs(numerics):
    case = make("resnet8", numerics, batch=16, size=16)
    tape, network = survey(case.model, case.inputs, case.loss)
    dropped = tuple(v for v in network.choices() if network.layers[v].kind != "Conv2d")
    run = Executor(tape, network, compile_schedule(network, dropped))
    state, output = run.run_forward(case.inputs, False)
    kinds = {network.layers[v].kind for v in state.values if v}
    assert kinds <= {"Conv2d", "Linear"}
    if numerics == "float32":
        saved = [entry for g in state.graphs.values() for entry in g.saved]
        assert not any(entry.tensor is None and entry.value < 0 for entry in saved)
    loss_gradient = torch.autograd.grad(
        case.loss(leaf := output.detach().requires_grad_()), [leaf]
    )[0]
    run.run_backward(state, loss_gradient)
    assert not state.values.keys() - {0}
    assert not (state.graphs if numerics == "float32" else state.saved)
    assert not state.gradients
    assert not state.replays
    assert not state.parameter_gradients


def test_running_statistics_are_updated_once():
    case = make("shared", "float32")
    run = executor(case)
    assert run.recomputed
    case.step(run)
    assert int(case.model.stem[1].num_batches_tracked) == 1
    assert int(case.model.block[1].num_batches_tracked) == 3


def test_a_counting_dropout_counts_every_pass_once():
    case = make("dropout", "bfp")
    run = executor(case)
    case.step(run)
    case.step(run)
    sites = [m for m in case.model.modules() if isinstance(m, layers.Dropout)]
    assert [m.step for m in sites] == [2, 2, 2]


def test_frozen_layers_get_no_gradient():
    case = make("resnet8", "float32")
    for parameter in list(case.model.parameters())[:5]:
        parameter.requires_grad_(False)
    plain, planned = case.copy(), case.copy()
    planned.step(executor(planned))
    plain.step(plain.model)
    assert_same_outcome(plain.outcome(), planned.outcome())


def test_gradient_of_the_input():
    plain = make("nested", "float32")
    planned = plain.copy()
    gradients = []
    for one, forward in ((plain, plain.model), (planned, executor(planned))):
        one.inputs = one.inputs.clone().requires_grad_()
        if forward is not one.model:
            forward = executor(one)
        one.step(forward)
        gradients.append(one.inputs.grad)
    assert torch.equal(*gradients)


def test_evaluation_is_the_model_itself():
    case = make("dropout", "float32")
    run = executor(case)
    case.model.eval()
    assert torch.equal(run(case.inputs), case.model(case.inputs))
    case.model.train()
    with torch.no_grad():
        assert not run(case.inputs[:2]).requires_grad


def test_post_accumulate_hooks_run():
    case = make("resnet8", "float32")
    seen = []
    weight = case.model[-1].weight
    run = executor(case)
    weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    case.step(run)
    assert len(seen) == 1
    assert torch.equal(seen[0], weight.grad)


def test_another_shape_is_refused():
    case = make("resnet8", "float32")
    run = executor(case)
    with pytest.raises(InputError) as caught:
        run(case.inputs[:3])
    assert str(caught.value) == (
        "this plan is for inputs of shape [4, 3, 8, 8], found [3, 3, 8, 8]; plan again for this "
        "batch"
    )


def test_a_pass_serves_one_backward():
    case = make("resnet8", "float32")
    run = executor(case)
    loss = case.loss(run(case.inputs))
    loss.backward(retain_graph=True)
    with pytest.raises(UnsupportedError, match=r"used up by its first backward\(\)"):
        loss.backward()
    images = case.inputs.clone().requires_grad_()
    with pytest.raises(UnsupportedError, match="gradients of gradients"):
        torch.autograd.grad(run(images).sum(), [images], create_graph=True)


def test_another_mode_than_planned_is_refused():
    case = make("resnet8", "float32")
    run = executor(case)
    case.model[0].eval()
    with pytest.raises(UnsupportedError, match="expected the same ones in training as then"):
        run(case.inputs)


def test_autocast_is_refused():
    case = make("resnet8", "float32")
    run = executor(case)
    message = "expected a planned pass without torch.autocast"
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UnsupportedError, match=message):
        run(case.inputs)


@pytest.mark.parametrize("paired", [False, True])
def test_a_backward_pass_under_autocast(paired):
    case = make("resnet8", "float32")
    plain = case.copy()
    tape, network = survey(case.model, case.inputs, case.loss)
    run = Executor(tape, network, compile_schedule(network, network.choices(), paired))
    for one, forward in ((plain, plain.model), (case, run)):
        loss = one.loss(forward(one.inputs))
        with torch.autocast("cpu", torch.bfloat16):
            loss.backward()
    assert_same_outcome(plain.outcome(), case.outcome())


def test_parts_in_evaluation_mode():
    case = make("resnet8", "float32")
    for module in case.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    plain, planned = case.copy(), case.copy()
    planned.step(executor(planned))
    plain.step(plain.model)
    assert_same_outcome(plain.outcome(), planned.outcome())


class Sums(nn.Module):
    """A sum of two parameters, whose gradients autograd hands on as one tensor."""

    def __init__(self):
        super().__init__()
        self.base, self.delta = (nn.Parameter(torch.full((12,), v)) for v in (0.5, 0.25))
        self.bias = nn.Parameter(torch.linspace(-1, 1, 48).view(4, 12))
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x):
        return self.head(x.flatten(1) * (self.base + self.delta) + self.bias)


def test_gradients_of_weights_have_storages_of_their_own():
    case = Case(Sums(), torch.randn(4, 3, 2, 2), torch.zeros(4).long(), nn.CrossEntropyLoss())
    plain, planned = case.copy(), case.copy()
    for one, forward in ((plain, plain.model), (planned, executor(planned))):
        one.step(forward)
        one.step(forward)
    assert_same_outcome(plain.outcome(), planned.outcome())


@pytest.mark.parametrize("numerics", ["float32", "bfp"])
def test_weights_frozen_after_planning_in_the_paired_order(numerics):
    case = make("resnet8", numerics)
    tape, network = survey(case.model, case.inputs, case.loss)
    run = Executor(tape, network, compile_schedule(network, (), paired=True))
    for parameter in case.model.parameters():
        parameter.requires_grad_(False)
    case.model[-1].bias.requires_grad_()
    case.step(run)
    assert [p.grad is not None for p in case.model.parameters()].count(True) == 1


@fx.wrap
def through(x):
    """A function that a plan does not look into: it stops gradients for some values."""
    return (x if x.sum() > 0 else x.detach()) * 2


class Stopped(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Linear(4, 4, bias=False) for _ in range(2))
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        return self.last(through(self.second(self.first(x))))


def test_a_layer_that_no_gradient_reaches_in_the_paired_order():
    """It was reached when the plan was made; each sign of the input has its turn."""
    torch.manual_seed(0)
    case = Case(Stopped(), torch.randn(4, 4), torch.arange(4), nn.CrossEntropyLoss())
    if case.model.second(case.model.first(case.inputs)).sum() < 0:
        case.inputs = -case.inputs
    tape, network = survey(case.model, case.inputs, case.loss)
    run = Executor(tape, network, compile_schedule(network, (), paired=True))
    assert [i for kind, i in run.second if kind == "weight gradient"] == [4, 2]
    for reached in (True, False):
        inputs = case.inputs if reached else -case.inputs
        planned = Case(case.model, inputs, case.labels, case.criterion)
        planned.model.zero_grad()
        plain = planned.copy()
        planned.step(run)
        plain.step(plain.model)
        assert (plain.model.second.weight.grad is not None) == reached
        assert_same_outcome(plain.outcome(), planned.outcome())


class SineByHalves(torch.autograd.Function):
    """Sine and cosine side by side: one half is given, the other one kept for the gradient."""

    @staticmethod
    def forward(ctx, x):
        both = torch.stack([x.sin(), x.cos()])
        ctx.save_for_backward(both[1])
        return both[0]

    @staticmethod
    def backward(ctx, grad):
        (cosine,) = ctx.saved_tensors
        return grad * cosine


@fx.wrap
def sine(x):
    return SineByHalves.apply(x)


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.last(sine(self.first(x)))


def test_what_a_layer_keeps_beside_its_value_in_one_storage():
    torch.manual_seed(0)
    case = Case(Waves(), torch.randn(4, 4), torch.arange(4), nn.CrossEntropyLoss())
    plain, planned = case.copy(), case.copy()
    run = executor(planned, dropped=())
    state, _ = run.run_forward(case.inputs, False)
    (entry,) = state.graphs[2].saved
    assert (entry.tensor, entry.value) == (None, 2)  # not kept a second time
    planned.step(run)
    plain.step(plain.model)
    assert_same_outcome(plain.outcome(), planned.outcome())


def test_the_second_thread_uses_as_many_threads_as_each_step(monkeypatch):
    """On whose number sums in float32 depend."""
    case = make("resnet8", "float32")
    tape, network = survey(case.model, case.inputs, case.loss)
    run = Executor(tape, network, compile_schedule(network, (), paired=True))
    real, found = Pass.weight_gradient, set()

    def counted(self, index):
        found.add((threading.current_thread() is threading.main_thread(), torch.get_num_threads()))
        return real(self, index)

    monkeypatch.setattr(Pass, "weight_gradient", counted)
    before = torch.get_num_threads()
    try:
        for threads in (before, before + 1, before):
            torch.set_num_threads(threads)
            found.clear()
            case.step(run)
            assert found == {(False, threads)}
    finally:
        torch.set_num_threads(before)


def test_a_pool_of_threads_is_one_process_own():
    case = make("resnet8", "float32")
    tape, network = survey(case.model, case.inputs, case.loss)
    run = Executor(tape, network, compile_schedule(network, (), paired=True))
    case.step(run)
    process, pool = run._pool
    run._pool = -1, pool  # as after a fork, where its thread is not
    case.step(run)
    assert run._pool[0] == process
    assert run._pool[1] is not pool


class Normalized(nn.Module):
    """A sub-layer of several operations, which saves what is neither its input nor its output."""

    def __init__(self):
        super().__init__()
        self.first, self.act = nn.Linear(12, 64), nn.Softsign()
        self.norm, self.head = nn.RMSNorm(64), nn.Linear(64, CLASSES)

    def forward(self, x):
        return self.head(self.norm(self.act(self.first(x.flatten(1)))))


def test_steps_leave_no_memory_behind():
    model = Normalized()
    case = Case(model, torch.randn(4, 3, 2, 2), torch.zeros(4).long(), nn.CrossEntropyLoss())
    run = executor(case)
    assert {"act", "norm"} <= {run.network.layers[i].name for i in run.recomputed}
    case.step(run)
    case.model.zero_grad(set_to_none=False)
    with recording() as record:
        case.step(run)
    assert record.levels[-1][1] == 0


@pytest.mark.parametrize("numerics", ["float32", "bfp"])
def test_a_pass_without_its_backward_is_freed(numerics):
    case = make("resnet8", numerics)
    run = executor(case, dropped=())
    output = run(case.inputs)
    passes = [weakref.ref(found) for found in gc.get_objects() if isinstance(found, Bookkeeping)]
    assert any(found() is not None for found in passes)
    del output
    gc.collect()
    assert all(found() is None for found in passes)


class Fan(nn.Module):
    """A convolution's output read three times: its gradient is a sum, taken by its backward."""

    def __init__(self):
        super().__init__()
        self.stem, self.a = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 1)
        self.relu, self.relu6 = nn.ReLU(), nn.ReLU6()
        self.narrow, self.flat = nn.Conv2d(16, 1, 1), nn.Flatten()
        self.head = nn.Linear(256, CLASSES)

    def forward(self, x):
        y = self.a(self.stem(x))
        return self.head(self.flat(self.narrow(self.relu(y) + self.relu6(y) + y)))


@pytest.mark.parametrize("paired", [False, True])
def test_the_sum_of_a_gradient_counts(paired):
    torch.manual_seed(0)
    inputs = BFPTensor.from_real(torch.randn(16, 3, 16, 16))
    case = Case(convert(Fan()), inputs, torch.zeros(16).long(), CrossEntropyLoss())
    tape, network = survey(case.model, case.inputs, case.loss)
    schedule = compile_schedule(network, (), paired)
    run = Executor(tape, network, schedule)
    run.inline = True
    case.step(run)
    case.model.zero_grad()
    measured = step_peak(lambda: case.step(run)) + network.layers[0].size
    predicted = peak(network, schedule)
    # Paired, the peak is where a deferred gradient is counted as long as what runs beside it.
    assert 0.99 * measured <= predicted <= (1.45 if paired else 1.01) * measured


def test_statistics_that_workers_send_are_sent_once():
    case = make("resnet8", "bfp")
    run = executor(case)
    with deferred_updates() as updates:
        case.step(run)
    assert len(updates) == sum(isinstance(m, layers.BatchNorm) for m in case.model.modules())
