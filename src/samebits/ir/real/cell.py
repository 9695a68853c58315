"""One step of a recurrent layer, in terms of the other real operators. docs/spec/graph.md 2.1.

It is written once, for arrays and for graphs: the operators on whole sequences (`recurrent`)
apply it to arrays, `ir.steps.stepped` appends it as nodes. So both compute the same numbers in
the same order.

LSTM: S. Hochreiter, J. Schmidhuber, "Long short-term memory", 1997, with the forget gate and the
peepholes of F. A. Gers, J. Schmidhuber, "Recurrent nets that time and count", 2000; projection: H.
Sak, A. Senior, F. Beaufays, "Long short-term memory recurrent neural network architectures for
large scale acoustic modeling", 2014; coupled input and forget gates (CIFG): K. Greff et al., "LSTM:
a search space odyssey", 2017. GRU: K. Cho et al., "Learning phrase representations using RNN
encoder-decoder for statistical machine translation", 2014.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from samebits.ir.ops import Attributes
from samebits.ir.real.define import float32

T = TypeVar("T")


class Operators(Protocol[T]):
    """Applies real operators: to arrays at once, or as nodes of a graph."""

    def __call__(self, op: str, *inputs: T, name: str = "", **attributes: Any) -> Sequence[T]:
        """The outputs of an operator. name: what to call its node."""
        ...

    def number(self, value: float) -> T:
        """One number of the layer's type."""
        ...


# --- activations ------------------------------------------------------------------------------

ACTIVATIONS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "Relu": (),
        "Tanh": (),
        "Sigmoid": (),
        "Softsign": (),
        "Softplus": (),
        "Affine": (1.0, 0.0),
        "LeakyRelu": (float32(0.01),),
        "ThresholdedRelu": (1.0,),
        "ScaledTanh": (1.0, 1.0),
        "HardSigmoid": (float32(0.2), 0.5),
        "Elu": (1.0,),
    }
)
"""ONNX's functions of recurrent layers, with the defaults of their alpha and beta."""


@dataclass(frozen=True)
class CellActivation:
    """A function of ACTIVATIONS. numbers: its alpha and beta, as many as it has."""

    name: str
    numbers: tuple[float, ...]

    def __call__(self, operators: Operators[T], x: T, name: str) -> T:
        """The function of x."""

        def one(op: str, *inputs: T, **attributes: Any) -> T:
            return operators(op, *inputs, name=name, **attributes)[0]

        if self.name == "Affine":
            alpha, beta = map(operators.number, self.numbers)
            return one("Add", one("Mul", x, alpha), beta)
        if self.name == "ScaledTanh":
            alpha, beta = map(operators.number, self.numbers)
            return one("Mul", one("Tanh", one("Mul", x, beta)), alpha)
        return one(self.name, x, **dict(zip(("alpha", "beta"), self.numbers, strict=False)))


def activations(
    layer: RecurrentLayer, attributes: Attributes, directions: int
) -> list[list[CellActivation]]:
    """The functions of each direction. Raises ValueError for attributes that name no such list."""
    names = tuple(attributes["activations"]) or layer.activations * directions
    each = len(layer.activations)
    if len(names) != each * directions:
        raise ValueError(f"expected {each * directions} activations, found {len(names)}")
    found = []
    for index, name in enumerate(names):
        if name not in ACTIVATIONS:
            raise ValueError(f"expected activations of {', '.join(ACTIVATIONS)}, found {name!r}")
        numbers = list(ACTIVATIONS[name])
        for place, key in enumerate(("activation_alpha", "activation_beta")):
            given = attributes[key]
            if given and len(given) != len(names):
                raise ValueError(f"expected {len(names)} numbers in {key}, found {len(given)}")
            number = given[index] if given else None
            if number is None:
                continue
            if place >= len(numbers) or not isinstance(number, (int, float)):
                wanted = "a number as" if place < len(numbers) else "no"
                raise ValueError(f"expected {wanted} {key} of {name}, found {number!r}")
            numbers[place] = float(number)
        found.append(CellActivation(name, tuple(numbers)))
    return [found[at : at + each] for at in range(0, len(found), each)]


