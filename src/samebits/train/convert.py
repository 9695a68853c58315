"""Existing torch.nn models as BFP models: one rule per layer type, one error for all misfits."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from samebits.errors import InputError, UnsupportedError
from samebits.kernels.geometry import pair
from samebits.train import layers
from samebits.train.state import refuse_wrong
from samebits.train.tensor import WIDTHS, BFPParameter, BFPTensor
from samebits.train.widths import INPUT, WidthsByLayer

EXPONENTS = ("tensor", "row", "row-shift")
"""Granularities: one exponent a tensor; one a sample, vector or output channel; rows with shifts
of the channels of activations (training.md 12.4)."""


@dataclass(frozen=True)
class Choices:
    """The choices that rules need beside a module.

    sites:   numbers of dropout layers, in registration order
    by_rows: whether matrices have an exponent for each output
    shifts:  whether channels of activations have shifts
    widths:  of every layer
    """

    sites: Iterator[int]
    by_rows: bool
    shifts: bool
    widths: WidthsByLayer


SHIFTING = (layers.Linear, layers.Conv2d, layers.BatchNorm, layers.LayerNorm)
"""Layers that round what they compute, so that its channels may have shifts."""

LayerRule = Callable[[Any, str, Choices], nn.Module]

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity)
"""torch.nn modules without arithmetic of their own; they keep their type."""


class Misfit(Exception):
    """Why one layer cannot be converted."""


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise Misfit(text)


def _parameters(m: Any, name: str, how: Choices) -> tuple[BFPParameter, BFPParameter | None]:
    weight = _parameter(m.weight, f"{name}.weight", how)
    return weight, None if m.bias is None else _parameter(m.bias, f"{name}.bias", how)


def _parameter(p: Tensor, name: str, how: Choices) -> BFPParameter:
    """The BFP twin of a parameter, frozen if the original is."""
    layer = name.rpartition(".")[0]
    twin = BFPParameter.from_real(p, name, how.by_rows, how.widths[layer])
    twin.requires_grad_(p.requires_grad)
    return twin


def _linear(m: nn.Linear, name: str, how: Choices) -> nn.Module:
    return layers.Linear(*_parameters(m, name, how))


def _conv2d(m: nn.Conv2d, name: str, how: Choices) -> nn.Module:
    _require(m.padding_mode == "zeros", f"padding_mode {m.padding_mode!r}, expected 'zeros'")
    padding = m.padding
    if padding == "valid":
        padding = (0, 0)
    elif padding == "same":
        spans = [d * (k - 1) for d, k in zip(m.dilation, m.kernel_size, strict=True)]
        _require(all(s % 2 == 0 for s in spans), "padding 'same' of an even kernel")
        padding = (spans[0] // 2, spans[1] // 2)
    weight, bias = _parameters(m, name, how)
    sizes = pair(m.stride), pair(padding), pair(m.dilation)  # type: ignore[arg-type]
    return layers.Conv2d(weight, bias, *sizes, m.groups)


def _batch_norm(m: Any, name: str, how: Choices) -> nn.Module:
    _require(m.eps > 0, f"eps={m.eps}, expected > 0")
    _require(m.affine, "affine=False, expected gamma and beta")
    _require(m.track_running_stats, "track_running_stats=False")
    _require(m.momentum is not None, "momentum=None (cumulative average), expected a number")
    weight, bias = _parameters(m, name, how)
    assert bias is not None
    return layers.BatchNorm(weight, bias, m.running_mean, m.running_var, m.momentum, m.eps)


def _layer_norm(m: nn.LayerNorm, name: str, how: Choices) -> nn.Module:
    _require(m.eps > 0, f"eps={m.eps}, expected > 0")
    _require(len(m.normalized_shape) == 1, "more than one normalised dimension")
    _require(m.elementwise_affine and m.bias is not None, "no gamma or beta")
    weight, bias = _parameters(m, name, how)
    assert bias is not None
    return layers.LayerNorm(weight, bias, m.eps)


def _require_small_padding(m: Any) -> None:
    """PyTorch's own rule, which it checks when the layer runs: no window holds padding alone."""
    sizes = zip(pair(m.padding), pair(m.kernel_size), strict=True)
    _require(all(2 * p <= k for p, k in sizes), "padding beyond half the window")


