"""Advice in errors: the nearest to layers and operations of torch that BFP does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.overrides import resolve_name
from torch.utils._pytree import tree_leaves

from samebits.train.callers import Caller, calling_module, calling_optimizer

LAYERS = {
    "Hardtanh": "nn.ReLU6(), which is Hardtanh(0, 6)",
    "GLU": "a * torch.sigmoid(b) of a, b = x.chunk(2, dim)",
    "SELU": "1.0507 * nn.ELU(1.67326)(x)",
    "CELU": "nn.ELU()",
    "PReLU": "nn.LeakyReLU()",
    "RReLU": "nn.LeakyReLU()",
    "Threshold": "nn.ReLU()",
    "LogSigmoid": "-nn.Softplus()(-x)",
    "Tanhshrink": "x - torch.tanh(x)",
    "Softmin": "nn.Softmax(dim) of -x",
    "Softmax2d": "nn.Softmax(1)",
    "ChannelShuffle": "reshape and transpose",
    "SyncBatchNorm": "nn.BatchNorm2d",
    **dict.fromkeys(("Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout"), "nn.Dropout"),
    **dict.fromkeys(("DataParallel", "DistributedDataParallel"), "the module inside, .module"),
    "CrossEntropyLoss": "samebits.train.CrossEntropyLoss",
    "MSELoss": "samebits.train.MSELoss",
}
"""Layers of torch.nn, and what to write in their place."""

_STATISTICS = "write nn.LayerNorm or nn.GroupNorm"
_SCALED = "write nn.LayerNorm or nn.RMSNorm, which divide by a root"
OPERATIONS = {
    **dict.fromkeys(("rsqrt", "sqrt", "norm", "vector_norm"), _SCALED),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), _STATISTICS),
    **dict.fromkeys(("batch_norm", "instance_norm"), "register the layer as a module"),
    "abs": "write relu(x) + relu(-x)",
    "clamp": "write relu(x) or relu6(x), or clamp a by c from below as relu(a - c) + c",
    "clip": "write relu(x) or relu6(x), or clip a at c from below as relu(a - c) + c",
    "maximum": "write relu(a - b) + b",
    "minimum": "write a - relu(a - b)",
    "hardtanh": "write relu6(x), which is hardtanh(x, 0, 6)",
    "log": "write log_softmax(x, dim)",
    "glu": "write a * torch.sigmoid(b) of a, b = x.chunk(2, dim)",
    "selu": "write 1.0507 * elu(x, 1.67326)",
    "celu": "write elu(x)",
    "prelu": "write leaky_relu(x)",
    "logsigmoid": "write -softplus(-x)",
    **dict.fromkeys(("dropout1d", "dropout2d", "dropout3d"), "register nn.Dropout as a module"),
    "alpha_dropout": "register nn.Dropout as a module",
}
"""Functions of torch by their own names, and what to write in their place."""


def for_layer(module: nn.Module, path: str) -> str:
    """The ways out for a layer that has no rule; `path` is empty for the model itself."""
    kind = type(module).__name__
    if nn.utils.parametrize.is_parametrized(module):
        return "call torch.nn.utils.parametrize.remove_parametrizations before convert"
    if any(nn.parameter.is_lazy(p) for p in module.parameters(recurse=False)):
        return "call the model once, which makes its parameters, before convert"
    ways = [f"write {LAYERS[kind]}"] if kind in LAYERS else []
    if path:
        ways.append(f"keep it in float32: keep_float=[{path!r}]")
    return ", or ".join(ways) or "train the model in float32"


def for_operation(func: Callable[..., Any], text: str | None, args: Any, kwargs: Any) -> str:
    """The message of an error in a function of torch on BFP tensors.

    text: what the function's twin said; None: it has none
    """
    if (optimizer := calling_optimizer()) is not None:
        kind = type(optimizer).__name__
        return (
            f"BFP parameters are integers, which {kind} cannot change: use samebits.train.SGD, or "
            "Adam (with decoupled=True for AdamW), and give an optimizer of torch the parameters "
            "of float modules alone"
        )
    name = resolve_name(func) or getattr(func, "__name__", str(func))
    if "_amp_foreach" in name:
        return (
            "BFP gradients have exponents, which no scale of a loss has to save: expected no "
            "GradScaler; call loss.backward() and optimizer.step()"
        )
    caller = calling_module()
    if caller is not None and isinstance(caller.module, AveragedModel):
        return (
            "BFP parameters are integers, which AveragedModel cannot average: use "
            "samebits.train.EMA(model, decay)"
        )
    begin = "" if caller is None else caller.words
    if text is not None and text.startswith(PLACES):
        return text
    advice = OPERATIONS.get(name.rpartition(".")[2].strip("_"))
    if any(type(p) is nn.Parameter for p in tree_leaves((args, kwargs))):
        return (
            f"{begin}{name}: found a torch.nn.Parameter that convert has not seen, expected those "
            "of the model's own modules; register what holds it (a list as nn.ModuleList) before "
            "convert, or detach it"
        )
    if text is None:
        ways = [*([advice] if advice else []), _in_float(caller)]
        return f"{begin}BFP tensors are integers and have no {name}: {', or '.join(ways)}"
    return f"{begin}{text}; {advice}" if advice and "no gradient" in text else f"{begin}{text}"


PLACES = ("layer '", "module '", "module of type ", "the model (")
"""Beginnings of messages that say where."""


def _in_float(caller: Caller | None) -> str:
    path = caller.path if caller is not None else None
    way = f"keep_float=[{path!r}]" if path else "keep_float"
    return f"keep the module in float32 ({way} of convert), or go on in floats with .dequantize()"