# --- parameters -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weights(Generic[T]):
    """The parameters of one direction by gate, with H cells, I features of x and P of h.

    x: [H, I]   h: [H, P]   bias, h_bias: [H], added to the product of x and to that of h
    peephole: [H]   projection: [P, H]. Biases and peepholes are there as far as the layer has them.
    """

    x: Mapping[str, T]
    h: Mapping[str, T]
    bias: Mapping[str, T]
    h_bias: Mapping[str, T]
    peephole: Mapping[str, T]
    projection: T | None


@dataclass(frozen=True)
class Sizes:
    """directions; hidden: H; features: I; outputs: P."""

    directions: int
    hidden: int
    features: int
    outputs: int


@dataclass(frozen=True)
class Parameters(Generic[T]):
    """The inputs of a recurrent operator that are neither sequences nor states.

    w: [D, G * H, I]   r: [D, G * H, P]   b: [D, 2 * G * H]   p: [D, 3 * H]   projection: [D, P, H]
    """

    w: T
    r: T
    b: T | None = None
    p: T | None = None
    projection: T | None = None


def weights(
    operators: Operators[T],
    layer: RecurrentLayer,
    parameters: Parameters[T],
    sizes: Sizes,
    direction: int,
    attributes: Attributes,
) -> Weights[T]:
    """The parameters of one direction, gate by gate."""
    gates, hidden = layer.gates, sizes.hidden

    def of_direction(x: T, *shape: int) -> T:
        if sizes.directions > 1:
            x = operators("Split", x, axis=0, sizes=(1,) * sizes.directions)[direction]
        return operators("Reshape", x, shape=shape)[0]

    def by_gate(x: T, letters: str) -> dict[str, T]:
        if len(letters) == 1:
            return {letters: x}
        parts = operators("Split", x, axis=0, sizes=(hidden,) * len(letters))
        return dict(zip(letters, parts, strict=True))

    rows = len(gates) * hidden
    bias: dict[str, T] = {}
    h_bias: dict[str, T] = {}
    if parameters.b is not None:
        both = operators("Split", of_direction(parameters.b, 2 * rows), axis=0, sizes=(rows, rows))
        bias, h_bias = (by_gate(part, gates) for part in both)
        kept = layer.apart(attributes)
        for gate in gates:
            if gate not in kept:
                bias[gate] = operators("Add", bias[gate], h_bias.pop(gate))[0]
    return Weights(
        by_gate(of_direction(parameters.w, rows, sizes.features), gates),
        by_gate(of_direction(parameters.r, rows, sizes.outputs), gates),
        bias,
        h_bias,
        {} if parameters.p is None else by_gate(of_direction(parameters.p, 3 * hidden), "iof"),
        None
        if parameters.projection is None
        else of_direction(parameters.projection, sizes.outputs, hidden),
    )


# --- steps ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell(Generic[T]):
    """One direction of a layer: what computes its states from x [B, I] and its states before.

    States are h [B, P] and, of an LSTM, c [B, H]. name: what the names of nodes begin with.
    """

    layer: RecurrentLayer
    operators: Operators[T]
    weights: Weights[T]
    attributes: Attributes
    activations: Sequence[CellActivation]
    name: str = ""

    def step(self, x: T, states: tuple[T, ...]) -> tuple[T, ...]:
        """The states after a step; h is its output."""
        return self.layer.step(self, x, states)

    def one(self, op: str, *inputs: T, name: str, **attributes: Any) -> T:
        """The output of an operator."""
        return self.operators(op, *inputs, name=f"{self.name}.{name}", **attributes)[0]

    def from_x(self, gate: str, x: T) -> T:
        """x Wᵀ + bias."""
        operands = [x, self.weights.x[gate], *_given(self.weights.bias, gate)]
        return self.one("Gemm", *operands, name=f"{gate}_x", transB=1)

    def from_h(self, gate: str, h: T) -> T:
        """h Rᵀ, with a bias where that is not added to the product of x."""
        operands = [h, self.weights.h[gate], *_given(self.weights.h_bias, gate)]
        return self.one("Gemm", *operands, name=f"{gate}_h", transB=1)

    def total(self, gate: str, part: T, h: T, c: T | None = None) -> T:
        """(part + h Rᵀ) + p (.) c."""
        peephole = None
        if c is not None and gate in self.weights.peephole:
            peephole = self.one("Mul", c, self.weights.peephole[gate], name=f"{gate}_c")
        name = f"{gate}_sum"
        total = self.one("Add", part, self.from_h(gate, h), name=name)
        return total if peephole is None else self.one("Add", total, peephole, name=name)

    def activated(self, gate: str, index: int, total: T) -> T:
        """The gate: its sum within the clip threshold, through activation `index`."""
        clip = self.attributes["clip"]
        if clip is not None:
            bound = float(clip)
            total = self.one("Clip", total, name=f"{gate}_clip", min=-bound, max=bound)
        return self.activations[index](self.operators, total, f"{self.name}.{gate}_gate")

    def complement(self, x: T, name: str) -> T:
        """1 - x."""
        return self.one("Sub", self.operators.number(1.0), x, name=name)


