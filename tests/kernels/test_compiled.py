"""torch.compile's point-wise functions against plain integers."""

from __future__ import annotations

import pytest
import torch

from compare import assert_same
from samebits.errors import InputError
from samebits.kernels import use
from samebits.kernels.compiled import Compiled
from samebits.kernels.eager import Eager
from samebits.spec import formats

VALUES = [
    sign * (1 << bits) + step
    for bits in range(0, 62, 3)
    for sign in (-1, 1)
    for step in (-1, 0, 1, 1 << max(bits - 2, 0), (1 << max(bits - 1, 0)) - 1)
]


REALISATIONS = {"eager": Eager(), "compiled": Compiled()}
EACH = ["eager", pytest.param("compiled", marks=pytest.mark.slow)]  # compiling takes seconds


@pytest.mark.parametrize("kernels", EACH)
def test_scale(kernels):
    """Every shift to the right; ties, and what is next to them."""
    k = REALISATIONS[kernels]
    v = torch.tensor(VALUES)
    for exponent in range(-70, 1):
        expected = [formats.scaled(value, exponent) for value in VALUES]
        assert_same(k.scale(v, exponent), expected, VALUES)
    small = torch.tensor([value for value in VALUES if abs(value) < 1 << 31])
    for exponent in range(31):
        assert_same(k.scale(small, exponent), small << exponent, small)


@pytest.mark.parametrize("kernels", EACH)
def test_divide(kernels):
    k = REALISATIONS[kernels]
    v = torch.tensor(VALUES)
    for divisor in (1, 2, 3, 9, 10, 49, 1 << 20, 49 << 31, (1 << 40) + 1):
        expected = [formats.round_ratio(value, divisor) for value in VALUES]
        assert_same(k.divide(v, divisor), expected, VALUES)


def test_each_calls_its_own(monkeypatch):
    """The fused functions leave the eager ones alone, and what is not fused calls the fused."""
    assert Compiled.scale is not Eager.scale
    assert Compiled.requantize is Eager.requantize
    assert Compiled.scale_to is Eager.scale_to
    called = []
    scale = Eager.scale  # in both: compiling takes seconds
    for kind in (Eager, Compiled):
        monkeypatch.setattr(
            kind, "scale", lambda self, *args, kind=kind: called.append(kind) or scale(self, *args)
        )
    v = torch.tensor([1 << 20])
    for kind in (Eager, Compiled):
        kind().requantize(v, 1 << 20, 0, 8)
        assert called == [kind]
        called.clear()


def test_the_environment_chooses(monkeypatch):
    import samebits.kernels as kernels

    for name in ("eager", "compiled"):
        monkeypatch.setenv("SAMEBITS_KERNELS", name)
        kernels.chosen.cache_clear()
        assert kernels.realisation() == kernels.realisation("cuda") == name
    monkeypatch.setenv("SAMEBITS_KERNELS", "fast")
    kernels.chosen.cache_clear()
    with pytest.raises(InputError, match="SAMEBITS_KERNELS: expected one of native, compiled"):
        kernels.realisation()
    with use("eager"):
        assert kernels.realisation() == "eager"
    monkeypatch.undo()
    kernels.chosen.cache_clear()
