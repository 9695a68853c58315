"""Existing torch.nn models as BFP models: one rule per layer type, one error for all misfits."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from samebits.errors import InputError, UnsupportedError
from samebits.kernels.geometry import Window
from samebits.recipes.training import EXPONENTS
from samebits.train import advice, hooks, layers
from samebits.train.callers import CONVERTED
from samebits.train.given import check_model
from samebits.train.islands import island_of
from samebits.train.operations.indexing import pixel_shuffle, pixel_unshuffle, unflatten
from samebits.train.operations.layer_norm import DEFAULT_EPS
from samebits.train.operations.pointwise import line, sides
from samebits.train.operations.resampling import MODES, pad
from samebits.train.roots import eps_of_norm
from samebits.train.state import refuse_wrong
from samebits.train.tensor import WIDTHS, BFPParameter, BFPTensor
from samebits.train.widths import INPUT, WidthsByLayer

"""Granularities: one exponent a tensor; one a sample, vector or output channel; rows with shifts
of the channels of activations (training.md 12.4)."""


@dataclass(frozen=True)
class Choices:
    """The choices that rules need beside a module.

    sites:   numbers of dropout layers, in registration order
    by_rows: whether matrices have an exponent for each output
    shifts:  whether channels of activations have shifts
    widths:  of every layer
    islands: paths of modules that stay in float32
    shared:  ids of the parameters of all others
    """

    sites: Iterator[int]
    by_rows: bool
    shifts: bool
    widths: WidthsByLayer
    islands: frozenset[str]
    shared: frozenset[int]


SHIFTING = (
    *(layers.Linear, layers.Conv2d, layers.ConvTranspose2d),
    *(layers.BatchNorm, layers.LayerNorm, layers.GroupNorm),
)
"""Layers that round what they compute, so that its channels may have shifts."""

LayerRule = Callable[[Any, str, Choices], nn.Module]

CONTAINERS = (
    *(nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity),
    *(nn.ParameterList, nn.ParameterDict),
    *(nn.TransformerEncoder, nn.TransformerEncoderLayer),
    *(nn.TransformerDecoder, nn.TransformerDecoderLayer, nn.Transformer),
)
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


def _conv(m: nn.Conv1d | nn.Conv2d, name: str, how: Choices) -> nn.Module:
    """A Conv1d or 2d; a padding of other numbers, or that is uneven, comes before it (14.4)."""
    spans = [d * (k - 1) for d, k in zip(m.dilation, m.kernel_size, strict=True)]
    pads = {"valid": [(0, 0) for _ in spans], "same": [(s // 2, s - s // 2) for s in spans]}.get(
        str(m.padding), [(p, p) for p in m.padding if isinstance(p, int)]
    )
    padding, around = tuple(low for low, _ in pads), None
    if m.padding_mode != "zeros" or any(low != high for low, high in pads):
        mode = "constant" if m.padding_mode == "zeros" else m.padding_mode
        around = (tuple(itertools.chain(*reversed(pads))), mode)
        padding = (0,) * len(pads)
    weight, bias = _parameters(m, name, how)
    rank = m.weight.dim()
    sizes = sides(rank, m.stride), sides(rank, padding, 0), sides(rank, m.dilation)
    kind = layers.Conv1d if rank == 3 else layers.Conv2d
    return kind(weight, bias, *sizes, m.groups, around)


def _conv_transpose(
    m: nn.ConvTranspose1d | nn.ConvTranspose2d, name: str, how: Choices
) -> nn.Module:
    sizes = zip(m.output_padding, m.stride, strict=True)
    fits = all(more < step for more, step in sizes)
    _require(fits, f"output_padding {m.output_padding}, expected below the stride {m.stride}")
    weight, bias = _parameters(m, name, how)
    rank = m.weight.dim()
    padding, extra = (sides(rank, size, 0) for size in (m.padding, m.output_padding))
    kind = layers.ConvTranspose1d if rank == 3 else layers.ConvTranspose2d
    return kind(
        weight, bias, sides(rank, m.stride), padding, extra, sides(rank, m.dilation), m.groups
    )


def _upsample(m: nn.Upsample, name: str, how: Choices) -> nn.Module:
    modes = sorted({mode for known in MODES.values() for mode in known})
    _require(m.mode in modes, f"mode {m.mode!r}, expected one of {', '.join(modes)}")
    return layers.Upsample(
        size=m.size,
        scale_factor=m.scale_factor,
        mode=m.mode,
        align_corners=m.align_corners,
        recompute_scale_factor=m.recompute_scale_factor,
    )


def _pad(m: Any, name: str, how: Choices) -> nn.Module:
    value = getattr(m, "value", 0)
    _require(value == 0, f"value={value}, expected 0")
    mode = PADDINGS[type(m)]
    return layers.Rearranged(lambda x: pad(x, m.padding, mode))


PADDINGS: dict[type[nn.Module], str] = {
    **dict.fromkeys((nn.ZeroPad1d, nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d), "constant"),
    **dict.fromkeys((nn.ReflectionPad1d, nn.ReflectionPad2d), "reflect"),
    **dict.fromkeys((nn.ReplicationPad1d, nn.ReplicationPad2d), "replicate"),
    **dict.fromkeys((nn.CircularPad1d, nn.CircularPad2d), "circular"),
}
"""Modes of padding modules."""


def _unflatten(m: nn.Unflatten, name: str, how: Choices) -> nn.Module:
    _require(isinstance(m.dim, int), "named axes")
    return layers.Rearranged(lambda x: unflatten(x, m.dim, m.unflattened_size))


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
    weight, bias = _parameters(m, name, how) if m.elementwise_affine else (None, None)
    return layers.LayerNorm(weight, bias, m.normalized_shape[0], m.eps)


def _group_norm(m: Any, name: str, how: Choices) -> nn.Module:
    """A GroupNorm, or an InstanceNorm, whose groups are the channels."""
    _require(m.eps > 0, f"eps={m.eps}, expected > 0")
    _require(not getattr(m, "track_running_stats", False), "track_running_stats=True")
    weight, bias = _parameters(m, name, how) if m.affine else (None, None)
    grouped = isinstance(m, nn.GroupNorm)
    sizes = (m.num_groups, m.num_channels) if grouped else (m.num_features, m.num_features)
    return layers.GroupNorm(weight, bias, *sizes, m.eps)


def _rms_norm(m: nn.RMSNorm, name: str, how: Choices) -> nn.Module:
    eps = DEFAULT_EPS if m.eps is None else m.eps
    _require(eps > 0, f"eps={m.eps}, expected > 0")
    _require(len(m.normalized_shape) == 1, "more than one normalised dimension")
    weight = None if m.weight is None else _parameter(m.weight, f"{name}.weight", how)
    return layers.LayerNorm(weight, None, m.normalized_shape[0], eps, centred=False)


def _root_norm(m: Any, name: str, how: Choices) -> nn.Module:
    weight, eps = _parameter(m.weight, f"{name}.weight", how), cast(float, eps_of_norm(m))
    return layers.LayerNorm(weight, None, len(weight), eps, centred=False)


def _attention(m: nn.MultiheadAttention, name: str, how: Choices) -> nn.Module:
    _require(m.in_proj_weight is not None, "kdim or vdim other than embed_dim")
    _require(m.bias_k is None and not m.add_zero_attn, "add_bias_kv or add_zero_attn")
    _require(m.dropout < 1, "dropout = 1 drops everything")
    weight = _parameter(m.in_proj_weight, f"{name}.in_proj_weight", how)
    bias = m.in_proj_bias
    own = None if bias is None else _parameter(bias, f"{name}.in_proj_bias", how)
    out = layers.Linear(*_parameters(m.out_proj, f"{name}.out_proj", how))
    out.name = f"{name}.out_proj"
    dropout = layers.Dropout(m.dropout, next(how.sites)) if m.dropout else None
    if dropout is not None:
        dropout.name = f"{name}.dropout"
    return layers.MultiheadAttention(weight, own, out, m.num_heads, m.batch_first, dropout)


def _window(m: Any) -> Window:
    """The geometry of a pool, whose windows never hold padding alone: PyTorch's own rule, which it
    checks when the layer runs."""
    rank = 3 if isinstance(m, nn.MaxPool1d | nn.AvgPool1d) else 4
    kernel, stride = sides(rank, m.kernel_size), sides(rank, m.stride)
    padding = sides(rank, m.padding, 0)
    sizes = zip(padding, kernel, strict=True)
    _require(all(2 * p <= k for p, k in sizes), "padding beyond half the window")
    return Window(kernel, stride, padding, m.ceil_mode)


def _max_pool(m: nn.MaxPool1d | nn.MaxPool2d, name: str, how: Choices) -> nn.Module:
    _require(m.dilation in (1, (1,), (1, 1)), f"dilation {m.dilation}, expected 1")
    _require(not m.return_indices, "return_indices")
    pool = layers.MaxPool2d(_window(m))
    return layers.OverLines(pool) if isinstance(m, nn.MaxPool1d) else pool


def _avg_pool(m: nn.AvgPool1d | nn.AvgPool2d, name: str, how: Choices) -> nn.Module:
    divisor: Any = getattr(m, "divisor_override", None)
    _require(divisor is None or divisor > 0, f"divisor_override={divisor}, expected at least 1")
    pool = layers.AvgPool2d(_window(m), m.count_include_pad, divisor)
    return layers.OverLines(pool) if isinstance(m, nn.AvgPool1d) else pool


def _dropout(m: nn.Dropout, name: str, how: Choices) -> nn.Module:
    _require(m.p < 1, "p = 1 drops everything")
    return layers.Dropout(m.p, next(how.sites))


def _stochastic_depth(m: Any, name: str, how: Choices) -> nn.Module:
    _require(m.p < 1, "p = 1 drops everything")
    return layers.StochasticDepth(m.p, next(how.sites), m.mode)


def _drop_path(m: Any, name: str, how: Choices) -> nn.Module:
    _require(m.drop_prob < 1, "drop_prob = 1 drops everything")
    _require(m.scale_by_keep, "scale_by_keep=False")
    return layers.StochasticDepth(m.drop_prob, next(how.sites))


def _softmax(m: nn.Softmax | nn.LogSoftmax, name: str, how: Choices) -> nn.Module:
    _require(m.dim is not None, "no dim, expected an axis")
    assert m.dim is not None
    kind = layers.SoftmaxLayer if isinstance(m, nn.Softmax) else layers.LogSoftmaxLayer
    return kind(m.dim)


def _gelu(m: nn.GELU, name: str, how: Choices) -> nn.Module:
    return layers.Activation("gelu" if m.approximate == "none" else "gelu_tanh")


def _softplus(m: nn.Softplus, name: str, how: Choices) -> nn.Module:
    _require(m.beta == 1, f"beta={m.beta}, expected 1")
    _require(m.threshold >= 20, f"threshold={m.threshold}, expected at least 20")
    return layers.Activation("softplus")


def _embedding(m: nn.Embedding, name: str, how: Choices) -> nn.Module:
    _require(m.max_norm is None, "max_norm")
    _require(not m.scale_grad_by_freq, "scale_grad_by_freq")
    return layers.Embedding(_parameter(m.weight, f"{name}.weight", how), m.padding_idx)


def _embedding_bag(m: nn.EmbeddingBag, name: str, how: Choices) -> nn.Module:
    _require(m.max_norm is None, "max_norm")
    _require(not m.scale_grad_by_freq, "scale_grad_by_freq")
    _require(m.padding_idx is None, "padding_idx, which shortens bags")
    _require(not m.include_last_offset, "include_last_offset")
    return layers.EmbeddingBag(_parameter(m.weight, f"{name}.weight", how), m.mode)


def _stack(kind: type[layers.RecurrentStack]) -> LayerRule:
    """The rule of a torch.nn recurrent module."""

    def rule(m: nn.RNNBase, name: str, how: Choices) -> nn.Module:
        _require(m.proj_size == 0, f"proj_size={m.proj_size}, expected 0")
        _require(m.dropout < 1, "dropout = 1 drops everything")
        dropouts = []
        for index in range(1, m.num_layers if m.dropout else 1):
            dropouts.append(layers.Dropout(m.dropout, next(how.sites)))
            dropouts[-1].name = f"{name}.dropout_l{index}"
        settings = (m.num_layers, m.bidirectional, m.batch_first, dropouts)
        return _of_relu(kind(_named(m, name, how), *settings), m)

    return rule


def _cell(kind: type[layers.RecurrentCell]) -> LayerRule:
    """The rule of a torch.nn cell."""
    return lambda m, name, how: _of_relu(kind(_named(m, name, how)), m)


def _named(m: nn.Module, name: str, how: Choices) -> dict[str, BFPParameter]:
    """Twins of parameters by their names, of which one may have several: `_tie` makes them one."""
    found = m.named_parameters(remove_duplicate=False)
    return {key: _parameter(p, f"{name}.{key}", how) for key, p in found}


def _of_relu(twin: layers.RecurrentBase, m: nn.Module) -> nn.Module:
    if isinstance(twin, layers.OfRNN):
        twin.relu = m.nonlinearity == "relu"
    return twin


RULES: dict[type[nn.Module], LayerRule] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv,
    nn.Conv1d: _conv,
    nn.ConvTranspose2d: _conv_transpose,
    nn.ConvTranspose1d: _conv_transpose,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.GroupNorm: _group_norm,
    nn.InstanceNorm1d: _group_norm,
    nn.InstanceNorm2d: _group_norm,
    nn.MultiheadAttention: _attention,
    nn.Softmax: _softmax,
    nn.LogSoftmax: _softmax,
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
    nn.AdaptiveAvgPool2d: lambda m, name, how: layers.AdaptiveAvgPool2d(m.output_size),
    nn.MaxPool1d: _max_pool,
    nn.AvgPool1d: _avg_pool,
    nn.AdaptiveAvgPool1d: lambda m, name, how: layers.OverLines(
        layers.AdaptiveAvgPool2d(line(m.output_size))
    ),
    nn.Upsample: _upsample,
    nn.UpsamplingNearest2d: _upsample,
    nn.UpsamplingBilinear2d: _upsample,
    nn.PixelShuffle: lambda m, name, how: layers.Rearranged(
        lambda x: pixel_shuffle(x, m.upscale_factor)
    ),
    nn.PixelUnshuffle: lambda m, name, how: layers.Rearranged(
        lambda x: pixel_unshuffle(x, m.downscale_factor)
    ),
    nn.Unflatten: _unflatten,
    **dict.fromkeys(PADDINGS, _pad),
    nn.Flatten: lambda m, name, how: layers.Flatten(m.start_dim, m.end_dim),
    nn.Dropout: _dropout,
    nn.Embedding: _embedding,
    nn.EmbeddingBag: _embedding_bag,
    nn.LSTM: _stack(layers.LSTM),
    nn.GRU: _stack(layers.GRU),
    nn.RNN: _stack(layers.RNN),
    nn.LSTMCell: _cell(layers.LSTMCell),
    nn.GRUCell: _cell(layers.GRUCell),
    nn.RNNCell: _cell(layers.RNNCell),
}
RULES_ELSEWHERE: dict[tuple[str, str], LayerRule] = {
    ("torchvision.ops.stochastic_depth", "StochasticDepth"): _stochastic_depth,
    ("timm.layers.drop", "DropPath"): _drop_path,
    **{
        ("transformers.activations", name): lambda m, name, how: layers.Activation("gelu_tanh")
        for name in ("NewGELUActivation", "FastGELUActivation", "GELUTanh")
    },
    ("transformers.activations", "GELUActivation"): lambda m, name, how: layers.Activation("gelu"),
}
"""Rules by module and class, for packages that nothing here imports."""


def _rule_of(module: nn.Module) -> LayerRule | None:
    kind = type(module)
    known = RULES.get(kind) or RULES_ELSEWHERE.get((kind.__module__, kind.__qualname__))
    return known if known or eps_of_norm(module) is None else _root_norm


def convert(
    model: nn.Module,
    exponents: str = "tensor",
    widths: Sequence[int] | Mapping[str, Sequence[int]] = WIDTHS,
    keep_float: Sequence[str] = (),
) -> nn.Module:
    """The BFP twin of a torch.nn model: same structure and initial values, integer state.

    What a Linear or Conv2d gives is 8 bits to another layer and 32 bits to a loss. The given model
    is not changed. The twin's `load_state_dict` takes its own integers, or a state of the float
    model, rounded as here; a state with a wrong entry changes nothing.

    exponents: "tensor", or "row": rows of activations and of matrices have exponents of their own
    (training.md 12), and inputs must be given so, by `model_input`; or "row-shift": besides,
    outlier channels of activations leave the grid of the others (12.4). widths: bits of weights and
    activations (4 to 8), of gradients (up to 16) and of intermediates (32), of the whole model, or
    by paths of its modules (training.md 13). keep_float: paths of modules that stay in float32,
    with all inside them: their input is dequantized, their output quantized, and bits depend on the
    machine there (`float_islands` names them); an optimizer of torch trains them. Raises
    UnsupportedError with every layer that does not fit, InputError for other exponents or widths,
    for paths that the model does not have, and for what is no float model with values.
    """
    check_model(model)
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
    paths = {name for name, _ in model.named_modules()} - {""}
    if unknown := [path for path in keep_float if path not in paths]:
        raise InputError(
            f"keep_float: expected paths of modules inside the model, found "
            f"{', '.join(map(repr, unknown))}"
        )
    rows = (exponents != "tensor", exponents == "row-shift")
    outside = frozenset(
        id(p)
        for path, module in model.named_modules(remove_duplicate=False)
        if not any(f"{path}.".startswith(f"{island}.") for island in keep_float)
        for p in module._parameters.values()
        if p is not None
    )
    how = Choices(itertools.count(), *rows, by_layer, frozenset(keep_float), outside)
    twin = _convert(model, "", how, done, misfits)
    if misfits:
        known = ""
        if any("no rule" in misfit for misfit in misfits):
            names = {*(t.__name__ for t in RULES), *(n for _, n in RULES_ELSEWHERE)}
            known = f"supported: {', '.join(sorted(names))}; "
        raise UnsupportedError(
            f"{len(misfits)} layer(s) cannot be trained in BFP:\n  "
            + "\n  ".join(misfits)
            + f"\n{known}change or replace these layers, keep them in float32 (keep_float) or "
            "train the model in float32"
        )
    _tie(model, twin)
    twin.register_load_state_dict_pre_hook(refuse_wrong)
    vars(twin)[CONVERTED] = [layers.Dropout(0.0, next(how.sites))]
    twin.input_bits = by_layer[INPUT].values  # type: ignore[assignment]
    twin.input_by_rows = exponents != "tensor"  # type: ignore[assignment]
    return twin


def is_by_rows(model: nn.Module) -> bool:
    """Whether a converted model has exponents by rows."""
    if getattr(model, "input_by_rows", False) or any(
        isinstance(m, layers.Layer) and m.peaks is not None for m in model.modules()
    ):
        return True
    parameters = (p for p in model.parameters() if isinstance(p, BFPParameter))
    return any(isinstance(p.exponent, Tensor) for p in parameters)


def model_input(model: nn.Module, x: Tensor, name: str = "input") -> BFPTensor:
    """A real batch as a converted model takes it: bfp8 with one exponent, or one a row.

    Rows have their own in evaluation mode, too, so that no sample depends on those beside it.
    Raises NonFiniteError, which calls the tensor by its `name`, for NaN or infinity.
    """
    by_rows = not model.training or is_by_rows(model)
    return BFPTensor.from_real(x, name, by_rows, getattr(model, "input_bits", 8))


def _tie(model: nn.Module, converted: nn.Module) -> None:
    """A parameter that several layers share is one parameter of their twins too."""
    first: dict[int, nn.Parameter | None] = {}
    for path, module in model.named_modules():
        twin = converted.get_submodule(path)
        for name, parameter in module._parameters.items():
            if isinstance(twin._parameters.get(name), BFPParameter):
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
    has one twin. A container is copied with its hooks, buffers, and converted children. Children
    are looked into whether it has any or not, so that all misfits of a user's modules are found at
    once; a layer of torch.nn is one misfit, as its parts cannot be replaced.
    """
    if id(module) in done:
        return done[id(module)]
    if name in how.islands:
        done[id(module)] = _island(module, name, how, misfits)
        return done[id(module)]
    rule = _rule_of(module)
    inside: dict[str, nn.Module | None] = {}
    twin, refusal = module, hooks.refusal(module, is_layer=rule is not None)
    try:
        if rule is not None:
            _require(not refusal, refusal)
            twin = rule(module, name, how)
            twin.name = name  # type: ignore[assignment]
            _keep_modes(twin, module)
            hooks.carry(module, twin)
            if how.shifts and isinstance(twin, SHIFTING):
                twin.shift_channels(twin.channels)
        else:
            compiled = type(module).__name__ == "OptimizedModule"
            _require(not compiled, "compiled by torch.compile, expected the module in _orig_mod")
            scripted = isinstance(module, torch.jit.ScriptModule)
            _require(not scripted, "compiled by torch.jit, expected the module it was made of")
            foreign = type(module).__module__.startswith("torch.nn")
            known = not foreign or isinstance(module, CONTAINERS)
            _require(known, f"no rule for this layer; {advice.for_layer(module, name)}")
            inside = module._modules
            _require(not refusal, refusal)
            twin = _with_own_parameters(_shell(module), module, name, how)
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