def _given(parameters: Mapping[str, T], gate: str) -> list[T]:
    return [parameters[gate]] if gate in parameters else []


def _lstm(cell: Cell[T], x: T, states: tuple[T, ...]) -> tuple[T, ...]:
    """i, f, o = F(...)   g = G(...)   c' = f (.) c + i (.) g   h' = o (.) H(c'), projected.

    The output gate's peephole sees c'. CIFG: f = 1 - i.
    """
    h, c = states
    coupled = bool(cell.attributes["input_forget"])
    parts = {gate: cell.from_x(gate, x) for gate in ("ico" if coupled else "ifco")}
    i = cell.activated("i", 0, cell.total("i", parts["i"], h, c))
    if coupled:
        f = cell.complement(i, "f_gate")
    else:
        f = cell.activated("f", 0, cell.total("f", parts["f"], h, c))
    kept = cell.one("Mul", f, c, name="kept")
    g = cell.activated("c", 1, cell.total("c", parts["c"], h))
    c = cell.one("Add", kept, cell.one("Mul", i, g, name="new"), name="cell")
    o = cell.activated("o", 0, cell.total("o", parts["o"], h, c))
    squashed = cell.activations[2](cell.operators, c, f"{cell.name}.squashed")
    h = cell.one("Mul", o, squashed, name="hidden")
    if cell.weights.projection is not None:
        h = cell.one("Gemm", h, cell.weights.projection, name="projected", transB=1)
    return h, c


def _gru(cell: Cell[T], x: T, states: tuple[T, ...]) -> tuple[T, ...]:
    """z, r = F(...)   n = G(x Wᵀ + (r (.) h) Rᵀ + b)   h' = (1 - z) (.) n + z (.) h.

    linear_before_reset: n = G(x Wᵀ + b + r (.) (h Rᵀ + b')).
    """
    (h,) = states
    parts = {gate: cell.from_x(gate, x) for gate in "zrh"}
    z, r = (cell.activated(gate, 0, cell.total(gate, parts[gate], h)) for gate in "zr")
    if cell.attributes["linear_before_reset"]:
        reset = cell.one("Mul", r, cell.from_h("h", h), name="reset")
        total = cell.one("Add", parts["h"], reset, name="h_sum")
    else:
        total = cell.total("h", parts["h"], cell.one("Mul", r, h, name="reset"))
    n = cell.activated("h", 1, total)
    new = cell.one("Mul", cell.complement(z, "z_rest"), n, name="new")
    return (cell.one("Add", new, cell.one("Mul", z, h, name="kept"), name="hidden"),)


def _rnn(cell: Cell[T], x: T, states: tuple[T, ...]) -> tuple[T, ...]:
    """h' = F(x Wᵀ + h Rᵀ + b)."""
    (h,) = states
    return (cell.activated("i", 0, cell.total("i", cell.from_x("i", x), h)),)


@dataclass(frozen=True)
class RecurrentLayer:
    """A recurrent operator.

    gates: in the order of the rows of W and R. activations: of one direction, where none are given.
    """

    gates: str
    states: int
    activations: tuple[str, ...]
    step: Callable[[Cell[Any], Any, tuple[Any, ...]], tuple[Any, ...]]

    def apart(self, attributes: Attributes) -> str:
        """Gates whose bias of h is not added to that of x: what they sum is not a plain sum."""
        return "h" if attributes.get("linear_before_reset") else ""


LAYERS: Mapping[str, RecurrentLayer] = MappingProxyType(
    {
        "LSTM": RecurrentLayer("iofc", 2, ("Sigmoid", "Tanh", "Tanh"), _lstm),
        "GRU": RecurrentLayer("zrh", 1, ("Sigmoid", "Tanh"), _gru),
        "RNN": RecurrentLayer("i", 1, ("Tanh",), _rnn),
    }
)
"""The recurrent operators, of which `ir.real.recurrent` holds the records."""
