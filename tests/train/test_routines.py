"""Passes of graphs as routines: the bits of walks, and walks where there can be no routine."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

from reference_nets import StochasticDepth
from samebits import kernels
from samebits.errors import RangeError, UnsupportedError
from samebits.train import convert, cross_entropy, model_input, routines, set_step
from samebits.train.architectures import (
    PatchTransformer,
    SequenceClassifier,
    build,
    initialise,
)
from samebits.train.deferred import deferred_updates
from samebits.train.graph import Walks, called
from samebits.train.operation import TrainingOperation
from samebits.train.operations import activations
from samebits.train.recording import GraphedModel, record
from samebits.train.routines import RecordedGraph, masks_of
from samebits.train.value import same_parts


def dropping():
    """A dropout that is called twice, one of samples, those of a transformer, one of 32 bits."""
    drop = nn.Dropout(0.3)
    return nn.Sequential(
        *(nn.Linear(6, 16), nn.ReLU(), drop, nn.Linear(16, 16), drop, StochasticDepth(0.4, "row")),
        *(nn.Unflatten(1, (2, 8)), nn.TransformerEncoderLayer(8, 2, 8, 0.2, batch_first=True)),
        *(nn.Flatten(), nn.Linear(16, 5)),
    )


class Transformer(PatchTransformer):
    """Two heads, and ReLU in the place of GELU."""

    def __init__(self):
        super().__init__(1, 16, 2, 5, 16, 0)
        layer = (16, 2, 32, 0.0, "relu")
        self.layers = nn.TransformerEncoderLayer(*layer, batch_first=True, norm_first=True)


class Recurrent(SequenceClassifier):
    """Other recurrent layers in the place of LSTMs."""

    def __init__(self, layers):
        super().__init__(6, 5, 7 * (1 + layers.bidirectional), 1)
        self.lstm = layers


NETS = {
    "mlp": lambda: (build("mlp", (1, 8, 8), 5), (1, 8, 8)),
    "lines": lambda: (nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5)), (6,)),
    "no bias": lambda: (nn.Sequential(nn.Linear(6, 5, bias=False)), (6,)),
    "images": lambda: (
        nn.Sequential(
            *(nn.Conv2d(3, 6, 3, padding=1, stride=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 6, 3, groups=6, padding=1), nn.ReLU(), nn.Flatten()),
            nn.Linear(24, 5),
        ),
        (3, 8, 8),
    ),
    "clipped means": lambda: (
        nn.Sequential(
            *(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU6(), nn.AvgPool2d(2, padding=1)),
            *(nn.Conv2d(4, 4, 1, bias=False), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
            *(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)),
        ),
        (2, 7, 7),
    ),
    "tables": lambda: (
        nn.Sequential(
            *(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 12), nn.GELU(), nn.Linear(12, 12)),
            *(nn.ELU(0.5), nn.Linear(12, 5), nn.SiLU(), nn.Linear(5, 5)),
        ),
        (6,),
    ),
    "lstm": lambda: (SequenceClassifier(6, 5, 7, 1), (4, 6)),
    **{
        name: lambda make=make: (Recurrent(make()), (4, 6))
        for name, make in {
            "gru": lambda: nn.GRU(6, 7, 2, batch_first=True),
            "rnn": lambda: nn.RNN(6, 7, batch_first=True, bias=False),
            "relu": lambda: nn.RNN(6, 7, nonlinearity="relu", batch_first=True),
            "both directions": lambda: nn.GRU(6, 7, batch_first=True, bidirectional=True),
        }.items()
    },
    "vectors": lambda: (
        nn.Sequential(
            *(nn.Linear(6, 12), nn.LayerNorm(12), nn.ReLU(), nn.RMSNorm(12)),
            *(nn.Unflatten(1, (3, 4)), nn.LayerNorm(4, bias=False), nn.Flatten()),
            *(nn.LayerNorm(12, elementwise_affine=False), nn.Linear(12, 5)),
        ),
        (6,),
    ),
    "groups": lambda: (
        nn.Sequential(
            *(nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(), nn.InstanceNorm2d(6, affine=True)),
            *(nn.Flatten(), nn.Linear(96, 5)),
        ),
        (2, 6, 6),
    ),
    "transformer": lambda: (Transformer(), (1, 8, 8)),
    "dropouts": lambda: (dropping(), (6,)),
    **{
        name: lambda name=name, shape=shape: (build(name, shape, 5), shape)
        for name, shape in (
            *(("cnn", (1, 8, 8)), ("resnet8", (3, 16, 16)), ("mobilenetv2", (3, 16, 16))),
        )
    },
}


@pytest.fixture(autouse=True)
def native():
    if kernels.realisation() != "native":
        pytest.skip("no native kernels")


BY_ROWS = [name for name in NETS if name != "groups"]
# networks whose training is a routine by rows, too; that of groups of channels is walked


def graph_of(name, samples=4, exponents="tensor"):
    """The graph of a network, and a function that draws inputs."""
    model, shape = NETS[name]()
    initialise(model, 1)
    model = convert(model, exponents)
    set_step(model, 0, 0, 0)

    def drawn(seed):
        generator = torch.Generator().manual_seed(seed)
        scale = 2.0 ** (seed % 7 - 3)
        return model_input(model, scale * torch.randn((samples, *shape), generator=generator))

    return record(model, drawn(0)), drawn


def trained(passes, graph, x, loss=cross_entropy):
    """The output and the gradients of a loss, and what is to become of running state."""
    for mask in masks_of(graph):
        mask.__self__.step, mask.__self__.calls = abs(int(x.codes.long().sum())), 0
    with deferred_updates() as updates:
        y = called(graph, passes, x)
    loss(y, torch.arange(len(x)) % 5).backward()
    found = [p.grad.value for p in graph.parameters]
    for p in graph.parameters:
        p.grad = None
    return y.value, found, [update.to_bytes() for update in updates]


def same(found, wanted):
    (y, gradients, updates), (z, expected, others) = found, wanted
    assert updates == others
    assert same_parts(y.resolved(), z.resolved())
    assert same_parts(y.narrowed().resolved(), z.narrowed().resolved())
    for a, b in zip(gradients, expected, strict=True):
        assert a.bounds == b.bounds
        assert all(map(same_parts, a.parts, b.parts))


SLOW = ("mobilenetv2", "dropouts", "rnn", "relu", "both directions")
CASES = [
    *((name, "tensor") for name in NETS),
    *(
        pytest.param(name, "row", marks=pytest.mark.slow if name in SLOW else ())
        for name in BY_ROWS
    ),
]


@pytest.mark.parametrize(("name", "exponents"), CASES)
def test_a_routine_gives_the_bits_of_walks(name, exponents):
    graph, drawn = graph_of(name, exponents=exponents)
    recorded, walks = RecordedGraph(graph), Walks(graph)
    for seed in range(12):
        same(trained(recorded, graph, drawn(seed)), trained(walks, graph, drawn(seed)))
        assert recorded.reason == ""
        with torch.no_grad():  # the weights move
            for place, p in enumerate(graph.parameters):
                p.codes.copy_(p.codes.flatten().roll(1).view(p.codes.shape))
                if seed % 3 == place % 3:
                    p.set_exponent(p.exponent + 1 - 2 * (seed % 2))
    assert recorded._recorded is not None


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_change_no_bit(threads):
    graph, drawn = graph_of("images", samples=9)
    recorded = RecordedGraph(graph)
    trained(recorded, graph, drawn(0))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        same(trained(recorded, graph, drawn(1)), trained(Walks(graph), graph, drawn(1)))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", NETS)
def test_evaluation_by_rows_is_a_routine(name):
    """Of every network, however it was trained (training.md 12.6)."""
    model, shape = NETS[name]()
    initialise(model, 1)
    model = convert(model).eval()
    draw = torch.Generator().manual_seed(1)
    xs = [model_input(model, torch.randn((4, *shape), generator=draw)) for _ in range(3)]
    graph = record(model, xs[0])
    recorded = RecordedGraph(graph)
    with torch.no_grad():
        for x in xs:
            assert same_parts(recorded(x).value.resolved(), graph(x).value.resolved())
    assert recorded.reason == ""
    assert recorded._recorded is not None


def test_evaluation_is_a_routine_of_a_forward_pass_alone():
    graph, drawn = graph_of("images")
    recorded = RecordedGraph(graph)
    with torch.no_grad():
        for seed in range(4):
            found = recorded(drawn(seed)).value
            assert same_parts(found.resolved(), graph(drawn(seed)).value.resolved())
    assert list(recorded._recorded.routine.parts) == ["forward"]


def test_forward_passes_that_wait_keep_their_values():
    """Two forward passes, then both backward passes, in both orders; and one that never comes."""
    graph, drawn = graph_of("mlp")
    recorded, target = RecordedGraph(graph), torch.arange(4) % 5
    trained(recorded, graph, drawn(0))
    wanted = [trained(Walks(graph), graph, drawn(seed)) for seed in (1, 2)]
    for order in itertools.permutations((0, 1)):
        losses = [cross_entropy(recorded(drawn(seed)), target) for seed in (1, 2)]
        cross_entropy(recorded(drawn(3)), target)
        for place in order:
            losses[place].backward()
            for p, expected in zip(graph.parameters, wanted[place][1], strict=True):
                assert same_parts(p.grad.value.resolved(), expected.resolved())
                p.grad = None


def test_results_stay_when_the_routine_runs_again():
    graph, drawn = graph_of("lines")
    recorded = RecordedGraph(graph)
    trained(recorded, graph, drawn(0))
    first = trained(recorded, graph, drawn(1))
    trained(recorded, graph, drawn(2))
    same(first, trained(Walks(graph), graph, drawn(1)))


def test_other_weights_at_other_places_are_walked():
    """A routine reads the tensors that it was recorded with."""
    graph, drawn = graph_of("lines")
    recorded = RecordedGraph(graph)
    trained(recorded, graph, drawn(0))
    parameter = graph.parameters[0]
    other = copy.deepcopy(parameter)
    other.codes.neg_()
    parameter.value = other.value
    same(trained(recorded, graph, drawn(1)), trained(Walks(graph), graph, drawn(1)))


def test_weights_that_get_other_memory_are_walked():
    graph, drawn = graph_of("lines")
    recorded = RecordedGraph(graph)
    trained(recorded, graph, drawn(0))
    codes = graph.parameters[0].codes
    codes.data = -codes
    same(trained(recorded, graph, drawn(1)), trained(Walks(graph), graph, drawn(1)))


def test_an_exponent_out_of_range_is_the_error_of_the_walk():
    graph, drawn = graph_of("lines")
    recorded = RecordedGraph(graph)
    trained(recorded, graph, drawn(0))
    for p in graph.parameters[:1]:
        p.set_exponent(127)
    for passes in (recorded, Walks(graph)):
        with pytest.raises(RangeError, match=r"layer '0' \(Linear\)"):
            trained(passes, graph, drawn(6))


def test_gradients_of_another_kind_are_walked():
    """A caller's own gradient has 16 bits, that of a loss 32."""
    graph, drawn = graph_of("lines")
    recorded = RecordedGraph(graph)
    trained(recorded, graph, drawn(0))

    def half(y, target):
        return cross_entropy(y, target) / 3

    same(trained(recorded, graph, drawn(1), half), trained(Walks(graph), graph, drawn(1), half))


