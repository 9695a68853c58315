"""Graphs of models: the bits of the modules, and no graph where one could be wrong."""

import copy
import gc
import itertools

import pytest
import torch
from torch import nn

from samebits import kernels
from samebits.errors import RangeError, UnsupportedError
from samebits.train import (
    BFPTensor,
    convert,
    cross_entropy,
    layers,
    model_input,
    recording,
    set_step,
)
from samebits.train.architectures import build, initialise
from samebits.train.graph import forward
from samebits.train.recording import GraphedModel, record
from samebits.train.run.checkpoint import parameter_sha256
from samebits.train.run.engine import BfpEngine, OptimizerSettings
from samebits.train.run.trace import Recorder

SETTINGS = OptimizerSettings("sgd", 0.1, 0.9, False, 0.0, seed=0, rounding="stochastic")
CLASSES = 5
SHAPES = {
    **dict.fromkeys(("mlp", "cnn", "smooth"), (1, 8, 8)),
    **dict.fromkeys(("resnet8", "mobilenetv2"), (3, 16, 16)),
    "lstm": (7, 6),
    "vit": (1, 8, 8),
    "gpt": (9,),
}


def drawn(shape, step, samples=6):
    generator = torch.Generator().manual_seed(100 + step)
    y = torch.randint(0, CLASSES, (samples,), generator=generator)
    if len(shape) == 1:
        tokens = torch.randint(0, CLASSES, (samples, *shape), generator=generator)
        return tokens, torch.randint(0, CLASSES, (samples, *shape), generator=generator)
    return torch.randn((samples, *shape), generator=generator), y


def named(name):
    model = build(name, SHAPES[name], CLASSES)
    initialise(model, 1)
    return model, SHAPES[name]


def dropped():
    """Dropouts, one of them used twice, before and behind other layers."""
    drop, last = nn.Dropout(0.3), nn.Linear(12, CLASSES)
    layers = [nn.Linear(6, 12), drop, nn.BatchNorm1d(12), nn.Tanh(), drop, nn.Dropout(0.5), last]
    return nn.Sequential(*layers), (6,)


class Sorted(nn.Module):
    """Forward code of a user's own."""

    def __init__(self, change=None):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, CLASSES)
        self.change = change

    def forward(self, x):
        y = self.first(x)
        y = y if self.change is None else self.change(self, x, y)
        return self.second(y)


@pytest.fixture
def own_code(monkeypatch):
    """Forward code of this module counts as known, so that other guards are tried."""
    monkeypatch.setattr(recording, "KNOWN", (*recording.KNOWN, __name__.partition(".")[0]))


def walked_by_modules(engine):
    """Let an engine make its steps without graphs and routines."""
    engine._graphed, engine._record = engine.model, lambda batch: None


def steps(engine, shape, count, graphs):
    """The state after some steps, losses, and outputs in evaluation."""
    if not graphs:
        walked_by_modules(engine)
    losses = [engine.step(drawn(shape, step), 0.1, step) for step in range(count)]
    outputs = [engine.logits(drawn(shape, 50 + place)[0]) for place in range(3)]
    return parameter_sha256(engine.model.state_dict()), losses, torch.stack(outputs)


def engine_of(model, shards=1, exponents="tensor"):
    return BfpEngine(copy.deepcopy(model), SETTINGS, shards, seed=3, exponents=exponents)


def cases():
    """(network, shards, exponents): every pair of them; the slow set has all products.

    The largest networks have no rows of exponents.
    """
    for number, name in enumerate([*SHAPES, "dropped"]):
        for at, exponents in enumerate(("tensor", "row", "row-shift")):
            for shards in (1, 2):
                quick = shards == 1 + (number + at) % 2
                quick &= name not in ("vit", "mobilenetv2") or exponents == "tensor"
                marks = () if quick else pytest.mark.slow
                yield pytest.param(name, shards, exponents, marks=marks)


@pytest.mark.parametrize(("name", "shards", "exponents"), list(cases()))
def test_steps_by_a_graph_have_the_bits_of_the_modules(name, shards, exponents):
    model, shape = dropped() if name == "dropped" else named(name)
    if name == "dropped":
        shape = (6,)
    real = len(shape) > 1 or name == "dropped"

    def batches(engine, graphs):
        if not real or name != "dropped":
            return steps(engine, shape, 4, graphs)
        if not graphs:
            walked_by_modules(engine)
        losses = []
        for step in range(4):
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(6, 6, generator=generator)
            losses.append(engine.step((x, torch.arange(6) % CLASSES), 0.1, step))
        return parameter_sha256(engine.model.state_dict()), losses, torch.zeros(())

    walked, plain = (engine_of(model, shards, exponents) for _ in range(2))
    found, wanted = batches(walked, True), batches(plain, False)
    assert found[:2] == wanted[:2]
    assert torch.equal(found[2], wanted[2])
    kinds = {key[1:] for key in walked._graphed._graphs}
    assert (True, True) in kinds  # training, with gradients
    assert walked._graphed.reason == ""
    whole = name in ("mlp", "cnn", "resnet8", "mobilenetv2") and exponents == "tensor"
    if whole and kernels.realisation() == "native":
        assert all(step is not None for step in walked._recorded.values())
        assert walked._recorded


