"""Steps of engines on the kernels in Triton, by the interpreter, with all options of a run."""

# ruff: noqa: E402  # where triton is missing nothing after it is imported

from __future__ import annotations

import copy
import functools
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import interpreted
import on_device

triton = pytest.importorskip("triton", reason=interpreted.MISSING)

import triton.language as tl

import samebits.train
from samebits import kernels
from samebits.errors import InputError, RangeError, UnsupportedError
from samebits.kernels import moments
from samebits.kernels.triton import adam, limits
from samebits.kernels.triton.numbers import DeviceNumber
from samebits.spec.training.clipping import clip_norm, clip_value, norm
from samebits.train import (
    SGD,
    Adam,
    BFPParameter,
    BFPTensor,
    convert,
    model_input,
    recording,
)
from samebits.train.architectures import gpt, initialise
from samebits.train.captured import ReplayedStep, cuda_graph
from samebits.train.late import LateStep, LateUsualStep
from samebits.train.run.checkpoint import parameter_sha256
from samebits.train.whole import Taken

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
BATCHES = on_device.batches(5, 8)


def net() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.25)),
        nn.Linear(144, 10),
    )


def facts(run) -> str:
    """All that an engine's next step depends on."""
    kept = run.optimizer.state_dict()["state"].values()
    numbers = [
        {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in state.items()}
        for state in kept
    ]
    return f"{parameter_sha256(run.model.state_dict())} {numbers}"


OPTIONS = {
    "adam": {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
    "clip": {"clip_norm": 0.05, "clip_value": 0.02, "nesterov": True},
    "rows": {"exponents": "row", "weight_decay": 0.1, "label_smoothing": 0.1},
    **{
        name: pytest.param(options, marks=pytest.mark.slow, id=name)
        for name, options in {
            "plain": {},
            "adamw": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
            "adam nearest": {"optimizer": "adam", "lr": 0.01, "rounding": "nearest"},
            "no momentum": {"momentum": 0.0, "weight_decay": 0.1},
            "nearest": {"rounding": "nearest", "nesterov": True},
            "norm not reached": {"clip_norm": 1e9},
            "shards": {"shards": 2, "clip_norm": 0.1},
            "narrow": {"widths": "6,12,32"},
            "from 16 bits": {"widths": "8,16,16"},
            "smoothed": {"label_smoothing": 0.1},
            "rows by adam": {"exponents": "row", "optimizer": "adam", "weight_decay": 0.1},
            "rows by adamw": {"exponents": "row", "optimizer": "adamw", "weight_decay": 0.1},
            "rows, clipped": {"exponents": "row", "clip_norm": 0.05, "nesterov": True},
            "rows of 6 bits": {"exponents": "row", "widths": "6,12,32", "shards": 2},
        }.items()
    },
}


@pytest.mark.parametrize(
    "options", [pytest.param(v, id=k) if isinstance(v, dict) else v for k, v in OPTIONS.items()]
)
def test_steps_of_an_engine_equal_the_cpus_and_wait_for_nothing(options):
    """State, moments and losses; the learning rate is another in every step, and once 0."""
    found, waits = [], []
    for name in ("native", "triton"):
        interpreted.realisation()
        with kernels.use(name):
            run = on_device.engine(net(), on_device.config(**options))
            losses = []
            for step, batch in enumerate(BATCHES):
                with interpreted.watched() as seen:
                    rate = options.get("lr", 0.1) * (0.0 if step == 3 else 0.5 + step / 8)
                    losses.append(run.step(batch, rate, step))
            if name == "triton":
                waits = interpreted.waits(seen)
                assert isinstance(run._recorded[BATCHES[0][0].shape], LateUsualStep)
            found.append((losses, facts(run)))
    assert found[0] == found[1]
    assert waits == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"exponents": "row-shift"}, {"gradient_bits": 16}, {"shards": 4}],
    ids=str,
)
def test_other_steps_of_an_engine_equal_the_cpus(options, caplog):
    """Those that may wait for the device: the peaks of channels, sums over workers."""
    caplog.set_level("INFO")
    found = []
    for name in ("native", "triton"):
        interpreted.realisation()
        with kernels.use(name):
            run = on_device.engine(net(), on_device.config(**options))
            losses = [run.step(batch, 0.1, step) for step, batch in enumerate(BATCHES[:4])]
            found.append((losses, facts(run), run.logits(BATCHES[0][0]).tolist()))
    assert found[0] == found[1]
    assert ("waits for the device" in caplog.text) == ("gradient_bits" in options)