def test_weights_that_change_before_the_backward_pass_are_refused():
    graph, drawn = graph_of("lines")
    recorded = RecordedGraph(graph)
    for seed in range(2):
        loss = cross_entropy(recorded(drawn(seed)), torch.arange(4) % 5)
        graph.parameters[0].codes.add_(0)
        with pytest.raises(UnsupportedError, match="before the parameters change"):
            loss.backward()


def test_a_number_that_python_reads_is_found_by_the_proof(monkeypatch):
    """Nothing hears of an index into a list; on other exponents the bits differ."""
    limits = [100 if exponent % 2 else 5 for exponent in range(256)]

    def reading(x, clip):
        x = x.narrowed()
        codes = (
            x.codes.clone()
            if limits[x.exponent] == 5
            else kernels.of(x.codes).clamp(x.codes, x.exponent, 0)[0]
        )
        return x.with_part(codes, x.exponent)

    changed = TrainingOperation("Relu", reading, lambda call, g: g)
    monkeypatch.setattr(activations, "RELU", changed)
    graph, drawn = graph_of("lines")
    recorded = RecordedGraph(graph)
    for seed in range(3):
        same(trained(recorded, graph, drawn(seed)), trained(Walks(graph), graph, drawn(seed)))
    assert recorded.reason == "the routine gives another output than the walk"


