"""Optimizers with lazy update (training.md 2 to 4).

No weight, gradient or moment is held in floating point between steps. SGD computes in integers
alone. Adam's formulas divide and take roots: they are binary64, operation by operation in the order
of the specification, each correctly rounded (+ - * / sqrt, and no libm), and their results are
stored as integers again; its state holds two binary64 numbers beside them, beta1**t and beta2**t,
by repeated multiplication. Learning rate, momentum and SGD's weight decay are options in binary64,
read as 16-bit coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import CheckpointError, InputError, RangeError
from samebits.kernels.geometry import smallest_exponent
from samebits.kernels.protocol import BITS, Gradient, Part, Term
from samebits.numerics.environment import check_thread
from samebits.spec import formats
from samebits.train import undo
from samebits.train.tensor import BFPParameter, BFPTensor, times_power

CHUNK = 1 << 16  # elements that Adam holds in binary64 at a time


def coefficient(value: float, what: str) -> tuple[int, int] | None:
    """A number as a 16-bit coefficient (m, x), m * 2**x (training.md 3); None for 0.

    Raises InputError, which says `what` it is, for a number that is negative or not finite.
    """
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{what}: expected a finite number >= 0, found {value}")
    return formats.coefficient(value) if value else None


def lazy_update(
    parameter: BFPParameter, p: Tensor, e_p: int, lr: tuple[int, int], name: str
) -> None:
    """Subtract lr * P (int16 codes at the exponent e_p) from a parameter, in place (2.1).

    Updates are mostly smaller than one 8-bit code. They gather in A, and only what has grown to a
    code is carried into W, so no float copy of the weight is needed: the joint value
    J = W * 2**15 - A falls by exactly u = rne(m * P * 2**shift), whatever moves from A to W. Two
    things round: u, to the grid of J (2**-15 of a code), and J where the exponent goes up.

    The exponent moves where max|W| leaves [64, 127], which a first pass finds without writing:
    beyond it J is split again at `by` more (or fewer) bits. Where W, as the last update left it,
    is so far from both ends that no code of P can carry it there, one pass does both.

    Raises RangeError, which names the parameter, where the exponent would pass 127.
    """
    codes, exponent = parameter.parts[0]
    delayed, k = parameter.delayed, kernels.of(codes)
    m, x = lr
    shift = e_p + x - (exponent - formats.DELAYED_BITS)
    one_pass = shift <= 15 and _stays_in_range(parameter.largest_code(), m, shift)
    if not one_pass and k.largest_of(p) == 0:
        return
    if shift > 15:
        k.lazy_resplit(codes, delayed, p, 0, 0, shift - 15)
        exponent += shift - 15
        shift = 15
    by = 0
    if one_pass:
        largest: int | None = k.lazy_carry(codes, delayed, p, m, shift, True)
    else:
        largest = k.lazy_carry(codes, delayed, p, m, shift, False)
        if not 64 <= largest <= formats.Q8:
            top = k.joint_max(codes, delayed, p, m, shift)
            by = _resplit_shift(largest, top, exponent)
        if by == 0:
            k.lazy_carry(codes, delayed, p, m, shift, True)
        else:
            k.lazy_resplit(codes, delayed, p, m, shift, by)
            largest = None
    torch.autograd.graph.increment_version([codes, delayed])  # written through pointers
    exponent += by
    if exponent > formats.EXPONENT_MAX:
        raise RangeError(
            f"parameter {name!r}: the update overflows (exponent {exponent}, at most "
            f"{formats.EXPONENT_MAX}); lower the learning rate"
        )
    parameter.set_exponent(exponent)
    if largest is not None:
        parameter.remember_largest_code(largest)


def _stays_in_range(largest: int | None, m: int, shift: int) -> bool:
    """Whether max|W| surely stays in [64, 127], whatever the codes of P: one pass is enough.

    A is at most 2**14, and m * P * 2**shift at most that of the largest code; their sum rounded to
    2**15 bounds what any W is carried by.
    """
    if largest is None:
        return False
    carry = (
        formats.scaled((1 << 14) + formats.scaled(m * formats.Q16, shift), -formats.DELAYED_BITS)
        + 1
    )
    return 64 + carry <= largest <= formats.Q8 - carry


def _resplit_shift(largest: int, joint: int, exponent: int) -> int:
    """The change of e_W for max|W| = largest and max|J| = joint (training.md 2.1, 4 and 5).

    Rounding is monotonic, so the largest W after a split follows from the largest J alone.
    """
    if joint == 0:
        return 0
    by = 0
    while largest > formats.Q8:
        by += 1
        largest = formats.scaled(formats.scaled(joint, -by), -formats.DELAYED_BITS)
    if by:
        return by
    while largest <= 63 and exponent + by > formats.EXPONENT_MIN:
        by -= 1
        largest = formats.scaled(joint << -by, -formats.DELAYED_BITS)
    return by


class Update(NamedTuple):
    """One parameter's part of a step; `lr` is None where the learning rate is 0."""

    parameter: BFPParameter
    gradient: Gradient
    group: dict[str, Any]
    lr: tuple[int, int] | None
    name: str