def test_evaluation_has_a_graph_of_its_own():
    model, shape = named("cnn")
    engine = engine_of(model)
    steps(engine, shape, 3, True)
    assert {key[1:] for key in engine._graphed._graphs} == {(True, True), (False, False)}


def test_a_graph_is_of_one_shape():
    model, shape = named("mlp")
    graphed = GraphedModel(convert(model))
    for samples in (3, 4, 3, 4, 3, 4):
        x = model_input(graphed.model, drawn(shape, samples, samples)[0])
        assert tuple(graphed(x).shape) == (samples, CLASSES)
    assert [key[0][0][0] for key in graphed._graphs] == [3, 4]


# --- guards -----------------------------------------------------------------------------------


def changed(what, model):
    """Change something that a graph of a model has taken for granted."""
    first, drop = model[0], model[1]
    if what == "attribute":
        drop.p = 0.5
    elif what == "hook":
        first.register_forward_hook(lambda module, inputs, output: output + output)
    elif what == "frozen":
        first.weight.requires_grad_(False)
    elif what == "mode of a part":
        drop.eval()
    elif what == "layer":
        model[3] = nn.Identity()
    elif what == "parameter":
        first.bias = None


@pytest.mark.parametrize(
    "what", ["attribute", "hook", "frozen", "mode of a part", "layer", "parameter"]
)
def test_what_changes_between_steps_counts(what):
    model = convert(dropped()[0]).train()
    twin = copy.deepcopy(model)
    graphed = GraphedModel(model)
    x = model_input(model, torch.randn(6, 6))

    def gradients(call, own):
        set_step(own, seed=1, step=2, shard=0)
        own.zero_grad(set_to_none=True)
        cross_entropy(call(x), torch.arange(6) % CLASSES).backward()
        return [None if p.grad is None else p.grad.resolved() for p in own.parameters()]

    for _ in range(3):
        before = gradients(graphed, model)
    assert graphed._graphs
    changed(what, model)
    changed(what, twin)
    found, wanted = gradients(graphed, model), gradients(twin, twin)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None)
        assert a is None or (a[1] == b[1] and torch.equal(a[0], b[0]))
    if what == "frozen":
        assert found[0] is None
    else:
        assert any(
            a is not None and b is not None and not torch.equal(a[0], b[0])
            for a, b in zip(found, before, strict=False)
        )


def counted(module, x, y):
    module.count = getattr(module, "count", 0) + 1
    return y


def by_values(module, x, y):
    return y if (y > 0).any() else -y


def by_random(module, x, y):
    return y if torch.rand(()) > 2 else y * 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (counted, "changes attributes of its modules"),
        (by_values, "reads values"),
        (by_random, "random numbers of its own"),
        (lambda module, x, y: y.detach().requires_grad_(), "that the graph does not know"),
    ],
    ids=["attributes", "values", "random", "leaf"],
)
def test_code_that_may_take_another_course_has_no_graph(own_code, change, words):
    model = convert(Sorted(change))
    x = model_input(model, torch.randn(4, 6))
    with pytest.raises(UnsupportedError, match=words):
        record(model, x)
    graphed = GraphedModel(model)
    for _ in range(4):
        graphed(x)
    assert words in graphed.reason
    assert not graphed._graphs


def test_forward_code_that_nobody_knows_has_no_graph():
    model = convert(Sorted())
    with pytest.raises(UnsupportedError, match=r"the model has code of its own \(.*Sorted\)"):
        record(model, model_input(model, torch.randn(4, 6)))


class Named(nn.Sequential):
    """A container without code of its own."""

    def __init__(self):
        super().__init__(nn.Linear(6, 4), nn.ReLU())


class Doubled(layers.Linear):
    """A layer whose computation is somebody's own."""

    def compute(self, x):
        return super().compute(x) * (2 if self.training else 3)


