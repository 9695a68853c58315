"""The exchange of gradients gives `exact.resolve` of all parts, on any number of workers."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from compare import assert_same
from samebits import kernels
from samebits.kernels.protocol import CODE_TYPE
from samebits.spec import formats
from samebits.spec.formats import CODE_MAX, Q16, Q32
from samebits.train import BFPParameter, BFPTensor, convert, cross_entropy
from samebits.train.operations.normalization import RunningUpdate
from samebits.train.run.distributed import ALONE
from samebits.train.run.exchange import BUCKET, Exchange, _buckets, decode, encode, extra_bits, flat
from samebits.train.value import BFPValue
from worker_threads import Hub


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5, 8, 9, 64])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("count", [8, 64])
def test_sums_of_parts_come_back(parts, workers, bits, count):
    rng = random.Random(parts)
    top, half = parts * CODE_MAX[bits], 2 ** (bits - 1)
    edges = [0, 1, -1, top, -top, half - 1, -half, half, -half - 1, 2 * half, -2 * half]
    edges = [v for v in edges if abs(v) <= top]
    rows = [
        [rng.choice(edges) if rng.random() < 0.5 else rng.randint(-top, top) for _ in range(count)]
        for _ in range(workers)
    ]
    packed = encode(torch.tensor(rows, dtype=torch.int64), parts, bits)
    assert packed.shape == (workers, count // 8 * (bits + extra_bits(parts)))
    assert_same(
        decode(packed, count, parts, bits),
        [sum(column) for column in zip(*rows, strict=True)],
        rows[0],
    )


def test_extra_bits_hold_the_largest_sum():
    for parts in range(1, 300):
        bits = extra_bits(parts)
        assert parts * Q32 < 2 ** (31 + bits)
        assert parts * Q16 < 2 ** (15 + bits)
        assert parts == 1 or 2 ** (bits - 1) < parts


SHAPES = [(5,), (3, 7), (4, 3, 3, 2), (1,), (2, 9), (1, 4, 1, 1)]


def random_part(rng, shape, bits):
    """Codes of one shard; sometimes all zeros, whose exponent says nothing."""
    limit = CODE_MAX[bits] >> rng.choice([0, 0, 0, 3, 20])
    zero = rng.random() < 0.2
    count = int(np.prod(shape))
    codes = [0 if zero else rng.randint(-limit, limit) for _ in range(count)]
    if not zero and rng.random() < 0.5:
        codes[rng.randrange(count)] = rng.choice([-1, 1]) * limit
    exponent = rng.choice([-128, 90]) if zero else rng.randint(-60, -20) + rng.choice([0, 30])
    return torch.tensor(codes, dtype=CODE_TYPE[bits]).view(shape), exponent


def model_of(shapes):
    model = nn.Module()
    for index, shape in enumerate(shapes):
        parameter = BFPParameter.from_real(torch.ones(shape))
        model.register_parameter(f"p{index}", parameter)
    return model


@pytest.mark.parametrize("realisation", ["eager", "native"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("bits", [16, 32])
def test_sum_is_that_of_resolve(size, shards, bits, realisation):
    if realisation == "native" and kernels.realisation() != "native":
        pytest.skip("native kernels need a C compiler")
    rng = random.Random(100 * size + shards)
    for _ in range(6):
        uses = rng.choice([1, 1, 2])  # a tied weight has several parts a shard
        absent = rng.randrange(len(SHAPES))
        parts = [
            [
                [random_part(rng, s, rng.choice([16, 32])) for _ in range(shards * uses)]
                for s in SHAPES
            ]
            for _ in range(size)
        ]

        def body(worker, parts=parts, absent=absent):
            model = model_of(SHAPES)
            exchange = Exchange(model, worker, shards, bits)
            for index, parameter in enumerate(model.parameters()):
                if index != absent:
                    parameter.grad = BFPTensor.of(
                        BFPValue.of_parts(tuple(parts[worker.rank][index]))
                    )
            losses = [worker.rank * 10.0 + shard for shard in range(shards)]
            everything = exchange.finish(losses, [])
            return everything, [p.grad for p in model.parameters()]

        with kernels.use(realisation):
            results = Hub(size).run(body)
        for index, shape in enumerate(SHAPES):
            every = [part for mine in parts for part in mine[index]]
            flats = [(flat(codes).tolist(), exponent) for codes, exponent in every]
            codes, exponent = (formats.resolve if bits == 32 else formats.resolve_short)(flats)
            if len(flats) == 1 and bits == 32:  # itself; the exchange gives the same value as bfp32
                codes, exponent = formats.shorten(*flats[0])
            for losses, gradients in results:
                assert losses == [r * 10.0 + s for r in range(size) for s in range(shards)]
                if index == absent:
                    assert gradients[index] is None
                    continue
                found = gradients[index]
                assert found.shape == shape
                assert found.bits == bits
                assert_same(flat(found.codes), codes, range(len(codes)))
                assert found.exponent == exponent


def test_gradients_travel_in_the_order_of_the_backward_pass():
    shapes = [(BUCKET - 1,), (1,), (1,), (BUCKET,), (2, BUCKET), (3,)]
    parameters = list(model_of(shapes).parameters())
    found = [[tuple(p.shape) for p in bucket.parameters] for bucket in _buckets(parameters)]
    assert found == [[(3,), (2, BUCKET)], [(BUCKET,)], [(1,), (1,), (BUCKET - 1,)]]


class Watched(type(ALONE)):
    """One process that notes when a bucket's exchange begins."""

    def __init__(self, log):
        self.log = log

    def run(self, job):
        self.log.append("exchange")
        return super().run(job)