class Optimizer(torch.optim.Optimizer):
    """PyTorch's optimizer interface over BFP parameters; subclasses define `_direction`.

    `param_groups` and learning-rate schedules work as in PyTorch; per-parameter state holds integer
    tensors and plain numbers only.
    """

    def __init__(self, parameters: Iterable[Any], defaults: dict[str, Any]) -> None:
        super().__init__(parameters, defaults)
        for group in self.param_groups:
            for index, parameter in enumerate(group["params"]):
                if not isinstance(parameter, BFPParameter):
                    raise InputError(
                        f"parameter {index}: expected a BFP parameter, found "
                        f"{type(parameter).__name__}; convert the model with samebits.train.convert"
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
        updates = list(self._updates())
        restore = None
        if not all(self._surely_fits(u.parameter, u.gradient, u.group) for u in updates):
            restore = undo.keep([update.parameter for update in updates], self.state)
        try:
            for update in updates:
                self._apply(update)
        except BaseException:
            if restore is not None:
                restore()
            raise
        return loss

    def _updates(self) -> Iterator[Update]:
        """The updates of a step, all options and gradients checked. Raises InputError."""
        position = 0
        for group in self.param_groups:
            lr = coefficient(float(group["lr"]), "learning rate")
            for parameter in group["params"]:
                name = self.names.get(id(parameter), f"parameter {position}")
                position += 1
                if parameter.grad is None:
                    continue
                if not isinstance(parameter.grad, BFPTensor):
                    raise InputError("expected BFP gradients: use samebits.train losses and layers")
                gradient = Gradient(parameter.grad.parts, parameter.grad.bounds)
                yield Update(parameter, gradient, group, lr, name)

    def _apply(self, update: Update) -> None:
        """Update one parameter, and the optimizer's state of it, in place."""
        try:
            p, e_p = self._direction(update.parameter, update.gradient, update.group)
        except RangeError as error:
            raise RangeError(f"parameter {update.name!r}: {error}") from None
        if update.lr is not None:
            lazy_update(update.parameter, p, e_p, update.lr, update.name)

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

    def _direction(
        self, parameter: BFPParameter, gradient: Gradient, group: dict[str, Any]
    ) -> Part:
        """The bfp16 direction P of a gradient; updates the optimizer's own state."""
        raise TypeError(f"{type(self).__name__} defines no direction")

    STATE: ClassVar[dict[str, Any]] = {}
    """Entries of a parameter's state: the dtype of a tensor, `int` (exponents) or `float`."""

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
            if values and set(values) != set(self.STATE):
                raise CheckpointError(
                    f"optimizer state of parameter {index}: expected {sorted(self.STATE)}, "
                    f"found {sorted(values)}"
                )
            restored[parameter] = {
                key: _stored(value, self.STATE[key], parameter, f"{key!r} of parameter {index}")
                for key, value in values.items()
            }
        self.state.clear()
        self.state.update(restored)
        for group, saved in zip(self.param_groups, groups, strict=True):
            group.update({key: value for key, value in saved.items() if key != "params"})


def _stored(value: Any, kind: Any, parameter: BFPParameter, what: str) -> Any:
    """One entry of an optimizer's saved state, in the memory order of its parameter.

    kind: the dtype of a tensor, `int` of an exponent or `float` of a power of beta. Checkpoints are
    untrusted: CheckpointError, which says `what` it is, for another type, shape or range.
    """
    if isinstance(kind, torch.dtype):
        limit = formats.CODE_MAX[BITS[kind]]
        if (
            not isinstance(value, Tensor)
            or value.dtype != kind
            or value.shape != parameter.shape
            or kernels.of(value).largest_of(value) > limit
        ):
            found = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else value
            raise CheckpointError(
                f"optimizer state {what}: expected {kind} {tuple(parameter.shape)} with magnitudes "
                f"of at most {limit}, found {found}"
            )
        return torch.empty_like(parameter.codes, dtype=kind).copy_(value)
    if kind is int and type(value) is int and formats.EXPONENT_MIN <= value <= formats.EXPONENT_MAX:
        return value
    if kind is float and type(value) is float and 0 <= value <= 1:
        return value
    raise CheckpointError(
        f"optimizer state {what}: expected an exponent in [-128, 127] or a power of beta in "
        f"[0, 1], found {value!r}"
    )


class SGD(Optimizer):
    """Stochastic gradient descent; momentum is a bfp16 tensor (2 bytes an element)."""

    STATE: ClassVar[dict[str, Any]] = {"momentum": torch.int16, "momentum_exponent": int}

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        if nesterov and not momentum:
            raise InputError("Nesterov momentum: expected momentum > 0, found 0")
        for value, what in ((momentum, "momentum"), (weight_decay, "weight decay")):
            coefficient(value, what)
        super().__init__(
            parameters,
            {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay},
        )

    def _direction_bits(
        self, parameter: BFPParameter, gradient: Gradient, group: dict[str, Any]
    ) -> int:
        """As Optimizer's: three terms, and with Nesterov the new V once more."""
        state, momentum = self.state.get(parameter) or {}, undo.bits_of(group["momentum"])
        terms = [
            undo.gradient_bits(gradient),
            undo.bits_of(group["weight_decay"]) + undo.joint_bits(parameter),
            state.get("momentum_exponent", formats.EXPONENT_MIN) + 15 + momentum,
        ]
        return max(terms) + 2 + max(momentum, 0) + group["nesterov"]

    def _direction(
        self, parameter: BFPParameter, gradient: Gradient, group: dict[str, Any]
    ) -> Part:
        """G + decay * J + momentum * V; with Nesterov once more with the new V."""
        codes, exponent = parameter.parts[0]
        decay = coefficient(group["weight_decay"], "weight decay")
        momentum = coefficient(group["momentum"], "momentum")
        e_a = exponent - formats.DELAYED_BITS
        k, state = kernels.of(codes), self.state[parameter]
        own = (gradient, codes, parameter.delayed, e_a, decay)
        if momentum is None:
            out = torch.empty_like(codes, dtype=torch.int16)
            return out, k.direction(*own, None, out)
        v = state.get("momentum")
        term = None if v is None else Term(v, state["momentum_exponent"], momentum)
        if v is None:
            v = state["momentum"] = torch.empty_like(codes, dtype=torch.int16)
        state["momentum_exponent"] = k.direction(*own, term, v)
        if not group["nesterov"]:
            return v, state["momentum_exponent"]
        out = torch.empty_like(v)
        term = Term(v, state["momentum_exponent"], momentum)
        return out, k.direction(*own, term, out)


class Adam(Optimizer):
    """Adam, and with `decoupled=True` AdamW. First moment bfp16, root of the second bfp32.

    The element-wise binary64 formulas (training.md 4) run over chunks, so that no float copy of a
    tensor exists.
    """

    STATE: ClassVar[dict[str, Any]] = {
        "first": torch.int16,
        "first_exponent": int,
        "root": torch.int32,
        "root_exponent": int,
        "power1": float,
        "power2": float,
    }

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
    ) -> None:
        for beta in betas:
            if not 0 <= beta < 1:
                raise InputError(f"betas: expected numbers in [0, 1), found {beta}")
        if not eps > 0:
            raise InputError(f"eps: expected a number > 0, found {eps}")
        coefficient(weight_decay, "weight decay")
        super().__init__(
            parameters,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "decoupled": decoupled,
            },
        )

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
            state.get("first_exponent", formats.EXPONENT_MIN) + 15,
            state.get("root_exponent", formats.EXPONENT_MIN) + 31,
        )
        quotient = top + 2 - undo.bits_of(1.0 - group["betas"][0]) - undo.bits_of(group["eps"])
        return max(top, quotient, decay) + 1

    def _direction(
        self, parameter: BFPParameter, gradient: Gradient, group: dict[str, Any]
    ) -> Part:
        """Moments, then the direction from the moments as they are stored (training.md 4).

        A result's exponent follows from its largest magnitude over the whole tensor. So each chunk
        is computed twice, for the exponent and then for the codes, instead of being held in
        binary64 between.
        """
        codes, _ = parameter.parts[0]
        state = self.state[parameter]
        if not state:
            state["first"] = torch.zeros_like(codes, dtype=torch.int16)
            state["root"] = torch.zeros_like(codes, dtype=torch.int32)
            state["first_exponent"] = state["root_exponent"] = formats.EXPONENT_MIN
            state["power1"] = state["power2"] = 1.0
        beta1, beta2 = group["betas"]
        state["power1"] *= beta1
        state["power2"] *= beta2
        joint, e_a = parameter.joint()
        g, e_g = kernels.of(codes).resolve(list(gradient.parts))
        flat = _Flat(
            _in_order(g, codes), e_g, joint, e_a, group["weight_decay"], group["decoupled"]
        )
        first = _in_order(state["first"], codes)
        root = _in_order(state["root"], codes)
        e_first, e_root = state["first_exponent"], state["root_exponent"]

        def moments(at: slice) -> tuple[Tensor, Tensor]:
            """First moment and root of the second of a chunk, binary64."""
            grad = flat.gradient(at)
            m = beta1 * _real(first[at], e_first) + (1.0 - beta1) * grad
            s = _real(root[at], e_root)
            v = beta2 * (s * s) + (1.0 - beta2) * (grad * grad)
            return m, torch.sqrt(v)

        chunks = [slice(i, i + CHUNK) for i in range(0, first.numel(), CHUNK)]
        tops = [[float(v.abs().max()) for v in moments(at)] for at in chunks]
        e_m = smallest_exponent(max(t[0] for t in tops), 16)
        e_s = smallest_exponent(max(t[1] for t in tops), 32)
        for at in chunks:
            m, s = moments(at)
            first[at], root[at] = _code(m, e_m).to(torch.int16), _code(s, e_s).to(torch.int32)
        state["first_exponent"], state["root_exponent"] = e_m, e_s
        # As tensors: a GPU would divide by a plain number through its rounded reciprocal.
        c1 = torch.tensor(1.0 - state["power1"], dtype=torch.float64, device=codes.device)
        c2 = torch.tensor(
            math.sqrt(1.0 - state["power2"]), dtype=torch.float64, device=codes.device
        )

        def direction(at: slice) -> Tensor:
            p = _real(first[at], e_m) / c1 / (_real(root[at], e_s) / c2 + group["eps"])
            return p + flat.decay(at)

        largest = max(float(direction(at).abs().max()) for at in chunks)
        e_p = smallest_exponent(largest, 16)
        out = torch.empty_like(codes, dtype=torch.int16)
        flat_out = _in_order(out, codes)
        for at in chunks:
            flat_out[at] = _code(direction(at), e_p).to(torch.int16)
        return out, e_p


