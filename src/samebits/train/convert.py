"""Existing torch.nn models as BFP models: one rule per layer type, one error for all misfits."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from samebits.errors import UnsupportedError
from samebits.train import layers
from samebits.train.layers import pair
from samebits.train.tensor import BFPParameter

LayerRule = Callable[[Any, str, Iterator[int]], nn.Module]

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity)
"""torch.nn modules without arithmetic of their own; they keep their type."""


class Misfit(Exception):
    """Why one layer cannot be converted."""


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise Misfit(text)


def _parameters(m: Any, name: str) -> tuple[BFPParameter, BFPParameter | None]:
    weight = _parameter(m.weight, f"{name}.weight")
    return weight, None if m.bias is None else _parameter(m.bias, f"{name}.bias")


def _parameter(p: Tensor, name: str) -> BFPParameter:
    """The BFP twin of a parameter, frozen if the original is."""
    twin = BFPParameter.from_real(p, name)
    twin.requires_grad_(p.requires_grad)
    return twin


def _linear(m: nn.Linear, name: str, sites: Iterator[int]) -> nn.Module:
    return layers.Linear(*_parameters(m, name))


def _conv2d(m: nn.Conv2d, name: str, sites: Iterator[int]) -> nn.Module:
    _require(m.padding_mode == "zeros", f"padding_mode {m.padding_mode!r}, expected 'zeros'")
    padding = m.padding
    if padding == "valid":
        padding = (0, 0)
    elif padding == "same":
        spans = [d * (k - 1) for d, k in zip(m.dilation, m.kernel_size, strict=True)]
        _require(all(s % 2 == 0 for s in spans), "padding 'same' of an even kernel")
        padding = (spans[0] // 2, spans[1] // 2)
    weight, bias = _parameters(m, name)
    sizes = pair(m.stride), pair(padding), pair(m.dilation)  # type: ignore[arg-type]
    return layers.Conv2d(weight, bias, *sizes, m.groups)


def _batch_norm(m: Any, name: str, sites: Iterator[int]) -> nn.Module:
    _require(m.eps > 0, f"eps={m.eps}, expected > 0")
    _require(m.affine, "affine=False, expected gamma and beta")
    _require(m.track_running_stats, "track_running_stats=False")
    _require(m.momentum is not None, "momentum=None (cumulative average), expected a number")
    weight, bias = _parameters(m, name)
    assert bias is not None
    return layers.BatchNorm(weight, bias, m.running_mean, m.running_var, m.momentum, m.eps)


def _layer_norm(m: nn.LayerNorm, name: str, sites: Iterator[int]) -> nn.Module:
    _require(m.eps > 0, f"eps={m.eps}, expected > 0")
    _require(len(m.normalized_shape) == 1, "more than one normalised dimension")
    _require(m.elementwise_affine and m.bias is not None, "no gamma or beta")
    weight, bias = _parameters(m, name)
    assert bias is not None
    return layers.LayerNorm(weight, bias, m.eps)


def _require_small_padding(m: Any) -> None:
    """PyTorch's own rule, which it checks when the layer runs: no window holds padding alone."""
    sizes = zip(pair(m.padding), pair(m.kernel_size), strict=True)
    _require(all(2 * p <= k for p, k in sizes), "padding beyond half the window")


def _max_pool(m: nn.MaxPool2d, name: str, sites: Iterator[int]) -> nn.Module:
    _require(m.dilation in (1, (1, 1)), f"dilation {m.dilation}, expected 1")
    _require(not m.ceil_mode and not m.return_indices, "ceil_mode or return_indices")
    _require_small_padding(m)
    return layers.MaxPool2d(pair(m.kernel_size), pair(m.stride), pair(m.padding))


def _avg_pool(m: nn.AvgPool2d, name: str, sites: Iterator[int]) -> nn.Module:
    padding = pair(m.padding)
    _require(m.count_include_pad or padding == (0, 0), "count_include_pad=False with padding")
    _require(not m.ceil_mode and m.divisor_override is None, "ceil_mode or divisor_override")
    _require_small_padding(m)
    return layers.AvgPool2d(pair(m.kernel_size), pair(m.stride), padding)


def _adaptive_pool(m: nn.AdaptiveAvgPool2d, name: str, sites: Iterator[int]) -> nn.Module:
    _require(m.output_size in (1, (1, 1)), f"output size {m.output_size}, expected 1")
    return layers.GlobalAvgPool2d()


def _dropout(m: nn.Dropout, name: str, sites: Iterator[int]) -> nn.Module:
    _require(m.p < 1, "p = 1 drops everything")
    return layers.Dropout(m.p, next(sites))


def _gelu(m: nn.GELU, name: str, sites: Iterator[int]) -> nn.Module:
    _require(m.approximate == "none", f"approximate={m.approximate!r}, expected 'none'")
    return layers.Activation("gelu")


def _embedding(m: nn.Embedding, name: str, sites: Iterator[int]) -> nn.Module:
    _require(m.padding_idx is None and m.max_norm is None, "padding_idx or max_norm")
    _require(not m.scale_grad_by_freq, "scale_grad_by_freq")
    return layers.Embedding(_parameter(m.weight, f"{name}.weight"))


