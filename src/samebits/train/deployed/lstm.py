"""The deployed LSTM layer (docs/spec/training.md section 11): 16-bit gates and cells of frozen
exponents, one rounding each, as in quantized graphs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.kernels.protocol import ARGUMENT_EXPONENT, GATE_EXPONENT, HIDDEN_EXPONENT, Part
from samebits.spec import formats
from samebits.tables.expression import Variable, apply
from samebits.tables.transfer import transfer_table
from samebits.train.deployed.rounding import saturated
from samebits.train.deployed.weights import FrozenWeights, exponents_of, frozen_weights
from samebits.train.operations.lstm import unrolled
from samebits.train.operations.recurrent import row_product
from samebits.train.tensor import BFPParameter, BFPTensor

GATES = "ifgo"  # rows of the weights, in this order
_LOW, _HIGH = -(1 << 15), (1 << 15) - 1
_EXACT_BITS = 53  # of binary64
States = tuple[Tensor, Tensor]  # h int8 and c int16, [N, H]


@dataclass
class CellMemory:
    """States of the LSTM layers of one run, in the order of execution.

    before: those it starts from (none: zeros); after: those it ends with.
    """

    before: Sequence[States] = ()
    after: list[States] = field(default_factory=list)

    def start(self, like: Tensor, size: int) -> States:
        """The states of the next layer."""
        if self.before:
            return self.before[len(self.after)]
        h = torch.zeros(like.shape[1], size, dtype=torch.int8, device=like.device)
        return h, h.to(torch.int16)


def lstm(
    site: int,
    x: BFPTensor,
    weight_ih: BFPParameter,
    weight_hh: BFPParameter,
    bias_ih: BFPParameter | None,
    bias_hh: BFPParameter | None,
    reverse: bool,
    memory: CellMemory | None = None,
) -> Part:
    """One layer in one direction, [T, N, I] -> [T, N, H]; `site` is the exponent of its cells.

    Every sum is exact, and rounded once to 16 bits (the hidden state to 8): int32 sums of products
    at two exponents, at most 20 apart, have at most 53 bits together. Raises UnsupportedError
    where they are further apart.
    """
    codes, w_hh = x.whole()[0], weight_hh.parts[0][0]
    steps, n, size = codes.shape[0], codes.shape[1], w_hh.shape[1]
    own = gate_weights(x, weight_ih, bias_ih, bias_hh)
    offsets = torch.tensor(own.offsets, device=codes.device)
    products = _product(codes.reshape(steps * n, -1), own.codes) + offsets
    of_h = [HIDDEN_EXPONENT + e for e in exponents_of(weight_hh)]
    grids = [torch.tensor(e, device=codes.device) for e in (own.exponents, of_h)]
    cell_grids = [
        torch.tensor([e], device=codes.device) for e in (GATE_EXPONENT + site, 2 * GATE_EXPONENT)
    ]
    memory = memory or CellMemory()
    h, c = memory.start(codes, size)
    found: dict[int, Tensor] = {}
    for t in reversed(range(steps)) if reverse else range(steps):
        sums = (products[t * n : (t + 1) * n], _product(h, w_hh))
        total, e = _added(sums, grids)
        z = saturated(total, e - ARGUMENT_EXPONENT, 16).long()
        i, f, g, o = (
            _looked_up("Tanh" if gate == "g" else "Sigmoid", part, ARGUMENT_EXPONENT)
            for gate, part in zip(GATES, z.chunk(4, 1), strict=True)
        )
        total, e = _added((f * c, i * g), cell_grids)
        c = saturated(total, e - site, 16)
        out = o * _looked_up("Tanh", c.long(), site)
        h = found[t] = saturated(out, 2 * GATE_EXPONENT - HIDDEN_EXPONENT)
    memory.after.append((h, c))
    return torch.stack([found[t] for t in range(steps)]), HIDDEN_EXPONENT


def gate_weights(
    x: BFPTensor, weight_ih: BFPParameter, *biases: BFPParameter | None
) -> FrozenWeights:
    """The constants of the product of x, which takes the biases.

    Raises UnsupportedError where they do not fit 32 bits.
    """
    what = "gates whose products of x and biases"
    return frozen_weights(x, weight_ih, *biases, what=what)


def chosen(*arguments: object) -> tuple[BFPTensor, int | None]:
    """The output in the training arithmetic, and the exponent to freeze.

    That is the largest of the steps' cell states that are not all zero, None if all are.
    """
    run = unrolled(*arguments)  # type: ignore[arg-type]
    live = [rows.largest_exponent(codes, e) for codes, e in zip(run.c, run.e_c, strict=True)]
    chosen = max((e for e in live if e is not None), default=None)
    return run.output, chosen


def _product(rows: Tensor, weight: Tensor) -> Tensor:
    """Exact sums int64 [rows, outputs]."""
    return row_product(kernels.of(rows), rows, weight).long()


def _added(parts: Sequence[Tensor], exponents: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The exact sum of two int64 tensors of 31 bits, and its exponents.

    exponents: of the columns of both, int64. Raises UnsupportedError where the sum of a column
    could have more than 53 bits, those of a binary64.
    """
    first, second = exponents
    apart = (first - second).abs()
    if int(apart.max()) > _EXACT_BITS - 33:
        worst = int(apart.argmax())
        raise UnsupportedError(
            f"LSTM: expected scales at most 2**{_EXACT_BITS - 33} apart in a sum, found exponents "
            f"{(int(first[worst]), int(second[worst]))}: its values are too large or too small to "
            "be deployed"
        )
    least = torch.minimum(first, second)
    return (parts[0].long() << (first - least)) + (parts[1].long() << (second - least)), least


def _looked_up(name: str, codes: Tensor, exponent: int) -> Tensor:
    """sat16(rne(f(code * 2**exponent) * 2**15)) as int64."""
    return gate_table(name, exponent, str(codes.device))[codes - _LOW].long()


@functools.lru_cache(maxsize=64)
def gate_table(name: str, exponent: int, device: str) -> Tensor:
    """The 65,536 codes of a function of codes of an exponent, int16."""
    source, target = ((formats.power(e), 0, _LOW, _HIGH) for e in (exponent, GATE_EXPONENT))
    codes = transfer_table(apply(name, Variable()), source, target).codes
    return torch.tensor(codes, dtype=torch.int16, device=device)