class _Flat:
    """Gradient and weight-decay terms of Adam, read chunk by chunk in binary64."""

    def __init__(
        self, g: Tensor, e_g: int, joint: Tensor, e_a: int, weight_decay: float, decoupled: bool
    ) -> None:
        self.g, self.e_g, self.e_a = g, e_g, e_a
        self.joint = _in_order(joint, joint)
        self.coupled = 0.0 if decoupled else weight_decay
        self.decoupled = weight_decay if decoupled else 0.0

    def gradient(self, at: slice) -> Tensor:
        """The gradient of a chunk, with Adam's weight decay."""
        grad = _real(self.g[at], self.e_g)
        if self.coupled:
            grad = grad + self.coupled * _real(self.joint[at], self.e_a)
        return grad

    def decay(self, at: slice) -> Tensor | float:
        """AdamW's weight decay of a chunk; 0 without one."""
        return self.decoupled * _real(self.joint[at], self.e_a) if self.decoupled else 0.0


def _in_order(v: Tensor, order: Tensor) -> Tensor:
    """A flat view of v (same shape) in the memory order of `order`; a copy where v has another."""
    if v.stride() != order.stride():
        v = torch.empty_like(order, dtype=v.dtype).copy_(v)
    return v.permute(0, 2, 3, 1).reshape(-1) if v.dim() == 4 else v.reshape(-1)


def _real(codes: Tensor, exponent: int) -> Tensor:
    return times_power(codes.double(), exponent)


def _code(v: Tensor, exponent: int) -> Tensor:
    return torch.round(times_power(v, -exponent))


__all__ = ["SGD", "Adam", "Optimizer", "lazy_update"]
