"""What the tests of training share."""

from __future__ import annotations

import pytest

from samebits import kernels


@pytest.fixture(params=["native", "eager"])
def realisation(request):
    """Every realisation of the kernels in turn, by its name."""
    if request.param == "native" and kernels.realisation() != "native":
        pytest.skip("no native kernels: no C compiler on this machine")
    with kernels.use(request.param):
        yield request.param
