"""Whole steps as routines: loss, gradients and running state of the parts that they are made of."""

from __future__ import annotations

import copy
import itertools
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from samebits import kernels
from samebits.errors import NonFiniteError, RangeError, UnsupportedError
from samebits.kernels.routine import NotRecordableError
from samebits.spec.training.loss import MANY
from samebits.train import convert, cross_entropy, model_input, set_step
from samebits.train.architectures import build, gpt, initialise
from samebits.train.convert import is_by_rows
from samebits.train.deferred import deferred_updates
from samebits.train.recording import record
from samebits.train.routines import state_of
from samebits.train.run.checkpoint import parameter_sha256
from samebits.train.run.engine import BfpEngine, OptimizerSettings
from samebits.train.value import same_parts
from samebits.train.whole import Taken, record_step


def dropping():
    """A dropout that is called twice, and another one."""
    drop = nn.Dropout(0.3)
    layers = (nn.Linear(6, 9), nn.ReLU(), drop, nn.Linear(9, 9), nn.ReLU(), drop)
    return nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(9, 5))


WORDS = (7,)  # of samples that are texts: a class for each of its places
NETS = {
    "words": lambda: (gpt(9, 7, width=32, depth=1), WORDS),
    "lines": lambda: (nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5)), (6,)),
    "dropouts": lambda: (dropping(), (6,)),
    **{
        name: lambda name=name, shape=shape: (build(name, shape, 5), shape)
        for name, shape in (("cnn", (1, 8, 8)), ("resnet8", (3, 16, 16)))
    },
}


BY_ROWS = ("words", "lines", "cnn", "resnet8")


@pytest.fixture(autouse=True)
def native():
    if kernels.realisation() != "native":
        pytest.skip("no native kernels")


def drawn(shape, seed, samples=6):
    generator = torch.Generator().manual_seed(seed)
    if shape == WORDS:
        return torch.randint(0, 9, (2, samples, *shape), generator=generator).unbind()
    images = 2.0 ** (seed % 9 - 4) * torch.randn((samples, *shape), generator=generator)
    return images, torch.randint(0, 5, (samples,), generator=generator)


def taken(model, images):
    """The model's input."""
    return model_input(model, images) if images.is_floating_point() else images


