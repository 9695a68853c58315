"""Whole steps on the kernels in Triton, by the interpreter: the CPU's bits, and nothing read."""

# ruff: noqa: E402  # where triton is missing nothing after it is imported

from __future__ import annotations

import contextlib
import importlib.util
import math
import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn

import interpreted
import on_device

triton = pytest.importorskip("triton", reason=interpreted.MISSING)

import triton.language as tl

from samebits import kernels
from samebits.errors import RangeError, UnsupportedError
from samebits.kernels import selftest
from samebits.kernels.eager import Eager
from samebits.kernels.triton import launch, norms, numbers
from samebits.kernels.triton.numbers import DeviceNumber
from samebits.numerics import philox
from samebits.train import SGD, BFPParameter, BFPTensor, convert, recording
from samebits.train.architectures import initialise
from samebits.train.late import LateStep
from samebits.train.run.checkpoint import parameter_sha256
from samebits.train.whole import Taken


class Block(nn.Module):
    """A block of a transformer, and a classifier behind it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up, self.down, self.out = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.first(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        x = x + self.down(nn.functional.gelu(self.up(self.second(x))))
        return self.out(x.mean(1))


NETS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)), (6,)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(4, 5, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3),
        ),
        (2, 6, 6),
    ),
    "block": (Block, (5, 8)),
}  # fmt: skip


@contextlib.contextmanager
def counted():
    """Names of what reads tensors inside a with block, and so would wait for a device."""
    found = list[str]()

    def watched(name):
        plain = getattr(torch.Tensor, name)

        def read(*arguments, **options):
            found.append(name)
            return plain(*arguments, **options)

        return read

    with pytest.MonkeyPatch.context() as patch:
        for name in ("item", "cpu", "tolist", "__bool__", "nonzero", "numpy", "__int__"):
            patch.setattr(torch.Tensor, name, watched(name))
        yield found


def trained(net: str, realisation: str, steps: int = 2) -> tuple[str, list[str]]:
    """SHA-256 of the state after steps of SGD, and what was read on the way in the last one."""
    make, shape = NETS[net]
    interpreted.realisation()
    with kernels.use(realisation):
        model = make()
        initialise(model, 3)
        twin = convert(model)
        optimizer = SGD(twin.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
        batch = 4
        count = batch * torch.Size(shape).numel()
        images = (philox.words(count, (1, 2)).double() * 2.0**-31 - 1.0).float()
        images, target = images.view(batch, *shape), torch.arange(batch) % 3
        twin.train()
        graph, _ = recording.traced(twin, BFPTensor.from_real(images))
        step, losses = LateStep(graph, optimizer, Taken(8, False)), []
        for _ in range(steps):
            with counted() as found:
                loss = step(images, target)
            losses.append(loss.read())
        return f"{parameter_sha256(twin.state_dict())} {losses}", found


@pytest.mark.parametrize(
    "net", ["mlp", *(pytest.param(net, marks=pytest.mark.slow) for net in ("cnn", "block"))]
)
def test_steps_equal_the_cpu_and_read_nothing(net):
    """Between the first and the last launch of a step nobody waits for the device."""
    sha256, read = trained(net, "triton")
    assert sha256 == trained(net, "native")[0]
    assert read == []


def test_the_self_test_passes():
    assert selftest.failures(interpreted.checked(), "cpu") == []


@triton.jit
def spreads(s1, s2, n, out, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    tl.store(out + i, norms.spread_of(tl.load(s1 + i), tl.load(s2 + i), tl.load(n + i)))


@triton.jit
def shifted(x, e, out, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    tl.store(out + i, norms.ldexp(tl.load(x + i), tl.load(e + i)))


def test_variances_are_rounded_once_from_up_to_78_bits():
    interpreted.realisation()
    rng, rows = random.Random(1), []
    while len(rows) < 4096:
        n = rng.choice((2, 3, 1 << 10, 40000, 1 << 24))
        s1 = rng.randrange(-n * 32639, n * 32639 + 1) >> rng.randrange(20)
        least = -(-s1 * s1 // n)
        s2 = min(least + rng.getrandbits(rng.randrange(1, 55)), n * 32639**2)
        if s2 * n >= s1 * s1:
            rows.append((s1, s2, n))
    given = [torch.tensor(v) for v in zip(*rows, strict=True)]
    out = torch.empty(len(rows), dtype=torch.float64)
    spreads[(1,)](*given, out, COUNT=len(rows))
    assert out.tolist() == [float(n * s2 - s1 * s1) for s1, s2, n in rows]


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_powers_of_two_are_multiplied_with_one_rounding():
    interpreted.realisation()
    rng = random.Random(2)
    x = [
        rng.choice((-1, 1)) * math.ldexp(rng.random() + 0.5, rng.randrange(-1080, 900))
        for _ in range(4090)
    ]
    x += [0.0, -0.0, math.inf, -math.inf, 5e-324, 1.5]
    e = [rng.randrange(-2200, 2200) if i % 3 else rng.randrange(-60, 60) for i in range(len(x))]
    out = torch.empty(len(x), dtype=torch.float64)
    shifted[(1,)](torch.tensor(x, dtype=torch.float64), torch.tensor(e), out, COUNT=len(x))
    assert out.tolist() == np.ldexp(np.array(x), np.array(e)).tolist()


def test_a_step_out_of_range_changes_nothing():
    """The flag goes up in the step, and is read when somebody asks."""
    interpreted.realisation()
    with kernels.use("triton"):
        parameter = BFPParameter.from_real(torch.tensor([[0.5, -0.25], [0.125, 1.0]]))
        optimizer = SGD([parameter], lr=0.5, momentum=0.9)
        before = [v.clone() for v in parameter.value.tensors]
        for exponent in (120, -20):  # the second is fine, and waits for the first to be read
            parameter.grad = BFPTensor(torch.tensor([[9, -9], [7, 1]], dtype=torch.int32), exponent)
            optimizer.step()
        with pytest.raises(RangeError, match="at most 127, found 1"):
            kernels.check(torch.device("cpu"))
        assert all(map(torch.equal, before, parameter.value.tensors))
        assert not dict(optimizer.state[parameter])
        optimizer.step()
        kernels.check(torch.device("cpu"))
        assert not torch.equal(before[1], parameter.delayed)
        assert optimizer.state[parameter]["steps"] == 1


@pytest.mark.parametrize("gap", [0, 5, 22, 23, 40])
def test_the_exponent_of_a_sum_of_two(gap):
    k, codes = interpreted.checked(), torch.arange(-127, 128).to(torch.int8)
    for a, b in ((codes, codes.flip(0)), (codes, codes * 0), (codes * 0, codes * 0)):
        for e, f in ((-9, gap - 9), (gap - 9, -9)):
            acc, largest, exponent = k.add_sums(a, e, b, f)
            wanted, *numbers = Eager().add_sums(a, e, b, f)
            assert torch.equal(acc.long(), wanted)
            assert [largest, exponent] == numbers


def test_reading_a_number():
    number = DeviceNumber(torch.tensor(5)) + 2
    assert (number - 3, 3 - number, -number, 2 * number) == (4, -4, -7, 14)
    assert (number > 6, number.larger(9), f"{number}", number == 7) == (True, 9, "7", True)
    assert torch.equal(torch.tensor([1]) + number, torch.tensor([8]))
    assert pickle.loads(pickle.dumps(number)) == 7
    with pytest.raises(OverflowError):  # C code that does not ask
        math.ldexp(1.0, number)


def test_cpu_tensors_are_refused_without_the_interpreter(monkeypatch):
    monkeypatch.setattr(launch, "INTERPRETED", False)
    with pytest.raises(UnsupportedError, match="CUDA device, found some on cpu"):
        interpreted.realisation()().largest_of(torch.ones(3, dtype=torch.int32))


def test_triton_is_refused_by_name_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with (
        pytest.raises(UnsupportedError, match="expected the package triton"),
        kernels.use("triton"),
    ):
        pass


def test_a_device_has_one_flag_by_all_its_names():
    assert numbers.flag(torch.device("cpu")) is numbers.flag(torch.device("cpu", 0))
    assert numbers.zero(torch.device("cpu")) is not numbers.flag(torch.device("cpu"))


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # numpy, for Triton
def test_an_engine_says_that_a_step_has_failed():
    """Where the training diverges and where an input is no number; and it evaluates batch norms."""
    own = on_device.config()
    with kernels.use("triton"):
        rows = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
        x, y = on_device.batches(1, 8)[0]
        run = on_device.engine(rows, own)
        run.step((x, y), 1e37, 0)
        with pytest.raises(RangeError, match="expected an exponent of at most 127"):
            run.step((x, y), 1e37, 1)
        run = on_device.engine(rows, own)
        with pytest.raises(RangeError, match="expected a finite value"):
            run.step((x * math.nan, y), 0.1, 0)
    norms_too = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    )
    found = []
    for name in ("native", "triton"):
        with kernels.use(name):
            run = on_device.engine(norms_too, own)
            found.append((run.step((x, y), 0.1, 0), run.logits(x)))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def plain(v):
    """A result with its numbers read, and codes as lists."""
    if isinstance(v, torch.Tensor):
        return v.tolist()
    return [plain(each) for each in v] if isinstance(v, list | tuple) else int(v)


def test_numbers_of_rows_are_found_where_they_lie():
    """What `Eager` finds by reading: exponents far apart, rows and tensors of zeros."""
    k, eager = interpreted.checked(), Eager()
    draw = torch.Generator().manual_seed(3)
    codes = torch.randint(-127, 128, (6, 2, 3, 3), generator=draw).to(torch.int8)
    codes[2], codes[4, 1] = 0, 0
    sums = codes.long() * torch.randint(1 << 20, codes.shape, generator=draw)
    apart = torch.tensor([-128, 0, 100, -9, 3, -40]).view(6, 1, 1, 1)
    each = torch.randint(-90, 90, (6, 2, 3, 3), generator=draw)
    biases = [(torch.tensor(w).to(torch.int8), torch.tensor(a).to(torch.int16)) for w, a in (
        ([100, -3], [9, -16384]), ([0, 0], [0, 1]), ([0, 0], [0, 0]),
    )]  # fmt: skip
    reals = torch.randn((6, 2, 3, 3), generator=draw) * torch.tensor(2.0) ** apart.clamp(-120, 90)
    reals[2] = 0
    reals[3] = 2.0**-149
    calls = [
        ("aligned", v, e.expand(v.shape), size, keep)
        for v in (codes, codes * 0)
        for e in (apart, apart * 0 + 7, each)
        for size in ((6, 1, 1, 1), (1, 1, 1, 1), (6, 2, 1, 1))
        for keep in (False, True)
    ]
    calls += [("at_one", v, e, 55) for v in (sums, codes.short(), sums * 0) for e in (apart, each)]
    calls += [("with_bias", sums, 0, apart, (*b, e)) for b in biases for e in (-30, 60, -200)]
    calls += [("requantize", sums, 0, apart, bits, d) for bits in (5, 8, 16) for d in (1, 3, 49)]
    calls += [
        ("clamp", sums, e, clip) for e in (apart, each.amax((1, 2, 3), True)) for clip in (0, 6)
    ]
    calls += [("quantize", v, bits, True) for v in (reals, reals.double()) for bits in (6, 8, 16)]
    calls += [
        ("side_by_side", [(codes * a, e), (codes * b, f)], 1)
        for a, b in ((1, 1), (0, 1), (1, 0), (0, 0))
        for e, f in ((-9, -9), (100, -128), (-3, 2))
    ]
    for name, *arguments in calls:
        found, wanted = (getattr(own, name)(*arguments) for own in (k, eager))
        assert plain(found) == plain(wanted), (name, arguments)


@pytest.mark.parametrize(
    ("value", "told"), [(math.inf, "finite"), (math.nan, "finite"), (1e300, "at most 127")]
)
def test_a_row_that_is_no_number_is_told(value, told):
    x = torch.ones((3, 4), dtype=torch.float64)
    x[1, 2] = value
    with pytest.raises(RangeError, match=told):
        interpreted.checked().quantize(x, 8, True)
