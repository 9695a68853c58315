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


def pytest_collection_modifyitems(items):
    """Let both realisations of a test follow each other: what they are compared with is cached."""
    first = {}

    def place(numbered):
        number, item = numbered
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if "realisation" not in parameters:
            return number
        return first.setdefault(item.nodeid.replace(f"{parameters['realisation']}-", "", 1), number)

    items[:] = [item for _, item in sorted(enumerate(items), key=place)]
