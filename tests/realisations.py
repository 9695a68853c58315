"""Which realisation of the kernels a test runs on in `make test`."""

import pytest

eager_slowly = pytest.mark.parametrize(
    "realisation", ["native", pytest.param("eager", marks=pytest.mark.slow)], indirect=True
)
"""Of tests that compare whole steps: on kernels in torch they are slow ones."""