@pytest.mark.parametrize(
    "label", [10, *(pytest.param(v, marks=pytest.mark.slow) for v in (-1, -100))]
)
def test_labels_that_are_none(label):
    """A class that there is not is told after the step, of which nothing is left; one that does not
    count is as on the CPU."""
    found = []
    for name in ("native", "triton"):
        interpreted.realisation()
        with kernels.use(name):
            run = on_device.engine(net(), on_device.config())
            for step in range(3):
                run.step(BATCHES[step], 0.1, step)
            images, labels = BATCHES[3]
            bad = torch.cat([labels[1:], torch.tensor([label])])
            before = facts(run)
            if label == -100:
                run.step((images, bad), 0.1, 3)
            else:
                with pytest.raises((InputError, UnsupportedError), match="expected"):
                    run.step((images, bad), 0.1, 3)
                assert facts(run) == before
            run.step(BATCHES[4], 0.1, 4)
            found.append(facts(run))
    assert found[0] == found[1]


@pytest.mark.slow
def test_any_number_of_workers_gives_one_hash(tmp_path):
    """Processes that exchange by gloo what GPUs exchange by NCCL."""
    script, hashes = Path(__file__).with_name("triton_workers.py"), {}
    torchrun = ("-m", "torch.distributed.run", "--standalone")
    for name, count in (("native", 1), ("triton", 1), ("triton", 2), ("triton", 4)):
        launcher = (*torchrun, f"--nproc-per-node={count}") if count > 1 else ()
        out = tmp_path / f"{name} {count}"
        command = [sys.executable, *launcher, script, out, name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
        assert done.returncode == 0, done.stderr
        hashes[name, count] = json.loads((out / "result.json").read_text())["sha256"]
    assert len(set(hashes.values())) == 1, hashes


# --- one graph ----------------------------------------------------------------------------------


def late_step(
    model: nn.Module, x: torch.Tensor, adam: bool = False, exponents: str = "tensor"
) -> tuple[LateStep, nn.Module]:
    initialise(model, 3)
    twin = convert(model, exponents)
    twin.train()
    make = functools.partial(Adam, decoupled=True) if adam else functools.partial(SGD, momentum=0.9)
    optimizer = make(twin.parameters(), lr=0.05, weight_decay=1e-3)
    given = model_input(twin, x) if x.is_floating_point() else x
    graph, _ = recording.traced(twin, given)
    return LateStep(graph, optimizer, Taken.by(twin, 0.0)), twin


@pytest.mark.parametrize(
    "adam", [pytest.param(False, id="sgd"), pytest.param(True, id="adam", marks=pytest.mark.slow)]
)
def test_a_step_is_a_fixed_list_of_launches(adam):
    """Two steps by other samples, numbers and coefficients: nothing but memory differs."""
    interpreted.realisation()
    with kernels.use("triton"):
        step, _ = late_step(net(), BATCHES[0][0], adam)
        lists = []
        for number, (images, labels) in enumerate(BATCHES[:4]):
            for group in step.optimizer.param_groups:
                group["lr"] = 0.05 / (1 + number)
            if number:
                step.optimizer.announce()
            at = kernels.number(torch.tensor(number), copied=False)
            with interpreted.Recorded() as recorded:
                loss = step(images, labels, at)
            loss.read()
            lists.append(recorded.facts)
        assert lists[2] == lists[3]
        assert len(lists[3]) > 100
        cleared = [fact for fact in lists[3] if "zero_" in fact and "int64" in fact]
        assert len(cleared) == 1  # all slots
        for name in ("lift_fresh", "_local_scalar_dense"):  # numbers from a host, and to it
            assert not [fact for fact in lists[3] if name in fact]


def text_net() -> nn.Module:
    return gpt(5, 3, width=8, depth=1)


TEXTS = [torch.randint(5, (2, 3), generator=torch.Generator().manual_seed(i)) for i in range(5)]
LINES = [(text, text.roll(1, 1)) for text in TEXTS]


@pytest.mark.slow
def test_steps_of_texts_by_rows_equal_the_cpus_and_wait_for_nothing():
    interpreted.realisation()
    found = []
    for name in ("native", "triton"):
        with kernels.use(name):
            step, twin = late_step(text_net(), TEXTS[0], exponents="row")
            losses = []
            for number, (text, labels) in enumerate(LINES[:3]):
                with interpreted.watched() as seen:
                    loss = step(text, labels, number)
                losses.append(loss.read())
            found.append((losses, parameter_sha256(twin.state_dict())))
    assert found[0] == found[1]
    assert interpreted.waits(seen) == []


@pytest.mark.parametrize(
    "name",
    ["sgd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("adam", "rows")), "text"],
)
def test_a_captured_step_gives_the_same_bits(name):
    """What was launched once, launched again on the same memory, is the next step."""
    batches, make = (LINES, text_net) if name == "text" else (BATCHES, net)
    exponents = "row" if name == "rows" else "tensor"
    interpreted.realisation()
    found = []
    for capture in (None, interpreted.captured):
        with kernels.use("triton"):
            step, twin = late_step(make(), batches[0][0], name == "adam", exponents)
            taken = step if capture is None else ReplayedStep(step, capture)
            losses = []
            for number, (images, labels) in enumerate(batches):
                for group in step.optimizer.param_groups:
                    group["lr"] = 0.05 / (1 + number)
                losses.append(taken(images, labels, number).read())
            found.append((losses, parameter_sha256(twin.state_dict())))
    assert found[0] == found[1]


def to_nearest(optimizer):
    for group in optimizer.param_groups:
        group["rounding"] = "nearest"


def without_moments(optimizer):
    state = copy.deepcopy(optimizer.state_dict())
    for own in state["state"].values():
        own |= {k: torch.zeros_like(v) for k, v in own.items() if getattr(v, "ndim", 0)}
    optimizer.load_state_dict(state)


@pytest.mark.parametrize("change", [to_nearest, without_moments])
def test_what_is_changed_after_a_capture_counts(change):
    interpreted.realisation()
    found = []
    for capture in (None, interpreted.captured):
        with kernels.use("triton"):
            step, twin = late_step(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), BATCHES[0][0])
            taken = step if capture is None else ReplayedStep(step, capture)
            for number, (images, labels) in enumerate(BATCHES):
                if number == 3:
                    before = parameter_sha256(twin.state_dict())
                    change(step.optimizer)
                taken(images, labels, number).read()
            found.append((before, parameter_sha256(twin.state_dict())))
    assert found[0] == found[1]


def failing(_):
    raise RuntimeError("operation not permitted when stream is capturing")


def test_what_is_not_replayed(caplog):
    """A learning rate of 0, and all where a capture fails."""
    caplog.set_level("INFO")
    interpreted.realisation()
    found = []
    for capture in (None, interpreted.captured, failing):
        with kernels.use("triton"):
            model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
            step, twin = late_step(model, BATCHES[0][0])
            taken = step if capture is None else ReplayedStep(step, capture)
            for number, (images, labels) in enumerate(BATCHES):
                for group in step.optimizer.param_groups:
                    group["lr"] = 0.0 if number == 2 else 0.1
                taken(images, labels, number).read()
            found.append(parameter_sha256(twin.state_dict()))
    assert len(set(found)) == 1
    assert "launched one by one: operation not permitted" in caplog.text


def test_capturing_wants_a_device():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(UnsupportedError, match="expected a CUDA device, found none"):
        cuda_graph(lambda: None)


# --- clipping and Adam at their ends ------------------------------------------------------------


def gradients(rng: random.Random, count: int) -> list[tuple[list[int], int]]:
    found = []
    for _ in range(count):
        top = rng.choice((1, 127, 32767, 0x7F7F7F7F))
        codes = [rng.randint(-top, top) for _ in range(rng.choice((1, 5, 40)))]
        if rng.random() < 0.2:
            codes = [0] * len(codes)
        found.append((codes, rng.choice((0, -3, -40, -128, -300)) if any(codes) else -128))
    return found


def test_norms_at_their_ends():
    """The sum of squares over all exponents, ties, and what is not clipped."""
    k, rng = interpreted.realisation()(), random.Random(5)
    cases = [gradients(rng, rng.choice((1, 2, 7))) for _ in range(12)]
    cases += [[([3, 4], 0)], [([0], -128)], [([1 << 26, 1], 0), ([1], -27), ([1], -300)]]
    for given in cases:
        parts = [(torch.tensor(c, dtype=torch.int32), e) for c, e in given]
        for limit in (5.0, 1e-30, 2.0**20):
            wanted = clip_norm(given, limit)
            found = [(c.tolist(), int(e)) for c, e in limits.by_norm(k, parts, limit)]
            assert found == wanted
    assert limits.by_norm(k, [], 1.0) == []


def test_a_norm_is_rounded_by_all_that_its_sum_has():
    """Sums of squares that would be ties but for a square far below them."""
    k, rng, found = interpreted.realisation()(), random.Random(8), 0
    while found < 4:
        codes = [rng.randrange(1 << 29, 0x7F7F7F80) for _ in range(2)]
        total = sum(c * c for c in codes)
        if total % (1 << total.bit_length() - 53) != 1 << total.bit_length() - 54:
            continue
        limit, given = math.sqrt(float(total)), [(codes, 0), ([1], -40)]
        if norm(given) > limit:
            found += 1
            parts = [(torch.tensor(c, dtype=torch.int32), e) for c, e in given]
            assert [(c.tolist(), int(e)) for c, e in limits.by_norm(k, parts, limit)] == clip_norm(
                given, limit
            )


@triton.jit
def coded(v, out, e, COUNT: tl.constexpr, RANDOM: tl.constexpr):
    i = tl.arange(0, COUNT)
    tl.store(out + i, adam.encoded(tl.load(v + i), e, i.to(tl.int64), RANDOM).to(tl.int16))


@pytest.mark.parametrize("is_random", [False, True])
def test_codes_of_moments_at_their_ties(is_random):
    """Numbers halfway between codes, next to that, and too small for one."""
    interpreted.realisation()
    leading = torch.arange(512, 1024).double()
    v = torch.stack([leading, leading + 0.5, leading + 0.5 - 2**-40, leading + 0.5 + 2**-40])
    v = torch.cat([sign * v.flatten() * 2.0**by for sign in (1, -1) for by in (-3, -66, 30, 0)])
    out = torch.empty(len(v), dtype=torch.int16)
    coded[(1,)](v, out, 40, COUNT=len(v), RANDOM=is_random)
    bits = torch.arange(len(v)) if is_random else None
    assert torch.equal(out, moments.encode(v, 40, bits))


def test_values_at_their_ends():
    k, rng = interpreted.realisation()(), random.Random(6)
    for codes, exponent in gradients(rng, 60):
        for limit in (5.0, 4.999, 1e-3, 1e-38, 2.0**20, 1e300, 5e-324):
            wanted = clip_value((codes, exponent), limit)
            at = DeviceNumber(torch.tensor(exponent))
            given = torch.tensor(codes, dtype=torch.int32), at
            found, own = limits.by_value(k, given, limit)
            assert (found.tolist(), int(own)) == wanted


RULES = {
    "adam": (Adam, {"betas": (0.8, 0.99)}, (-20, -500, -60, -128, 3, -20)),
    "adamw": (Adam, {"betas": (0.8, 0.99), "decoupled": True}, (-20, -500, 3)),
    "sgd": (SGD, {"momentum": 0.9, "nesterov": True}, (-20, 10, 40, -200, 60, -128)),
}


@pytest.mark.parametrize("by_rows", [False, True], ids=["one exponent", "by rows"])
@pytest.mark.parametrize("rule", RULES)
def test_optimizers_at_their_ends(rule, by_rows):
    """Steps by gradients of all sizes, zeros among them, beside those in C."""
    rng, ends = random.Random(7), []
    make, options, exponents = RULES[rule]
    shape, given = (12, 25), []  # row by row of other sizes, one of them without a gradient
    for e in exponents:
        tops = [rng.choice((0, 1, 1000, 0x7F7F7F7F)) for _ in range(shape[0])]
        given.append(([[rng.randint(-top, top) for _ in range(25)] for top in tops], e))
    interpreted.realisation()
    for name in ("native", "triton"):
        with kernels.use(name):
            draw = torch.Generator().manual_seed(2)
            values = torch.randn(shape, generator=draw) * 2.0 ** -torch.arange(12).view(-1, 1)
            parameter = BFPParameter.from_real(values, by_rows=by_rows)
            optimizer = make([parameter], lr=0.01, weight_decay=0.125, **options)
            for codes, exponent in given:
                parameter.grad = BFPTensor(torch.tensor(codes, dtype=torch.int32), exponent)
                optimizer.step()
                kernels.check(torch.device("cpu"))
            held = [v.tolist() for v in parameter.value.tensors]
            state = optimizer.state_dict()["state"][0]
            ends.append(
                (held, {k: getattr(v, "tolist", lambda v=v: v)() for k, v in state.items()})
            )
    assert ends[0] == ends[1]


def test_adam_out_of_range_changes_nothing():
    interpreted.realisation()
    with kernels.use("triton"):
        parameter = BFPParameter.from_real(torch.tensor([0.5, -0.25]))
        optimizer = Adam([parameter], lr=0.5)
        before = [v.clone() for v in parameter.value.tensors]
        parameter.grad = BFPTensor(torch.tensor([9, -9], dtype=torch.int32), 140)
        optimizer.step()
        with pytest.raises(RangeError, match="at most 127, found 1"):
            kernels.check(torch.device("cpu"))
        assert all(map(torch.equal, before, parameter.value.tensors))
        assert not dict(optimizer.state[parameter])


class LastState(nn.Module):
    """The last state of a recurrent layer, and classes of it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(6, 4, batch_first=True)
        self.out = nn.Linear(4, 4)

    def forward(self, x):
        return self.out(self.layer(x)[0][:, -1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_steps_wait_and_give_the_bits_of_the_cpu(kind):
    """With one exponent a tensor, which the host reads for every step over time."""
    interpreted.realisation()
    torch.manual_seed(0)
    x, labels, net = torch.randn(8, 3, 6), torch.arange(8) % 4, LastState(kind)

    def run():
        engine = on_device.engine(copy.deepcopy(net), on_device.config())
        return [engine.step((x, labels), 0.05, step) for step in range(2)], parameter_sha256(
            engine.model.state_dict()
        )

    expected = run()
    with kernels.use("triton"):
        assert run() == expected


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss"])
def test_other_losses_wait_and_give_the_bits_of_the_cpu(loss):
    interpreted.realisation()
    torch.manual_seed(0)
    x, target, net = torch.randn(8, 6), torch.rand(8, 4), nn.Sequential(nn.Linear(6, 4))

    def run():
        model = convert(copy.deepcopy(net))
        optimizer = SGD(model.parameters(), lr=0.05)
        value = getattr(samebits.train, loss)(model(BFPTensor.from_real(x)), target)
        value.backward()
        optimizer.step()
        return float(value.detach()), parameter_sha256(model.state_dict())

    expected = run()
    with kernels.use("triton"):
        assert run() == expected