def _island(module: nn.Module, name: str, how: Choices, misfits: list[str]) -> nn.Module:
    """The copy of a module that stays in float32; itself if it cannot be one, says `misfits`."""
    found = hooks.refusals_inside(module, name)
    if shared := {id(p) for p in module.parameters()} & how.shared:
        found.append(
            f"{name} ({type(module).__name__}): {len(shared)} parameter(s) that modules outside of "
            "it share, expected none in float32"
        )
    misfits.extend(found)
    return module if found else island_of(module, name, how.by_rows, how.widths[INPUT].values)


def _keep_modes(twin: nn.Module, module: nn.Module) -> None:
    """Give a layer's twin its mode, and those inside it the modes of the same names.

    What the twin has beside them, such as the dropouts of a stack, has the mode of the layer.
    """
    own = dict(module.named_modules())
    for path, inner in twin.named_modules():
        inner.training = own.get(path, module).training


def _with_own_parameters(twin: nn.Module, module: nn.Module, name: str, how: Choices) -> nn.Module:
    """The shell of a user's module with BFP parameters in the place of its own (14.5).

    Its buffers stay what they are, constants; running statistics of a subclass of BatchNorm are
    its own, in binary64, as those of the layer are.
    """
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        twin._buffers = layers.wide_buffers(module)
    own = {key: p for key, p in module._parameters.items() if p is not None}
    for key, p in own.items():
        _require(p.is_floating_point(), f"parameter {key} of {p.dtype}, expected real numbers")
        twin._parameters[key] = _parameter(p, f"{name}.{key}", how)  # type: ignore[assignment]
    if own:
        plain = type(module).get_extra_state is nn.Module.get_extra_state
        _require(plain, "get_extra_state, beside parameters of its own")
        try:
            twin.__class__ = layers.joined(layers.Holder, type(module))
        except TypeError as error:
            raise Misfit(f"a class that cannot hold integers: {error}") from None
    return twin


def _shell(module: nn.Module) -> nn.Module:
    """A copy of a container with hooks of its own, whose children are still to be replaced."""
    twin = copy.copy(module)
    for key, value in vars(module).items():
        if isinstance(value, dict) and (
            "_hooks" in key or key in ("_parameters", "_buffers", "_modules")
        ):
            setattr(twin, key, value.copy())
    hooks.rebind(twin)
    return twin