def test_an_exponent_without_a_table_is_walked_once(monkeypatch):
    """The routine says that the table is missing; the walk makes it."""
    graph, drawn = graph_of("tables")
    activations._tables.cache_clear()
    recorded, walks = RecordedGraph(graph), Walks(graph)
    trained(recorded, graph, drawn(0))
    own, walked = [], routines.forward
    monkeypatch.setattr(routines, "forward", lambda *a: own.append(a) or walked(*a))
    for p in graph.parameters[:2]:
        p.set_exponent(p.exponent + 40)
    for _ in range(3):
        same(trained(recorded, graph, drawn(1)), trained(walks, graph, drawn(1)))
    assert recorded.reason == ""
    assert len(own) == 1


def test_what_cannot_be_recorded_is_walked_and_says_why(monkeypatch):
    original = activations.RELU

    def reading(x, clip):
        return original.forward(x, clip) if x.exponent <= 0 else (x, ())

    changed = TrainingOperation("Relu", reading, original.gradient, saves=True)
    monkeypatch.setattr(activations, "RELU", changed)
    model = convert(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 5)))
    graphed, target = GraphedModel(model), torch.arange(4) % 5
    for _ in range(3):
        cross_entropy(graphed(model_input(model, torch.randn(4, 6))), target).backward()
    (graph, _) = next(iter(graphed._graphs.values()))
    assert graph._recorded is None
    assert "layer '1' (ReLU)" in graph.reason