def _lstm(m: nn.LSTM, name: str, sites: Iterator[int]) -> nn.Module:
    _require(m.proj_size == 0, f"proj_size={m.proj_size}, expected 0")
    _require(
        m.dropout == 0 or m.num_layers == 1,
        f"dropout={m.dropout} between its layers, expected 0 (or nn.Dropout between LSTM modules)",
    )
    parameters = {key: _parameter(p, f"{name}.{key}") for key, p in m.named_parameters()}
    return layers.LSTM(parameters, m.num_layers, m.bidirectional, m.batch_first)


RULES: dict[type[nn.Module], LayerRule] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: _layer_norm,
    nn.ReLU: lambda m, name, sites: layers.ReLU(),
    nn.ReLU6: lambda m, name, sites: layers.ReLU6(),
    nn.LeakyReLU: lambda m, name, sites: layers.Activation("leaky_relu", m.negative_slope),
    nn.Tanh: lambda m, name, sites: layers.Activation("tanh"),
    nn.Sigmoid: lambda m, name, sites: layers.Activation("sigmoid"),
    nn.SiLU: lambda m, name, sites: layers.Activation("silu"),
    nn.GELU: _gelu,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _avg_pool,
    nn.AdaptiveAvgPool2d: _adaptive_pool,
    nn.Flatten: lambda m, name, sites: layers.Flatten(m.start_dim, m.end_dim),
    nn.Dropout: _dropout,
    nn.Embedding: _embedding,
    nn.LSTM: _lstm,
}


def convert(model: nn.Module) -> nn.Module:
    """The BFP twin of a torch.nn model: same structure and initial values, integer state.

    The last Linear or Conv2d (in registration order) hands its 32-bit linear value to the loss.
    The given model is not changed. Raises UnsupportedError with every layer that does not fit.
    """
    misfits: list[str] = []
    done: dict[int, nn.Module] = {}
    twin = _convert(model, "", itertools.count(), done, misfits)
    if misfits:
        known = ", ".join(sorted(t.__name__ for t in RULES))
        raise UnsupportedError(
            f"{len(misfits)} layer(s) cannot be trained in BFP:\n  "
            + "\n  ".join(misfits)
            + f"\nsupported: {known}; replace these layers or keep the model in float32"
        )
    _tie(model, done)
    products = [m for m in twin.modules() if isinstance(m, layers.Linear | layers.Conv2d)]
    if products:
        products[-1].out_width = 32
    return twin.train(model.training)


def _tie(model: nn.Module, done: dict[int, nn.Module]) -> None:
    """A parameter that several layers share is one parameter of their twins too."""
    first: dict[int, nn.Parameter | None] = {}
    for module in model.modules():
        twin = done[id(module)]
        for name, parameter in module._parameters.items():
            if parameter is not None:
                twin._parameters[name] = first.setdefault(id(parameter), twin._parameters[name])


def _convert(
    module: nn.Module,
    name: str,
    sites: Iterator[int],
    done: dict[int, nn.Module],
    misfits: list[str],
) -> nn.Module:
    """The twin of a module and of all inside it; what has no twin stays and joins `misfits`.

    name: the module's path. sites: numbers of dropout layers, in registration order. done: twins by
    the id of their originals, so that a module used twice has one twin. A container is copied with
    its hooks, and converted children; it may have no parameters of its own. Children are looked
    into whether it has any or not, so that all misfits of a user's modules are found at once; a
    layer of torch.nn is one misfit, as its parts cannot be replaced.
    """
    if id(module) in done:
        return done[id(module)]
    rule = RULES.get(type(module))
    inside: dict[str, nn.Module | None] = {}
    twin = module
    try:
        if rule is not None:
            twin = rule(module, name, sites)
            twin.name = name  # type: ignore[assignment]
        else:
            foreign = type(module).__module__.startswith("torch.nn")
            _require(not foreign or isinstance(module, CONTAINERS), "no rule for this layer")
            inside = module._modules
            _require_no_state(module)
            twin = _shell(module)
    except Misfit as misfit:
        misfits.append(f"{name or 'the model'} ({type(module).__name__}): {misfit}")
    done[id(module)] = twin
    twins = {
        key: child and _convert(child, f"{name}.{key}".lstrip("."), sites, done, misfits)
        for key, child in inside.items()
    }
    if inside and twin is not module:
        twin._modules = twins
    return twin


def _require_no_state(module: nn.Module) -> None:
    own = [n for n, p in (*module._parameters.items(), *module._buffers.items()) if p is not None]
    _require(not own, f"parameters or buffers of its own ({', '.join(own)})")


def _shell(module: nn.Module) -> nn.Module:
    """A copy of a container with hooks of its own, whose children are still to be replaced."""
    twin = copy.copy(module)
    for key, value in vars(module).items():
        if isinstance(value, dict) and (
            key.endswith("_hooks") or key in ("_parameters", "_buffers", "_modules")
        ):
            setattr(twin, key, value.copy())
    return twin