def _max_pool(m: nn.MaxPool2d, name: str, how: Choices) -> nn.Module:
    _require(m.dilation in (1, (1, 1)), f"dilation {m.dilation}, expected 1")
    _require(not m.ceil_mode and not m.return_indices, "ceil_mode or return_indices")
    _require_small_padding(m)
    return layers.MaxPool2d(pair(m.kernel_size), pair(m.stride), pair(m.padding))


def _avg_pool(m: nn.AvgPool2d, name: str, how: Choices) -> nn.Module:
    padding = pair(m.padding)
    _require(m.count_include_pad or padding == (0, 0), "count_include_pad=False with padding")
    _require(not m.ceil_mode and m.divisor_override is None, "ceil_mode or divisor_override")
    _require_small_padding(m)
    return layers.AvgPool2d(pair(m.kernel_size), pair(m.stride), padding)


def _adaptive_pool(m: nn.AdaptiveAvgPool2d, name: str, how: Choices) -> nn.Module:
    assert m.output_size is not None
    return layers.AdaptiveAvgPool2d(m.output_size)


def _dropout(m: nn.Dropout, name: str, how: Choices) -> nn.Module:
    _require(m.p < 1, "p = 1 drops everything")
    return layers.Dropout(m.p, next(how.sites))


def _gelu(m: nn.GELU, name: str, how: Choices) -> nn.Module:
    return layers.Activation("gelu" if m.approximate == "none" else "gelu_tanh")


def _softplus(m: nn.Softplus, name: str, how: Choices) -> nn.Module:
    _require(m.beta == 1, f"beta={m.beta}, expected 1")
    _require(m.threshold >= 20, f"threshold={m.threshold}, expected at least 20")
    return layers.Activation("softplus")


def _embedding(m: nn.Embedding, name: str, how: Choices) -> nn.Module:
    _require(m.padding_idx is None and m.max_norm is None, "padding_idx or max_norm")
    _require(not m.scale_grad_by_freq, "scale_grad_by_freq")
    return layers.Embedding(_parameter(m.weight, f"{name}.weight", how))


def _lstm(m: nn.LSTM, name: str, how: Choices) -> nn.Module:
    _require(m.proj_size == 0, f"proj_size={m.proj_size}, expected 0")
    _require(
        m.dropout == 0 or m.num_layers == 1,
        f"dropout={m.dropout} between its layers, expected 0 (or nn.Dropout between LSTM modules)",
    )
    parameters = {key: _parameter(p, f"{name}.{key}", how) for key, p in m.named_parameters()}
    return layers.LSTM(parameters, m.num_layers, m.bidirectional, m.batch_first)


RULES: dict[type[nn.Module], LayerRule] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: _layer_norm,
    nn.ReLU: lambda m, name, how: layers.ReLU(),
    nn.ReLU6: lambda m, name, how: layers.ReLU6(),
    nn.LeakyReLU: lambda m, name, how: layers.Activation("leaky_relu", m.negative_slope),
    nn.Tanh: lambda m, name, how: layers.Activation("tanh"),
    nn.Sigmoid: lambda m, name, how: layers.Activation("sigmoid"),
    nn.SiLU: lambda m, name, how: layers.Activation("silu"),
    nn.GELU: _gelu,
    nn.Mish: lambda m, name, how: layers.Activation("mish"),
    nn.Softplus: _softplus,
    nn.Hardswish: lambda m, name, how: layers.Activation("hardswish"),
    nn.Hardsigmoid: lambda m, name, how: layers.Activation("hardsigmoid"),
    nn.ELU: lambda m, name, how: layers.Activation("elu", m.alpha),
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _avg_pool,
    nn.AdaptiveAvgPool2d: _adaptive_pool,
    nn.Flatten: lambda m, name, how: layers.Flatten(m.start_dim, m.end_dim),
    nn.Dropout: _dropout,
    nn.Embedding: _embedding,
    nn.LSTM: _lstm,
}


