"""A trace of a planned step is that of the step that keeps everything."""

import pytest
import torch
from torch import nn

from recompute_nets import CLASSES, NETS, Case, conv_bn, make
from samebits.errors import UnsupportedError
from samebits.progress import Listener, listening
from samebits.recompute.plan.schedule import compile_schedule
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.profile import survey
from samebits.train.run.trace import NONE, Recorder

QUICK = {("in place", "float32"), *((name, "bfp") for name in ("dropout", "shared", "tokens"))}
CASES = [
    pytest.param(name, numerics, marks=() if (name, numerics) in QUICK else pytest.mark.slow)
    for numerics in ("bfp", "float32")
    for name in NETS
    if (name, numerics) != ("in place", "bfp")
]


class Doubled(nn.Module):
    """A layer that is code of its own, and returns what it changed in place."""

    def forward(self, x):
        y = x * 2
        y += 1
        return y


class Passed(nn.Module):
    def forward(self, x):
        return x


class Odd(nn.Module):
    """Layers that a plan looks through or that give back their input, which others read too."""

    def __init__(self):
        super().__init__()
        self.same, self.empty, self.passed = nn.Identity(), nn.Sequential(), Passed()
        self.stem, self.relu, self.doubled = conv_bn(3, 4), nn.ReLU(inplace=True), Doubled()
        self.flat, self.head = nn.Flatten(), nn.Linear(4, CLASSES)
        for parameter in self.stem[0].parameters():
            parameter.requires_grad_(False)

    def forward(self, x):
        y = self.stem(self.same(x))
        z = self.relu(self.empty(y) + self.same(self.passed(y)) * y)
        z = self.doubled(z).mean((2, 3), keepdim=True)
        return self.head(self.flat(self.flat(z)) + self.flat(z))


def heard(case, forward):
    """Layers and hashes of two steps. Before there are hooks, `forward` plans."""
    call = forward(case)
    recorder = Recorder(case.model)
    torch.manual_seed(3)
    for _ in range(2):
        with recorder.forward_pass():
            loss = case.loss(call(case.inputs))
        loss.backward()
        recorder.shard_ends(loss)
    return recorder.layers, recorder.take()


def planned(case):
    tape, network = survey(case.model, case.inputs, case.loss)
    return Executor(tape, network, compile_schedule(network, network.choices()))


def check(case):
    """The layers without a gradient."""
    names, expected = heard(case.copy(), lambda case: case.model)
    found_names, found = heard(case.copy(), planned)
    assert found_names == names
    labels = [*(f"output of {n}" for n in names), "loss", *(f"gradient of {n}" for n in names)]
    wrong = [labels[i] for i in (expected != found).any(0).nonzero().flatten().tolist()]
    assert not wrong, f"{len(wrong)} of {len(labels)} differ, first: {wrong[:5]}"
    gradients = found[0, len(names) + 1 :].tolist()
    return [name for name, value in zip(names, gradients, strict=True) if value == NONE]


@pytest.mark.parametrize(("name", "numerics"), CASES)
def test_hashes_are_those_of_the_step_without_a_plan(name, numerics):
    assert check(make(name, numerics)) == []


def test_sums_are_kept_as_8_bits():
    """All but the model's output, of which the loss reads 32."""
    case = make("resnet8", "bfp")
    tape, network = survey(case.model, case.inputs, case.loss)
    assert tape.exact == {tape.output}
    run = Executor(tape, network, compile_schedule(network, ()))
    state, _ = run.run_forward(case.inputs, False)
    wide = [v for v, (value, *_) in state.values.items() if value.sums is not None]
    assert wide == [tape.output]


class Notes(Listener):
    def __init__(self):
        self.texts = []

    def note(self, text):
        self.texts.append(text)


def test_a_traced_step_in_block_floating_point_says_that_it_has_no_plan():
    case, notes = make("resnet8", "bfp"), Notes()
    with listening(notes):
        heard(case, planned)
    assert notes.texts == [
        "steps run without the plan while they are traced: a trace hears modules"
    ]


def test_layers_that_are_no_sub_layers():
    images, labels = torch.randn(4, 3, 8, 8), torch.arange(4) % CLASSES
    assert check(Case(Odd(), images, labels, nn.CrossEntropyLoss())) == ["same", "stem.0"]


def test_layers_inside_of_a_sub_layer_are_refused():
    block = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    model = nn.Sequential(block, nn.Flatten(), nn.Linear(16, CLASSES))
    case = Case(model, torch.randn(4, 2, 8), torch.zeros(4).long(), nn.CrossEntropyLoss())
    with pytest.raises(UnsupportedError) as caught:
        heard(case, planned)
    assert str(caught.value) == (
        "0: expected sub-layers without layers inside for a trace under a plan, found "
        "TransformerEncoderLayer; leave out --trace, or give --plan none"
    )
