"""Training of parts of a network: which parameters an update changes, and which batch norms stand.

The rest is what PyTorch makes of it by hand: `requires_grad = False`, and evaluation mode for batch
norms, whose running statistics would move without a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from samebits.errors import InputError


def train_only(model: nn.Module, patterns: Sequence[str]) -> tuple[nn.Module, ...]:
    """Let only the parameters that patterns name be trained.

    patterns: names of modules or parameters, with the wildcards of `fnmatch`: "head", "*.bias"

    Returns the modules that belong in evaluation mode: those with running statistics of whose
    parameters none is trained (of one without any: of those around it). Raises InputError for a
    pattern that names none.
    """
    names = [name for name, _ in model.named_parameters()]
    chosen: set[str] = set()
    for pattern in patterns:
        found = [name for name in names if _is_named(name, pattern)]
        if not found:
            raise InputError(
                f"--train-only: expected names of modules or parameters, found {pattern!r:.60}, "
                f"which none has; there are {', '.join(_known(names))}"
            )
        chosen.update(found)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)
    return tuple(module for name, module in model.named_modules() if _stands(model, name))


def _is_named(name: str, pattern: str) -> bool:
    """Whether a pattern names a parameter, or a module that holds it."""
    return any(fnmatchcase(held, pattern) for held in _holders(name))


def _holders(name: str) -> list[str]:
    """A parameter's modules, from the outermost, and the parameter."""
    steps = name.split(".")
    return [".".join(steps[: i + 1]) for i in range(len(steps))]


def _known(names: Sequence[str]) -> list[str]:
    """All that patterns may name, in order, each once."""
    return list(dict.fromkeys(held for name in names for held in _holders(name)))


def _stands(model: nn.Module, name: str) -> bool:
    """Whether a module has running statistics that belong to what is not trained."""
    if "running_mean" not in model.get_submodule(name)._buffers:
        return False
    while not (held := list(model.get_submodule(name).parameters())):
        name = name.rpartition(".")[0]
    return not any(p.requires_grad for p in held)