def convert(
    model: nn.Module,
    exponents: str = "tensor",
    widths: Sequence[int] | Mapping[str, Sequence[int]] = WIDTHS,
) -> nn.Module:
    """The BFP twin of a torch.nn model: same structure and initial values, integer state.

    What a Linear or Conv2d gives is 8 bits to another layer and 32 bits to a loss. The given model
    is not changed. The twin's `load_state_dict` takes its own integers, or a state of the float
    model, rounded as here; a state with a wrong entry changes nothing.

    exponents: "tensor", or "row": rows of activations and of matrices have exponents of their own
    (training.md 12), and inputs must be given so, by `model_input`; or "row-shift": besides,
    outlier channels of activations leave the grid of the others (12.4). widths: bits of weights and
    activations (4 to 8), of gradients (up to 16) and of intermediates (32), of the whole model, or
    by paths of its modules (training.md 13). Raises UnsupportedError with every layer that does not
    fit, InputError for other exponents or widths.
    """
    if exponents not in EXPONENTS:
        raise InputError(f"exponents: expected one of {', '.join(EXPONENTS)}, found {exponents!r}")
    misfits: list[str] = []
    done: dict[int, nn.Module] = {}
    by_layer = WidthsByLayer(widths)
    if unused := by_layer.unused([name for name, _ in model.named_modules()]):
        raise InputError(
            f"widths: expected paths of modules, found {', '.join(map(repr, unused))}, where the "
            "model has none"
        )
    how = Choices(itertools.count(), exponents != "tensor", exponents == "row-shift", by_layer)
    twin = _convert(model, "", how, done, misfits)
    if misfits:
        known = ", ".join(sorted(t.__name__ for t in RULES))
        raise UnsupportedError(
            f"{len(misfits)} layer(s) cannot be trained in BFP:\n  "
            + "\n  ".join(misfits)
            + f"\nsupported: {known}; replace these layers or keep the model in float32"
        )
    _tie(model, done)
    if not isinstance(twin, layers.Layer):  # a layer alone checks before it takes anything
        twin.register_load_state_dict_pre_hook(refuse_wrong)
    twin.input_bits = by_layer[INPUT].values  # type: ignore[assignment]
    return twin.train(model.training)


def is_by_rows(model: nn.Module) -> bool:
    """Whether a converted model has exponents by rows."""
    if any(isinstance(m, layers.Layer) and m.peaks is not None for m in model.modules()):
        return True
    parameters = (p for p in model.parameters() if isinstance(p, BFPParameter))
    return any(isinstance(p.exponent, Tensor) for p in parameters)


def model_input(model: nn.Module, x: Tensor, name: str = "input") -> BFPTensor:
    """A real batch as a converted model takes it: bfp8 with one exponent, or one a row.

    Raises NonFiniteError, which calls the tensor by its `name`, for NaN or infinity.
    """
    return BFPTensor.from_real(x, name, is_by_rows(model), getattr(model, "input_bits", 8))


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
    how: Choices,
    done: dict[int, nn.Module],
    misfits: list[str],
) -> nn.Module:
    """The twin of a module and of all inside it; what has no twin stays and joins `misfits`.

    name: the module's path. done: twins by the id of their originals, so that a module used twice
    has one twin. A container is copied with its hooks, and converted children; it may have no
    parameters of its own. Children are looked into whether it has any or not, so that all misfits
    of a user's modules are found at once; a layer of torch.nn is one misfit, as its parts cannot be
    replaced.
    """
    if id(module) in done:
        return done[id(module)]
    rule = RULES.get(type(module))
    inside: dict[str, nn.Module | None] = {}
    twin = module
    try:
        if rule is not None:
            twin = rule(module, name, how)
            twin.name = name  # type: ignore[assignment]
            if how.shifts and isinstance(twin, SHIFTING):
                twin.shift_channels(twin.weight.shape[0])
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
        key: None  # and an empty container, which is false, is no None
        if child is None
        else _convert(child, f"{name}.{key}".lstrip("."), how, done, misfits)
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
