"""Optimizers with lazy update (training.md 2 to 4).

No weight or gradient is held in floating point between steps; moments are 16-bit codes with small
exponents of their own (e6m9, 1.4). SGD computes in integers alone. Adam's formulas divide and take
roots: they are binary64, operation by operation in the order of the specification, each correctly
rounded (+ - * / sqrt, and no libm), and their results are stored as codes again; its state holds
two binary64 numbers beside them, beta1**t and beta2**t, by repeated multiplication. Learning rate,
momentum and SGD's weight decay are options in binary64, read as 16-bit coefficients.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import CheckpointError, InputError, RangeError, UnsupportedError
from samebits.kernels.adam import AdamTerms
from samebits.kernels.moments import Draw
from samebits.kernels.optimize import (
    Contributions,
    Entry,
    GradientCells,
    Roster,
    StepGradients,
    StepOptions,
)
from samebits.kernels.protocol import Gradient, SGDTerms, Term, WholePart
from samebits.recipes.training import ROUNDINGS
from samebits.settled import check_thread
from samebits.spec import formats
from samebits.train import undo
from samebits.train.lazy import coefficient, lazy_update
from samebits.train.moments import KINDS, MomentState, stored
from samebits.train.options import adam_options, sgd_options
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.train.value import Weight

BETAS, EPS = (0.9, 0.999), 1e-8  # of Adam, as PyTorch's


class Change(NamedTuple):
    """One parameter's part of a step; `lr` is None where the learning rate is 0.

    draw: random bits of the step; None: everything is rounded to nearest
    """

    parameter: BFPParameter
    gradient: Gradient
    group: dict[str, Any]
    lr: tuple[int, int] | None
    draw: Draw | None
    name: str


class _Made(NamedTuple):
    """A roster, what it is good for, and the places of parameters that are not in it.

    signs: that must be equal; held: that must be the same objects
    """

    signs: list[Any]
    held: list[Any]
    roster: Roster | None
    others: list[int]


Given = Sequence[Contributions | None]  # gradients of all parameters, in order


def _live(gradients: Given) -> list[int]:
    """The places of parameters that have a gradient."""
    return [place for place, parts in enumerate(gradients) if parts is not None]


def _gathered(roster: Roster, gradients: Given) -> StepGradients:
    """The gradients of a roster's parameters, of those of all."""
    each = (gradients[entry.place] for entry in roster.entries)
    return StepGradients(tuple(gradient for gradient in each if gradient is not None))


