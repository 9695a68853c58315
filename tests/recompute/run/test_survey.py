"""What the survey says of sub-layers: operations, and what they keep."""

from __future__ import annotations

import pytest

from recompute_nets import make
from samebits.kernels import softmax
from samebits.recompute.run.profile import survey


@pytest.mark.parametrize("name", ["words", "dropout"])
def test_products_of_bfp_layers_are_those_of_matrices_and_convolutions(name):
    case = make(name, "bfp")
    _, network = survey(case.model, case.inputs, case.loss)
    kinds = {layer.kind for layer in network.layers}
    assert "Linear" in kinds
    assert kinds - {"Linear", "Conv2d"}
    for layer in network.layers[1:]:
        expected = layer.operations if layer.kind in ("Linear", "Conv2d") else 0
        assert layer.operations > 0
        assert layer.products == expected, layer.name


def test_the_state_of_a_weight_is_nothing_that_a_layer_keeps():
    """A layer norm saves codes and delayed updates of its weight, which the model holds anyway,
    and besides them a code for each of its 4 x 6 x 8 elements and a factor for each of 24 rows."""
    case = make("words", "bfp")
    _, network = survey(case.model, case.inputs, case.loss)
    assert [layer.extra for layer in network.layers if layer.kind == "LayerNorm"] == [192 + 24 * 4]


def test_what_a_process_makes_once_is_nothing_that_a_pass_holds():
    """The tables of a loss are there after the first pass: the survey must not depend on it."""
    case = make("dropout", "bfp")
    softmax.power_tables.cache_clear()
    networks = [survey(case.model, case.inputs, case.loss)[1] for _ in range(2)]
    assert networks[0] == networks[1]
