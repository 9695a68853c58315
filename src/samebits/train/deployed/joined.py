"""Products and the batch norm that alone takes their sums: one operation when deployed, with one
rounding (docs/spec/training.md section 11). Inference runtimes fold the two in the same way
(Jacob et al., "Quantization and Training of Neural Networks", 2018)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import nn

from samebits.train import layers
from samebits.train.deployed.weights import FrozenNorm
from samebits.train.operation import TrainingOperation, taken_in
from samebits.train.operations import normalization
from samebits.train.operations.linear import PRODUCTS
from samebits.train.operations.narrow import NARROW, SHORT
from samebits.train.operations.pointwise import RESHAPE
from samebits.train.operations.transposed import TRANSPOSED_PRODUCTS
from samebits.train.sums import Sums
from samebits.train.value import BFPValue

_AND = " and "


def joined_name(product: str, norm: str) -> str:
    """The name of the site of a product and its batch norm, of the names that both would have."""
    return f"{product}{_AND}{norm}"


def norm_of(site: str, product: str) -> str | None:
    """The path of the batch norm that a site joins with a product of this name, or None."""
    path, _, kind = site.removeprefix(product + _AND).rpartition(" ")
    return path if site.startswith(product + _AND) and kind == "(BatchNorm)" else None


def frozen_norm(module: nn.Module) -> FrozenNorm:
    """A batch norm by its running statistics."""
    assert isinstance(module, layers.BatchNorm)
    parameters = taken_in(module.weight), taken_in(module.bias)
    statistics = module.running_mean, module.running_var
    return FrozenNorm(*normalization.frozen_scalars(*parameters, *statistics, module.eps))


class Joined:
    """Which products a batch norm follows, found out while a model runs.

    A site is known by its place in the list of sites. norms: of a product's place the place of the
    batch norm that takes its sums.
    """

    def __init__(self) -> None:
        self.norms: dict[int, int] = {}
        self._place: dict[BFPValue, int] = {}  # of a product: its output, moved and narrowed
        self._sums: dict[Sums | None, int] = {}
        self._uses: Counter[BFPValue] = Counter()
        self._apart: set[int] = set()

    def hear(
        self,
        operation: TrainingOperation,
        arguments: Sequence[Any],
        output: BFPValue,
        place: int,
        module: nn.Module,
    ) -> None:
        """Note a call, whose site has this place if it is one, of a module."""
        own = None
        for x in arguments:
            if isinstance(x, BFPValue):
                self._uses[x] += 1
                own = self._place.get(x, own)
                if (sums := x.sums) in self._sums and x not in self._place:
                    self._apart.add(self._sums[sums])  # the same sums in another tensor
        if operation is PRODUCTS or (
            operation is TRANSPOSED_PRODUCTS and arguments[3].groups == 1
        ):  # of several groups ONNX has no scale a channel
            self._place[output], self._sums[output.sums] = place, place
        elif own is None:
            return
        elif operation is normalization.BATCH_NORM and isinstance(module, layers.BatchNorm):
            self.norms[own] = place
        elif operation in (NARROW, SHORT) or (
            operation is RESHAPE and output.shape[:2] == arguments[0].shape[:2]
        ):
            self._place[output] = own

    def found(self, output: object) -> dict[int, int]:
        """Those of a product that nothing but the batch norm takes. output: of the model."""
        several = {at for x, at in self._place.items() if self._uses[x] + (x is output) > 1}
        apart = self._apart | several
        return {at: norm for at, norm in self.norms.items() if at not in apart}
