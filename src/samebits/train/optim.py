"""Optimizers with lazy update (training.md 2 to 4).

No weight or gradient is held in floating point between steps; moments are 16-bit codes with small
exponents of their own (e6m9, 1.4). SGD computes in integers alone. Adam's formulas divide and take
roots: they are binary64, operation by operation in the order of the specification, each correctly
rounded (+ - * / sqrt, and no libm), and their results are stored as codes again; its state holds
two binary64 numbers beside them, beta1**t and beta2**t, by repeated multiplication. Learning rate,
momentum and SGD's weight decay are options in binary64, read as 16-bit coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import CheckpointError, InputError, RangeError
from samebits.kernels.adam import AdamTerms
from samebits.kernels.moments import Draw, Update
from samebits.kernels.protocol import Gradient, SGDTerms, Term, WholePart
from samebits.settled import check_thread
from samebits.spec import formats
from samebits.spec.training.moments import CODE_MAX, FRACTION, LEADING, TOP_FIELD
from samebits.spec.training.optimizer import UPDATE_BITS
from samebits.train import undo
from samebits.train.tensor import BFPParameter, BFPTensor

ROUNDINGS = ("stochastic", "nearest")


def coefficient(value: float, what: str) -> tuple[int, int] | None:
    """A number as a 16-bit coefficient (m, x), m * 2**x (training.md 3); None for 0.

    Raises InputError, which says `what` it is, for a number that is negative or not finite.
    """
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{what}: expected a finite number >= 0, found {value}")
    return formats.coefficient(value) if value else None


def lazy_update(
    parameter: BFPParameter,
    p: Tensor,
    e_p: int,
    lr: tuple[int, int],
    draw: Draw | None,
) -> None:
    """Subtract lr * P (e6m9 codes at the exponent e_p) from a parameter, in place (2.1).

    Updates are mostly smaller than one 8-bit code. They gather in A, and only what has grown to a
    code is carried into W, so no float copy of the weight is needed: the joint value
    J = W * 2**15 - A falls by exactly u, the update in units of J (2**-15 of a code), whatever
    moves from A to W. Two things round: u, with the random bits of `draw` or (None) to nearest, and
    J where the exponent goes up.

    The exponent moves where max|W| leaves [64, 127], which a first pass finds without writing:
    beyond it J is split again at `by` more (or fewer) bits. Where J, as the last update left it,
    is so far from both ends that no code of P can carry it there, one pass does both.

    Rows with exponents of their own are updated each for itself, by one call of the kernels.

    Raises RangeError where an exponent would pass 127.
    """
    codes, exponent = parameter.parts[0]
    update = Update(p, lr[0], e_p - TOP_FIELD + lr[1], draw)
    limit = parameter.largest_allowed
    largest = None
    if isinstance(exponent, Tensor):
        exponent = kernels.of(codes).lazy_rows(codes, parameter.delayed, exponent, update, limit)
        top = int(exponent.max())
    else:
        e_a = exponent - formats.DELAYED_BITS
        exponent, largest = _update_whole(
            parameter, exponent, update._replace(shift=update.shift - e_a)
        )
        top = exponent
    torch.autograd.graph.increment_version([codes, parameter.delayed])  # written through pointers
    if top > formats.EXPONENT_MAX:
        raise RangeError(
            f"the update overflows (exponent {top}, at most {formats.EXPONENT_MAX}); lower the "
            "learning rate"
        )
    parameter.set_exponent(exponent)
    if largest is not None:
        parameter.remember_largest_joint(largest)


def _update_whole(parameter: BFPParameter, exponent: int, update: Update) -> tuple[int, int | None]:
    """The update of a tensor that is one row; its new exponent, and max|J| where it is known."""
    codes, delayed = parameter.parts[0][0], parameter.delayed
    k, limit = kernels.of(codes), parameter.largest_allowed
    if 1 << max(update.bits, 0) <= _room(parameter):
        return exponent, k.lazy_carry(codes, delayed, update, True)[1]
    largest_p = k.largest_of(update.p)
    if largest_p == 0:
        return exponent, parameter.largest_joint()
    above = update.bits - TOP_FIELD + (largest_p >> FRACTION) - UPDATE_BITS
    if above > 0:
        k.lazy_resplit(codes, delayed, Update(update.p, 0, -TOP_FIELD, None), above)
        exponent += above
        update = update._replace(shift=update.shift - above)
    largest, joint = k.lazy_carry(codes, delayed, update, False)
    by = _resplit_shift(largest, joint, exponent, limit)
    if by == 0:
        k.lazy_carry(codes, delayed, update, True)
    else:
        k.lazy_resplit(codes, delayed, update, by)
    return exponent + by, formats.scaled(joint, -by)


def _room(parameter: BFPParameter) -> int:
    """The largest |u| that surely keeps max|W| above half the limit and within it; -1 for none.

    W is J / 2**15 to the nearest, so max|W| passes an end only where max|J| reaches the middle
    between it and the next code.
    """
    joint, limit = parameter.largest_joint(), parameter.largest_allowed
    if joint is None:
        return -1
    low, high = (((2 * end + 1) << formats.DELAYED_BITS) // 2 for end in (limit // 2, limit))
    return min(joint - low, high - joint) - 1


def _resplit_shift(largest: int, joint: int, exponent: int, limit: int) -> int:
    """The change of e_W for max|W| = largest and max|J| = joint (training.md 2.1, 4 and 5).

    Rounding is monotonic, so the largest W after a split follows from the largest J alone.
    """
    if joint == 0:
        return 0
    by = 0
    while largest > limit:
        by += 1
        largest = formats.scaled(formats.scaled(joint, -by), -formats.DELAYED_BITS)
    if by:
        return by
    while largest <= limit // 2 and exponent + by > formats.EXPONENT_MIN:
        by -= 1
        largest = formats.scaled(joint << -by, -formats.DELAYED_BITS)
    return by


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


class Optimizer(torch.optim.Optimizer):
    """PyTorch's optimizer interface over BFP parameters; subclasses define `_direction`.

    `param_groups` and learning-rate schedules work as in PyTorch; per-parameter state holds integer
    tensors and plain numbers only. Moments and updates are rounded stochastically, with random bits
    that are a function of the seed, the parameter's place, the step and the element (1.5).

    Options of every optimizer are `seed`, of the random bits, and `rounding`: stochastic, or
    nearest (training.md 10 says what then stalls).
    """

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
        self.names: dict[int, str] = {}

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
        loss = None
        trained = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if trained and all(p.grad is None for p in trained):
            raise InputError(
                "no parameter has a gradient: call backward() before step(), and build the "
                "optimizer after moving the model to its device"
            )
        changes = list(self._changes())
        restore = None
        if not all(self._surely_fits(c.parameter, c.gradient, c.group) for c in changes):
            restore = undo.keep([change.parameter for change in changes], self.state)
        try:
            for change in changes:
                self._apply(change)
        except BaseException:
            if restore is not None:
                restore()
            raise
        return loss

    def _changes(self) -> Iterator[Change]:
        """The parts of a step, all options and gradients checked. Raises InputError."""
        position = 0
        for group in self.param_groups:
            lr = coefficient(float(group["lr"]), "learning rate")
            for parameter in group["params"]:
                name, index = self.names.get(id(parameter), f"parameter {position}"), position
                position += 1
                if parameter.grad is None:
                    continue
                if not isinstance(parameter.grad, BFPTensor):
                    raise InputError("expected BFP gradients: use samebits.train losses and layers")
                parts = tuple((codes, int(e)) for codes, e in parameter.grad.parts)
                bounds = (b if b is None else min(b, formats.Q32) for b in parameter.grad.bounds)
                gradient = Gradient(parts, tuple(bounds))
                draw = None
                if group["rounding"] == "stochastic":
                    steps = self.state.get(parameter, {}).get("steps", 0)
                    draw = Draw(group["seed"], index, steps)
                yield Change(parameter, gradient, group, lr, draw, name)

    def _apply(self, change: Change) -> None:
        """Update one parameter, and the optimizer's state of it, in place."""
        state = self.state[change.parameter]
        try:
            self._move(change, state)
        except RangeError as error:
            raise RangeError(f"parameter {change.name!r}: {error}") from None
        state["steps"] = state.get("steps", 0) + 1

    def _move(self, change: Change, state: dict[str, Any]) -> None:
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

    def _direction(self, change: Change, state: dict[str, Any]) -> WholePart:
        """The direction P (e6m9) of a gradient; updates the parameter's state in place."""
        raise TypeError(f"{type(self).__name__} defines no direction")

    STATES: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """The names of what a parameter's state may hold after a step; those of the last are all."""

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
                key: _stored(value, KINDS[key], parameter, f"{key!r} of parameter {index}")
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
    """InputError unless a group's `seed` and `rounding` are what `Optimizer` takes."""
    seed, rounding = group["seed"], group["rounding"]
    if rounding not in ROUNDINGS:
        raise InputError(f"rounding: expected one of {', '.join(ROUNDINGS)}, found {rounding!r}")
    if type(seed) is not int or not 0 <= seed < 2**32:
        raise InputError(f"seed: expected a whole number in 0..{2**32 - 1}, found {seed!r}")