def test_what_counts_is_code_that_runs_in_a_pass():
    model = convert(Named())
    x = model_input(model, torch.randn(4, 6))
    assert len(record(model, x)) == 2
    model[0].__class__ = Doubled
    with pytest.raises(UnsupportedError, match=r"module '0' has code of its own \(.*Doubled\)"):
        record(model, x)


def test_a_proof_that_leaves_the_range_is_none(monkeypatch):
    model = convert(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4)))
    x = model_input(model, torch.randn(4, 6))
    far = BFPTensor(torch.ones(4, 4, dtype=torch.int16), 127)
    monkeypatch.setattr(recording, "_some_gradient", lambda like: far)
    model[1].weight.set_exponent(60)
    with pytest.raises(UnsupportedError, match="a proof leaves the range of exponents"):
        record(model, x)


class Masked(nn.Module):
    """A mask that follows from tokens."""

    def __init__(self):
        super().__init__()
        self.rows, self.out = nn.Embedding(CLASSES, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.out(self.rows(x) * (x > 2).unsqueeze(-1).float())


def test_a_mask_that_follows_from_the_input_is_no_constant(own_code):
    model = convert(Masked())
    with pytest.raises(UnsupportedError, match="may follow from the input"):
        record(model, torch.randint(0, CLASSES, (2, 3)))


def test_detached_values_get_no_gradient(own_code):
    model = convert(Sorted(lambda module, x, y: y + y.detach()))
    x = model_input(model, torch.randn(4, 6))
    assert len(record(model, x)) == 6  # and its gradients are those of the modules


# --- errors and memory ------------------------------------------------------------------------


def test_errors_name_the_layer():
    model = convert(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))
    x = model_input(model, torch.randn(3, 2))
    graph = record(model, x)
    model[0].weight.set_exponent(127)
    big = BFPTensor(x.codes, 100, bits=8)
    with pytest.raises(RangeError) as plain:
        model(big)
    with pytest.raises(RangeError) as walked:
        graph(big)
    assert str(walked.value) == str(plain.value)
    assert str(walked.value).startswith("layer '0' (Linear): ")


def test_tokens_outside_the_table_are_refused_in_every_step():
    model = convert(nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(6, 2)))
    graph = record(model, torch.tensor([[0, 3], [1, 2]]))
    with pytest.raises(UnsupportedError, match=r"expected indices in \[0, 3\], found 1 to 4"):
        graph(torch.tensor([[1, 4], [1, 2]]))


def test_one_backward_pass_before_the_parameters_change():
    model = convert(nn.Sequential(nn.Linear(2, 2)))
    x, y = model_input(model, torch.randn(3, 2)), torch.arange(3) % 2
    graph = record(model, x)
    loss = cross_entropy(graph(x), y)
    loss.backward(retain_graph=True)
    with pytest.raises(UnsupportedError, match="expected one backward pass"):
        loss.backward()
    loss = cross_entropy(graph(x), y)
    model[0].weight.codes.add_(0)
    with pytest.raises(UnsupportedError, match="before the parameters change"):
        loss.backward()


def distinct(tensors, left_out):
    own = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(size for address, size in own.items() if address not in left_out)


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet8", "lstm", "vit"])
def test_a_graph_keeps_no_more_than_the_modules(name):
    model, shape = named(name)
    model = convert(model).train()
    set_step(model, seed=1, step=2, shard=0)
    x = model_input(model, drawn(shape, 0)[0])
    graph = record(model, x)
    weights = {p.codes.untyped_storage().data_ptr() for p in model.parameters()}
    weights |= {p.delayed.untyped_storage().data_ptr() for p in model.parameters()}
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        model(x)
    _, kept = forward(graph, x.value, [p.value for p in graph.parameters], True)
    found = []
    for _, call in kept:
        values = [v for v in (*call.arguments, call.output) if hasattr(v, "parts")]
        values += call.output if isinstance(call.output, tuple) else ()
        found += [codes for v in values for codes, _ in v._parts]
        found += [t for t in call.saved if isinstance(t, torch.Tensor)]
    gc.collect()
    assert 0 < distinct(found, weights) <= distinct(saved, weights)
    assert all(len(ended) < 4 for ended in (step.ended for step in graph.instructions))
    values = {0, *itertools.chain(*(step.outputs for step in graph.instructions))}
    assert set(itertools.chain(*(s.ended for s in graph.instructions))) == values - {graph.output}


def test_a_recorder_of_traces_hears_modules_and_no_graph_is_tried():
    model, shape = named("mlp")
    engine = engine_of(model)
    engine.recorder = Recorder(engine.model)
    steps(engine, shape, 3, True)
    assert engine.recorder.take().shape[0] == 3
    assert engine._graphed._graphs == {}
    assert engine._graphed.reason == ""
