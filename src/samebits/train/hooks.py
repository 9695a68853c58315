"""Hooks of a model that is converted: those that go along with a layer, and those that cannot."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


def carry(module: nn.Module, twin: nn.Module) -> None:
    """Give a layer's twin the layer's hooks: around its calls, and around its state dict."""
    own = {key: value for key, value in vars(module).items() if "_hooks" in key}
    vars(twin).update({key: v.copy() for key, v in own.items() if isinstance(v, dict)})
    rebind(twin)


def rebind(twin: nn.Module) -> None:
    """Let hooks of a copied module that are called with it be called with the copy."""
    hooks: dict[int, Any] = twin._load_state_dict_pre_hooks
    for number, hook in hooks.items():
        if getattr(hook, "with_module", False):
            hooks[number] = type(hook)(hook.hook, twin)


def refusal(module: nn.Module, is_layer: bool) -> str:
    """Why the hooks of a module, or of its parameters, cannot go along; empty: they can.

    is_layer: whether the module is replaced, with all inside it, so that no gradient passes it any
    more; a container goes on having hooks of its backward pass.
    """
    for inner in module.modules() if is_layer else (module,):
        if (found := _refusal_of_parameters(inner)) is not None:
            return found
        if is_layer and (inner._backward_hooks or inner._backward_pre_hooks):
            return (
                "expected no backward hooks, whose gradients would be integers; register them on "
                "the converted layer"
            )
    return ""


def refusals_inside(module: nn.Module, path: str) -> list[str]:
    """Lines about a module that stays in float32 and those inside it, whose hooks are copied."""
    return [
        f"{f'{path}.{name}'.rstrip('.')} ({type(inner).__name__}): {found}"
        for name, inner in module.named_modules()
        if (found := _refusal_of_parameters(inner)) is not None
    ]


def _refusal_of_parameters(module: nn.Module) -> str | None:
    """Why the parameters of a module cannot be copied as they are; None: they can."""
    for hook in module._forward_pre_hooks.values():
        if (found := _computed(hook)) is not None:
            return found
    for name, p in module._parameters.items():
        if p is not None and (p._backward_hooks or p._post_accumulate_grad_hooks):
            return (
                f"expected no hooks of parameter {name}, which convert would lose; remove them "
                "before convert"
            )
    return None


def _computed(hook: Any) -> str | None:
    """The way out for a hook that computes a parameter before each call; None: it does not."""
    if isinstance(hook, prune.BasePruningMethod):
        name, kind, way = hook._tensor_name, "prune", f"prune.remove(module, {hook._tensor_name!r})"
    elif isinstance(hook, WeightNorm):
        name, kind, way = hook.name, "weight_norm", f"remove_weight_norm(module, {hook.name!r})"
    elif isinstance(hook, SpectralNorm):
        name, kind, way = hook.name, "spectral_norm", f"remove_spectral_norm(module, {hook.name!r})"
    else:
        return None
    return (
        f"expected a parameter {name}, found one that {kind} computes in each call; call "
        f"torch.nn.utils.{way} before convert"
    )