def test_buckets_leave_during_the_last_backward_pass():
    """The last layer's bucket is on its way before the first layer's gradient exists."""
    wide = convert(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)))
    log = []
    exchange = Exchange(wide, Watched(log), 2)
    wide[0].weight.register_post_accumulate_grad_hook(lambda _: log.append("first layer"))
    x, target = BFPTensor.from_real(torch.randn(4, 256)), torch.arange(4)
    cross_entropy(wide(x), target).backward()
    assert log == ["first layer"]  # of the first of two shards
    cross_entropy(wide(x), target).backward()
    assert log[1] == "exchange"
    assert sorted(log[2:]) == ["exchange", "first layer"]
    exchange.finish([1.0, 2.0], [])
    assert log.count("exchange") == 3  # two buckets, and the losses


@pytest.mark.parametrize(
    ("bits", "n"), [(8, 2), (8, 133_000), (8, 140_000), (8, 1 << 24), (16, 2), (16, 1 << 24)]
)
def test_running_statistics_are_applied_in_shard_order(bits, n):
    rng, most = np.random.default_rng(3), CODE_MAX[bits]
    sizes, shards, workers = (4, 2), 2, 3
    every = [
        [
            (rng.integers(-most * n, most * n, size), most**2 * n - rng.integers(0, 2, size))
            for size in sizes
        ]
        for _ in range(workers * shards)
    ]

    def buffers():
        return [
            (torch.zeros(size, dtype=torch.float64), torch.ones(size, dtype=torch.float64))
            for size in sizes
        ]

    def updates(rows, mine):
        for shard, row in enumerate(rows):
            for (mean, var), (s1, s2) in zip(mine, row, strict=True):
                yield RunningUpdate(mean, var, 0.1, s1, s2, n, -7 - shard % 2, bits)

    expected = buffers()
    for update in updates(every, expected):
        update.apply()

    def body(worker):
        own = buffers()
        rows = every[worker.rank * shards : (worker.rank + 1) * shards]
        exchange = Exchange(model_of([(3,)]), worker, shards)
        exchange.finish([0.0] * shards, list(updates(rows, own)))
        return own

    for own in Hub(workers).run(body):
        for pair, want in zip(own, expected, strict=True):
            for found, buffer in zip(pair, want, strict=True):
                assert_same(found, buffer, range(len(buffer)))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("bits", [16, 32])
def test_bytes_on_the_wire(size, bits):
    """Of one shard a worker: those of a ring all-reduce of codes, and a few per parameter."""
    shapes = [(64, 32, 3, 3)] * 2 + [(64,)] * 4

    def body(worker):
        model = model_of(shapes)
        exchange = Exchange(model, worker, 1, bits)
        for parameter in model.parameters():
            codes = torch.ones(parameter.shape, dtype=torch.int32)
            parameter.grad = BFPTensor(codes, -20)
        exchange.finish([1.0], [])
        return worker.sent

    elements = sum(int(np.prod(shape)) for shape in shapes)
    ring = 2 * (size - 1) / size * bits // 8 * elements
    for sent in Hub(size).run(body):
        assert ring <= sent <= 1.01 * ring