KINDS = {
    "steps": "steps",
    "momentum": "codes",
    "momentum_exponent": "exponent",
    "first": "codes",
    "first_exponent": "exponent",
    "root": "codes",
    "root_exponent": "exponent",
    "power1": "power",
    "power2": "power",
}
"""The entries of optimizer states, by the kind that `_stored` checks."""


def _stored(value: Any, kind: str, parameter: BFPParameter, what: str) -> Any:
    """One entry of an optimizer's saved state, in the memory order of its parameter.

    Checkpoints are untrusted: CheckpointError, which says `what` it is, for another type, shape or
    range.
    """
    if kind == "codes":
        if (
            not isinstance(value, Tensor)
            or value.dtype != torch.int16
            or value.shape != parameter.shape
            or bool(((value != 0) & (value > -LEADING) & (value < LEADING)).any())
            or bool((value < -CODE_MAX).any())
        ):
            found = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else value
            raise CheckpointError(
                f"optimizer state {what}: expected e6m9 codes, int16 {tuple(parameter.shape)} of 0 "
                f"and magnitudes of {LEADING} to {CODE_MAX}, found {found}"
            )
        return torch.empty_like(parameter.codes, dtype=torch.int16).copy_(value)
    low, high = {
        "exponent": (formats.EXPONENT_MIN, formats.EXPONENT_MAX),
        "steps": (1, 2**32 - 1),
        "power": (0.0, 1.0),
    }[kind]
    if type(value) is type(low) and low <= value <= high:
        return value
    raise CheckpointError(
        f"optimizer state {what}: expected a number in [{low}, {high}], found {value!r}"
    )


