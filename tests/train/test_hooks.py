"""Hooks of models that are converted: what goes along, what is refused, and in which words."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from samebits.errors import UnsupportedError
from samebits.train import BFPTensor, convert, cross_entropy, layers

x = BFPTensor.from_real(torch.linspace(-1, 1, 12).view(3, 4))


def lines(model, **options):
    """The lines of the error about a model's layers."""
    with pytest.raises(UnsupportedError) as caught:
        convert(model, **options)
    return str(caught.value).splitlines()


def test_hooks_around_calls_go_along_with_a_layer():
    layer, heard = nn.Linear(4, 4), []
    layer.register_forward_pre_hook(lambda m, given: heard.append((m, given[0])))
    layer.register_forward_hook(lambda m, given, y: heard.append((m, y)))
    layer.register_forward_hook(
        lambda m, given, options, y: heard.append((m, options)), with_kwargs=True
    )
    layer.register_forward_hook(lambda m, given, y: heard.append((m, "always")), always_call=True)
    layer.register_forward_pre_hook(
        lambda m, given, options: ((), {"x": options["x"]}) if options else None, with_kwargs=True
    )
    twin = convert(nn.Sequential(layer))[0]
    assert isinstance(twin, layers.Linear)
    y = twin(x)
    assert [m for m, _ in heard] == [twin] * 4
    assert heard[0][1] is x
    assert heard[1][1] is y
    assert [what for _, what in heard[2:]] == [{}, "always"]
    heard.clear()
    layer(torch.zeros(1, 4))
    assert [m for m, _ in heard] == [layer] * 4


def test_the_hooks_of_a_layer_and_of_its_twin_are_apart():
    model = nn.Sequential(nn.Linear(4, 4))
    twin, heard = convert(model), []
    for part in (twin, twin[0]):
        part.register_forward_hook(lambda *given: heard.append(given), with_kwargs=True)
        part.register_forward_pre_hook(lambda *given: heard.append(given), with_kwargs=True)
    for part in (model, model[0]):
        assert not any("_hooks" in key and value for key, value in vars(part).items())
    model(torch.zeros(1, 4))
    assert heard == []
    twin(x)
    assert len(heard) == 4


def test_hooks_around_the_state_go_along_with_a_layer():
    layer = nn.Linear(4, 4)
    seen = []
    layer._register_load_state_dict_pre_hook(lambda m, *given: seen.append(m), with_module=True)
    layer.register_state_dict_pre_hook(lambda m, prefix, keep: seen.append(m))
    twin = convert(layer)
    twin.load_state_dict(twin.state_dict())
    assert seen == [twin, twin]


def test_a_layer_that_torch_computes_from_others_is_refused():
    pruned, twice, normed, spectral = (nn.Linear(4, 4) for _ in range(4))
    prune.l1_unstructured(pruned, "bias", 0.5)
    for _ in range(2):
        prune.random_unstructured(twice, "weight", 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(normed)
    nn.utils.spectral_norm(spectral)
    found = "expected a parameter {}, found one that {} computes in each call; call torch.nn.utils."
    end = "(module, 'weight') before convert"
    wanted = [
        f"  0 (Linear): {found.format('bias', 'prune')}prune.remove(module, 'bias') before convert",
        f"  1 (Linear): {found.format('weight', 'prune')}prune.remove{end}",
        f"  2.0 (Linear): {found.format('weight', 'weight_norm')}remove_weight_norm{end}",
        f"  2.1 (Linear): {found.format('weight', 'spectral_norm')}remove_spectral_norm{end}",
    ]
    model = nn.Sequential(pruned, twice, nn.Sequential(normed, spectral), nn.Linear(4, 4))
    assert lines(model)[:5] == ["4 layer(s) cannot be trained in BFP:", *wanted]
    assert lines(model, keep_float=["2"])[:5] == ["4 layer(s) cannot be trained in BFP:", *wanted]
    assert lines(model)[5:] == [
        "change or replace these layers, keep them in float32 (keep_float) or train the model in "
        "float32"
    ]
    prune.remove(pruned, "bias")
    prune.remove(twice, "weight")
    nn.utils.remove_weight_norm(normed)
    nn.utils.remove_spectral_norm(spectral)
    twin = convert(model)
    assert (twin[0].bias.codes == 0).sum() == 2


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))
        self.inner = nn.Softsign()

    def forward(self, y):
        return y * self.gain


def test_a_users_module_that_is_pruned_is_refused_with_what_is_inside():
    model = Scaled()
    prune.random_unstructured(model, "gain", 0.5)
    found = lines(model)
    assert found[1].startswith("  the model (Scaled): expected a parameter gain, found one that")
    assert found[2].startswith("  inner (Softsign): no rule")


def test_hooks_of_gradients_are_refused():
    full, pre, weight, after = (nn.Linear(4, 4) for _ in range(4))
    full.register_full_backward_hook(lambda *given: None)
    pre.register_full_backward_pre_hook(lambda *given: None)
    weight.weight.register_hook(lambda g: g)
    after.bias.register_post_accumulate_grad_hook(lambda p: None)
    own, inner = Scaled(), nn.MultiheadAttention(4, 2)
    own.inner = nn.Identity()
    own.gain.register_hook(lambda g: g)
    inner.out_proj.weight.register_hook(lambda g: g)
    model = nn.Sequential(full, pre, weight, after, own, inner)
    backward = (
        "expected no backward hooks, whose gradients would be integers; register them on the "
        "converted layer"
    )
    of = "expected no hooks of parameter {}, which convert would lose; remove them before convert"
    assert lines(model)[1:-1] == [
        f"  0 (Linear): {backward}",
        f"  1 (Linear): {backward}",
        f"  2 (Linear): {of.format('weight')}",
        f"  3 (Linear): {of.format('bias')}",
        f"  4 (Scaled): {of.format('gain')}",
        f"  5 (MultiheadAttention): {of.format('weight')}",
    ]
    islands = lines(model, keep_float=["2", "3"])
    assert islands[3:5] == lines(model)[3:5]


def test_hooks_of_the_backward_pass_stay_with_a_container():
    model, heard = nn.Sequential(nn.Sequential(nn.Linear(4, 3))), []
    plain = convert(model)
    model[0].register_full_backward_hook(lambda m, down, up: heard.append((m, up[0])))
    twin = convert(model)
    for net in (twin, plain):
        given = x.detach().requires_grad_()
        cross_entropy(net(given), torch.tensor([0, 1, 2])).backward()
    assert heard[0][0] is twin[0]
    assert torch.equal(twin[0][0].weight.grad.codes, plain[0][0].weight.grad.codes)