def recorded(name, shards=1, samples=6, exponents="tensor", smoothing=0.0):
    """A model, the graph of a shard, the whole step, and the shape of a sample."""
    model, shape = NETS[name]()
    initialise(model, 1)
    model = convert(model, exponents).train()
    images, target = drawn(shape, 0, samples)
    graph = record(model, taken(model, images[: len(images) // shards]))
    before = {name: v.clone() for name, v in model.named_buffers()}
    weights = [p.value for p in graph.parameters]
    own = Taken(8, is_by_rows(model), smoothing)
    step = record_step(graph, (images, target), weights, own, shards)
    assert all(torch.equal(v, before[name]) for name, v in model.named_buffers())
    return model, graph, step, shape


@pytest.mark.parametrize(
    ("name", "shards", "samples", "exponents", "smoothing"),
    # Of so many samples that a mean over them needs amounts (training.md 6.2), the last ones.
    [
        *itertools.product(NETS, (1, 2, 3), (6,), ("tensor",), (0.0,)),
        *itertools.product(BY_ROWS, (1, 2, 3), (6,), ("row",), (0.0,)),
        *(("lines", 1, MANY, "tensor", 0.0), ("lines", 2, 2 * MANY - 2, "tensor", 0.0)),
        *(("cnn", 2, 6, "tensor", 0.1), ("words", 1, 6, "tensor", 1.0)),
        *((name, 1, 6, "row", 0.3) for name in BY_ROWS),
    ],
)
def test_a_whole_step_has_the_bits_of_its_parts(name, shards, samples, exponents, smoothing):
    model, graph, step, shape = recorded(name, shards, samples, exponents, smoothing)
    for seed in range(8):
        images, target = drawn(shape, seed, samples)
        state = {name: v.clone() for name, v in model.named_buffers()}
        total = 0.0
        with deferred_updates() as updates:
            parts = zip(*(v.split(samples // shards) for v in (images, target)), strict=True)
            for shard, (x, y) in enumerate(parts):
                set_step(model, 0, seed, shard)
                logits = model(taken(model, x))
                lines = logits.transpose(1, 2) if y.dim() > 1 else logits
                loss = cross_entropy(lines, y, label_smoothing=smoothing)
                (loss / shards).backward()
                total += float(loss.detach())
        for update in updates:
            update.apply()
        moved = {name: v.clone() for name, v in model.named_buffers()}
        for name, v in model.named_buffers():
            v.copy_(state[name])
        assert step.fits(images, target, state_of([p.value for p in graph.parameters]))
        assert step(images, target, seed) == total / shards
        assert all(torch.equal(v, moved[name]) for name, v in model.named_buffers())
        for place, p in zip(step.gradients, graph.parameters, strict=True):
            found, wanted = place.value(), p.grad.value
            assert found.bounds == wanted.bounds
            assert all(map(same_parts, found.parts, wanted.parts))
            p.grad = None
        with torch.no_grad():  # the weights move
            for place, p in enumerate(graph.parameters):
                p.codes.copy_(p.codes.flatten().roll(1).view(p.codes.shape))
                if seed % 3 == place % 3:
                    p.set_exponent(p.exponent + 1 - 2 * (seed % 2))


def test_what_is_no_class_for_a_sample_or_its_places_is_not_recorded():
    """Of images their classes come second: squares of as many pixels as classes look alike."""
    model = convert(nn.Sequential(nn.Conv2d(5, 5, 1))).train()
    images, target = torch.randn(2, 5, 5, 5), torch.zeros(2, 5, 5, dtype=torch.int64)
    graph = record(model, model_input(model, images))
    with pytest.raises(NotRecordableError, match="a vector of classes for each target"):
        record_step(graph, (images, target), [p.value for p in graph.parameters], Taken(8, False))


@pytest.mark.parametrize("place", ["a sample", "a target"])
def test_a_word_that_is_none_changes_nothing(place):
    _, _, step, shape = recorded("words")
    for wrong in (9, -1):
        images, target = drawn(shape, 1)
        (images if place == "a sample" else target)[3, 2] = wrong
        assert step(images, target, 0) is None
    assert step(*drawn(shape, 1), 0) is not None


@pytest.mark.parametrize("wrong", ["a class", "a negative class", "infinity", "NaN"])
def test_a_batch_that_does_not_fit_changes_nothing(wrong):
    model, _, step, shape = recorded("cnn")
    images, target = drawn(shape, 1)
    if "class" in wrong:
        target[2] = 5 if wrong == "a class" else -1
    else:
        images[3, 0, 1, 1] = torch.inf if wrong == "infinity" else torch.nan
    before = [v.clone() for v in model.buffers()]
    assert step(images, target, 0) is None
    assert all(map(torch.equal, model.buffers(), before))
    assert step(*drawn(shape, 1), 0) is not None


def test_an_exponent_out_of_range_changes_nothing():
    model, graph, step, shape = recorded("cnn")
    graph.parameters[0].set_exponent(127)
    before = [v.clone() for v in model.buffers()]
    assert step(*drawn(shape, 8), 0) is None
    assert all(map(torch.equal, model.buffers(), before))


def test_other_batches_do_not_fit():
    _, graph, step, shape = recorded("lines")
    weights = [p.value for p in graph.parameters]
    images, target = drawn(shape, 1)
    assert not step.fits(images[:3], target[:3], state_of(weights))
    assert not step.fits(images.double(), target, state_of(weights))
    assert not step.fits(images, target.int(), state_of(weights))
    weights[0] = copy.deepcopy(graph.parameters[0]).value
    assert not step.fits(images, target, state_of(weights))


def test_other_kinds_of_batches_are_not_recorded():
    _, graph, _, shape = recorded("lines")
    weights = [p.value for p in graph.parameters]
    images, target = drawn(shape, 1)
    for batch in ((images.double(), target), (images, target.double())):
        with pytest.raises(NotRecordableError):
            record_step(graph, batch, weights, Taken(8, False))


# --- engines ----------------------------------------------------------------------------------

SETTINGS = OptimizerSettings("adam", 0.02, 0.0, False, 0.001, seed=0, rounding="stochastic")


def engines(shards=1, settings=SETTINGS, name="cnn"):
    """Two engines of one model: the second makes its steps by modules."""
    model, shape = NETS[name]()
    initialise(model, 1)
    both = [BfpEngine(copy.deepcopy(model), settings, shards, seed=3) for _ in range(2)]
    both[1]._graphed, both[1]._record = both[1].model, lambda batch: None
    return both, shape


def state(engine):
    """All that a checkpoint holds of an engine."""
    moments = engine.optimizer.state_dict()["state"].values()
    stored = [
        (v.dtype, v.shape, v.numpy().tobytes()) if isinstance(v, torch.Tensor) else v
        for s in moments
        for v in s.values()
    ]
    return parameter_sha256(engine.model.state_dict()), stored


def made(engine):
    """Whether a step is recorded."""
    return bool(engine._recorded) and all(step is not None for step in engine._recorded.values())


@pytest.mark.parametrize(
    ("shards", "name"), [(1, "cnn"), (3, "cnn"), (2, "words"), (2, "dropouts")]
)
def test_what_a_run_does_between_steps_counts(shards, name):
    """Rates that change, evaluation, batches of two sizes, a loaded optimizer and model."""
    (found, wanted), shape = engines(shards, name=name)
    for step in range(14):
        batch = drawn(shape, step % 3, samples=12 if step % 4 == 3 else 6)
        losses = [engine.step(batch, 0.02 / (1 + step), step) for engine in (found, wanted)]
        assert losses[0] == losses[1]
        if step == 6:
            outputs = [engine.logits(batch[0]) for engine in (found, wanted)]
            assert torch.equal(*outputs)
        if step == 9:
            for engine in (found, wanted):
                engine.optimizer.load_state_dict(copy.deepcopy(engine.optimizer.state_dict()))
                engine.model.load_state_dict(copy.deepcopy(engine.model.state_dict()))
        assert state(found) == state(wanted)
    assert made(found)
    assert len(found._recorded) == 2


def test_a_step_whose_update_fails_leaves_weights_and_moments():
    (found, wanted), shape = engines()
    for step in range(5):
        for engine in (found, wanted):
            engine.step(drawn(shape, step), 0.02, step)
    assert made(found)
    for engine in (found, wanted):
        with pytest.raises(RangeError, match=r"parameter '.*': "):
            engine.step(drawn(shape, 5), 2.0**140, 5)
    assert state(found) == state(wanted)


def test_whoever_changes_the_model_is_heard():
    (found, wanted), shape = engines()
    for step in range(9):
        if step == 5:
            for engine in (found, wanted):
                norm = next(m for m in engine.model.modules() if hasattr(m, "momentum"))
                norm.momentum = 0.5
        if step == 7:
            for engine in (found, wanted):
                next(iter(engine.model.parameters())).requires_grad_(False)
        for engine in (found, wanted):
            engine.step(drawn(shape, step), 0.02, step)
        assert state(found) == state(wanted)


def test_a_bad_batch_is_the_error_of_the_parts():
    (found, wanted), shape = engines()
    for step in range(5):
        for engine in (found, wanted):
            engine.step(drawn(shape, step), 0.02, step)
    images, target = drawn(shape, 5)
    target[1] = 7
    for engine in (found, wanted):
        with pytest.raises(UnsupportedError, match="found 0 to 7"):
            engine.step((images, target), 0.02, 5)
    images[2] = torch.nan
    for engine in (found, wanted):
        with pytest.raises(NonFiniteError, match="found nan at index"):
            engine.step((images, torch.zeros_like(target)), 0.02, 5)
    assert state(found) == state(wanted)


@pytest.mark.parametrize(
    "settings",
    [
        replace(SETTINGS, clip_norm=0.5),
        replace(SETTINGS, clip_value=0.5),
        replace(SETTINGS, name="sgd", momentum=0.9, nesterov=True),
        replace(SETTINGS, name="adamw", rounding="nearest"),
    ],
    ids=["norm", "value", "sgd", "adamw"],
)
def test_options_of_the_optimizer_hold(settings):
    (found, wanted), shape = engines(settings=settings)
    for step in range(6):
        for engine in (found, wanted):
            engine.step(drawn(shape, step), 0.02, step)
        assert state(found) == state(wanted)
    assert made(found)


def test_a_step_takes_fifty_python_calls_whatever_the_depth():
    counts = []
    for name in ("lines", "cnn", "resnet8", "words"):
        model, shape = NETS[name]()
        initialise(model, 1)
        engine = BfpEngine(model, SETTINGS, 1, seed=3)
        for step in range(5):
            engine.step(drawn(shape, step), 0.02, step)
        assert made(engine)
        calls, batch = [], drawn(shape, 5)
        sys.setprofile(lambda frame, event, argument, calls=calls: calls.append(event))
        engine.step(batch, 0.02, 5)
        sys.setprofile(None)
        counts.append(sum(event in ("call", "c_call") for event in calls) - 1)  # of setprofile
    assert max(counts) <= 50
    assert len(set(counts)) == 1