class SGD(Optimizer):
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
        """As Optimizer's: three terms, and with Nesterov the new V once more."""
        state, momentum = self.state.get(parameter) or {}, undo.bits_of(group["momentum"])
        terms = [
            undo.gradient_bits(gradient),
            undo.bits_of(group["weight_decay"]) + undo.joint_bits(parameter),
            state.get("momentum_exponent", formats.EXPONENT_MIN) + 10 + momentum,
        ]
        return max(terms) + 2 + max(momentum, 0) + group["nesterov"]

    def _terms(self, change: Change, state: dict[str, Any]) -> SGDTerms:
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

    def _move(self, change: Change, state: dict[str, Any]) -> None:
        """As Optimizer's, in one pass over everything where that surely keeps W in its range."""
        if not self._moves_in_one_pass(change, state):
            super()._move(change, state)

    def _moves_in_one_pass(self, change: Change, state: dict[str, Any]) -> bool:
        """Whether it was done."""
        parameter, group = change.parameter, change.group
        room = _room(parameter)
        if change.lr is None or change.draw is None or group["nesterov"] or room < 0:
            return False
        terms = self._terms(change, state)
        v = _memory_of_momentum(terms, state) if group["momentum"] else None
        done = kernels.of(terms.codes).sgd(terms, change.lr, room, v)
        if done is None:
            return False
        *of_v, joint = done
        torch.autograd.graph.increment_version([terms.codes, terms.delayed])
        parameter.remember_largest_joint(joint)
        if v is not None:
            state.update(zip(_MOMENTUM, (v, *of_v), strict=True))
        return True

    def _direction(self, change: Change, state: dict[str, Any]) -> WholePart:
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
        """As Optimizer's, without the largest code of V, which follows from V."""
        saved = super().state_dict()
        saved["state"] = {
            index: {name: value for name, value in state.items() if name != _MOMENTUM[2]}
            for index, state in saved["state"].items()
        }
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As Optimizer's, and the largest code of V found again."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            if "momentum" in state:
                v = state["momentum"]
                state[_MOMENTUM[2]] = kernels.of(v).largest_of(v)


_MOMENTUM = ("momentum", "momentum_exponent", "momentum_largest")
"""V, its exponent and its largest code: the common exponent of the next step follows from that, and
reading V to find it would cost a step 3 %."""


def _memory_of_momentum(terms: SGDTerms, state: dict[str, Any]) -> Tensor:
    """V, which a step writes in place; new memory before there is one."""
    v = state.get("momentum")
    return torch.empty_like(terms.codes, dtype=torch.int16) if v is None else v


class Adam(Optimizer):
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
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
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
        """As Optimizer's: the moments are below 2**top, the quotient below 2**top / (1 - beta1) /
        eps, as the second root's divisor is at most 1."""
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

    def _direction(self, change: Change, state: dict[str, Any]) -> WholePart:
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


__all__ = ["ROUNDINGS", "SGD", "Adam", "Optimizer", "lazy_update"]