class IntegerOptimizer(torch.optim.Optimizer):
    """PyTorch's optimizer interface over BFP parameters; subclasses define `_direction`.

    `param_groups` and learning-rate schedules work as in PyTorch; per-parameter state holds integer
    tensors and plain numbers only. Moments and updates are rounded stochastically, with random bits
    that are a function of the seed, the parameter's place, the step and the element (1.5).

    Options of every optimizer are `seed`, of the random bits, and `rounding`: stochastic, or
    nearest (training.md 10 says what then stalls).
    """

    names: Mapping[int, str] = MappingProxyType({})
    _made: _Made | None = None

    def __init__(self, parameters: Iterable[Any], defaults: dict[str, Any]) -> None:
        _check_rounding(defaults)
        super().__init__(parameters, defaults)
        for group in self.param_groups:
            for index, parameter in enumerate(group["params"]):
                if not isinstance(parameter, BFPParameter):
                    raise InputError(
                        f"parameter {index}: expected a BFP parameter, found "
                        f"{type(parameter).__name__}; convert the model with "
                        "samebits.train.convert, and give parameters that stay in float32 to an "
                        "optimizer of torch"
                    )

    def name_parameters(self, model: torch.nn.Module) -> None:
        """Remember parameter names for error messages."""
        self.names = {id(p): name for name, p in model.named_parameters()}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient.

        Raises InputError where no parameter has one, and RangeError, which names the parameter,
        where an update leaves the range of its format. After either, parameters and the
        optimizer's state are what they were before: a lower learning rate may be tried.
        """
        check_thread()
        with torch._C.DisableTorchFunctionSubclass():  # only flags and gradients are asked for
            trained = [p for p in self._parameters() if p.requires_grad]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch._C.DisableTorchFunctionSubclass():
            if trained and all(p.grad is None for p in trained):
                raise InputError(
                    "no parameter has a gradient: call backward() before step(), and build the "
                    "optimizer after moving the model to its device"
                )
            found = [p.grad for p in self._parameters()]
        if not all(g is None or isinstance(g, BFPTensor) for g in found):
            raise InputError("expected BFP gradients: use samebits.train losses and layers")
        gradients = [None if g is None else g.value for g in found]
        self._step(gradients, _live(gradients), lambda roster: _gathered(roster, gradients))
        return loss

    def prepared(self, gradients: Sequence[GradientCells | None]) -> Callable[[], None]:
        """A function that makes a step by gradients which always lie at the same places.

        gradients: of every parameter of the groups, in order (`GradientCells`), or None. All that
        is looked up is looked up once, so that a step is little more than a call of C; torch's
        hooks of steps do not hear of it. It raises what `step` raises.
        """
        if len(gradients) != (count := len(self._parameters())):
            raise InputError(
                f"gradients: expected one, or None, for each of {count} parameters, found "
                f"{len(gradients)}"
            )
        live = _live(gradients)
        gather = functools.lru_cache(maxsize=1)(lambda roster: _gathered(roster, gradients))

        def step() -> None:
            check_thread()
            self._step(gradients, live, gather)

        return step

    def announce(self) -> tuple[list[Tensor], Any]:
        """Put the coefficients of groups where a step that a device replays reads them.

        What such a step changes; and what it takes as it was when it was captured: where that is no
        longer equal, it is another step.
        """
        roster, others = self._enrolled(self._made.signs[1]) if self._made else (None, [])
        if roster is None or others:
            raise UnsupportedError(
                "expected parameters that one call of the kernels updates, found others; make a "
                "step by `step` first"
            )
        options = (*[self._options(group) for group in self.param_groups],)
        told = [
            {name: value for name, value in group.items() if name not in ("params", "lr")}
            for group in self.param_groups
        ]
        return kernels.announce(roster, options), (told, roster)

    def _parameters(self) -> list[Any]:
        """Those of all groups, in order."""
        return [p for group in self.param_groups for p in group["params"]]

    def _step(
        self, gradients: Given, live: list[int], gather: Callable[[Roster], StepGradients]
    ) -> None:
        """Update every parameter that has a gradient; live: their places.

        What C takes is updated by one call, all else one after the other; where something might
        leave its range, everything is kept, and updated in the second way.
        """
        options = (*[self._options(group) for group in self.param_groups],)
        roster, others = self._enrolled(live)
        changes = [self._change(place, gradients) for place in others] if others else []
        restore = None
        if not (
            (not changes or all(self._surely_fits(*change[:3]) for change in changes))
            and (
                roster is None
                or kernels.of(roster.entries[0].codes).optimize(roster, options, gather(roster))
            )
        ):
            changes = [self._change(place, gradients) for place in live]
            restore = undo.keep([change.parameter for change in changes], self.state)
        if changes:
            self._apply_all(changes, restore)

    @torch.no_grad()
    def _apply_all(self, changes: list[Change], restore: Callable[[], None] | None) -> None:
        """Update parameters one after the other; where one fails, put back what was kept."""
        try:
            for change in changes:
                self._apply(change)
        except BaseException:
            if restore is not None:
                restore()
            raise

    def _enrolled(self, live: list[int]) -> tuple[Roster | None, list[int]]:
        """Those of some parameters that one call updates, and the places of the others.

        The roster is made once, and used as long as nothing is put in another's place.
        """
        every = [p.value for group in self.param_groups for p in group["params"]]
        weights, made = [every[place] for place in live], self._made
        if (
            made is not None
            and made.signs == self._signs(live)
            and all(map(operator.is_, self._held(weights), made.held))
        ):
            return made.roster, made.others
        parameters, entries, others = self._parameters(), [], []
        groups = [i for i, group in enumerate(self.param_groups) for _ in group["params"]]
        once = len(set(map(id, weights))) == len(weights)
        for place, weight in zip(live, weights, strict=True):
            parameter, group = parameters[place], groups[place]
            state, codes = self._kept(parameter), parameter.parts[0][0]
            own = (codes, weight.delayed, weight.cell)
            if once and kernels.enrols(*own):
                state.numbers = kernels.kept_on(codes.device, state.numbers)
                names = self._moments(self.param_groups[group])
                entry = Entry(
                    *(*own, parameter.largest_cell),
                    *(tuple(state.room(name, codes) for name in names), state.numbers),
                    *(parameter.largest_allowed, place, group),
                )
                entries.append(entry)
            else:
                others.append(place)
        roster = Roster(tuple(entries)) if entries else None
        self._made = _Made(self._signs(live), self._held(weights), roster, others)
        return roster, others

    def _signs(self, live: list[int]) -> list[Any]:
        """Facts of which one differs where a roster is not that of the step before."""
        kinds = [(len(group["params"]), self._moments(group)) for group in self.param_groups]
        return [kernels.realisation(), live, kinds]

    def _held(self, weights: list[Weight]) -> list[Any]:
        """Objects of which one is another where a roster is not that of the step before."""
        states = [*self.state.values()]
        moments = [s.moments for s in states if s.__class__ is MomentState]
        return [*weights, None, *states, None, *moments, None]

    def _kept(self, parameter: BFPParameter) -> MomentState:
        """The state of a parameter, which is made where there is none, or one of torch's kind."""
        state = self.state.get(parameter)
        if not isinstance(state, MomentState):
            state = self.state[parameter] = MomentState(state or {})
        return state

    def _change(self, place: int, gradients: Given) -> Change:
        """The part of a step that is one parameter's."""
        groups = [group for group in self.param_groups for _ in group["params"]]
        parameter, group, given = self._parameters()[place], groups[place], gradients[place]
        assert given is not None
        bounds = [-1 if bound is None else int(bound) for bound in given.bounds]
        gradient = Gradient(
            tuple((codes, int(exponent)) for codes, exponent in given.parts),
            tuple(None if bound < 0 else min(bound, formats.Q32) for bound in bounds),
        )
        draw = None
        if group["rounding"] == "stochastic":
            draw = Draw(group["seed"], place, self._kept(parameter).numbers.steps)
        lr = coefficient(float(group["lr"]), "learning rate")
        name = self.names.get(id(parameter), f"parameter {place}")
        return Change(parameter, gradient, group, lr, draw, name)

    def _apply(self, change: Change) -> None:
        """Update one parameter, and the optimizer's state of it, in place."""
        state = self._kept(change.parameter)
        try:
            self._move(change, state)
        except RangeError as error:
            raise RangeError(f"parameter {change.name!r}: {error}") from None
        state["steps"] = state.get("steps", 0) + 1

    def _move(self, change: Change, state: MomentState) -> None:
        """The direction, and the lazy update by it (training.md 4)."""
        p, e_p = self._direction(change, state)
        if change.lr is not None:
            lazy_update(change.parameter, p, e_p, change.lr, change.draw)

    def _surely_fits(
        self, parameter: BFPParameter, gradient: Gradient, group: dict[str, Any]
    ) -> bool:
        """Whether no exponent of this update can leave its range, by bounds on all magnitudes.

        Of a direction below 2**n the update is below 2**n * lr, and the new weight below twice the
        larger of it and the old one.
        """
        n = self._direction_bits(parameter, gradient, group)
        update = n + undo.bits_of(float(group["lr"]))
        return undo.fits(max(n, update, undo.joint_bits(parameter)))

    def _direction_bits(
        self, parameter: BFPParameter, gradient: Gradient, group: dict[str, Any]
    ) -> int:
        """n such that every number on the way to the direction is below 2**n."""
        raise TypeError(f"{type(self).__name__} defines no direction")

    def _direction(self, change: Change, state: MomentState) -> WholePart:
        """The direction P (e6m9) of a gradient; updates the parameter's state in place."""
        raise TypeError(f"{type(self).__name__} defines no direction")

    def _options(self, group: dict[str, Any]) -> StepOptions:
        """The options of a group as a roster takes them. Raises InputError."""
        raise TypeError(f"{type(self).__name__} defines no options")

    def _moments(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The names of the moments that a step of a group writes."""
        raise TypeError(f"{type(self).__name__} defines no moments")

    STATES: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """The names of what a parameter's state may hold after a step; those of the last are all."""

    def state_dict(self) -> dict[str, Any]:
        """As torch's: integer tensors and plain numbers, of parameters that have had a step."""
        saved = super().state_dict()
        kept = ((index, dict(state)) for index, state in saved["state"].items())
        saved["state"] = {index: state for index, state in kept if state}
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take integer state as it is (PyTorch's loader would turn it into floats).

        Raises CheckpointError for anything that this optimizer could not have saved.
        """
        parameters = [p for group in self.param_groups for p in group["params"]]
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups) or any(
            set(saved) != set(group)
            for saved, group in zip(groups, self.param_groups, strict=False)
        ):
            raise CheckpointError(
                "optimizer state: expected the parameter groups and options of this optimizer; "
                "resume with the same optimizer"
            )
        restored: dict[Tensor, dict[str, Any]] = {}
        for index, values in state_dict["state"].items():
            if not 0 <= int(index) < len(parameters):
                raise CheckpointError(f"optimizer state for parameter {index}, which is not there")
            parameter = parameters[int(index)]
            if set(values) not in (set(), *map(set, self.STATES)):
                raise CheckpointError(
                    f"optimizer state of parameter {index}: expected {sorted(self.STATES[-1])}, "
                    f"found {sorted(values)}"
                )
            restored[parameter] = {
                key: stored(value, KINDS[key], parameter, f"{key!r} of parameter {index}")
                for key, value in values.items()
            }
        for saved in groups:
            try:
                _check_rounding(saved)
            except InputError as error:
                raise CheckpointError(f"optimizer state: {error}") from None
        self.state.clear()
        self.state.update(restored)
        for group, saved in zip(self.param_groups, groups, strict=True):
            group.update({key: value for key, value in saved.items() if key != "params"})


def _check_rounding(group: dict[str, Any]) -> None:
    """InputError unless a group's `seed` and `rounding` are what `IntegerOptimizer` takes."""
    seed, rounding = group["seed"], group["rounding"]
    if rounding not in ROUNDINGS:
        raise InputError(f"rounding: expected one of {', '.join(ROUNDINGS)}, found {rounding!r}")
    if type(seed) is not int or not 0 <= seed < 2**32:
        raise InputError(f"seed: expected a whole number in 0..{2**32 - 1}, found {seed!r}")


class SGD(IntegerOptimizer):
    """Stochastic gradient descent; momentum is an e6m9 tensor (2 bytes an element)."""

    STATES = (("steps",), ("steps", "momentum", "momentum_exponent"))

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        seed: int = 0,
        rounding: str = "stochastic",
    ) -> None:
        if nesterov and not momentum:
            raise InputError("Nesterov momentum: expected momentum > 0, found 0")
        for value, what in ((momentum, "momentum"), (weight_decay, "weight decay")):
            coefficient(value, what)
        defaults = {"lr": lr, "momentum": momentum, "nesterov": nesterov}
        rest = {"weight_decay": weight_decay, "seed": seed, "rounding": rounding}
        super().__init__(parameters, defaults | rest)

    def _direction_bits(
        self, parameter: BFPParameter, gradient: Gradient, group: dict[str, Any]
    ) -> int:
        """As IntegerOptimizer's: three terms, and with Nesterov the new V once more."""
        state, momentum = self.state.get(parameter) or {}, undo.bits_of(group["momentum"])
        terms = [
            undo.gradient_bits(gradient),
            undo.bits_of(group["weight_decay"]) + undo.joint_bits(parameter),
            state.get("momentum_exponent", formats.EXPONENT_MIN) + 10 + momentum,
        ]
        return max(terms) + 2 + max(momentum, 0) + group["nesterov"]

    def _options(self, group: dict[str, Any]) -> StepOptions:
        lr, decay, momentum = group["lr"], group["weight_decay"], group["momentum"]
        rest = (group["nesterov"], group["rounding"], group["seed"])
        return sgd_options(float(lr), float(decay), float(momentum), *rest)

    def _moments(self, group: dict[str, Any]) -> tuple[str, ...]:
        return _MOMENTUM[:1] if group["momentum"] else ()

    def _terms(self, change: Change, state: MomentState) -> SGDTerms:
        """The operands of a step."""
        codes, exponent = change.parameter.parts[0]
        momentum, factor = None, coefficient(change.group["momentum"], "momentum")
        if factor is not None and "momentum" in state:
            v, exponent_v, largest = (state[name] for name in _MOMENTUM)
            momentum = Term(v, exponent_v, factor, largest)
        return SGDTerms(
            gradient=change.gradient,
            codes=codes,
            delayed=change.parameter.delayed,
            e_a=exponent - formats.DELAYED_BITS,
            decay=coefficient(change.group["weight_decay"], "weight decay"),
            momentum=momentum,
            draw=change.draw,
        )

    def _direction(self, change: Change, state: MomentState) -> WholePart:
        """G + decay * J + momentum * V; with Nesterov once more with the new V."""
        terms = self._terms(change, state)
        k = kernels.of(terms.codes)
        if change.group["momentum"]:
            v = _memory_of_momentum(terms, state)
            state.update(zip(_MOMENTUM, (v, *k.direction(terms, v)), strict=True))
            if not change.group["nesterov"]:
                return v, state["momentum_exponent"]
            terms = self._terms(change, state)
        out = torch.empty_like(terms.codes, dtype=torch.int16)
        return out, k.direction(replace(terms, draw=None), out)[0]

    def state_dict(self) -> dict[str, Any]:
        """As IntegerOptimizer's, without the largest code of V, which follows from V."""
        saved = super().state_dict()
        saved["state"] = {
            index: {name: value for name, value in state.items() if name != _MOMENTUM[2]}
            for index, state in saved["state"].items()
        }
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As IntegerOptimizer's, and the largest code of V found again."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            if "momentum" in state:
                v = state["momentum"]
                state[_MOMENTUM[2]] = kernels.of(v).largest_of(v)


_MOMENTUM = ("momentum", "momentum_exponent", "momentum_largest")
"""V, its exponent and its largest code: the common exponent of the next step follows from that, and
reading V to find it would cost a step 3 %."""


def _memory_of_momentum(terms: SGDTerms, state: MomentState) -> Tensor:
    """V, which a step writes in place; new memory before there is one."""
    v = state.get("momentum")
    return torch.empty_like(terms.codes, dtype=torch.int16) if v is None else v


class Adam(IntegerOptimizer):
    """Adam, and with `decoupled=True` AdamW. Both moments are e6m9: 4 bytes an element.

    Its formulas are binary64, element by element (training.md 4): no float copy of a tensor exists.
    """

    STATES = (
        (
            *("steps", "first", "first_exponent", "root", "root_exponent"),
            *("power1", "power2"),
        ),
    )

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = BETAS,
        eps: float = EPS,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        seed: int = 0,
        rounding: str = "stochastic",
    ) -> None:
        for beta in betas:
            if not 0 <= beta < 1:
                raise InputError(f"betas: expected numbers in [0, 1), found {beta}")
        if not eps > 0:
            raise InputError(f"eps: expected a number > 0, found {eps}")
        coefficient(weight_decay, "weight decay")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        rest = {"decoupled": decoupled, "seed": seed, "rounding": rounding}
        super().__init__(parameters, defaults | rest)

    def _direction_bits(
        self, parameter: BFPParameter, gradient: Gradient, group: dict[str, Any]
    ) -> int:
        """As IntegerOptimizer's: the moments are below 2**top, the quotient below
        2**top / (1 - beta1) / eps, as the second root's divisor is at most 1."""
        state = self.state.get(parameter) or {}
        decay = undo.bits_of(group["weight_decay"]) + undo.joint_bits(parameter)
        top = 1 + max(
            undo.gradient_bits(gradient) + 1,
            decay + 1,
            state.get("first_exponent", formats.EXPONENT_MIN) + 10,
            state.get("root_exponent", formats.EXPONENT_MIN) + 10,
        )
        quotient = top + 2 - undo.bits_of(1.0 - group["betas"][0]) - undo.bits_of(group["eps"])
        return max(top, quotient, decay) + 1

    def _options(self, group: dict[str, Any]) -> StepOptions:
        numbers = (group["lr"], group["weight_decay"], *group["betas"], group["eps"])
        rest = (group["decoupled"], group["rounding"], group["seed"])
        return adam_options(*map(float, numbers), *rest)

    def _moments(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("first", "root")

    def _direction(self, change: Change, state: MomentState) -> WholePart:
        """Moments, then the direction from the moments as they are stored (training.md 4)."""
        codes, exponent = change.parameter.parts[0]
        group, k = change.group, kernels.of(codes)
        if not state:
            state["first"] = torch.zeros_like(codes, dtype=torch.int16)
            state["root"] = torch.zeros_like(codes, dtype=torch.int16)
            state["first_exponent"] = state["root_exponent"] = formats.EXPONENT_MIN
            state["power1"] = state["power2"] = 1.0
        beta1, beta2 = group["betas"]
        state["power1"] *= beta1
        state["power2"] *= beta2
        g, e_g = k.resolve(list(change.gradient.parts))
        decay, decoupled = group["weight_decay"], group["decoupled"]
        terms = AdamTerms(
            g=g,
            e_g=int(e_g),
            codes=codes,
            delayed=change.parameter.delayed,
            e_a=exponent - formats.DELAYED_BITS,
            first=state["first"],
            e_first=state["first_exponent"],
            root=state["root"],
            e_root=state["root_exponent"],
            beta1=beta1,
            beta2=beta2,
            coupled=0.0 if decoupled else decay,
            decoupled=decay if decoupled else 0.0,
            c1=1.0 - state["power1"],
            c2=math.sqrt(1.0 - state["power2"]),
            eps=group["eps"],
            draw=change.draw,
        )
        out = torch.empty_like(codes, dtype=torch.int16)
        state["first_exponent"], state["root_exponent"], e_p = k.adam(terms, out)
        return out, e_p
